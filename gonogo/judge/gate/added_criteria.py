"""Criteria that the judge adds to a gate: a weak order, a checkpoint with taints, other runs.

Each of them makes a condition, so the run is CONDITIONAL_GO at best. A detector that may only warn
makes one where it would have halted because the training failed, unless the plan asked for that. An
order is weak if it loosens a setting beyond its ceiling, or leaves out a detector or a check. It is
also weak if it has a setting that no plan can make, or an empty gate. A run that nothing could halt
proves little. A setting that is looser than its default, but within its ceiling, is listed in the
decision (`weakened`) and changes no verdict. So is a fault that was injected on purpose.

Not covered: settings of detectors that a plan may leave out, and settings of plug-ins.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from pydantic import JsonValue

from gonogo.contract.canonical import canonical_bytes, wire_value
from gonogo.contract.criterion import GateSeverity
from gonogo.contract.decision import PASSING, CriterionOutcome, CriterionResult, Verdict
from gonogo.contract.facts import Confirmation, Facts, FindingFacts, History
from gonogo.contract.finding import Act, Doubt, DoubtKind, Effect, Source
from gonogo.contract.order import Order, Rules, RunReason
from gonogo.contract.outcome import SHOWN_BY_LINES, code_of
from gonogo.contract.outcome import Detector as Name
from gonogo.contract.plan import DRIFTS
from gonogo.contract.watch import SETTING, TABLE, Action, Watch, setting_at
from gonogo.judge.gate.built_in import MOST_TOLD
from gonogo.judge.words import sentence
from gonogo.watch.registry import BASIC

WEAKENED = Effect.WEAK.value
WARNED = "warned"
REPRODUCED = "reproduced"
REMEDIED = "remedied"
CARRIED = "remedy_carried"
UNPASSED = "unpassed"
FAILED_BEFORE = "failed_before"

CEILINGS: dict[str, float] = {
    "process_death.settle_s": 10.0,
    "no_first_heartbeat.exec_s": 1_800.0,
    "no_first_heartbeat.boot_s": 3_600.0,
    "no_first_heartbeat.first_step_s": 7_200.0,
    "alive_lost.halt_s": 900.0,
    "stall.halt_s": 1_800.0,
    "stall.halt_x": 64.0,
    "stall.corroborate_s": 600.0,
    "stall.min_steps": 256.0,
    "stall.early_s": 3_600.0,
    "section_deadline.data.halt_s": 3_600.0,
    "section_deadline.checkpoint.halt_s": 7_200.0,
    "section_deadline.eval.halt_s": 14_400.0,
    "section_deadline.log.halt_s": 1_800.0,
    "section_deadline.out_of_section.halt_s": 1_800.0,
    "non_finite.fp16_running": 20.0,
    "non_finite.fp16_skipped": 50.0,
    "identity.params_tolerance_ratio": 0.1,
}
"""Dotted path of a setting → how far it may be loosened before it makes a condition."""
LONGEST_S = 14_400.0
"""The longest ceiling. A command without a plan may have this limit in every place."""
SILENCES = 3.0
"""Lines that a living rank must have time for before it is suspected to be silent."""

REQUIRED = frozenset(
    {
        *(Name.PROCESS_DEATH, Name.NO_FIRST_HEARTBEAT, Name.ALIVE_LOST, Name.STALL),
        *(Name.SECTION_DEADLINE, Name.NON_FINITE, Name.IDENTITY),
    }
)
"""Detectors without which hardly anything would halt a run."""
CHECKS = ("devices", "disk", "shm", "orphans", "code", "resume")
"""Preflight checks of every order, with a service or without."""
CHECKS_OF_RANKS = ("environment", "peak")
"""Further checks where ranks are started one by one."""


def with_history(facts: Facts, history: History | None) -> Facts:
    """Return the facts of a run with those of the phase's other runs beside them.

    The history is read back from its canonical text, as a replay reads it.
    """
    if history is None:
        return facts
    text = canonical_bytes(wire_value(history.model_dump(mode="json")))
    return facts.model_copy(update={"history": History.model_validate_json(text)})


def added_criteria(facts: Facts, rules: Rules) -> Iterator[CriterionResult]:
    """Yield the conditions of an order, of its checkpoint and of other runs."""
    history = facts.history or History()
    beyond = [row for row in weaknesses(rules) if row.effect is Effect.WEAK]
    if beyond:
        text = "; ".join(map(sentence, beyond))
        yield _condition(WEAKENED, None, f"the order was weakened: {text}")
    judged = [row for row in facts.findings if row.act is Act.GATE]
    warned = [row for row in judged if _is_failure(row, rules)]
    if warned:
        text = "; ".join(map(_warning_text, warned[:MOST_TOLD]))
        yield _condition(
            WARNED, len(warned), f"a detector that only warns would have halted: {text}"
        )
    if rules.carried:
        text = "; ".join(row.told() for row in rules.carried)
        yield _condition(CARRIED, [row.diagnosis for row in rules.carried], f"carried on: {text}")
    if rules.taints:
        text = "; ".join(taint.words() for taint in rules.taints)
        found = [taint.found for taint in rules.taints]
        yield _condition(UNPASSED, found, f"it resumes from a checkpoint: {text}")
    if history.confirmations:
        yield _reproduced(history.confirmations)
    elif rules.reason is RunReason.CONFIRM:
        yield _condition(REPRODUCED, None, "this run confirms a failure of another run")
    if history.remedy is not None:
        text = f"this run was made with the remedy of {history.remedy.diagnosis}"
        patch = history.remedy.patch
        yield _condition(REMEDIED, patch, f"{text}: {patch}")
    elif rules.reason is RunReason.REMEDY:
        yield _condition(REMEDIED, None, "this run was made with the remedy of another run")
    if history.failed_before:
        rows = history.failed_before
        told = "; ".join(f"{row.run} ({row.code}): {', '.join(row.criteria)}" for row in rows)
        text = f"earlier runs of the phase failed criteria, and this run does not undo it ({told})"
        yield _condition(FAILED_BEFORE, [row.run for row in rows], text)


def _is_failure(row: FindingFacts, rules: Rules) -> bool:
    """Whether a halt that became a warning, unless the plan asked for it, shows a failure."""
    said = rules.watch.get(f"{row.detector}.action")
    asked = said is not None and said.source is Source.PLAN and said.value == Action.WARN
    return code_of(row.detector) in SHOWN_BY_LINES and not asked


def _warning_text(row: FindingFacts) -> str:
    """Return what a detector found, in numbers."""
    numbers = [f"step {row.step}"] if row.step is not None else []
    numbers += [f"value {row.value:g}"] if row.value is not None else []
    numbers += [f"limit {row.threshold:g}"] if row.threshold is not None else []
    return f"{row.detector} ({', '.join(numbers)})"


def _condition(
    name: str, observed: Any, text: str, outcome: CriterionOutcome = CriterionOutcome.FAIL
) -> CriterionResult:
    return CriterionResult(
        id=name,
        severity=GateSeverity.CONDITIONAL,
        outcome=outcome,
        observed=observed,
        evidence=text,
    )


def _reproduced(rows: Sequence[Confirmation]) -> CriterionResult:
    """Return how often a failure came again: unchanged, and under each variant."""
    unchanged = [row for row in rows if row.variant is None]
    failed = sum(row.verdict is Verdict.NO_GO for row in unchanged)
    passed = sum(row.verdict in PASSING for row in unchanged)
    text = f"failed in {failed} of {len(unchanged)} unchanged runs"
    text = f"not reproduced: {text}" if passed else text
    variants: dict[str, list[bool]] = {}
    for row in rows:
        if row.variant is not None:
            variants.setdefault(row.variant.text(), []).append(row.verdict in PASSING)
    told = [f"passed {sum(won)} of {len(won)} with {name}" for name, won in variants.items()]
    undecided = not passed and not any(map(any, variants.values()))
    outcome = CriterionOutcome.INCONCLUSIVE if undecided else CriterionOutcome.FAIL
    observed = {"failed": failed, "runs": len(unchanged), "passed": passed}
    return _condition(REPRODUCED, observed, "; ".join([text, *told]), outcome)


def ceiling_text(path: str) -> str:
    """Return the ceiling of a setting as the reference prints it; empty without one."""
    return f"at most {CEILINGS[path]:g}" if path in CEILINGS else ""


def find_disarmed(order: Order) -> Iterator[tuple[str, JsonValue]]:
    """Yield the path and the value of each setting of an order that no plan can make."""
    every_s = order.heartbeat.alive_every_s
    if every_s > order.watch.alive_lost.suspect_s / SILENCES:
        yield "heartbeat.alive_every_s", every_s
    foreign: list[JsonValue] = [*sorted(set(order.allow_drift).difference(DRIFTS))]
    if foreign:
        yield "allow_drift", foreign
    resolved = order.model_copy(update={"patience": {}}).limits_of_places()
    for place, row in order.patience.items():
        usual_s = resolved[place].seconds if place in resolved else None
        ceiling_s = CEILINGS.get(SETTING.get(place, "")) if order.has_plan else None
        most_s = LONGEST_S if ceiling_s is None else ceiling_s
        if usual_s is not None and (row.seconds is None or row.seconds > max(usual_s, most_s)):
            yield f"patience.{place}", row.seconds


def weaknesses(rules: Rules) -> Iterator[Doubt]:
    """Yield everything that weakens the watch or the gate of an order."""
    yield from _loosened(rules)
    watching = frozenset(rules.detectors or BASIC)
    for name in Name:
        said = rules.watch.get(f"{name}.action")
        required = name in REQUIRED
        kind = DoubtKind.DETECTOR_DISARMED if required else DoubtKind.DETECTOR_WEAKENED
        if name not in watching:
            yield Doubt(kind=kind, name=name, found="does not watch")
        elif said and said.value == Action.WARN and Watch().action_of(name) is Action.HALT:
            yield Doubt(kind=kind, name=name, found="only warns")
    if rules.preflight:  # an order that names no check makes the criterion `preflight` uncertain
        expected = CHECKS if rules.programs is not None else (*CHECKS, *CHECKS_OF_RANKS)
        absent: list[JsonValue] = [name for name in expected if name not in rules.preflight]
        if absent:
            yield Doubt(kind=DoubtKind.CHECKS_LEFT_OUT, found=absent)
    for path, value in rules.disarmed.items():
        yield Doubt(kind=DoubtKind.SETTING_FOREIGN, name=path, found=value)
    if rules.plan and not rules.gate and rules.last_step > 1:  # one step shows that it starts
        yield Doubt(kind=DoubtKind.GATE_EMPTY)
    if rules.fault is not None:
        yield Doubt(kind=DoubtKind.FAULT_INJECTED, name=rules.fault)
    elif rules.allow_faults:
        yield Doubt(kind=DoubtKind.FAULTS_ALLOWED)


def _loosened(rules: Rules) -> Iterator[Doubt]:
    """Yield the settings of the plan that are looser than the defaults for its kind of program."""
    for path, limit in CEILINGS.items():
        said = rules.watch.get(path)
        if said is None or said.source is Source.DEFAULT:
            continue
        place = next((place for place, setting in SETTING.items() if setting == path), None)
        usual_s = None if place is None else TABLE[place][rules.program_kind].seconds
        default = setting_at(Watch(), path) if usual_s is None else usual_s
        value = limit if said.value is None else said.value
        if not isinstance(value, int | float) or value <= default:
            continue
        if value > limit:
            yield Doubt(kind=DoubtKind.SETTING_BEYOND, name=path, expected=limit, found=value)
        else:
            yield Doubt(kind=DoubtKind.SETTING_LOOSER, name=path, expected=default, found=value)
