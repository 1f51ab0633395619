"""Where the time of a step goes: D17 loader, D21 implausible_speed.

Not covered: a loader that stalls again and again for less than a sixteenth of the steps. A report
of speed that is too low, which makes nothing look better. Programs of which only the printed lines
are known: nobody knows when their steps ended. Models that use a part of their parameters for a
token (experts, tables, a frozen trunk), whose peak is too low here. A rank whose own clock runs
slower than the watcher's.
"""

import math
import statistics
from collections.abc import Iterable
from dataclasses import dataclass, field
from operator import attrgetter
from typing import NamedTuple

from gonogo.contract.canonical import added
from gonogo.contract.finding import Finding, Severity
from gonogo.contract.hardware import HardwareProfile, hardware_profiles
from gonogo.contract.near import Near
from gonogo.contract.outcome import Detector as Name
from gonogo.timeline.step import RankStep, Step
from gonogo.watch.detector import NOTHING_YET, Detector, Seen
from gonogo.watch.detectors.slow import TokenGrowth
from gonogo.watch.state import replace
from gonogo.watch.view import Run, View

STALLS_OF = 16
"""One fetch in so many is left out, and one at least."""
FEW_STEPS = 16
"""Steps that a window needs where they fill `over_s`."""
LOOKS = 8
"""Looks per window: a share over a window moves slowly."""
ALIKE_SHARE = 0.5
"""No rank is named where another one waits at least this part of the longest share."""
CLEARED_SHARE = 0.8
"""It warns again only after the share was below this part of the limit."""
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
PEAK, CPU = "preflight_peak", "cpu"
_TOKS_PER_S = attrgetter("toks_per_s")


def fetched_s(row: RankStep) -> float | None:
    """Return the seconds that a rank's step waited for its loader, as its lines say."""
    if row.progress is not None and row.progress.dt_fetch_s is not None:
        return row.progress.dt_fetch_s
    return None if row.sections is None else row.sections.data


class Fetch(NamedTuple):
    """One rank's part of a step, in seconds."""

    fetch_s: float
    step_s: float


@dataclass(frozen=True, kw_only=True)
class Waits:
    """The last steps, and how long they have starved."""

    last_step: int = 0
    fetched: bool = False
    """Whether any fetch time was reported."""
    ranks: tuple[int, ...] = ()
    rows: tuple[tuple[Fetch, ...], ...] = ()
    """Of each step of the window, in order of rank."""
    looked: int = 0
    """Steps since the last look."""
    trained_s: float = 0.0
    warned: bool = False
    since_s: float | None = None
    """`trained_s` when the run began to starve."""
    since_ts: float = 0.0
    halted: bool = False


