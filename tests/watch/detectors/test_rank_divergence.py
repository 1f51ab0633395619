"""D6: the culprit is the rank behind."""

from dataclasses import replace
from typing import Any

import pytest

from gonogo.contract.finding import Severity
from gonogo.contract.outcome import Detector as Name
from gonogo.contract.tick import ProcessState, StackProbe, Tick
from gonogo.watch import fold, start
from gonogo.watch.detectors.rank_divergence import (
    Culprit,
    RankDivergence,
    acts_for_all,
    blame_who_left,
    freed_mono,
    late_text,
    name_culprit,
    stray_text,
    went_on_mono,
)
from gonogo.watch.processes import Process, Processes, Stack
from gonogo.watch.stream import RankStream
from gonogo.watch.view import Run, View, found
from tests.watch.standing import NOW, standing
from tests.watch.streams import EPOCH, T0, Rank, order_of

Position = tuple[int, int, int | None]


def view_of(positions: list[Position], **probes: Any) -> View:
    """Ranks at (step, section_seq, collective_seq), and what probes tell of them."""
    state = start(order_of(world_size=len(positions)))
    beats = {}
    for number, (step, section_seq, collective_seq) in enumerate(positions):
        rank = Rank(number, mono=T0, alive_every_s=1)
        rank.step, rank.section_seq, rank.section = step, section_seq, "backward"
        rank.say("alive", collective_seq=collective_seq)
        beats[number] = [line.raw for line in rank.lines]
    tick = Tick.model_validate({"n": 1, "mono": T0, "ts": EPOCH, **probes})
    state, _ = fold(state, tick, beats)
    return state.view


@pytest.mark.parametrize(
    ("positions", "culprit"),
    [
        ([(5, 9, 9), (4, 9, 9)], 1),
        ([(4, 8, 9), (4, 9, 9)], 0),
        ([(4, 8, 9), (4, 9, 1)], 1),
        ([(4, 8, 1), (4, 9, None)], 0),
        ([(4, 9, 3), (4, 9, 2)], 1),
        ([(4, 9, 3), (4, 9, 3), (4, 9, 2), (5, 0, 0)], 2),
    ],
    ids=[
        "step",
        "section",
        "collectives before sections",
        "one counts no collective",
        "collective",
        "four ranks",
    ],
)
def test_the_lowest_position_is_the_culprit(positions: list[Position], culprit: int) -> None:
    view = view_of(positions)
    found = name_culprit(view, view.active(), T0)
    assert found is not None
    assert (found.stream.rank, found.named) == (culprit, True)


def test_where_nothing_tells_the_ranks_apart_no_rank_is_named() -> None:
    view = view_of([(4, 9, 3), (4, 9, 3), (5, 1, 4)])
    found = name_culprit(view, view.active(), T0)
    assert found is not None
    assert not found.named
    assert found.stream.position() == (4, 9, 3)
    assert str(found) == "one of ranks 0, 1"
    alike = name_culprit(view, view.active()[:2], T0)
    assert str(alike) == "a rank that nothing tells apart", "no other is known to be well"


@pytest.mark.parametrize(("behind", "told"), [(8, "one of ranks 0, 1, 2, 3, 4, 5, 6, 7"), (9, "a")])
def test_few_ranks_that_are_behind_alike_are_listed(behind: int, told: str) -> None:
    view = view_of([(4, 9, 3)] * behind + [(5, 1, 4)])
    assert str(name_culprit(view, view.active(), T0)).startswith(told)


def test_one_rank_that_is_behind_is_told_where_another_node_may_be_what_it_waits_for() -> None:
    culprit = Culprit(standing("backward", for_s=1.0), named=False, unheard=(1,), tied=(0,))
    assert str(culprit) == "one of ranks 0 (nothing is heard of node 1)"


def test_on_a_tie_the_rank_that_fell_silent_is_the_culprit() -> None:
    view = view_of([(4, 9, 3), (4, 9, 3)])
    view.streams[0].heard_mono += 60.0
    found = name_culprit(view, view.active(), T0 + 60.0)
    assert found is not None
    assert (found.stream.rank, found.named) == (1, True)


def test_on_a_tie_the_rank_that_does_not_wait_is_the_culprit() -> None:
    stacks = [{"rank": 0, "waiting": True}, {"rank": 1, "waiting": False}]
    view = view_of([(4, 9, 3), (4, 9, 3)], stacks=stacks)
    found = name_culprit(view, view.active(), T0)
    assert found is not None
    assert (found.stream.rank, found.named) == (1, True)


def test_a_stack_outside_a_collective_does_not_beat_the_position() -> None:
    stacks = [{"rank": 0, "waiting": False}, {"rank": 1, "waiting": True}]
    view = view_of([(4, 9, 3), (4, 9, 2)], stacks=stacks)
    found = name_culprit(view, view.active(), T0)
    assert found is not None
    assert (found.stream.rank, found.named) == (1, True)


@pytest.mark.parametrize("state", ["stopped", "uninterruptible"])
def test_a_held_rank_is_the_culprit_by_its_state(state: str) -> None:
    view = view_of([(4, 9, 3), (4, 9, 4)], ranks=[{"rank": 1, "state": state}])
    for held_s, culprit in ((0.5, 0), (30.0, 1)):
        view.streams[0].heard_mono = T0 + held_s  # else a disk may hold both
        found = name_culprit(view, view.active(), T0 + held_s)
        assert found is not None
        assert (found.stream.rank, found.named) == (culprit, True)


