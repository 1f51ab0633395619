"""The commands that a verdict or a waiting state calls for, the likeliest first.

Every command can be typed as it is, except for a person's own words (`WHY`). Only what the state of
the experiment allows is named (`state.verbs_of`).
"""

import re
import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from gonogo.contract.api import NextStep
from gonogo.contract.decision import Cause, Condition, ConditionState
from gonogo.contract.lifecycle import ExperimentState, PhaseState, RunState
from gonogo.contract.outcome import OutcomeCode
from gonogo.contract.plan import DRIFTS
from gonogo.judge.gate.conditions import is_approval
from gonogo.planning.resolve import is_bundled
from service.db.schema import ExperimentRow, PhaseRow, RunRow
from service.experiments.state import begins_anew, is_owed, last_judged, last_tried, verbs_of
from service.experiments.workers import hosts_of
from service.queries.experiments import has_plan

MOST_STEPS = 6
_RANK_LOG = re.compile(r"rank(?P<rank>\d+)\.log")
_OWN = "PLAN"
"""Stands for a plan of a person's own."""
_THROUGH = (PhaseState.PASSED, PhaseState.INHERITED)
_UNMET = (ConditionState.OPEN, ConditionState.MISSED)
_AT_ONCE = "end it at once, without a checkpoint"


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """State of an experiment, as far as what comes next depends on it."""

    row: ExperimentRow
    phases: Sequence[PhaseRow]
    runs: Sequence[RunRow]
    conditions: Sequence[Condition]
    cause: Cause | None
    last_decision: str | None
    settings: Mapping[str, str] = field(default_factory=dict)
    """Environment of a worker that takes the queued run."""
    stack: str | None = None
    """The file of the evidence that shows where the last run hung."""
    by_hand: Collection[str | None] = ()

    def step(self, text: str, *words: str) -> NextStep:
        """Return a command about the experiment."""
        head, *rest = words
        return NextStep(command=shlex.join(["gonogo", head, self.row.id, *rest]), text=text)

    def why(self, text: str, *words: str) -> NextStep:
        """Return a command that wants a reason."""
        return self.step(text, *words, "--reason", "WHY")


def next_steps(place: Place) -> list[NextStep]:
    """Return what can be typed, the likeliest first."""
    verbs = verbs_of(place.row, place.phases, place.runs)
    if place.row.state == ExperimentState.FINISHED:
        steps = _finished(place)
    elif place.row.state == ExperimentState.AWAITING_DECISION:
        steps = _awaiting(place, verbs)
    else:
        steps = _active(place, verbs)
    return list(steps)[:MOST_STEPS]


def _active(place: Place, verbs: Collection[str]) -> Iterator[NextStep]:
    lost = next((run for run in place.runs if run.lost), None)
    if lost is not None and "takeover" in verbs:
        then = "judge it by what is here" if is_owed(lost) else "start the next attempt"
        yield place.why(f"if you know that {hosts_of(lost)} is dead: {then}", "takeover")
    is_queued = any(run.state == RunState.QUEUED for run in place.runs)
    if is_queued:
        having = "" if place.row.needs is None else f" that has {place.row.needs},"
        words = [f"{name}={shlex.quote(value)}" for name, value in sorted(place.settings.items())]
        text = f"start a worker{having} on a host with free devices"
        yield NextStep(command=" ".join([*words, "gonogo worker"]), text=text)
    yield place.step("follow it", "watch")
    stop = place.row.stop.kind.value if place.row.stop is not None else None
    for verb, text in (("halt", "stop it with a checkpoint"), ("cancel", "stop it for good")):
        if verb in verbs and not (is_queued and verb == "halt"):
            yield place.why(_AT_ONCE if stop == verb else text, verb)


