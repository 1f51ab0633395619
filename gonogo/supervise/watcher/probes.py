"""What does the watcher see of a run's processes? State, exit stamp and environment of each.

A probe is reported when it differs from the last one, and all of them again every REPEAT_S, so
that a quiet run writes a short line now and then and a restarted watcher misses little. D state
counts when seen twice running: a read from disk passes through it. A process that a debugger has
stopped (py-spy does, for milliseconds) is alive. A rank that a command started itself and that is
gone is unknown as long as the command lives: a launcher may start it again. Once the run has been
asked to end, a rank's death is no observation about the trainer any more: exit.json tells it.
"""

from dataclasses import dataclass, field
from typing import Any

from gonogo.contract.tick import AgentProbe, NodeProbe, ProcessState, RankProbe, StackProbe
from gonogo.rundir import RunDir
from gonogo.supervise.durable import load_json
from gonogo.supervise.evidence.rounds import Target
from gonogo.supervise.exit_record import HALTED_CODE
from gonogo.supervise.launch.nodes import Place
from gonogo.supervise.processes import TOKEN_NAME, ProcessRef, load_environ
from gonogo.supervise.rank_record import RankRecords

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


@dataclass(slots=True, kw_only=True)
class Prober:
    """Looks at the processes of one run that are on this host.

    `pids` holds the rank processes that are known, whether or not they live.
    """

    run_dir: RunDir
    place: Place
    pids: dict[int, ProcessRef] = field(default_factory=dict)
    _records: RankRecords = field(init=False)
    _said: dict[int, RankProbe] = field(default_factory=dict)
    _said_agent: AgentProbe | None = None
    _waiting: set[int] = field(default_factory=set)
    _with_env: set[int] = field(default_factory=set)
    _repeat_at: float = float("-inf")

    def __post_init__(self) -> None:
        """Take the records of the run."""
        self._records = RankRecords(self.run_dir.path)

    def look(self, now: float, *, ending: bool) -> Probes:
        """Return what changed.

        Args:
            now: monotonic seconds.
            ending: whether the run was asked to end before this look.
        """
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
        """Say whether every rank that was started has ended."""
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
        """Return the nodes that are silent: this one is here."""
        return {}

    def is_quiet(self) -> bool:
        """Say whether another node may fall silent: there is no other."""
        return False

    def lost(self) -> dict[int, str]:
        """Return the nodes that are proven to have ended unsaid: this one has not."""
        return {}

    def may_be_victim(self, rank: int | None) -> bool:
        """Say whether another node's silence may have ended a rank: there is no other."""
        return False

    def _look_at(self, rank: int, agent: AgentProbe | None) -> RankProbe | None:
        record = self._records.of(rank)
        if record is None:
            return None
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
        """Return the state, D only when it was D at the last look too."""
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
            return probe  # gone, or overwritten (setproctitle): what it was nobody knows
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
    """Say whether a death after the request to end tells nothing about the trainer."""
    return probe.state is ProcessState.DEAD and probe.code not in (0, HALTED_CODE)


def nsa_names(raw: bytes) -> dict[str, str]:
    """Return the `NSA_*` names in a raw environment."""
    pairs = (part.decode("utf-8", "replace").partition("=") for part in raw.split(b"\0"))
    return {name: value for name, _, value in pairs if name.startswith("NSA_")}
