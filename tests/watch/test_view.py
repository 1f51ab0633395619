"""What a detector may read: how processes are and have been, and which ranks are silent."""

from typing import Any

import pytest

from gonogo.contract.records import ProcessState, RankProbe, StackProbe, Tick
from gonogo.timeline.rank import RankStream
from gonogo.watch.view import Process, Processes, Run, View, seen_by
from tests.watch.standing import NOW, standing
from tests.watch.streams import order_of

T0 = 100.0
ALIVE, STOPPED, DEAD = ProcessState.ALIVE, ProcessState.STOPPED, ProcessState.DEAD


def probed(*probes: tuple[float, ProcessState]) -> Processes:
    """What is known of rank 0 after these probes: moment → state."""
    found = Processes()
    for number, (mono, state) in enumerate(probes):
        probe = RankProbe(rank=0, pid=1, state=state)
        found = seen_by(found, Tick(n=number, mono=mono, ts=mono, ranks=[probe]))
    return found


def read(*stacks: tuple[float, StackProbe]) -> Processes:
    """The same after these readings of its stack."""
    found = Processes()
    for number, (mono, stack) in enumerate(stacks):
        found = seen_by(found, Tick(n=number, mono=mono, ts=mono, stacks=[stack]))
    return found


def stack(digest: str | None = "a", **told: Any) -> StackProbe:
    return StackProbe(rank=0, digest=digest, **told)


def test_a_process_is_dead_since_it_was_first_seen_dead() -> None:
    assert probed((T0, ALIVE)).of(0).dead_mono is None
    found = probed((T0, ALIVE), (T0 + 1.0, DEAD), (T0 + 2.0, DEAD), (T0 + 3.0, ALIVE)).of(0)
    assert found.dead
    assert not found.lost_peer
    assert found.dead_mono == T0 + 1.0


def test_another_process_has_come_since_it_was_first_seen() -> None:
    found, seen = Processes(), []
    for number, pid in enumerate((None, 7, None, 7, 8, 8, None, 9)):
        probe = RankProbe(rank=0, pid=pid, state=ALIVE)
        found = seen_by(found, Tick(n=number, mono=T0 + number, ts=0.0, ranks=[probe]))
        seen.append(found.of(0).renewed_mono)
    assert seen == [None] * 4 + [T0 + 4] * 3 + [T0 + 7]


def test_what_is_told_of_an_end_is_kept_whatever_comes_after() -> None:
    told = RankProbe(rank=0, state=DEAD, code=3, signal=0, exit_at=7.0, env={"a": "b"})
    found = seen_by(Processes(), Tick(n=0, mono=T0, ts=T0, ranks=[told]))
    later = RankProbe(rank=0, state=DEAD, lost_peer=True)
    found = seen_by(found, Tick(n=1, mono=T0 + 1.0, ts=T0, ranks=[later]))
    assert not seen_by(Processes(), Tick(n=0, mono=T0, ts=T0, ranks=[told])).of(0).lost_peer
    again = found.of(0)
    assert (again.code, again.signal, again.exit_at, again.env) == (3, 0, 7.0, {"a": "b"})
    assert again.lost_peer
    assert seen_by(found, Tick(n=2, mono=T0 + 2.0, ts=T0, ranks=[told])).of(0).lost_peer


@pytest.mark.parametrize("state", [STOPPED, ProcessState.UNINTERRUPTIBLE, DEAD])
def test_a_process_is_held_since_the_first_probe_running_that_says_so(state: ProcessState) -> None:
    found = probed((T0, ALIVE), (T0 + 1.0, state), (T0 + 2.0, state)).of(0)
    assert found.held_s(T0 + 4.0) == 3.0
    assert found.held_s(T0) == 0.0, "a clock that is behind"
    assert probed((T0, ALIVE)).of(0).held_s(T0 + 4.0) == 0.0


@pytest.mark.parametrize(
    ("apart_s", "later_s", "stands"),
    [(5.0, 0.0, True), (4.9, 0.0, False), (5.0, 30.0, True), (5.0, 30.1, False)],
)
def test_a_rank_stands_by_two_equal_readings_five_seconds_apart_and_of_late(
    apart_s: float, later_s: float, stands: bool
) -> None:
    found = read((T0, stack()), (T0 + apart_s, stack()))
    assert found.stands(0, T0, T0 + apart_s + later_s) is stands


