"""D8 slow: the run makes fewer tokens a second than its floor, or than it did before.

Step times are differences of one rank's own clock, without checkpoint, evaluation and warm-up. The
baseline is frozen: a moving baseline would follow a run that slows down bit by bit. A restart in
place keeps it. Steps that report more tokens than the first ones may take longer in proportion.

Four conditions compare the last steps with a limit:

- below the floor: the median of a window;
- far below the floor: each of the last few steps, which together fill half a minute;
- above `warn_ratio` × baseline and above `halt_ratio` × baseline: the median of a window, and its
  mean without the few longest steps. When short and long steps alternate, the median jumps.

A program of which only the printed lines are known, and no tokens, is warned of: a printed step
may be an episode of any length.

A busy host excuses a slow run (`gonogo.contract.observation.HostCpu`): a condition warns instead of
halting when the ranks' wait for a processor explains most of the slowness. Then it must last as
long again.

Not covered: a run that slows down within its baseline. A program that reports the tokens of the
whole run, or by another rank than the timed one. A run that is suspended again and again. A run
that restarts before a condition lasts.
"""

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from gonogo.contract.finding import Finding, Near, Severity
from gonogo.contract.heartbeat import Msg
from gonogo.contract.observation import HostCpu, Kind, host_cpu_in
from gonogo.contract.outcome import Detector as Name
from gonogo.contract.records import Tick
from gonogo.timeline.rank import RankStream
from gonogo.watch.detector import NOTHING_YET, Detector, Seen, replace
from gonogo.watch.view import Beat, Run, View

LEAST_LINES = 4
"""Lines that a window has at least, where a line ends many steps."""
LONG_STEP_S, FEW_STEPS = 30.0, 16
"""A window of longer steps needs so few of them only."""
KEPT_SHARE = 15 / 16
"""Share of the shorter steps of which the mean is taken; pauses and stalls are in the others."""
HARD_LEAST_S = 30.0
"""Seconds that the steps far below the floor fill: a neighbour that wakes slows five of 0.05 s."""
EXPLAINS_SHARE = 0.5
"""Share of the lost time that waiting for a processor must explain to excuse a slow run."""


class Sample(NamedTuple):
    """The steps that one line ended."""

    step_s: float
    """Mean seconds of a step, as if it carried the tokens of the first step."""
    steps: int
    mono: float
    """Watcher's clock when the line came."""
    waited_s: float
    """Seconds in which the ranks had waited for a processor until then."""


class Condition(NamedTuple):
    """One comparison of the last steps with a limit."""

    name: str
    severity: Severity
    slowness: float
    """How many times longer than usual, or than at the floor, a step takes."""
    limit_x: float
    """It holds when the slowness is larger."""
    over_s: float
    """Seconds of training for which it has to hold."""
    part: Sequence[Sample]

    @property
    def is_relative(self) -> bool:
        """Whether it compares with the baseline, and not with the floor."""
        return self.name in ("warn_ratio", "halt_ratio")


@dataclass(frozen=True, kw_only=True)
class Speed:
    """Step times of the one rank that is timed, after warm-up."""

    rank: int | None = None
    boot: str | None = None
    counted_step: int = 0
    block: tuple[int, int, float] | None = None
    """Tick, step and clock of the last printed line that was timed."""
    tokens: int | None = None
    window: tuple[Sample, ...] = ()
    """The last samples of this boot; all of them until there is a baseline."""
    baseline_s: tuple[float, float] | None = None
    """Median and mean of the first steps."""
    trained_s: float = 0.0
    since: Mapping[str, tuple[float, int]] = field(default_factory=dict)
    """Each condition that holds → `trained_s` and step when it began to."""
    waited_s: float = 0.0
    """Seconds in which every rank waited for a processor that other processes used."""
    crowd: str = ""
    """What kept the host busy when it was busy last."""
    excused: str = ""


