"""The settings of the detectors and their defaults, one model a detector.

A plan may set any of them: `watch: {stall: {halt_s: 5}}`. Times are seconds of the watcher's
monotonic clock. `*_x` are multiples of m, the median of the last 256 training steps.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any

from pydantic import Field

from gonogo.contract.finding import Source
from gonogo.contract.wire import Submitted

Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Ratio = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Steps = Annotated[int, Field(ge=0)]


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
    """Halts so early if a held process, a silent rank or unchanged stacks confirm the stall."""
    min_steps: Steps = 32  # Completed steps before m counts; until then `early_s` holds.
    early_s: Seconds = 300.0  # Halts the steps before that.


class Deadline(Submitted):
    """Deadline of one section."""

    suspect_s: Seconds | None = None
    """Time in the section until evidence is collected; null: never."""
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
    baseline_steps: Annotated[int, Field(ge=1)] = 200
    """Steps after it whose median is the baseline."""
    window_steps: Annotated[int, Field(ge=1)] = 64  # Steps whose median is compared.
    warn_ratio: Ratio = 1.33  # Warns at this multiple of the baseline.
    warn_over_s: Seconds = 300.0  # For so many seconds of training.
    halt_ratio: Ratio = 1.67  # Halts at this multiple of the baseline.
    over_s: Seconds = 600.0  # For so many seconds of training.
    over_steps: Annotated[int, Field(ge=1)] | None = None
    """If set, the median of so many steps halts, instead of `over_s`."""


class NonFinite(CanHalt):
    """D10: a loss or gradient norm of an applied step is not finite."""

    fp16_running: Annotated[int, Field(ge=1)] = 3
    """In fp16 so many skipped steps in a row halt (40 before the first applied one)."""
    fp16_window_steps: Annotated[int, Field(ge=1)] = 100
    """Steps in which `fp16_skipped` counts; in bf16 so many skipped in a row halt."""
    fp16_skipped: Annotated[int, Field(ge=1)] = 10  # In fp16 so many skipped steps among them halt.


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
    windows: Annotated[int, Field(ge=1)] = 3  # Windows in a row in which it must be slow.


class Frozen(HaltsOnRequest):
    """D9: loss or gradient norm stays bit-equal while steps advance."""

    loss_steps: Annotated[int, Field(ge=2)] = 20
    """`halt_x` times so many steps with the bit-equal loss are the limit."""
    grad_norm_steps: Annotated[int, Field(ge=2)] = 50  # The same for the bit-equal gradient norm.
    halt_x: Ratio = 2.0  # Multiple of both that is the limit.


class Divergence(HaltsOnRequest):
    """D11: the loss, smoothed, stays above its best; spikes warn only."""

    alpha: Annotated[float, Field(gt=0, le=1)] = 0.02  # Weight of the newest loss in it.
    above: Ratio = 0.30  # Halts if the smoothed loss is so far above its best, if larger.
    above_ratio: Ratio = 0.10  # The same as a share of its best.
    over_steps: Annotated[int, Field(ge=1)] = 50  # Losses in a row that must be there too.
    after_step: Steps = 200  # Losses before it is armed; a resume starts the count again.
    spike_mad_x: Ratio = 8.0  # A spike is so many sigma above the median.
    spike_least: Ratio = 0.5  # And at least so far above it.
    spike_of: Annotated[int, Field(ge=1)] = 8  # Losses among which spikes are counted.
    spike_count: Annotated[int, Field(ge=1)] = 5  # So many spikes among them warn.
    window_steps: Annotated[int, Field(ge=16)] = 128  # Steps for median and sigma.


class Gradients(HaltsOnRequest):
    """D12: gradients are exactly zero (halt), explode or are always clipped (warn)."""

    zero_steps: Annotated[int, Field(ge=1)] = 3  # Steps in a row with a norm of zero that halt.
    spike_x: Ratio = 20.0  # A spike is above this multiple of the median norm.
    spike_of: Annotated[int, Field(ge=1)] = 8  # Norms among which spikes are counted.
    spike_count: Annotated[int, Field(ge=1)] = 5  # So many spikes among them warn.
    window_steps: Annotated[int, Field(ge=16)] = 128  # Steps for the median.
    clip_share: Ratio = 0.95  # Warns if more than this share of the norms was clipped.
    clip_steps: Annotated[int, Field(ge=1)] = 500  # Steps in which that is counted.


class GateCollapse(HaltsOnRequest):
    """D13: the branch gates choose one branch only."""

    entropy: Ratio = 0.18  # Gates with a lower normalised entropy have collapsed.
    max_gate: Ratio = 0.9  # A gate above this has collapsed.
    layer_share: Ratio = 0.5  # More than this share of the layers must have collapsed for a halt.
    distinct: Annotated[int, Field(ge=1)] = 3  # Steps that must show it, with no sound one between.
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
    samples: Annotated[int, Field(ge=1)] = 3  # Samples in a row above a limit.
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
    over_steps: Annotated[int, Field(ge=1)] = 20  # Steps over which they are compared.
    best_ratio: Ratio = 0.5  # Warns below this share of the best step of this work and device.
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

    attempts: Annotated[int, Field(ge=1)] = 3
    """Failed attempts in a row without a later durable step that end the retries."""
    starts: Annotated[int, Field(ge=1)] = 5
    """Failed starts within `within_s` that end them; or restarts in place without progress."""
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