def test_a_rank_stands_only_by_two_equal_readings() -> None:
    assert not read((T0, stack())).stands(0, T0, T0)
    assert not read((T0, stack("a")), (T0 + 9.0, stack("b"))).stands(0, T0, T0 + 9.0)
    assert not read((T0, stack(None)), (T0 + 9.0, stack(None))).stands(0, T0, T0 + 9.0)
    both = read((T0, stack()), (T0 + 9.0, stack()))
    assert both.stands(0, T0, T0 + 9.0)
    assert not both.stands(0, T0 + 0.1, T0 + 9.0), "it moved since the first reading"


def test_the_last_two_readings_count() -> None:
    found = read((T0, stack("a")), (T0 + 1.0, stack("b")), (T0 + 7.0, stack("b")))
    assert found.stands(0, T0, T0 + 7.0)
    assert [row.mono for row in found.stacks[0]] == [T0 + 1.0, T0 + 7.0]


@pytest.mark.parametrize(
    ("first_s", "last_s", "apart_s", "idles"),
    [
        (1.0, 1.2, 5.0, True), (1.0, 1.25, 5.0, False), (1.0, 1.3, 5.0, False),
        (None, 1.0, 5.0, False), (1.0, None, 5.0, False), (1.0, 1.0, 0.0, False),
    ],
)  # fmt: skip
def test_a_rank_idles_below_a_twentieth_of_a_core(
    first_s: float | None, last_s: float | None, apart_s: float, idles: bool
) -> None:
    found = read((T0, stack(cpu_s=first_s)), (T0 + apart_s, stack(cpu_s=last_s)))
    assert found.idles(0) is idles
    assert not read((T0, stack(cpu_s=0.0))).idles(0), "one reading"


@pytest.mark.parametrize("waiting", [True, False, None])
def test_a_rank_waits_as_its_last_reading_shows(waiting: bool | None) -> None:
    found = read((T0, stack(waiting=not waiting)), (T0 + 1.0, stack(waiting=waiting)))
    assert found.waits(0, T0 + 1.0) is waiting
    assert found.waits(0, T0 + 1.1) is None
    assert Processes().waits(0, T0) is None


def view_of(*streams: RankStream, **known: Any) -> View:
    """What is known of ranks that are suspect after half a minute of silence."""
    return View(run=Run(order=order_of({})), streams={row.rank: row for row in streams}, **known)


def stopped(for_s: float) -> Processes:
    return Processes(ranks={0: Process(state=STOPPED, held_mono=NOW - for_s)})


def test_a_watcher_was_away_if_its_tick_is_more_than_fifteen_seconds_late() -> None:
    ticks = [Tick(n=0, mono=T0, ts=T0, late_s=late_s) for late_s in (15.0, 15.25)]
    assert list(map(view_of().is_late, ticks)) == [False, True]


def test_a_process_is_held_once_it_has_been_stopped_for_five_seconds() -> None:
    held = [view_of(processes=stopped(for_s)).held(0, NOW) for for_s in (4.75, 5.0)]
    assert held == [False, True]


@pytest.mark.parametrize(("later_s", "speaks_on"), [(15.0, False), (15.25, True)])
def test_a_rank_speaks_on_that_was_heard_more_than_half_the_limit_later(
    later_s: float, speaks_on: bool
) -> None:
    lost = standing("backward", for_s=40.0, heard_mono=NOW - 40.0)
    peer = standing("backward", for_s=40.0, rank=1, heard_mono=lost.heard_mono + later_s)
    assert view_of(lost, peer).speak_on([lost, peer], [peer]) is speaks_on


@pytest.mark.parametrize(
    ("stood_s", "known", "silent_s"),
    [
        (30.0, {}, 0.0), (900.0, {}, 900.0), (900.25, {}, 0.0),
        (900.0, {"processes": stopped(60.0)}, 0.0),
        (300.25, {"skipped_s": 600.0, "skipped_at": NOW - 300.25}, 0.0),
        (900.0, {"skipped_s": 600.0, "skipped_at": NOW - 901.0}, 900.0),
    ],
    ids=["heard", "silent", "too long", "stopped", "too long in all", "before the last step"],
)  # fmt: skip
def test_the_clock_stops_for_a_silence_of_all_for_fifteen_minutes_without_a_step(
    stood_s: float, known: dict[str, Any], silent_s: float
) -> None:
    row = standing("backward", for_s=stood_s, heard_mono=NOW - stood_s)
    assert view_of(row, **known).all_silent_s(NOW) == silent_s
