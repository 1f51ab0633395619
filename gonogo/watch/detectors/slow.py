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

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from gonogo.contract.canonical import added, mean_of
from gonogo.contract.finding import Severity
from gonogo.contract.heartbeat import Msg
from gonogo.contract.near import Near
from gonogo.contract.observation import HostCpu, Kind, host_cpu_in
from gonogo.contract.outcome import Detector as Name
from gonogo.contract.tick import Tick
from gonogo.watch.detector import NOTHING_YET, Detector, Seen
from gonogo.watch.state import replace
from gonogo.watch.view import Beat, View

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
FIRST_TOKENS = 16
"""Lines whose median says how many tokens a step has at first."""
SAME_UNIT_X = 2.0
"""Reported tokens of more times what was ordered are in another unit."""


@dataclass(frozen=True, kw_only=True)
class TokenGrowth:
    """Tokens of a step, compared with those of the first steps."""

    first: tuple[int, ...] = ()
    usual: float = 1.0
    """Median of the first ones."""
    ratio: float = 1.0
    """Of the last step that reported its tokens, to the usual ones."""

    def after(self, tokens: int | None, ordered: int | None) -> "TokenGrowth":
        """Return the growth after one more step; an unknown number changes nothing.

        Sequences of any length may begin with long ones, so no more than `ordered` is usual, unless
        the reports are in another unit.
        """
        if not tokens or tokens < 0:
            return self
        if len(self.first) == FIRST_TOKENS:
            return replace(self, ratio=tokens / self.usual)
        first = (*self.first, tokens)
        usual = statistics.median(first)
        if ordered is not None and usual <= SAME_UNIT_X * ordered:
            usual = min(usual, ordered)
        return TokenGrowth(first=first, usual=usual, ratio=tokens / usual)


