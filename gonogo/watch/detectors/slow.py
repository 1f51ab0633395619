"""D8 slow: the run makes fewer tokens a second than its floor, or than it did before.

Step times are differences of one rank's own clock, without checkpoint, evaluation and warm-up. The
baseline is frozen: a moving baseline would follow a run that slows down bit by bit. Only a restart
with another training replaces it. Steps that report more tokens than the first ones may take longer
in proportion.

Four conditions are held against a time:

- below the floor: the median of a window;
- far below the floor: each of the last few steps, which together fill half a minute;
- above `warn_ratio` × baseline: the median of a window; warns;
- above `halt_ratio` × baseline: the same, and the mean without the few longest steps. Where short
  and long steps alternate, the median jumps between the two and the mean does not.

A program of which only the printed lines are known, and no tokens, is warned of: a printed step
may be an episode of any length.

A busy host excuses a slow run (`gonogo.contract.observation.HostCpu`): a condition warns instead of
halting when the ranks' wait for a processor explains most of the slowness. Then it must last anew.

Not covered: a run that slows down within its baseline; a program that reports the tokens of the
whole run; a run that is suspended again and again; a run that restarts before a condition lasts.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from gonogo.contract.canonical import added
from gonogo.contract.finding import Finding, Severity
from gonogo.contract.heartbeat import Msg
from gonogo.contract.near import Near
from gonogo.contract.observation import HostCpu, Kind, host_cpu_in
from gonogo.contract.outcome import Detector as Name
from gonogo.contract.tick import Tick
from gonogo.watch.detector import NOTHING_YET, Detector, Seen
from gonogo.watch.speed import (
    Block,
    SpeedSample,
    fills,
    last,
    mean_step_s,
    median_step_s,
    read_block,
)
from gonogo.watch.state import replace
from gonogo.watch.tokens import TokenGrowth
from gonogo.watch.view import Beat, View, found

LONG_STEP_S = 30.0
FEW_STEPS = 16
"""A window of steps longer than `LONG_STEP_S` needs so many of them only."""
HARD_LEAST_S = 30.0
"""Seconds that the steps far below the floor fill: a neighbour that wakes slows five of 0.05 s."""
EXPLAINS_SHARE = 0.5
"""Share of the lost time that waiting for a processor must explain to excuse a slow run."""


@dataclass(frozen=True, kw_only=True)
class Began:
    """When a condition began to hold."""

    trained_s: float
    step: int
    mono: float
    waited_s: float


@dataclass(frozen=True, kw_only=True)
class Speed:
    """Step times of the one rank that is timed, after warm-up."""

    rank: int | None = None
    boot: str | None = None
    counted_step: int = 0
    block: Block | None = None
    tokens: TokenGrowth = field(default_factory=TokenGrowth)
    window: tuple[SpeedSample, ...] = ()
    """Of this boot."""
    baseline: tuple[SpeedSample, ...] = ()
    """Collected until there are enough."""
    baseline_s: float | None = None
    """Median of the baseline."""
    baseline_mean_s: float = 0.0
    """Mean of the baseline without its longest steps."""
    trained_s: float = 0.0
    since: dict[str, Began] = field(default_factory=dict)
    """Condition that holds → when it began to."""
    waited_s: float = 0.0
    """Seconds in which every rank waited for a processor that other processes used."""
    crowd: str = ""
    """What kept the host busy when it was busy last."""
    excused: str = ""
    """What was excused, for the decision."""


@dataclass(frozen=True, kw_only=True)
class Condition:
    """One comparison of the present speed with a limit."""

    name: str
    setting: str
    severity: Severity
    holds: bool
    over_s: float
    """Seconds of training for which it has to hold."""
    slowness: float
    """How many times longer than allowed a step takes."""
    value: float
    limit: float
    text: str
    part: Sequence[SpeedSample]
    """The steps that were compared."""

    @property
    def key(self) -> str:
        """What tells the condition from the others."""
        return f"{self.name}/{self.setting}"

    @property
    def below(self) -> bool:
        """Whether the condition holds when the value falls below the limit."""
        return self.name != "baseline"

    @property
    def share(self) -> float:
        """How much of the way to the limit is gone."""
        return self.limit / self.value if self.below else self.value / self.limit


class Slow(Detector[Speed]):
    """D8 (module docstring)."""

    name = Name.SLOW
    sentence = (
        "Compares recomputed tokens per second with the floor of the hardware, and step times with"
        " the run's own first steps (the baseline, which a restart in place keeps). Halts when the"
        " median stays below the floor, when each of `hard_floor_over_steps` steps is below"
        " `hard_floor_ratio` of it (half a minute at least), or when the median and the mean stay"
        " above the baseline by more than the limit. Steps that report more tokens may take longer"
        " in proportion. Where other processes take the processors from all ranks alike, and that"
        " explains half of the lost time, it warns instead and names them."
    )
    State = Speed
    lines = frozenset({Msg.STEP_START, Msg.STEP_END, Msg.PROGRESS})
    ticks = True
    observes = frozenset({Kind.HOST_CPU})

    def observe_tick(self, own: Speed, tick: Tick, view: View) -> Seen[Speed]:
        """Count the time in which other processes took the processors from every rank."""
        seen = host_cpu_in(tick)
        waited_s = 0.0 if seen is None else starved_s(seen)
        if seen is None or waited_s == 0.0:
            return own, []
        return replace(own, waited_s=own.waited_s + waited_s, crowd=seen.words()), []

    def observe_line(self, own: Speed, event: Beat, view: View) -> Seen[Speed]:
        """Observe a line that ends a step of the timed rank, or the one before it."""
        line = event.line
        if own.rank is not None and own.rank != line.rank:
            return own, []
        stream = view.streams[line.rank]
        ended = stream.pace.last_step  # of a trainer that sends no `step_end`, the step before
        if ended is None or not stream.pace.times_s:
            return own, []
        if own.boot != stream.boot:
            own = _begun(own, line.rank, stream.boot, another=stream.another)
        if ended <= own.counted_step:
            return own, []
        told, of_step = view.tokens_of(stream.rank)
        ordered = view.run.order.identity.tokens_per_step
        own = replace(own, counted_step=ended, tokens=own.tokens.after(told, ordered, step=of_step))
        step_s, steps = stream.pace.times_s[-1], stream.pace.stride
        if view.reads_output():
            block, step_s, steps = read_block(own.block, event)
            own = replace(own, block=block)
        if ended - stream.from_step <= view.run.watch.slow.warmup_steps or not steps:
            return own, []
        own = self._timed(own, step_s, steps, event)
        findings: list[Finding] = []
        for condition in self._conditions(own, view):
            own, found = _judged(own, condition, event, view)
            findings += found
        return own, findings

    def _timed(self, own: Speed, step_s: float, steps: int, event: Beat) -> Speed:
        """Return the speed with the mean time of `steps` steps."""
        slow = self.settings
        sample = SpeedSample(
            step_s=step_s / max(1.0, own.tokens.ratio),
            steps=steps,
            mono=event.tick.mono,
            waited_s=own.waited_s,
        )
        keep = max(slow.window_steps, slow.over_steps or 0, slow.hard_floor_over_steps)
        own = replace(
            own, window=(*own.window, sample)[-keep:], trained_s=own.trained_s + step_s * steps
        )
        if own.baseline_s is not None:
            return own
        baseline = (*own.baseline, sample)
        if not fills(baseline, slow.baseline_steps):
            return replace(own, baseline=baseline)
        return replace(
            own,
            baseline=(),
            baseline_s=median_step_s(baseline),
            baseline_mean_s=mean_step_s(baseline),
        )

    def _conditions(self, own: Speed, view: View) -> Iterator[Condition]:
        """Yield every comparison that can be made now."""
        slow = self.settings
        window = last(own.window, slow.window_steps)
        median_s = median_step_s(window) if window else None
        if median_s is not None and not fills(window, slow.window_steps):
            long = len(window) >= min(FEW_STEPS, slow.window_steps) and median_s > LONG_STEP_S
            median_s = median_s if long else None
        ordered = view.run.order.identity.tokens_per_step
        tokens = ordered or view.tokens_of(own.rank or 0)[0]
        if own.baseline_s is not None:
            may_halt = bool(tokens) or not view.reads_output()
            severity = Severity.HALT if may_halt else Severity.WARN
            yield from self._relative(own, window, median_s, own.baseline_s, severity)
        if slow.floor_tok_s is not None and tokens:
            yield from self._absolute(own, window, median_s, tokens)

    def _relative(
        self,
        own: Speed,
        window: Sequence[SpeedSample],
        median_s: float | None,
        baseline_s: float,
        worst: Severity,
    ) -> Iterator[Condition]:
        """Yield the comparisons with the run's own baseline."""
        slow = self.settings
        rules = [("warn_ratio", Severity.WARN, slow.warn_over_s, window, median_s)]
        if slow.over_steps is None:
            rules.append(("halt_ratio", worst, slow.over_s, window, median_s))
        else:
            few = last(own.window, slow.over_steps)
            few_s = median_step_s(few) if fills(few, slow.over_steps) else None
            rules.append(("halt_ratio", worst, 0.0, few, few_s))
        for setting, severity, over_s, part, part_s in rules:
            if part_s is None:
                continue
            ratio, limit = part_s / baseline_s, getattr(slow, setting)
            what = "steps have taken" if over_s > 0.0 else f"the last {slow.over_steps} steps took"
            holds = ratio > limit
            if holds and setting == "halt_ratio" and slow.over_steps is None:
                least_x = min(slow.warn_ratio, slow.halt_ratio)
                holds = mean_step_s(part) > least_x * own.baseline_mean_s
            yield Condition(
                name="baseline",
                setting=setting,
                severity=severity,
                holds=holds,
                over_s=over_s,
                slowness=ratio,
                value=ratio,
                limit=limit,
                text=f"{what} {ratio:.2f} times the baseline",
                part=part,
            )

    def _absolute(
        self, own: Speed, window: Sequence[SpeedSample], median_s: float | None, tokens: int
    ) -> Iterator[Condition]:
        """Yield the comparisons with the floor of profile or plan."""
        slow = self.settings
        rules: list[tuple[str, float, float, Sequence[SpeedSample], float, str]] = []
        hard = own.window[-slow.hard_floor_over_steps :] if slow.hard_floor_over_steps else ()
        if hard and len(hard) == slow.hard_floor_over_steps:
            over_s = HARD_LEAST_S - added(sample.step_s for sample in hard)
            shortest_s = min(sample.step_s for sample in hard)
            each = f"tokens/s or less in each of {len(hard)} steps"
            rules.append(("hard_floor", slow.hard_floor_ratio, over_s, hard, shortest_s, each))
        if median_s is not None:
            rules.append(
                ("floor", slow.floor_ratio, slow.floor_over_s, window, median_s, "tokens/s")
            )
        for name, ratio, over_s, part, part_s, what in rules:
            tok_s, limit = tokens / part_s, ratio * slow.floor_tok_s
            yield Condition(
                name=name,
                setting="floor_tok_s",
                severity=Severity.HALT,
                holds=tok_s < limit,
                over_s=over_s,
                slowness=slow.floor_tok_s / tok_s,
                value=tok_s,
                limit=limit,
                text=f"{tok_s:.4g} {what}",
                part=part,
            )

    def armed(self, own: Speed, view: View) -> bool:
        """Whether there is a baseline or a floor to compare with."""
        return own.baseline_s is not None or (
            self.settings.floor_tok_s is not None and bool(own.window)
        )

    def near(self, own: Speed, view: View, mono: float) -> Near:
        """Return the condition that is nearest to a halt, or to a warning where none may halt."""
        found = list(self._conditions(own, view))
        found = [row for row in found if row.severity is Severity.HALT] or found
        if not found:
            return Near(blind=NOTHING_YET)
        worst = max(found, key=lambda row: row.share)
        began, left_s = own.since.get(worst.key), None
        if began is not None:
            left_s = max(0.0, worst.over_s - (own.trained_s - began.trained_s))
        return Near(
            value=worst.value,
            limit=worst.limit,
            unit="tokens/s" if worst.below else "",
            below=worst.below,
            time_left_s=left_s,
        )

    def missing(self, own: Speed, view: View) -> str | None:
        """Return what was excused because the host was busy."""
        return own.excused or None


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


