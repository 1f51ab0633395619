"""State, exit stamp and environment of each rank's process on this host.

A probe is reported when it changes, and again every REPEAT_S.

- D state counts when it is seen twice in a row: a read from disk passes through it.
- A dead rank of a launcher is unknown while the launcher lives, since it may be restarted.
- After a request to end, a rank's death says nothing about the trainer and is not reported.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any

from gonogo.contract.records import AgentProbe, NodeProbe, ProcessState, RankProbe, StackProbe
from gonogo.rundir import RunDir
from gonogo.supervise.durable import load_json
from gonogo.supervise.evidence.rounds import Target
from gonogo.supervise.launch.nodes import Place
from gonogo.supervise.process_records import RankRecord, load_rank_record
from gonogo.supervise.processes import TOKEN_NAME, ProcessRef, load_environ
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


class Processes(ABC):
    """The processes of one run, on one host or on several nodes."""

    @abstractmethod
    def look(self, now: float, *, ending: bool) -> Probes:
        """Return what changed.

        Args:
            ending: whether the run was asked to end before this look.
        """

    @abstractmethod
    def all_gone(self) -> bool:
        """Return whether every rank that was started has ended."""

    @abstractmethod
    def targets(self) -> dict[int, Target]:
        """Return every rank's process for a round of evidence."""

    def silent(self) -> dict[int, float]:
        """Return node → seconds since it was heard, of the silent nodes."""
        return {}

    def all_heard(self, since: float) -> bool:
        """Return whether every node was heard since then (monotonic seconds)."""
        return True

    def lost(self) -> dict[int, str]:
        """Return node → why it is certain that it ended without a report."""
        return {}


class Prober(Processes):
    """The processes of one run that are on this host.

    Args:
        place: the part of the run that is here.
    """

    def __init__(self, run_dir: RunDir, place: Place) -> None:
        self.run_dir, self.place = run_dir, place
        self.pids: dict[int, ProcessRef] = {}
        """Rank → its process, dead or alive."""
        self._records: dict[int, RankRecord] = {}
        self._said: dict[int, RankProbe] = {}
        self._said_agent: AgentProbe | None = None
        self._waiting: set[int] = set()
        self._with_env: set[int] = set()
        self._repeat_at = float("-inf")

    def look(self, now: float, *, ending: bool) -> Probes:
        """Return what changed; see `Processes.look`."""
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
        """Return the state; D only when it was D at the last look too."""
        if state is not ProcessState.UNINTERRUPTIBLE:
            self._waiting.discard(rank)
            return state
        seen_before = rank in self._waiting
        self._waiting.add(rank)
        return state if seen_before else ProcessState.ALIVE

    def _with_environment(self, probe: RankProbe) -> RankProbe:
        """Return the probe with the NSA_* names of its process, the first time it is seen."""
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