def _awaiting(place: Place, verbs: Collection[str]) -> Iterator[NextStep]:
    phase = place.row.awaiting.phase if place.row.awaiting is not None else None
    names = [row.name for row in place.phases]
    after = names[names.index(phase) + 1 :] if phase in names else []
    following = after[0] if after else None
    if "promote" in verbs:
        yield place.why(f"approve: continue with {following or 'its end'}", "promote")
    if "resume" in verbs:
        yield place.step(f"resume {phase} from its last checkpoint, if it saved one", "resume")
    if "rerun" in verbs:
        yield place.step(f"run {phase} again from its start", "rerun")
    for row in place.conditions:
        if row.state is ConditionState.OPEN and row.due == following and not is_approval(row):
            yield _waiver(place, [row])  # else the next phase would miss it
    if "promote" in verbs:
        yield place.why(f"refuse: {phase} is NO_GO by hand", "override", "NO_GO")
    else:
        then = "end it as GO" if following is None else f"continue with {following}"
        yield place.why(f"{then}, by hand", "override", "GO")
        yield place.why("end it as NO_GO, by hand", "override", "NO_GO")
    yield place.why("end it without a verdict", "cancel")


def _waiver(place: Place, conditions: Sequence[Condition]) -> NextStep:
    named = [word for row in conditions for word in ("--condition", row.id)]
    texts = "; ".join(dict.fromkeys(row.text for row in conditions))
    return place.why(f"accept it by hand: {texts}", "override", "CONDITIONAL_GO", *named)


def _finished(place: Place) -> Iterator[NextStep]:
    run, cause = last_judged(place.runs), place.cause
    if run is not None and cause is not None and place.stack is not None:
        command = shlex.join(["gonogo", "artifacts", run.id, place.stack])
        yield NextStep(command=command, text="where it hung")
    elif run is not None and cause is not None and cause.log is not None:
        found = _RANK_LOG.fullmatch(cause.log)
        rank = [] if found is None else ["--rank", found["rank"]]
        command = shlex.join(["gonogo", "logs", run.id, *rank])
        yield NextStep(command=command, text=f"read {cause.log}")
    yield place.step("read the report", "report")
    if place.row.campaign is not None:
        command = f"gonogo campaign show {place.row.campaign}"
        yield NextStep(command=command, text="show the result of its campaign")
    left = [row for row in place.conditions if row.state is ConditionState.OPEN]
    by_person = [row for row in left if row.evidence_from is None]
    if by_person:
        yield _waiver(place, by_person)
    yield from _again(place)
    if place.last_decision is not None:
        check = f"gonogo replay {place.last_decision}"
        yield NextStep(command=check, text="derive the last decision again from its files")


def _again(place: Place) -> Iterator[NextStep]:
    """Yield how a new experiment continues with the first phase that it cannot take over."""
    phase = _first_open(place)
    if phase is None or place.row.campaign is not None:
        return
    anew = begins_anew([run for run in place.runs if run.phase == phase])
    does, start = (f"starts {phase} again", "@0") if anew else (f"continues with {phase}", "")
    plan = _OWN
    if has_plan(place.row) and is_bundled(place.row.plan, place.row.resolved["plan"]):
        plan = place.row.plan
    command = shlex.join(["gonogo", "submit", plan, "--from", f"{place.row.id}:{phase}{start}"])
    yield NextStep(command=command, text=f"after the repair: a new experiment that {does}")
    drifts = _drifts(place)
    if drifts:
        allow = shlex.quote(f"allow_drift=[{','.join(drifts)}]")
        text = "the same, if that may differ (repaired code, another host)"
        yield NextStep(command=f"{command} --set {allow}", text=text)


def _first_open(place: Place) -> str | None:
    """Return the first phase that did not pass by its evidence alone; None: all did."""
    names = [row.name for row in place.phases]
    unpassed = next((row.name for row in place.phases if row.state not in _THROUGH), None)
    if unpassed is None:
        return None
    unsettled = {row.id.partition(":")[0] for row in place.conditions if row.state in _UNMET}
    before = names[: names.index(unpassed)]
    return next((name for name in before if name in unsettled | {*place.by_hand}), unpassed)


def _drifts(place: Place) -> list[str]:
    last = last_tried(place.runs)
    outcome = None if last is None else last.outcome
    if place.cause is None or outcome is None or outcome.code is not OutcomeCode.CONFIG_MISMATCH:
        return []
    differed: list[str] = [name for name in DRIFTS if f" runs {name} " in place.cause.text]
    allowed = place.row.resolved["plan"].get("allow_drift", []) if has_plan(place.row) else []
    return [name for name in DRIFTS if name in differed or name in allowed] if differed else []
