"""The parts of a step's time: D7 straggler, D17 loader, D21 implausible_speed.

Each looks at a window of whole steps, and makes one finding of each limit, or of each rank, in a
run. A restart in place (`Step.again`) or another set of ranks begins a new window.

Not covered: a loader that stalls again and again for less than a sixteenth of the steps. A report
of speed that is too low. Steps whose number of tokens changes, or a mean that a resumed run
continues: they may look too fast. Programs of which only the printed lines are known: nobody knows
when their steps ended. Models that use a part of their parameters for a token, whose peak is too
low here. A rank that computes longer only because its peers have become faster: it straggles.
"""

import math
import statistics
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from gonogo.contract.finding import Finding, Near, Severity
from gonogo.contract.outcome import Detector as Name
from gonogo.contract.plan import HardwareProfile, hardware_profiles
from gonogo.contract.records import Tick
from gonogo.timeline.step import RankStep, Step
from gonogo.watch.detector import NOTHING_YET, Detector, Seen, replace
from gonogo.watch.view import Run, View

STALLS_OF = 16
"""One fetch in so many is left out, and one at least."""
FEW_STEPS = 16
"""Steps that a window needs where they fill `over_s`."""
LOOKS = 8
"""Looks at the loader per window: a share over a window moves slowly."""
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


@dataclass(frozen=True, kw_only=True)
class Shares:
    """What the ranks computed in the present window, and who has been slow until then."""

    ranks: tuple[int, ...] = ()
    rows: tuple[tuple[float, ...], ...] = ()
    """Own compute seconds of each step of the window, in order of rank."""
    waited: bool = False
    behind: dict[int, tuple[int, float]] = field(default_factory=dict)
    """Rank → for how many windows it has been slow, and since when."""
    began_ts: float = 0.0

    def medians_s(self) -> dict[int, float]:
        """Return rank → median of its compute seconds in the present window."""
        times = zip(*self.rows, strict=True)
        return {rank: statistics.median(row) for rank, row in zip(self.ranks, times, strict=True)}


class Straggler(Detector[Shares]):
    """D7: one rank computes slower than the others. It only warns.

    A rank's own compute time is its step less what it waited in collectives. In lockstep all steps
    take as long as the slowest rank's, so only this difference names the rank.
    """

    name = Name.STRAGGLER
    sentence = (
        "Warns of a rank whose own compute time (median of `window_steps`, without waiting in "
        "collectives) is more than `ratio` times the fastest rank's, in `windows` windows "
        "running. If more than half of the ranks are behind, nobody straggles."
    )
    State = Shares
    armed_by = "waited"
    steps = True

    def observe_step(self, own: Shares, step: Step, view: View) -> Seen[Shares]:
        ranks, row, waited = tuple(step.ranks), [], own.waited
        if step.again or ranks != own.ranks:
            own = Shares(ranks=ranks, waited=waited)
        for said in step.ranks.values():
            wait_s = None if said.sections is None else said.sections.wait
            if wait_s is None or said.dt_s is None or wait_s >= said.dt_s:
                return own, []
            row.append(said.dt_s - max(0.0, wait_s))
            waited = waited or wait_s > 0.0
        if len(row) < 2:
            return own, []
        began_ts = own.began_ts if own.rows else step.tick.ts
        rows = (*own.rows, tuple(row))
        own = replace(own, rows=rows, waited=waited, began_ts=began_ts)
        return (
            self._compared(own, step, view)
            if len(rows) >= self.settings.window_steps
            else (own, [])
        )

    def _compared(self, own: Shares, step: Step, view: View) -> Seen[Shares]:
        """Compare the ranks' medians at the end of a window."""
        ratio, medians = self.settings.ratio, own.medians_s()
        best_s = min(medians.values())
        slow = [rank for rank, median_s in medians.items() if median_s > ratio * best_s]
        behind, findings = dict[int, tuple[int, float]](), list[Finding]()
        for rank in slow if 2 * len(slow) <= len(medians) else ():
            windows, since_ts = own.behind.get(rank, (0, own.began_ts))
            behind[rank] = (windows + 1, since_ts)
            if windows + 1 < self.settings.windows:
                continue
            times = medians[rank] / best_s
            text = (
                f"rank {rank} computes {medians[rank]:.4g} s a step, {times:.2f} times as long as"
                f" the fastest rank, for {windows + 1} windows (limit {ratio:g})"
            )
            findings.append(
                self.finding(
                    step, view, Severity.WARN, f"rank{rank}", text,
                    setting="ratio", rank=rank, value=times, since=since_ts,
                )
            )  # fmt: skip
        return replace(own, behind=behind, rows=()), findings

    def measure(self, own: Shares, view: View, mono: float) -> Near:
        if not own.rows:
            return Near(blind=NOTHING_YET)
        medians = own.medians_s().values()
        return Near(value=max(medians) / min(medians), limit=self.settings.ratio)

    def missing(self, own: Shares, view: View) -> str | None:
        if len(own.ranks) > 1 and not own.waited:
            return (
                "No rank reports how long it waited in collectives: stragglers were not observed."
            )
        return None


