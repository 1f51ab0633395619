"""State, exit stamp and environment of each rank's process on this host.

A probe is reported when it changes, and again every REPEAT_S.

- D state counts when it is seen twice in a row: a read from disk passes through it.
- A dead rank of a launcher is unknown while the launcher lives, since it may be restarted.
- After a request to end, a rank's death says nothing about the trainer and is not reported.
"""

import logging
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from pydantic import ValidationError

from gonogo.contract.observation import HostMemory, Kind
from gonogo.contract.order import Order
from gonogo.contract.records import (
    AgentProbe,
    NodeLine,
    NodeProbe,
    NodeState,
    ProcessState,
    RankProbe,
    StackProbe,
)
from gonogo.rundir import RunDir, load_lines
from gonogo.supervise.durable import load_json
from gonogo.supervise.evidence.rounds import Target
from gonogo.supervise.launch.nodes import Place
from gonogo.supervise.process_records import (
    EXIT_NAME,
    SILENT_S,
    WATCH_NAME,
    RankRecord,
    load_rank_record,
    load_sign,
    proof_of_loss,
)
from gonogo.supervise.processes import TOKEN_NAME, ProcessRef, load_environ
from gonogo.supervise.transient_errors import TransientErrors
from gonogo.trainer.run_dir import HALTED_CODE

REPEAT_S = 5.0
_STATES = {"T": ProcessState.STOPPED, "D": ProcessState.UNINTERRUPTIBLE}


@dataclass(frozen=True, slots=True, kw_only=True)
class Probes:
    """What is new since the last look."""

    ranks: list[RankProbe] = field(default_factory=list)
    agent: AgentProbe | None = None
    stacks: list[StackProbe] = field(default_factory=list)
    nodes: list[NodeProbe] = field(default_factory=list)
    observations: dict[str, Any] = field(default_factory=dict)


class Prober:
    """The processes of one run that are on this host."""

    def __init__(self, run_dir: RunDir, place: Place) -> None:
        self.run_dir, self.place = run_dir, place
        self.pids: dict[int, ProcessRef] = {}  # Rank → its process, dead or alive.
        self._records: dict[int, RankRecord] = {}
        self._said: dict[int, RankProbe] = {}
        self._said_agent: AgentProbe | None = None
        self._waiting: set[int] = set()
        self._with_env: set[int] = set()
        self._repeat_at = float("-inf")

    def look(self, now: float, *, ending: bool) -> Probes:
        """Return what changed; deaths after the request to end (`ending`) are left out."""
        repeat = now >= self._repeat_at
        if repeat:
            self._repeat_at = now + REPEAT_S
        ranks = []
        agent = self._look_at_agent()
        for rank in self.place.ranks:
            found = self._look_at(rank, agent)
            if found is None or (ending and ended_by_us(found)):
                continue
            if repeat or found != self._said.get(rank):
                self._said[rank] = found
                ranks.append(self._with_environment(found))
        if agent is None or (ending and agent.state is ProcessState.DEAD):
            return Probes(ranks=ranks)
        if not repeat and agent == self._said_agent:
            return Probes(ranks=ranks)
        self._said_agent = agent
        return Probes(ranks=ranks, agent=agent)

    def all_gone(self) -> bool:
        """Return whether every rank that was started has ended."""
        return bool(self.pids) and not any(ref.is_alive() for ref in self.pids.values())

    def targets(self) -> dict[int, Target]:
        """Return every rank's process for a round of evidence."""
        found = {}
        for rank in self.place.ranks:
            ref, said = self.pids.get(rank), self._said.get(rank)
            state = said.state if said is not None else ProcessState.UNKNOWN
            gone = ref is None or state is ProcessState.DEAD or not ref.is_alive()
            found[rank] = Target(
                rank=rank,
                pid=None if gone or ref is None else ref.pid,
                stopped=state is ProcessState.STOPPED,
            )
        return found

    def silent(self) -> dict[int, float]:
        """Return node → seconds since it was heard: no node is silent."""
        return {}

    def all_heard(self, since: float) -> bool:
        """Return True: the only node is here."""
        return True

    def lost(self) -> dict[int, str]:
        """Return lost nodes: none."""
        return {}

    def _look_at(self, rank: int, agent: AgentProbe | None) -> RankProbe | None:
        record = load_rank_record(self.run_dir.path, rank) or self._records.get(rank)
        if record is None:
            return None
        self._records[rank] = record
        ref = self.pids[rank] = record.ref
        stat = ref.stat()
        if stat is None or stat.ended:
            if record.launched and agent is not None and agent.state is not ProcessState.DEAD:
                return RankProbe(rank=rank, pid=ref.pid)  # it may be started again
            stamp = load_json(self.run_dir.rank_exit(rank)) or {}
            return RankProbe(
                rank=rank,
                pid=ref.pid,
                state=ProcessState.DEAD,
                code=stamp.get("code"),
                signal=stamp.get("signal"),
                exit_at=stamp.get("at"),
                lost_peer=stamp.get("lost_peer") is True,
            )
        state = self._settled(rank, _STATES.get(stat.state, ProcessState.ALIVE))
        return RankProbe(rank=rank, pid=ref.pid, state=state)

    def _settled(self, rank: int, state: ProcessState) -> ProcessState:
        if state is not ProcessState.UNINTERRUPTIBLE:
            self._waiting.discard(rank)
            return state
        seen_before = rank in self._waiting
        self._waiting.add(rank)
        return state if seen_before else ProcessState.ALIVE

    def _with_environment(self, probe: RankProbe) -> RankProbe:
        if probe.pid is None or probe.rank in self._with_env or probe.state is ProcessState.DEAD:
            return probe
        raw = load_environ(probe.pid)
        if f"{TOKEN_NAME}=".encode() not in raw:
            return probe  # gone, or overwritten (setproctitle)
        self._with_env.add(probe.rank)
        return probe.model_copy(update={"env": nsa_names(raw)})

    def _look_at_agent(self) -> AgentProbe | None:
        keeper = load_json(self.run_dir.path / self.place.own("keeper.json")) or {}
        agent = keeper.get("agent")
        if not isinstance(agent, dict):
            return None
        ref = ProcessRef(pid=agent["pid"], start_ticks=agent["start_ticks"])
        ended = agent.get("ended")
        if ended:
            return AgentProbe(
                pid=ref.pid,
                state=ProcessState.DEAD,
                code=ended.get("code"),
                signal=ended.get("signal"),
            )
        stat = ref.stat()
        if stat is None or stat.ended:
            return AgentProbe(pid=ref.pid, state=ProcessState.DEAD)
        return AgentProbe(pid=ref.pid, state=_STATES.get(stat.state, ProcessState.ALIVE))


