"""Which settings do the detectors have? Defaults of the watchdog's rules, one model a detector.

A plan may set any of them (`watch: {stall: {halt_s: 5}}`); unknown names are errors. Times are
seconds of the watcher's monotonic clock; `*_x` are multiples of m, the run's median step over its
last 256 training steps; `*_ratio` are ratios of step time or speed.
"""

from typing import Annotated, Any

from pydantic import Field

from gonogo.contract.finding import Source
from gonogo.contract.wire import Submitted

Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Ratio = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Steps = Annotated[int, Field(ge=0)]


class ProcessDeath(Submitted):
    """D1: the agent or a rank is gone."""

    settle_s: Seconds = 0.5
    """How long an exit is held against a missing exit stamp before it is called unexplained."""


class NoFirstHeartbeat(Submitted):
    """D2: start-up takes too long."""

    exec_s: Seconds = 120.0
    boot_s: Seconds = 300.0
    first_step_s: Seconds = 900.0
    first_step_compile_s: Seconds = 1800.0
    """Instead of `first_step_s` where the training configuration says `engine: {compile: true}`."""


class AliveLost(Submitted):
    """D3: a rank's lines stopped."""

    suspect_s: Seconds = 30.0
    halt_s: Seconds = 60.0


class Stall(Submitted):
    """D4: no step advances while a rank stands in forward, backward or optimizer."""

    suspect_s: Seconds = 10.0
    suspect_x: Ratio = 3.0
    halt_s: Seconds = 60.0
    halt_x: Ratio = 8.0
    corroborate_s: Seconds = 15.0
    corroborate_x: Ratio = 3.0
    min_steps: Steps = 32
    early_s: Seconds = 300.0
    early_x: Ratio = 10.0


class Deadline(Submitted):
    """Deadline of one section: the larger of seconds and a multiple of the section's median."""

    suspect_s: Seconds | None = None
    halt_s: Seconds
    halt_x: Ratio | None = None


class DataDeadline(Deadline):
    """Deadline of the data section."""

    suspect_s: Seconds | None = 120.0
    halt_s: Seconds = 300.0


class CheckpointDeadline(Deadline):
    """Deadline of the checkpoint section."""

    halt_s: Seconds = 600.0
    halt_x: Ratio | None = 10.0


class EvalDeadline(Deadline):
    """Deadline of the eval section."""

    halt_s: Seconds = 1800.0
    halt_x: Ratio | None = 5.0


class ShortDeadline(Deadline):
    """Deadline of the log section, and of being in no (known) section."""

    halt_s: Seconds = 60.0


class SectionDeadline(Submitted):
    """D5: a section lasts too long."""

    data: DataDeadline = DataDeadline()
    checkpoint: CheckpointDeadline = CheckpointDeadline()
    eval: EvalDeadline = EvalDeadline()
    log: ShortDeadline = ShortDeadline()
    out_of_section: ShortDeadline = ShortDeadline()


class RankDivergence(Submitted):
    """D6: which rank is the culprit; no settings."""


class Slow(Submitted):
    """D8: recomputed tokens/s fall below the floor, or below the run's own baseline."""

    floor_tok_s: Ratio | None = None
    floor_ratio: Ratio = 0.8
    floor_over_s: Seconds = 300.0
    hard_floor_ratio: Ratio = 0.5
    hard_floor_over_steps: Steps = 5
    warmup_steps: Steps = 20
    baseline_steps: Annotated[int, Field(ge=1)] = 200
    window_steps: Annotated[int, Field(ge=1)] = 64
    warn_ratio: Ratio = 1.33
    warn_over_s: Seconds = 300.0
    halt_ratio: Ratio = 1.67
    over_s: Seconds = 600.0
    over_steps: Annotated[int, Field(ge=1)] | None = None
    """When set, the relative rule halts on the median of so many steps instead of `over_s`."""


class NonFinite(Submitted):
    """D10: a loss or gradient norm of an applied step is not finite."""

    fp16_running: Annotated[int, Field(ge=1)] = 3
    fp16_window_steps: Annotated[int, Field(ge=1)] = 100
    fp16_skipped: Annotated[int, Field(ge=1)] = 10


class Hygiene(Submitted):
    """D18: gaps, duplicates, steps that run backwards, clocks that disagree."""

    skew_s: Seconds = 5.0


class IdentityCheck(Submitted):
    """D22: what runs equals what was ordered."""

    params_tolerance_ratio: Ratio = 0.02


class FirstLoss(Submitted):
    """D26: the first loss is near ln(vocab)."""

    tolerance: Ratio = 1.0


class Straggler(Submitted):
    """D7: one rank computes slower than the best, and than its own best."""

    ratio: Ratio = 1.33
    window_steps: Annotated[int, Field(ge=4)] = 64
    windows: Annotated[int, Field(ge=1)] = 3


class Frozen(Submitted):
    """D9: loss or gradient norm stays bit-equal while steps advance; halts at `halt_x` times."""

    loss_steps: Annotated[int, Field(ge=2)] = 20
    grad_norm_steps: Annotated[int, Field(ge=2)] = 50
    halt_x: Ratio = 2.0