def test_nobody_is_named_among_nobody() -> None:
    assert name_culprit(view_of([(1, 1, 1)]), [], T0) is None


def told(only: Any, asked_mono: Any = T0 + 1.0) -> dict[str, Any]:
    return {"observations": {"collectives": {"only": only, "asked_mono": asked_mono}}}


def named(view: View) -> int | None:
    found = name_culprit(view, view.active(), T0)
    return found.stream.rank if found is not None and found.named else None


@pytest.mark.parametrize("only", [0, 1, 2])
def test_a_rank_alone_in_its_collective_is_the_culprit_wherever_the_others_stand(only: int) -> None:
    positions = [(4, 9, 3), (4, 9, 3), (4, 8, 3)]
    assert named(view_of(positions)) == 2
    assert named(view_of(positions, **told(only))) == only


@pytest.mark.parametrize(
    "observations",
    [
        told(None),
        told(7),
        told("0"),
        told(0, asked_mono=None),
        told(0, asked_mono="now"),
        told(0, asked_mono=T0 - 1.0),
        {"observations": {"collectives": None}},
        {"observations": {"collectives": [0]}},
        {"observations": {"stacks": {"only": 0}}},
    ],
)
def test_an_observation_that_is_stale_or_names_nobody_changes_nothing(
    observations: dict[str, Any],
) -> None:
    assert named(view_of([(4, 9, 3), (4, 9, 2)], **observations)) == 1


def late(*ranks: Any, asked_mono: float = T0 + 1.0, **probes: Any) -> dict[str, Any]:
    """What the flight recorders of all ranks tell of those that have not come."""
    said = {"only": None, "behind": list(ranks), "asked_mono": asked_mono, "text": "they did not"}
    return {"observations": {"collectives": said}, **probes}


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_on_a_tie_the_rank_that_has_not_come_to_where_the_others_stand_is_the_culprit(
    rank: int,
) -> None:
    tie: list[Position] = [(4, 9, 0)] * 3
    assert named(view_of(tie)) is None
    view = view_of(tie, **late(rank))
    assert named(view) == rank
    assert [late_text(view, view.streams[row]) for row in range(3)] == [
        ": they did not" if row == rank else "" for row in range(3)
    ]


def test_who_has_not_come_does_not_beat_the_position() -> None:
    assert named(view_of([(4, 9, 3), (4, 9, 2), (4, 9, 3)], **late(0))) == 1


@pytest.mark.parametrize(
    "probes",
    [
        late(),
        late(7),
        late(1, 7),
        late(1, asked_mono=T0 - 1.0),
        late(1, stacks=[{"rank": 1, "waiting": True}, {"rank": 0, "waiting": False}]),
        {"observations": {"collectives": {"behind": 1, "asked_mono": T0 + 1.0}}},
        {"observations": {"collectives": {"behind": [1]}}},
    ],
    ids=["nobody", "another", "one of two", "stale", "stacks say otherwise", "no list", "no time"],
)
def test_nobody_is_named_by_dumps_that_name_nobody_or_that_other_evidence_contradicts(
    probes: dict[str, Any],
) -> None:
    assert named(view_of([(4, 9, 0), (4, 9, 0), (4, 9, 0)], **probes)) is None


def test_of_several_that_have_not_come_none_is_named_and_all_are_told() -> None:
    view = view_of([(4, 9, 0)] * 5, **late(1, 3))
    found = name_culprit(view, view.active(), T0)
    assert found is not None
    assert (found.named, found.stream.rank in (1, 3)) == (False, True)
    assert late_text(view, found.stream) == ": they did not"


def test_one_that_may_act_for_all_is_named_where_the_others_are_seen_to_wait_for_it() -> None:
    """Rank 0 evaluates, as rank 1 usually does, too: that rank 1 waits for it, the dumps tell."""
    for probes, culprit in (({}, None), (late(0), 0), (late(1), 1)):
        view = view_of([(4, 9, 0), (4, 9, 0)], **probes)
        acting, behind = view.streams[0], view.streams[1]
        acting.section, acting.section_seq = "eval", 10
        behind.section, behind.section_times = None, (("eval", 2.0),)
        assert named(view) == culprit


def test_a_held_rank_is_the_culprit_whatever_its_collective() -> None:
    held = [{"rank": 1, "state": "stopped"}]
    view = view_of([(4, 9, 3), (4, 9, 4)], ranks=held, **told(0))
    found = name_culprit(view, view.active(), T0 + 5.0)
    assert found is not None
    assert found.stream.rank == 1


