"""D13: the branch gates choose one branch only.

A progress line says which share of the layers has collapsed gates (`gate_collapse_frac`). A trainer
may report the mean normalised entropy over layers or the largest gate instead: the mean is compared
with the entropy limit, and the largest gate proves one layer. Without gate statistics: UNKNOWN.
"""

import math
from dataclasses import dataclass

from gonogo.contract import outcome
from gonogo.contract.finding import Finding, Severity
from gonogo.contract.heartbeat import Heartbeat
from gonogo.contract.near import Near
from gonogo.timeline.step import Step
from gonogo.watch.detector import Detector, Seen
from gonogo.watch.state import replace
from gonogo.watch.view import View, found

ALL_LAYERS = 1.0
MANY_LAYERS = 100
"""Without a number of layers in the order, one layer is a small share."""
_OFF = "gate statistics are switched off (NSA_DISABLE_AUX_STATS)"


@dataclass(frozen=True, kw_only=True)
class Sightings:
    """Collapsed gates that were seen far enough apart, without sound gates in between."""

    seen: int = 0
    since_step: int = 0
    since_ts: float = 0.0
    last_step: int = 0

    def after(self, collapsed: bool, apart: int, step: Step) -> "Sightings":
        """Return the sightings after one more step that reported its gates."""
        if not collapsed:
            return Sightings()
        if not self.seen:
            return Sightings(
                seen=1, since_step=step.step, since_ts=step.tick.ts, last_step=step.step
            )
        if step.step - self.last_step < max(1, apart):
            return self
        return replace(self, seen=self.seen + 1, last_step=step.step)


@dataclass(frozen=True, kw_only=True)
class Gates:
    """What was seen of the gates."""

    last_step: int = 0
    reported: bool = False
    most: Sightings = Sightings()
    """More than `layer_share` of the layers collapsed."""
    some: Sightings = Sightings()
    """At least one layer collapsed."""


class GateCollapse(Detector[Gates]):
    """D13 (module docstring)."""

    name = outcome.Detector.GATE_COLLAPSE
    sentence = (
        "After step `after_step`, the gates of more than `layer_share` of the layers have collapsed"
        " (normalised entropy below `entropy`, or a gate above `max_gate`) on `distinct` steps at"
        " least `apart_steps` apart, without a step of sound gates in between. Warns of one layer."
    )
    State = Gates
    steps = True

    def observe_step(self, own: Gates, step: Step, view: View) -> Seen[Gates]:
        """Observe the gate statistics of a step."""
        if step.step <= own.last_step:
            own = Gates(reported=own.reported)
        own = replace(own, last_step=step.step)
        share = min(step.values(self._share_of).values(), default=None)
        if share is None:
            return own, []
        if step.step <= self.settings.after_step:
            return replace(own, reported=True), []
        limit, apart = self.settings.layer_share, self.settings.apart_steps
        some, most = own.some, own.most
        own = Gates(
            last_step=step.step,
            reported=True,
            most=most.after(share > limit, apart, step),
            some=some.after(share > 0.0, apart, step),
        )
        findings = []
        for before, now, severity, least in (
            (some, own.some, Severity.WARN, 0.0),
            (most, own.most, Severity.HALT, limit),
        ):
            if before.seen < now.seen == self.settings.distinct:
                findings.append(self._finding(now, severity, share, least, step, view))
        return own, findings

    def _share_of(self, line: Heartbeat) -> float | None:
        """Return the share of collapsed layers that a rank reported, or None."""
        share, entropy, largest = map(
            _finite, (line.gate_collapse_frac, line.gate_entropy, line.gate_max)
        )
        if share is not None or (entropy is None and largest is None):
            return share
        if entropy is not None and entropy < self.settings.entropy:
            return ALL_LAYERS
        if largest is not None and largest > self.settings.max_gate:
            return ALL_LAYERS / (self.run.order.identity.layers or MANY_LAYERS)
        return 0.0

    def _finding(
        self,
        seen: Sightings,
        severity: Severity,
        share: float,
        limit: float,
        step: Step,
        view: View,
    ) -> Finding:
        return found(
            view,
            self.name,
            severity,
            episode=f"step{seen.since_step}",
            at=step.tick.ts,
            step=step.step,
            value=share,
            threshold=limit,
            source=self.run.source("gate_collapse.layer_share"),
            since=seen.since_ts,
            text=f"the gates of {share:.0%} of the layers have collapsed on {seen.seen} steps at"
            f" least {self.settings.apart_steps} apart, since step {seen.since_step}",
        )

    def armed(self, own: Gates, view: View) -> bool:
        """Return whether gate statistics are reported, after the first `after_step` steps."""
        return own.reported and own.last_step > self.settings.after_step

    def near(self, own: Gates, view: View, mono: float) -> Near:
        """Return on how many steps most of the gates had collapsed."""
        if not own.reported:
            off = _switched_off(self.run.order.env, "NSA_DISABLE_AUX_STATS")
            return Near(blind=_OFF if off else "no gate statistics were reported")
        if not self.armed(own, view):
            return Near(blind=f"watches after step {self.settings.after_step}")
        return Near(value=float(own.most.seen), limit=float(self.settings.distinct), unit="steps")

    def missing(self, own: Gates, view: View) -> str | None:
        """Return a sentence when no gate statistics were reported."""
        if own.reported:
            return None
        if _switched_off(self.run.order.env, "NSA_DISABLE_AUX_STATS"):
            return "Gate statistics were switched off (NSA_DISABLE_AUX_STATS): gates not observed."
        if not own.last_step:
            return None
        return "No gate statistics were reported: a collapse of the branch gates was not observed."


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _switched_off(env: dict[str, str], name: str) -> bool:
    return env.get(name, "0").strip().lower() not in ("", "0", "false", "no", "off")
