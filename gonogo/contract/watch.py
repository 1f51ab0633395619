"""The settings of the detectors, one model each, and the table of patience.

A plan may set any of them: `watch: {stall: {halt_s: 5}}`. Times are seconds of the watcher's
monotonic clock. `*_x` are multiples of m, the median of the last 256 training steps.

The table says how long a rank may stay in one place before the watchdog acts. `TABLE` holds the
defaults. `patience_of` resolves it with the plan's settings, and the order stores the result. So no
detector knows kinds of programs.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any, NamedTuple

from pydantic import Field

from gonogo.contract.finding import Severity, Source
from gonogo.contract.wire import Recorded, Submitted

Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Ratio = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Steps = Annotated[int, Field(ge=0)]
Positive = Annotated[int, Field(ge=1)]


class Action(StrEnum):
    """What a detector's halt does."""

    WARN = "warn"
    HALT = "halt"


class CanHalt(Submitted):
    """Settings of a detector that can halt a run."""

    action: Action = Action.HALT  # `warn` turns this detector's halts into warnings.


class HaltsOnRequest(CanHalt):
    """Settings of a detector that halts only if the plan asks for it."""

    action: Action = Action.WARN  # `halt` lets this detector end the run.


class ProcessDeath(CanHalt):
    """D1: the agent or a rank is gone."""

    settle_s: Seconds = 0.5  # Seconds to wait for the exit stamp of an ended process.


class NoFirstHeartbeat(CanHalt):
    """D2: start-up takes too long."""

    exec_s: Seconds = 120.0  # From the first look to a rank's first line; of a command if set.
    boot_s: Seconds = 300.0  # Longest section `boot`.
    first_step_s: Seconds = 900.0  # Longest first step.


class AliveLost(CanHalt):
    """D3: a rank's lines stopped."""

    suspect_s: Seconds = 30.0  # Silence after which evidence is collected.
    halt_s: Seconds = 60.0  # Silence that halts, if the process is held or other ranks send lines.


class Stall(CanHalt):
    """D4: no step advances in forward, backward or optimizer."""

    suspect_s: Seconds = 10.0  # Evidence of so long a step is collected, if the limit is larger.
    suspect_x: Ratio = 3.0  # The same as a multiple of m.
    halt_s: Seconds = 60.0  # A step that takes so long halts, if it is the larger limit.
    halt_x: Ratio = 8.0  # The same as a multiple of m.
    corroborate_s: Seconds = 15.0
    """Halts if a held process, a silent rank or equal stacks confirm it."""
    min_steps: Steps = 32  # Completed steps before m counts; until then `early_s` holds.
    early_s: Seconds = 300.0  # Halts the steps before that.


class Deadline(Submitted):
    """Deadline of one section."""

    suspect_s: Seconds | None = None  # Time there until evidence is collected; null: never.
    halt_s: Seconds  # Time in the section that halts, if it is the larger limit.


class DataDeadline(Deadline):
    """Deadline of the data section."""

    suspect_s: Seconds | None = 120.0
    halt_s: Seconds = 300.0


class CheckpointDeadline(Deadline):
    """Deadline of the checkpoint section."""

    halt_s: Seconds = 600.0


class EvalDeadline(Deadline):
    """Deadline of the eval section."""

    halt_s: Seconds = 1800.0


class ShortDeadline(Deadline):
    """Deadline of the log section, and of no section."""

    halt_s: Seconds = 60.0


class SectionDeadline(CanHalt):
    """D5: a section lasts too long."""

    data: DataDeadline = DataDeadline()  # While it waits for data.
    checkpoint: CheckpointDeadline = CheckpointDeadline()  # While it saves.
    eval: EvalDeadline = EvalDeadline()  # While it evaluates.
    log: ShortDeadline = ShortDeadline()  # While it logs.
    out_of_section: ShortDeadline = ShortDeadline()  # While it is in no section.


class RankDivergence(Submitted):
    """D6: which rank is the culprit; no settings."""