@pytest.mark.parametrize(
    ("step_s", "later_s", "culprit"),
    [(1.0, 5.0, 2), (1.0, 5.5, 1), (10.0, 15.0, 2), (10.0, 15.5, 1)],
    ids=["at once", "while it stood", "within long steps", "after a long step and a half"],
)
def test_who_is_stopped_after_another_had_stood_for_long_is_not_why(
    step_s: float, later_s: float, culprit: int
) -> None:
    """Rank 1 stands in its forward; rank 2 waits a step ahead, and somebody looks at it."""
    since = NOW - 60.0
    streams = [
        standing("backward", for_s=60.0, rank=0, step_s=step_s),
        standing("forward", for_s=60.0, rank=1, step=40, step_s=step_s),
        standing("backward", for_s=60.0, rank=2, step_s=step_s),
    ]
    held = Process(state=ProcessState.STOPPED, held_mono=since + later_s)
    view = View(run=Run(order=order_of({}, world_size=3)), processes=Processes(ranks={2: held}))
    view.streams = {row.rank: row for row in streams}
    found = name_culprit(view, streams, NOW)
    assert found is not None
    assert (found.stream.rank, found.named) == (culprit, True)
    tied = [streams[0], streams[2]]
    beside = name_culprit(view, tied, NOW)
    assert beside is not None
    assert beside.stream.rank == 2, "of equal ranks the one that is held is the culprit"


def test_what_is_long_is_less_where_the_plan_suspects_sooner() -> None:
    for later_s, culprit in ((2.0, 1), (2.5, 0)):
        streams = [
            standing("forward", for_s=60.0, step=40),
            standing("backward", for_s=60.0, rank=1),
        ]
        held = Process(state=ProcessState.STOPPED, held_mono=NOW - 60.0 + later_s)
        order = order_of({"stall": {"suspect_s": 2}})
        view = View(run=Run(order=order), processes=Processes(ranks={1: held}))
        view.streams = {row.rank: row for row in streams}
        found = name_culprit(view, streams, NOW)
        assert found is not None
        assert found.stream.rank == culprit


def test_before_its_first_step_has_ended_a_rank_that_entered_no_collective_is_behind() -> None:
    first = {"step": 1, "completed": 0, "completed_steps": 0}
    untold = standing("backward", for_s=9.0, rank=1, **first)
    told = standing("backward", for_s=9.0, rank=1, tells_collectives=True, **first)
    peer = standing("backward", for_s=9.0, collective_seq=3, tells_collectives=True, **first)
    assert of_streams(peer, untold)[1] is False
    assert of_streams(peer, told) == (1, True)


def in_step(
    rank: int, sections: int, usual: int, collectives: int = 0, each: int = -1, **told: Any
) -> RankStream:
    """A rank in step 41, so many sections into it; a step of it usually has `usual`."""
    counts = tuple((step, usual, each) for step in (38, 39, 40))
    place = {"section_seq": sections, "step_counts": counts, "collective_seq": collectives}
    return standing("backward", for_s=10.0, rank=rank, **{**place, **told})


def of_streams(*streams: RankStream) -> tuple[int, bool]:
    view = View(run=Run(order=order_of({})), streams={row.rank: row for row in streams})
    found = name_culprit(view, streams, NOW)
    assert found is not None
    return found.stream.rank, found.named


def test_a_rank_that_names_fewer_sections_in_every_step_is_not_behind_by_those() -> None:
    assert of_streams(in_step(0, 3, 5), in_step(1, 2, 5)) == (1, True)
    assert of_streams(in_step(0, 3, 5), in_step(1, 2, 4))[1] is False
    assert of_streams(in_step(0, 3, 5), in_step(1, 1, 4)) == (1, True)


def test_of_ranks_that_nothing_tells_apart_one_that_fetches_may_be_what_they_wait_for() -> None:
    fetches = standing("data", for_s=50.0, rank=0)
    waits = standing("log", for_s=10.0, rank=1)
    assert of_streams(fetches, waits) == (0, False)


@pytest.mark.parametrize(
    ("ahead", "ago_s"),
    [(-1, None), (0, 5.0), (1, 5.0), (2, 6.0), (9, 13.0), (41, 45.0), (42, None)],
)
def test_a_step_that_a_peer_ended_counts_while_it_may_have_been_waited_for(
    ahead: int, ago_s: float | None
) -> None:
    """Steps of a second; how long forty of them took is known."""
    waits = standing("log", for_s=320.0, rank=1, advanced_mono=NOW - 1.0)
    peer = standing(None, for_s=5.0, step=41 + ahead)
    assert went_on_mono(waits, [waits, peer]) == (0.0 if ago_s is None else NOW - ago_s)


def test_of_ranks_that_nothing_tells_apart_the_last_that_moved_counts() -> None:
    first = in_step(0, 2, 4, section_mono=NOW - 5.0)
    assert of_streams(first, in_step(1, 3, 5, section_mono=NOW - 80.0)) == (0, False)
    late = in_step(0, 2, 4, section_mono=NOW - 80.0)
    assert of_streams(late, in_step(1, 3, 5, section_mono=NOW - 5.0)) == (1, False)


def test_a_rank_that_was_started_anew_alone_is_not_behind_by_its_collectives() -> None:
    """It counts them from 0 again, and may tell them between its steps' ends alone."""
    peer, anew = in_step(0, 3, 4, 900), in_step(1, 3, 4, 5, from_step=30)
    assert of_streams(peer, anew)[1] is False
    assert of_streams(in_step(0, 1, 4, 900), anew) == (0, True)
    assert of_streams(peer, in_step(1, 3, 4, 5)) == (1, True)
    ended = in_step(0, 3, 4, 900, ended_at=(40, 896)), in_step(1, 3, 4, 5, ended_at=(40, 2))
    assert of_streams(ended[0], replace(ended[1], from_step=30)) == (1, True)


