"""How the keepers of several nodes meet, and how node 0's keeper ends the run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gonogo.supervise.durable import load_json, save_json
from gonogo.supervise.end_request import asked_by
from gonogo.supervise.keeper.nodes import (
    LOST_S,
    SETTLE_S,
    Meeting,
    NotMet,
    OtherNodes,
    Superseded,
    main,
    save_node_end,
    save_refusal,
)
from gonogo.supervise.last_lines import Ended
from gonogo.supervise.launch.nodes import Place
from gonogo.supervise.process_records import (
    ALIVE_NAME,
    EXIT_NAME,
    GONE_NAME,
    MEET_NAME,
    SILENT_S,
    own_keeping,
    proof_of_loss,
)
from tests.supervise.orders import make_order

ORDER = {"run": "run_x", "token": 5, "world_size": 2, "nodes": 2}


def meeting(folder: Path, node: int, token: int = 5, limit_s: float = 10.0) -> Meeting:
    order = {**ORDER, "token": token}
    place = Place.of(order, node, rendezvous="10.0.0.1:29400" if node == 0 else None)
    return Meeting(folder, order, place, limit_s=limit_s)


def test_nodes_begin_when_each_has_read_the_other(tmp_path: Path) -> None:
    first, second = meeting(tmp_path, 0), meeting(tmp_path, 1)
    assert first.advance(0.0) is None
    assert second.advance(0.0) is None
    assert first.advance(1.0) == "10.0.0.1:29400"
    assert second.advance(1.0) == "10.0.0.1:29400"


def test_who_is_missing_is_named(tmp_path: Path) -> None:
    first = meeting(tmp_path, 0)
    assert first.advance(0.0) is None
    with pytest.raises(NotMet, match="of node 1 nothing was read"):
        first.advance(10.0)


def test_node_comes_once_for_an_attempt_and_again_for_the_next(tmp_path: Path) -> None:
    came = own_keeping(node=1, token=5, address="a:1").document(1.0)
    save_json(tmp_path / MEET_NAME.format(1), {**came, "start_ticks": 1})  # another process
    for token in (5, 4):
        with pytest.raises(Superseded, match="began attempt token 5"):
            meeting(tmp_path, 1, token=token).advance(0.0)
    assert meeting(tmp_path, 1, token=6).advance(0.0) is None


def test_node_that_starts_nothing_says_why_to_the_others(tmp_path: Path) -> None:
    place = Place.of(ORDER, 1)
    save_refusal(tmp_path, ORDER, place, "preflight_failed", "infra", "disk: 1 MB free")
    first = meeting(tmp_path, 0)
    with pytest.raises(NotMet, match="starts nothing: disk: 1 MB free"):
        first.advance(0.0)
    assert not (tmp_path / "exit.json").exists(), "the run's end is node 0's to say"
    ended = load_json(tmp_path / "exit_node1.json")
    assert ended is not None
    assert ended["refused"]["reason"] == "preflight_failed"


@pytest.mark.parametrize("nodes", [1, 2])
def test_an_older_attempt_that_gives_up_ends_no_newer_one(tmp_path: Path, nodes: int) -> None:
    """Its directory was set aside, and the newer one's lies in its place."""
    older = {**ORDER, "nodes": nodes, "token": 4}
    save_json(tmp_path / "order.json", ORDER)
    save_refusal(tmp_path, older, Place.of(older, 0), "preflight_failed", "infra", "nobody came")
    assert [path.name for path in tmp_path.iterdir()] == ["order.json"]
    save_refusal(tmp_path, ORDER, Place.of(ORDER, 0), "preflight_failed", "infra", "nobody came")
    assert (tmp_path / "exit.json").exists()


@pytest.mark.parametrize("node", [0, 1])
def test_a_node_that_an_older_attempt_waited_for_in_vain_begins_this_one(
    tmp_path: Path, node: int
) -> None:
    """Its keeper was cut off, and says it here when it is back."""
    place = Place.of(ORDER, 1 - node)
    save_node_end(tmp_path, {**ORDER, "token": 4}, place, refused={"text": "nobody came"})
    both = [meeting(tmp_path, 0), meeting(tmp_path, 1)]
    assert [one.advance(0.0) for one in both] == [None, None]
    assert [one.advance(1.0) for one in both] == ["10.0.0.1:29400"] * 2


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        pytest.param({}, True, id="killed"),
        pytest.param({"lives": True}, False, id="another start, and its keeper lives"),
        pytest.param({"token": 6}, False, id="an older attempt's"),
        pytest.param({"host": "another"}, False, id="kept on another host"),
        pytest.param({"ended": True}, False, id="ended with its word"),
        pytest.param({"never": True}, False, id="never come"),
    ],
)
def test_a_keeper_that_is_gone_is_told_of_where_that_is_certain(
    tmp_path: Path, changes: dict[str, Any], told: bool
) -> None:
    keeping = own_keeping(node=1, token=7, address="a:1").document(1.0)
    if "lives" not in changes:
        keeping["start_ticks"] -= 1  # whose number another process has by now
    if "never" not in changes:
        save_json(tmp_path / MEET_NAME.format(1), {**keeping, **changes})
    if "ended" in changes:
        save_json(tmp_path / EXIT_NAME.format(1), {"v": 1, "token": 7})
    assert main([str(tmp_path), "--node", "1", "--token", "7"]) == 0
    word = load_json(tmp_path / GONE_NAME.format(1))
    assert (word is not None) is told
    if word is not None:
        assert proof_of_loss(tmp_path, 1) == f"{keeping['host']} says: {word['text']}"
        assert word["text"] == f"its keeper, process {keeping['pid']}, is gone"