def _begun(own: Speed, rank: int, boot: str | None, *, another: bool) -> Speed:
    """Return the speed at the start of a process; a restart in place keeps the baseline."""
    fresh = Speed(rank=rank, boot=boot, waited_s=own.waited_s, crowd=own.crowd, excused=own.excused)
    if own.rank is None or another:
        return fresh
    return replace(
        fresh,
        tokens=own.tokens.restarted(),
        baseline=own.baseline,
        baseline_s=own.baseline_s,
        baseline_mean_s=own.baseline_mean_s,
        trained_s=own.trained_s,
    )


def _judged(own: Speed, condition: Condition, event: Beat, view: View) -> Seen[Speed]:
    """Return what a condition finds, once it has held for long enough."""
    key, step = condition.key, event.line.step
    if not condition.holds:
        if key in own.since:
            own = replace(own, since={name: row for name, row in own.since.items() if name != key})
        return own, []
    if key not in own.since:
        own = replace(own, since={**own.since, key: _began(own, condition, step)})
    began = own.since[key]
    held_s = own.trained_s - began.trained_s
    if held_s < condition.over_s:
        return own, []
    severity, episode = condition.severity, f"{condition.name}/step{began.step}"
    lasts = f" for {held_s:.0f} s" if condition.over_s > 0.0 else ""
    text = f"{condition.text}{lasts} (limit {condition.limit:.4g})"
    waited_share = (own.waited_s - began.waited_s) / max(event.tick.mono - began.mono, 1e-9)
    if severity is Severity.HALT and _explains(waited_share, condition.slowness):
        severity, episode = Severity.WARN, f"busy/{episode}"
        busy = f"the host is busy: {own.crowd}, {min(1.0, waited_share):.0%} of the time waiting"
        text = f"{text}; {busy}"
        anew = _began(own, condition, began.step)
        since = {**own.since, key: anew}
        own = replace(own, since=since, excused=f"Slow steps were not judged: {busy}.")
    finding = found(
        view,
        Name.SLOW,
        severity,
        episode=episode,
        at=event.tick.ts,
        step=step,
        value=condition.value,
        threshold=condition.limit,
        source=view.run.source(f"slow.{condition.setting}"),
        text=text,
    )
    return own, [finding]


def _began(own: Speed, condition: Condition, step: int) -> Began:
    """Return the begin of a condition that holds now: the slow half of its steps caused it."""
    first = condition.part[max(0, len(condition.part) // 2 - 1)]
    return Began(trained_s=own.trained_s, step=step, mono=first.mono, waited_s=first.waited_s)


def _explains(waited_share: float, slowness: float) -> bool:
    """Whether waiting for a processor explains most of what a slow run loses of its time."""
    return waited_share > 0.0 and waited_share >= EXPLAINS_SHARE * (1.0 - 1.0 / slowness)