def test_collectives_are_counted_from_the_last_step_that_told_them() -> None:
    """A rank of a pipeline enters other collectives, so their sum says nothing."""
    stage0 = in_step(0, 3, 4, 900, ended_at=(40, 896))
    stage1 = in_step(1, 3, 4, 450, ended_at=(40, 447))
    assert of_streams(stage0, stage1) == (1, True)
    uneven = in_step(1, 3, 4, 450, ended_at=(40, 447), each=3)
    assert of_streams(in_step(0, 3, 4, 900, ended_at=(40, 896), each=4), uneven)[1] is False
    untold = in_step(1, 3, 4, 895, ended_at=(39, 890))
    assert of_streams(stage0, untold) == (1, True)


FIRST = {"step": 0, "completed_steps": 0}


def evaluating(rank: int, section: str | None, **told: Any) -> RankStream:
    """A rank between steps 40 and 41, which has evaluated before."""
    place = {"step": 40, "section_times": (("eval", 60.0),), "collective_seq": 0}
    return standing(section, for_s=70.0, rank=rank, **{**place, **told})


def test_who_may_wait_for_one_that_evaluates_is_not_behind() -> None:
    acts = evaluating(0, "eval", section_seq=9)
    assert of_streams(acts, evaluating(1, None, section_seq=8)) == (0, False)
    counts = evaluating(0, "eval", section_seq=9, collective_seq=5)
    assert of_streams(counts, evaluating(1, None, section_seq=8, collective_seq=5)) == (0, False)
    assert of_streams(counts, evaluating(1, None, section_seq=8, collective_seq=4)) == (1, True)
    assert of_streams(counts, evaluating(1, None, section_seq=8, collective_seq=6)) == (0, True)
    silent = evaluating(1, None, section_seq=8, heard_mono=NOW - 40.0)
    assert of_streams(acts, silent) == (1, True)
    assert of_streams(acts, evaluating(1, "log", section_seq=8)) == (1, True)


@pytest.mark.parametrize(("entered", "named"), [(6, True), (5, False)], ids=["waits", "may wait"])
def test_who_waits_in_a_collective_before_its_next_step_waits_for_one_that_evaluates_in_that(
    entered: int, named: bool
) -> None:
    """Both have evaluated before; the one that does so now has opened its step already."""
    acts = evaluating(0, "eval", step=41, section_seq=1, collective_seq=5)
    assert of_streams(acts, evaluating(1, None, collective_seq=entered)) == (0, named)


def test_a_rank_that_is_alone_is_named() -> None:
    assert named(view_of([(4, 9, 3)])) == 0


def test_what_was_asked_when_a_rank_advanced_is_still_true_and_before_it_is_not() -> None:
    positions = [(4, 9, 3), (4, 9, 2)]
    assert named(view_of(positions, **told(0, asked_mono=T0))) == 0
    assert named(view_of(positions, **told(0, asked_mono=T0 - 0.25))) == 1


def test_the_sentence_about_collectives_is_the_one_that_was_told() -> None:
    observed = {"collectives": {"only": 0, "asked_mono": T0, "text": "rank 0 alone entered it"}}
    assert stray_text(view_of([(4, 9, 3)], observations=observed)) == "rank 0 alone entered it"
    assert stray_text(view_of([(4, 9, 3)], **told(0))) == ""
    assert stray_text(view_of([(4, 9, 3)])) == ""


SAVED = (("checkpoint", 9.0),)
SAVES = ("checkpoint",)


@pytest.mark.parametrize(
    ("section", "times_s", "acts", "named"),
    [
        ("checkpoint", (), True, True),
        ("eval", (), True, True),
        ("log", (), None, False),
        ("checkpoint", SAVED, True, False),
        ("eval", SAVED, True, True),
    ],
    ids=["saves", "evaluates", "logs", "all have saved", "others have saved"],
)
def test_one_rank_may_save_or_evaluate_for_all(
    section: str, times_s: tuple[tuple[str, float], ...], acts: bool | None, named: bool
) -> None:
    saver = standing(section, for_s=1.0, completed=40, section_seq=1)
    waiting = standing(None, for_s=1.0, rank=1, section_times=times_s)
    assert (acts_for_all([saver, waiting], [waiting]) is saver) is bool(acts)
    view = view_of([(1, 0, 0)])
    found = name_culprit(view, [saver, waiting], T0)
    assert found is not None
    if named:
        assert (found.stream.rank, found.named) == (0 if acts else 1, True)
    assert found.named is named


@pytest.mark.parametrize(
    ("place", "peer", "named", "leads"),
    [
        ({}, {}, True, 0),
        ({"section_times": (*SAVED, ("eval", 3.0))}, {}, True, 0),
        ({"section": "log"}, {}, False, 1),
        ({}, {"section": "forward"}, False, 0),
        ({}, {"section_times": (("eval", 3.0),)}, False, 0),
    ],
    ids=["evaluates", "again", "logs", "the peer computes", "the peer evaluates, too"],
)
def test_one_that_goes_to_evaluate_straight_from_its_log_may_act_for_all(
    place: dict[str, Any], peer: dict[str, Any], named: bool, leads: int
) -> None:
    """Its peers left theirs for no section: all have been in as many, and came there last.

    Where nobody is named, the time of an evaluation counts that one of them is in.
    """
    saver = standing(**{"section": "eval", "for_s": 70.0, "section_seq": 5, **place})
    waits = standing(**{"section": None, "for_s": 69.0, "rank": 1, "section_seq": 5, **peer})
    found = name_culprit(view_of([(1, 0, 0)]), [saver, waits], NOW)
    assert found is not None
    assert (found.named, found.stream.rank) == (named, leads)


