"""What the watcher makes of the followers' lines: who was heard, who is silent, who is lost."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gonogo.contract.records import NodeState, ProcessState, RankProbe
from gonogo.rundir import RunDir
from gonogo.supervise.durable import save_json
from gonogo.supervise.process_records import (
    ALIVE_NAME,
    EXIT_NAME,
    GONE_NAME,
    MEET_NAME,
    SILENT_S,
    WATCH_NAME,
    own_keeping,
    proof_of_loss,
)
from gonogo.supervise.watcher.rank_probes import AWAY_S, FIRST_S, NodesProber
from tests.supervise.runs import build_test_order


class Followers:
    """Two nodes of one rank each, whose followers are this test."""

    def __init__(self, folder: Path) -> None:
        self.dir = folder
        self.order = build_test_order("run_x", nodes=2)
        self.beats = 0

    def prober(self, now: float = 0.0) -> NodesProber:
        return NodesProber(RunDir(self.dir), self.order, now)

    def be_seen(self, *nodes: int) -> None:
        self.beats += 1
        for node in nodes:
            (self.dir / ALIVE_NAME.format(node)).write_text(f"{self.order.token} {self.beats}\n")

    def tell(self, node: int, token: int = 1, **more: Any) -> None:
        line = {"node": node, "token": token, "host": f"h{node}", "n": 1, "mono": 1.0, "ts": 1.0}
        with (self.dir / WATCH_NAME.format(node)).open("a") as stream:
            stream.write(json.dumps({**line, **more}) + "\n")

    def tell_rank(self, rank: int, state: str = "alive", **more: Any) -> None:
        self.tell(rank, ranks=[{"rank": rank, "pid": 100 + rank, "state": state, **more}])


@pytest.fixture
def followers(tmp_path: Path) -> Followers:
    return Followers(tmp_path)


def states(probes: Any) -> dict[int, NodeState]:
    return {row.node: row.state for row in probes.nodes}


def heard(followers: Followers) -> NodesProber:
    """A prober that has heard both nodes at second 1."""
    prober = followers.prober()
    followers.be_seen(0, 1)
    for rank in range(2):
        followers.tell_rank(rank)
    found = prober.look(1.0, ending=False)
    assert states(found) == {0: NodeState.HEARD, 1: NodeState.HEARD}
    assert [row.state for row in found.ranks] == [ProcessState.ALIVE] * 2
    return prober


def look_on(followers: Followers, prober: NodesProber, until: float, *seen: int) -> Any:
    """Look every second from second 2 on, while only some nodes are seen; the last look."""
    found, now = None, 2.0
    while now <= until:
        followers.be_seen(*seen)
        found, now = prober.look(now, ending=False), now + 1.0
    return found


def test_silent_node_is_unknown_with_its_ranks_alone(followers: Followers) -> None:
    prober = heard(followers)
    assert states(look_on(followers, prober, SILENT_S, 0)) == {}
    found = prober.look(SILENT_S + 1.0, ending=False)
    assert states(found) == {1: NodeState.SILENT}
    assert found.ranks == [RankProbe(rank=1, pid=101)]
    assert found.ranks[0].state is ProcessState.UNKNOWN
    assert prober.silent() == {1: SILENT_S}
    assert prober.lost() == {}
    assert prober.targets()[1].pid is None, "nobody is there to look at it"


def test_node_that_is_heard_again_is_no_longer_silent(followers: Followers) -> None:
    prober = heard(followers)
    look_on(followers, prober, SILENT_S + 1.0, 0)
    followers.be_seen(0, 1)
    followers.tell_rank(1)
    found = prober.look(SILENT_S + 2.0, ending=False)
    assert states(found) == {1: NodeState.HEARD}
    assert found.ranks[0].state is ProcessState.ALIVE
    assert prober.silent() == {}


def test_a_node_that_ended_is_waited_for_no_longer(followers: Followers) -> None:
    prober = heard(followers)
    assert prober.all_heard(1.0)
    look_on(followers, prober, 3.0, 0)
    assert not prober.all_heard(2.0)
    save_json(followers.dir / EXIT_NAME.format(1), {"v": 1})
    look_on(followers, prober, 4.0, 0)
    assert prober.all_heard(2.0)


def test_watcher_that_was_away_itself_calls_nobody_silent(followers: Followers) -> None:
    prober = heard(followers)
    assert states(prober.look(1.0 + SILENT_S + AWAY_S, ending=False)) == {}


def test_node_that_was_never_seen_has_longer(followers: Followers) -> None:
    prober, now = followers.prober(), 0.0
    while now < FIRST_S:
        followers.be_seen(0)
        assert 1 not in states(prober.look(now, ending=False))
        now += 1.0
    assert states(prober.look(FIRST_S, ending=False)) == {1: NodeState.SILENT}


def test_word_of_a_nodes_end_is_proof_and_its_own_is_no_loss(followers: Followers) -> None:
    prober = heard(followers)
    save_json(followers.dir / GONE_NAME.format(1), {"by": "Slurm", "text": "job 7 is CANCELLED"})
    found = look_on(followers, prober, 3.0, 0)
    assert states(found) == {1: NodeState.LOST}
    assert prober.lost() == {1: "Slurm says: job 7 is CANCELLED"}
    followers.be_seen(0, 1)
    assert states(prober.look(4.0, ending=False)) == {}, "a sign that came late is none of life"
    other = heard(Followers(followers.dir))
    save_json(followers.dir / EXIT_NAME.format(1), {"v": 1})
    assert states(look_on(followers, other, 3.0, 0)) == {1: NodeState.ENDED}
    assert other.lost() == {}


@pytest.mark.parametrize(
    ("changes", "proven"),
    [
        pytest.param({}, True, id="of this host"),
        pytest.param({"boot_id": "another"}, False, id="of another host"),
        pytest.param({"pid_ns": "pid:[1]"}, False, id="of another container"),
        pytest.param({"host": "another"}, False, id="of a clone of this machine"),
    ],
)
def test_that_a_keeper_is_gone_is_seen_among_its_own_processes_alone(
    tmp_path: Path, changes: dict[str, Any], proven: bool
) -> None:
    """A number that no process has here proves nothing of another host's."""
    told = own_keeping(node=1, token=1, address="a:1").document(1.0)
    save_json(tmp_path / MEET_NAME.format(1), {**told, **changes})
    assert proof_of_loss(tmp_path, 1) is None, "it lives, or nobody knows"
    before = {"start_ticks": told["start_ticks"] - 1}  # whose number another process has by now
    save_json(tmp_path / MEET_NAME.format(1), {**told, **changes, **before})
    assert (proof_of_loss(tmp_path, 1) is not None) is proven