class Slow(Detector[Speed]):
    name = Name.SLOW
    sentence = (
        "Halts when the median speed stays below the floor of the hardware, or each of "
        "`hard_floor_over_steps` steps is below `hard_floor_ratio` of it. Halts when median "
        "and mean step time stay above the run's own first steps by more than the limit. "
        "Warns instead, and names them, if other processes take the processors."
    )
    State = Speed
    lines = frozenset({Msg.STEP_START, Msg.STEP_END, Msg.PROGRESS})
    ticks = True
    observes = frozenset({Kind.HOST_CPU})
    unobserved = "No floor is ordered, and there were too few steps for a baseline."

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        slow = self.settings
        self._keep = max(slow.window_steps, slow.over_steps or 0, slow.hard_floor_over_steps)
        self._tokens = run.order.identity.tokens_per_step
        self._reads = bool(run.order.patterns)
        self._least_x = min(slow.warn_ratio, slow.halt_ratio)
        self._floor = max(slow.floor_ratio, slow.hard_floor_ratio) * (slow.floor_tok_s or 0.0)

    def observe_tick(self, own: Speed, tick: Tick, view: View) -> Seen[Speed]:
        seen = host_cpu_in(tick)
        waited_s = 0.0 if seen is None else starved_s(seen)
        if seen is None or waited_s == 0.0:
            return own, []
        return replace(own, waited_s=own.waited_s + waited_s, crowd=seen.words()), []

    def observe_line(self, own: Speed, event: Beat, view: View) -> Seen[Speed]:
        rank = event.line.rank
        if own.rank is not None and own.rank != rank:
            return own, []
        stream = view.streams[rank]
        ended = stream.pace.last_step  # of a trainer that sends no `step_end`, the step before
        if ended is None or not stream.pace.times_s:
            return own, []
        if own.boot != stream.boot:
            own = _begun(own, stream)
        if ended <= own.counted_step:
            return own, []
        step_s, steps = stream.pace.times_s[-1], stream.pace.stride
        own = replace(own, counted_step=ended)
        if self._reads and not stream.labelled:
            own, step_s, steps = _read_block(own, event)
        if ended - stream.from_step <= self.settings.warmup_steps or not steps:
            return own, []
        own = self._timed(own, step_s, steps, stream.tokens or None, event)
        fast_s = self._least_x * (own.baseline_s[0] if own.baseline_s else math.inf)
        if self._floor and (tokens := self._tokens or stream.tokens):
            fast_s = min(fast_s, tokens / self._floor)
        if not own.since and own.window[-1].step_s <= fast_s:
            return own, []  # such a step lets no condition begin to hold
        findings = list[Finding]()
        for condition in self._conditions(own, stream):
            own, found = self._judged(own, condition, event, view)
            findings += found
        return own, findings

    def _timed(
        self, own: Speed, step_s: float, steps: int, tokens: int | None, event: Beat
    ) -> Speed:
        """Return the speed with the mean time of `steps` steps."""
        first = own.tokens or tokens
        longer_x = max(1.0, tokens / first) if tokens and first else 1.0
        sample = Sample(step_s / longer_x, steps, event.tick.mono, own.waited_s)
        window, baseline_s = (*own.window, sample), own.baseline_s
        if baseline_s is None and (part := _window(window, self.settings.baseline_steps)):
            baseline_s = _typical_s(part)
        if baseline_s is not None:
            window = window[-self._keep :]
        trained_s = own.trained_s + step_s * steps
        return replace(own, tokens=first, window=window, baseline_s=baseline_s, trained_s=trained_s)

    def _conditions(self, own: Speed, stream: RankStream) -> Iterator[Condition]:
        """Yield every comparison that can be made now."""
        slow, tokens, halt = self.settings, self._tokens or stream.tokens, Severity.HALT
        window = _window(own.window, slow.window_steps, few=FEW_STEPS)
        rows = [("warn_ratio", Severity.WARN, window, slow.warn_over_s)]
        printed = self._reads and not stream.labelled and not tokens
        severity = Severity.WARN if printed else halt
        if slow.over_steps is None:
            rows.append(("halt_ratio", severity, window, slow.over_s))
        else:
            rows.append(("halt_ratio", severity, _window(own.window, slow.over_steps), 0.0))
        for name, severity, part, over_s in rows if own.baseline_s else ():
            if part and own.baseline_s:
                pairs = zip(_typical_s(part), own.baseline_s, strict=True)
                times = min(now_s / usual_s for now_s, usual_s in pairs)
                yield Condition(name, severity, times, getattr(slow, name), over_s, part)
        if slow.floor_tok_s is None or not tokens:
            return
        floor_s, few = tokens / slow.floor_tok_s, own.window[-slow.hard_floor_over_steps :]
        if 0 < slow.hard_floor_over_steps == len(few):
            times = min(sample.step_s for sample in few) / floor_s
            over_s = HARD_LEAST_S - math.fsum(row.step_s for row in few)
            yield Condition("hard_floor", halt, times, 1.0 / slow.hard_floor_ratio, over_s, few)
        if window:
            times, over_s = _typical_s(window)[0] / floor_s, slow.floor_over_s
            yield Condition("floor", halt, times, 1.0 / slow.floor_ratio, over_s, window)

    def _judged(self, own: Speed, condition: Condition, event: Beat, view: View) -> Seen[Speed]:
        """Return what a condition finds, once it has held for long enough."""
        name, part = condition.name, condition.part
        since = {key: row for key, row in own.since.items() if key != name}
        if condition.slowness <= condition.limit_x:
            return replace(own, since=since), []
        began_s, began_step = own.since.get(name, (own.trained_s, event.line.step))
        own = replace(own, since={**since, name: (began_s, began_step)})
        held_s = own.trained_s - began_s
        if held_s < condition.over_s:
            return own, []
        severity, episode = condition.severity, f"{name}/step{began_step}"
        value, limit = self._reported(condition)
        text = f"{len(part)} steps took {value:.2f} times the baseline"
        if not condition.is_relative:
            text = f"{value:.4g} tokens/s over {len(part)} steps"
        text = f"{text}{f' for {held_s:.0f} s' if held_s else ''} (limit {limit:.4g})"
        waited_share = (own.waited_s - part[0].waited_s) / max(event.tick.mono - part[0].mono, 1e-9)
        lost_share = 1.0 - 1.0 / condition.slowness
        if severity is Severity.HALT and waited_share > max(0.0, EXPLAINS_SHARE * lost_share):
            severity, episode = Severity.WARN, f"busy/{episode}"
            busy = (
                f"the host is busy: {own.crowd}, {min(1.0, waited_share):.0%} of the time waiting"
            )
            since, text = {**since, name: (own.trained_s, began_step)}, f"{text}; {busy}"
            own = replace(own, since=since, excused=f"Slow steps were not judged: {busy}.")
        setting = name if condition.is_relative else "floor_tok_s"
        finding = self.finding(
            event, view, severity, episode, text, setting=setting, value=value, threshold=limit
        )
        return own, [finding]

    def _reported(self, condition: Condition) -> tuple[float, float]:
        """Return value and limit as people read them: times the baseline, or tokens a second."""
        if condition.is_relative:
            return condition.slowness, condition.limit_x
        floor: float = self.settings.floor_tok_s
        return floor / condition.slowness, floor / condition.limit_x

    def armed(self, own: Speed, view: View) -> bool:
        floor = self.settings.floor_tok_s is not None and bool(own.window)
        return own.baseline_s is not None or floor

    def measure(self, own: Speed, view: View, mono: float) -> Near:
        stream = view.streams.get(own.rank or 0)
        found = [] if stream is None else list(self._conditions(own, stream))
        found = [row for row in found if row.severity is Severity.HALT] or found
        if not found:
            return Near(blind=NOTHING_YET)
        worst = max(found, key=lambda row: row.slowness / row.limit_x)
        began, left_s = own.since.get(worst.name), None
        if began is not None:
            left_s = max(0.0, worst.over_s - (own.trained_s - began[0]))
        value, limit = self._reported(worst)
        unit = "" if worst.is_relative else "tokens/s"
        return Near(value=value, limit=limit, unit=unit, below=bool(unit), time_left_s=left_s)

    def missing(self, own: Speed, view: View) -> str | None:
        return own.excused or super().missing(own, view)