class Slow(CanHalt):
    """D8: recomputed tokens/s fall below the floor, or below the run's own baseline."""

    floor_tok_s: Ratio | None = None  # Floor in tokens per second; null: the profile's.
    floor_ratio: Ratio = 0.8  # Halts if the median stays below this share of the floor.
    floor_over_s: Seconds = 300.0  # For so many seconds of training.
    hard_floor_ratio: Ratio = 0.5  # Halts if all of the last steps are below this share of it.
    hard_floor_over_steps: Steps = 5  # Number of these steps; 0: no hard floor.
    warmup_steps: Steps = 20  # Steps at the start of each attempt that are not timed.
    baseline_steps: Positive = 200  # Steps whose median is the baseline.
    window_steps: Positive = 64  # Steps whose median is compared.
    warn_ratio: Ratio = 1.33  # Warns at this multiple of the baseline.
    warn_over_s: Seconds = 300.0  # For so many seconds of training.
    halt_ratio: Ratio = 1.67  # Halts at this multiple of the baseline.
    over_s: Seconds = 600.0  # For so many seconds of training.
    over_steps: Positive | None = None  # The median of so many halts, instead of `over_s`.


class NonFinite(CanHalt):
    """D10: a loss or gradient norm of an applied step is not finite."""

    fp16_running: Positive = 3  # In fp16 so many skipped in a row halt (40 at first).
    fp16_window_steps: Positive = 100
    """Steps in which `fp16_skipped` counts; in bf16 so many skipped in a row halt."""
    fp16_skipped: Positive = 10  # In fp16 so many skipped steps among them halt.


class Hygiene(CanHalt):
    """D18: gaps, duplicates, steps that run backwards, clocks that disagree."""

    skew_s: Seconds = 5.0  # Warns if a rank's wall clock differs by more from the watcher's.


class IdentityCheck(Submitted):
    """D22: what runs equals what was ordered."""

    params_tolerance_ratio: Ratio = 0.02  # Share by which the parameters may differ in number.


class FirstLoss(Submitted):
    """D26: the first loss is near ln(vocab)."""

    tolerance: Ratio = 1.0  # How far the first loss may lie from ln(vocabulary).


class Straggler(Submitted):
    """D7: one rank computes slower than the best."""

    ratio: Ratio = 1.33  # A rank is slow at this multiple of the fastest rank's time.
    window_steps: Annotated[int, Field(ge=4)] = 64  # Steps of a window.
    windows: Positive = 3  # Windows in a row in which it must be slow.


class Frozen(HaltsOnRequest):
    """D9: loss or gradient norm stays bit-equal while steps advance."""

    loss_steps: Annotated[int, Field(ge=2)] = 20
    """`halt_x` times so many bit-equal losses are the limit."""
    grad_norm_steps: Annotated[int, Field(ge=2)] = 50  # The same for the bit-equal gradient norm.
    halt_x: Ratio = 2.0  # Multiple of both that is the limit.


class Divergence(HaltsOnRequest):
    """D11: the loss, smoothed, stays above its best; spikes warn only."""

    alpha: Annotated[float, Field(gt=0, le=1)] = 0.02  # Weight of the newest loss in it.
    above: Ratio = 0.30  # Halts if the smoothed loss is so far above its best, if larger.
    above_ratio: Ratio = 0.10  # The same as a share of its best.
    over_steps: Positive = 50  # Losses in a row that must be there too.
    after_step: Steps = 200  # Losses before it is armed; a resume starts the count again.
    spike_mad_x: Ratio = 8.0  # A spike is so many sigma above the median.
    spike_least: Ratio = 0.5  # And at least so far above it.
    spike_of: Positive = 8  # Losses among which spikes are counted.
    spike_count: Positive = 5  # So many spikes among them warn.
    window_steps: Annotated[int, Field(ge=16)] = 128  # Steps for median and sigma.


