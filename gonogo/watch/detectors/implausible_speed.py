"""D21: can the speed that the trainer tells, or that its clock implies, be true?

Recomputed is what the ends of the steps say: the ordered tokens over the time between them, and
more or fewer where the tokens that a step's end tells have changed since the first steps.
Trainers report honestly in many ways (means over any window, the best so far, without the time of
data and logging, or of what they do between two steps), and none of them can exceed the fastest
that the run has ever been. So a report above that ends the run, and one below warns: it makes
nothing look better than it is. A rank's own clock, on which all of this rests, is held against the
watcher's; where its wall clock lags with it, its lines may only come later and later, which a file
system does for a while. Where nothing says how many tokens a step has, a program of somebody else's
may count them in one way and its speed in another (of one rank and of all, of a part of a step and
of the whole): a report that was never possible warns, and one that has become so ends the run. Of a
program whose printed lines are read nobody knows when its steps
ended, so nothing of this is said.

What the devices can multiply is a limit only where every token meets every parameter. Of our models
that is known; of another (experts of which a token meets two, tables of which it looks up a row, a
trunk that is frozen) it is what the plan says by setting `mfu`: otherwise it warns.
"""

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from operator import attrgetter

from gonogo.contract import outcome
from gonogo.contract.finding import Finding, Severity, Source
from gonogo.contract.hardware import HardwareProfile, hardware_profiles
from gonogo.contract.heartbeat import Heartbeat, Msg
from gonogo.contract.tick import Tick
from gonogo.contract.workload import is_ours
from gonogo.watch.detector import Detector, Seen
from gonogo.watch.detectors.loader import fetched_s
from gonogo.watch.state import replace
from gonogo.watch.step import RankStep, Step
from gonogo.watch.tokens import TokenGrowth
from gonogo.watch.view import Beat, Run, View, found, is_late

BETWEEN_S = 0.02
"""Seconds of a step that a trainer's own stopwatch may miss: logging, callbacks, the heartbeat."""
LEAST_SHARE = 0.1
"""Of a step's time, that is always counted."""
FLOPS_PER_PARAM = 6
"""Two forward and four backward for each parameter and token; attention is not counted."""
CPU_X = 4.0
"""A CPU's peak is measured beside whatever else runs on it: its limit is so many times as high."""
_TOKS_PER_S = attrgetter("toks_per_s")
CLOCK_SPANS = 3
LAGGING_SPANS = 15
"""Spans that lines may come later and later, as from a file system that others use: then a rank's
wall clock, of which they tell, lags as its own does. One who slows both is found by then."""
LASTING_X = 3
"""Windows after which no lucky first steps weigh in an average any more."""
RESUMED_X = 2.0
"""How many times as fast the run before may have been that a resumed one went on from: its mean, or
its best, may have come with the checkpoint, and nobody here knows its steps."""
SILENT_STEPS = 1000
"""After so many another rank's reports are looked at, for the one that told them is silent."""
PEAK = "preflight_peak"
_APART = "Speed was not checked: no step was ended by all ranks at about the same time."
CPU = "cpu"


@dataclass(frozen=True, kw_only=True)
class Clock:
    """One rank's clock held against the watcher's, from one step end to another."""

    boot: str = ""
    own: float = 0.0
    watcher: float = 0.0
    ended: float = 0.0
    """The rank's clock at the end of the step, and its wall clock."""
    ended_ts: float = 0.0
    slow: int = 0
    """Spans running in which the rank's clock went too slowly."""
    alone: int = 0
    """Those of the last of them in which its wall clock went on."""
    since_ts: float = 0.0

    def at(self, mono: float, end: Heartbeat, tick: Tick) -> "Clock":
        """Return the clock where a span ends, and the next begins."""
        return replace(self, own=mono, watcher=tick.mono, ended=end.mono, ended_ts=end.ts)

    def slows_alone(self, end: Heartbeat, slowed: float) -> bool:
        """Whether the wall clock went on, at the end of a step, as the watcher's did."""
        own_s, wall_s = end.mono - self.ended, end.ts - self.ended_ts
        return wall_s > own_s * (1.0 + slowed) / 2.0

    def found_now(self) -> bool:
        """Whether it has just been slow for long enough."""
        if self.alone >= CLOCK_SPANS:
            return self.alone == CLOCK_SPANS
        return self.slow == LAGGING_SPANS

    def lags(self) -> bool:
        """Whether it is slow, or its lines come late, and nobody knows which."""
        return self.alone < CLOCK_SPANS <= self.slow < LAGGING_SPANS


