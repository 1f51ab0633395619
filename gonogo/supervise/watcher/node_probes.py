"""The processes of a run on several nodes, from the lines of the nodes' followers.

A silent node is unknown, with all its ranks, until it is heard again or is proven to have ended
(`node_record.proof_of_loss`). Silence alone proves nothing and ends nothing.
"""

import logging
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from pydantic import ValidationError

from gonogo.contract.observation import HostMemory, Kind
from gonogo.contract.order import Order
from gonogo.contract.records import NodeLine
from gonogo.contract.tick import (
    AgentProbe,
    NodeProbe,
    NodeState,
    ProcessState,
    RankProbe,
    StackProbe,
)
from gonogo.rundir import Lines, RunDir, load_lines
from gonogo.supervise.evidence.rounds import Target
from gonogo.supervise.node_record import (
    SILENT_S,
    exit_path,
    load_sign,
    proof_of_loss,
    watch_path,
)
from gonogo.supervise.transient_errors import TransientErrors
from gonogo.supervise.watcher.rank_probes import Probes, Processes, ended_by_us

FIRST_S = 60.0
"""Limit of silence before the first sign of a node."""
QUIET_S = 2.0
"""A node that is unheard for so long may fall silent; a stall waits for that."""
AWAY_S = 3.0
"""A watcher that has not looked for so long was suspended; every node gets its time again."""
PROOF_EVERY_S = 1.0

_log = logging.getLogger("gonogo.supervise.watcher")


@dataclass(slots=True, kw_only=True)
class Node:
    """What is known of one node."""

    number: int
    heard: float
    """Monotonic seconds of the last sign of it, or of the first look."""
    limit_s: float = FIRST_S
    offset: int = 0
    sign: str = ""
    host: str = ""
    state: NodeState | None = None
    text: str = ""
    ranks: dict[int, RankProbe] = field(default_factory=dict)
    agent: AgentProbe | None = None
    memory: HostMemory | None = None


