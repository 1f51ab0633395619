"""Which steps did one rank take, and which processes took them? Made line by line, in any order.

`RankSteps.take` is called once for each distinct line. Nothing depends on the order in which lines
come: processes are ordered as the ticks name them, else by their first stamp on the monotonic clock
(`watch.boots`), lines within one by `seq`.
"""

import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TypeVar

from gonogo.contract.heartbeat import NON_TRAINING_SECTIONS, Heartbeat, Identity, Msg
from gonogo.judge.facts.signs import signs_of
from gonogo.judge.facts.spacing import Spacing
from gonogo.timeline.boots import boots_in_order
from gonogo.timeline.columns import NEVER, NUMBERS, STEP_MESSAGES, StepTable
from gonogo.watch.mean import mean_of

_T = TypeVar("_T")
Span = tuple[float, float]
"""Lowest and highest of several numbers; one that is not finite is both."""

MAX_PIDS = 4
MOST_SAID = 8
"""Boot lines of one process that are kept, the first ones; the last one always is."""
_APART = frozenset({Msg.EVAL, Msg.CHECKPOINT})
_PROGRESS, _STEP_START = Msg.PROGRESS, Msg.STEP_START
LEFT_OUT_OF = 20
"""Of the times between steps one in so many, the longest, counts as no way of the run: what it does
there now and then, and does not name."""
BEFORE_SHARE = 0.05
"""Of a step's time, so much may lie before it began anew, whatever that was."""
TOLD_S = 0.001
TOLD_SHARE = 0.01
"""A step that lasts less, and less than that of the one before, took no time but that of telling
of it."""
FEWEST_ROUNDS = 3
"""So often steps are told of together where that is a trainer's way; a compilation comes once."""
LEAST_SHARE = 0.5
"""Of the usual time of a step that is opened once, or of all of its own, what a step that began
anew lasts at least."""
_STEP_MESSAGES = frozenset(msg.value for msg in STEP_MESSAGES)


@dataclass(frozen=True, slots=True, kw_only=True)
class LastLine:
    """Where a rank stood when it was last heard."""

    msg: str
    section: str | None
    step: int


