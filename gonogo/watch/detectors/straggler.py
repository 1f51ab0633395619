"""D7 straggler: one rank computes slower than the others.

A rank's own compute time is its step less what it waited in collectives. In lockstep all steps take
as long as the slowest rank's, so only this difference names the rank. Medians over whole windows
leave pauses out.

Not covered: a rank that is slow within its first window has no better window of its own, and is
compared with the others alone.
"""

import statistics
from dataclasses import dataclass, field

from gonogo.contract import outcome
from gonogo.contract.finding import Finding, Severity
from gonogo.contract.near import Near
from gonogo.timeline.step import Step
from gonogo.watch.detector import NOTHING_YET, Detector, Seen
from gonogo.watch.speed import own_time_s
from gonogo.watch.state import replace
from gonogo.watch.view import View, found


@dataclass(frozen=True, kw_only=True)
class Behind:
    """A rank that has been slower than the best for some windows running."""

    windows: int
    since_step: int
    since_ts: float


@dataclass(frozen=True, kw_only=True)
class Shares:
    """What the ranks computed in the present window, and how the windows before it ended."""

    last_step: int = 0
    boots: dict[int, str] = field(default_factory=dict)
    rows: tuple[dict[int, float], ...] = ()
    """Rank → own compute seconds, of each step of the window."""
    began_step: int = 0
    began_ts: float = 0.0
    waited: bool = False
    """Whether any rank has reported that it waited."""
    best: dict[int, float] = field(default_factory=dict)
    """Rank → its best window among those in which it kept up with the fastest rank."""
    behind: dict[int, Behind] = field(default_factory=dict)


class Straggler(Detector[Shares]):
    """D7 (module docstring)."""

    name = outcome.Detector.STRAGGLER
    sentence = (
        "A rank's own compute time (its step less what it waited in collectives; median of"
        " `window_steps`) is more than `ratio` times the fastest rank's and more than `ratio` times"
        " its own best window, in `windows` windows running: warn, naming the rank. Where more than"
        " half of the ranks are behind, nobody straggles."
    )
    State = Shares
    steps = True

    def observe_step(self, own: Shares, step: Step, view: View) -> Seen[Shares]:
        """Observe the compute time of every rank in a step."""
        boots = {rank: row.boot for rank, row in sorted(step.ranks.items())}
        if step.lacks(own.boots, own.last_step):
            return own, []
        if step.step <= own.last_step or boots != own.boots:
            own = Shares(boots=boots)
        own = replace(own, last_step=step.step)
        times = {rank: own_time_s(row) for rank, row in sorted(step.ranks.items())}
        row = {rank: time_s for rank, time_s in times.items() if time_s is not None}
        if len(row) < 2 or len(row) < len(times):
            return own, []
        if not own.rows:
            own = replace(own, began_step=step.step, began_ts=step.tick.ts)
        waits = any(said.sections and said.sections.wait > 0.0 for said in step.ranks.values())
        own = replace(own, rows=(*own.rows, row), waited=own.waited or waits)
        if len(own.rows) < self.settings.window_steps:
            return own, []
        own, findings = self._compared(own, step, view)
        return replace(own, rows=()), findings

    def _compared(self, own: Shares, step: Step, view: View) -> Seen[Shares]:
        """Compare the ranks' medians at the end of a window."""
        ratio, windows = self.settings.ratio, self.settings.windows
        medians = _medians(own)
        best_s = min(medians.values())
        slow = [rank for rank, median in medians.items() if median > ratio * best_s]
        kept_up = {r: min(s, own.best.get(r, s)) for r, s in medians.items() if r not in slow}
        best = {**own.best, **kept_up}
        if 2 * len(slow) > len(medians):
            slow = []
        behind, findings = {}, []
        for rank in slow:
            median_s = medians[rank]
            if rank in best and median_s <= ratio * best[rank]:
                continue
            before = own.behind.get(rank)
            if before is None:
                before = Behind(windows=0, since_step=own.began_step, since_ts=own.began_ts)
            behind[rank] = replace(before, windows=before.windows + 1)
            if behind[rank].windows == windows:
                findings.append(self._finding(before, rank, median_s, best_s, step, view))
        return replace(own, best=best, behind=behind), findings

    def _finding(
        self, behind: Behind, rank: int, median_s: float, best_s: float, step: Step, view: View
    ) -> Finding:
        ratio = self.settings.ratio
        return found(
            view,
            self.name,
            Severity.WARN,
            episode=f"rank{rank}/step{behind.since_step}",
            at=step.tick.ts,
            rank=rank,
            step=step.step,
            value=median_s / best_s,
            threshold=ratio,
            source=self.run.source("straggler.ratio"),
            since=behind.since_ts,
            text=f"rank {rank} computes {median_s:.4g} s a step, {median_s / best_s:.2f} times as"
            f" long as the fastest rank, since step {behind.since_step} (limit {ratio:g})",
        )

    def armed(self, own: Shares, view: View) -> bool:
        """Whether several ranks report how long they waited."""
        return own.waited

    def near(self, own: Shares, view: View, mono: float) -> Near:
        """Return how much longer than the fastest rank the slowest one computes."""
        if not own.rows or not own.waited:
            return Near(blind=NOTHING_YET)
        medians = _medians(own).values()
        return Near(value=max(medians) / min(medians), limit=self.settings.ratio)

    def missing(self, own: Shares, view: View) -> str | None:
        """Return a sentence where several ranks ended steps and none reported a wait."""
        if len(own.boots) > 1 and not own.waited:
            return "No rank told how long it waited in collectives: stragglers were not observed."
        return None


def _medians(own: Shares) -> dict[int, float]:
    """Return rank → median of its compute seconds in the present window."""
    return {rank: statistics.median(row[rank] for row in own.rows) for rank in own.boots}