class Divergence(Submitted):
    """D11: the loss, smoothed, stays above its best; spikes warn only."""

    alpha: Annotated[float, Field(gt=0, le=1)] = 0.02
    above: Ratio = 0.30
    above_ratio: Ratio = 0.10
    noise_x: Ratio = 3.0
    """The limit is at least so many sigma of the loss: a noisy loss has a wider one."""
    over_steps: Annotated[int, Field(ge=1)] = 50
    after_step: Steps = 200
    """Losses seen before it is armed; after a resume they are counted anew."""
    spike_mad_x: Ratio = 8.0
    spike_least: Ratio = 0.5
    spike_of: Annotated[int, Field(ge=1)] = 8
    spike_count: Annotated[int, Field(ge=1)] = 5
    window_steps: Annotated[int, Field(ge=16)] = 128


class Gradients(Submitted):
    """D12: gradients are exactly zero (halt), explode or are always clipped (warn)."""

    zero_steps: Annotated[int, Field(ge=1)] = 3
    spike_x: Ratio = 20.0
    spike_of: Annotated[int, Field(ge=1)] = 8
    spike_count: Annotated[int, Field(ge=1)] = 5
    window_steps: Annotated[int, Field(ge=16)] = 128
    clip_share: Ratio = 0.95
    clip_steps: Annotated[int, Field(ge=1)] = 500


class GateCollapse(Submitted):
    """D13: the branch gates choose one branch only."""

    entropy: Ratio = 0.18
    """Used, as `max_gate` is, where the trainer does not itself count the collapsed layers."""
    max_gate: Ratio = 0.9
    layer_share: Ratio = 0.5
    distinct: Annotated[int, Field(ge=1)] = 3
    apart_steps: Steps = 50
    after_step: Steps = 500


class Imbalance(Submitted):
    """D14: devices of the run are used unequally, or too little; a warning."""

    over_s: Seconds = 120.0
    ratio: Ratio = 0.8
    least_util: Ratio = 80.0


class MemoryLeak(Submitted):
    """D15: memory grows so that it hits its limit before the last step."""

    min_samples: Annotated[int, Field(ge=8)] = 64
    window_samples: Annotated[int, Field(ge=16)] = 256
    rise_ratio: Ratio = 0.05
    halt_eta_s: Seconds = 3600.0
    limit_mb: Ratio | None = None
    """Instead of the cgroup's (or host's) limit for host memory."""


class MemoryLimit(Submitted):
    """D16: memory is above its limit."""

    reserved_mb: Ratio | None = None
    samples: Annotated[int, Field(ge=1)] = 3
    host_ratio: Ratio = 0.9


class Loader(Submitted):
    """D17: steps wait for data."""

    window_steps: Annotated[int, Field(ge=4)] = 64
    warn_share: Ratio = 0.30
    halt_share: Ratio = 0.60
    over_s: Seconds = 300.0


class Disk(Submitted):
    """D19: the run directory's file system is full, or nearly so."""

    warn_checkpoints: Ratio = 2.0
    warn_mb: Ratio = 5_000.0
    halt_checkpoints: Ratio = 1.0


class CheckpointOverdue(Submitted):
    """D20: no checkpoint that the watcher has verified, long after one was due."""

    overdue_x: Ratio = 1.5
    grace_s: Seconds = 600.0
    halt_x: Ratio = 2.0
    """Halts at this multiple of the limit at which it warns."""


class ImplausibleSpeed(Submitted):
    """D21: what the trainer reports, or what the hardware could do, does not fit its lines."""

    differ_ratio: Ratio = 0.10
    over_steps: Annotated[int, Field(ge=1)] = 20
    best_ratio: Ratio = 0.5
    """Warns below this share of the best step known of the same work on the same devices."""
    mfu: Ratio = 1.0
    """Halts above this share of the matrix-product peak measured at preflight."""
    clock_x: Annotated[float, Field(gt=1, allow_inf_nan=False)] = 2.0
    """Halts where a rank's clock runs so many times slower than the watcher's."""
    clock_s: Seconds = 120.0
    """Length of the spans in which the clocks are compared."""


class WatcherCheck(Submitted):
    """D23: the watcher itself was late or away."""

    away_s: Seconds = 15.0


class Hardware(Submitted):
    """D24: the device or its driver reports a fault."""

    throttled_s: Seconds = 60.0


class RestartStorm(Submitted):
    """D25: attempts fail one after the other without getting further."""

    attempts: Annotated[int, Field(ge=1)] = 3
    starts: Annotated[int, Field(ge=1)] = 5
    within_s: Seconds = 1800.0


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
    plugins: dict[str, dict[str, Any]] = {}
    """Settings of detectors that other packages bring, by detector."""

    def source_of(self, path: str, from_profile: frozenset[str] = frozenset()) -> Source:
        """Return where the value at a dotted path (`stall.halt_s`) came from."""
        if path in from_profile:
            return Source.PROFILE
        node: Any = self
        for part in path.split("."):
            if part not in node.model_fields_set:
                return Source.DEFAULT
            node = getattr(node, part)
        return Source.PLAN
