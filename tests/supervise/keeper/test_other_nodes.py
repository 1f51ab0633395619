"""How long node 0's keeper waits for the others' word, when it is itself asked to stop."""

from __future__ import annotations

from pathlib import Path

import pytest

from gonogo.supervise.durable import save_json
from gonogo.supervise.end_request import asked_by
from gonogo.supervise.exit_record import Ended, build_exit
from gonogo.supervise.keeper.kill import UNKILLABLE_S
from gonogo.supervise.keeper.other_nodes import ANSWER_S, SETTLE_S, OtherNodes
from gonogo.supervise.launch.nodes import Place
from gonogo.supervise.node_record import SILENT_S, alive_path, exit_path, gone_path
from tests.supervise.orders import make_order


@pytest.fixture
def nodes(tmp_path: Path) -> OtherNodes:
    """The parts of nodes 0 and 2 have ended; node 1 has reported nothing of its own."""
    order = make_order(world_size=3, nodes=3).document()
    save_json(exit_path(tmp_path, 0), {"v": 1, "agent": {"code": 0, "signal": None, "at": 1.0}})
    save_json(exit_path(tmp_path, 2), {"v": 1, "agent": {"code": 0, "signal": None, "at": 1.0}})
    return OtherNodes(tmp_path, order, Place.of(order, 0), 1.0)


def test_who_is_told_to_stop_waits_only_for_nodes_that_give_signs(
    tmp_path: Path, nodes: OtherNodes
) -> None:
    sign = alive_path(tmp_path, 1)
    for second in range(0, 30, 5):
        sign.write_text(f"1 {second}\n")
        assert not nodes.are_over(float(second), stopped=True)
    assert not nodes.are_over(25.0 + SILENT_S - 0.5, stopped=True)
    assert nodes.are_over(25.0 + SILENT_S, stopped=True)
    assert nodes.unheard == [1]


def test_who_is_not_told_to_stop_waits_for_a_silent_node_as_well(nodes: OtherNodes) -> None:
    assert not nodes.are_over(0.0, stopped=False)
    assert not nodes.are_over(SILENT_S * 2, stopped=False)
    assert nodes.are_over(SILENT_S * 2, stopped=True)


@pytest.mark.parametrize("stamped", [3, 2])
def test_a_keeper_that_is_lost_behind_its_ranks_is_not_waited_for_to_the_end_of_days(
    tmp_path: Path, nodes: OtherNodes, stamped: int
) -> None:
    """Slurm holds the job for the other nodes, and reports nothing of this one."""
    for rank in range(stamped):
        save_json(tmp_path / f"exit_rank{rank}.json", {"code": 0, "signal": None, "at": 1.0})
    for second in range(int(SILENT_S + ANSWER_S)):
        assert not nodes.are_over(float(second), stopped=False)
    assert asked_by(tmp_path) is None
    began = SILENT_S + ANSWER_S
    assert not nodes.are_over(began, stopped=False)
    asked = asked_by(tmp_path)
    assert (asked is not None) is (stamped == 3)
    if asked is not None:
        assert (asked.reason, asked.ended_by) == ("keeper_lost", "infra")
    late = began + 1.0 + UNKILLABLE_S + ANSWER_S
    assert not nodes.are_over(late - 0.5, stopped=False)
    assert nodes.are_over(late, stopped=False) is (stamped == 3)
    assert nodes.unheard == [1]


def test_a_job_that_stood_still_has_lost_no_keeper(tmp_path: Path, nodes: OtherNodes) -> None:
    """Suspended between its ranks' end and their nodes' word, on every node."""
    for rank in range(3):
        save_json(tmp_path / f"exit_rank{rank}.json", {"code": 0, "signal": None, "at": 1.0})
    for moment in (0.0, 1.0, 3600.0, 3601.0):
        assert not nodes.are_over(moment, stopped=False)
    assert asked_by(tmp_path) is None


def test_the_launcher_that_failed_first_speaks_for_all_and_each_part_that_spoke_is_sealed(
    tmp_path: Path, nodes: OtherNodes
) -> None:
    for node, at in ((1, 3.0), (2, 2.0)):
        agent = {"code": 1, "signal": None, "at": at}
        save_json(exit_path(tmp_path, node), {"v": 1, "agent": agent})
    assert nodes.are_over(0.0, stopped=False)
    own = Ended(code=0, signal=None, at=1.0)
    told = nodes.agent(own)
    assert told is not None
    assert (told.code, told.at) == (1, 2.0)
    assert list(nodes.seals()) == ["0", "1", "2"]


def test_what_an_older_attempt_says_late_is_no_end_of_a_node(
    tmp_path: Path, nodes: OtherNodes
) -> None:
    part = {"v": 1, "agent": {"code": 0, "signal": None, "at": 1.0}}
    save_json(exit_path(tmp_path, 1), {**part, "token": 0})
    assert not nodes.are_over(0.0, stopped=False)
    save_json(exit_path(tmp_path, 1), {**part, "token": 1})
    assert nodes.are_over(1.0, stopped=False)