@dataclass(frozen=True, kw_only=True)
class Speeds:
    """Reported and recomputed tokens per second of the last steps."""

    last_step: int = 0
    tokens: TokenGrowth = field(default_factory=TokenGrowth)
    reported: bool = False
    """Whether the trainer told its tokens/s of any step, be it one that nobody could time."""
    resumed: bool = False
    """Whether the first process went on from a step of another run: the trainer's own doing."""
    apart: bool = False
    """Whether a step ended that was not every rank's: of such nothing is said."""
    teller: int | None = None
    """The first rank in order that tells its tokens/s; another may count in a way of its own."""
    told_step: int = 0
    """When it told them last."""
    told: tuple[float, ...] = ()
    kind: tuple[float, ...] = ()
    """Recomputed in the trainer's favour: without data time, `BETWEEN_S` and what lies between
    two steps."""
    plain: tuple[float, ...] = ()
    """Recomputed over whole steps."""
    began: tuple[float, ...] = ()
    """When those steps ended, in Unix seconds."""
    fastest: float = 0.0
    """Upper quartile of the fastest window so far, in the trainer's favour."""
    slowest: float | None = None
    """Of any window, its lower quartile or its mean with all pauses, whichever is less."""
    peak: float = 0.0
    """Of any single step, in the trainer's favour."""
    over: int = 0
    """Steps running on which the report was above the fastest window."""
    possible: bool = False
    """Whether the step ends have ever allowed the report."""
    above: bool = False
    below: bool = False
    peaked: bool = False
    beaten: bool = False
    """The best step known of this work was more than beaten, which is told once."""
    clock: Clock = Clock()
    device: str | None = None
    """Model of the device on which the ranks say that they compute; of several kinds no CPU."""