class Gradients(HaltsOnRequest):
    """D12: gradients are exactly zero (halt), explode or are always clipped (warn)."""

    zero_steps: Positive = 3  # Steps in a row with a norm of zero that halt.
    spike_x: Ratio = 20.0  # A spike is above this multiple of the median norm.
    spike_of: Positive = 8  # Norms among which spikes are counted.
    spike_count: Positive = 5  # So many spikes among them warn.
    window_steps: Annotated[int, Field(ge=16)] = 128  # Steps for the median.
    clip_share: Ratio = 0.95  # Warns if more than this share of the norms was clipped.
    clip_steps: Positive = 500  # Steps in which that is counted.


class GateCollapse(HaltsOnRequest):
    """D13: the branch gates choose one branch only."""

    entropy: Ratio = 0.18  # Gates with a lower normalised entropy have collapsed.
    max_gate: Ratio = 0.9  # A gate above this has collapsed.
    layer_share: Ratio = 0.5  # More than this share of the layers must have collapsed for a halt.
    distinct: Positive = 3  # Steps that must show it, with no sound one between.
    apart_steps: Steps = 50  # Steps between them, at least.
    after_step: Steps = 500  # Nothing is found up to this step.


class Imbalance(Submitted):
    """D14: devices are used unequally or too little; a warning."""

    over_s: Seconds = 120.0  # Seconds of training over which use is averaged.
    ratio: Ratio = 0.8  # Warns if the least used device is below this share of the most used one.
    least_util: Ratio = 80.0  # Warns if a device is used less, in percent.


class MemoryLeak(HaltsOnRequest):
    """D15: memory grows so that it hits its limit before the last step."""

    min_samples: Annotated[int, Field(ge=8)] = 64  # Least number of steps for a rise.
    window_samples: Annotated[int, Field(ge=16)] = 256  # Steps of the shortest window.
    rise_ratio: Ratio = 0.05  # Least rise over them, as a share of the first.
    halt_eta_s: Seconds = 3600.0  # Halts at the next checkpoint if the limit is nearer than this.
    limit_mb: Ratio | None = None  # Limit of a rank's host memory, besides the host's own.


class MemoryLimit(CanHalt):
    """D16: memory is above its limit."""

    reserved_mb: Ratio | None = None  # Limit of a rank's device memory; null: none.
    samples: Positive = 3  # Samples in a row above a limit.
    host_ratio: Ratio = 0.9  # Share of the memory of host or control group that may be filled.


class Loader(HaltsOnRequest):
    """D17: steps wait for data."""

    window_steps: Annotated[int, Field(ge=4)] = 64  # Steps over which the share is taken.
    warn_share: Ratio = 0.30  # Warns above this share of a rank's step time.
    halt_share: Ratio = 0.60  # Halts above this share of a rank's step time.
    over_s: Seconds = 300.0  # For so many seconds of training.


class Disk(CanHalt):
    """D19: the run directory's file system is full, or nearly so."""

    warn_checkpoints: Ratio = 2.0  # Warns if less than so many of the last verified checkpoint fit.
    warn_mb: Ratio = 5_000.0  # Warns if less is free.
    halt_checkpoints: Ratio = 1.0  # Halts if less than so many of it fit.


class CheckpointOverdue(CanHalt):
    """D20: no verified checkpoint, long after one was due."""


class ImplausibleSpeed(HaltsOnRequest):
    """D21: reported speed, or the hardware's, does not fit the lines."""

    differ_ratio: Ratio = 0.10  # Share by which reported and recomputed speed may differ.
    over_steps: Positive = 20  # Steps over which they are compared.
    mfu: Ratio = 1.0
    """Halts above this share of the matmul peak of preflight. If the plan sets it, each token meets
    every parameter, also in a foreign model."""


class WatcherCheck(Submitted):
    """D23: the watcher itself was late or away."""

    away_s: Seconds = 15.0  # Alerts a person if a tick is later.
    silent_s: Seconds = 60.0  # The keeper replaces a watcher that is silent for so long.


class Hardware(CanHalt):
    """D24: the device or its driver reports a fault."""

    throttled_s: Seconds = 60.0  # Warns if heat or power throttle a device for longer.