@dataclass(slots=True, eq=False)
class BootSteps:
    """One process of a rank."""

    boot: str
    steps: StepTable = field(default_factory=StepTable)
    evals: dict[int, tuple[int, float]] = field(default_factory=dict)
    """Step → seq and validation loss of its `eval` line."""
    eval_s: dict[int, float] = field(default_factory=dict)
    """Step → the seconds that its `eval` line tells."""
    eval_spans: dict[int, Span] = field(default_factory=dict)
    """Step → lowest and highest validation loss of all its `eval` lines."""
    eval_s_spans: dict[int, Span] = field(default_factory=dict)
    """Step → fewest and most seconds of all its `eval` lines."""
    evaluated: set[int] = field(default_factory=set)
    """Steps of its `eval` lines, of those without a validation loss, too."""
    spans: dict[str, dict[int, Span]] = field(default_factory=dict)
    """Number → step → lowest and highest, of steps that several `progress` lines tell it of."""
    loss_scales: dict[int, tuple[int, float]] = field(default_factory=dict)
    """Step → seq and loss scale of its `progress` line."""
    apart: set[int] = field(default_factory=set)
    """Steps at which it evaluated or saved."""
    began_ts: float = float("inf")
    began_mono: float = float("inf")
    ended_mono: float = float("-inf")
    stepped_mono: float = float("inf")
    """Of its first line about a step; what stands before is its start, and waiting for .GO."""
    low: int = -1
    high: int = -1
    count: int = 0
    boot_seq: int = -1
    boot_line: Heartbeat | None = None
    boot_lines: dict[int, Heartbeat] = field(default_factory=dict)
    """Seq → boot line, of the first `MOST_SAID`."""
    done_seq: int = -1
    done_step: int | None = None
    error_seq: int | None = None
    """Seq of the first `error` line."""
    pids: list[int] = field(default_factory=list)
    signs: set[str] = field(default_factory=set)
    _starts: dict[int, dict[int, float]] = field(default_factory=dict)
    """Step that began anew → seq and `mono` of each of its `step_start` lines."""
    _pauses: dict[int, dict[int, float]] = field(default_factory=dict)
    """Step → seq and `mono` of the lines in it that name an evaluation or a checkpoint."""
    _last: Heartbeat | None = None

    @property
    def last(self) -> LastLine | None:
        """The line with the highest seq."""
        beat = self._last
        if beat is None:
            return None
        return LastLine(msg=beat.msg, section=beat.section, step=beat.step)

    def take(self, beat: Heartbeat) -> None:
        """Take one line of this process."""
        seq, mono, ts, pid = beat.seq, beat.mono, beat.ts, beat.pid
        self.count += 1
        if ts < self.began_ts:
            self.began_ts = ts
        if mono < self.began_mono:
            self.began_mono = mono
        if mono > self.ended_mono:
            self.ended_mono = mono
        if self.low < 0 or seq < self.low:
            self.low = seq
        if seq >= self.high:
            self.high, self._last = seq, beat
        if pid not in self.pids and len(self.pids) < MAX_PIDS:
            self.pids = sorted([*self.pids, pid])
        if beat.msg in _STEP_MESSAGES:
            if mono < self.stepped_mono:
                self.stepped_mono = mono
            self._take_step(beat)
        else:
            self._take_apart(beat)
            self._take_other(beat)

    def _take_step(self, beat: Heartbeat) -> None:
        steps, msg = self.steps, beat.msg
        row = steps.row_of(beat.step)
        if msg == _PROGRESS:
            if steps.progress_seq[row] != NEVER:
                self._take_again(beat, row)
            if beat.loss_scale is not None:
                self._take_scale(beat, beat.loss_scale)
        elif msg == _STEP_START and steps.start_seq[row] != NEVER:
            self._take_start_again(beat, row)
        steps.take(beat, row)

    def _take_start_again(self, beat: Heartbeat, row: int) -> None:
        known = {self.steps.start_seq[row]: self.steps.start_mono[row]}
        self._starts.setdefault(beat.step, known)[beat.seq] = beat.mono

    def _take_scale(self, beat: Heartbeat, scale: float) -> None:
        if beat.seq >= self.loss_scales.get(beat.step, (0, 0.0))[0]:
            self.loss_scales[beat.step] = beat.seq, scale

    def _take_again(self, beat: Heartbeat, row: int) -> None:
        """Take the numbers of a step that has been told of before, but of updates left out."""
        applied, known = beat.skipped is not True, not self.steps.skipped[row]
        for name in NUMBERS:
            for counts, value in (
                (known, self.steps.number(name, row)),
                (applied, getattr(beat, name)),
            ):
                if counts and value is not None:
                    spans = self.spans.setdefault(name, {})
                    spans[beat.step] = _spanned(spans.get(beat.step), (value, value))

    def _take_apart(self, beat: Heartbeat) -> None:
        pauses = beat.section in NON_TRAINING_SECTIONS
        if pauses or beat.msg in _APART:
            self.apart.add(beat.step)
        if pauses and beat.msg == Msg.SECTION:
            self._pauses.setdefault(beat.step, {})[beat.seq] = beat.mono

    def before_s(self) -> dict[int, tuple[float, float]]:
        """Return step that began anew → seconds of it before that, and those that nobody knows.

        They are its own up to where it names an evaluation or a checkpoint. Where it names none
        nobody knows what they were; so it is between the end of an evaluation and its line, at
        which it begins anew once more.
        """
        found = {}
        for step, starts in self._starts.items():
            pauses, before_s, unknown_s = sorted(self._pauses.get(step, {}).items()), 0.0, 0.0
            for (first, began), (last, anew) in pairwise(sorted(starts.items())):
                named = next((mono for seq, mono in pauses if first < seq < last), None)
                seconds = max(0.0, (anew if named is None else named) - began)
                before_s += seconds
                unknown_s += seconds if named is None else 0.0
            found[step] = before_s, unknown_s
        return found

    def _take_other(self, beat: Heartbeat) -> None:
        if beat.msg == Msg.EVAL:
            self.evaluated.add(beat.step)
            if beat.val_loss is not None:
                self._take_eval(beat, beat.val_loss)
        elif beat.msg == Msg.BOOT:
            if beat.seq >= self.boot_seq:
                self.boot_seq, self.boot_line = beat.seq, beat
            self.boot_lines[beat.seq] = beat
            if len(self.boot_lines) > MOST_SAID:
                del self.boot_lines[max(self.boot_lines)]
        elif beat.msg == Msg.DONE:
            if beat.seq >= self.done_seq:
                self.done_seq, self.done_step = beat.seq, beat.step
        elif beat.msg in (Msg.ERROR, Msg.LOADER_ERROR):
            self.signs |= signs_of(beat)
            if beat.msg == Msg.ERROR:
                first = beat.seq if self.error_seq is None else min(self.error_seq, beat.seq)
                self.error_seq = first

    def _take_eval(self, beat: Heartbeat, loss: float) -> None:
        step, dt_s = beat.step, beat.dt
        self.eval_spans[step] = _spanned(self.eval_spans.get(step), (loss, loss))
        if dt_s is not None:
            self.eval_s_spans[step] = _spanned(self.eval_s_spans.get(step), (dt_s, dt_s))
        if beat.seq >= self.evals.get(step, (0, 0.0))[0]:
            self.evals[step] = beat.seq, loss
            if dt_s is not None:
                self.eval_s[step] = dt_s

    @property
    def gaps(self) -> int:
        """Number of lines that `seq` says are missing (it starts at 0 or 1)."""
        return self.high - min(self.low, 1) + 1 - self.count

    @property
    def ended_steps(self) -> int:
        """Number of steps that it ended."""
        return sum(1 for _ in self.steps.steps_of(Msg.STEP_END))

    def identity(self) -> Identity | None:
        """Return what its boot line says that it is."""
        return self.boot_line.identity() if self.boot_line is not None else None

    def trained_as(self) -> list[Identity]:
        """Return what it was while it ended steps: as its first one says, and each line since."""
        ends = (self.steps.end_seq[row] for _, row in self.steps.steps_of(Msg.STEP_END))
        first = min(ends, default=None)
        if first is None or self.boot_line is None:
            return []
        lines = self.said()
        before = [line for line in lines if line.seq < first][-1:]
        since = [line for line in lines if line.seq > first]
        return [line.identity() for line in before + since]

    def said(self) -> list[Heartbeat]:
        """Return its boot lines as they came: the first `MOST_SAID`, and the last."""
        last = {} if self.boot_line is None else {self.boot_seq: self.boot_line}
        return [line for _, line in sorted((self.boot_lines | last).items())]