def ended_by_us(probe: RankProbe) -> bool:
    """Return whether a death after the request to end says nothing about the trainer."""
    return probe.state is ProcessState.DEAD and probe.code not in (0, HALTED_CODE)


def nsa_names(raw: bytes) -> dict[str, str]:
    """Return the `NSA_*` names in a raw environment."""
    pairs = (part.decode("utf-8", "replace").partition("=") for part in raw.split(b"\0"))
    return {name: value for name, _, value in pairs if name.startswith("NSA_")}


FIRST_S = 60.0  # Limit of silence before the first sign of a node.
AWAY_S = 3.0
"""A watcher that has not looked for so long was suspended; every node gets its time again."""
PROOF_AFTER_S = 2.0  # A node that is unheard for so long may have ended.

_log = logging.getLogger("gonogo.supervise.watcher")


@dataclass(slots=True, kw_only=True)
class Node:
    """What is known of one node."""

    number: int
    ranks_here: range
    heard: float  # Monotonic seconds of the last sign of it, or of the first look.
    limit_s: float = FIRST_S
    offset: int = 0
    sign: str = ""
    host: str = ""
    state: NodeState | None = None
    text: str = ""
    ranks: dict[int, RankProbe] = field(default_factory=dict)
    agent: AgentProbe | None = None
    memory: HostMemory | None = None


