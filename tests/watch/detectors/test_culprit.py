"""Culprit: the rank that the others wait for is named, and an innocent one never is."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gonogo.contract.records import STATE_WORDS, ProcessState, StackProbe
from gonogo.timeline.rank import RankStream
from gonogo.watch.detectors.culprit import COLLECTIVES, Culprit, name_culprit
from gonogo.watch.fold import dump_state, load_state
from gonogo.watch.registry import detector_names
from gonogo.watch.view import Observed, Process, Processes, Run, Stack, View
from tests.watch.standing import NOW, standing
from tests.watch.streams import World, order_of, watch

# Culprit: the rank that the others wait for is named, and an innocent one never is.


def name(*ranks: RankStream, nodes: int = 1, **known: Any) -> Culprit:
    """Return the culprit among ranks that stand."""
    order = order_of({}, world_size=len(ranks), steps=1000, nodes=nodes)
    view = View(run=Run(order=order), streams={row.rank: row for row in ranks}, **known)
    culprit = name_culprit(view, list(ranks), NOW)
    assert culprit is not None
    return culprit


def rank(number: int, section: str | None = "backward", **fields: Any) -> RankStream:
    """Return a rank that stands at step 41."""
    return standing(section, for_s=60.0, rank=number, **fields)


def stacks(**waiting: bool) -> Processes:
    """Return one reading of each rank's stack: r0=True waits in a collective."""
    return Processes(
        stacks={
            int(key[1:]): (Stack(mono=NOW, probe=StackProbe(rank=int(key[1:]), waiting=value)),)
            for key, value in waiting.items()
        }
    )


@pytest.mark.parametrize(
    ("ranks", "named"),
    [
        ([rank(0), rank(1, step=40)], 1),
        ([rank(0, collective_seq=9), rank(1, collective_seq=8)], 1),
        ([rank(0, section_seq=4), rank(1, "data", section_seq=3)], 1),
        ([rank(0), rank(1, heard_mono=NOW - 60.0)], 1),
        ([rank(0), rank(1)], None),
        ([rank(0, "checkpoint", section_seq=3), rank(1, None, section_seq=2)], 0),
        (
            [
                rank(0, "checkpoint", section_seq=3),
                rank(1, None, section_seq=2, places=("checkpoint",)),
            ],
            None,
        ),
        ([rank(0, "log", section_seq=3), rank(1, None, section_seq=2)], None),
        ([rank(0, "backward", begun=2), rank(1, "checkpoint", begun=1, section_seq=9)], 1),
        ([rank(0, "eval", begun=1), rank(1, "backward", begun=1, section_seq=2)], 0),
    ],
    ids=[
        "step", "collectives", "sections", "silent", "tie", "saves for all",
        "saves with all", "logs alone", "back from a checkpoint", "evaluates alone",
    ],
)  # fmt: skip
def test_positions_and_silence_tell_ranks_apart(ranks: list[RankStream], named: int | None) -> None:
    culprit = name(*ranks)
    assert (culprit.stream.rank if culprit.named else None) == named


@pytest.mark.parametrize(
    ("waiting", "named"),
    [
        ({"r0": True, "r1": False, "r2": True}, 1), ({"r0": False, "r1": False, "r2": True}, None),
        ({"r0": True, "r1": True, "r2": True}, None), ({"r1": False}, 1),
    ],
)  # fmt: skip
def test_the_native_stack_outside_of_the_collective_is_the_culprits(
    waiting: dict[str, bool], named: int | None
) -> None:
    culprit = name(rank(0), rank(1), rank(2), processes=stacks(**waiting))
    assert (culprit.stream.rank if culprit.named else None) == named


@pytest.mark.parametrize(
    ("payload", "named"),
    [
        ({"asked_mono": NOW, "only": 1}, 1), ({"asked_mono": NOW, "unfinished": [1]}, 1),
        ({"asked_mono": NOW, "behind": [1]}, 1), ({"asked_mono": NOW - 100.0, "behind": [1]}, None),
        ({"behind": [1]}, None), ([1], None),
    ],
)  # fmt: skip
def test_flight_recorders_of_now_name_a_rank(payload: Any, named: int | None) -> None:
    observed = {COLLECTIVES: Observed(mono=NOW, ts=0.0, payload=payload)}
    culprit = name(rank(0), rank(1), observed=observed)
    assert (culprit.stream.rank if culprit.named else None) == named


@pytest.mark.parametrize(
    ("state", "held_s", "named"),
    [
        (ProcessState.STOPPED, 59.0, 0), (ProcessState.DEAD, 59.0, 0),
        (ProcessState.STOPPED, 20.0, 0), (ProcessState.STOPPED, 2.0, 1),
        (ProcessState.UNINTERRUPTIBLE, 59.0, 0),
    ],
)  # fmt: skip
def test_a_process_that_has_been_held_is_the_culprit(
    state: ProcessState, held_s: float, named: int
) -> None:
    processes = Processes(ranks={0: Process(state=state, held_mono=NOW - held_s)})
    culprit = name(rank(0), rank(1, step=40), processes=processes)
    assert (culprit.named, culprit.stream.rank) == (True, named)
    assert culprit.held == (state if named == 0 else None)
    assert culprit.place == (f"; its process is {STATE_WORDS[state]}" if named == 0 else "")


