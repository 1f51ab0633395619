"""What may a detector look at? The run's order, the streams, the processes, and nothing else.

`Run` never changes; a `View` is what is known at one event. An event is a line (`Beat`) or the
watcher's tick. Findings are made here, so that every key carries run and attempt and every
threshold says where it came from.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from gonogo.contract.finding import Act, Finding, Severity, Source
from gonogo.contract.heartbeat import Heartbeat, Section
from gonogo.contract.observation import DiskSeen, Kind, disk_of
from gonogo.contract.order import Order
from gonogo.contract.tick import ProcessState, Tick
from gonogo.contract.watch import Watch
from gonogo.contract.workload import is_ours
from gonogo.timeline.clock import SLEPT_S
from gonogo.timeline.lines import Arrival
from gonogo.timeline.rank import RankStream
from gonogo.timeline.timeline import Timeline
from gonogo.watch.processes import HELD, STOPPED_AFTER_S, Process, Processes


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What was ordered; the same from the first event to the last."""

    order: Order
    from_profile: frozenset[str] = frozenset()

    @property
    def watch(self) -> Watch:
        """Settings of all detectors."""
        return self.order.watch

    def source(self, path: str) -> Source:
        """Return where the setting at a dotted path came from."""
        return self.order.watch.source_of(path, self.from_profile)

    def key(self, detector: str, severity: Severity, episode: str) -> str:
        """Return the key of a finding: one for each run, attempt, detector, stage and episode."""
        order = self.order
        return f"{order.run}/{order.attempt}/{detector}/{severity}/{episode}"

    def expected_step_s(self) -> float | None:
        """Return the step time at the profile's floor, where one is known."""
        tokens, floor = self.order.identity.tokens_per_step, self.watch.slow.floor_tok_s
        return tokens / floor if tokens and floor else None


class Beat(NamedTuple):
    """One accepted line, and the tick that brought it."""

    line: Heartbeat
    arrival: Arrival
    tick: Tick


LATE_INTERVALS = 3.0
ALL_SILENT_S, ALL_SILENT_X = 900.0, 15.0
"""Seconds, and times `alive_lost.halt_s`, after which silence of all ranks at once is their own,
where their processes are seen alive; the larger counts."""
UNNAMED_SILENT_X = 4.0
"""The same has so many times as long where a program names no sections, and so speaks little."""
ANEW_SILENT_X = 2.0
"""So it has where a user's program is started anew in place: it attaches after it has loaded."""
TOGETHER_SHARE = 0.5
"""Of `alive_lost.suspect_s`: ranks whose last lines are no further apart fell silent together. A
rank that lives speaks within that time."""


LONG_X = 2.0
"""Times the median step: no longer than that computes what is no long step."""
LATE_WAY_S = 1800.0
"""Seconds of nothing but late ticks, after which one as late as they may call a deadline missed."""
_PLACES = frozenset({Section.BOOT, Section.DATA, Section.CHECKPOINT, Section.EVAL})


def is_late(tick: Tick) -> bool:
    """Whether the watcher itself came so late that it cannot tell what missed a deadline."""
    return tick.late_s > LATE_INTERVALS * tick.interval_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """A deadline in seconds, and where it came from."""

    seconds: float
    source: Source


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """The last that a probe of one kind has told."""

    mono: float
    """Watcher's clock of the tick that brought it."""
    ts: float
    payload: Any