class NodesProber:
    """Reads the followers' lines of one run."""

    def __init__(self, run_dir: RunDir, order: Order, now: float) -> None:
        self._dir, self._order, each = run_dir, order, order.ranks_per_node
        self._nodes = [
            Node(number=number, ranks_here=range(number * each, (number + 1) * each), heard=now)
            for number in range(order.nodes)
        ]
        self._transient = TransientErrors(_log)
        self._looked, self._first = now, True
        self._said_agent: AgentProbe | None = None

    def look(self, now: float, *, ending: bool) -> Probes:
        """Return what changed; see `Prober.look`."""
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
            before = node.state
            self._settle(node, now)
            if node.state is not None and node.state is not before:
                changed.append(
                    NodeProbe(node=node.number, state=node.state, host=node.host, text=node.text)
                )
                if node.state is NodeState.SILENT:
                    ranks |= {
                        rank: RankProbe(rank=rank, pid=row.pid)
                        for rank, row in node.ranks.items()
                        if row.state is not ProcessState.DEAD
                    }
        self._first = False
        agent = self._agent()
        if agent == self._said_agent or (ending and agent and agent.state is ProcessState.DEAD):
            agent = None
        self._said_agent = agent or self._said_agent
        return Probes(
            ranks=[row for _, row in sorted(ranks.items()) if not (ending and ended_by_us(row))],
            agent=agent,
            stacks=stacks,
            nodes=changed,
            observations=self._memory(told),
        )

    def all_gone(self) -> bool:
        """Return whether every rank that was started has ended."""
        told = [row for node in self._nodes for row in node.ranks.values()]
        dead = all(row.state is ProcessState.DEAD for row in told)
        return dead and len(told) == self._order.world_size

    def targets(self) -> dict[int, Target]:
        """Return every rank for a round of evidence, which its node's follower takes."""
        found = {}
        for node in self._nodes:
            for rank in node.ranks_here:
                row = node.ranks.get(rank) or RankProbe(rank=rank)
                living = node.state is NodeState.HEARD and row.state is not ProcessState.DEAD
                stopped = row.state is ProcessState.STOPPED
                pid = row.pid if living else None
                found[rank] = Target(rank=rank, pid=pid, stopped=stopped, elsewhere=True)
        return found

    def silent(self) -> dict[int, float]:
        """Return node → seconds since it was heard, of the silent nodes."""
        silent = [node for node in self._nodes if node.state is NodeState.SILENT]
        return {node.number: self._looked - node.heard for node in silent}

    def all_heard(self, since: float) -> bool:
        """Return whether every node was heard since then (monotonic seconds), or has ended."""
        over = (NodeState.ENDED, NodeState.LOST)
        return all(node.heard >= since or node.state in over for node in self._nodes)

    def lost(self) -> dict[int, str]:
        """Return node → why it is certain that it ended without a report."""
        return {node.number: node.text for node in self._nodes if node.state is NodeState.LOST}

    def _read(self, node: Node) -> Iterator[NodeLine]:
        load = partial(load_lines, self._dir.path / WATCH_NAME.format(node.number), node.offset)
        part = self._transient.tried(f"node {node.number}", load, None)
        if part is None:
            return
        node.offset = part.offset
        for line in part.lines:
            try:
                found = NodeLine.model_validate_json(line)
            except ValidationError as error:
                _log.error("node %d: %s", node.number, error, extra={"action": "node_line_corrupt"})
                continue
            own = all(row.rank in node.ranks_here for row in found.ranks)
            if own and (found.node, found.token) == (node.number, self._order.token):
                yield found

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

    def _settle(self, node: Node, now: float) -> None:
        load = partial(load_sign, self._dir.path, node.number)
        sign = self._transient.tried(f"the sign of node {node.number}", load, "")
        if sign != node.sign and sign.partition(" ")[0] == str(self._order.token):
            node.heard, node.limit_s = max(node.heard, now), SILENT_S
        node.sign = sign
        if node.state in (NodeState.LOST, NodeState.ENDED):
            return
        quiet_s = now - node.heard
        if quiet_s >= PROOF_AFTER_S:
            ended = self._dir.path / EXIT_NAME.format(node.number)
            if self._transient.tried("the end of a node", ended.exists, False):
                node.state = NodeState.ENDED
                return
            prove = partial(proof_of_loss, self._dir.path, node.number)
            node.text = self._transient.tried("the proof of a loss", prove, None) or ""
            if node.text:
                node.state = NodeState.LOST
                return
        heard = NodeState.HEARD if node.limit_s == SILENT_S else None
        node.state = NodeState.SILENT if quiet_s >= node.limit_s else heard

    def _agent(self) -> AgentProbe | None:
        """Return the launchers as one: the first that failed, else dead when all are."""
        told = [node.agent for node in self._nodes if node.agent is not None]
        dead = [row for row in told if row.state is ProcessState.DEAD]
        bad = [row for row in dead if row.code != 0]
        if bad or len(dead) == self._order.nodes:
            return (bad or dead)[0]
        return next((row for row in told if row.state is not ProcessState.DEAD), None)

    def _memory(self, told: set[int]) -> dict[str, Any]:
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
        left_mb = {n: (row.limit_mb or math.inf) - row.used_mb for n, row in known.items()}
        fullest = min(known, key=left_mb.__getitem__)
        if fullest in told:
            seen[Kind.HOST_MEMORY.value] = known[fullest].wire()
        return seen


Processes = Prober | NodesProber
