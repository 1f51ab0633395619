"""What a detector may read: the order, the ranks, the processes, and nothing else.

`Run` never changes; a `View` is what is known at one event: a line (`Beat`) or the watcher's tick.
A probe holds until the next one. What was never probed is UNKNOWN, and nothing is concluded from
it.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from gonogo.contract.finding import Act, Finding, Severity, Source
from gonogo.contract.heartbeat import Heartbeat
from gonogo.contract.observation import DiskSeen, Kind, disk_of
from gonogo.contract.order import Order
from gonogo.contract.records import AgentProbe, ProcessState, RankProbe, StackProbe, Tick
from gonogo.contract.watch import Patience, Place, Watch
from gonogo.timeline.lines import Arrival
from gonogo.timeline.rank import RankStream
from gonogo.timeline.timeline import SLEPT_S, Timeline

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What was ordered; the same from the first event to the last."""

    order: Order
    from_profile: frozenset[str] = frozenset()
    watch: Watch = field(init=False)
    patience: Mapping[Place, Patience] = field(init=False)
    """How long a rank may stay in each place."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "watch", self.order.watch)
        object.__setattr__(self, "patience", self.order.limits_of_places())

    def source(self, path: str) -> Source:
        """Return where the setting at a dotted path came from."""
        return self.order.watch.source_of(path, self.from_profile)


class Beat(NamedTuple):
    """One accepted line, and the tick that delivered it."""

    line: Heartbeat
    arrival: Arrival
    tick: Tick


ALL_SILENT_S = 900.0
"""A longer silence of all ranks with living processes is the ranks' own."""
TOGETHER_SHARE = 0.5
"""Share of `alive_lost.suspect_s`: ranks with last lines within it fell silent together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """The last payload of one kind of probe."""

    mono: float
    """Watcher's clock of the tick that delivered it."""
    ts: float
    payload: Any