@pytest.mark.parametrize(
    "wrong",
    [
        pytest.param({"token": 0}, id="an older attempt"),
        pytest.param({"node": 0}, id="another node"),
        pytest.param({"ranks": [{"rank": 0, "pid": 1, "state": "dead"}]}, id="another's rank"),
        pytest.param({"mono": "soon"}, id="no line"),
    ],
)
def test_what_is_not_that_nodes_word_changes_nothing(
    followers: Followers, wrong: dict[str, Any]
) -> None:
    prober = heard(followers)
    dead = [{"rank": 1, "pid": 101, "state": "dead", "code": 1}]
    with (followers.dir / WATCH_NAME.format(1)).open("a") as stream:
        line = {"node": 1, "token": 1, "host": "h", "n": 2, "mono": 1.0, "ts": 1.0, "ranks": dead}
        stream.write(json.dumps({**line, **wrong}) + "\n")
    followers.be_seen(0, 1)
    assert prober.look(2.0, ending=False).ranks == []


def test_death_is_told_until_the_run_is_asked_to_end(followers: Followers) -> None:
    prober = heard(followers)
    followers.tell_rank(1, "dead", code=1, lost_peer=True)
    found = prober.look(1.2, ending=False).ranks
    assert [(row.rank, row.state, row.code) for row in found] == [(1, ProcessState.DEAD, 1)]
    assert found[0].lost_peer
    followers.tell_rank(0, "dead", signal=15)
    assert prober.look(1.4, ending=True).ranks == []
    assert prober.all_gone()


def test_launchers_are_one_that_has_ended_badly_as_soon_as_any_has(followers: Followers) -> None:
    prober = followers.prober()
    for node in range(2):
        followers.tell(node, agent={"pid": node + 1, "state": "alive"})
    agent = prober.look(0.2, ending=False).agent
    assert agent is not None
    assert agent.state is ProcessState.ALIVE
    followers.tell(0, agent={"pid": 1, "state": "dead", "code": 0})
    agent = prober.look(0.4, ending=False).agent
    assert agent is not None
    assert agent.state is ProcessState.ALIVE, "the other's ranks are not done"
    followers.tell(1, agent={"pid": 2, "state": "dead", "code": 1})
    agent = prober.look(0.6, ending=False).agent
    assert agent is not None
    assert (agent.state, agent.code, agent.node) == (ProcessState.DEAD, 1, 1)


def tell_memory(followers: Followers, node: int, used_mb: float) -> None:
    memory = {"used_mb": used_mb, "limit_mb": 100.0, "ranks": {str(node): 10.0}}
    followers.tell(node, observations={"host_memory": memory})


def test_memory_is_the_fullest_hosts_and_that_of_its_own_ranks(followers: Followers) -> None:
    prober = followers.prober()
    tell_memory(followers, 0, 20.0)
    tell_memory(followers, 1, 90.0)
    told = prober.look(0.2, ending=False).observations
    seen = told["host_memory"]
    assert (seen["used_mb"], seen["ranks"]) == (90.0, {"1": 10.0})
    assert [row["used_mb"] for row in told["hosts_memory"]] == [20.0, 90.0]


def test_what_one_host_told_of_its_memory_once_counts_once(followers: Followers) -> None:
    prober, seen = followers.prober(), []
    tell_memory(followers, 1, 95.0)
    for second in range(1, 5):
        looked = prober.look(float(second), ending=False)
        seen.append(looked.observations)
        tell_memory(followers, 0, 20.0)
    assert ["host_memory" in row for row in seen] == [True, False, False, False]
    each = [[host["used_mb"] for host in row["hosts_memory"]] for row in seen]
    assert each == [[95.0], [20.0], [20.0], [20.0]]
    tell_memory(followers, 1, 10.0)
    prober.look(5.0, ending=False)
    tell_memory(followers, 0, 20.0)
    assert prober.look(6.0, ending=False).observations["host_memory"]["used_mb"] == 20.0


def test_watcher_that_starts_anew_reads_again_and_forgets_old_stacks(followers: Followers) -> None:
    heard(followers)
    followers.tell_rank(1, "stopped")
    followers.tell(1, stacks=[{"rank": 1, "frame": "x"}])
    found = followers.prober(5.0).look(5.0, ending=False)
    assert [row.state for row in found.ranks] == [ProcessState.ALIVE, ProcessState.STOPPED]
    assert found.stacks == []