def test_who_saves_beside_another_that_waits_in_its_checkpoint_is_the_culprit() -> None:
    """The first checkpoint of a process is like any other: those who save need not wait for one."""
    waits = evaluating(0, "checkpoint", section_seq=9, section_times=(), collective_seq=6)
    saves = evaluating(1, "checkpoint", section_seq=9, section_times=(), collective_seq=5)
    assert of_streams(waits, saves) == (1, True)
    assert of_streams(waits, evaluating(1, None, section_seq=9, collective_seq=6)) == (0, True)


@pytest.mark.parametrize(
    ("left", "left_step", "own", "own_step", "named"),
    [
        (SAVES, 41, (), 0, True),
        ((*SAVES, "eval"), 41, (), 0, True),
        (("eval",), 41, (), 0, False),
        ((), 41, (), 0, False),
        (SAVES, 40, (), 0, False),
        (SAVES, 41, SAVES, 41, False),
        (SAVES, 41, SAVES, 40, True),
        (SAVES, 41, ("eval",), 41, True),
        ((*SAVES, *SAVES), 41, SAVES, 41, True),
        (SAVES, 40, SAVES, 40, False),
    ],
)
def test_who_is_left_in_a_checkpoint_that_its_peers_were_in_with_it_is_the_culprit(
    left: tuple[str, ...], left_step: int, own: tuple[str, ...], own_step: int, named: bool
) -> None:
    """It evaluated alone before that, so it has been in more sections of the step than they."""
    saves = standing("checkpoint", for_s=70.0, section_seq=8, left=own, left_step=own_step)
    times_s = (("checkpoint", 3.0), ("checkpoint", 3.0))
    waits = standing(
        None,
        for_s=60.0,
        rank=1,
        section_seq=6,
        section_times=times_s,
        left=left,
        left_step=left_step,
    )
    found = name_culprit(view_of([(1, 0, 0)]), [saves, waits], NOW)
    assert found is not None
    assert (found.stream.rank, found.named) == (0, named)


def pausing(rank: int, section: str, *left: str, sections: int = 1) -> RankStream:
    """A rank of step 41 that has left these pauses in it, and was in so many sections."""
    place: dict[str, Any] = {"left": left, "left_step": 41, "section_seq": sections}
    times_s = tuple((name, 9.0) for name in left)
    return standing(section, for_s=70.0, rank=rank, section_times=times_s, **place)


def test_of_those_who_are_not_back_the_one_is_named_whose_pause_the_others_have_left() -> None:
    back = [pausing(rank, "data", "eval", "checkpoint") for rank in (0, 1)]
    saves = pausing(2, "checkpoint", "eval", sections=3)
    evaluates = pausing(3, "eval", sections=2)
    assert of_streams(*back, saves, evaluates) == (3, True)
    assert of_streams(*back, saves) == (2, True)
    assert of_streams(saves, evaluates) == (3, True)
    two = name_culprit(view_of([(1, 0, 0)]), [*back, evaluates, replace(evaluates, rank=4)], NOW)
    assert str(two) == "one of ranks 3, 4"


def test_of_two_that_each_have_left_the_pause_of_the_other_none_is_named() -> None:
    back = pausing(0, "data", "eval", "checkpoint")
    saves, evaluates = pausing(1, "checkpoint", "eval"), pausing(2, "eval", "checkpoint")
    found = name_culprit(view_of([(1, 0, 0)]), [back, saves, evaluates], NOW)
    assert str(found) == "one of ranks 1, 2"


def test_who_evaluates_for_the_first_time_is_behind_one_that_does_so_again() -> None:
    first, again = pausing(0, "eval"), pausing(1, "eval", "eval")
    assert of_streams(first, again) == (0, True)
    assert of_streams(first, replace(first, rank=1))[1] is False
    assert of_streams(first, again, pausing(2, "data", "eval")) == (0, True)
    assert of_streams(again, pausing(2, "data", "eval", sections=0)) == (2, True)


def test_who_is_back_from_the_pause_of_another_does_not_act_for_it() -> None:
    """It may wait in its first checkpoint for those who still evaluate: that one is behind."""
    saves, evaluates = pausing(0, "checkpoint", "eval", sections=2), pausing(1, "eval")
    assert acts_for_all([saves, evaluates], [evaluates]) is None
    waits = standing(None, for_s=70.0, rank=2, section_seq=1)
    assert acts_for_all([saves, waits], [waits]) is saves
    assert acts_for_all([saves, evaluates, waits], [evaluates, waits]) is evaluates