class RankSteps:
    """One rank, by process and by step; of a step said by two processes, the later one counts."""

    def __init__(self) -> None:
        self._boots: dict[str, BootSteps] = {}
        self._ordered: list[BootSteps] | None = None
        self._merged: StepTable | None = None
        self._named: tuple[str, ...] = ()
        self.told_by_devices: Mapping[str, Mapping[int, float]] = {}
        """Metric → step → value, of what the rank's lines cannot say; `lay_over` fills it."""
        self.spacing: Spacing | None = None
        """The distances between its lines; of the predecessor's only, which time no step."""
        self.apart_of_peers: frozenset[int] = frozenset()
        """Steps at which any rank evaluated or saved; `share_apart` fills it."""
        self.evaluated_by_any: frozenset[int] = frozenset()
        """Steps after which any rank told of an evaluation; `share_apart` fills it."""

    def take(self, beat: Heartbeat) -> None:
        """Take one line; each distinct line once."""
        boot = self._boots.get(beat.boot)
        if boot is None:
            boot = self._boots[beat.boot] = BootSteps(beat.boot)
        boot.take(beat)
        self._ordered = self._merged = None

    def order_by(self, named: Iterable[str]) -> None:
        """Say in which order the ticks name the processes.

        Args:
            named: boots, each as often as they are named.
        """
        self._named = tuple(dict.fromkeys(named))
        self._ordered = self._merged = None

    @property
    def boots(self) -> list[BootSteps]:
        """The processes in the order in which they began."""
        if self._ordered is None:
            self._ordered = self._in_order()
        return self._ordered

    def _in_order(self) -> list[BootSteps]:
        rows = self._boots
        began = {name: row.began_mono for name, row in rows.items()}
        return [rows[name] for name in boots_in_order(began, self._named)]

    @property
    def steps(self) -> StepTable:
        """All steps."""
        if self._merged is None:
            self._merged = self._laid()
        return self._merged

    def _laid(self) -> StepTable:
        """Return the steps of all processes, each laid over those before it."""
        if len(self.boots) == 1:
            return self.boots[0].steps
        merged = StepTable()
        for number, boot in enumerate(self.boots):
            merged.lay(boot.steps, number)
        return merged

    def trainings_before(self, first_step: int, last_step: int) -> "list[RankSteps]":
        """Return the trainings in a row that went to the last step before another one began.

        A later fold or seed, or a program that a shell starts again, begins where the run began;
        its steps are laid over theirs.

        Args:
            first_step: of the run.
            last_step: that was ordered.
        """
        return [part for part in self._begun_before(first_step) if part.last_step >= last_step]

    def unfinished(self, first_step: int, last_step: int) -> list[int]:
        """Return which trainings in a row came to the last step and never said that it was done.

        Args:
            first_step: of the run.
            last_step: that was ordered.
        """
        parts = self.trainings_before(first_step, last_step)
        return [number for number, part in enumerate(parts, 1) if part.done_step is None]

    def given_up(self, first_step: int, last_step: int) -> list[int]:
        """Return the last step of each training that another one took the place of before its end.

        Args:
            first_step: of the run.
            last_step: that was ordered.
        """
        last = (part.last_step for part in self._begun_before(first_step))
        return [step for step in last if first_step <= step < last_step]

    def made_again(self, first_step: int, last_step: int) -> list[int]:
        """Return after which step each process went on that followed one which was at the end.

        Args:
            first_step: of the run.
            last_step: that was ordered.
        """
        lines = [
            later.boot_line
            for boot, later in pairwise(self.boots)
            if self._part([boot]).last_step >= last_step
        ]
        return [line.step for line in lines if line and first_step <= line.step < last_step]

    def gone_back(self, first_step: int, last_step: int) -> list[tuple[int, int]]:
        """Return from which step to which one a process went back that followed on another.

        From the last step, and to the beginning, the others tell.

        Args:
            first_step: of the run.
            last_step: that was ordered.
        """
        found, reached = list[tuple[int, int]](), 0
        for boot in self.boots:
            line = boot.boot_line
            if line is not None and line.step < reached:
                if first_step <= line.step and reached < last_step:
                    found.append((reached, line.step))
                reached = line.step
            reached = max(reached, self._part([boot]).last_step)
        return found

    def _begun_before(self, first_step: int) -> "Iterator[RankSteps]":
        """Yield what was told from each beginning of the run to the next."""
        boots = list[BootSteps]()
        for boot, later in pairwise(self.boots):
            boots.append(boot)
            line = later.boot_line
            if line is None or line.step >= first_step:
                continue
            yield self._part(boots)
            boots = []

    def _part(self, boots: Iterable[BootSteps]) -> "RankSteps":
        """Return what some of the processes tell."""
        part = RankSteps()
        part._boots = {boot.boot: boot for boot in boots}
        part._named = self._named
        part.told_by_devices, part.spacing = self.told_by_devices, self.spacing
        part.apart_of_peers = self.apart_of_peers
        return part

    @property
    def count(self) -> int:
        """Number of distinct lines."""
        return sum(row.count for row in self._boots.values())

    @property
    def gaps(self) -> int:
        """Number of lines that `seq` says are missing, over all processes."""
        return sum(row.gaps for row in self._boots.values())

    @property
    def evals(self) -> dict[int, float]:
        """Step → validation loss."""
        told = self._told_last(lambda boot: boot.evals)
        return {step: loss for step, (_, loss) in told.items()}

    @property
    def eval_s(self) -> dict[int, float]:
        """Step → the seconds that its evaluation took, where the line tells them."""
        return self._told_last(lambda boot: boot.eval_s)

    @property
    def loss_scales(self) -> dict[int, float]:
        """Step → what its loss was scaled by."""
        told = self._told_last(lambda boot: boot.loss_scales)
        return {step: scale for step, (_, scale) in told.items()}

    @property
    def evaluated(self) -> frozenset[int]:
        """Steps after which it told of an evaluation, with what that found or without."""
        return frozenset(self._told_last(lambda boot: dict.fromkeys(boot.evaluated)))

    def eval_spans(self) -> dict[int, Span]:
        """Return step → lowest and highest validation loss, where its evaluations differ."""
        return self._told_apart(lambda boot: boot.eval_spans)

    def eval_s_spans(self) -> dict[int, Span]:
        """Return step → fewest and most seconds of an evaluation, where they differ."""
        return self._told_apart(lambda boot: boot.eval_s_spans)

    def spans(self, name: str) -> dict[int, Span]:
        """Return step → lowest and highest of a number, where that is not what counts last."""
        found: dict[int, Span] = {}
        for boot in self.boots:
            if found:
                table, anew = boot.steps, boot.steps.windows()
                found = {
                    step: span
                    for step, span in found.items()
                    if step not in anew and not table.said(_PROGRESS, step)
                }
            found.update(boot.spans.get(name, {}))
        said = self.steps.samples(name) if found else {}
        return {step: span for step, span in found.items() if {*span} != {said.get(step)}}

    def _told_apart(self, told: Callable[[BootSteps], Mapping[int, Span]]) -> dict[int, Span]:
        """Return between what the numbers of a step lie, without what was told before it was made.

        An evaluation of what was loaded is of the same step as that of the process before.
        """
        found: dict[int, Span] = {}
        for boot in self.boots:
            for step in boot.steps.windows() if found else ():
                found.pop(step, None)
            for step, span in told(boot).items():
                found[step] = _spanned(found.get(step), span)
        return {step: span for step, span in found.items() if _differs(span)}

    def _told_last(self, told: Callable[[BootSteps], Mapping[int, _T]]) -> dict[int, _T]:
        """Return what was told of steps; of one that a later process made again, what that told."""
        found: dict[int, _T] = {}
        for boot in self.boots:
            for step in boot.steps.windows() if found else ():
                found.pop(step, None)
            found.update(told(boot))
        return found

    @property
    def last_step(self) -> int:
        """Highest step that ended; 0 before the first."""
        return max((step for step, _ in self.steps.steps_of(_ends(self.steps))), default=0)

    @property
    def first_step(self) -> int | None:
        """Lowest step with its `step_end`; None before the first."""
        return min((step for step, _ in self.steps.steps_of(Msg.STEP_END)), default=None)

    @property
    def last(self) -> LastLine | None:
        """The last line of the last process."""
        return self.boots[-1].last if self._boots else None

    @property
    def done_step(self) -> int | None:
        """The step at which its last process said that it was done; a word of one before is old."""
        return self.boots[-1].done_step if self._boots else None

    @property
    def signs(self) -> set[str]:
        """Names of the known words in its error lines."""
        return {name for boot in self._boots.values() for name in boot.signs}

    def identity(self) -> Identity | None:
        """Return what the last process with a boot line said that it is."""
        lines = [boot.identity() for boot in self.boots if boot.boot_line is not None]
        return lines[-1] if lines else None

    @property
    def backend(self) -> str | None:
        """By what the last process with a boot line said that it shares its work with others."""
        lines = [boot.boot_line.backend for boot in self.boots if boot.boot_line is not None]
        return lines[-1] if lines else None

    @property
    def wall_ahead_s(self) -> float | None:
        """How far its host's wall clock is ahead of the monotonic one, by its last boot line."""
        lines = [boot.boot_line for boot in self.boots if boot.boot_line is not None]
        return lines[-1].ts - lines[-1].mono if lines else None

    def step_times(self) -> dict[int, float]:
        """Return step → seconds between its `step_start` and `step_end`, by the rank's clock."""
        return self.steps.step_times()

    def whole_step_times(self) -> dict[int, float]:
        """Return the same, with what of a step lies before it began anew.

        An evaluation is no part of the step that it keeps waiting, but what was computed before it
        is. Where no section tells the two apart, a step has a time that anybody knows if it then
        lasts as long as others of the process do, or for the larger part of all of its own.
        """
        times, table = self.step_times(), self.steps
        before_s: dict[int, tuple[float, float]] = {}
        for number, boot in enumerate(self.boots):
            for step, said in boot.before_s().items():
                if step in times and table.end_boot[table.rows[step]] == number:
                    before_s[step] = said
        once = [dt_s for step, dt_s in times.items() if step not in before_s]
        usual_s = statistics.median(once) if before_s and once else math.inf
        for step, (seconds, unknown_s) in before_s.items():
            if unknown_s <= BEFORE_SHARE * (times[step] + seconds - unknown_s):
                times[step] += seconds
            elif times[step] < LEAST_SHARE * min(usual_s, seconds + times[step]):
                del times[step]
        return times

    def even_step_times(self) -> dict[int, float]:
        """Return the same, with the time of steps that were told of together spread over them.

        A trainer that tells of its last ten steps at once has one that lasts as long as all, and
        nine that last no time; when each of them ended nobody knows.
        """
        times = self.whole_step_times()
        rounds: list[list[int]] = []
        for step in sorted(times):
            last = rounds[-1] if rounds else []
            follows = bool(last) and last[-1] == step - 1
            if follows and times[step] < min(TOLD_S, TOLD_SHARE * times[last[0]]):
                last.append(step)
            else:
                rounds.append([step])
        told = [steps for steps in rounds if len(steps) > 1]
        for steps in told if len(told) >= FEWEST_ROUNDS else ():
            times |= dict.fromkeys(steps, mean_of([times[step] for step in steps]))
        return times

    def mean_step_times(self) -> dict[int, float]:
        """Return step → seconds; of the predecessor's steps the mean between two lines.

        Good for sums and speeds; how steps differ from each other it does not show.
        """
        if self.spacing is not None:
            return dict(self.spacing.step_s)
        return self.even_step_times()

    def between_steps_s(self) -> float:
        """Return the mean seconds from the end of a step to the start of the next.

        Evaluations, checkpoints (a peer's, too, for which it may wait) and the longest twentieth
        of the others are not in it: what is left a run spends on every step, say for its batch.
        0.0 of steps timed from line to line.
        """
        if self.spacing is not None:
            return 0.0
        told = self.apart_of_peers.union(*(boot.apart for boot in self.boots))
        apart = {at for step in told for at in (step, step + 1)}
        gaps = sorted(gap for step, gap in self.steps.gaps().items() if step not in apart)
        kept = gaps[: len(gaps) - max(1, len(gaps) // LEFT_OUT_OF)]
        return mean_of(kept) if kept else 0.0

    def samples(self, name: str) -> dict[int, float]:
        """Return step → a number of the progress lines that told it."""
        return self.steps.samples(name)

    def skipped(self) -> frozenset[int]:
        """Return the steps whose update was not applied, as the rank says."""
        steps = self.steps
        rows = steps.steps_of(Msg.PROGRESS)
        return frozenset(step for step, row in rows if steps.skipped[row])


def _spanned(known: Span | None, more: Span) -> Span:
    """Return between what several numbers lie; one that is not finite is never within."""
    if known is None or not math.isfinite(more[0]):
        return more
    if not math.isfinite(known[0]):
        return known
    return min(known[0], more[0]), max(known[1], more[1])


def _differs(span: Span) -> bool:
    """Say whether several numbers of a step were not one; what is not finite hides others."""
    return span[0] != span[1] or math.isinf(span[0])


def _ends(steps: StepTable) -> Msg:
    """Return the line that ends a step: a rank that never says `step_end` may only say progress."""
    ended = next(iter(steps.steps_of(Msg.STEP_END)), None)
    return Msg.PROGRESS if ended is None else Msg.STEP_END


def build_rank_steps(beats: Iterable[Heartbeat]) -> RankSteps:
    """Return one rank's steps from its distinct lines, in any order."""
    found = RankSteps()
    for beat in beats:
        found.take(beat)
    return found


def share_apart(ranks: Mapping[int, RankSteps]) -> None:
    """Tell every rank at which steps one of them evaluated or saved.

    The others may have waited there, and of an evaluation each owes what it found.
    """
    found = {step for row in ranks.values() for boot in row.boots for step in boot.apart}
    evaluated = {step for row in ranks.values() for step in row.evaluated}
    for row in ranks.values():
        row.apart_of_peers = frozenset(found)
        row.evaluated_by_any = frozenset(evaluated)