class RestartStorm(CanHalt):
    """D25: attempts fail without progress."""

    attempts: Positive = 3
    """Failed attempts in a row without a later durable step that end the retries."""
    starts: Positive = 5  # Failed starts, or restarts without progress, that end them.
    within_s: Seconds = 1800.0  # Seconds in which failed starts count.


class Watch(Submitted):
    """Settings of all detectors, whole."""

    process_death: ProcessDeath = ProcessDeath()
    no_first_heartbeat: NoFirstHeartbeat = NoFirstHeartbeat()
    alive_lost: AliveLost = AliveLost()
    stall: Stall = Stall()
    section_deadline: SectionDeadline = SectionDeadline()
    rank_divergence: RankDivergence = RankDivergence()
    slow: Slow = Slow()
    non_finite: NonFinite = NonFinite()
    hygiene: Hygiene = Hygiene()
    identity: IdentityCheck = IdentityCheck()
    first_loss: FirstLoss = FirstLoss()
    straggler: Straggler = Straggler()
    frozen: Frozen = Frozen()
    divergence: Divergence = Divergence()
    gradients: Gradients = Gradients()
    gate_collapse: GateCollapse = GateCollapse()
    imbalance: Imbalance = Imbalance()
    memory_leak: MemoryLeak = MemoryLeak()
    memory_limit: MemoryLimit = MemoryLimit()
    loader: Loader = Loader()
    disk: Disk = Disk()
    checkpoint_overdue: CheckpointOverdue = CheckpointOverdue()
    implausible_speed: ImplausibleSpeed = ImplausibleSpeed()
    watcher: WatcherCheck = WatcherCheck()
    hardware: Hardware = Hardware()
    restart_storm: RestartStorm = RestartStorm()
    plugins: dict[str, dict[str, Any]] = {}  # Settings of plug-in detectors, by detector.

    def action_of(self, detector: str) -> Action:
        """Return what a halt of this detector does."""
        settings = getattr(self, detector, None) if detector in type(self).model_fields else None
        return settings.action if isinstance(settings, CanHalt) else Action.HALT

    def source_of(self, path: str, from_profile: frozenset[str] = frozenset()) -> Source:
        """Return the source of the value at a dotted path (`stall.halt_s`)."""
        if path in from_profile:
            return Source.PROFILE
        node: Any = self
        for part in path.split("."):
            if part not in node.model_fields_set:
                return Source.DEFAULT
            node = getattr(node, part)
        return Source.PLAN


def halts_asked(watch: Mapping[str, Any]) -> dict[str, Any]:
    """Return these settings, with `halt` as the default action."""
    asked = {
        name: {"action": Action.HALT, **watch.get(name, {})}
        for name, field in Watch.model_fields.items()
        if isinstance(field.default, HaltsOnRequest)
    }
    return {**watch, **asked}


class Place(StrEnum):
    """Where a rank can be."""

    START = "start"
    BOOT = "boot"
    FIRST_STEP = "first_step"
    EARLY_STEPS = "early_steps"
    COMPUTE = "compute"
    CORROBORATED = "compute_corroborated"
    DATA = "data"
    CHECKPOINT = "checkpoint"
    EVAL = "eval"
    LOG = "log"
    NO_SECTION = "no_section"
    AFTER_LAST = "after_last_step"
    EXIT = "exit"
    SILENCE = "silence"
    CHECKPOINT_DUE = "checkpoint_due"
    PRINTED_START = "printed_start"
    PRINTED_RESTART = "printed_restart"
    PRINTED_STEP = "printed_step"
    PRINTED_AFTER_LAST = "printed_after_last_step"


