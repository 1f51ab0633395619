"""How loose may a plan make the watchdog? One row a setting that can blunt a detector.

A value looser than the default is listed in the decision (`weakened`) and changes no verdict. One
beyond its ceiling makes the verdict CONDITIONAL_GO at best: a run that nothing could have halted
proves little. Some settings blunt a detector both ways (a baseline of 1 step is as bad as one of
10 000): of those every change is listed, and their ceiling is a range. What a plan sets for the
detectors of other packages is listed whole: their limits are not known here. The bundled plans stay
below every ceiling. docs/detectors.md prints this table.
"""

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass

from pydantic import BaseModel, JsonValue

from gonogo.contract.criterion import GateSeverity
from gonogo.contract.decision import CriterionOutcome, CriterionResult
from gonogo.contract.finding import Source
from gonogo.contract.hardware import hardware_profiles
from gonogo.contract.rules import Rules
from gonogo.contract.watch import Watch
from gonogo.judge.gate.left_out import less, missed

CEILING = "watch_ceiling"
"""Id of the condition that a setting beyond its ceiling makes."""


@dataclass(frozen=True, slots=True)
class Ceiling:
    """How far a setting may be loosened."""

    limit: float
    higher_is_looser: bool = True
    none: float | None = None
    """The number that `none` is as loose as; None: as the limit."""
    zero_is_off: bool = False
    other: float | None = None
    """How far the other way it may go before it blunts, too; None where that only tightens."""

    def changed(self, value: float, usual: float) -> bool:
        """Say whether `value` is looser than the default, or blunts the other way."""
        return self.looser(value, usual) or (self.other is not None and value != usual)

    def broken(self, value: float) -> float | None:
        """Return the limit that `value` is beyond, or None."""
        if self.looser(value, self.limit):
            return self.limit
        if self.other is not None and self.looser(self.other, value):
            return self.other
        return None

    def words(self) -> str:
        """Return within what a setting is no condition, as the references print it."""
        if self.other is not None:
            least, most = sorted((self.other, self.limit))
            return f"{least:g} to {most:g}"
        if self.zero_is_off:
            return f"at most {self.limit:g}, not 0"
        return f"{'at most' if self.higher_is_looser else 'at least'} {self.limit:g}"

    def looser(self, value: float, than: float) -> bool:
        """Say whether `value` is looser than another."""
        return value > than if self.higher_is_looser else value < than

    def number(self, value: object) -> float | None:
        """Return a setting as a number that can be compared; None for what is no number."""
        if value is None:
            return self.limit if self.none is None else self.none
        if isinstance(value, bool) or not isinstance(value, int | float):
            return None
        return math.inf if self.zero_is_off and value == 0 else float(value)


def _floor(limit: float) -> Ceiling:
    return Ceiling(limit, higher_is_looser=False)


def _range(least: float, most: float) -> Ceiling:
    """Of what blunts a detector when it is too small, too."""
    return Ceiling(most, other=least)


