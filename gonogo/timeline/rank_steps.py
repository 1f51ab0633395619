"""The steps of one rank: what each of its processes reported, in whatever order its lines came.

`RankSteps.take` is called once for each distinct line. The processes are ordered as the watcher's
ticks name them. If the ticks do not name all, their first stamps on the monotonic clock decide.
Within a process the line with the highest `seq` counts; one that came late only fills what is
missing. If two processes reported a step, the later process counts.
"""

from array import array
from bisect import insort
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from operator import itemgetter
from statistics import fmean

from gonogo.contract.heartbeat import NON_TRAINING_SECTIONS, Heartbeat, Identity, Msg
from gonogo.log_errors import MOST_ERROR_CHARS
from gonogo.timeline.columns import BITS, StepTable
from gonogo.timeline.lines import Arrival, LineRecord, read_line

MOST_NAMES = 64
"""Names of one process that are kept; a trainer writes no more."""


@dataclass(slots=True, eq=False)
class OwnColumn:
    """One number of one process: three columns, one row for each line that reported it."""

    seqs: "array[int]" = field(default_factory=lambda: array("q"))
    steps: "array[int]" = field(default_factory=lambda: array("q"))
    values: "array[float]" = field(default_factory=lambda: array("d"))

    def samples(self) -> dict[int, float]:
        """Return step → value; of several lines of one step the one with the highest `seq`."""
        rows = sorted(zip(self.seqs, self.steps, self.values, strict=True), key=itemgetter(0))
        return {step: value for _, step, value in rows}


Columns = dict[str, OwnColumn]


def keep(columns: Columns, beat: Heartbeat) -> None:
    """Keep the numbers of a line; of the first `MOST_NAMES` names."""
    for name, value in (beat.user or {}).items():
        column = columns.get(name)
        if column is None:
            if len(columns) == MOST_NAMES:
                continue
            column = columns[name] = OwnColumn()
        column.seqs.append(beat.seq)
        column.steps.append(beat.step)
        column.values.append(value)


LOADER_FAILED = "loader_error"
"""The line that stands behind an error of a data loader; the library of failures knows it."""
MAX_PIDS = 4
MOST_BOOT_LINES = 8
"""Boot lines of one process that are kept: the first ones, and the last."""
LEFT_OUT_OF = 20
"""One in so many of the times between steps, the longest ones, is not counted as usual."""
MOST_BETWEEN = 100_000
"""Most steps between two lines that are timed: a line may name any step."""
_BITS = {msg.value: bit for msg, bit in BITS.items()}
_STEP_END = Msg.STEP_END
_AGAIN = frozenset({Arrival.DUPLICATE, Arrival.CONFLICT})