@dataclass(slots=True, kw_only=True)
class View(Timeline):
    """What is known at one event. Detectors read it; only the fold moves it on."""

    run: Run
    processes: Processes = field(default_factory=Processes)
    hosts: dict[int, str] = field(default_factory=dict)
    """Node → what its host is called, as far as it has told."""
    watched: bool = True
    """Whether ticks are a watcher's (live or recorded), not made up from the lines themselves."""
    goes_on: bool = False
    """Where nobody watched: whether more lines are known to follow."""
    ends: bool = False
    """Whether a halt was found that acts now: what dies from then on dies of that. One that waits
    for a checkpoint has ended nothing yet."""
    started_mono: float | None = None
    """The first tick that brought anything."""
    observed: dict[str, Observed] = field(default_factory=dict)
    """Kind of probe → the last that it told."""
    late_since_mono: float = 0.0
    """When the first came of late ticks running."""
    late_n: int = -2
    """Number of the last of them."""

    def note(self, tick: Tick) -> None:
        """Take note of a late tick; one that is not need not be recorded, and changes nothing."""
        if not is_late(tick):
            return
        if tick.n != self.late_n + 1:
            self.late_since_mono = tick.mono
        self.late_n = tick.n

    def is_late(self, tick: Tick) -> bool:
        """Whether a tick is too late to tell what missed a deadline.

        A watcher that never comes in time, on a host that is too busy, would halt nothing for ever:
        after half an hour of that its lateness is its way.
        """
        if not is_late(tick):
            return False
        by_its_way = tick.n == self.late_n and tick.mono - self.late_since_mono > LATE_WAY_S
        return tick.late_s > SLEPT_S or not by_its_way

    def name_of(self, node: int) -> str:
        """Return what to call a node: by its number, and by its host's name."""
        return f"node {node}, host {self.hosts[node]}" if node in self.hosts else f"node {node}"

    def active(self) -> list[RankStream]:
        """Return the ranks that spoke and have neither finished nor died."""
        return [
            stream
            for rank, stream in self.streams.items()
            if not stream.done and not self.processes.of(rank).dead
        ]

    def cut_off(self, stream: RankStream, mono: float) -> bool:
        """Whether a rank stands behind a cut: on a node that nobody hears, as its lines are not.

        Its silence is nobody's: whether it goes on its peers tell, who would stand without it.
        """
        if self.run.order.nodes < 2:
            return False
        unseen = self.processes.of(stream.rank).state is ProcessState.UNKNOWN
        return unseen and mono - stream.heard_mono > self.run.watch.alive_lost.suspect_s

    def known(self, streams: list[RankStream], mono: float) -> list[RankStream]:
        """Return those of whom it is known where they are.

        Who is cut off is not, once a peer has moved on since: it cannot be where it was heard last.
        Nor is one that was heard on its way from one section to another.
        """
        heard = [stream for stream in streams if not self.cut_off(stream, mono)]
        if len(heard) == len(streams) or not heard:
            return streams
        moved_mono = max(stream.advanced_mono for stream in heard)
        return [s for s in streams if s in heard or (s.heard_mono >= moved_mono and _stays(s))]

    def fresh(self, streams: Iterable[RankStream], mono: float) -> list[RankStream]:
        """Return those that were heard within the liveness limit."""
        limit_s = self.run.watch.alive_lost.suspect_s
        return [stream for stream in streams if mono - stream.heard_mono <= limit_s]

    def speak_on(self, streams: Sequence[RankStream], fresh: Sequence[RankStream]) -> bool:
        """Whether some ranks, the fresh ones, went on speaking when others had fallen silent.

        Ranks that fall silent together were not all heard at the same moment: for as long the one
        is silent already and the other is not yet.
        """
        known = {stream.rank for stream in fresh}
        silent = [stream.heard_mono for stream in streams if stream.rank not in known]
        if not silent or not fresh:
            return False
        later_s = max(stream.heard_mono for stream in fresh) - min(silent)
        return later_s > TOGETHER_SHARE * self.run.watch.alive_lost.suspect_s

    def held(self, rank: int, mono: float) -> bool:
        """Whether a rank's process is dead, or has been stopped or uninterruptible for a while.

        A write to a slow disk, a page that comes back from swap, a debugger that looks: all hold a
        healthy process for a moment. Uninterruptible sleep says something once it has lasted as
        long as silence must to be suspect; not where the rank had been silent for as long before it
        fell asleep: its lines do not come through, and it may write a checkpoint. Nor, before a
        checkpoint has had its time, where it names no sections, or where nobody is heard at all: a
        disk that hangs holds the ranks and their lines, and what sleeps so is not killed either.
        """
        process = self.processes.of(rank)
        if process.state not in HELD:
            return False
        least_s = self.run.watch.alive_lost.suspect_s
        if process.state is ProcessState.STOPPED:
            least_s = min(least_s, STOPPED_AFTER_S)
        if process.state is ProcessState.UNINTERRUPTIBLE:
            if self._unheard(rank, process, least_s):
                return False
            stream = self.streams.get(rank)
            unnamed = stream is not None and not stream.labelled
            if unnamed or self._none_is_heard(mono, least_s):
                least_s = max(least_s, self.run.watch.section_deadline.checkpoint.halt_s)
        return process.dead or process.held_s(mono) >= least_s

    def _unheard(self, rank: int, process: Process, limit_s: float) -> bool:
        """Whether a rank that speaks while it works was silent for long before it fell asleep."""
        stream = self.streams.get(rank)
        if stream is None or not stream.labelled or process.held_mono is None:
            return False
        return process.held_mono - stream.heard_mono > limit_s

    def _none_is_heard(self, mono: float, limit_s: float) -> bool:
        """Whether no rank has been heard for so long, of those that have spoken."""
        active = self.active()
        return bool(active) and all(mono - stream.heard_mono > limit_s for stream in active)

    def all_silent_s(self, mono: float) -> float:
        """Return for how long all ranks have been silent at once, as only what stands still is.

        0.0 for a watched run, and for one that ends with the silence. 0.0 if a rank was heard
        lately, is held, or names no sections. 0.0 once no step has ended for `silence_limit_s`.
        """
        active = self.active()
        if not self.goes_on or not active or not all(row.labelled for row in active):
            return 0.0
        silent_s = mono - max(stream.heard_mono for stream in active)
        stood_s = mono - max(stream.advanced_mono for stream in active)
        if silent_s <= self.run.watch.alive_lost.suspect_s or stood_s > self.silence_limit_s():
            return 0.0
        return 0.0 if any(self.held(stream.rank, mono) for stream in active) else silent_s

    def is_another(self, ranks: Iterable[int]) -> bool:
        """Whether one of the ranks is in another training than the one that it had ended before."""
        streams = (self.streams.get(rank) for rank in ranks)
        return any(stream is not None and stream.another for stream in streams)

    def reads_output(self) -> bool:
        """Whether the lines were read from what the program printed, by another clock than its."""
        if not self.run.order.patterns:
            return False
        return not any(stream.labelled for stream in self.streams.values())

    def tokens_of(self, rank: int) -> tuple[int | None, int]:
        """Return the tokens that a rank told last, and of which step.

        Where it tells none, the most of its peers; of a pipeline the last rank alone may know them.
        """
        stream = self.streams.get(rank)
        if stream is not None and stream.tokens:
            return stream.tokens, stream.tokens_step
        told = [(row.tokens, row.tokens_step) for row in self.streams.values() if row.tokens]
        return max(told, default=(None, 0))

    def median_step_s(self) -> float | None:
        """Return m: the largest of the ranks' median step times."""
        medians = (row.pace.median_s for row in self.streams.values())
        return max((median for median in medians if median is not None), default=None)

    def longest_step_s(self) -> float:
        """Return what the longest of the last steps computed, of the rank that tells the least.

        A rank that waits in its backward for a peer's loader or checkpoint has computed for as long
        as that took; the peer has not, in that step or in those beside it. A rank may wait there
        for what a peer computes before that ends the step before. What is no longer than `LONG_X`
        median steps is no long step.
        """
        paces = [row.pace for _, row in sorted(self.streams.items())]
        timed = [pace for pace in paces if pace.median_s is not None]
        least_s, longest_s = LONG_X * (self.median_step_s() or 0.0), 0.0
        told = timed[0].computed_times_s.items() if timed else ()
        for step_s, step in sorted(((s, step) for step, s in told if s > least_s), reverse=True):
            if step_s <= longest_s:
                break
            stride = timed[0].stride
            of_all = (row.computed_near_s(step, max(stride, row.stride)) for row in timed[1:])
            longest_s = max(longest_s, min([step_s, *of_all]))
        return longest_s

    def silence_limit_s(self) -> float:
        """Return for how long all ranks may be silent at once before that is their own."""
        return max(ALL_SILENT_S, ALL_SILENT_X * self.run.watch.alive_lost.halt_s)

    def went_unheard(self, streams: list[RankStream], stream: RankStream, mono: float) -> bool:
        """Whether nobody was heard since a rank told that it goes from one section to another.

        Where it is by now its last line does not tell, nor does a stack that stands.
        """
        silent = self.watched and not self.fresh(streams, mono)
        return silent and not _stays(stream) and not self.held(stream.rank, mono)

    def lines_are_refused(self) -> bool:
        """Whether the file system takes no lines, as far as the watcher has tried."""
        disk = self.disk()
        return disk is not None and disk.refused

    def disk(self) -> DiskSeen | None:
        """Return the file system where the run writes, as the watcher saw it last."""
        seen = self.observed.get(Kind.DISK)
        return None if seen is None else disk_of(seen.payload)

    def testified(self, streams: list[RankStream], culprit: RankStream, mono: float) -> bool:
        """Whether a deadline may be called missed, rather than lines lost on their way.

        All ranks silent at once may be the transport: that is UNKNOWN, until a probe shows the
        culprit held, or every rank's main thread in one place since, of late, too, and holding the
        interpreter. What never comes back is not the transport: a native call that holds the
        interpreter for ever leaves the processes alive, and where no stack can be read, or tells
        of that, their silence speaks after a quarter of an hour. Where nobody
        watched, the files are all there is: their silence is the ranks' own, unless all go silent
        at once and a rank is heard again before that quarter is over. While the file
        system takes no lines, silence is its own, for as long as that lasts, and one rank's too:
        another may still have room in its last block. A culprit that is heard all the same (no file
        can be made, but those that are there take lines) says itself where it stands. A process
        that another one has followed, which has not spoken yet, stands nowhere.
        """
        if self.held(culprit.rank, mono):
            return True
        if not self.watched:
            return self.all_silent_s(mono) == 0.0
        if self.lines_are_refused():
            return bool(self.fresh([culprit], mono))
        if self._starts_anew(culprit):
            return mono - culprit.heard_mono > ANEW_SILENT_X * self.silence_limit_s()
        if self.fresh(streams, mono):
            return True
        if all(self.processes.is_mute(s.rank, s.heard_mono, mono) for s in streams):
            return True
        if any(self.processes.of(s.rank).state is ProcessState.UNKNOWN for s in streams):
            return False
        limit_s = self.silence_limit_s()
        if not culprit.labelled:
            limit_s *= UNNAMED_SILENT_X
        return mono - max(stream.heard_mono for stream in streams) > limit_s

    def _starts_anew(self, stream: RankStream) -> bool:
        """Whether a rank of a user's program is another process by now than the one heard last."""
        process, order = self.processes.of(stream.rank), self.run.order
        if process.renewed_mono is None or is_ours(order.entry, order.command):
            return False
        return process.renewed_mono > stream.heard_mono and process.pid != stream.pid


def _stays(stream: RankStream) -> bool:
    """Whether a rank's last line told a place in which it may be for long."""
    return stream.computing or stream.section in _PLACES


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
    named: bool = True,
) -> Finding:
    """Return a finding; `stream` names the culprit with its section, step and last advance.

    Without `named` it tells where the run stands, but accuses no rank of it. `act` says when
    something is done; a halt acts now unless it says otherwise.
    """
    if act is None and severity is Severity.HALT:
        act = Act.NOW
    accused = rank if stream is None else stream.rank if named else None
    if accused is not None and view.run.order.nodes > 1:
        text = f"{text} (rank {accused} is on {view.name_of(view.run.order.node_of(accused))})"
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
        key=view.run.key(detector, severity, episode),
        act=act,
        text=text,
    )
