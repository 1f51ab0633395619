"""What did the watcher see of the processes? The last probe of each, and when it first was dead.

A probe reports what it saw at its tick. It holds until the next one: a watcher may send changes
only. What was never probed is UNKNOWN, and nothing is concluded from it.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from gonogo.contract.records import AgentProbe, ProcessState, RankProbe, StackProbe, Tick

HELD = frozenset({ProcessState.STOPPED, ProcessState.UNINTERRUPTIBLE, ProcessState.DEAD})
"""States in which a process does nothing, whatever its last line reports."""
STOPPED_AFTER_S = 5.0
"""A process that is stopped for less was looked at by a debugger, or moved by its host."""
SAME_STACKS_AFTER_S = 5.0
FRESH_STACKS_S = 30.0
"""After this time a stack no longer shows where a rank is: it stood for a moment, then
continued."""
IDLE_SHARE = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """A rank's process (or the agent's, with rank -1)."""

    state: ProcessState = ProcessState.UNKNOWN
    pid: int | None = None
    renewed_mono: float | None = None
    """Watcher's clock of the first probe that found another process in its place."""
    code: int | None = None
    signal: int | None = None
    exit_at: float | None = None
    dead_mono: float | None = None
    """Watcher's clock of the first probe that found it dead."""
    held_mono: float | None = None
    """The same of the first of the probes running that found it in its present held state."""
    env: Mapping[str, str] | None = None
    lost_peer: bool = False
    """Whether its own last error was that another rank was gone."""
    node: int | None = None
    """Node of the launcher, if a run has several nodes."""

    @property
    def dead(self) -> bool:
        """Whether it is gone."""
        return self.state is ProcessState.DEAD

    def held_s(self, mono: float) -> float:
        """Return for how long it has been seen stopped, uninterruptible or dead; 0.0: it is not."""
        if self.state not in HELD:
            return 0.0
        return math.inf if self.held_mono is None else max(0.0, mono - self.held_mono)


_NEVER_PROBED = Process()


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """One stack reading and when it was taken."""

    mono: float
    probe: StackProbe


@dataclass(frozen=True, slots=True, kw_only=True)
class Processes:
    """Everything that probes have reported."""

    ranks: Mapping[int, Process] = field(default_factory=dict)
    agent: Process = Process()
    stacks: Mapping[int, tuple[Stack, ...]] = field(default_factory=dict)
    """Rank → its last two readings."""

    def of(self, rank: int) -> Process:
        """Return what is known of a rank's process."""
        return self.ranks.get(rank, _NEVER_PROBED)

    def waits(self, rank: int, since_mono: float) -> bool | None:
        """Return whether a rank's last stack waits in a collective; None when not known.

        A stack that was read before `since_mono` (watcher's clock) is of another moment.
        """
        readings = self.stacks.get(rank, ())
        if not readings or readings[-1].mono < since_mono:
            return None
        return readings[-1].probe.waiting

    def stands(self, rank: int, since_mono: float, mono: float) -> bool:
        """Whether two readings of a rank's stack, far enough apart, are the same, and of late."""
        readings = self.stacks.get(rank, ())
        if len(readings) < 2:
            return False
        first, last = readings[0], readings[-1]
        return (
            first.mono >= since_mono
            and mono - last.mono <= FRESH_STACKS_S
            and last.mono - first.mono >= SAME_STACKS_AFTER_S
            and first.probe.digest is not None
            and first.probe.digest == last.probe.digest
        )

    def idles(self, rank: int) -> bool:
        """Whether a rank used next to no CPU between its last two readings, children included."""
        readings = self.stacks.get(rank, ())
        if len(readings) < 2:
            return False
        first, last = readings[0], readings[-1]
        if first.probe.cpu_s is None or last.probe.cpu_s is None or last.mono <= first.mono:
            return False
        return (last.probe.cpu_s - first.probe.cpu_s) / (last.mono - first.mono) < IDLE_SHARE


def seen_by(processes: Processes, tick: Tick) -> Processes:
    """Return what is known after a tick's probes."""
    if not (tick.ranks or tick.agent or tick.stacks):
        return processes
    ranks = dict(processes.ranks)
    for probe in tick.ranks:
        known = _probed(processes.of(probe.rank), probe, tick.mono)
        ranks[probe.rank] = replace(
            known,
            exit_at=known.exit_at if probe.exit_at is None else probe.exit_at,
            env=known.env if probe.env is None else probe.env,
            lost_peer=known.lost_peer or probe.lost_peer,
        )
    agent = processes.agent
    if tick.agent is not None:
        node = agent.node if agent.dead else tick.agent.node
        agent = replace(_probed(agent, tick.agent, tick.mono), node=node)
    stacks = dict(processes.stacks)
    for stack in tick.stacks:
        before = stacks.get(stack.rank, ())[-1:]
        stacks[stack.rank] = (*before, Stack(mono=tick.mono, probe=stack))
    return Processes(ranks=ranks, agent=agent, stacks=stacks)


def _probed(known: Process, probe: RankProbe | AgentProbe, mono: float) -> Process:
    """Return what is known of a process after one probe; the first death is kept."""
    if known.dead and probe.state is not ProcessState.DEAD:
        return known
    dead_mono = known.dead_mono
    if probe.state is ProcessState.DEAD and dead_mono is None:
        dead_mono = mono
    held_mono = None
    if probe.state in HELD:
        held_mono = known.held_mono if probe.state is known.state else mono
    pid = known.pid if probe.pid is None else probe.pid
    is_another = None not in (known.pid, pid) and pid != known.pid
    return replace(
        known,
        state=probe.state,
        pid=pid,
        renewed_mono=mono if is_another else known.renewed_mono,
        code=known.code if probe.code is None else probe.code,
        signal=known.signal if probe.signal is None else probe.signal,
        dead_mono=dead_mono,
        held_mono=held_mono,
    )