@dataclass(slots=True, eq=False)
class BootSteps:
    """One process of a rank."""

    boot: str
    steps: StepTable = field(default_factory=StepTable)
    evaluations: dict[int, Heartbeat] = field(default_factory=dict)
    """Step → its last `eval` line, with a loss if any has one."""
    own: Columns = field(default_factory=dict)
    """The program's own numbers."""
    pauses: set[int] = field(default_factory=set)
    """Steps at which the process evaluated or saved."""
    began_mono: float = float("inf")
    ended_mono: float = float("-inf")
    stepped_mono: float = float("inf")
    """Stamp of the first line about a step. The start, and the wait for .GO, come before."""
    low: int = 1
    """The lowest seq, at most 1: it begins at 0 or 1."""
    top: int = 0
    """The highest seq."""
    section: str | None = None
    """The section on the line with the highest seq."""
    count: int = 0
    boot_lines: list[Heartbeat] = field(default_factory=list)
    """In the order of `seq`."""
    done: Heartbeat | None = None
    """The last `done` line."""
    ended_seq: int | None = None
    """Seq of the first `step_end` line."""
    error_seq: int | None = None
    """Seq of the first `error` line."""
    pids: list[int] = field(default_factory=list)
    errors: dict[str, tuple[int, tuple[str, ...]]] = field(default_factory=dict)
    """`error` and `loader_error` → seq and lines of the last report."""
    loader_s: float | None = None
    """Seconds until the first batch was there."""
    unobserved: Heartbeat | None = None
    """The line by which the observer reported that it failed."""

    def take(self, beat: Heartbeat) -> None:
        """Take one line of this process."""
        seq, mono = beat.seq, beat.mono
        self.count += 1
        if mono < self.began_mono:
            self.began_mono = mono
        if mono > self.ended_mono:
            self.ended_mono = mono
        late = seq < self.top
        if not late:
            self.top, self.section = seq, beat.section
        if seq < self.low:
            self.low = seq
        if beat.pid not in self.pids and len(self.pids) < MAX_PIDS:
            self.pids = sorted([*self.pids, beat.pid])
        if beat.user:
            keep(self.own, beat)
        bit = _BITS.get(beat.msg)
        if bit is None:
            self._take_other(beat)
            return
        if mono < self.stepped_mono:
            self.stepped_mono = mono
        if beat.msg == _STEP_END and (self.ended_seq is None or seq < self.ended_seq):
            self.ended_seq = seq
        self.steps.take(beat, bit, late=late)

    def _take_other(self, beat: Heartbeat) -> None:
        msg = beat.msg
        if beat.section in NON_TRAINING_SECTIONS or msg in (Msg.EVAL, Msg.CHECKPOINT):
            self.pauses.add(beat.step)
        if msg == Msg.EVAL:
            lines = (beat, self.evaluations.get(beat.step, beat))
            last = max(lines, key=lambda line: (line.val_loss is not None, line.seq))
            self.evaluations[beat.step] = last
        elif msg == Msg.BOOT:
            insort(self.boot_lines, beat, key=lambda line: line.seq)
            del self.boot_lines[MOST_BOOT_LINES - 1 : -1]
        elif msg == Msg.DONE and (self.done is None or beat.seq >= self.done.seq):
            self.done = beat
        elif msg == Msg.LOADER_READY and self.loader_s is None:
            self.loader_s = beat.dt
        elif msg in (Msg.ERROR, Msg.LOADER_ERROR):
            self._take_error(beat)
        elif msg == Msg.UNOBSERVED:
            self.unobserved = beat

    def _take_error(self, beat: Heartbeat) -> None:
        told = f"{beat.type or 'Error'}: {beat.text or ''}"[:MOST_ERROR_CHARS].splitlines()
        error = beat.seq, (*told, *((LOADER_FAILED,) if beat.msg == Msg.LOADER_ERROR else ()))
        self.errors[beat.msg] = max(self.errors.get(beat.msg, error), error)
        if beat.msg == Msg.ERROR and (self.error_seq is None or beat.seq < self.error_seq):
            self.error_seq = beat.seq

    @property
    def boot_line(self) -> Heartbeat | None:
        """The last boot line."""
        return self.boot_lines[-1] if self.boot_lines else None

    @property
    def ended_steps(self) -> int:
        """Number of steps that the process ended."""
        return sum(1 for _ in self.steps.steps_of(Msg.STEP_END))

    @property
    def last_step(self) -> int:
        """Highest step that ended; a rank that never writes `step_end` may only write progress."""
        ended = max((step for step, _ in self.steps.steps_of(Msg.STEP_END)), default=None)
        if ended is None:
            return max((step for step, _ in self.steps.steps_of(Msg.PROGRESS)), default=0)
        return ended

    def identity(self) -> Identity | None:
        """Return the identity on its boot line."""
        line = self.boot_line
        return None if line is None else line.identity()

    def trained_as(self) -> list[Identity]:
        """Return the identities under which the process ended steps."""
        first, lines = self.ended_seq, self.boot_lines
        if first is None:
            return []
        before = [line for line in lines if line.seq < first][-1:]
        since = [line for line in lines if line.seq > first]
        return [line.identity() for line in before + since]