class NodesProber(Processes):
    """Reads the followers' lines of one run.

    Args:
        run_dir: the shared run directory.
        order: its order.
        now: monotonic seconds.
    """

    def __init__(self, run_dir: RunDir, order: Order, now: float) -> None:
        self._dir, self._order = run_dir, order
        self._nodes = [Node(number=number, heard=now) for number in range(order.nodes)]
        self._transient = TransientErrors(_log)
        self._looked, self._first = now, True
        self._proof_at = float("-inf")
        self._said_agent: AgentProbe | None = None

    def look(self, now: float, *, ending: bool) -> Probes:
        """Return what changed; see `Processes.look`."""
        if now - self._looked >= AWAY_S:
            for node in self._nodes:
                node.heard = max(node.heard, now)
        self._looked = now
        ranks: dict[int, RankProbe] = {}
        stacks: list[StackProbe] = []
        changed: list[NodeProbe] = []
        told: set[int] = set()
        for node in self._nodes:
            for line in self._read(node):
                self._take(node, line, ranks)
                if Kind.HOST_MEMORY in line.observations:
                    told.add(node.number)
                stacks += [] if self._first else line.stacks
            if self._settle(node, now):
                text = node.text if node.state is NodeState.LOST else ""
                assert node.state is not None
                probe = NodeProbe(node=node.number, state=node.state, host=node.host, text=text)
                changed.append(probe)
                if node.state is NodeState.SILENT:
                    ranks.update(_unknown(node))
        self._first = False
        shown = [row for _, row in sorted(ranks.items()) if not (ending and ended_by_us(row))]
        agent = self._agent()
        news = agent is not None and agent != self._said_agent
        if ending and agent is not None and agent.state is ProcessState.DEAD:
            news = False
        if news:
            self._said_agent = agent
        return Probes(
            ranks=shown,
            agent=agent if news else None,
            stacks=stacks,
            nodes=changed,
            observations=self._memory(told),
        )

    def all_gone(self) -> bool:
        """Return whether every rank that was started has ended."""
        told = [row for node in self._nodes for row in node.ranks.values()]
        return len(told) == self._order.world_size and all(
            row.state is ProcessState.DEAD for row in told
        )

    def targets(self) -> dict[int, Target]:
        """Return every rank for a round of evidence, which its node's follower takes."""
        found = {}
        for node in self._nodes:
            there = node.state is NodeState.HEARD
            first = node.number * self._order.ranks_per_node
            for rank in range(first, first + self._order.ranks_per_node):
                row = node.ranks.get(rank)
                living = there and row is not None and row.state is not ProcessState.DEAD
                found[rank] = Target(
                    rank=rank,
                    pid=row.pid if living and row is not None else None,
                    stopped=row is not None and row.state is ProcessState.STOPPED,
                    elsewhere=True,
                )
        return found

    def silent(self) -> dict[int, float]:
        """Return node → seconds since it was heard, of the silent nodes."""
        return {
            node.number: self._looked - node.heard
            for node in self._nodes
            if node.state is NodeState.SILENT
        }

    def is_quiet(self) -> bool:
        """Return whether a node was not heard just now, and may fall silent any moment."""
        return any(
            node.state is NodeState.HEARD and self._looked - node.heard >= QUIET_S
            for node in self._nodes
        )

    def lost(self) -> dict[int, str]:
        """Return node → why it is certain that it ended without a report."""
        return {node.number: node.text for node in self._nodes if node.state is NodeState.LOST}

    def may_be_victim(self, rank: int | None) -> bool:
        """Return whether a dead rank (None: a launcher) may have died of another node's silence."""
        if rank is None:
            return True
        rows = [node.ranks[rank] for node in self._nodes if rank in node.ranks]
        return any(row.lost_peer for row in rows)

    def _read(self, node: Node) -> Iterable[NodeLine]:
        """Return a follower's new lines of this attempt."""
        load = partial(self._load, node)
        part = self._transient.tried(f"node {node.number}", load, None)
        if part is None:
            return []
        node.offset = part.offset
        found = [row for line in part.lines if (row := self._parse(node, line)) is not None]
        return [row for row in found if row.token == self._order.token]

    def _load(self, node: Node) -> Lines:
        """Return a follower's new lines.

        Raises:
            OSError: it cannot be read just now.
        """
        return load_lines(watch_path(self._dir.path, node.number), node.offset)

    def _parse(self, node: Node, line: bytes) -> NodeLine | None:
        try:
            found = NodeLine.model_validate_json(line)
        except ValidationError as error:
            _log.error("node %d: %s", node.number, error, extra={"action": "node_line_corrupt"})
            return None
        first = node.number * self._order.ranks_per_node
        own = range(first, first + self._order.ranks_per_node)
        if found.node != node.number or any(row.rank not in own for row in found.ranks):
            _log.error("node %d: a line of another", node.number, extra={"action": "node_line"})
            return None
        return found

    def _take(self, node: Node, line: NodeLine, ranks: dict[int, RankProbe]) -> None:
        node.host = line.host
        for row in line.ranks:
            before = ranks.get(row.rank)
            env = row.env if row.env is not None or before is None else before.env
            ranks[row.rank] = node.ranks[row.rank] = row.model_copy(update={"env": env})
        if line.agent is not None:
            node.agent = line.agent.model_copy(update={"node": node.number})
        payload = line.observations.get(Kind.HOST_MEMORY)
        if payload is not None:
            try:
                node.memory = HostMemory.model_validate(payload)
            except ValidationError:
                node.memory = None

    def _settle(self, node: Node, now: float) -> bool:
        """Update the state of a node; return whether it changed."""
        load = partial(load_sign, self._dir.path, node.number)
        sign = self._transient.tried(f"the sign of node {node.number}", load, "")
        token = sign.partition(" ")[0]
        if sign != node.sign and token == str(self._order.token):
            node.heard, node.limit_s = max(node.heard, now), SILENT_S
        node.sign = sign
        before = node.state
        node.state = self._state_of(node, now)
        return node.state is not before and node.state is not None

    def _state_of(self, node: Node, now: float) -> NodeState | None:
        if node.state in (NodeState.LOST, NodeState.ENDED):
            return node.state
        quiet_s = now - node.heard
        if quiet_s >= PROOF_EVERY_S * 2:
            ended = exit_path(self._dir.path, node.number)
            if self._transient.tried("the end of a node", ended.exists, False):
                return NodeState.ENDED
            prove = partial(proof_of_loss, self._dir.path, node.number)
            proof = self._transient.tried("the proof of a loss", prove, None)
            if proof is not None:
                node.text = proof
                return NodeState.LOST
        if quiet_s >= node.limit_s:
            return NodeState.SILENT
        return NodeState.HEARD if node.limit_s == SILENT_S else None

    def _agent(self) -> AgentProbe | None:
        """Return the launchers as one: the first that failed, else dead when all are."""
        told = [node.agent for node in self._nodes if node.agent is not None]
        dead = [row for row in told if row.state is ProcessState.DEAD]
        bad = [row for row in dead if row.code != 0]
        if bad or len(dead) == self._order.nodes:
            return (bad or dead)[0]
        return next((row for row in told if row.state is not ProcessState.DEAD), None)

    def _memory(self, told: set[int]) -> dict[str, Any]:
        """Return the memory of the hosts that reported it now, and that of the fullest host."""
        known = {
            node.number: node.memory
            for node in self._nodes
            if node.memory is not None and node.state in (None, NodeState.HEARD)
        }
        told = told & known.keys()
        if not told:
            return {}
        each = [known[number].wire() for number in sorted(told)]
        seen: dict[str, Any] = {Kind.HOSTS_MEMORY.value: each}
        fullest = min(known, key=lambda number: _left_mb(known[number]))
        if fullest in told:
            seen[Kind.HOST_MEMORY.value] = known[fullest].wire()
        return seen


def _left_mb(memory: HostMemory) -> float:
    return (memory.limit_mb or float("inf")) - memory.used_mb


def _unknown(node: Node) -> dict[int, RankProbe]:
    """Return the ranks of a silent node as unknown."""
    return {
        rank: RankProbe(rank=rank, pid=row.pid)
        for rank, row in node.ranks.items()
        if row.state is not ProcessState.DEAD
    }
