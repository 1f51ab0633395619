"""D21 implausible_speed: the reported speed, or the speed of the clock itself, cannot be true.

Recomputed speed is the ordered tokens over the time between step ends, in proportion to how the
reported tokens of a step have grown. Honest trainers report many things: a mean over any window,
the best so far, a step without its data or logging. None of them exceeds the fastest window that
the run has ever had, recomputed in the trainer's favour.

Not covered: a report that is too low, which makes nothing look better; programs of which only the
printed lines are known, since nobody knows when their steps ended; models that use a part of their
parameters for a token (experts, tables, a frozen trunk), whose peak is too low here.
"""

import math
import statistics
from dataclasses import dataclass, field
from operator import attrgetter

from gonogo.contract import outcome
from gonogo.contract.finding import Severity
from gonogo.contract.hardware import HardwareProfile, hardware_profiles
from gonogo.contract.near import Near
from gonogo.timeline.step import RankStep, Step
from gonogo.watch.detector import NOTHING_YET, Detector, Seen
from gonogo.watch.speed import fetched_s
from gonogo.watch.state import replace
from gonogo.watch.tokens import TokenGrowth
from gonogo.watch.view import Run, View, found, is_late

BETWEEN_S = 0.02
"""Seconds of a step that a trainer's own stopwatch may miss: logging, callbacks, the heartbeat."""
LEAST_SHARE = 0.1
"""Share of a step's time that always counts."""
FLOPS_PER_PARAM = 6
"""Two forward and four backward for each parameter and token; attention is not counted."""
CPU_X = 4.0
"""A CPU's peak is measured beside whatever else runs on it: its limit is so many times as high."""
RESUMED_X = 2.0
"""How many times as fast the run may have been from which a resumed run continues its mean."""
CLOCK_SPANS = 3
PEAK = "preflight_peak"
CPU = "cpu"
_TOKS_PER_S = attrgetter("toks_per_s")


@dataclass(frozen=True, kw_only=True)
class Clock:
    """One rank's clock beside the watcher's, at the end of a span."""

    boot: str = ""
    own: float = 0.0
    watcher: float = 0.0
    slow: int = 0
    """Spans running in which the rank's clock went too slowly."""


@dataclass(frozen=True, kw_only=True)
class Speeds:
    """Reported and recomputed tokens per second of the last steps."""

    last_step: int = 0
    tokens: TokenGrowth = field(default_factory=TokenGrowth)
    resumed: bool = False
    reported: tuple[float, ...] = ()
    """Of the first rank that reports."""
    kind: tuple[float, ...] = ()
    """Recomputed in the trainer's favour: without data, logging and what lies between steps."""
    plain: tuple[float, ...] = ()
    """Recomputed over whole steps."""
    fastest: float = 0.0
    """Upper quartile of the fastest window so far, in the trainer's favour."""
    clock: Clock = Clock()
    said: tuple[str, ...] = ()
    """Rules that are broken now."""