class ImplausibleSpeed(Detector[Speeds]):
    """D21 (module docstring)."""

    name = outcome.Detector.IMPLAUSIBLE_SPEED
    sentence = (
        "The tokens/s that the trainer reports (median of `over_steps`) are more than"
        " `differ_ratio` above the fastest that the run has been in any `over_steps` steps"
        " (recomputed from its step ends and how the tokens they tell have grown, upper quartile,"
        " without data time, 20 ms a step and what lies before the step's start as its own length"
        " leaves it, so that averages and other windows are no lie), and"
        " above its fastest single step or for"
        " three times `over_steps`: halt (of a resumed run beyond twice that: a mean may have come"
        " with the checkpoint; of a program of yours whose tokens are not ordered it warns where"
        " no report before it was possible: it may count them in two ways); as far"
        " below the slowest (pauses counted): warn. Six"
        " operations a parameter (embeddings aside) and token exceed `mfu` of the matrix-product"
        " peak over `over_steps`: halt; the peak is the hardware table's or the one measured at"
        " preflight on devices of the profile's kind, whichever is more, four times the latter"
        " where it is a CPU's (which says nothing of ranks that compute on another device); of a"
        " model that is not ours: warn, unless the plan sets `mfu`, for a token may not meet all"
        " its parameters; without a peak or the parameters: UNKNOWN. Steps that take less than"
        " `best_ratio` of the best known of the same work on the same devices (their median over"
        " `over_steps`): warn. The clock of a rank runs `clock_x` times slower than the watcher's"
        " in three spans of `clock_s` running, no tick of them late: halt; in fifteen where its"
        " wall clock goes as slowly, for then its lines may come later and later."
    )
    State = Speeds
    """2: a clock that lags as its wall clock does may be that of lines that come ever later. 3:
    what a program of somebody else's tells in other tokens than those of its steps warns."""
    lines = frozenset({Msg.BOOT})
    steps = True

    def observe_line(self, own: Speeds, beat: Beat, view: View) -> Seen[Speeds]:
        """Observe on what a rank says that it computes."""
        told = beat.line.device
        if told is None or own.device not in (None, CPU):
            return own, []
        return replace(own, device=told), []

    def observe_step(self, own: Speeds, step: Step, view: View) -> Seen[Speeds]:
        """Observe what the trainer says of its speed, and what its step ends say."""
        if view.reads_output():
            return own, []
        if len(step.ranks) < len(view.streams):
            # of ranks that do not wait for each other one says nothing of all
            return (own if own.apart else replace(own, apart=True)), []
        if not own.last_step:
            streams = (view.streams[rank] for rank in step.ranks)
            own = replace(own, resumed=any(stream.from_step for stream in streams))
        if step.step <= own.last_step:
            own = _begun_again(own, step, view)
        ordered = self.run.order.identity.tokens_per_step
        first = step.ranks[min(step.ranks)]
        said = step.values(_TOKS_PER_S)
        own = _listening(own, said, step.step)
        told = None if own.teller is None else said.get(own.teller)
        carried, of_step = first.end.tokens, step.step
        if not carried:
            carried, of_step = view.tokens_of(first.rank)
        grown = own.tokens.after(carried, ordered, step=of_step)
        if grown.sums and not own.tokens.sums:
            own = _unmeasured(own)
        own = replace(
            own,
            last_step=step.step,
            tokens=grown,
            reported=own.reported or told is not None,
        )
        own, clocks = self._clocked(own, step, view)
        tokens = ordered * own.tokens.ratio if ordered else first.end.tokens
        step_s, kind_s = step.median_s(), _kind_s(step)
        if not tokens or not step_s or not kind_s:
            return own, clocks
        keep = self.settings.over_steps
        own = replace(
            own,
            plain=(*own.plain, tokens / step_s)[-keep:],
            kind=(*own.kind, tokens / kind_s)[-keep:],
            told=own.told if told is None else (*own.told, told)[-keep:],
            began=(*own.began, step.tick.ts)[-keep:],
        )
        if len(own.plain) < keep:
            return own, clocks
        own = replace(
            own,
            fastest=max(own.fastest, sorted(own.kind)[3 * keep // 4]),
            peak=max(own.peak, *own.kind),
            slowest=_slowest(own.slowest, own.plain),
        )
        own, reports = self._reported(own, step, view)
        own, peaks = self._peaked(own, step, view)
        own, beaten = self._beaten(own, tokens, step, view)
        return own, clocks + reports + peaks + beaten

    def _reported(self, own: Speeds, step: Step, view: View) -> Seen[Speeds]:
        """Hold the reports against the fastest and the slowest that the run has been."""
        if len(own.told) < self.settings.over_steps or own.slowest is None:
            return own, []
        told, differ = statistics.median(own.told), self.settings.differ_ratio
        resumed = own.resumed or self.run.order.resume_from is not None
        most_x = (1.0 + differ) * (RESUMED_X if resumed else 1.0)
        over = own.over + 1 if told > most_x * own.fastest else 0
        lasting = over > LASTING_X * self.settings.over_steps
        above = over > 0 and (lasting or told > most_x * own.peak)
        below = told < (1.0 - differ) * own.slowest
        findings, severity = [], Severity.HALT
        if not (own.possible or self._knows_tokens()):
            severity = Severity.WARN
        if above and not own.above:
            text = (
                f"the trainer reports {told:.4g} tokens/s over {len(own.told)} steps; the fastest"
                f" that its step ends allow is {own.fastest:.4g}"
            )
            limit = most_x * own.fastest
            findings.append(
                self._finding(severity, "above", "differ_ratio", told, limit, text, own, step, view)
            )
        if below and not own.below:
            text = (
                f"the trainer reports {told:.4g} tokens/s over {len(own.told)} steps; the slowest"
                f" that its step ends show is {own.slowest:.4g}"
            )
            limit = (1.0 - differ) * own.slowest
            findings.append(
                self._finding(
                    Severity.WARN, "below", "differ_ratio", told, limit, text, own, step, view
                )
            )
        above, below = above or (own.above and over > 0), own.below or below
        possible = own.possible or over == 0
        if (over, possible, above, below) != (own.over, own.possible, own.above, own.below):
            own = replace(own, over=over, possible=possible, above=above, below=below)
        return own, findings

    def _knows_tokens(self) -> bool:
        """Whether the tokens of a step are ordered, or told by a trainer that is ours."""
        order = self.run.order
        return bool(order.identity.tokens_per_step) or is_ours(order.entry, order.command)

    def _peaked(self, own: Speeds, step: Step, view: View) -> Seen[Speeds]:
        """Hold the recomputed speed against what the devices can multiply."""
        limit = limit_tok_s(self.run, self.settings.mfu, peak_flops(self.run, view, own.device))
        tok_s = 0.0 if limit is None else statistics.median(own.plain)
        peaked = limit is not None and tok_s > limit
        if peaked == own.peaked:
            return own, []
        if limit is None or not peaked:
            return replace(own, peaked=peaked), []
        text = (
            f"{tok_s:.4g} tokens/s over {len(own.plain)} steps are more than the devices can"
            f" multiply: their peak allows {limit:.4g}"
        )
        severity = Severity.HALT if self._multiplies_all() else Severity.WARN
        if severity is Severity.WARN:
            text += " where each token meets every parameter; a plan that sets `mfu` says so"
        finding = self._finding(severity, "peak", "mfu", tok_s, limit, text, own, step, view)
        return replace(own, peaked=True), [finding]

    def _multiplies_all(self) -> bool:
        """Whether each token is known to meet every parameter: of our models, or by the plan."""
        order = self.run.order
        said = self.run.source("implausible_speed.mfu") is not Source.DEFAULT
        return said or is_ours(order.entry, order.command)

    def _beaten(self, own: Speeds, tokens: float, step: Step, view: View) -> Seen[Speeds]:
        """Hold the steps against the best that is known of the same work."""
        best_s = self.run.order.best_step_s
        if own.beaten or best_s is None:
            return own, []
        step_s = tokens / statistics.median(own.plain)
        if step_s >= self.settings.best_ratio * best_s:
            return own, []
        text = (
            f"a step takes {step_s:.4g} s over {len(own.plain)} steps; the best that is known of"
            f" the same work on the same devices takes {best_s:.4g} s: is all of it done?"
        )
        limit = self.settings.best_ratio * best_s
        finding = self._finding(
            Severity.WARN, "best", "best_ratio", step_s, limit, text, own, step, view
        )
        return replace(own, beaten=True), [finding]

    def _clocked(self, own: Speeds, step: Step, view: View) -> Seen[Speeds]:
        """Hold a rank's clock against the watcher's; a late tick says nothing about either."""
        row, tick, clock = step.ranks[min(step.ranks)], step.tick, own.clock
        mono = _last_told(row, view, tick)
        if mono is None or is_late(tick) or row.boot != clock.boot or mono < clock.own:
            mono = row.mono if mono is None else mono
            return replace(own, clock=Clock(boot=row.boot).at(mono, row.end, tick)), []
        passed_s = tick.mono - clock.watcher
        if passed_s < self.settings.clock_s:
            return own, []
        anchor = clock.at(mono, row.end, tick)
        slowed = passed_s / max(mono - clock.own, 1e-9)
        if slowed <= self.settings.clock_x:
            return replace(own, clock=replace(anchor, slow=0, alone=0)), []
        anchor = replace(
            anchor,
            slow=clock.slow + 1,
            alone=clock.alone + 1 if clock.slows_alone(row.end, slowed) else 0,
            since_ts=clock.since_ts if clock.slow else tick.ts,
        )
        own = replace(own, clock=anchor)
        if not anchor.found_now():
            return own, []
        text = (
            f"the clock of rank {row.rank} has gone {slowed:.3g} times slower than the watcher's"
            f" for {anchor.slow} spans of {self.settings.clock_s:g} s"
        )
        finding = self._finding(
            Severity.HALT, "clock", "clock_x", slowed, self.settings.clock_x, text, own, step, view
        )
        since = {"since": anchor.since_ts, "rank": row.rank}
        return own, [finding.model_copy(update=since)]

    def _finding(
        self,
        severity: Severity,
        what: str,
        setting: str,
        value: float,
        threshold: float,
        text: str,
        own: Speeds,
        step: Step,
        view: View,
    ) -> Finding:
        return found(
            view,
            self.name,
            severity,
            episode=f"{what}/step{step.step}",
            at=step.tick.ts,
            step=step.step,
            value=value,
            threshold=threshold,
            source=self.run.source(f"implausible_speed.{setting}"),
            since=own.began[0] if own.began else step.tick.ts,
            text=text,
        )

    def armed(self, own: Speeds, view: View) -> bool:
        """Whether enough steps have been timed."""
        return len(own.plain) >= int(self.settings.over_steps)

    def missing(self, own: Speeds, view: View) -> str | None:
        """Return a sentence on the comparisons that could not be made."""
        if view.reads_output():
            return "Speed was not checked: steps are timed by when their lines were read."
        if not own.last_step:
            return _APART if own.apart else None
        unknown = []
        if not own.reported:
            unknown.append("the trainer reports no tokens/s")
        elif own.plain and not own.told:
            unknown.append("the trainer reports tokens/s of no step that could be timed")
        if not own.plain:
            unknown.append("no step could be timed")
        if own.clock.lags():
            unknown.append("lines came later and later, or the clocks of a rank are slowed")
        flops = peak_flops(self.run, view, own.device)
        if limit_tok_s(self.run, self.settings.mfu, flops) is None:
            unknown.append("the matrix-product peak or the number of parameters is not known")
        return f"Speed was not wholly checked: {'; '.join(unknown)}." if unknown else None


def _listening(own: Speeds, said: Mapping[int, float], step: int) -> Speeds:
    """Return the speeds with whose reports count: one rank's, until it has been silent for long."""
    if not said:
        return own
    first, known = min(said), own.teller
    if first == known:
        return replace(own, told_step=step)
    if known is None or first < known or step - own.told_step > SILENT_STEPS:
        return replace(own, teller=first, told_step=step, told=())
    return own


def _begun_again(own: Speeds, step: Step, view: View) -> Speeds:
    """Return the speeds at a restart in place: a mean that a checkpoint keeps knows those before.

    What begins after `done` is another training, which may be of other steps.
    """
    kept = Speeds() if view.is_another(step.ranks) else own
    return Speeds(
        clock=own.clock,
        tokens=own.tokens.restarted(),
        resumed=kept.resumed,
        apart=own.apart,
        reported=own.reported,
        device=own.device,
        fastest=kept.fastest,
        slowest=kept.slowest,
        peak=kept.peak,
        possible=kept.possible,
    )


def _unmeasured(own: Speeds) -> Speeds:
    """Return the speeds without those of steps that were taken for such of too many tokens."""
    none = Speeds()
    return replace(
        own,
        kind=none.kind,
        plain=none.plain,
        told=none.told,
        began=none.began,
        fastest=none.fastest,
        slowest=none.slowest,
        peak=none.peak,
        over=none.over,
        possible=none.possible,
    )


def _last_told(row: RankStep, view: View, tick: Tick) -> float | None:
    """Return what a rank's clock was when it was heard last; None where that says nothing now.

    It may have ended the step long before a rank that does not wait for it, nor it for that one.
    Who has fallen silent meanwhile, or is done, tells no more.
    """
    stream = view.streams.get(row.rank)
    if not view.watched or stream is None or stream.boot != row.boot:
        return row.mono if view.watched else None
    if stream.done or tick.mono - stream.heard_mono > view.run.watch.alive_lost.suspect_s:
        return None
    return max(row.mono, stream.own_mono)


def peak_flops(run: Run, view: View, device: str | None = None) -> float | None:
    """Return the most that the run's devices can multiply, in operations a second, or None.

    What was measured is what was reached beside whatever else ran just then, so it never lowers
    what the hardware table says; and a CPU's says nothing of a profile with GPUs, nor of ranks that
    compute on what nobody measured: a slice of a GPU, or an accelerator that no driver of ours
    knows. Where a program that is not ours does not say on what, that may be such a one.

    Args:
        run: what was ordered.
        view: holds what was measured.
        device: on which the ranks say that they compute.
    """
    profile = hardware_profiles().get(run.order.profile) or HardwareProfile()
    known = (profile.peak_flops or 0.0) * run.order.world_size
    observed = view.observed.get(PEAK)
    payload = observed.payload if observed is not None else None
    measured = payload if isinstance(payload, dict) else {}
    flops = measured.get("flops")
    if not isinstance(flops, int | float) or not math.isfinite(flops) or flops <= 0:
        return known or None
    if (measured.get("of") or run.order.profile) == CPU:
        unsaid = device is None and is_ours(run.order.entry, run.order.command)
        counts = not profile.has_devices and (device == CPU or unsaid)
        return CPU_X * flops if counts else known or None
    return max(known, float(flops))


def limit_tok_s(run: Run, mfu: float, flops: float | None) -> float | None:
    """Return the tokens per second that the devices' peak allows, or None where it is not known."""
    identity = run.order.identity
    if flops is None or not identity.params:
        return None
    multiplied = identity.params - (identity.vocab or 0) * (identity.dim or 0)
    if multiplied <= 0:
        return None
    return mfu * flops / (FLOPS_PER_PARAM * multiplied)


def _slowest(known: float | None, plain: tuple[float, ...]) -> float:
    """Return the slowest with one more window: its lower quartile, or its mean with all pauses.

    Neither lies below the window's slowest step, and exact means are dear.
    """
    if known is not None and min(plain) >= known:
        return known
    least = min(sorted(plain)[(len(plain) - 1) // 4], statistics.harmonic_mean(plain))
    return least if known is None else min(known, least)


def _kind_s(step: Step) -> float | None:
    """Return the shortest time that the step may have taken: without data, logging, and what lies
    between two steps."""
    times = [_kind_rank_s(row, row.dt_s) for row in step.ranks.values() if row.dt_s is not None]
    return min(times, default=None)


def _kind_rank_s(row: RankStep, step_s: float) -> float:
    fetch_s, told_s = max(0.0, fetched_s(row) or 0.0), row.end.dt_step_s
    between_s, least_s = min(row.between_s, step_s), LEAST_SHARE * step_s
    if told_s is not None and told_s >= 0.0:
        # as far as its own stopwatch says: who writes all lines of a step at its end began before
        between_s = min(between_s, max(0.0, step_s - told_s))
        least_s = LEAST_SHARE * (step_s - between_s)
    return max(step_s - between_s - fetch_s - BETWEEN_S, least_s)