CEILINGS: dict[str, Ceiling] = {
    "process_death.settle_s": Ceiling(10.0),
    "no_first_heartbeat.exec_s": Ceiling(1_800.0),
    "no_first_heartbeat.boot_s": Ceiling(3_600.0),
    "no_first_heartbeat.first_step_s": Ceiling(7_200.0),
    "alive_lost.suspect_s": Ceiling(300.0),
    "alive_lost.halt_s": Ceiling(900.0),
    "stall.suspect_s": Ceiling(600.0),
    "stall.suspect_x": Ceiling(30.0),
    "stall.halt_s": Ceiling(1_800.0),
    "stall.halt_x": Ceiling(64.0),
    "stall.corroborate_s": Ceiling(600.0),
    "stall.min_steps": Ceiling(256.0),
    "stall.early_s": Ceiling(3_600.0),
    "section_deadline.data.suspect_s": Ceiling(1_800.0),
    "section_deadline.data.halt_s": Ceiling(3_600.0),
    "section_deadline.checkpoint.suspect_s": Ceiling(7_200.0),
    "section_deadline.checkpoint.halt_s": Ceiling(7_200.0),
    "section_deadline.eval.suspect_s": Ceiling(14_400.0),
    "section_deadline.eval.halt_s": Ceiling(14_400.0),
    "section_deadline.log.suspect_s": Ceiling(1_800.0),
    "section_deadline.log.halt_s": Ceiling(1_800.0),
    "section_deadline.out_of_section.suspect_s": Ceiling(1_800.0),
    "section_deadline.out_of_section.halt_s": Ceiling(1_800.0),
    "slow.floor_ratio": _floor(0.25),
    "slow.floor_over_s": Ceiling(3_600.0),
    "slow.hard_floor_ratio": _floor(0.1),
    "slow.hard_floor_over_steps": Ceiling(64.0, zero_is_off=True),
    "slow.warmup_steps": _range(2.0, 500.0),
    "slow.baseline_steps": _range(8.0, 2_000.0),
    "slow.window_steps": _range(8.0, 512.0),
    "slow.warn_ratio": Ceiling(5.0),
    "slow.warn_over_s": Ceiling(3_600.0),
    "slow.halt_ratio": Ceiling(5.0),
    "slow.over_s": Ceiling(7_200.0),
    "slow.over_steps": Ceiling(512.0, none=64.0),
    "non_finite.fp16_running": Ceiling(20.0),
    "non_finite.fp16_window_steps": _range(20.0, 1_000.0),
    "non_finite.fp16_skipped": Ceiling(50.0),
    "hygiene.skew_s": Ceiling(3_600.0),
    "identity.params_tolerance_ratio": Ceiling(0.1),
    "first_loss.tolerance": Ceiling(5.0),
    "straggler.ratio": _range(1.1, 5.0),
    "straggler.window_steps": Ceiling(512.0),
    "straggler.windows": Ceiling(20.0),
    "frozen.loss_steps": Ceiling(200.0),
    "frozen.grad_norm_steps": Ceiling(500.0),
    "frozen.halt_x": Ceiling(10.0),
    "divergence.alpha": Ceiling(0.002, higher_is_looser=False, other=0.5),
    "divergence.above": Ceiling(3.0),
    "divergence.above_ratio": Ceiling(1.0),
    "divergence.over_steps": Ceiling(500.0),
    "divergence.after_step": Ceiling(5_000.0),
    "divergence.spike_mad_x": Ceiling(80.0),
    "divergence.spike_least": Ceiling(5.0),
    "divergence.spike_of": _floor(2.0),
    "divergence.spike_count": Ceiling(64.0),
    "divergence.noise_x": Ceiling(40.0),
    "divergence.window_steps": _range(32.0, 1_024.0),
    "gradients.zero_steps": Ceiling(30.0),
    "gradients.spike_x": Ceiling(200.0),
    "gradients.spike_of": _floor(2.0),
    "gradients.spike_count": Ceiling(64.0),
    "gradients.window_steps": _range(32.0, 1_024.0),
    "gradients.clip_share": Ceiling(0.99),
    "gradients.clip_steps": Ceiling(5_000.0),
    "gate_collapse.entropy": _floor(0.02),
    "gate_collapse.max_gate": Ceiling(0.99),
    "gate_collapse.layer_share": Ceiling(0.9),
    "gate_collapse.distinct": Ceiling(30.0),
    "gate_collapse.apart_steps": Ceiling(500.0),
    "gate_collapse.after_step": Ceiling(10_000.0),
    "imbalance.over_s": Ceiling(3_600.0),
    "imbalance.ratio": _floor(0.2),
    "imbalance.least_util": _floor(10.0),
    "memory_leak.min_samples": Ceiling(1_000.0),
    "memory_leak.window_samples": _range(32.0, 4_096.0),
    "memory_leak.rise_ratio": Ceiling(0.5),
    "memory_leak.halt_eta_s": _floor(300.0),
    "memory_limit.samples": Ceiling(30.0),
    "memory_limit.host_ratio": Ceiling(0.98),
    "loader.window_steps": _range(8.0, 512.0),
    "loader.warn_share": Ceiling(0.9),
    "loader.halt_share": Ceiling(0.95),
    "loader.over_s": Ceiling(3_600.0),
    "disk.warn_checkpoints": _floor(1.0),
    "disk.warn_mb": _floor(500.0),
    "disk.halt_checkpoints": _floor(0.5),
    "implausible_speed.differ_ratio": Ceiling(1.0),
    "implausible_speed.over_steps": _range(5.0, 200.0),
    "implausible_speed.best_ratio": _floor(0.2),
    "implausible_speed.mfu": Ceiling(1.2),
    "watcher.away_s": Ceiling(300.0),
    "watcher.silent_s": Ceiling(600.0),
    "watcher.keeper_s": Ceiling(60.0),
    "hardware.throttled_s": Ceiling(3_600.0),
    "restart_storm.attempts": Ceiling(10.0),
    "restart_storm.starts": Ceiling(50.0),
    "restart_storm.within_s": _floor(300.0),
}
"""Dotted path of a setting → its ceiling.

Too small, a baseline or warm-up takes in the slow first steps; a window is all noise, so that one
good step arms a rule anew, or it follows what creeps up; by a straggler's ratio all ranks are
behind, and then none is; the spans of a clock are shorter than its jitter. Too large, an `alpha`
smooths nothing, and `fp16_window_steps`, running on which updates are left out in bf16, never come.
A `clip_share` of 1 is never reached. Half of `over_steps` halt where it stands for `over_s`: more
than the default's window are later. All else only tightens the other way.
"""
PLUGINS = "plugins"
MOST = 60
"""Characters of another package's setting that are told."""