@dataclass(slots=True, kw_only=True)
class View(Timeline):
    """What is known at one event. Detectors read it; only the fold moves it on."""

    run: Run
    processes: Processes = field(default_factory=Processes)
    hosts: dict[int, str] = field(default_factory=dict)
    """Node → the name of its host, if known."""
    watched: bool = True
    """Whether ticks are a watcher's (live or recorded), not made up from the lines themselves."""
    at_end: bool = False
    """Whether no more lines will follow, so that silence is the ranks' own."""
    ends: bool = False
    """Whether a halt was found that acts now. What dies from then on dies of that halt."""
    started_mono: float | None = None
    """The first tick that delivered anything."""
    skipped_s: float = 0.0
    """For how long the clock was stopped because all ranks were silent, since `skipped_at`."""
    skipped_at: float | None = None
    """End of the latest step at the moment when the clock was last stopped."""
    observed: dict[str, Observed] = field(default_factory=dict)

    def is_late(self, tick: Tick) -> bool:
        """Whether the watcher was suspended or away, so that a missed deadline may be its own."""
        return tick.late_s > SLEPT_S

    def name_of(self, node: int) -> str:
        """Return what to call a node: by its number, and by its host's name."""
        return f"node {node}, host {self.hosts[node]}" if node in self.hosts else f"node {node}"

    def active(self) -> list[RankStream]:
        """Return the ranks that sent a line and have neither finished nor died."""
        return [
            stream
            for rank, stream in self.streams.items()
            if not stream.done and not self.processes.of(rank).dead
        ]

    def cut_off(self, stream: RankStream, mono: float) -> bool:
        """Whether a rank is on a node that nobody hears, so that its silence shows nothing."""
        if self.run.order.nodes < 2:
            return False
        unseen = self.processes.of(stream.rank).state is ProcessState.UNKNOWN
        return unseen and mono - stream.heard_mono > self.run.watch.alive_lost.suspect_s

    def fresh(self, streams: Iterable[RankStream], mono: float) -> list[RankStream]:
        """Return those that were heard within the liveness limit."""
        limit_s = self.run.watch.alive_lost.suspect_s
        return [stream for stream in streams if mono - stream.heard_mono <= limit_s]

    def speak_on(self, streams: Sequence[RankStream], fresh: Sequence[RankStream]) -> bool:
        """Whether the fresh ranks continued to send lines after the others had fallen silent."""
        known = {stream.rank for stream in fresh}
        silent = [stream.heard_mono for stream in streams if stream.rank not in known]
        if not silent or not fresh:
            return False
        later_s = max(stream.heard_mono for stream in fresh) - min(silent)
        return later_s > TOGETHER_SHARE * self.run.watch.alive_lost.suspect_s

    def held(self, rank: int, mono: float) -> bool:
        """Whether a rank's process is dead, or has been stopped or uninterruptible for a while.

        A debugger stops a healthy process for a moment. A slow disk holds a healthy process in
        uninterruptible sleep, and its lines too: such a process is held only while it sends lines.
        """
        process, least_s = self.processes.of(rank), self.run.watch.alive_lost.suspect_s
        if process.state is ProcessState.STOPPED:
            least_s = min(least_s, STOPPED_AFTER_S)
        if process.state is ProcessState.UNINTERRUPTIBLE:
            stream = self.streams.get(rank)
            if stream is None or not self.fresh([stream], mono):
                return False
        return process.dead or process.held_s(mono) >= least_s

    def skip_silence(self, tick: Tick) -> Tick:
        """Return the tick in active time: the clock stops for a silence of all that ends now."""
        silent_s = self.all_silent_s(tick.mono)
        if not silent_s:
            return tick
        self.clock.away_s += silent_s
        self.skipped_s = self._skipped_since_step() + silent_s
        self.skipped_at = self._stepped_mono()
        return tick.model_copy(update={"mono": tick.mono - silent_s})

    def all_silent_s(self, mono: float) -> float:
        """Return for how long all ranks have been silent at once.

        0.0 if a rank was heard lately, is held, or names no sections, at the end of the lines,
        and once no step has ended for ALL_SILENT_S.
        """
        active = self.active()
        if self.at_end or not active or not all(row.labelled for row in active):
            return 0.0
        silent_s = mono - max(stream.heard_mono for stream in active)
        stood_s = mono - self._stepped_mono() + self._skipped_since_step()
        held = any(self.held(stream.rank, mono) for stream in active)
        if held or silent_s <= self.run.watch.alive_lost.suspect_s or stood_s > ALL_SILENT_S:
            return 0.0
        return silent_s

    def _stepped_mono(self) -> float:
        """Return when a rank that still runs ended a step last."""
        return max(stream.advanced_mono for stream in self.active())

    def _skipped_since_step(self) -> float:
        """Return for how long the clock was stopped for silences since then."""
        return self.skipped_s if self.skipped_at == self._stepped_mono() else 0.0

    def is_another(self, ranks: Iterable[int]) -> bool:
        """Whether a rank has begun a second training."""
        return any(self.streams[rank].another for rank in ranks)

    def reads_output(self) -> bool:
        """Whether the lines were read from what the program printed."""
        if not self.run.order.patterns:
            return False
        return not any(stream.labelled for stream in self.streams.values())

    def median_step_s(self) -> float | None:
        """Return m: the largest of the ranks' median step times."""
        medians = (row.pace.median_s for row in self.streams.values())
        return max((median for median in medians if median is not None), default=None)

    def lines_are_refused(self) -> bool:
        """Whether the file system takes no lines, as far as the watcher has tried."""
        disk = self.disk()
        return disk is not None and disk.refused

    def disk(self) -> DiskSeen | None:
        """Return the file system where the run writes, as the watcher saw it last."""
        seen = self.observed.get(Kind.DISK)
        return None if seen is None else disk_of(seen.payload)


def found(
    view: View,
    detector: str,
    severity: Severity,
    *,
    episode: str,
    at: float,
    text: str,
    stream: RankStream | None = None,
    **fields: Any,
) -> Finding:
    """Return a finding; `stream` names the culprit with its section, step and last advance.

    With `rank=None` it accuses no rank. A halt acts now unless `act` says otherwise.
    """
    order = view.run.order
    if stream is not None:
        fields = {"since": stream.advanced_ts, "rank": stream.rank, **fields}
        fields |= {"section": stream.section, "step": stream.step}
    if fields.get("act") is None and severity is Severity.HALT:
        fields["act"] = Act.NOW
    accused = fields.get("rank")
    if accused is not None and order.nodes > 1:
        text = f"{text} (rank {accused} is on {view.name_of(order.node_of(accused))})"
    key = f"{order.run}/{order.attempt}/{detector}/{severity}/{episode}"
    return Finding(detector=detector, severity=severity, at=at, key=key, text=text, **fields)