class Fetch(NamedTuple):
    """One rank's part of a step, in seconds."""

    fetch_s: float
    step_s: float


@dataclass(frozen=True, kw_only=True)
class Waits:
    """The last steps, and how long they have starved."""

    ranks: tuple[int, ...] = ()
    rows: tuple[tuple[Fetch, ...], ...] = ()
    """One row for each step of the window, in order of rank."""
    trained_s: float = 0.0
    full: bool = False
    """Whether the window has enough steps, or a few that fill `over_s`."""
    since: tuple[float, float] | None = None
    """`trained_s` and wall clock when the run began to starve."""


class Loader(Detector[Waits]):
    """D17: steps wait for data.

    The share of the steps' time that the slowest loader of each step took, over a window. Ranks in
    lockstep wait for the rank that is fed last, now one and now another. The longest sixteenth of
    the fetches is left out: a loader that stalls once starves nobody (D5 limits the single stall).
    """

    name = Name.LOADER
    sentence = (
        "Over `window_steps` steps the slowest loader of each step took more than "
        "`warn_share` of the step time: warn; more than `halt_share` for `over_s` of "
        "training: the second limit. Single stalls are left out."
    )
    State = Waits
    armed_by = "full"
    steps = True
    unobserved = (
        "Too few steps report their time and their fetch time: the loader was not observed."
    )

    def observe_step(self, own: Waits, step: Step, view: View) -> Seen[Waits]:
        ranks, row = tuple(step.ranks), list[Fetch]()
        if step.again or ranks != own.ranks:
            own = Waits(ranks=ranks)
        for said in step.ranks.values():
            fetch_s, step_s = fetched_s(said), said.dt_s
            if fetch_s is None or not step_s:
                return own, []
            row.append(Fetch(min(max(0.0, fetch_s), step_s), step_s))
        most, trained_s = self.settings.window_steps, own.trained_s + row[0].step_s
        rows = (*own.rows, tuple(row))[-most:]
        fills = len(rows) >= FEW_STEPS and trained_s >= self.settings.over_s
        full = fills or len(rows) == most
        own = replace(own, rows=rows, trained_s=trained_s, full=full)
        every = max(1, most // LOOKS) if row[0].step_s < self.settings.over_s / LOOKS else 1
        if not full or step.step % every:
            return own, []
        return self._judged(own, step, view)

    def _judged(self, own: Waits, step: Step, view: View) -> Seen[Waits]:
        """Compare the share of the slowest fetches with the limits."""
        settings, share = self.settings, share_of(map(max, own.rows))
        if share <= settings.halt_share:
            own = replace(own, since=None)
        elif own.since is None:
            own = replace(own, since=(own.trained_s, step.tick.ts))
        if share <= settings.warn_share:
            return own, []
        rank, since = hungriest(own), own.since or (own.trained_s, step.tick.ts)
        who, held_s = (
            "the ranks wait" if rank is None else f"rank {rank} waits",
            own.trained_s - since[0],
        )
        text = f"{who} for data for {share:.0%} of the step time"
        warning = self.finding(
            step, view, Severity.WARN, "warn_share", text,
            setting="warn_share", rank=rank, value=share,
        )  # fmt: skip
        if own.since is None or held_s < settings.over_s:
            return own, [warning]
        halt = self.finding(
            step, view, Severity.HALT, "halt_share", f"{text}, for {held_s:.0f} s",
            setting="halt_share", rank=rank, value=share, since=since[1],
        )  # fmt: skip
        return own, [warning, halt]

    def measure(self, own: Waits, view: View, mono: float) -> Near:
        left_s, share = None, share_of(map(max, own.rows))
        if own.since is not None:
            left_s = max(0.0, self.settings.over_s - (own.trained_s - own.since[0]))
        return Near(value=share, limit=self.settings.halt_share, time_left_s=left_s)


def share_of(parts: Iterable[Fetch]) -> float:
    """Return the share of fetching, without the steps of the longest fetches."""
    ordered = sorted(parts)
    kept = ordered[: len(ordered) - max(1, len(ordered) // STALLS_OF)]
    step_s = math.fsum(part.step_s for part in kept)
    return math.fsum(part.fetch_s for part in kept) / step_s if step_s else 0.0


def hungriest(own: Waits) -> int | None:
    """Return the rank whose loader is slow; None where another one waits half as long."""
    shares = [share_of(parts) for parts in zip(*own.rows, strict=True)]
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

    rows: tuple[Tempo, ...] = ()
    fastest: float = 0.0
    """Upper quartile of the fastest window so far, in the trainer's favour."""
    reported: float | None = None
    """Median of the reported speeds; None if fewer than half of the steps have one."""
    most_tok_s: float | None = None
    """Tokens per second that the peak allows which preflight measured."""


class ImplausibleSpeed(Detector[Speeds]):
    """D21: the reported speed, or the speed of the run itself, cannot be true.

    Recomputed speed is the ordered tokens over the time between step ends. Honest trainers report
    many things: a mean over any window, the best so far, a step without its data or logging. None
    of them exceeds the fastest window that the run has ever had, recomputed in its favour.
    """

    name = Name.IMPLAUSIBLE_SPEED
    sentence = (
        "The reported tokens/s exceed the run's fastest steps by more than `differ_ratio`, or "
        "the floating-point operations that they imply exceed `mfu` of the peak."
    )
    State = Speeds
    armed_by = "fastest"
    steps = True
    ticks = True
    observes = frozenset({PEAK})

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self._reads, self._keep = bool(run.order.patterns), self.settings.over_steps
        self._most_tok_s = limit_tok_s(run, None)

    def observe_tick(self, own: Speeds, tick: Tick, view: View) -> Seen[Speeds]:
        return replace(own, most_tok_s=limit_tok_s(self.run, tick.observations[PEAK])), []

    def observe_step(self, own: Speeds, step: Step, view: View) -> Seen[Speeds]:
        if step.again:  # what was fastest stays
            own = replace(own, rows=())
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
        own = replace(own, rows=(*own.rows, tempo)[-self._keep :])
        return self._judged(own, step, view) if len(own.rows) == self._keep else (own, [])

    def _judged(self, own: Speeds, step: Step, view: View) -> Seen[Speeds]:
        """Compare a window of steps with what can be true."""
        rows, settings, halt = own.rows, self.settings, Severity.HALT
        told = [row.reported for row in rows if row.reported is not None]
        reported = statistics.median(told) if 2 * len(told) > len(rows) else None
        fastest = max(own.fastest, sorted([row.kind for row in rows])[3 * len(rows) // 4])
        own = replace(own, reported=reported, fastest=fastest)
        found, limit = [], (1.0 + settings.differ_ratio) * fastest
        tok_s, over = statistics.median([row.plain for row in rows]), f"tokens/s over {len(rows)}"
        if reported is not None and reported > limit:
            text = (
                f"the trainer reports {reported:.4g} {over} steps; the fastest that its step ends"
            )
            found.append((halt, "differ_ratio", reported, limit, f"{text} allow is {fastest:.4g}"))
        most = own.most_tok_s or self._most_tok_s
        if most is not None and tok_s > most:
            text = f"{tok_s:.4g} {over} steps are more than the devices can multiply; their peak"
            found.append((halt, "mfu", tok_s, most, f"{text} allows {most:.4g}"))
        return own, [
            self.finding(
                step, view, severity, name, text, setting=name, value=value, threshold=limit
            )
            for severity, name, value, limit, text in found
        ]

    def measure(self, own: Speeds, view: View, mono: float) -> Near:
        if own.reported is None:
            return Near(blind=NOTHING_YET)
        limit = (1.0 + self.settings.differ_ratio) * own.fastest
        return Near(value=own.reported, limit=limit, unit="tokens/s")

    def missing(self, own: Speeds, view: View) -> str | None:
        if view.reads_output():
            return "Speed was not checked: steps are timed by when their lines were read."
        if not view.steps.made:
            return None
        unknown = []
        if not own.rows:
            unknown.append("no step of all ranks could be timed")
        if all(row.reported is None for row in own.rows):
            unknown.append("the trainer reports tokens/s of no step that could be timed")
        if (own.most_tok_s or self._most_tok_s) is None:
            unknown.append("the matrix-product peak or the number of parameters is not known")
        return f"Speed was not wholly checked: {'; '.join(unknown)}." if unknown else None


def limit_tok_s(run: Run, peak: object) -> float | None:
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
    mfu: float = run.watch.implausible_speed.mfu
    return mfu * flops / (FLOPS_PER_PARAM * multiplied) if flops > 0 < multiplied else None