class ImplausibleSpeed(Detector[Speeds]):
    """D21 (module docstring)."""

    name = outcome.Detector.IMPLAUSIBLE_SPEED
    sentence = (
        "The reported tokens/s (median of `over_steps`) exceed the fastest `over_steps` steps that"
        " the run has had by more than `differ_ratio` (twice that for a resumed run): recomputed"
        " from step ends and the growth of their tokens, without data time and 20 ms a step. Six"
        " operations a parameter (embeddings aside) and token exceed `mfu` of the matrix-product"
        " peak: the hardware table's, or the one measured at preflight (four times that on a CPU)."
        " These two are the second limit. It warns where steps take less than `best_ratio` of the"
        " best known of the same work on the same devices, and where the clock of a rank runs"
        " `clock_x` times slower than the watcher's in three spans of `clock_s` running. Without a"
        " peak or the parameters: UNKNOWN."
    )
    State = Speeds
    steps = True

    def observe_step(self, own: Speeds, step: Step, view: View) -> Seen[Speeds]:
        """Observe what the trainer says of its speed, and what its step ends say."""
        if view.reads_output() or len(step.ranks) < len(view.streams):
            return own, []
        if not own.last_step:
            resumed = any(view.streams[rank].from_step for rank in step.ranks)
            own = replace(own, resumed=resumed or self.run.order.resume_from is not None)
        if step.step <= own.last_step:
            own = _begun_again(own, step, view)
        ordered = self.run.order.identity.tokens_per_step
        carried, of_step = step.ranks[min(step.ranks)].end.tokens, step.step
        if not carried:
            carried, of_step = view.tokens_of(min(step.ranks))
        growth = own.tokens.after(carried, ordered, step=of_step)
        own = replace(own, last_step=step.step, tokens=growth)
        own, findings = self._clocked(own, step, view)
        tokens = ordered * growth.ratio if ordered else step.ranks[min(step.ranks)].end.tokens
        step_s, kind_s = step.median_s(), _kind_s(step)
        if not tokens or not step_s or not kind_s:
            return own, findings
        keep, reported = self.settings.over_steps, step.values(_TOKS_PER_S)
        if reported:
            own = replace(own, reported=(*own.reported, reported[min(reported)])[-keep:])
        own = replace(
            own,
            plain=(*own.plain, tokens / step_s)[-keep:],
            kind=(*own.kind, tokens / kind_s)[-keep:],
        )
        if len(own.plain) < keep:
            return own, findings
        own = replace(own, fastest=max(own.fastest, sorted(own.kind)[3 * keep // 4]))
        for rule in (self._above, self._peak, self._best):
            own, found = rule(own, step, view)
            findings = findings + found
        return own, findings

    def _above(self, own: Speeds, step: Step, view: View) -> Seen[Speeds]:
        """Compare the reports with the fastest that the run has been."""
        if len(own.reported) < self.settings.over_steps:
            return own, []
        reported, limit = statistics.median(own.reported), self._most_tok_s(own)
        text = (
            f"the trainer reports {reported:.4g} tokens/s over {len(own.reported)} steps; the"
            f" fastest that its step ends allow is {own.fastest:.4g}"
        )
        return self._said(
            own, "differ_ratio", reported, limit, text, step, view, broken=reported > limit
        )

    def _most_tok_s(self, own: Speeds) -> float:
        """Return the largest speed that an honest trainer may report."""
        differ_ratio: float = self.settings.differ_ratio
        return (1.0 + differ_ratio) * (RESUMED_X if own.resumed else 1.0) * own.fastest

    def _peak(self, own: Speeds, step: Step, view: View) -> Seen[Speeds]:
        """Compare the recomputed speed with what the devices can multiply."""
        limit = limit_tok_s(self.run, self.settings.mfu, peak_flops(self.run, view))
        if limit is None:
            return own, []
        tok_s = statistics.median(own.plain)
        text = (
            f"{tok_s:.4g} tokens/s over {len(own.plain)} steps are more than the devices can"
            f" multiply: their peak allows {limit:.4g}"
        )
        return self._said(own, "mfu", tok_s, limit, text, step, view, broken=tok_s > limit)

    def _best(self, own: Speeds, step: Step, view: View) -> Seen[Speeds]:
        """Compare the steps with the best that is known of the same work."""
        best_s, tokens = self.run.order.best_step_s, self.run.order.identity.tokens_per_step
        if best_s is None or not tokens:
            return own, []
        step_s = tokens * own.tokens.ratio / statistics.median(own.plain)
        limit = self.settings.best_ratio * best_s
        text = (
            f"a step takes {step_s:.4g} s over {len(own.plain)} steps; the best that is known of"
            f" the same work on the same devices takes {best_s:.4g} s: is all of it done?"
        )
        return self._said(own, "best_ratio", step_s, limit, text, step, view, broken=step_s < limit)

    def _clocked(self, own: Speeds, step: Step, view: View) -> Seen[Speeds]:
        """Compare a rank's clock with the watcher's; a late tick says nothing about either."""
        row, tick, clock = step.ranks[min(step.ranks)], step.tick, own.clock
        stream = view.streams[row.rank]
        own_mono = max(row.mono, stream.own_mono)  # it may have ended this step long before a peer
        anchor = replace(clock, boot=row.boot, own=own_mono, watcher=tick.mono)
        if not view.watched or is_late(tick) or stream.done or row.boot != clock.boot:
            return replace(own, clock=replace(anchor, slow=0)), []
        passed_s = tick.mono - clock.watcher
        if passed_s < self.settings.clock_s:
            return own, []
        slowed = passed_s / max(own_mono - clock.own, 1e-9)
        slow = clock.slow + 1 if slowed > self.settings.clock_x else 0
        own = replace(own, clock=replace(anchor, slow=slow))
        text = (
            f"the clock of rank {row.rank} has gone {slowed:.3g} times slower than the watcher's"
            f" for {slow} spans of {self.settings.clock_s:g} s"
        )
        limit, broken = self.settings.clock_x, slow >= CLOCK_SPANS
        return self._said(
            own, "clock_x", slowed, limit, text, step, view, broken=broken, rank=row.rank
        )

    def _said(
        self,
        own: Speeds,
        setting: str,
        value: float,
        limit: float,
        text: str,
        step: Step,
        view: View,
        *,
        broken: bool,
        rank: int | None = None,
    ) -> Seen[Speeds]:
        """Return a finding when a rule begins to be broken."""
        if broken == (setting in own.said):
            return own, []
        if not broken:
            return replace(own, said=tuple(name for name in own.said if name != setting)), []
        severity = Severity.HALT if setting in ("differ_ratio", "mfu") else Severity.WARN
        finding = found(
            view,
            self.name,
            severity,
            episode=f"{setting}/step{step.step}",
            at=step.tick.ts,
            rank=rank,
            step=step.step,
            value=value,
            threshold=limit,
            source=self.run.source(f"implausible_speed.{setting}"),
            text=text,
        )
        return replace(own, said=(*own.said, setting)), [finding]

    def armed(self, own: Speeds, view: View) -> bool:
        """Whether enough steps have been timed."""
        return len(own.plain) >= int(self.settings.over_steps)

    def near(self, own: Speeds, view: View, mono: float) -> Near:
        """Return the reported speed beside the largest that can be true."""
        if not own.fastest or len(own.reported) < self.settings.over_steps:
            return Near(blind=NOTHING_YET)
        reported = statistics.median(own.reported)
        return Near(value=reported, limit=self._most_tok_s(own), unit="tokens/s")

    def missing(self, own: Speeds, view: View) -> str | None:
        """Return a sentence on the comparisons that could not be made."""
        if view.reads_output():
            return "Speed was not checked: steps are timed by when their lines were read."
        if not own.last_step:
            return None
        unknown = []
        if not own.plain:
            unknown.append("no step of all ranks could be timed")
        if not own.reported:
            unknown.append("the trainer reports tokens/s of no step that could be timed")
        if limit_tok_s(self.run, self.settings.mfu, peak_flops(self.run, view)) is None:
            unknown.append("the matrix-product peak or the number of parameters is not known")
        return f"Speed was not wholly checked: {'; '.join(unknown)}." if unknown else None


def _begun_again(own: Speeds, step: Step, view: View) -> Speeds:
    """Return the speeds at a restart in place: what was fastest stays for the same training."""
    kept = Speeds() if view.is_another(step.ranks) else own
    return Speeds(
        clock=own.clock,
        tokens=own.tokens.restarted(),
        resumed=kept.resumed,
        fastest=kept.fastest,
    )


def peak_flops(run: Run, view: View) -> float | None:
    """Return the most that the run's devices can multiply, in operations a second, or None.

    A measured peak was reached beside whatever else ran, so it never lowers the hardware table's.
    A CPU's peak says nothing of a profile with devices.
    """
    profile = hardware_profiles().get(run.order.profile) or HardwareProfile()
    known = (profile.peak_flops or 0.0) * run.order.world_size
    observed = view.observed.get(PEAK)
    payload = observed.payload if observed is not None else None
    measured = payload if isinstance(payload, dict) else {}
    flops = measured.get("flops")
    if not isinstance(flops, int | float) or not math.isfinite(flops) or flops <= 0:
        return known or None
    if (measured.get("of") or run.order.profile) == CPU:
        return known or None if profile.has_devices else CPU_X * flops
    return max(known, float(flops))


def limit_tok_s(run: Run, mfu: float, flops: float | None) -> float | None:
    """Return the tokens per second that the devices' peak allows, or None where it is not known."""
    identity = run.order.identity
    if flops is None or not identity.params:
        return None
    multiplied = identity.params - (identity.vocab or 0) * (identity.dim or 0)
    if multiplied <= 0:
        return None
    return mfu * flops / (FLOPS_PER_PARAM * multiplied)


def _kind_s(step: Step) -> float | None:
    """Return the shortest time that the step may have taken, in the trainer's favour."""
    times = [_kind_rank_s(row, row.dt_s) for row in step.ranks.values() if row.dt_s is not None]
    return min(times, default=None)


def _kind_rank_s(row: RankStep, step_s: float) -> float:
    between_s = min(row.between_s, step_s)
    least_s = LEAST_SHARE * (step_s - between_s if between_s < step_s else step_s)
    return max(step_s - between_s - max(0.0, fetched_s(row) or 0.0) - BETWEEN_S, least_s)