MEANING: Mapping[Place, str] = {
    Place.START: "from the launch to a rank's first line",
    Place.BOOT: "in section boot",
    Place.FIRST_STEP: "until a rank has ended its first step",
    Place.EARLY_STEPS: "in forward, backward or optimizer, before `min_steps` steps have ended",
    Place.COMPUTE: "in forward, backward or optimizer",
    Place.CORROBORATED: "the same, when stacks or process states show that the run stands",
    Place.DATA: "in section data",
    Place.CHECKPOINT: "in section checkpoint",
    Place.EVAL: "in section eval",
    Place.LOG: "in section log",
    Place.NO_SECTION: "in no section, or in one with an unknown name",
    Place.AFTER_LAST: "in no section after the last step",
    Place.EXIT: "every rank is done, and a process still runs",
    Place.SILENCE: "without a line, while other ranks send lines",
    Place.CHECKPOINT_DUE: "a checkpoint is due, and none has been verified",
    Place.PRINTED_START: "no section known: until the first step",
    Place.PRINTED_RESTART: "no section known: from a restart in place to its first step",
    Place.PRINTED_STEP: "no section known: from step to step",
    Place.PRINTED_AFTER_LAST: "no section known: after the last step",
}


class Typical(StrEnum):
    """Base of a multiple."""

    MEDIAN = "median"  # The run's median step.
    USUAL = "usual"  # The median time in the place.
    LONGEST = "longest"  # The longest recent time in the place.


class ProgramKind(StrEnum):
    """How gonogo knows where a program is."""

    OURS = "ours"  # `nsa.train`.
    ATTACHED = "attached"  # It calls `gonogo.trainer`.
    OBSERVED = "observed"  # Unchanged PyTorch, seen by the observer.
    PRINTED = "printed"  # Seen only by its output lines.


class Limit(NamedTuple):
    """A limit and its source."""

    seconds: float
    source: Source


class Patience(Recorded):
    """How long a rank may stay in one place."""

    seconds: Seconds | None  # Null: no limit.
    multiple: Ratio | None = None  # The limit is the larger of `seconds` and this multiple of `of`.
    of: Typical | None = None
    source: Source = Source.DEFAULT  # Source of `seconds`.
    suspect_s: Seconds | None = None  # Seconds until evidence is collected; null: never.
    suspect_multiple: Ratio | None = None

    def limit(self, basis_s: float | None = None) -> Limit | None:
        """Return the limit, if there is one."""
        if self.seconds is None:
            return None
        adaptive_s = (self.multiple or 0.0) * (basis_s or 0.0)
        if adaptive_s > self.seconds:
            return Limit(adaptive_s, Source.ADAPTIVE)
        return Limit(self.seconds, self.source)

    def suspect(self, basis_s: float | None = None) -> float | None:
        """Return the seconds until evidence is collected; None: never."""
        if self.suspect_s is None:
            return None
        return max(self.suspect_s, (self.suspect_multiple or 0.0) * (basis_s or 0.0))

    def passed(self, seconds: float, basis_s: float | None = None) -> tuple[Severity, Limit] | None:
        """Return whether so many seconds halt or warn, and the limit; None: neither."""
        limit, suspect_s = self.limit(basis_s), self.suspect(basis_s)
        if limit is not None and seconds > limit.seconds:
            return Severity.HALT, limit
        if suspect_s is not None and seconds > suspect_s:
            return Severity.WARN, Limit(suspect_s, self.source)
        return None


class Cell(NamedTuple):
    """A default of the table."""

    seconds: float | None
    multiple: float | None = None
    of: Typical | None = None


def _row(*cells: Cell) -> dict[ProgramKind, Cell]:
    """Return a row: one cell for all kinds, two for ours and the others, or one for each."""
    every = (*cells, *cells[-1:] * (len(ProgramKind) - len(cells)))
    return dict(zip(ProgramKind, every, strict=True))