@pytest.mark.parametrize(
    ("others", "stack", "named"),
    [
        ([(None, 0)], {}, (0, True)),
        ([(None, 0)], {"waiting": False}, (0, True)),
        ([(None, 0)], {"waiting": True}, (0, False)),
        ([("data", 0)], {}, (0, False)),
        ([("checkpoint", 0)], {}, (0, False)),
        ([("eval", 1), ("eval", 1), (None, 0)], {}, (0, False)),
        ([("eval", 1), (None, 0), (None, 0)], {}, (0, True)),
    ],
    ids=["may act", "does not wait", "waits", "data", "saves", "most are there", "half are"],
)
def test_who_evaluates_first_is_not_named_where_it_may_wait_for_one_behind(
    others: list[tuple[str | None, int]], stack: dict[str, bool], named: tuple[int, bool]
) -> None:
    """An evaluation may end in a collective of all, to which one of them has not come."""
    place = {"completed": 40, "step": 41}
    first = standing("eval", for_s=9.0, section_seq=1, **place)
    rest = [
        standing(section, for_s=9.0, rank=rank, section_seq=seq, **place)
        for rank, (section, seq) in enumerate(others, 1)
    ]
    view = view_of([(1, 0, 0)])
    if stack:
        probe = StackProbe(rank=0, **stack)
        view.processes = Processes(stacks={0: (Stack(mono=NOW, probe=probe),)})
    found = name_culprit(view, [first, *rest], NOW)
    assert found is not None
    assert (found.stream.rank, found.named) == named


AWAY = {"section_seq": 8}
"""Of a rank that is in more sections of its step than its peers."""
LOGS = {"places": ("boot", "log"), "step_counts": ((40, 0, -1),)}


@pytest.mark.parametrize(
    ("alone", "peer", "named"),
    [
        (standing("log", for_s=70.0, **AWAY), {}, False),
        (standing("data", for_s=70.0, **AWAY), {}, False),
        (standing(None, for_s=70.0, **AWAY), {}, False),
        (standing(None, for_s=70.0, **AWAY), {"step_counts": ((40, 8, -1),)}, True),
        (standing(None, for_s=70.0, **AWAY), {"step_counts": ((39, 8, -1), (40, 7, -1))}, False),
        (standing("log", for_s=70.0, **AWAY), LOGS, True),
        (standing("data", for_s=70.0, **AWAY), LOGS, False),
        (standing("data", for_s=70.0, steps=0, **AWAY), {"steps": 0}, False),
        (standing("data", for_s=70.0, steps=0, **AWAY), {"steps": 0, "places": ("boot",)}, False),
        (standing("log", for_s=70.0, steps=0, **AWAY), {"steps": 0, "places": ("data",)}, True),
        (standing("forward", for_s=70.0, steps=0, **AWAY), {"steps": 0}, True),
        (standing(None, for_s=70.0, steps=0, **AWAY), {"steps": 0}, True),
        (standing("log", for_s=70.0, **AWAY), {"section": "forward"}, True),
    ],
    ids=[
        "logs alone",
        "reads for all",
        "came back from it",
        "comes back from it in every step",
        "in some steps",
        "the peer logs, too",
        "the peer logs, and reads not",
        "reads for all in the first step",
        "the peer has booted",
        "the peer has read",
        "computes in the first step",
        "has read in the first step",
        "the peer computes",
    ],
)
def test_a_section_that_one_rank_may_be_in_alone_puts_it_ahead_of_nobody(
    alone: RankStream, peer: dict[str, Any], named: bool
) -> None:
    """`if rank == 0:` a metric is sent, and the line hangs: who waits for it is no culprit."""
    fields = dict(peer)
    waits = standing(fields.pop("section", None), for_s=70.0, rank=1, **fields)
    view = View(run=Run(order=order_of({})), streams={0: alone, 1: waits})
    found = name_culprit(view, [alone, waits], NOW)
    assert found is not None
    assert (found.named, found.stream.rank if named else 1) == (named, 1)


@pytest.mark.parametrize(("section", "acts"), [(None, True), ("optimizer", False)])
def test_who_waits_may_have_ended_a_step_whose_last_line_is_on_its_way(
    section: str | None, acts: bool
) -> None:
    """Lines come in another order now and then, and who waits says nothing that would show it."""
    saver = standing("eval", for_s=1.0, completed=40, step=40, section_seq=1)
    waiting = standing(section, for_s=1.0, rank=1, completed=39, step=40)
    assert (acts_for_all([saver, waiting], [waiting]) is saver) is acts


@pytest.mark.parametrize(("step", "acts"), [(40, True), (41, False)])
def test_who_evaluates_may_have_ended_a_step_whose_last_line_is_on_its_way(
    step: int, acts: bool
) -> None:
    """It stands in the step that the others have ended; one further on, its step is another."""
    saver = standing("eval", for_s=1.0, completed=39, step=step, section_seq=1)
    waiting = [
        standing(None, for_s=1.0, rank=1, completed=40, step=40),
        standing(None, for_s=1.0, rank=2, completed=39, step=40),
    ]
    assert (acts_for_all([saver, *waiting], waiting) is saver) is acts