def test_no_rank_is_named_while_a_node_is_silent() -> None:
    far = rank(1, heard_mono=NOW - 60.0)
    culprit = name(rank(0), far, nodes=2)
    assert not culprit.named
    assert culprit.who.endswith("(nothing is heard of node 1)")


@given(st.permutations([0, 1, 2, 3]), st.integers(0, 3))
def test_the_order_of_the_ranks_changes_nothing(order: list[int], behind: int) -> None:
    ranks = [rank(number, step=40 if number == behind else 41) for number in order]
    culprit = name(*ranks)
    assert (culprit.named, culprit.stream.rank) == (True, behind)


@pytest.mark.parametrize(("read_s", "told"), [(0.0, True), (60.0, True), (61.0, False)])
def test_a_named_rank_s_place_is_told_if_it_was_read_since(read_s: float, told: bool) -> None:
    probe = StackProbe(rank=1, waiting=False, place="evaluate (train.py:6), user code")
    processes = Processes(stacks={1: (Stack(mono=NOW - read_s, probe=probe),)})
    culprit = name(rank(0), rank(1, step=40), processes=processes)
    assert culprit.named
    said = "; its stack is in evaluate (train.py:6), user code"
    assert culprit.place == (said if told else "")
    assert name(rank(0), rank(1), rank(2)).place == ""


def test_recorders_that_name_every_rank_name_none() -> None:
    payload = {"asked_mono": NOW, "behind": [0, 1]}
    observed = {COLLECTIVES: Observed(mono=NOW, ts=0.0, payload=payload)}
    culprit = name(rank(0), rank(1), processes=stacks(r0=False, r1=True), observed=observed)
    assert not culprit.named


def test_ranks_that_differed_as_much_before_are_not_told_apart() -> None:
    culprit = name(
        rank(0, section_seq=4, step_counts=((40, 2, 0),)),
        rank(1, section_seq=2, step_counts=((40, 0, 0),)),
    )
    assert not culprit.named


@pytest.mark.parametrize(("steps", "to_blame"), [(40, True), (None, True), (10, False)])
def test_a_rank_that_was_done_a_step_before_is_to_blame(steps: int | None, to_blame: bool) -> None:
    world = World(order_of().model_copy(update={"steps": steps})).boot().steps(10)
    world.ranks[1].say("done")
    world.ranks[0].step += 1
    world.ranks[0].in_step = True
    for section in ("data", "backward"):
        world.ranks[0].enter(section)
        world.ranks[0].say("step_start")
    world.ranks[0].spend(30.0)
    (halt,) = watch(world).halts
    assert (halt.detector, halt.rank) == ("stall", 1 if to_blame else 0)
    text = "rank 1 was done after step 10, and rank 0 waits for it"
    assert (text in halt.text) is to_blame


# Findings name the node and the host of a rank or a launcher.


def world_of(step_s: float) -> World:
    """Two ranks, each on its own node, that have trained for a while."""
    order = order_of({}, steps=2000, detectors=detector_names(), nodes=2)
    return World(order, alive_every_s=5.0).boot().steps(40, step_s=step_s)


@pytest.mark.parametrize("told", [True, False])
def test_who_is_named_is_so_with_its_node_and_that_ones_host(told: bool) -> None:
    """A node's number is no name: the host of node 1 may well be called node2."""
    world = world_of(1.0)
    if told:
        row = {"node": 1, "state": "heard", "host": "node2"}
        world.probes.append((world.mono, {"nodes": [row]}))
    world.open_step()
    world.hang(1, "backward", 120.0)
    seen = watch(world, interval_s=1.0)
    restored = load_state(world.order, dump_state(seen.state))
    assert restored.view.hosts == ({1: "node2"} if told else {})
    text = seen.halts[0].text
    assert text.endswith("(rank 1 is on node 1, host node2)" if told else "(rank 1 is on node 1)")


def test_a_launcher_that_was_ended_is_named_with_its_node() -> None:
    world = world_of(1.0)
    node = {"node": 1, "state": "heard", "host": "node2"}
    world.probes.append((world.mono, {"nodes": [node]}))
    agent = {"pid": 99, "state": "dead", "signal": 9, "node": 1}
    world.probes.append((world.mono + 1.0, {"agent": agent}))
    world.steps(3)
    text = watch(world, interval_s=1.0).halts[0].text
    assert text == "the torchrun agent (node 1, host node2) was ended by SIGKILL"


@pytest.mark.parametrize(
    ("behind", "who"),
    [(8, "one of ranks 0, 1, 2, 3, 4, 5, 6, 7"), (9, "a rank that nothing distinguishes")],
)
def test_at_most_eight_ranks_behind_are_listed(behind: int, who: str) -> None:
    culprit = name(*(rank(number, step=40) for number in range(behind)), rank(behind))
    assert culprit.who == who