@pytest.fixture
def nodes(tmp_path: Path) -> OtherNodes:
    """The parts of nodes 0 and 2 have ended; node 1 has reported nothing of its own."""
    order = make_order(world_size=3, nodes=3).document()
    save_json(
        tmp_path / EXIT_NAME.format(0), {"v": 1, "agent": {"code": 0, "signal": None, "at": 1.0}}
    )
    save_json(
        tmp_path / EXIT_NAME.format(2), {"v": 1, "agent": {"code": 0, "signal": None, "at": 1.0}}
    )
    return OtherNodes(tmp_path, order, 1.0)


def test_who_is_told_to_stop_waits_only_for_nodes_that_give_signs(
    tmp_path: Path, nodes: OtherNodes
) -> None:
    sign = tmp_path / ALIVE_NAME.format(1)
    for second in range(26):
        sign.write_text(f"1 {second}\n")
        assert not nodes.are_over(float(second), stopped=True)
    for second in range(26, 25 + int(SILENT_S)):
        assert not nodes.are_over(float(second), stopped=True)
    assert nodes.are_over(25.0 + SILENT_S, stopped=True)
    assert nodes.unheard == [1]


def test_a_node_without_signs_is_lost(tmp_path: Path, nodes: OtherNodes) -> None:
    for second in range(int(LOST_S)):
        assert not nodes.are_over(float(second), stopped=False)
    assert asked_by(tmp_path) is None
    assert nodes.are_over(LOST_S, stopped=False)
    asked = asked_by(tmp_path)
    assert asked is not None
    assert (asked.reason, asked.text) == ("node_lost", "node 1 is lost: it gave no sign for 120 s")


def test_a_suspended_keeper_loses_no_node(nodes: OtherNodes) -> None:
    for moment in (0.0, 1.0, 3600.0, 3601.0):
        assert not nodes.are_over(moment, stopped=False)


def test_the_launcher_that_failed_first_speaks_for_all_and_each_part_that_spoke_is_sealed(
    tmp_path: Path, nodes: OtherNodes
) -> None:
    for node, at in ((1, 3.0), (2, 2.0)):
        agent = {"code": 1, "signal": None, "at": at}
        save_json(tmp_path / EXIT_NAME.format(node), {"v": 1, "agent": agent})
    assert nodes.are_over(0.0, stopped=False)
    nodes.save_exit(None, Ended(code=0, signal=None, at=1.0))
    record = load_json(tmp_path / "exit.json")
    assert record is not None
    assert (record["agent"]["code"], record["agent"]["at"]) == (1, 2.0)
    assert list(record["nodes"]) == ["0", "1", "2"]


def test_what_an_older_attempt_says_late_is_no_end_of_a_node(
    tmp_path: Path, nodes: OtherNodes
) -> None:
    part = {"v": 1, "agent": {"code": 0, "signal": None, "at": 1.0}}
    save_json(tmp_path / EXIT_NAME.format(1), {**part, "token": 0})
    assert not nodes.are_over(0.0, stopped=False)
    save_json(tmp_path / EXIT_NAME.format(1), {**part, "token": 1})
    assert nodes.are_over(1.0, stopped=False)


def test_a_node_that_is_proven_gone_is_waited_for_no_longer(
    tmp_path: Path, nodes: OtherNodes
) -> None:
    assert not nodes.are_over(0.0, stopped=False)
    save_json(tmp_path / GONE_NAME.format(1), {"by": "Slurm", "text": "job 7 is CANCELLED"})
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
    save_json(tmp_path / GONE_NAME.format(1), {"by": "node1", "text": "its keeper is gone"})
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
    nodes = OtherNodes(tmp_path, order, 1.0)
    save_json(
        tmp_path / EXIT_NAME.format(0), {"v": 1, "agent": {"code": 0, "signal": None, "at": 1.0}}
    )
    if lost:
        save_json(tmp_path / GONE_NAME.format(1), {"by": "node2", "text": "its keeper is gone"})
    else:
        agent = {"code": 1, "signal": None, "at": 1.0}
        save_json(tmp_path / EXIT_NAME.format(1), {"v": 1, "agent": agent})
    for second in range(int(SETTLE_S)):
        assert not nodes.are_over(float(second), stopped=False)
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
    for node, at in ((0, elsewhere_at), (1, killed_at), (2, None)):
        part = {"v": 1, "agent": {"code": 1, "signal": None, "at": 101.0}, "oom_at": at}
        save_json(tmp_path / EXIT_NAME.format(node), part)
    assert nodes.are_over(0.0, stopped=False)
    save_json(tmp_path / "exit_rank1.json", {"code": None, "signal": 9, "at": 99.5})
    nodes.save_exit(None, None)
    assert (load_json(tmp_path / "exit.json") or {})["reason"] == reason
