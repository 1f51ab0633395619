"""D17: do steps wait for data?

The share of a rank's own time that its own loader took, over a window of steps. The longest fetches
of the window are left out of both sums: a loader that stalls once, however long, starves nobody
(D5 limits the single stall). Checkpoints and evaluations count on neither side.

Ranks in lockstep wait for whoever is fed last, now one, now another: of eight that are starved for
78 % of each step, each has waited for its own loader for 58 % of it only. So a halt asks for how
much of a step the slowest fetch took, once one of the ranks is hungry by itself.
"""

from dataclasses import dataclass

from gonogo.contract import outcome
from gonogo.contract.canonical import added
from gonogo.contract.finding import Finding, Severity
from gonogo.judge.watch.detector import Detector, Seen
from gonogo.judge.watch.state import replace
from gonogo.judge.watch.step import RankStep, Step
from gonogo.judge.watch.view import View, found

STALLS_OF = 16
"""One fetch in so many is left out, and one at least."""
LOOKS = 8
"""Looks per window, and per `over_s` where steps are long: a share over a window moves slowly."""
FEW_STEPS = 16
ALIKE_SHARE = 0.5
"""Where another rank waits at least this part of the longest share, none of them is named."""
CLEARED_SHARE = 0.8
"""A run whose share lies about the limit warns once, until it is below this part of it."""

Row = tuple[tuple[float, float], ...]
"""Of one step, in order of rank: seconds of fetching, seconds of the step."""


@dataclass(frozen=True, kw_only=True)
class Waits:
    """The last steps, and how long they have starved."""

    last_step: int = 0
    fetched: bool = False
    """Whether any fetch time was told, be it of a step that nobody could time."""
    told: bool = False
    ranks: tuple[int, ...] = ()
    rows: tuple[Row, ...] = ()
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


class Loader(Detector[Waits]):
    """D17 (module docstring)."""

    name = outcome.Detector.LOADER
    sentence = (
        "Over `window_steps` steps (or the last 16 and more that fill `over_s`), a rank's loader"
        " took more than `warn_share` of the rank's step time: warn, and again once it has been"
        " below four fifths of that; and the slowest loader of each step more than `halt_share`"
        " for `over_s` seconds of training: halt."
        " The rank is named where no other waits half as long. One fetch in sixteen, the longest,"
        " is left out of both sums, so that no single stall and no handful of them is starvation."
    )
    State = Waits
    steps = True

    def observe_step(self, own: Waits, step: Step, view: View) -> Seen[Waits]:
        """Observe how long each rank fetched, and how long its step took."""
        ranks = tuple(sorted(step.ranks))
        if step.step <= own.last_step or ranks != own.ranks:
            own = Waits(fetched=own.fetched, told=own.told, ranks=ranks)
        fetched = own.fetched or any(fetched_s(said) is not None for said in step.ranks.values())
        own = replace(own, last_step=step.step, fetched=fetched)
        row = _row(step)
        if row is None:
            return own, []
        own = replace(
            own,
            told=True,
            rows=(*own.rows, row)[-self.settings.window_steps :],
            due=own.due + 1,
            trained_s=own.trained_s + max(took_s for _, took_s in row),
        )
        by_time = own.trained_s - own.looked_s >= self.settings.over_s / LOOKS
        by_steps = own.due >= max(1, self.settings.window_steps // LOOKS)
        if not (by_time or by_steps) or not self._enough(own):
            return own, []
        return self._looked(replace(own, due=0, looked_s=own.trained_s), step, view)

    def _enough(self, own: Waits) -> bool:
        if len(own.rows) >= self.settings.window_steps:
            return True
        total_s = added(row[0][1] for row in own.rows)
        return len(own.rows) >= FEW_STEPS and total_s >= self.settings.over_s

    def _looked(self, own: Waits, step: Step, view: View) -> Seen[Waits]:
        """Compare the hungriest rank's share, and that of the slowest fetches, with the limits."""
        shares = [_share([row[place] for row in own.rows]) for place in range(len(own.ranks))]
        share = max(shares)
        rank, findings = own.ranks[shares.index(share)], list[Finding]()
        alike = len(shares) > 1 and sum(each >= ALIKE_SHARE * share for each in shares) > 1
        accused = None if alike else rank
        who = "more than one rank" if alike else f"rank {rank}"
        warn = share > self.settings.warn_share
        if warn and not own.warned:
            text = f"{who} spends {share:.0%} of its time waiting for data"
            findings.append(
                self._finding(Severity.WARN, accused, share, text, step.tick.ts, step, view)
            )
        still = own.warned and share > CLEARED_SHARE * self.settings.warn_share
        own = replace(own, warned=warn or still)
        slowest = _share([max(row) for row in own.rows]) if warn else share
        if slowest <= self.settings.halt_share:
            return replace(own, starved=False, halted=False), findings
        if not own.starved:
            own = replace(
                own,
                starved=True,
                since_step=step.step,
                since_ts=step.tick.ts,
                since_s=own.trained_s,
            )
        held_s = own.trained_s - own.since_s
        if held_s >= self.settings.over_s and not own.halted:
            own = replace(own, halted=True)
            text = f"{who} has kept {slowest:.0%} of the time waiting for data for {held_s:.0f} s"
            findings.append(
                self._finding(Severity.HALT, accused, slowest, text, own.since_ts, step, view)
            )
        return own, findings

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


def fetched_s(row: RankStep) -> float | None:
    """Return the seconds that a rank's step waited for its loader, as its lines say."""
    if row.progress is not None and row.progress.dt_fetch_s is not None:
        return row.progress.dt_fetch_s
    return None if row.sections is None else row.sections.data


def _share(times: list[tuple[float, float]]) -> float:
    """Return the share of fetching, without the steps of the longest fetches."""
    times.sort()
    kept = times[: len(times) - max(1, len(times) // STALLS_OF)]
    total_s = added(took_s for _, took_s in kept)
    return added(fetch_s for fetch_s, _ in kept) / total_s if total_s else 0.0
