"""Where the time of a step goes: D17 loader, D21 implausible_speed.

Each looks at a window of whole steps, and makes one finding of each limit in a run.

Not covered: a loader that stalls again and again for less than a sixteenth of the steps. A report
of speed that is too low. Steps whose number of tokens changes, or a mean that a resumed run
continues: they may look too fast. Programs of which only the printed lines are known: nobody knows
when their steps ended. Models that use a part of their parameters for a token, whose peak is too
low here.
"""

import math
import statistics
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from gonogo.contract.finding import Severity
from gonogo.contract.hardware import HardwareProfile, hardware_profiles
from gonogo.contract.near import Near
from gonogo.contract.outcome import Detector as Name
from gonogo.contract.tick import Tick
from gonogo.timeline.step import RankStep, Step
from gonogo.watch.detector import NOTHING_YET, Detector, Seen, replace
from gonogo.watch.view import Run, View

STALLS_OF = 16
"""One fetch in so many is left out, and one at least."""
FEW_STEPS = 16
"""Steps that a window needs where they fill `over_s`."""
LOOKS = 8
"""Looks per window of short steps: a share over a window moves slowly."""
ALIKE_SHARE = 0.5
"""No rank is named where another one waits at least this part of the longest share."""
BETWEEN_S = 0.02
"""Seconds of a step that a trainer's own stopwatch may miss: logging, callbacks, the heartbeat."""
LEAST_SHARE = 0.1
"""Share of a step's time that always counts."""
FLOPS_PER_PARAM = 6
"""Two forward and four backward for each parameter and token; attention is not counted."""
CPU_X = 4.0
"""A CPU's peak is measured beside whatever else runs on it: its limit is so many times as high."""
PEAK, CPU = "preflight_peak", "cpu"


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
    ranks: tuple[int, ...] = ()
    rows: tuple[tuple[Fetch, ...], ...] = ()
    """Of each step of the window, in order of rank."""
    trained_s: float = 0.0
    since_s: float | None = None
    """`trained_s` when the run began to starve."""
    since_ts: float = 0.0


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
        ranks, row = tuple(step.ranks), []
        if step.step <= own.last_step or ranks != own.ranks:
            own = Waits(ranks=ranks)
        for said in step.ranks.values():
            fetch_s, step_s = fetched_s(said), said.dt_s
            if fetch_s is None or not step_s:
                return replace(own, last_step=step.step), []
            row.append(Fetch(min(max(0.0, fetch_s), step_s), step_s))
        own = replace(
            own,
            last_step=step.step,
            rows=(*own.rows, tuple(row))[-self.settings.window_steps :],
            trained_s=own.trained_s + row[0].step_s,
        )
        every = max(1, self.settings.window_steps // LOOKS)
        short = row[0].step_s < self.settings.over_s / LOOKS
        if (short and step.step % every) or not self.armed(own, view):
            return own, []
        return self._judged(own, step, view)

    def _judged(self, own: Waits, step: Step, view: View) -> Seen[Waits]:
        """Compare the share of the slowest fetches with the limits."""
        settings, share = self.settings, _share(map(max, own.rows))
        if share <= settings.halt_share:
            own = replace(own, since_s=None)
        elif own.since_s is None:
            own = replace(own, since_s=own.trained_s, since_ts=step.tick.ts)
        if share <= settings.warn_share:
            return own, []
        rank = _hungriest(own)
        who = "more than one rank waits" if rank is None else f"rank {rank} waits"
        found = [("warn_share", Severity.WARN, "", step.tick.ts)]
        held_s = None if own.since_s is None else own.trained_s - own.since_s
        if held_s is not None and held_s >= settings.over_s:
            lasts = f", for {held_s:.0f} s"
            found.append(("halt_share", Severity.HALT, lasts, own.since_ts))
        return own, [
            self.finding(
                step,
                view,
                severity,
                setting,
                f"{who} for data for {share:.0%} of the step time{lasts}"
                f" (limit {getattr(settings, setting):.0%})",
                setting=setting,
                rank=rank,
                value=share,
                threshold=getattr(settings, setting),
                since=since,
            )
            for setting, severity, lasts, since in found
        ]

    def armed(self, own: Waits, view: View) -> bool:
        """Whether a whole window of fetch times has been reported."""
        rows = own.rows
        full_s = math.fsum(row[0].step_s for row in rows) if len(rows) >= FEW_STEPS else 0.0
        return full_s >= self.settings.over_s or len(rows) >= int(self.settings.window_steps)

    def measure(self, own: Waits, view: View, mono: float) -> Near:
        """Return the share of the slowest fetches, and how long it may still stay above."""
        left_s = None
        if own.since_s is not None:
            left_s = max(0.0, self.settings.over_s - (own.trained_s - own.since_s))
        share = _share(map(max, own.rows))
        return Near(value=share, limit=self.settings.halt_share, time_left_s=left_s)

    def missing(self, own: Waits, view: View) -> str | None:
        """Return a sentence where steps ended and none could be held against its fetch time."""
        if not own.last_step or own.rows:
            return None
        return "No step told its time and its fetch time: waiting for data was not observed."


def _share(parts: Iterable[Fetch]) -> float:
    """Return the share of fetching, without the steps of the longest fetches."""
    ordered = sorted(parts)
    kept = ordered[: len(ordered) - max(1, len(ordered) // STALLS_OF)]
    step_s = math.fsum(part.step_s for part in kept)
    return math.fsum(part.fetch_s for part in kept) / step_s if step_s else 0.0


def _hungriest(own: Waits) -> int | None:
    """Return the rank whose loader is slow; None where another one waits half as long."""
    shares = [_share(parts) for parts in zip(*own.rows, strict=True)]
    most = max(shares)
    alike = sum(share >= ALIKE_SHARE * most for share in shares)
    return None if alike > 1 else own.ranks[shares.index(most)]


class Tempo(NamedTuple):
    """The speed of one step, in tokens per second."""

    plain: float
    """Recomputed over the whole step."""
    kind: float
    """In the trainer's favour: without data, logging and what lies between steps."""
    reported: float | None


@dataclass(frozen=True, kw_only=True)
class Speeds:
    """Reported and recomputed speed of the last steps, of the first rank that reports one."""

    last_step: int = 0
    rows: tuple[Tempo, ...] = ()
    fastest: float = 0.0
    """Upper quartile of the fastest window so far, in the trainer's favour."""
    most_tok_s: float | None = None
    """Tokens per second that the measured peak allows."""


class ImplausibleSpeed(Detector[Speeds]):
    """D21: the reported speed, or the speed of the run itself, cannot be true.

    Recomputed speed is the ordered tokens over the time between step ends. Honest trainers report
    many things: a mean over any window, the best so far, a step without its data or logging. None
    of them exceeds the fastest window that the run has ever had, recomputed in its favour.
    """

    name = Name.IMPLAUSIBLE_SPEED
    sentence = (
        "The reported tokens/s (median of `over_steps`) exceed the fastest `over_steps` steps that"
        " the run has had by more than `differ_ratio`: recomputed from step ends, without data time"
        " and 20 ms a step. Six operations a parameter (embeddings aside) and token exceed `mfu` of"
        " the matrix-product peak: the hardware table's, or the one measured at preflight (four"
        " times that on a CPU). These two are the second limit. It warns where steps take less than"
        " `best_ratio` of the best known of the same work on the same devices. Without a peak or"
        " the parameters: UNKNOWN."
    )
    State = Speeds
    steps = True
    ticks = True
    observes = frozenset({PEAK})

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self._reads = bool(run.order.patterns)
        self._most_tok_s = limit_tok_s(run, self.settings.mfu, None)

    def observe_tick(self, own: Speeds, tick: Tick, view: View) -> Seen[Speeds]:
        """Observe the peak that preflight measured."""
        most_tok_s = limit_tok_s(self.run, self.settings.mfu, tick.observations[PEAK])
        return replace(own, most_tok_s=most_tok_s), []

    def observe_step(self, own: Speeds, step: Step, view: View) -> Seen[Speeds]:
        """Observe what the trainer says of its speed, and what its step ends say."""
        if step.step <= own.last_step:  # a restart in place; what was fastest stays
            own = replace(own, rows=())
        own = replace(own, last_step=step.step)
        row, reported = next(iter(step.ranks.values())), None
        for said in step.ranks.values():
            if said.progress is not None and said.progress.toks_per_s is not None:
                row, reported = said, said.progress.toks_per_s
                break
        tokens, step_s = self.run.order.identity.tokens_per_step or row.tokens, row.dt_s
        if not tokens or not step_s or (self._reads and not view.streams[row.rank].labelled):
            return own, []
        kind_s = step_s - row.between_s - max(0.0, fetched_s(row) or 0.0) - BETWEEN_S
        tempo = Tempo(tokens / step_s, tokens / max(kind_s, LEAST_SHARE * step_s), reported)
        keep = self.settings.over_steps
        rows = (*own.rows, tempo)[-keep:]
        if len(rows) < keep:
            return replace(own, rows=rows), []
        quartile = sorted([row.kind for row in rows])[3 * keep // 4]
        own = replace(own, rows=rows, fastest=max(own.fastest, quartile))
        return own, [
            self.finding(
                step,
                view,
                Severity.WARN if setting == "best_ratio" else Severity.HALT,
                setting,
                text,
                setting=setting,
                value=value,
                threshold=limit,
            )
            for setting, value, limit, text in self._rules(own)
            if (value < limit if setting == "best_ratio" else value > limit)
        ]

    def _rules(self, own: Speeds) -> Iterator[tuple[str, float, float, str]]:
        """Yield setting, value, limit and text of each comparison that can be made."""
        tok_s, count = statistics.median([row.plain for row in own.rows]), len(own.rows)
        told = [row.reported for row in own.rows if row.reported is not None]
        if 2 * len(told) > count:
            reported = statistics.median(told)
            text = f"the trainer reports {reported:.4g} tokens/s over {count} steps; the fastest"
            text = f"{text} that its step ends allow is {own.fastest:.4g}"
            yield "differ_ratio", reported, (1.0 + self.settings.differ_ratio) * own.fastest, text
        most = own.most_tok_s or self._most_tok_s
        if most is not None:
            text = f"{tok_s:.4g} tokens/s over {count} steps are more than the devices can multiply"
            yield "mfu", tok_s, most, f"{text}: their peak allows {most:.4g}"
        best_s, tokens = self.run.order.best_step_s, self.run.order.identity.tokens_per_step
        if best_s is not None and tokens:
            step_s = tokens / tok_s
            text = f"a step takes {step_s:.4g} s over {count} steps; the best that is known of the"
            text = f"{text} same work on the same devices takes {best_s:.4g} s: is all of it done?"
            yield "best_ratio", step_s, self.settings.best_ratio * best_s, text

    def armed(self, own: Speeds, view: View) -> bool:
        """Whether enough steps have been timed."""
        return len(own.rows) >= int(self.settings.over_steps)

    def measure(self, own: Speeds, view: View, mono: float) -> Near:
        """Return the reported speed beside the largest that can be true."""
        for setting, value, limit, _ in self._rules(own):
            if setting == "differ_ratio":
                return Near(value=value, limit=limit, unit="tokens/s")
        return Near(blind=NOTHING_YET)

    def missing(self, own: Speeds, view: View) -> str | None:
        """Return a sentence on the comparisons that could not be made."""
        if view.reads_output():
            return "Speed was not checked: steps are timed by when their lines were read."
        if not own.last_step:
            return None
        unknown = []
        if not own.rows:
            unknown.append("no step of all ranks could be timed")
        if all(row.reported is None for row in own.rows):
            unknown.append("the trainer reports tokens/s of no step that could be timed")
        if (own.most_tok_s or self._most_tok_s) is None:
            unknown.append("the matrix-product peak or the number of parameters is not known")
        return f"Speed was not wholly checked: {'; '.join(unknown)}." if unknown else None


def limit_tok_s(run: Run, mfu: float, peak: object) -> float | None:
    """Return the tokens per second that the devices' peak allows, or None where it is not known.

    A measured peak was reached beside whatever else ran, so it never lowers the hardware table's.
    A CPU's peak says nothing of a profile with devices.
    """
    identity, profile = run.order.identity, hardware_profiles().get(run.order.profile)
    multiplied = (identity.params or 0) - (identity.vocab or 0) * (identity.dim or 0)
    profile = profile or HardwareProfile()
    flops = (profile.peak_flops or 0.0) * run.order.world_size
    told = peak if isinstance(peak, dict) else {}
    measured = told.get("flops")
    if isinstance(measured, int | float) and math.isfinite(measured):
        of_cpu = (told.get("of") or run.order.profile) == CPU
        if not of_cpu:
            flops = max(flops, measured)
        elif not profile.has_devices:
            flops = CPU_X * measured
    return mfu * flops / (FLOPS_PER_PARAM * multiplied) if flops > 0 < multiplied else None
