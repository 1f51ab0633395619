"""D17: do steps wait for data?

The share of a rank's own time that its own loader took, over a window of steps. The longest fetches
of the window are left out of both sums: a loader that stalls once, however long, starves nobody
(D5 limits the single stall). Checkpoints and evaluations count on neither side.

What stalls again and again is starved: of a loader of sixteen workers one fetch in sixteen waits
for all of them. So half an hour is looked at, too, of which none is left out, and the end of it.

Ranks in lockstep wait for whoever is fed last, now one, now another: of eight that are starved for
78 % of each step, each has waited for its own loader for 58 % of it only. So a halt asks for how
much of a step the slowest fetch took, once one of the ranks is hungry by itself.

No step waits for longer than it takes. Who tells more on most steps tells something else (what the
workers of its loader took beside the steps, or milliseconds): that warns, and halts nothing.

A program of somebody else's may wait for data all its life, and be well: its pictures are large and
its model is small, the first epoch reads from a cold disk, a short epoch starts its loader anew,
rollouts are its data. So one that has starved since its first steps is only warned of, until it has
been fed well over a long time; where it waits longer than it did, its steps do too (D8). A plan
that sets `halt_share` says otherwise.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from operator import itemgetter

from gonogo.contract import outcome
from gonogo.contract.canonical import added
from gonogo.contract.finding import Finding, Severity
from gonogo.contract.workload import is_ours
from gonogo.watch.detector import Detector, Seen
from gonogo.watch.state import replace
from gonogo.watch.step import RankStep, Step
from gonogo.watch.view import Run, View, found

STALLS_OF = 16
"""One fetch in so many is left out, and one at least."""
LOOKS = 8
"""Looks per window, and per `over_s` where steps are long: a share over a window moves slowly."""
FEW_STEPS = 16
ALIKE_SHARE = 0.5
"""Where another rank waits at least this part of the longest share, none of them is named."""
CLEARED_SHARE = 0.8
"""A run whose share lies about the limit warns once, until it is below this part of it."""

LONG_S, LONG_X = 1800.0, 6.0
"""Seconds of training, and times `over_s`, of which no fetch is left out, the larger counts: three
of the longest that D5 allows are less than the share that halts."""
BEYOND_X = 1.25
"""Times a step that a fetch may be told to have taken, and be a wait: two clocks may differ."""

Row = tuple[tuple[float, float], ...]
"""Of one step, in order of rank: seconds of fetching, seconds of the step."""
_FETCH_S, _TOOK_S = itemgetter(0), itemgetter(1)


@dataclass(frozen=True, kw_only=True)
class Block:
    """Steps that follow each other; behind the ranks stands the slowest fetch of each step."""

    began_ts: float
    sums: Row
    """Of all of them."""
    steps: int = 0
    trained_s: float = 0.0

    def after(self, row: Row) -> "Block":
        """Return the block with one more step."""
        return replace(
            self,
            sums=_added(self.sums, (*row, max(row))),
            steps=self.steps + 1,
            trained_s=self.trained_s + _trained(row),
        )


@dataclass(frozen=True, kw_only=True)
class Waits:
    """The last steps, and how long they have starved."""

    last_step: int = 0
    fetched: bool = False
    """Whether any fetch time was told, be it of a step that nobody could time."""
    told: bool = False
    ranks: tuple[int, ...] = ()
    rows: tuple[Row, ...] = ()
    beyond: tuple[bool, ...] = ()
    """Of the same steps, whether a rank told a fetch that took longer than the step."""
    blocks: tuple[Block, ...] = ()
    """The steps of a long time, the last block still growing."""
    due: int = 0
    """Steps since the last look."""
    trained_s: float = 0.0
    """Training seconds so far."""
    looked_s: float = 0.0
    """`trained_s` at the last look."""
    warned: bool = False
    starved: bool = False
    since_step: int = 0
    since_ts: float = 0.0
    since_s: float = 0.0
    """`trained_s` when starving began."""
    halted: bool = False
    since_start: bool | None = None
    """Whether it has starved since its first steps, and was never fed well for long; None until
    there are enough of them."""


class Loader(Detector[Waits]):
    """D17 (module docstring)."""

    name = outcome.Detector.LOADER
    sentence = (
        "Over `window_steps` steps (or the last 16 and more that fill `over_s`), a rank's loader"
        " took more than `warn_share` of the rank's step time: warn, and again once it has been"
        " below four fifths of that; and the slowest loader of each step more than `halt_share`"
        " for `over_s` seconds of training: halt."
        " The rank is named where no other waits half as long. One fetch in sixteen, the longest,"
        " is left out of both sums, so that no single stall and no handful of them is starvation;"
        " over half an hour (and six times `over_s`) none is, so that a loader that stalls again"
        " and again starves. Fetches that are told to have taken longer than their steps, on"
        " most of them, are no waits: they halt nothing. A program of yours that has starved so"
        " since its first steps is warned of, and not halted, until it has been fed well for long;"
        " unless the plan sets `halt_share`."
    )
    State = Waits
    """2: a program of somebody else's that has starved since its first steps is warned of."""
    steps = True

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self._warn: float = self.settings.warn_share
        self._halt: float = self.settings.halt_share
        ordered = "halt_share" in self.settings.model_fields_set
        self._is_bound = ordered or is_ours(run.order.entry, run.order.command)

    def observe_step(self, own: Waits, step: Step, view: View) -> Seen[Waits]:
        """Observe how long each rank fetched, and how long its step took."""
        if step.lacks(own.ranks, own.last_step):
            return own, []
        ranks = tuple(sorted(step.ranks))
        if step.step <= own.last_step or ranks != own.ranks:
            own = Waits(fetched=own.fetched, told=own.told, ranks=ranks)
        fetched = own.fetched or any(fetched_s(said) is not None for said in step.ranks.values())
        row = _row(step)
        if row is None:
            return replace(own, last_step=step.step, fetched=fetched), []
        own = replace(
            own,
            last_step=step.step,
            fetched=fetched,
            told=True,
            rows=(*own.rows, row)[-self.settings.window_steps :],
            beyond=(*own.beyond, _is_beyond(step))[-self.settings.window_steps :],
            blocks=self._summed(own.blocks, row, step),
            due=own.due + 1,
            trained_s=own.trained_s + _trained(row),
        )
        by_time = own.trained_s - own.looked_s >= self.settings.over_s / LOOKS
        by_steps = own.due >= max(1, self.settings.window_steps // LOOKS)
        if own.since_start is None and len(own.rows) >= min(FEW_STEPS, self.settings.window_steps):
            own = replace(own, since_start=_shares(own.blocks)[-1] > self._halt)
        if not (by_time or by_steps) or not self._enough(own):
            return own, []
        if own.since_start and _shares(own.blocks)[-1] <= CLEARED_SHARE * self._warn:
            own = replace(own, since_start=False)
        return self._looked(replace(own, due=0, looked_s=own.trained_s), step, view)

    def _enough(self, own: Waits) -> bool:
        if len(own.rows) >= self.settings.window_steps:
            return True
        total_s = added(row[0][1] for row in own.rows)
        return len(own.rows) >= FEW_STEPS and total_s >= self.settings.over_s

    def _summed(self, blocks: tuple[Block, ...], row: Row, step: Step) -> tuple[Block, ...]:
        """Return the blocks with one more step, as few of them as fill the long time."""
        if not blocks or blocks[-1].trained_s >= self.settings.over_s / LOOKS:
            none = ((0.0, 0.0),) * (len(row) + 1)
            fresh = Block(began_ts=step.tick.ts, sums=none)
            blocks = (*(blocks[1:] if self._is_long(blocks[1:]) else blocks), fresh)
        return (*blocks[:-1], blocks[-1].after(row))

    def _is_long(self, blocks: tuple[Block, ...]) -> bool:
        if sum(block.steps for block in blocks) < self.settings.window_steps:
            return False
        trained_s = added(block.trained_s for block in blocks)
        return bool(trained_s >= max(LONG_S, LONG_X * self.settings.over_s))

    def _again(self, own: Waits) -> list[float]:
        """Return the share of each rank, and of the slowest fetch of each step, over a long time.

        It has to go on: where the end of that time has less, that counts.
        """
        if not self._is_long(own.blocks):
            return [0.0] * (len(own.ranks) + 1)
        return list(map(min, _shares(own.blocks), _shares(self._latest(own.blocks))))

    def _latest(self, blocks: tuple[Block, ...]) -> tuple[Block, ...]:
        """Return the last blocks that fill `over_s`."""
        steps, trained_s = 0, 0.0
        for place in range(len(blocks) - 1, 0, -1):
            steps, trained_s = steps + blocks[place].steps, trained_s + blocks[place].trained_s
            if steps >= FEW_STEPS and trained_s >= self.settings.over_s:
                return blocks[place:]
        return blocks

    def _looked(self, own: Waits, step: Step, view: View) -> Seen[Waits]:
        """Compare the hungriest rank's share, and that of the slowest fetches, with the limits."""
        shares = [_share(times) for times in zip(*own.rows, strict=True)]
        *again, again_slowest = self._again(own)
        slowest = max(shares)
        if slowest > self._warn:
            slowest = _share(map(max, own.rows))
        lasts = slowest <= self._halt < again_slowest and max(again) > self._warn
        if lasts:
            slowest = again_slowest
        if max(again) > max(shares):
            shares = again
        share = max(shares)
        rank, findings = own.ranks[shares.index(share)], list[Finding]()
        alike = len(shares) > 1 and sum(each >= ALIKE_SHARE * share for each in shares) > 1
        accused = None if alike else rank
        who = "more than one rank" if alike else f"rank {rank}"
        warn = share > self._warn
        if warn and not own.warned:
            text = f"{who} spends {share:.0%} of its time waiting for data"
            if _no_waits(own):
                text += ", as told; that is more than steps take"
            findings.append(
                self._finding(Severity.WARN, accused, share, text, step.tick.ts, step, view)
            )
        still = own.warned and share > CLEARED_SHARE * self._warn
        own = replace(own, warned=warn or still)
        if slowest <= self._halt:
            return replace(own, starved=False, halted=False), findings
        if not own.starved:
            own = replace(
                own,
                starved=True,
                since_step=step.step,
                since_ts=step.tick.ts,
                since_s=own.trained_s,
            )
        if lasts:
            began_s = own.trained_s - added(block.trained_s for block in own.blocks)
            began_ts = min(own.since_ts, own.blocks[0].began_ts)
            own = replace(own, since_s=min(own.since_s, began_s), since_ts=began_ts)
        held_s = own.trained_s - own.since_s
        if self._may_halt(own) and held_s >= self.settings.over_s:
            own = replace(own, halted=True)
            text = f"{who} has kept {slowest:.0%} of the time waiting for data for {held_s:.0f} s"
            findings.append(
                self._finding(Severity.HALT, accused, slowest, text, own.since_ts, step, view)
            )
        return own, findings

    def _may_halt(self, own: Waits) -> bool:
        """Whether starving ends the run: not twice, nor one that has never done otherwise."""
        always = own.since_start and not self._is_bound
        return not (own.halted or always or _no_waits(own))

    def _finding(
        self,
        severity: Severity,
        rank: int | None,
        share: float,
        text: str,
        since: float,
        step: Step,
        view: View,
    ) -> Finding:
        name = "halt_share" if severity is Severity.HALT else "warn_share"
        limit: float = getattr(self.settings, name)
        return found(
            view,
            self.name,
            severity,
            episode=f"step{step.step}",
            at=step.tick.ts,
            rank=rank,
            step=step.step,
            value=share,
            threshold=limit,
            source=self.run.source(f"loader.{name}"),
            since=since,
            text=f"{text} (limit {limit:.0%})",
        )

    def armed(self, own: Waits, view: View) -> bool:
        """Whether a whole window of fetch times has been told."""
        return self._enough(own)

    def missing(self, own: Waits, view: View) -> str | None:
        """Return a sentence where steps ended and none could be held against its fetch time."""
        if own.told and _no_waits(own):
            return "Fetches were told that took longer than their steps: no wait for data is known."
        if not own.last_step or own.told:
            return None
        why = "No step could be timed" if own.fetched else "No fetch time was told"
        return f"{why}: how long steps waited for data was not observed."


def _row(step: Step) -> Row | None:
    """Return the times of a step, or None where a rank did not tell them."""
    row = []
    for _, said in sorted(step.ranks.items()):
        fetch_s, took_s = fetched_s(said), said.dt_s
        if fetch_s is None or took_s is None or took_s <= 0.0:
            return None
        row.append((min(max(0.0, fetch_s), took_s), took_s))
    return tuple(row)


def _is_beyond(step: Step) -> bool:
    """Whether a rank told that a fetch took longer than its step."""
    return any(
        (fetched_s(said) or 0.0) > BEYOND_X * (said.dt_s or math.inf)
        for said in step.ranks.values()
    )


def _no_waits(own: Waits) -> bool:
    """Whether most of the last steps are said to have waited for longer than they took."""
    return 2 * sum(own.beyond) > len(own.beyond)


def _trained(row: Row) -> float:
    """Return how long a step trained: a rank whose peer evaluates alone waits for it in a step."""
    return min(took_s for _, took_s in row)


def fetched_s(row: RankStep) -> float | None:
    """Return the seconds that a rank's step waited for its loader, as its lines say."""
    if row.progress is not None and row.progress.dt_fetch_s is not None:
        return row.progress.dt_fetch_s
    return None if row.sections is None else row.sections.data


def _added(sums: Row, row: Row) -> Row:
    return tuple(
        [
            (fetch_s + more_s, took_s + longer_s)
            for (fetch_s, took_s), (more_s, longer_s) in zip(sums, row, strict=True)
        ]
    )


def _shares(blocks: tuple[Block, ...]) -> list[float]:
    """Return the share of fetching of each rank over blocks, then that of the slowest fetches."""
    of_ranks = zip(*(block.sums for block in blocks), strict=True)
    return [added(map(_FETCH_S, sums)) / added(map(_TOOK_S, sums)) for sums in of_ranks]


def _share(times: Iterable[tuple[float, float]]) -> float:
    """Return the share of fetching, without the steps of the longest fetches."""
    ordered = sorted(times)
    kept = ordered[: len(ordered) - max(1, len(ordered) // STALLS_OF)]
    total_s = added(map(_TOOK_S, kept))
    return added(map(_FETCH_S, kept)) / total_s if total_s else 0.0