@pytest.mark.parametrize(("late", "saved"), [(39, 40), (40, 39)])
def test_who_has_opened_the_step_of_one_that_evaluates_has_ended_the_one_before(
    late: int, saved: int
) -> None:
    """Our library opens a step at once; the end of the one before may be read after that."""
    saver = standing("eval", for_s=1.0, completed=saved, step=41, section_seq=1)
    waiting = standing(None, for_s=1.0, rank=1, completed=late, step=41)
    assert acts_for_all([saver, waiting], [waiting]) is saver
    in_the_step = standing("log", for_s=1.0, rank=1, completed=39, step=40)
    saver.completed = 40
    assert acts_for_all([saver, in_the_step], [in_the_step]) is None


def test_a_stack_of_another_moment_accuses_nobody() -> None:
    """Both have evaluated before; an old round of stacks saw one of them outside a collective."""
    saver = standing("eval", for_s=1.0, section_seq=1, section_times=SAVED)
    waiting = standing(None, for_s=1.0, rank=1, section_times=(("eval", 5.0),))
    stacks = [
        {"rank": rank, "round": 1, "waiting": rank == 0, "digest": str(rank)} for rank in (0, 1)
    ]
    before = view_of([(1, 0, 0)], stacks=stacks).processes
    for read_mono, accused in ((waiting.section_mono - 1.0, 0), (waiting.section_mono + 0.5, 1)):
        moved = {
            rank: tuple(replace(row, mono=read_mono) for row in rows)
            for rank, rows in before.stacks.items()
        }
        view = replace(view_of([(1, 0, 0)]), processes=replace(before, stacks=moved))
        found = name_culprit(view, [saver, waiting], NOW)
        assert found is not None
        assert (found.stream.rank, found.named) == (accused, accused == 1)


def test_a_rank_that_is_behind_acts_for_nobody() -> None:
    saver = standing("checkpoint", for_s=1.0)
    assert acts_for_all([saver], [saver]) is None


def test_it_is_armed_when_every_ordered_rank_has_spoken() -> None:
    view = view_of([(4, 9, 3), (4, 9, 3)])
    detector = RankDivergence(view.run)
    assert detector.armed(None, view)
    assert not detector.armed(None, View(run=view.run, streams={0: view.streams[0]}))


def test_who_alone_is_silent_while_it_may_act_for_all_is_not_named() -> None:
    """Whoever saves may hold the interpreter, and be silent for that."""
    acts = evaluating(0, "eval", section_seq=9, heard_mono=NOW - 40.0)
    assert of_streams(acts, evaluating(1, None, section_seq=8)) == (0, False)


def test_of_two_that_are_silent_behind_one_that_may_act_for_all_none_is_named() -> None:
    silent = [evaluating(r, None, section_seq=8, heard_mono=NOW - 40.0) for r in (1, 2)]
    assert of_streams(evaluating(0, "eval", section_seq=9), *silent) == (0, False)


@pytest.mark.parametrize(
    ("told", "others", "culprit"),
    [({}, 40, 1), ({}, 41, 0), (FIRST, 1, 1), (FIRST, 2, 0)],
    ids=["one a step", "more", "before the first step", "more before it"],
)
def test_a_rank_that_told_no_collective_counts_them_where_there_was_at_most_one_a_step(
    told: dict[str, Any], others: int, culprit: int
) -> None:
    """Else its sections tell."""
    ranks = (in_step(0, 2, 4, others, **told), in_step(1, 3, 4, 0, **told))
    assert of_streams(*ranks) == (culprit, True)


def test_a_rank_that_told_one_collective_counts_them() -> None:
    """It has ended forty steps, and the other has entered more than one in each."""
    assert of_streams(in_step(0, 2, 4, 90), in_step(1, 3, 4, 1)) == (1, True)


def test_a_rank_that_names_no_section_in_usual_steps_is_not_behind_by_one() -> None:
    assert of_streams(in_step(0, 1, 1), in_step(1, 0, 0))[1] is False
    assert of_streams(in_step(0, 2, 1), in_step(1, 0, 0)) == (1, True)


def test_usual_steps_are_those_of_which_every_rank_told() -> None:
    untold = in_step(2, 3, 0, step_counts=())
    assert of_streams(in_step(0, 3, 5), in_step(1, 2, 4), untold) == (1, True)
    uncounted = (in_step(0, 3, 4, 900, each=-1), in_step(1, 3, 4, 898, each=3))
    assert of_streams(*uncounted) == (1, True)


@pytest.mark.parametrize(("step", "freed"), [(40, 0.0), (41, 7.5), (42, 7.5), (43, 0.0)], ids=str)
def test_a_rank_may_have_waited_for_a_peer_of_its_step_or_the_next(step: int, freed: float) -> None:
    culprit = standing("backward", for_s=1.0, left_mono=9.0)
    peer = standing("backward", for_s=1.0, rank=1, step=step, left_mono=7.5, left_step=50)
    view = View(run=Run(order=order_of({})))
    assert freed_mono(view, culprit, [culprit, peer], NOW) == freed
    assert freed_mono(view, culprit, [culprit], NOW) == 0.0