def starved_s(seen: HostCpu) -> float:
    """Return for how many seconds a look saw every rank wait for a processor.

    It counts where other processes used at least a quarter of the processors. The rank that waited
    least decides: one rank that waits alone is slow by itself. Pressure stands in for ranks whose
    wait is unknown.
    """
    if seen.others_cores is None or seen.others_cores < 0.25 * seen.cores:
        return 0.0
    shares = list(seen.waited.values()) or [seen.pressure or 0.0]
    return min(shares) * seen.over_s


def _begun(own: Speed, stream: RankStream) -> Speed:
    """Return the speed at the start of a process; a restart in place keeps the baseline."""
    rank, boot = stream.rank, stream.boot
    if own.rank is None or stream.another:
        waited_s, crowd, excused = own.waited_s, own.crowd, own.excused
        return Speed(rank=rank, boot=boot, waited_s=waited_s, crowd=crowd, excused=excused)
    return replace(own, boot=boot, counted_step=0, block=None, window=(), since={})


def _read_block(own: Speed, event: Beat) -> tuple[Speed, float, int]:
    """Return the mean time of the printed steps since the last block, and how many they are.

    Lines that are read together are one block, timed by its first line; the others end 0 steps.
    """
    line, before = event.line, own.block
    if before is not None and before[0] == event.tick.n:
        return own, 0.0, 0
    own = replace(own, block=(event.tick.n, line.step, line.mono))
    if before is None or line.step <= before[1] or line.mono <= before[2]:
        return own, 0.0, 0
    steps = line.step - before[1]
    return own, (line.mono - before[2]) / steps, steps


def _window(samples: Sequence[Sample], steps: int, *, few: int = 0) -> Sequence[Sample]:
    """Return the last samples that cover so many steps, or `few` long ones; none if too few."""
    covered = 0
    for count, sample in enumerate(reversed(samples), start=1):
        covered += sample.steps
        if covered >= steps and count >= min(LEAST_LINES, steps):
            return samples[-count:]
    enough = few and len(samples) >= min(few, steps)
    return samples if enough and _typical_s(samples)[0] > LONG_STEP_S else ()


def _typical_s(samples: Sequence[Sample]) -> tuple[float, float]:
    """Return the median seconds of a step, and the mean without the few longest."""
    times_s = sorted(sample.step_s for sample in samples)
    return statistics.median(times_s), statistics.fmean(times_s[: round(KEPT_SHARE * len(times_s))])