@dataclass(frozen=True, kw_only=True)
class Sample:
    """The steps that one line ended."""

    step_s: float
    """Mean seconds of a step, as if it carried the tokens of the first steps."""
    steps: int
    mono: float
    """Watcher's clock when the line came."""
    waited_s: float
    """Seconds in which the ranks had waited for a processor until then."""


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
    block: tuple[int, int, float] | None = None
    """Tick, step and clock of the last printed line that was timed."""
    tokens: TokenGrowth = field(default_factory=TokenGrowth)
    window: tuple[Sample, ...] = ()
    """Of this boot."""
    baseline: tuple[Sample, ...] = ()
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
    """How many times longer than usual, or than at the floor, a step takes."""
    value: float
    limit: float
    text: str
    part: Sequence[Sample]
    """The steps that were compared."""

    @property
    def key(self) -> str:
        """What distinguishes the condition from the others."""
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
        ordered = view.run.order.identity.tokens_per_step
        tokens = own.tokens.after(view.tokens_of(stream.rank)[0], ordered)
        own = replace(own, counted_step=ended, tokens=tokens)
        step_s, steps = stream.pace.times_s[-1], stream.pace.stride
        if view.reads_output():
            own, step_s, steps = _read_block(own, event)
        if ended - stream.from_step <= view.run.watch.slow.warmup_steps or not steps:
            return own, []
        own, findings = self._timed(own, step_s, steps, event), []
        for condition in self._conditions(own, view):
            own, found = self._judged(own, condition, event, view)
            findings += found
        return own, findings

    def _timed(self, own: Speed, step_s: float, steps: int, event: Beat) -> Speed:
        """Return the speed with the mean time of `steps` steps."""
        slow = self.settings
        sample = Sample(
            step_s=step_s / max(1.0, own.tokens.ratio),
            steps=steps,
            mono=event.tick.mono,
            waited_s=own.waited_s,
        )
        keep = max(slow.window_steps, slow.over_steps or 0, slow.hard_floor_over_steps)
        window, trained_s = (*own.window, sample)[-keep:], own.trained_s + step_s * steps
        own = replace(own, window=window, trained_s=trained_s)
        if own.baseline_s is not None:
            return own
        baseline = (*own.baseline, sample)
        if not _last(baseline, slow.baseline_steps):
            return replace(own, baseline=baseline)
        return replace(
            own,
            baseline=(),
            baseline_s=_median_s(baseline),
            baseline_mean_s=_mean_s(baseline),
        )

    def _conditions(self, own: Speed, view: View) -> Iterator[Condition]:
        """Yield every comparison that can be made now."""
        slow, window = self.settings, _window(own.window, self.settings.window_steps)
        tokens = view.run.order.identity.tokens_per_step or view.tokens_of(own.rank or 0)[0]
        if own.baseline_s is not None:
            worst = Severity.HALT if tokens or not view.reads_output() else Severity.WARN
            yield from self._relative(own, window, own.baseline_s, "warn_ratio", Severity.WARN)
            yield from self._relative(own, window, own.baseline_s, "halt_ratio", worst)
        if slow.floor_tok_s is not None and tokens:
            yield from self._absolute(own, window, tokens)

    def _relative(
        self, own: Speed, part: Sequence[Sample], usual_s: float, setting: str, severity: Severity
    ) -> Iterator[Condition]:
        """Yield the comparison with one multiple of the run's own baseline."""
        slow, limit, warns = self.settings, getattr(self.settings, setting), setting == "warn_ratio"
        over_s, what = (slow.warn_over_s if warns else slow.over_s), "steps have taken"
        few = None if warns else slow.over_steps
        if few is not None:
            part, over_s, what = _last(own.window, few), 0.0, f"the last {few} steps took"
        if not part:
            return
        ratio, least_x = _median_s(part) / usual_s, min(slow.warn_ratio, slow.halt_ratio)
        mean_rose = few is not None or warns or _mean_s(part) > least_x * own.baseline_mean_s
        yield Condition(
            name="baseline",
            setting=setting,
            severity=severity,
            holds=ratio > limit and mean_rose,
            over_s=over_s,
            slowness=ratio,
            value=ratio,
            limit=limit,
            text=f"{what} {ratio:.2f} times the baseline",
            part=part,
        )

    def _absolute(self, own: Speed, window: Sequence[Sample], tokens: int) -> Iterator[Condition]:
        """Yield the comparisons with the floor of profile or plan."""
        slow, few = self.settings, self.settings.hard_floor_over_steps
        hard = own.window[-few:] if 0 < few <= len(own.window) else ()
        hard_s = HARD_LEAST_S - added(sample.step_s for sample in hard)
        shortest_s = min((sample.step_s for sample in hard), default=0.0)
        rules: list[tuple[str, float, float, Sequence[Sample], float, str]] = []
        if hard:
            text = f"tokens/s or less in each of {few} steps"
            rules.append(("hard_floor", slow.hard_floor_ratio, hard_s, hard, shortest_s, text))
        if window:
            median_s, over_s = _median_s(window), slow.floor_over_s
            rules.append(("floor", slow.floor_ratio, over_s, window, median_s, "tokens/s"))
        for name, ratio, over_s, part, step_s, what in rules:
            tok_s, limit = tokens / step_s, ratio * slow.floor_tok_s
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

    def _judged(self, own: Speed, condition: Condition, event: Beat, view: View) -> Seen[Speed]:
        """Return what a condition finds, once it has held for long enough."""
        key, step = condition.key, event.line.step
        if not condition.holds:
            since = {name: row for name, row in own.since.items() if name != key}
            return (replace(own, since=since) if key in own.since else own), []
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
        lost_share = 1.0 - 1.0 / condition.slowness
        if severity is Severity.HALT and waited_share > max(0.0, EXPLAINS_SHARE * lost_share):
            severity, episode = Severity.WARN, f"busy/{episode}"
            busy = (
                f"the host is busy: {own.crowd}, {min(1.0, waited_share):.0%} of the time waiting"
            )
            since = {**own.since, key: _began(own, condition, began.step)}
            own = replace(own, since=since, excused=f"Slow steps were not judged: {busy}.")
            text = f"{text}; {busy}"
        setting = condition.setting
        return own, [
            self.finding(
                event,
                view,
                severity,
                episode,
                text,
                setting=setting,
                value=condition.value,
                threshold=condition.limit,
            )
        ]

    def armed(self, own: Speed, view: View) -> bool:
        """Whether there is a baseline or a floor to compare with."""
        floor = self.settings.floor_tok_s is not None and bool(own.window)
        return own.baseline_s is not None or floor

    def measure(self, own: Speed, view: View, mono: float) -> Near:
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
    kept = ("tokens", "baseline", "baseline_s", "baseline_mean_s", "trained_s")
    return replace(fresh, **{name: getattr(own, name) for name in kept})


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


def _last(samples: Sequence[Sample], steps: int) -> Sequence[Sample]:
    """Return the last samples that cover so many steps; none where they are too few."""
    covered = 0
    for count, sample in enumerate(reversed(samples), start=1):
        covered += sample.steps
        if covered >= steps and count >= min(LEAST_LINES, steps):
            return samples[-count:]
    return ()


def _window(samples: Sequence[Sample], steps: int) -> Sequence[Sample]:
    """Return the last samples that cover so many steps, or a few if steps are long."""
    part = _last(samples, steps)
    few = not part and len(samples) >= min(FEW_STEPS, steps)
    return samples if few and _median_s(samples) > LONG_STEP_S else part


def _median_s(samples: Sequence[Sample]) -> float:
    """Return the median seconds of a step."""
    return statistics.median(sample.step_s for sample in samples)


def _mean_s(samples: Sequence[Sample]) -> float:
    """Return the mean seconds of a step, without the few longest."""
    times_s = sorted(sample.step_s for sample in samples)
    return mean_of(times_s[: round(KEPT_SHARE * len(times_s))])


def _began(own: Speed, condition: Condition, step: int) -> Began:
    """Return the begin of a condition that holds now: the slow half of its steps caused it."""
    first = condition.part[max(0, len(condition.part) // 2 - 1)]
    return Began(trained_s=own.trained_s, step=step, mono=first.mono, waited_s=first.waited_s)
