"""What a detector may read: the order, the ranks, the processes, and nothing else.

`Run` never changes; a `View` is what is known at one event. An event is a line (`Beat`) or the
watcher's tick. Findings are made here, so that every key carries run and attempt and every
threshold says where it came from.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from gonogo.contract.finding import Act, Finding, Severity, Source
from gonogo.contract.heartbeat import Heartbeat
from gonogo.contract.observation import DiskSeen, Kind, disk_of
from gonogo.contract.order import Order
from gonogo.contract.records import ProcessState, Tick
from gonogo.contract.watch import Patience, Place, Watch
from gonogo.timeline.lines import Arrival
from gonogo.timeline.rank import RankStream
from gonogo.timeline.timeline import SLEPT_S, Timeline
from gonogo.watch.processes import HELD, STOPPED_AFTER_S, Processes


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What was ordered; the same from the first event to the last."""

    order: Order
    from_profile: frozenset[str] = frozenset()
    watch: Watch = field(init=False)
    """Settings of all detectors."""
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
    """Kind of probe → its last payload."""

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
        """Whether the fresh ranks continued to send lines after the others had fallen silent.

        Ranks that fall silent together were not all heard at the same moment.
        """
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
        return process.state in HELD and (process.dead or process.held_s(mono) >= least_s)

    def skip_silence(self, tick: Tick) -> Tick:
        """Stop the clock for a silence of all ranks that a line has just ended.

        The ranks, or the disk that takes their lines, stood still. Returns the tick with active
        time.
        """
        silent_s = self.all_silent_s(tick.mono)
        if not silent_s:
            return tick
        self.clock.away_s += silent_s
        self.skipped_s = self._skipped_since_step() + silent_s
        self.skipped_at = self._stepped_mono()
        return tick.model_copy(update={"mono": tick.mono - silent_s})

    def all_silent_s(self, mono: float) -> float:
        """Return for how long all ranks have been silent at once.

        0.0 if the lines end with the silence. 0.0 if a rank was heard lately, is
        held, or names no sections. 0.0 once no step has ended for ALL_SILENT_S.
        """
        active = self.active()
        if self.at_end or not active or not all(row.labelled for row in active):
            return 0.0
        silent_s = mono - max(stream.heard_mono for stream in active)
        stood_s = mono - self._stepped_mono() + self._skipped_since_step()
        if silent_s <= self.run.watch.alive_lost.suspect_s or stood_s > ALL_SILENT_S:
            return 0.0
        return 0.0 if any(self.held(stream.rank, mono) for stream in active) else silent_s

    def _stepped_mono(self) -> float:
        """Return when a rank that still runs ended a step last."""
        return max(stream.advanced_mono for stream in self.active())

    def _skipped_since_step(self) -> float:
        """Return for how long the clock was stopped for silences since then."""
        return self.skipped_s if self.skipped_at == self._stepped_mono() else 0.0

    def is_another(self, ranks: Iterable[int]) -> bool:
        """Whether a rank has begun a second training."""
        streams = (self.streams.get(rank) for rank in ranks)
        return any(stream is not None and stream.another for stream in streams)

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
    rank: int | None = None,
    step: int | None = None,
    value: float | None = None,
    threshold: float | None = None,
    source: Source = Source.DEFAULT,
    since: float | None = None,
    act: Act | None = None,
    held: ProcessState | None = None,
    named: bool = True,
) -> Finding:
    """Return a finding; `stream` names the culprit with its section, step and last advance.

    Without `named` it accuses no rank. A halt acts now unless `act` says otherwise.
    """
    if act is None and severity is Severity.HALT:
        act = Act.NOW
    order = view.run.order
    accused = rank if stream is None else stream.rank if named else None
    if accused is not None and order.nodes > 1:
        text = f"{text} (rank {accused} is on {view.name_of(order.node_of(accused))})"
    return Finding(
        detector=detector,
        severity=severity,
        rank=accused,
        section=None if stream is None else stream.section,
        step=step if stream is None else stream.step,
        value=value,
        threshold=threshold,
        source=source,
        since=since if since is not None or stream is None else stream.advanced_ts,
        at=at,
        key=f"{order.run}/{order.attempt}/{detector}/{severity}/{episode}",
        act=act,
        held=held,
        text=text,
    )
