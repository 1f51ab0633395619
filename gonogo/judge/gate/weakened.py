"""What weakens the watch or the gate of an order, compared with what this release orders.

A setting that is looser than its default is listed in the decision (`weakened`), and changes no
verdict. A condition names what goes further: a setting beyond its ceiling, a detector or a check
that is missing, an order that no plan can make, and an empty gate. So such a run is CONDITIONAL_GO
at best: a run that nothing could halt, or that nothing was asked of, proves little.

Not covered: settings of detectors that only warn by default, and settings of plug-ins.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TypeGuard

from pydantic import BaseModel, JsonValue

from gonogo.contract.criterion import GateSeverity
from gonogo.contract.decision import CriterionOutcome, CriterionResult
from gonogo.contract.finding import Source
from gonogo.contract.hardware import hardware_profiles
from gonogo.contract.order import Order
from gonogo.contract.outcome import Detector as Name
from gonogo.contract.patience import SETTING
from gonogo.contract.plan import DRIFTS
from gonogo.contract.rules import Rules
from gonogo.contract.watch import Action, Watch
from gonogo.watch.registry import BASIC

CEILING = "watch_ceiling"
"""Id of the condition that names what weakens an order."""


@dataclass(frozen=True, slots=True)
class Ceiling:
    """How far a setting may be loosened before it makes a condition."""

    limit: float
    lower_is_looser: bool = False

    def is_looser(self, value: float, than: float) -> bool:
        """Say whether `value` is looser than another."""
        return value < than if self.lower_is_looser else value > than

    def words(self) -> str:
        """Return the ceiling as the references print it."""
        return f"{'at least' if self.lower_is_looser else 'at most'} {self.limit:g}"


def _floor(limit: float) -> Ceiling:
    return Ceiling(limit, lower_is_looser=True)


CEILINGS: dict[str, Ceiling] = {
    "process_death.settle_s": Ceiling(10.0),
    "no_first_heartbeat.exec_s": Ceiling(1_800.0),
    "no_first_heartbeat.boot_s": Ceiling(3_600.0),
    "no_first_heartbeat.first_step_s": Ceiling(7_200.0),
    "alive_lost.halt_s": Ceiling(900.0),
    "stall.halt_s": Ceiling(1_800.0),
    "stall.halt_x": Ceiling(64.0),
    "stall.corroborate_s": Ceiling(600.0),
    "stall.min_steps": Ceiling(256.0),
    "stall.early_s": Ceiling(3_600.0),
    "section_deadline.data.halt_s": Ceiling(3_600.0),
    "section_deadline.checkpoint.halt_s": Ceiling(7_200.0),
    "section_deadline.eval.halt_s": Ceiling(14_400.0),
    "section_deadline.log.halt_s": Ceiling(1_800.0),
    "section_deadline.out_of_section.halt_s": Ceiling(1_800.0),
    "slow.floor_ratio": _floor(0.25),
    "slow.floor_over_s": Ceiling(3_600.0),
    "slow.hard_floor_ratio": _floor(0.1),
    "slow.halt_ratio": Ceiling(5.0),
    "slow.over_s": Ceiling(7_200.0),
    "non_finite.fp16_running": Ceiling(20.0),
    "non_finite.fp16_skipped": Ceiling(50.0),
    "identity.params_tolerance_ratio": Ceiling(0.1),
    "first_loss.tolerance": Ceiling(5.0),
    "memory_limit.samples": Ceiling(30.0),
    "memory_limit.host_ratio": Ceiling(0.98),
    "disk.halt_checkpoints": _floor(0.5),
    "watcher.away_s": Ceiling(300.0),
    "watcher.silent_s": Ceiling(600.0),
    "watcher.keeper_s": Ceiling(60.0),
    "hardware.throttled_s": Ceiling(3_600.0),
    "restart_storm.attempts": Ceiling(10.0),
    "restart_storm.starts": Ceiling(50.0),
    "restart_storm.within_s": _floor(300.0),
}
"""Dotted path of a setting → its ceiling."""
FLOOR = "slow.floor_tok_s"
LONGEST_S = 14_400.0
"""The longest ceiling. A command without a plan may have this limit in every place."""
SILENCES = 3.0
"""Lines that a living rank must have time for before it is suspected to be silent."""

REQUIRED = (
    Name.PROCESS_DEATH,
    Name.NO_FIRST_HEARTBEAT,
    Name.ALIVE_LOST,
    Name.STALL,
    Name.SECTION_DEADLINE,
    Name.NON_FINITE,
    Name.IDENTITY,
)
"""Detectors without which hardly anything would halt a run."""
OTHERS = tuple(name for name in Name if name not in REQUIRED)
CHECKS = ("devices", "disk", "shm", "orphans", "code", "resume")
"""Preflight checks of every order, with a service or without."""
CHECKS_OF_RANKS = ("environment", "peak")
"""Further checks where ranks are started one by one."""


def default_of(path: str) -> object:
    """Return the default of a setting; None for a setting that this release does not know."""
    node: object = Watch()
    for part in path.split("."):
        node = getattr(node, part, None) if isinstance(node, BaseModel) else None
    return node


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
        ceiling = CEILINGS.get(SETTING.get(place, "")) if order.plan else None
        most_s = LONGEST_S if ceiling is None else ceiling.limit
        if usual_s is not None and (row.seconds is None or row.seconds > max(usual_s, most_s)):
            yield f"patience.{place}", row.seconds


def weakened(rules: Rules) -> list[str]:
    """Return everything that weakens the watch or the gate, one sentence each."""
    looser = [
        f"{path} is {_shown(value)}, looser than the default {_shown(default)}"
        for path, value, default in _loosened(rules)
    ]
    return [*looser, *_conditions(rules), *_silent(rules, OTHERS), *_lowered_floor(rules)]


def evaluate_ceilings(rules: Rules) -> CriterionResult | None:
    """Return the condition that names what weakens an order too far; None if nothing does."""
    beyond = {
        path: (value, CEILINGS[path].limit)
        for path, value, _ in _loosened(rules)
        if CEILINGS[path].is_looser(value, CEILINGS[path].limit)
    }
    texts = [f"{path} is {value:g}, its limit {limit:g}" for path, (value, limit) in beyond.items()]
    texts += _conditions(rules)
    if not texts:
        return None
    return CriterionResult(
        id=CEILING,
        severity=GateSeverity.CONDITIONAL,
        outcome=CriterionOutcome.FAIL,
        observed={path: value for path, (value, _) in beyond.items()},
        threshold={path: limit for path, (_, limit) in beyond.items()},
        evidence=f"the order was weakened: {'; '.join(texts)}",
    )


def _loosened(rules: Rules) -> Iterator[tuple[str, float, float]]:
    """Yield the settings of the plan that are looser than the defaults: path, value, default."""
    for path, ceiling in CEILINGS.items():
        said, default = rules.watch.get(path), default_of(path)
        if said is None or said.source is Source.DEFAULT or not _is_number(default):
            continue
        value = ceiling.limit if said.value is None else said.value
        if _is_number(value) and ceiling.is_looser(value, default):
            yield path, float(value), float(default)


def _conditions(rules: Rules) -> Iterator[str]:
    """Yield what is missing or disarmed, and makes a condition."""
    yield from _silent(rules, REQUIRED)
    if rules.preflight:  # an order that names no check makes the criterion `preflight` uncertain
        expected = CHECKS if rules.programs is not None else (*CHECKS, *CHECKS_OF_RANKS)
        absent = [name for name in expected if name not in rules.preflight]
        if absent:
            yield f"the preflight does not check {', '.join(absent)}"
    for path, value in rules.disarmed.items():
        yield f"{path} is {value}, which no plan may have"
    if rules.plan and not rules.gate and rules.last_step > 1:  # one step shows that it starts
        yield "the gate is empty: nothing but a whole run is asked"


def _silent(rules: Rules, names: Iterable[Name]) -> Iterator[str]:
    """Yield which of these detectors do not watch, or only warn where they halt by default."""
    watching = frozenset(rules.detectors or BASIC)
    for name in names:
        said = rules.watch.get(f"{name}.action")
        if name not in watching:
            yield f"{name} does not watch"
        elif said and said.value == Action.WARN and Watch().action_of(name) is Action.HALT:
            yield f"{name} only warns"


def _lowered_floor(rules: Rules) -> Iterator[str]:
    """Yield a floor of the plan that is lower than the profile's, or none."""
    said = rules.watch.get(FLOOR)
    profile = hardware_profiles().get(rules.profile or "")
    usual = profile.floor_tok_s if profile is not None else None
    if said is None or said.source is not Source.PLAN or usual is None:
        return
    if not _is_number(said.value) or said.value < usual:
        yield f"{FLOOR} is {_shown(said.value)}, looser than the profile's {usual:g}"


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _shown(value: object) -> str:
    return f"{value:g}" if isinstance(value, int | float) else "none"