TABLE: Mapping[Place, Mapping[ProgramKind, Cell]] = {
    Place.START: _row(Cell(120), Cell(1800), Cell(1800), Cell(None)),
    Place.BOOT: _row(Cell(300), Cell(1800), Cell(1800), Cell(1800)),
    Place.FIRST_STEP: _row(Cell(900), Cell(1800), Cell(1800), Cell(1800)),
    Place.EARLY_STEPS: _row(Cell(300, 10, Typical.MEDIAN)),
    Place.COMPUTE: _row(Cell(60, 8, Typical.MEDIAN), Cell(120, 20, Typical.MEDIAN)),
    Place.CORROBORATED: _row(Cell(15, 3, Typical.MEDIAN), Cell(30, 10, Typical.MEDIAN)),
    Place.DATA: _row(Cell(300)),
    Place.CHECKPOINT: _row(Cell(600, 10, Typical.USUAL)),
    Place.EVAL: _row(Cell(1800, 5, Typical.USUAL)),
    Place.LOG: _row(Cell(60, 3, Typical.MEDIAN), Cell(300, 3, Typical.MEDIAN)),
    Place.NO_SECTION: _row(Cell(60, 3, Typical.MEDIAN), Cell(300, 1.5, Typical.LONGEST)),
    Place.AFTER_LAST: _row(Cell(600, 10, Typical.USUAL)),
    Place.EXIT: _row(Cell(1800)),
    Place.SILENCE: _row(Cell(60)),
    Place.CHECKPOINT_DUE: _row(Cell(1200, 2, Typical.USUAL)),
    Place.PRINTED_START: _row(Cell(None)),
    Place.PRINTED_RESTART: _row(Cell(3600)),
    Place.PRINTED_STEP: _row(Cell(1800, 1.5, Typical.LONGEST)),
    Place.PRINTED_AFTER_LAST: _row(Cell(14_400)),
}
"""Chosen on simulated runs (docs/explanation/benchmarks.md)."""

SETTING = {
    Place.START: "no_first_heartbeat.exec_s",
    Place.BOOT: "no_first_heartbeat.boot_s",
    Place.FIRST_STEP: "no_first_heartbeat.first_step_s",
    Place.EARLY_STEPS: "stall.early_s",
    Place.COMPUTE: "stall.halt_s",
    Place.CORROBORATED: "stall.corroborate_s",
    Place.DATA: "section_deadline.data.halt_s",
    Place.CHECKPOINT: "section_deadline.checkpoint.halt_s",
    Place.EVAL: "section_deadline.eval.halt_s",
    Place.LOG: "section_deadline.log.halt_s",
    Place.NO_SECTION: "section_deadline.out_of_section.halt_s",
    Place.AFTER_LAST: "section_deadline.checkpoint.halt_s",
    Place.EXIT: "section_deadline.eval.halt_s",
    Place.SILENCE: "alive_lost.halt_s",
    Place.PRINTED_STEP: "stall.halt_s",
}
"""Setting that replaces the seconds of a place."""


def patience_of(
    watch: Watch,
    kind: ProgramKind,
    *,
    from_profile: frozenset[str] = frozenset(),
    compiled: bool = False,
    nodes: int = 1,
    step_s: float | None = None,
) -> dict[Place, Patience]:
    """Return the table of a run; `from_profile` are paths in `watch`, `step_s` is at the floor."""
    table = {}
    for place, row in TABLE.items():
        cell, source = row[kind], Source.DEFAULT
        if place in SETTING:
            source = watch.source_of(SETTING[place], from_profile)
        seconds = cell.seconds
        if source is not Source.DEFAULT:
            seconds = setting_at(watch, SETTING[place])
        table[place] = Patience(seconds=seconds, multiple=cell.multiple, of=cell.of, source=source)
    return _with_suspicion(_adjusted(table, watch, kind, compiled, nodes, step_s), watch, kind)


def setting_at(watch: Watch, path: str) -> float:
    """Return the number of a setting at a dotted path."""
    node: object = watch
    for name in path.split("."):
        node = getattr(node, name)
    assert isinstance(node, int | float)
    return float(node)