def test_a_node_that_is_proven_gone_is_waited_for_no_longer(
    tmp_path: Path, nodes: OtherNodes
) -> None:
    assert not nodes.are_over(0.0, stopped=False)
    save_json(gone_path(tmp_path, 1), {"by": "Slurm", "text": "job 7 is CANCELLED"})
    assert nodes.are_over(0.1, stopped=False)
    assert list(nodes.lost) == [1]


MISSED = {"code": 1, "signal": None, "at": 2.0, "lost_peer": True}
FAILED = {**MISSED, "lost_peer": False}
LEFT = {"code": 0, "signal": None, "at": 1.0}
TOLD = {"code": None, "signal": 15, "at": 2.0}
TAKEN = {"code": None, "signal": 9, "at": 1.0}


@pytest.mark.parametrize(
    ("ends", "cut_short"),
    [
        pytest.param([MISSED, None, MISSED], True, id="the others missed its rank"),
        pytest.param([MISSED, TAKEN, TOLD], True, id="its rank went with its keeper"),
        pytest.param([LEFT, None, LEFT], True, id="its rank never reported how it ended"),
        pytest.param([FAILED, TAKEN, MISSED], False, id="a rank elsewhere failed by itself"),
        pytest.param([LEFT, LEFT, LEFT], False, id="all had left by then"),
    ],
)
def test_a_run_that_a_lost_node_cut_short_says_so_however_soon_its_others_end(
    tmp_path: Path, nodes: OtherNodes, ends: list[dict[str, object] | None], cut_short: bool
) -> None:
    """They miss its ranks within a second, and no watcher has asked for the end by then."""
    for rank, document in enumerate(ends):
        if document is not None:
            save_json(tmp_path / f"exit_rank{rank}.json", document)
    save_json(gone_path(tmp_path, 1), {"by": "node1", "text": "its keeper is gone"})
    assert nodes.are_over(0.0, stopped=False)
    asked = asked_by(tmp_path)
    assert (asked is not None) is cut_short
    if asked is not None:
        assert (asked.reason, asked.ended_by) == ("node_lost", "infra")
        assert asked.text == "node 1 is lost: node1 says: its keeper is gone"


@pytest.mark.parametrize(
    ("lost", "reason", "ended_by"),
    [(True, "node_lost", "infra"), (False, "nonzero_exit", "trainer")],
    ids=["a node is lost", "a part has failed"],
)
def test_the_rest_of_a_run_is_ended_for_what_became_of_a_part_where_nobody_else_ends_it(
    tmp_path: Path, lost: bool, reason: str, ended_by: str
) -> None:
    order = make_order(world_size=3, nodes=3).document()
    nodes = OtherNodes(tmp_path, order, Place.of(order, 0), 1.0)
    save_json(exit_path(tmp_path, 0), {"v": 1, "agent": {"code": 0, "signal": None, "at": 1.0}})
    if lost:
        save_json(gone_path(tmp_path, 1), {"by": "node2", "text": "its keeper is gone"})
    else:
        agent = {"code": 1, "signal": None, "at": 1.0}
        save_json(exit_path(tmp_path, 1), {"v": 1, "agent": agent})
    for now in (0.0, SETTLE_S - 0.5):
        assert not nodes.are_over(now, stopped=False)
    assert asked_by(tmp_path) is None, "the watcher finds out whose fault it is"
    assert not nodes.are_over(SETTLE_S, stopped=False)
    asked = asked_by(tmp_path)
    assert asked is not None
    assert (asked.reason, asked.ended_by) == (reason, ended_by)
    assert ("node 1 is lost: node2 says: its keeper is gone" in asked.text) is lost


@pytest.mark.parametrize(
    ("killed_at", "elsewhere_at", "reason"),
    [(100.0, 40.0, "oom"), (100.0, None, "oom"), (None, 100.0, "nonzero_exit")],
    ids=["and before on another", "there alone", "on another alone"],
)
def test_a_kill_for_want_of_memory_counts_for_the_ranks_of_its_own_node(
    tmp_path: Path,
    nodes: OtherNodes,
    killed_at: float | None,
    elsewhere_at: float | None,
    reason: str,
) -> None:
    """Without a control group, a host's counter also counts the losses of others."""
    order = make_order(world_size=3, nodes=3)
    for node, at in ((0, elsewhere_at), (1, killed_at), (2, None)):
        part = {"v": 1, "agent": {"code": 1, "signal": None, "at": 101.0}, "oom_at": at}
        save_json(exit_path(tmp_path, node), part)
    assert nodes.are_over(0.0, stopped=False)
    document = build_exit(
        run_dir=tmp_path,
        order=order.document(),
        request=None,
        agent=None,
        ranks={1: Ended(code=None, signal=9, at=99.5)},
        now=200.0,
        oom_at=nodes.oom_at(),
    )
    assert document["reason"] == reason