class Loader(Detector[Waits]):
    """D17: steps wait for data.

    The share of the steps' time that the slowest loader of each step took, over a window. Ranks in
    lockstep wait for the rank that is fed last, now one and now another. The longest sixteenth of
    the fetches is left out: a loader that stalls once starves nobody (D5 limits the single stall).
    """

    name = Name.LOADER
    sentence = (
        "Over `window_steps` steps (or 16 that fill `over_s`), the slowest loader of each step took"
        " more than `warn_share` of the step time: warn; more than `halt_share` for `over_s` of"
        " training: the second limit. The rank is named where no other waits half as long. The"
        " longest sixteenth of the fetches is left out, so that single stalls are no starvation."
    )
    State = Waits
    steps = True

    def observe_step(self, own: Waits, step: Step, view: View) -> Seen[Waits]:
        """Observe how long each rank fetched, and how long its step took."""
        if step.lacks(own.ranks, own.last_step):
            return own, []
        ranks = tuple(sorted(step.ranks))
        if step.step <= own.last_step or ranks != own.ranks:
            own = Waits(fetched=own.fetched, ranks=ranks)
        fetched = own.fetched or any(fetched_s(row) is not None for row in step.ranks.values())
        own, row = replace(own, last_step=step.step, fetched=fetched), _row(step)
        if row is None:
            return own, []
        step_s = min(part.step_s for part in row)
        own = replace(
            own,
            rows=(*own.rows, row)[-self.settings.window_steps :],
            looked=own.looked + 1,
            trained_s=own.trained_s + step_s,
        )
        due = own.looked >= max(1, self.settings.window_steps // LOOKS)
        if not (due or step_s >= self.settings.over_s / LOOKS) or not self.armed(own, view):
            return own, []
        return self._judged(replace(own, looked=0), step, view)

    def _judged(self, own: Waits, step: Step, view: View) -> Seen[Waits]:
        """Compare the share of the slowest fetches with the limits."""
        share, settings, findings = _share(map(_slowest, own.rows)), self.settings, []
        warn = share > settings.warn_share
        if warn and not own.warned:
            findings.append(self._found("warn_share", own, share, "", step.tick.ts, step, view))
        still = own.warned and share > CLEARED_SHARE * settings.warn_share
        own = replace(own, warned=warn or still)
        if share <= settings.halt_share:
            return replace(own, since_s=None, halted=False), findings
        if own.since_s is None:
            own = replace(own, since_s=own.trained_s, since_ts=step.tick.ts)
        held_s = own.trained_s - (own.since_s or 0.0)
        if own.halted or held_s < settings.over_s:
            return own, findings
        lasts = f", for {held_s:.0f} s"
        halt = self._found("halt_share", own, share, lasts, own.since_ts, step, view)
        return replace(own, halted=True), [*findings, halt]

    def _found(
        self, setting: str, own: Waits, share: float, lasts: str, since: float, step: Step,
        view: View,
    ) -> Finding:  # fmt: skip
        rank, limit = _hungriest(own), getattr(self.settings, setting)
        who = "more than one rank waits" if rank is None else f"rank {rank} waits"
        return self.finding(
            step,
            view,
            Severity.HALT if setting == "halt_share" else Severity.WARN,
            f"step{step.step}",
            f"{who} for data for {share:.0%} of the step time{lasts} (limit {limit:.0%})",
            setting=setting,
            rank=rank,
            value=share,
            threshold=limit,
            since=since,
        )

    def armed(self, own: Waits, view: View) -> bool:
        """Whether a whole window of fetch times has been reported."""
        if len(own.rows) >= self.settings.window_steps:
            return True
        trained_s = added(row[0].step_s for row in own.rows)
        return len(own.rows) >= FEW_STEPS and trained_s >= self.settings.over_s

    def measure(self, own: Waits, view: View, mono: float) -> Near:
        """Return the share of the slowest fetches, and how long it may still stay above."""
        left_s = None
        if own.since_s is not None:
            left_s = max(0.0, self.settings.over_s - (own.trained_s - own.since_s))
        share = _share(map(_slowest, own.rows))
        return Near(value=share, limit=self.settings.halt_share, time_left_s=left_s)

    def missing(self, own: Waits, view: View) -> str | None:
        """Return a sentence where steps ended and none could be held against its fetch time."""
        if not own.last_step or own.rows:
            return None
        why = "No step could be timed" if own.fetched else "No fetch time was told"
        return f"{why}: how long steps waited for data was not observed."


def _row(step: Step) -> tuple[Fetch, ...] | None:
    """Return the times of a step, or None where a rank did not report them."""
    row = []
    for _, said in sorted(step.ranks.items()):
        fetch_s, step_s = fetched_s(said), said.dt_s
        if fetch_s is None or step_s is None or step_s <= 0.0:
            return None
        row.append(Fetch(fetch_s=min(max(0.0, fetch_s), step_s), step_s=step_s))
    return tuple(row)


def _slowest(row: Iterable[Fetch]) -> Fetch:
    return max(row)


def _share(parts: Iterable[Fetch]) -> float:
    """Return the share of fetching, without the steps of the longest fetches."""
    ordered = sorted(parts)
    kept = ordered[: len(ordered) - max(1, len(ordered) // STALLS_OF)]
    step_s = added(part.step_s for part in kept)
    return added(part.fetch_s for part in kept) / step_s if step_s else 0.0


def _hungriest(own: Waits) -> int | None:
    """Return the rank whose loader is slow; None where another one waits half as long."""
    shares = [_share(parts) for parts in zip(*own.rows, strict=True)]
    most = max(shares)
    if len(shares) > 1 and sum(share >= ALIKE_SHARE * most for share in shares) > 1:
        return None
    return own.ranks[shares.index(most)]


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
    broken: tuple[str, ...] = ()
    """Rules that are broken now."""


class ImplausibleSpeed(Detector[Speeds]):
    """D21: the reported speed, or the speed of the run itself, cannot be true.

    Recomputed speed is the ordered tokens over the time between step ends, in proportion to how the
    reported tokens of a step have grown. Honest trainers report many things: a mean over any
    window, the best so far, a step without its data or logging. None of them exceeds the fastest
    window that the run has ever had, recomputed in the trainer's favour.
    """

    name = Name.IMPLAUSIBLE_SPEED
    sentence = (
        "The reported tokens/s (median of `over_steps`) exceed the fastest `over_steps` steps that"
        " the run has had by more than `differ_ratio` (twice that for a resumed run): recomputed"
        " from step ends and the growth of their tokens, without data time and 20 ms a step. Six"
        " operations a parameter (embeddings aside) and token exceed `mfu` of the matrix-product"
        " peak: the hardware table's, or the one measured at preflight (four times that on a CPU)."
        " These two are the second limit. It warns where steps take less than `best_ratio` of the"
        " best known of the same work on the same devices. Without a peak or the parameters:"
        " UNKNOWN."
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
        if step.step <= own.last_step:  # a restart in place; what was fastest stays
            kept = Speeds() if view.is_another(step.ranks) else own
            own = Speeds(tokens=own.tokens, resumed=kept.resumed, fastest=kept.fastest)
        first, ordered = min(step.ranks), self.run.order.identity.tokens_per_step
        told = step.ranks[first].tokens or view.tokens_of(first)[0]
        growth = own.tokens.after(told, ordered)
        own = replace(own, last_step=step.step, tokens=growth)
        tokens = ordered * growth.ratio if ordered else step.ranks[first].tokens
        step_s, kind_s = step.median_s, _kind_s(step)
        if not tokens or not step_s or not kind_s:
            return own, []
        keep, reported = self.settings.over_steps, step.values(_TOKS_PER_S)
        if reported:
            own = replace(own, reported=(*own.reported, reported[min(reported)])[-keep:])
        own = replace(
            own,
            plain=(*own.plain, tokens / step_s)[-keep:],
            kind=(*own.kind, tokens / kind_s)[-keep:],
        )
        if len(own.plain) < keep:
            return own, []
        own = replace(own, fastest=max(own.fastest, sorted(own.kind)[3 * keep // 4]))
        return self._judged(own, step, view)

    def _judged(self, own: Speeds, step: Step, view: View) -> Seen[Speeds]:
        """Return a finding for each rule that begins to be broken."""
        findings, broken = [], []
        for setting, value, limit, text in self._rules(own, view):
            below = setting == "best_ratio"
            if not (value < limit if below else value > limit):
                continue
            broken.append(setting)
            if setting in own.broken:
                continue
            severity = Severity.WARN if below else Severity.HALT
            episode = f"{setting}/step{step.step}"
            findings.append(
                self.finding(
                    step,
                    view,
                    severity,
                    episode,
                    text,
                    setting=setting,
                    value=value,
                    threshold=limit,
                )
            )
        return replace(own, broken=tuple(broken)), findings

    def _rules(self, own: Speeds, view: View) -> Iterable[tuple[str, float, float, str]]:
        """Yield setting, value, limit and text of each comparison that can be made."""
        tok_s, count = statistics.median(own.plain), len(own.plain)
        if len(own.reported) >= self.settings.over_steps:
            reported = statistics.median(own.reported)
            text = f"the trainer reports {reported:.4g} tokens/s over {count} steps; the fastest"
            text = f"{text} that its step ends allow is {own.fastest:.4g}"
            yield "differ_ratio", reported, self._most_tok_s(own), text
        most = limit_tok_s(self.run, self.settings.mfu, peak_flops(self.run, view))
        if most is not None:
            text = f"{tok_s:.4g} tokens/s over {count} steps are more than the devices can multiply"
            yield (
                "mfu",
                tok_s / max(1.0, own.tokens.ratio),
                most,
                f"{text}: their peak allows {most:.4g}",
            )
        best_s, tokens = self.run.order.best_step_s, self.run.order.identity.tokens_per_step
        if best_s is not None and tokens:
            step_s = tokens * own.tokens.ratio / tok_s
            text = f"a step takes {step_s:.4g} s over {count} steps; the best that is known of the"
            text = f"{text} same work on the same devices takes {best_s:.4g} s: is all of it done?"
            yield "best_ratio", step_s, self.settings.best_ratio * best_s, text

    def _most_tok_s(self, own: Speeds) -> float:
        """Return the largest speed that an honest trainer may report."""
        differ_ratio: float = self.settings.differ_ratio
        return (1.0 + differ_ratio) * (RESUMED_X if own.resumed else 1.0) * own.fastest

    def armed(self, own: Speeds, view: View) -> bool:
        """Whether enough steps have been timed."""
        return len(own.plain) >= int(self.settings.over_steps)

    def measure(self, own: Speeds, view: View, mono: float) -> Near:
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
    multiplied = (identity.params or 0) - (identity.vocab or 0) * (identity.dim or 0)
    if flops is None or multiplied <= 0:
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