def _adjusted(
    table: dict[Place, Patience],
    watch: Watch,
    kind: ProgramKind,
    compiled: bool,
    nodes: int,
    step_s: float | None,
) -> dict[Place, Patience]:
    """Return the table adjusted to nodes, compilation and floor."""
    default = Source.DEFAULT
    if kind is ProgramKind.OURS and nodes > 1 and table[Place.START].source is default:
        _change(table, Place.START, seconds=300.0)  # nodes start one by one
    if compiled and table[Place.FIRST_STEP].source is default:
        _change(table, Place.FIRST_STEP, seconds=1800.0)
    early = TABLE[Place.EARLY_STEPS][kind]
    seconds = (early.multiple or 0.0) * (step_s or 0.0)
    if (early.seconds or 0.0) < seconds:
        _change(table, Place.EARLY_STEPS, seconds=seconds, source=Source.PROFILE)
    _change(table, Place.COMPUTE, multiple=watch.stall.halt_x)
    if table[Place.PRINTED_STEP].source is not default:
        _change(table, Place.PRINTED_STEP, multiple=watch.stall.halt_x, of=Typical.MEDIAN)
    return table


def _change(table: dict[Place, Patience], place: Place, **update: object) -> None:
    table[place] = table[place].model_copy(update=update)


def _with_suspicion(
    table: dict[Place, Patience], watch: Watch, kind: ProgramKind
) -> dict[Place, Patience]:
    """Return the table with the times of evidence; stacks of users' programs are taken early."""
    sections, early = watch.section_deadline, table[Place.EARLY_STEPS]
    suspicions: dict[Place, tuple[float | None, float | None]] = {
        Place.START: (watch.no_first_heartbeat.exec_s, None),
        Place.EARLY_STEPS: ((early.seconds or 0.0) / 2, (early.multiple or 0.0) / 2),
        Place.COMPUTE: (watch.stall.suspect_s, watch.stall.suspect_x),
        Place.DATA: (sections.data.suspect_s, None),
        Place.CHECKPOINT: (sections.checkpoint.suspect_s, None),
        Place.EVAL: (sections.eval.suspect_s, None),
        Place.LOG: (sections.log.suspect_s, None),
        Place.NO_SECTION: (sections.out_of_section.suspect_s, None),
        Place.EXIT: (sections.checkpoint.halt_s, None),
        Place.SILENCE: (watch.alive_lost.suspect_s, None),
        Place.CHECKPOINT_DUE: (CHECKPOINT_LATE_S, 1.0),
        Place.PRINTED_STEP: (watch.stall.suspect_s, watch.stall.suspect_x),
    }
    if kind is not ProgramKind.OURS:
        suspicions |= {Place.BOOT: (BEGINS_LATE_S, None), Place.FIRST_STEP: (BEGINS_LATE_S, None)}
        early_s, early_x = table[Place.CORROBORATED].seconds, table[Place.CORROBORATED].multiple
        suspicions |= dict.fromkeys(_LOCKSTEP, (early_s, early_x))
    for place, (seconds, multiple) in suspicions.items():
        _change(table, place, suspect_s=seconds, suspect_multiple=multiple)
    return table


BEGINS_LATE_S = 300.0  # Evidence of a user's program without a first step is collected then.
_LOCKSTEP = (Place.EARLY_STEPS, Place.NO_SECTION, Place.LOG)  # Unchanged stacks show a hang there.
CHECKPOINT_LATE_S = 600.0  # A due checkpoint is reported as late then.


def bounded(table: Mapping[Place, Patience], seconds: float) -> dict[Place, Patience]:
    """Return the table with one limit for every place (`gonogo run --stall-s`).

    Silence and confirmed stalls keep shorter limits; a due checkpoint keeps its own.
    """
    found: dict[Place, Patience] = {}
    for place, row in table.items():
        if place is Place.CHECKPOINT_DUE:
            found[place] = row
            continue
        most_s = seconds
        if place in (Place.SILENCE, Place.CORROBORATED):
            most_s = min(seconds, row.seconds or seconds)
        suspect_s = None if row.suspect_s is None else min(row.suspect_s, seconds / 2)
        found[place] = Patience(seconds=most_s, source=Source.PLAN, suspect_s=suspect_s)
    return found
