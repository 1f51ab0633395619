"""D8: does the run make fewer tokens a second than its floor, or than it did before?

Recomputed from the ranks' own clock: Δsteps × tokens per step / Δmono, checkpoint and eval taken
out, the first `warmup_steps` not counted. A single slow step says nothing, nor do a few: the hard
floor asks that each of the last steps was below it (the median of five would halt a healthy run of
eight ranks that pauses three times) for half a minute, the other rules ask the median of a window.
A line that ends ten steps is one of those: a single checkpoint may have taken most of its time.
Sustained means seconds of training in which the condition held at every step end. The baseline is
frozen: a moving one would follow a run that gets slower bit by bit; a restart in place keeps it,
and what has lasted until then, for a run that restarts every few minutes is slow in between: its
steps go on filling the window, of which those since the restart have to be as slow.

A run that slows down while its baseline is collected is slow by its fastest part alone. That warns
and ends nothing: batches that were fetched ahead, a cool processor, make a start faster than a run.

A median does not see what happens to fewer than half of the steps. So where the longer third of a
window, without its few longest, takes far longer than that of the baseline, for as long as a halt
asks, that warns: every third step takes ten times what it did.

The lines of a program that is only read may come in blocks; each block is timed as a whole. Where
they call a step an episode, a game, a round, it is of no length of its own: episodes become longer
as an agent learns. Unless they tell tokens, that it takes longer warns then, and ends nothing.

Nor does it stay where steps are of two lengths, about as many of each (an agent plays before every
second step or so): by chance it is now the one, now the other. So a halt asks that the mean,
without the few longest, has risen by as much as warns.

Steps that tell more tokens than the first did (a batch ramp, longer sequences) may take longer in
proportion. Of steps that tell fewer nothing is asked: short ones cost more a token.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

from gonogo.contract.canonical import added
from gonogo.contract.finding import Finding, Severity
from gonogo.contract.heartbeat import Heartbeat, Msg
from gonogo.contract.outcome import Detector as Name
from gonogo.contract.watch import Slow as SlowSettings
from gonogo.watch.detector import Detector, Seen
from gonogo.watch.mean import mean_of
from gonogo.watch.state import replace
from gonogo.watch.tokens import TokenGrowth
from gonogo.watch.view import Beat, View, found

LONG_STEP_S = 30.0
FEW_STEPS = 16
HARD_LEAST_S = 30.0
"""Steps below the hard floor have to fill so much time: five of 0.05 s are slow together whenever a
neighbour wakes, a checkpoint is copied or a clock dips."""
PARTS, PART_STEPS = 4, 32
"""Parts of a baseline, and the fewest steps of one."""
LONGER_FROM, LONGER_TO = 2 / 3, 15 / 16
"""Shares of a window between which the longer steps lie that are compared; what pauses and stalls
make longer still is left out."""
FRESH_STEPS = 8
"""Steps since a restart in place before the window is asked again."""
_UNEVEN = frozenset(
    (
        *("episode", "ep", "game", "match", "play", "rollout", "trajectory", "trajectories"),
        *("trial", "generation", "gen", "round", "population", "tournament", "level"),
    )
)
"""What a step is called that is as long as it happens to be; also with an s."""
_LASTS = frozenset({"warn_ratio", "halt_ratio", "floor"})
"""Conditions that are a matter of time, and may last over a restart in place."""


@dataclass(frozen=True, kw_only=True)
class Speed:
    """Step times of the one rank that is timed, after warm-up."""

    rank: int | None = None
    boot: str | None = None
    counted_step: int = 0
    tokens: TokenGrowth = field(default_factory=TokenGrowth)
    window: tuple[float, ...] = ()
    """Seconds of steps, each as if it carried the tokens of the first."""
    told: tuple[float, ...] = ()
    """The same since the last restart in place, for the hard floor: one of each line that ends a
    step, be it one of ten steps, of which a single one may have taken all the time."""
    baseline: tuple[float, ...] = ()
    """Collected until there are enough; then only `baseline_s` counts."""
    baseline_s: float | None = None
    fastest_s: float | None = None
    """Median of the fastest part of the baseline: the run may have slowed down within it."""
    longer_s: float | None = None
    """Mean of the longer third of the baseline, as `_longer_s` has it; None of a short one."""
    mean_s: float = 0.0
    """Mean of the baseline, without its longest steps."""
    after_baseline: int = 0
    trained_s: float = 0.0
    since: dict[str, tuple[float, int]] = field(default_factory=dict)
    """Condition that holds → training seconds and step at which it began to."""

    fresh: int = 0
    """Steps in the window since the last restart in place."""
    stride: int = 0
    """Steps between the last two lines that ended one."""
    read_n: int | None = None
    """Of a program that is only read: the tick that brought the last line that was timed."""
    read_mono: float | None = None
    """When that line was printed, on the reader's clock; None before any of this process."""
    read_step: int = 0

    def rebooted(self, boot: str | None) -> "Speed":
        """Return the speed at a restart in place: what is usual stays, and what lasted goes on.

        It is asked again only of steps after the restart: a restart may have mended the run.
        """
        since = {name: row for name, row in self.since.items() if name in _LASTS}
        return replace(
            self,
            boot=boot,
            tokens=self.tokens.restarted(),
            counted_step=0,
            after_baseline=0,
            fresh=0,
            told=(),
            since=since,
            read_mono=None,
        )

    def unmeasured(self) -> "Speed":
        """Return the speed without its samples: each was taken for a step of too many tokens."""
        return Speed(
            rank=self.rank,
            boot=self.boot,
            read_n=self.read_n,
            read_mono=self.read_mono,
            read_step=self.read_step,
        )