FLOOR = "slow.floor_tok_s"
TIGHTENS = frozenset({FLOOR, "memory_leak.limit_mb", "memory_limit.reserved_mb"})
"""Settings that only add a limit where the defaults have none; the profile may have a floor."""


def default_of(path: str) -> object:
    """Return the default of a setting; None for one that this release does not know."""
    node: object = Watch()
    for part in path.split("."):
        if not isinstance(node, BaseModel):
            return None
        node = getattr(node, part, None)
    return node


@dataclass(frozen=True, slots=True, kw_only=True)
class _Loosened:
    """A setting of the plan (or of who calls it the profile's) that is looser than the default."""

    path: str
    value: JsonValue
    default: object
    tighter: bool
    """Whether it went the way that tightens most settings, and blunts this one."""
    beyond: float | None
    """The limit that it is beyond, if it is."""


def _loosened(rules: Rules) -> Iterator[_Loosened]:
    """Yield the settings of the plan that are looser than the defaults, or blunt the other way."""
    for path, said in rules.watch.items():
        ceiling, default = CEILINGS.get(path), default_of(path)
        if ceiling is None or said.source is Source.DEFAULT:  # a profile sets none of these
            continue
        value, usual = ceiling.number(said.value), ceiling.number(default)
        if value is not None and usual is not None and ceiling.changed(value, usual):
            yield _Loosened(
                path=path,
                value=said.value,
                default=default,
                tighter=not ceiling.looser(value, usual),
                beyond=ceiling.broken(value),
            )


def weakened(rules: Rules) -> list[str]:
    """Return the watch settings that may blunt a detector, one sentence each."""
    texts = [
        f"{row.path} is {_told(row.value)},"
        f" {'away from' if row.tighter else 'looser than'} the default {_told(row.default)}"
        for row in _loosened(rules)
    ]
    more = [*missed(rules), *_disarmed(rules), *less(rules), *_lowered_floor(rules)]
    if rules.plan and not rules.gate:
        more.append("the gate is empty: nothing but a whole run is asked")
    return [*texts, *more, *_of_plugins(rules)]


def _disarmed(rules: Rules) -> list[str]:
    return [
        f"{path} is {json.dumps(value)[:MOST]}, which no plan may have"
        for path, value in rules.disarmed.items()
    ]


def _of_plugins(rules: Rules) -> Iterator[str]:
    """Yield what the plan sets for detectors of other packages."""
    said = rules.watch.get(PLUGINS)
    if said is None or not isinstance(said.value, dict):
        return
    for name, settings in sorted(said.value.items()):
        for setting, value in sorted(settings.items()) if isinstance(settings, dict) else ():
            told = json.dumps(value)[:MOST]
            yield f"{PLUGINS}.{name}.{setting} is {told}; what loosens it is not known here"


def _told(value: object) -> str:
    return f"{value:g}" if isinstance(value, int | float) else "none"


def _lowered_floor(rules: Rules) -> Iterator[str]:
    """Yield a floor of the plan that is lower than the profile's, or none."""
    said = rules.watch.get(FLOOR)
    profile = hardware_profiles().get(rules.profile or "")
    usual = profile.floor_tok_s if profile is not None else None
    if said is None or said.source is not Source.PLAN or usual is None:
        return
    if not isinstance(said.value, int | float) or said.value < usual:
        yield f"{FLOOR} is {_told(said.value)}, looser than the profile's {usual:g}"


def evaluate_ceilings(rules: Rules) -> CriterionResult | None:
    """Return the condition that settings beyond their ceilings make, or None without one."""
    rows = [row for row in _loosened(rules) if row.beyond is not None]
    left_out = [*missed(rules), *_disarmed(rules)]
    if not rows and not left_out:
        return None
    beyond = {row.path: row.value for row in rows}
    limits = {row.path: row.beyond for row in rows}
    texts = [
        f"{path} is {_told(value)}, its limit {limits[path]:g}" for path, value in beyond.items()
    ]
    texts += left_out
    return CriterionResult(
        id=CEILING,
        severity=GateSeverity.CONDITIONAL,
        outcome=CriterionOutcome.FAIL,
        observed=beyond,
        threshold=limits,
        evidence=f"the watch was weakened: {'; '.join(texts)}",
    )