def samples_of(boots: Iterable[BootSteps], name: str) -> dict[int, float]:
    """Return step → a number of a rank; that of a step which a later process made again is dropped.

    Args:
        boots: the processes of the rank in their order.
        name: as the program calls it.
    """
    found: dict[int, float] = {}
    for boot in boots:
        for step in boot.steps.windows() if found else ():
            found.pop(step, None)
        if name in boot.own:
            found |= boot.own[name].samples()
    return dict(sorted(found.items()))


class RankSteps:
    """One rank, by process and by step."""

    def __init__(self, beats: Iterable[Heartbeat] = ()) -> None:
        self._boots: dict[str, BootSteps] = {}
        self._ordered: list[BootSteps] | None = None
        self._merged: StepTable | None = None
        self._named: tuple[str, ...] = ()
        self.told_by_devices: Mapping[str, Mapping[int, float]] = {}
        """Metric → step → value, from the device samples; `lay_over` fills it."""
        self.pauses_of_any: frozenset[int] = frozenset()
        """Steps at which any rank evaluated or saved; `share_pauses` fills it."""
        self.evaluated_by_any: frozenset[int] = frozenset()
        """Steps after which any rank evaluated; `share_pauses` fills it."""
        self.all_ranks: Iterable[RankSteps] = ()
        """All ranks in their order; `share_pauses` fills it."""
        for beat in beats:
            self.take(beat)

    def take(self, beat: Heartbeat) -> None:
        """Take one line; each distinct line once."""
        boot = self._boots.get(beat.boot)
        if boot is None:
            boot = self._boots[beat.boot] = BootSteps(beat.boot)
            self._ordered = None
        boot.take(beat)
        self._merged = None

    def order_by(self, named: Iterable[str]) -> None:
        """Set the order in which the ticks name the processes."""
        self._named = tuple(dict.fromkeys(named))
        self._ordered = self._merged = None

    @property
    def boots(self) -> list[BootSteps]:
        """The processes in the order in which they began."""
        if self._ordered is None:
            named = {boot: place for place, boot in enumerate(self._named)}
            if self._boots.keys() <= named.keys():
                self._ordered = sorted(self._boots.values(), key=lambda row: named[row.boot])
            else:
                rows = self._boots.values()
                self._ordered = sorted(rows, key=lambda row: (row.began_mono, row.boot))
        return self._ordered

    @property
    def steps(self) -> StepTable:
        """All steps, each process laid over those before it."""
        if self._merged is None:
            boots = self.boots
            self._merged = boots[0].steps if len(boots) == 1 else StepTable()
            for number, boot in enumerate(boots if len(boots) > 1 else ()):
                self._merged.lay(boot.steps, number)
        return self._merged

    @property
    def last_boot(self) -> BootSteps | None:
        """The process that began last."""
        return self.boots[-1] if self._boots else None

    @property
    def boot_line(self) -> Heartbeat | None:
        """The boot line of the last process that wrote one."""
        lines = [line for boot in self.boots for line in boot.boot_lines[-1:]]
        return lines[-1] if lines else None

    @property
    def count(self) -> int:
        """Number of distinct lines."""
        return sum(row.count for row in self._boots.values())

    @property
    def gaps(self) -> int:
        """Number of lines that `seq` says are missing, over all processes."""
        return sum(row.top - row.low + 1 - row.count for row in self._boots.values())

    @property
    def evaluations(self) -> dict[int, Heartbeat]:
        """Step → its `eval` line; that of a step which a later process made again is dropped."""
        found: dict[int, Heartbeat] = {}
        for boot in self.boots:
            for step in boot.steps.windows() if found else ():
                found.pop(step, None)
            found |= boot.evaluations
        return dict(sorted(found.items()))

    @property
    def evals(self) -> dict[int, float]:
        """Step → validation loss."""
        lines = self.evaluations.items()
        return {step: line.val_loss for step, line in lines if line.val_loss is not None}

    @property
    def last_step(self) -> int:
        """Highest step that ended; 0 before the first."""
        boots = [boot for boot in self.boots if boot.ended_steps] or self.boots
        return max((boot.last_step for boot in boots), default=0)

    @property
    def done_step(self) -> int | None:
        """The step at which the last process reported that it was done."""
        last = self.last_boot
        return None if last is None or last.done is None else last.done.step

    @property
    def backend(self) -> str | None:
        """How the rank shares its work with others, by its boot line."""
        return None if self.boot_line is None else self.boot_line.backend

    def identity(self) -> Identity | None:
        """Return the identity on the last boot line."""
        return None if self.boot_line is None else self.boot_line.identity()

    def returns(self) -> list[tuple[int, int]]:
        """Return from which step to which one each later process went back."""
        found, reached = list[tuple[int, int]](), 0
        for boot in self.boots:
            line = boot.boot_line
            if line is not None and line.step < reached:
                found.append((reached, line.step))
                reached = line.step
            reached = max(reached, boot.last_step)
        return found

    def samples(self, name: str) -> dict[int, float]:
        """Return step → a number of the progress lines that reported it."""
        return self.steps.samples(name)

    def own(self, name: str) -> dict[int, float]:
        """Return step → a number of the program's own; if only others log it, the first one's."""
        found = (samples_of(row.boots, name) for row in (self, *self.all_ranks))
        return next(filter(None, found), {})

    def mean_step_times(self) -> dict[int, float]:
        """Return step → seconds; without any `step_start`, the mean between two step ends."""
        if next(self.steps.steps_of(Msg.STEP_START), None) is not None:
            return self.steps.step_times()
        found: dict[int, float] = {}
        for boot in self.boots:
            table = boot.steps
            ends = [(step, table.end_mono[row]) for step, row in table.steps_of(Msg.STEP_END)]
            for (before, began), (step, ended) in pairwise(ends):
                if ended > began:
                    steps = range(max(before + 1, step - MOST_BETWEEN), step + 1)
                    found |= dict.fromkeys(steps, (ended - began) / (step - before))
        return found

    def between_steps_s(self) -> float:
        """Return the mean seconds from the end of a step to the start of the next.

        Pauses (evaluations and checkpoints of any rank) and the longest twentieth of the others are
        left out. The rest is what the run spends on every step, for example on its batch.
        """
        told = self.pauses_of_any.union(*(boot.pauses for boot in self.boots))
        paused = {at for step in told for at in (step, step + 1)}
        gaps = sorted(gap for step, gap in self.steps.gaps().items() if step not in paused)
        kept = gaps[: len(gaps) - max(1, len(gaps) // LEFT_OUT_OF)]
        return fmean(kept) if kept else 0.0


def share_pauses(ranks: Mapping[int, RankSteps]) -> None:
    """Mark for every rank the steps at which one of them evaluated or saved: the others wait
    there."""
    pauses = {step for row in ranks.values() for boot in row.boots for step in boot.pauses}
    evaluated = {step for row in ranks.values() for step in row.evaluations}
    for row in ranks.values():
        row.pauses_of_any, row.evaluated_by_any = frozenset(pauses), frozenset(evaluated)
        row.all_ranks = ranks.values()


@dataclass(frozen=True, slots=True, kw_only=True)
class RankLines:
    """One rank's lines, read without a fold."""

    steps: RankSteps
    record: LineRecord
    unreadable: int


def read_lines(rank: int, lines: Iterable[bytes | str]) -> RankLines:
    """Return what one rank's lines report, in whatever order they come."""
    steps, record, unreadable = RankSteps(), LineRecord(), 0
    for line in lines:
        raw = line.encode(errors="replace") if isinstance(line, str) else line
        if not raw.strip():
            continue
        read = read_line(raw, rank)
        if read is None:
            unreadable += 1
        elif record.admit(read) not in _AGAIN:
            steps.take(read.beat)
    return RankLines(steps=steps, record=record, unreadable=unreadable)
