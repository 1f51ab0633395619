"""Split the wall time of a run into parts, by its lifecycle and the lines of a rank.

The parts sum to the wall time and none is negative. If a rank reports more time than there was, all
of it is unknown. A step counts as lost in the attempt whose work was thrown away.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from gonogo.contract.goodput import Part
from gonogo.goodput.rank_account import STEP, RankAccount

Seconds = dict[Part, float]
SLACK_S = 0.001
"""Tolerance for rounded stamps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTimes:
    """Times of a run, Unix seconds."""

    opened_at: float
    """When it was queued, or the run before it had ended."""
    placed_at: float | None
    """When a worker or its engine took it; None: it is queued."""
    ended_at: float | None
    """None: it is running."""
    found_at: float | None = None
    """Time of the first finding that halts."""
    again: bool = False
    """Whether it is a later attempt of its phase."""
    completed: bool = False
    unseen_end: bool = False
    """Whether nobody saw its end: it may have trained on after its last line."""
    resumed_steps: tuple[int, ...] = ()
    """The step after which each later attempt of its phase resumed; 0: from the start."""


def account_run(times: RunTimes, account: RankAccount | None, now: float) -> Seconds:
    """Return a run's seconds by part; their sum is its wall time.

    Args:
        times: its lifecycle.
        account: account of one of its ranks; None: no lines.
        now: Unix seconds; the end of a running run.
    """
    seconds = dict.fromkeys(Part, 0.0)
    end = now if times.ended_at is None else times.ended_at
    wall_s = max(0.0, end - times.opened_at)
    placed = end if times.placed_at is None else times.placed_at
    seconds[Part.QUEUE] = _within(placed - times.opened_at, wall_s)
    held_s = wall_s - seconds[Part.QUEUE]
    start = Part.RESTART if times.again else Part.START
    if account is None or account.first_ts is None:
        found_s = held_s if times.found_at is None else times.found_at - placed
        seconds[start] = _within(found_s, held_s)
        seconds[Part.HALT] = held_s - seconds[start]
        return seconds
    if account.total_s > held_s + SLACK_S:
        seconds[Part.UNKNOWN] = held_s
        return seconds
    spare_s = max(0.0, held_s - account.total_s)
    before_s = _within(account.first_ts - placed, spare_s)
    seconds[start] += before_s
    for part, value in account.seconds.items():
        seconds[start if part is Part.START else part] += value
    _add(seconds, _steps(times, account))
    _add(seconds, _tail(times, account, start, spare_s - before_s))
    return seconds


def _steps(times: RunTimes, account: RankAccount) -> Seconds:
    """Split the time of the steps by whether their work was kept."""
    kept_step = _kept_step(times, account)
    if kept_step is None:
        return {Part.PRODUCTIVE: account.step_s}
    low_s, high_s = _time_of(account, kept_step)
    return {
        Part.PRESERVED: low_s,
        Part.UNKNOWN: high_s - low_s,
        Part.REPEATED: account.step_s - high_s,
    }


def _kept_step(times: RunTimes, account: RankAccount) -> int | None:
    """Return the last step whose work was kept; None: all of them."""
    if times.resumed_steps:
        return min(times.resumed_steps)
    if times.ended_at is None or times.completed:
        return None
    return account.marks[-1].step if account.marks else 0


def _time_of(account: RankAccount, step: int) -> tuple[float, float]:
    """Return the least and the most seconds that the steps up to one may have taken."""
    base = account.base_step or 0
    if step <= base:
        return 0.0, 0.0
    if step >= account.step:
        return account.step_s, account.step_s
    known = [(base, 0.0), *((mark.step, mark.step_s) for mark in account.marks)]
    low_s = max(value for at, value in known if at <= step)
    high_s = min((value for at, value in known if at >= step), default=account.step_s)
    return low_s, max(low_s, high_s)


def _tail(times: RunTimes, account: RankAccount, start: Part, after_s: float) -> Seconds:
    """Split the part that no line closed, and the time after the last line."""
    all_s = account.pending_s + after_s
    prepares = account.part in (Part.START, Part.RESTART)
    if times.ended_at is None:
        if prepares:
            return {start: all_s}
        if account.part is STEP:
            return {Part.UNKNOWN: all_s}
        return {account.part: account.pending_s, Part.UNKNOWN: after_s}
    if times.found_at is not None:
        stall_s = _within(times.found_at - account.moved_ts, all_s)
        return {Part.STALL: stall_s, Part.HALT: all_s - stall_s}
    if times.unseen_end:
        return {Part.UNKNOWN: all_s}
    if prepares:
        return {start: account.pending_s, Part.HALT: after_s}
    return {Part.HALT: all_s}


def account_experiment(
    opened_at: float,
    ended_at: float | None,
    runs: Iterable[tuple[float, float, Seconds]],
    now: float,
) -> Seconds:
    """Return an experiment's seconds by part; their sum is its wall time.

    Args:
        opened_at: when it was submitted, Unix seconds.
        ended_at: None: it is running.
        runs: (opened, ended or now, seconds by part) of each, in order and without overlap.
        now: Unix seconds.
    """
    seconds = dict.fromkeys(Part, 0.0)
    cursor, first = opened_at, True
    for opened, ended, parts in runs:
        seconds[Part.QUEUE if first else Part.DECISION] += max(0.0, opened - cursor)
        _add(seconds, parts)
        cursor, first = max(cursor, ended), False
    end = now if ended_at is None else ended_at
    seconds[Part.QUEUE if first else Part.DECISION] += max(0.0, end - cursor)
    return seconds


def _add(seconds: Seconds, more: Mapping[Part, float]) -> None:
    for part, value in more.items():
        seconds[part] += value


def _within(value: float, most: float) -> float:
    return min(max(0.0, value), most)
