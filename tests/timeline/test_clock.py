"""Tests of active time."""

import pytest

from gonogo.contract.heartbeat import Heartbeat
from gonogo.contract.records import Tick
from gonogo.timeline.timeline import ActiveClock, RankClock

Absences = tuple[tuple[float, float], ...]


@pytest.mark.parametrize(
    ("absences", "active_s"),
    [
        ((), 100.0), (((150.0, 40.0),), 60.0), (((120.0, 40.0),), 100.0), (((155.0, 70.0),), 30.0),
        (((154.0, 70.0),), 100.0), (((215.0, 90.0),), 10.0), (((216.0, 90.0),), 100.0),
        (((210.0, 115.0),), 100.0), (((210.0, 114.0),), 0.0),
        (((130.0, 20.0), (190.0, 30.0)), 50.0), (((130.0, 20.0), (200.0, 96.0)), 80.0),
    ],
    ids=[
        "none", "within", "began long before the last line", "fell asleep 15 s before",
        "16 s before", "woke 15 s before the watcher", "16 s before",
        "shorter by as much as they wake apart", "shorter by less", "two of them",
        "only one of them",
    ],
)  # fmt: skip
def test_a_gap_between_two_lines_is_shorter_by_the_suspensions_in_it(
    absences: Absences, active_s: float
) -> None:
    clock = RankClock(boot="a", last=100.0, ahead_s=0.0, pending=absences)
    clock.wake(200.0)
    assert 100.0 - clock.suspended_s == active_s


def tick(mono: float, late_s: float = 0.0) -> Tick:
    return Tick(n=1, mono=mono, ts=0.0, late_s=late_s)


def line(own: float, boot: str = "a") -> Heartbeat:
    told = {"pid": 1, "rank": 0, "seq": 1, "step": 1, "msg": "alive"}
    return Heartbeat(ts=0.0, mono=own, boot=boot, **told)


@pytest.mark.parametrize(("late_s", "active"), [(15.0, 1300.0), (15.5, 1284.5), (300.0, 1000.0)])
def test_the_watcher_s_clock_stops_while_it_is_away(late_s: float, active: float) -> None:
    clock = ActiveClock()
    assert clock.advance(tick(1000.0)).mono == 1000.0
    assert clock.advance(tick(1300.0, late_s)).mono == active
    assert clock.active(tick(1310.0)).mono == active + 10.0


@pytest.mark.parametrize(
    ("spoke", "suspended_s"), [((), 300.0), ((5100.0,), 0.0), ((5010.0,), 296.0)]
)
def test_a_rank_that_writes_a_line_meanwhile_is_not_suspended(
    spoke: tuple[float, ...], suspended_s: float
) -> None:
    """Its clock is 4000 s ahead of the watcher's, and both fall asleep up to 15 s apart."""
    clock = ActiveClock()
    clock.line(line(5000.0), 1000.0)
    now = clock.advance(tick(1305.0, 300.0)).mono
    for own in (*spoke, 5306.0):
        found = clock.line(line(own), now)
    assert found.mono == 5306.0 - suspended_s
    assert clock.apart_s(0) == 300.0 - suspended_s


def test_another_process_of_a_rank_has_its_own_clock() -> None:
    clock = ActiveClock()
    clock.line(line(5000.0), 1000.0)
    now = clock.advance(tick(1305.0, 300.0)).mono
    assert clock.line(line(5306.0), now).mono == 5006.0
    assert clock.line(line(70.0, boot="b"), now + 1.0).mono == 70.0


def test_sixty_four_absences_of_a_silent_rank_are_kept() -> None:
    clock = ActiveClock()
    clock.line(line(0.0), 0.0)
    for number in range(1, 71):
        clock.advance(tick(100.0 * number, 20.0))
    assert [back for back, _ in clock.ranks[0].pending] == [100.0 * n for n in range(7, 71)]


def test_a_later_line_ends_a_pending_absence() -> None:
    clock = RankClock(boot="a", last=0.0, ahead_s=0.0, pending=((115.0, 20.0), (116.0, 20.0)))
    clock.wake(100.0)
    assert clock.pending == ((116.0, 20.0),)


def test_a_delayed_line_does_not_move_its_clock() -> None:
    clock = ActiveClock()
    for own, mono, ahead_s in (
        (5000.0, 1000.0, 4000.0),
        (5100.0, 1115.0, 4000.0),
        (5200.0, 1214.0, 3986.0),
    ):
        clock.line(line(own), mono)
        assert clock.ranks[0].ahead_s == ahead_s


def test_without_absences_no_clock_is_apart() -> None:
    assert ActiveClock().apart_s(0) == 0.0
