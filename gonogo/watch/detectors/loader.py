"""D17 loader: steps wait for data.

The share of the steps' time that the slowest loader of each step took, over a window. Ranks in
lockstep wait for the rank that is fed last, now one and now another. The longest sixteenth of the
fetches is left out: a loader that stalls once starves nobody (D5 limits the single stall).

Not covered: a loader that stalls again and again for less than a sixteenth of the steps; a run that
is suspended while it waits for data.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from gonogo.contract import outcome
from gonogo.contract.canonical import added
from gonogo.contract.finding import Finding, Severity
from gonogo.contract.near import Near
from gonogo.timeline.step import Step
from gonogo.watch.detector import NOTHING_YET, Detector, Seen
from gonogo.watch.speed import fetched_s
from gonogo.watch.state import replace
from gonogo.watch.view import View, found

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
    """D17 (module docstring)."""

    name = outcome.Detector.LOADER
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
        own = replace(own, last_step=step.step, fetched=fetched)
        row = _row(step)
        if row is None:
            return own, []
        own = replace(
            own,
            rows=(*own.rows, row)[-self.settings.window_steps :],
            looked=own.looked + 1,
            trained_s=own.trained_s + min(part.step_s for part in row),
        )
        if own.looked < max(1, self.settings.window_steps // LOOKS) or not self._fills(own):
            long = min(part.step_s for part in row) >= self.settings.over_s / LOOKS
            if not long or not self._fills(own):
                return own, []
        return self._judged(replace(own, looked=0), step, view)

    def _fills(self, own: Waits) -> bool:
        if len(own.rows) >= self.settings.window_steps:
            return True
        trained_s = added(row[0].step_s for row in own.rows)
        return len(own.rows) >= FEW_STEPS and trained_s >= self.settings.over_s

    def _judged(self, own: Waits, step: Step, view: View) -> Seen[Waits]:
        """Compare the share of the slowest fetches with the limits."""
        share = _share(_slowest(row) for row in own.rows)
        warn, findings = share > self.settings.warn_share, list[Finding]()
        rank = _hungriest(own)
        who = "more than one rank" if rank is None else f"rank {rank}"
        if warn and not own.warned:
            text = f"{who} waits for data: {share:.0%} of the step time"
            findings.append(
                self._finding("warn_share", rank, share, text, step.tick.ts, step, view)
            )
        still = own.warned and share > CLEARED_SHARE * self.settings.warn_share
        own = replace(own, warned=warn or still)
        if share <= self.settings.halt_share:
            return replace(own, since_s=None, halted=False), findings
        if own.since_s is None:
            own = replace(own, since_s=own.trained_s, since_ts=step.tick.ts)
        held_s = own.trained_s - (own.since_s or 0.0)
        if not own.halted and held_s >= self.settings.over_s:
            own = replace(own, halted=True)
            text = f"{who} has waited for data for {share:.0%} of the step time, for {held_s:.0f} s"
            findings.append(
                self._finding("halt_share", rank, share, text, own.since_ts, step, view)
            )
        return own, findings

    def _finding(
        self, limit: str, rank: int | None, share: float, text: str, since: float, step: Step,
        view: View,
    ) -> Finding:  # fmt: skip
        threshold: float = getattr(self.settings, limit)
        return found(
            view,
            self.name,
            Severity.HALT if limit == "halt_share" else Severity.WARN,
            episode=f"step{step.step}",
            at=step.tick.ts,
            rank=rank,
            step=step.step,
            value=share,
            threshold=threshold,
            source=self.run.source(f"loader.{limit}"),
            since=since,
            text=f"{text} (limit {threshold:.0%})",
        )

    def armed(self, own: Waits, view: View) -> bool:
        """Whether a whole window of fetch times has been reported."""
        return self._fills(own)

    def near(self, own: Waits, view: View, mono: float) -> Near:
        """Return the share of the slowest fetches, and how long it may still stay above."""
        if not self._fills(own):
            return Near(blind=NOTHING_YET)
        left_s = None
        if own.since_s is not None:
            left_s = max(0.0, self.settings.over_s - (own.trained_s - own.since_s))
        share = _share(_slowest(row) for row in own.rows)
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
    return max(row, key=lambda part: (part.fetch_s, part.step_s))


def _share(parts: Iterable[Fetch]) -> float:
    """Return the share of fetching, without the steps of the longest fetches."""
    ordered = sorted(parts, key=lambda part: (part.fetch_s, part.step_s))
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