def _timed(own: Speed, step_s: float, stride: int, count: int, slow: SlowSettings) -> Speed:
    """Return the speed with the mean time of `stride` steps, counted `count` times."""
    keep = max(slow.window_steps, slow.over_steps or 0)
    hard, growth = slow.hard_floor_over_steps, max(1.0, own.tokens.ratio)
    sample_s = step_s / growth
    samples = (sample_s,) * min(count, keep)
    own = replace(
        own,
        told=(*own.told, sample_s)[-hard:] if hard else (),
        window=(*own.window, *samples)[-keep:],
        trained_s=own.trained_s + step_s * stride,
        fresh=min(keep, own.fresh + len(samples)),
    )
    if own.baseline_s is not None:
        return replace(own, after_baseline=own.after_baseline + stride)
    baseline = (*own.baseline, *samples)
    if len(baseline) < slow.baseline_steps:
        return replace(own, baseline=baseline)
    return replace(
        own,
        baseline=(),
        baseline_s=statistics.median(baseline),
        fastest_s=_fastest_s(baseline),
        longer_s=_longer_s(baseline),
        mean_s=_mean_s(baseline),
    )


def _longer_s(steps: tuple[float, ...]) -> float | None:
    """Return the mean of the longer third of some steps, without the longest; None of a few."""
    if len(steps) < FEW_STEPS:
        return None
    part = sorted(steps)[round(LONGER_FROM * len(steps)) : round(LONGER_TO * len(steps))]
    return mean_of(part)


def _mean_s(steps: Sequence[float]) -> float:
    """Return the mean of some steps, without the few longest."""
    return mean_of(sorted(steps)[: round(LONGER_TO * len(steps))])