@pytest.mark.parametrize(
    ("at", "freed"), [(8, 7.5), (40, 7.5), (41, 7.5), (42, 7.5), (43, 0.0)], ids=str
)
@pytest.mark.parametrize("what", ["left", "fed"])
def test_a_rank_may_have_waited_for_what_a_peer_did_beside_its_step(
    what: str, at: int, freed: float
) -> None:
    """The peer is far ahead since; what it did between two steps is of the one before, or of many
    before: who adds up gradients waits for nobody until then."""
    culprit = standing("backward", for_s=1.0, fed_mono=9.0, fed_step=41)
    did = {f"{what}_mono": 7.5, f"{what}_step": at}
    peer = standing("backward", for_s=1.0, rank=1, step=50, **did)
    view = View(run=Run(order=order_of({})))
    assert freed_mono(view, culprit, [culprit, peer], NOW) == freed


@pytest.mark.parametrize(("section", "freed"), [("checkpoint", 8.5), ("log", 7.5), (None, 7.5)])
def test_a_peer_that_is_done_in_a_checkpoint_leaves_it_then(
    section: str | None, freed: float
) -> None:
    culprit = standing("backward", for_s=1.0)
    gone = standing(section, for_s=1.0, rank=1, done=True, done_mono=8.5, left_mono=7.5)
    view = View(run=Run(order=order_of({})), streams={1: gone})
    assert freed_mono(view, culprit, [culprit], NOW) == freed


@pytest.mark.parametrize(
    ("silent_s", "ahead", "state", "freed"),
    [
        (40.0, 2, "alive", NOW - 40.0),
        (40.0, 1, "alive", 0.0),
        (20.0, 2, "alive", 0.0),
        (40.0, 2, "stopped", 0.0),
    ],
)
def test_of_a_silent_rank_whose_peers_go_on_the_time_since_it_was_heard_counts(
    silent_s: float, ahead: int, state: str, freed: float
) -> None:
    culprit = standing(None, for_s=100.0, heard_mono=NOW - silent_s)
    peer = standing("backward", for_s=1.0, rank=1, step=culprit.step + ahead)
    held = Process(state=ProcessState(state), held_mono=NOW - 90.0)
    view = View(run=Run(order=order_of({})), processes=Processes(ranks={culprit.rank: held}))
    assert freed_mono(view, culprit, [culprit, peer], NOW) == freed


LEFT = {"done": True, "completed": 40}
"""Of a rank that said `done` after step 40; the other waits in step 41."""


def blamed(
    *left: RankStream, last: int | None = 1000, dead: bool = False, waits: bool = True
) -> tuple[int | None, str]:
    """Return whom a finding of rank 0, which stands in step 41, blames in the end, and its text."""
    first = standing("backward", for_s=70.0, done=not waits)
    streams = {row.rank: row for row in (first, *left)}
    order = order_of(world_size=len(streams)).model_copy(update={"steps": last})
    processes = Processes(ranks={1: Process(state=ProcessState.DEAD)} if dead else {})
    view = View(run=Run(order=order), streams=streams, processes=processes)
    finding = found(
        view, Name.STALL, Severity.HALT, episode="e", at=EPOCH, stream=first, value=1.0, text="t"
    )
    told = blame_who_left(view, finding)
    return told.rank, told.text


@pytest.mark.parametrize(
    ("fields", "known", "rank"),
    [
        ({}, {}, 1),
        ({"done": False}, {}, 0),
        ({"halt_seen": True}, {}, 0),
        ({}, {"dead": True}, 0),
        ({"completed": 39}, {}, 0),
        ({"completed": 41}, {}, 0),
        ({}, {"last": None}, 1),
        ({}, {"last": 41}, 1),
        ({}, {"last": 40}, 0),
        ({}, {"waits": False}, 0),
    ],
    ids=[
        "it left",
        "not done",
        "it was asked to",
        "it died",
        "two steps before",
        "in the same step",
        "without a last step",
        "a step too early",
        "after its last step",
        "nobody is left",
    ],
)
def test_who_said_done_a_step_before_those_who_stand_is_the_culprit(
    fields: dict[str, Any], known: dict[str, Any], rank: int
) -> None:
    told, text = blamed(standing(None, for_s=1.0, rank=1, **{**LEFT, **fields}), **known)
    assert told == rank
    assert ("rank 1 was done after step 40, and rank 0 waits for it" in text) is (rank == 1)


def test_of_two_that_left_the_first_is_named() -> None:
    gone = [standing(None, for_s=1.0, rank=rank, **LEFT) for rank in (2, 1)]
    assert blamed(*gone)[0] == 1


@pytest.mark.parametrize(("later_s", "named"), [(4.0, None), (15.0, None), (15.25, 1)])
def test_who_was_heard_a_moment_later_when_all_fell_silent_is_not_ahead(
    later_s: float, named: int | None
) -> None:
    """Rank 0 saves, and an adapter's other rank stands in data, when all are started anew.

    By the seconds between their last lines the one that waited was silent first, and a healthy run
    was halted as its loader's.
    """
    heard = NOW - 31.0
    known: dict[str, Any] = {"places": ("data", "checkpoint")}
    waits = standing("data", for_s=310.0, rank=1, heard_mono=heard, **known)
    saves = standing("checkpoint", for_s=310.0, heard_mono=heard + later_s, **known)
    order = order_of({}, steps=1000, world_size=2)
    view = View(run=Run(order=order), streams={0: saves, 1: waits})
    found = name_culprit(view, [saves, waits], NOW)
    assert found is not None
    assert (found.stream.rank if found.named else None) == named
