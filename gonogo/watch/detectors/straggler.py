"""D7: does one rank compute slower than the others?

A rank's own compute time is its step less what it waited for its peers. In lockstep all steps take
as long as the slowest rank's, so that only this difference shows who it is. Medians over whole
windows: pauses do not count. A warning; the run goes on.
"""

import statistics
from dataclasses import dataclass, field

from gonogo.contract import outcome
from gonogo.contract.finding import Finding, Severity
from gonogo.watch.detector import Detector, Seen
from gonogo.watch.state import replace
from gonogo.watch.step import RankStep, Step
from gonogo.watch.view import View, found


@dataclass(frozen=True, kw_only=True)
class Behind:
    """A rank that has been slower than the best for some windows running."""

    windows: int
    since_step: int
    since_ts: float
    told: bool = False


@dataclass(frozen=True, kw_only=True)
class Shares:
    """What the ranks computed in the present window, and how the windows before it ended."""

    last_step: int = 0
    boots: tuple[str, ...] = ()
    ranks: tuple[int, ...] = ()
    rows: tuple[tuple[float, ...], ...] = ()
    """Own compute seconds of each step of the window, in order of rank."""
    data: tuple[tuple[float, ...], ...] = ()
    """Seconds of these in which the rank waited for its data."""
    began_step: int = 0
    began_ts: float = 0.0
    waited: bool = False
    """Whether any rank ever told that it waited."""
    level: tuple[float | None, ...] = ()
    """A rank's best window of those in which it kept up with the best rank."""
    behind: dict[int, Behind] = field(default_factory=dict)


class Straggler(Detector[Shares]):
    """D7 (module docstring)."""

    name = outcome.Detector.STRAGGLER
    sentence = (
        "A rank's own compute time (its step less what it waited in collectives; median of"
        " `window_steps`) is more than `ratio` times the fastest rank's, and more than `ratio`"
        " times its own best window among those in which it kept up, if there is one, in `windows`"
        " windows running: warn, naming the rank. Where more than half of the ranks are behind, one"
        " rank is fast and nobody straggles."
    )
    State = Shares
    steps = True

    def observe_step(self, own: Shares, step: Step, view: View) -> Seen[Shares]:
        """Observe the compute time of every rank in a step."""
        if step.lacks(own.ranks, own.last_step):
            return own, []
        ordered = [step.ranks[rank] for rank in sorted(step.ranks)]
        boots, ranks = tuple(row.boot for row in ordered), tuple(row.rank for row in ordered)
        if step.step <= own.last_step or (boots, ranks) != (own.boots, own.ranks):
            own = Shares(boots=boots, ranks=ranks)
            own = replace(own, level=(None,) * len(boots))
        own = replace(own, last_step=step.step)
        times = _own_times(ordered)
        if len(ordered) < 2 or times is None:
            return own, []
        if not own.rows:
            own = replace(own, began_step=step.step, began_ts=step.tick.ts)
        waited = own.waited or any(row.sections and row.sections.wait > 0.0 for row in ordered)
        data = tuple(row.sections.data if row.sections else 0.0 for row in ordered)
        own = replace(own, rows=(*own.rows, times), data=(*own.data, data), waited=waited)
        if len(own.rows) < self.settings.window_steps:
            return own, []
        own, findings = self._compared(own, step, view)
        return replace(own, rows=(), data=()), findings

    def _compared(self, own: Shares, step: Step, view: View) -> Seen[Shares]:
        """Compare the ranks' medians at the end of a window."""
        medians = [statistics.median(times) for times in zip(*own.rows, strict=True)]
        best, ratio = min(medians), self.settings.ratio
        slow = [place for place, median in enumerate(medians) if median > ratio * best]
        level = tuple(
            before if place in slow else min(usual, before or usual)
            for place, (usual, before) in enumerate(
                zip(_kept_up(own, medians, ratio), own.level, strict=True)
            )
        )
        if 2 * len(slow) > len(medians):
            slow = []
        behind, findings = {}, []
        for place in slow:
            usual, median = own.level[place], medians[place]
            if usual is not None and median <= ratio * usual:
                continue
            rank = own.ranks[place]
            entry = own.behind.get(rank)
            if entry is None:
                entry = Behind(windows=0, since_step=own.began_step, since_ts=own.began_ts)
            entry = replace(entry, windows=entry.windows + 1)
            if entry.windows >= self.settings.windows and not entry.told:
                entry = replace(entry, told=True)
                data_s = statistics.median(row[place] for row in own.data)
                findings.append(self._finding(entry, rank, median, data_s, best, step, view))
            behind[rank] = entry
        return replace(own, level=level, behind=behind), findings

    def _finding(
        self,
        entry: Behind,
        rank: int,
        median_s: float,
        data_s: float,
        best_s: float,
        step: Step,
        view: View,
    ) -> Finding:
        ratio = self.settings.ratio
        takes = f"computes {median_s:.4g} s a step"
        if 2.0 * data_s > median_s:
            takes = f"takes {median_s:.4g} s a step, of which {data_s:.4g} s for data"
        return found(
            view,
            self.name,
            Severity.WARN,
            episode=f"rank{rank}/step{entry.since_step}",
            at=step.tick.ts,
            rank=rank,
            step=step.step,
            value=median_s / best_s,
            threshold=ratio,
            source=self.run.source("straggler.ratio"),
            since=entry.since_ts,
            text=f"rank {rank} {takes}, {median_s / best_s:.2f} times as long as the fastest rank,"
            f" since step {entry.since_step} (limit {ratio:g})",
        )

    def armed(self, own: Shares, view: View) -> bool:
        """Whether several ranks tell how long they waited."""
        return own.waited

    def missing(self, own: Shares, view: View) -> str | None:
        """Return a sentence where several ranks ended steps and none told what it waited."""
        if len(own.ranks) > 1 and not own.waited:
            return "No rank told how long it waited in collectives: stragglers were not observed."
        return None


def _kept_up(own: Shares, medians: list[float], ratio: float) -> list[float]:
    """Return what each rank took while it kept up: of a window in one half of which it was behind,
    the median of the other. One that falls behind within its first window would else be its own
    measure for ever.
    """
    middle, kept = len(own.rows) // 2, [list[float]() for _ in medians]
    for half in filter(None, (own.rows[:middle], own.rows[middle:])):
        times_s = [statistics.median(times) for times in zip(*half, strict=True)]
        for place, median in enumerate(times_s):
            if median <= ratio * min(times_s):
                kept[place].append(median)
    return [
        halves[0] if len(halves) == 1 else whole
        for halves, whole in zip(kept, medians, strict=True)
    ]


def _own_times(ordered: list[RankStep]) -> tuple[float, ...] | None:
    """Return the ranks' own compute seconds, or None where one did not tell."""
    times = []
    for row in ordered:
        if row.dt_s is None or row.sections is None or row.sections.wait >= row.dt_s:
            return None
        times.append(row.dt_s - max(0.0, row.sections.wait))
    return tuple(times)