def _fastest_s(baseline: tuple[float, ...]) -> float:
    """Return the median of the part of the baseline whose median is the lowest."""
    parts = max(1, min(PARTS, len(baseline) // PART_STEPS))
    size = len(baseline) // parts
    return min(statistics.median(baseline[at * size :][:size]) for at in range(parts))


def _read(own: Speed, event: Beat) -> tuple[Speed, float, int]:
    """Return the mean time of the steps since the last line that was timed, and how many they are.

    Of lines that come together nobody knows when each was printed: the first one stands for them,
    and the others take no time at all (0 steps).
    """
    line = event.line
    if event.tick.n == own.read_n:
        return own, 0.0, 0
    before_mono, steps = own.read_mono, line.step - own.read_step
    own = replace(own, read_n=event.tick.n, read_mono=line.mono, read_step=line.step)
    if before_mono is None or steps <= 0 or line.mono <= before_mono:
        return own, 0.0, 0
    return own, (line.mono - before_mono) / steps, steps


def _median_s(own: Speed, slow: SlowSettings) -> float | None:
    """Return the window's median, or None while it holds too few steps."""
    window = own.window[-slow.window_steps :]
    fresh = window[-own.fresh :] if own.fresh else ()
    if len(window) < min(FEW_STEPS, slow.window_steps) or len(fresh) < min(
        FRESH_STEPS, slow.window_steps
    ):
        return None
    median_s = statistics.median(window)
    if len(fresh) < len(window):
        median_s = min(median_s, statistics.median(fresh))
    return median_s if len(window) == slow.window_steps or median_s > LONG_STEP_S else None


def _held_s(own: Speed, name: str, holds: bool, step: int) -> tuple[Speed, float, int]:
    """Return for how long a condition has held (0.0: not at all, or since now), and since when."""
    if not holds:
        if name in own.since:
            own = replace(own, since={k: v for k, v in own.since.items() if k != name})
        return own, 0.0, step
    if name not in own.since:
        own = replace(own, since={**own.since, name: (own.trained_s, step)})
    began_s, began_step = own.since[name]
    return own, own.trained_s - began_s, began_step


def _relative(own: Speed, event: Beat, view: View) -> tuple[Speed, list[Finding]]:
    """Compare with the run's own baseline: warn, and halt on time or on a number of steps."""
    slow, line = view.run.watch.slow, event.line
    baseline_s = own.baseline_s
    if baseline_s is None:
        return own, []
    own, findings = _over_steps(own, event, view, baseline_s)
    median_s = _median_s(own, slow)
    if median_s is None:
        return own, findings
    uneven = _is_uneven(view, line)
    within = median_s <= slow.warn_ratio * baseline_s  # if it slowed down, then within the baseline
    warns_s = baseline_s if own.fastest_s is None or not within else own.fastest_s
    stages = [(Severity.WARN, "warn_ratio", slow.warn_ratio, slow.warn_over_s, warns_s)]
    if slow.over_steps is None and not uneven:
        stages.append((Severity.HALT, "halt_ratio", slow.halt_ratio, slow.over_s, baseline_s))
    for severity, name, limit, over_s, usual_s in stages:
        ratio = median_s / usual_s
        holds = ratio > limit and (severity is Severity.WARN or _is_longer_on_the_whole(own, slow))
        own, held_s, began = _held_s(own, name, holds, line.step)
        if held_s >= over_s:
            of = "the baseline" if usual_s == baseline_s else "the fastest part of the baseline"
            text = f"steps have taken {ratio:.2f} times {of} for {held_s:.0f} s"
            findings.append(_finding(view, event, severity, began, name, ratio, text))
    own, longer = _longer(own, event, view, within=within)
    return own, findings + longer


def _is_longer_on_the_whole(own: Speed, slow: SlowSettings) -> bool:
    """Whether the mean of the window has risen, too, and not its median alone.

    Of steps of two lengths, about as many of each, the median is now the one, now the other.
    """
    least_x = min(slow.warn_ratio, slow.halt_ratio)
    return _mean_s(own.window[-slow.window_steps :]) > least_x * own.mean_s


def _longer(own: Speed, event: Beat, view: View, *, within: bool) -> tuple[Speed, list[Finding]]:
    """Warn where fewer than half of the steps take far longer than such did in the baseline.

    Args:
        own: the speed.
        event: the line that ended a step.
        view: what is known.
        within: whether the median of the window is what it was.
    """
    slow = view.run.watch.slow
    longer_s = _longer_s(own.window[-slow.window_steps :])
    ratio = longer_s / own.longer_s if longer_s is not None and own.longer_s else 0.0
    holds = within and ratio > slow.halt_ratio
    own, held_s, began = _held_s(own, "longer", holds, event.line.step)
    if not holds or held_s < slow.over_s:
        return own, []
    text = (
        f"the longer third of the steps has taken {ratio:.2f} times what it did for {held_s:.0f} s"
    )
    found = _finding(view, event, Severity.WARN, began, "halt_ratio", ratio, text, of="longer")
    return own, [found]


def _over_steps(
    own: Speed, event: Beat, view: View, baseline_s: float
) -> tuple[Speed, list[Finding]]:
    """Halt on the median of the last steps, where the plan asks for steps instead of seconds."""
    slow = view.run.watch.slow
    if slow.over_steps is None:
        return own, []
    ratio = statistics.median(own.window[-slow.over_steps :]) / baseline_s
    over = own.after_baseline >= slow.over_steps and ratio > slow.halt_ratio
    own, _, began = _held_s(own, "over_steps", over, event.line.step)
    if not over:
        return own, []
    text = f"the last {slow.over_steps} steps took {ratio:.2f} times the baseline"
    return own, [_finding(view, event, Severity.HALT, began, "halt_ratio", ratio, text)]


def _absolute(own: Speed, event: Beat, view: View) -> tuple[Speed, list[Finding]]:
    """Compare with the floor of profile or plan."""
    slow, line = view.run.watch.slow, event.line
    tokens = tokens_per_step(view, line)
    if slow.floor_tok_s is None or not tokens:
        return own, []
    findings = []
    hard = own.told
    if hard and len(hard) == slow.hard_floor_over_steps:
        tok_s = tokens / min(hard)
        limit = slow.hard_floor_ratio * slow.floor_tok_s
        own, held_s, began = _held_s(own, "hard_floor", tok_s < limit, line.step)
        if tok_s < limit and held_s + added(hard) >= HARD_LEAST_S:
            text = f"{tok_s:.4g} tokens/s or less in each of {len(hard)} steps (limit {limit:.4g})"
            findings.append(_floor_finding(view, event, began, "hard_floor", tok_s, limit, text))
    median_s = _median_s(own, slow)
    if median_s is not None:
        tok_s, limit = tokens / median_s, slow.floor_ratio * slow.floor_tok_s
        own, held_s, began = _held_s(own, "floor", tok_s < limit, line.step)
        if held_s >= slow.floor_over_s:
            text = f"{tok_s:.4g} tokens/s for {held_s:.0f} s (limit {limit:.4g})"
            findings.append(_floor_finding(view, event, began, "floor", tok_s, limit, text))
    return own, findings


def tokens_per_step(view: View, line: Heartbeat) -> int | None:
    """Return the ordered tokens per step; what the line says only where nothing is ordered."""
    return view.run.order.identity.tokens_per_step or line.tokens


def _is_uneven(view: View, line: Heartbeat) -> bool:
    """Whether steps of a program that is only read may be of any length, as it calls them."""
    word = line.step_word
    if word is None or not view.reads_output() or tokens_per_step(view, line):
        return False
    return word in _UNEVEN or word.removesuffix("s") in _UNEVEN


def _finding(
    view: View,
    event: Beat,
    severity: Severity,
    began: int,
    name: str,
    ratio: float,
    text: str,
    *,
    of: str = "baseline",
) -> Finding:
    limit: float = getattr(view.run.watch.slow, name)
    return found(
        view,
        Name.SLOW,
        severity,
        episode=f"{of}/step{began}",
        at=event.tick.ts,
        step=event.line.step,
        value=ratio,
        threshold=limit,
        source=view.run.source(f"slow.{name}"),
        text=f"{text} (limit {limit:g})",
    )


def _floor_finding(
    view: View, event: Beat, began: int, name: str, tok_s: float, limit: float, text: str
) -> Finding:
    return found(
        view,
        Name.SLOW,
        Severity.HALT,
        episode=f"{name}/step{began}",
        at=event.tick.ts,
        step=event.line.step,
        value=tok_s,
        threshold=limit,
        source=view.run.source("slow.floor_tok_s"),
        text=text,
    )


class Slow(Detector[Speed]):
    """D8: does the run make fewer tokens a second than its floor, or than it did before?"""

    name = Name.SLOW
    sentence = (
        "Halts when recomputed tokens per second stay below the floor of the hardware (below "
        "`hard_floor_ratio` of it in each of `hard_floor_over_steps` steps, which fill half a "
        "minute at least), or when "
        "steps take far longer than they did at the beginning (before a restart in place too), "
        "and longer than the tokens they tell have grown: by their median, and by as much as warns"
        " by their mean without the few longest. Where they slowed down within that "
        "beginning, and take longer than in the fastest quarter of it, it warns; and where not half"
        " of the steps, but the longer third of them, takes so much longer. So it does, and "
        "halts nothing, where the lines of an unchanged program call a step an episode, a game or "
        "the like, and tell no tokens: those grow as an agent learns. What lasts goes on"
        " over restarts in place, as soon as eight steps after one are as slow."
    )
    """2: the hard floor asks each of its steps, not their median, and half a minute; steps of more
    tokens may take longer; a restart in place keeps the baseline, and for how long the run
    has been slow. 3: the time in which a run was suspended with its watcher is no step's;
    growth of the first lines is against the tokens that were ordered; a halt against the baseline
    asks that the mean has risen, too."""
    State = Speed
    lines = frozenset({Msg.STEP_START, Msg.STEP_END, Msg.PROGRESS})

    def observe_line(self, own: Speed, event: Beat, view: View) -> Seen[Speed]:
        """Observe a line that ends a step of the timed rank, or the one before it."""
        line = event.line
        if own.rank is not None and own.rank != line.rank:
            return own, []
        stream = view.streams[line.rank]
        ended = stream.pace.last_step  # of a trainer that tells no `step_end`, the step before
        if ended is None or not stream.pace.times_s:
            return own, []
        if own.rank is None or (own.boot != stream.boot and stream.another):
            own = Speed(rank=line.rank, boot=stream.boot)
        elif own.boot != stream.boot:
            own = own.rebooted(stream.boot)
        if ended <= own.counted_step:
            return own, []
        ordered = view.run.order.identity.tokens_per_step
        told, of_step = view.tokens_of(stream.rank)
        tokens = own.tokens.after(told, ordered, step=of_step)
        if tokens.sums and not own.tokens.sums:
            own = own.unmeasured()
        own = replace(own, counted_step=ended, tokens=tokens)
        slow = view.run.watch.slow
        warms_up = ended - stream.from_step <= slow.warmup_steps
        step_s, stride = stream.pace.times_s[-1], stream.pace.stride
        if view.reads_output():
            own, step_s, stride = _read(own, event)
        if warms_up or not stride:
            return own, []
        # Of a rank that names its sections and ends every step, lines are missing: nobody knows
        # which of the steps took the time, and their mean is one sample. Some tell every tenth.
        samples = 1 if stream.labelled and stride != own.stride else stride
        own = replace(own, stride=stride)
        own = _timed(own, step_s, stride, samples, slow)
        own, findings = _relative(own, event, view)
        own, absolute = _absolute(own, event, view)
        return own, absolute + findings

    def armed(self, own: Speed, view: View) -> bool:
        """Whether there is a baseline or a floor to compare with."""
        return own.baseline_s is not None or (
            view.run.watch.slow.floor_tok_s is not None and bool(own.window)
        )
