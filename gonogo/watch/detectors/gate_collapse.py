"""D13: have the branch gates chosen one branch only?

A progress line says which share of the layers has collapsed gates (`gate_collapse_frac`). Where it
says only the mean normalised entropy over layers, or the largest gate of any layer, the mean is
held against the entropy limit itself, and the largest gate proves one layer. With the statistics
switched off nothing is known: UNKNOWN, and listed as not observed.
"""

import math
from dataclasses import dataclass

from gonogo.contract import outcome
from gonogo.contract.finding import Finding, Severity
from gonogo.contract.heartbeat import Heartbeat
from gonogo.watch.detector import Detector, Seen
from gonogo.watch.state import replace
from gonogo.watch.step import Step
from gonogo.watch.view import View, found

ALL_LAYERS = 1.0
MANY_LAYERS = 100
"""Where the order does not say how many layers there are, one of them is a small share."""
RUNNING = 15
"""So many collapsed looks running outweigh one sound look."""


@dataclass(frozen=True, kw_only=True)
class Sightings:
    """Looks at collapsed gates, far enough apart, with hardly a sound look in between."""

    seen: int = 0
    since_step: int = 0
    since_ts: float = 0.0
    last_step: int = 0
    running: int = 0
    """Collapsed looks since the last sound one, at most `RUNNING`."""

    def after(self, collapsed: bool, apart: int, step: Step) -> "Sightings":
        """Return the sightings after one more look."""
        if not collapsed:
            return replace(self, running=0) if self.running == RUNNING else Sightings()
        if not self.seen:
            return Sightings(
                seen=1, since_step=step.step, since_ts=step.tick.ts, last_step=step.step, running=1
            )
        running = min(self.running + 1, RUNNING)
        if step.step - self.last_step >= max(1, apart):
            return replace(self, seen=self.seen + 1, last_step=step.step, running=running)
        return self if running == self.running else replace(self, running=running)


@dataclass(frozen=True, kw_only=True)
class Gates:
    """What has been seen of the gates."""

    last_step: int = 0
    told: bool = False
    most: Sightings = Sightings()
    """More than `layer_share` of the layers collapsed."""
    some: Sightings = Sightings()
    """At least one layer collapsed."""


class GateCollapse(Detector[Gates]):
    """D13 (module docstring)."""

    name = outcome.Detector.GATE_COLLAPSE
    sentence = (
        "After step `after_step`, the gates of more than `layer_share` of the layers have collapsed"
        " (normalised entropy, in units of the logarithm of the number of branches, below"
        " `entropy`, or a gate above `max_gate`) on `distinct` steps at least `apart_steps` apart,"
        " with no sound look in between but one that follows fifteen collapsed ones running: halt;"
        " of one layer: warn. The trainer counts the collapsed layers; where it tells only their"
        " mean entropy, that is held against the limit. Without gate statistics: UNKNOWN, listed as"
        " not observed."
    )
    """2: a sound look after fifteen collapsed ones running begins nothing anew."""
    State = Gates
    steps = True

    def observe_step(self, own: Gates, step: Step, view: View) -> Seen[Gates]:
        """Observe the gate statistics of a step, where a rank told some."""
        if step.step <= own.last_step:
            own = Gates(told=own.told)
        own = replace(own, last_step=step.step)
        share = self._share(step)
        if share is None:
            return own, []
        own = replace(own, told=True)
        if step.step <= self.settings.after_step:
            return own, []
        before, apart = own, self.settings.apart_steps
        own = replace(
            own,
            most=own.most.after(share > self.settings.layer_share, apart, step),
            some=own.some.after(share > 0.0, apart, step),
        )
        findings = []
        if self._reached(before.some, own.some):
            findings.append(self._finding(own.some, Severity.WARN, share, 0.0, step, view))
        if self._reached(before.most, own.most):
            limit = self.settings.layer_share
            findings.append(self._finding(own.most, Severity.HALT, share, limit, step, view))
        return own, findings

    def _share(self, step: Step) -> float | None:
        """Return the smallest share of collapsed layers that a rank told, or None."""
        told = step.values(self._share_of)
        return min(told.values(), default=None)

    def _share_of(self, line: Heartbeat) -> float | None:
        share = _finite(line.gate_collapse_frac)
        if share is not None:
            return share
        entropy, largest = _finite(line.gate_entropy), _finite(line.gate_max)
        if entropy is not None and entropy < self.settings.entropy:
            return ALL_LAYERS
        if largest is not None and largest > self.settings.max_gate:
            return ALL_LAYERS / (self.run.order.identity.layers or MANY_LAYERS)
        return None if entropy is None and largest is None else 0.0

    def _reached(self, before: Sightings, now: Sightings) -> bool:
        """Whether this look was the last one needed."""
        return bool(before.seen < now.seen == self.settings.distinct)

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
        """Whether gate statistics are told, at steps that count."""
        return own.told and own.last_step > self.settings.after_step

    def missing(self, own: Gates, view: View) -> str | None:
        """Return a sentence where no gate statistics were told."""
        if own.told:
            return None
        if _switched_off(self.run.order.env, "NSA_DISABLE_AUX_STATS"):
            return "Gate statistics were switched off (NSA_DISABLE_AUX_STATS): gates not observed."
        if not own.last_step:
            return None
        return "No gate statistics were told: a collapse of the branch gates was not observed."


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _switched_off(env: dict[str, str], name: str) -> bool:
    return env.get(name, "0").strip().lower() not in ("", "0", "false", "no", "off")
