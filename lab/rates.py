"""What is normal? The noise of healthy training runs, in numbers.

Steps are log-normal about a slow drift; a rank pauses now and then (garbage collection, a busy
host); a loader stalls with a heavy tail; checkpoints and evaluations come and last; the first step
compiles. Rates count per rank and hour of training, so that they mean the same at every step time.
"""

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class Noise:
    """One strength of noise. Times are seconds, rates are per hour."""

    sigma: float = 0.15
    """Standard deviation of the log of a step's time, common to all ranks."""
    own_sigma: float = 0.06
    """The same, of each rank alone."""
    drift_sigma: float = 0.04
    """Standard deviation of the log of the drift, over times much longer than `drift_steps`."""
    drift_steps: float = 2000.0
    pause_rate: float = 12.0
    """Pauses of one rank: the interpreter stands, no line is written."""
    pause_s: tuple[float, float] = (0.5, 5.0)
    long_pause_share: float = 0.01
    long_pause_s: float = 12.0
    fetch_share: float = 0.004
    """Mean of an ordinary fetch, as a share of the step."""
    stall_rate: float = 2.0
    """Loader stalls of one rank."""
    stall_least_s: float = 2.0
    stall_tail: float = 1.5
    """Exponent of the tail: one stall in a thousand lasts a hundred times the least."""
    stall_most_s: float = 250.0
    checkpoint_s: tuple[float, float] = (5.0, 90.0)
    long_checkpoint_share: float = 0.02
    long_checkpoint_s: float = 480.0
    silent_checkpoint_share: float = 0.05
    """Checkpoints in which one rank cannot speak (serialisation holds the interpreter)."""
    eval_s: tuple[float, float] = (30.0, 300.0)
    long_eval_share: float = 0.02
    long_eval_s: float = 1200.0
    boot_s: tuple[float, float] = (5.0, 60.0)
    compile_share: float = 0.3
    compile_s: tuple[float, float] = (60.0, 600.0)
    restart_rate: float = 0.05
    """Restarts in place, of the whole run."""
    gone_s: tuple[float, float] = (2.0, 60.0)
    """How long no process is there then."""
    terse_share: float = 0.3
    """Share of runs whose trainer reports less than ours: see `reporting`."""
    attached_share: float = 0.4
    """Share of runs reported by a script that attached our library: see `scripts`."""
    habit_share: float = 0.1
    """Runs that have each of the habits of `habits`."""
    lag_s: tuple[float, float] = (2.0, 20.0)
    last_alone_share: float = 0.2
    """Runs in which rank 0 evaluates after the last step while the others wait."""
    clock_step_rate: float = 0.05
    """Steps of the wall clock of the host, up to an hour either way."""
    disk_rate: float = 3.0
    """Times that a rank is found in uninterruptible sleep in a step (a page, a log, a driver)."""
    disk_s: tuple[float, float] = (0.3, 5.0)
    long_disk_share: float = 0.05
    long_disk_s: float = 25.0
    disk_checkpoint_share: float = 0.3
    """Checkpoints that a rank writes in uninterruptible sleep."""
    alone_share: float = 0.3
    """Evaluations and checkpoints of rank 0 alone, for which the others wait in no section."""
    wake_s: tuple[float, float] = (0.0, 4.0)
    """How much later than rank 0 the others continue then."""
    uncounted_share: float = 0.3
    """Runs whose trainer counts no collectives."""
    log_alone_share: float = 0.3
    """Runs in which rank 0 names a section more, in some steps or all."""
    load_rate: float = 0.3
    """Times that a neighbour slows all ranks of the run together."""
    load_s: tuple[float, float] = (10.0, 240.0)
    load_x: tuple[float, float] = (1.1, 1.6)
    """How many times longer steps take meanwhile."""
    short_load_share: float = 0.3
    short_load_s: tuple[float, float] = (2.0, 20.0)
    short_load_x: tuple[float, float] = (1.6, 4.0)
    outside_share: float = 0.1
    """Runs that spend time between their steps in no section, or in one of a name of its own: an
    agent's episodes, answers that are generated."""
    outside_x: tuple[float, float] = (0.1, 3.0)
    """Its median, in step times."""
    outside_sigma: float = 0.2
    nodes_share: float = 0.3
    """Runs of an even number of ranks that are on two nodes."""
    cut_rate: float = 0.05
    """Times that no lines of a node, or of all nodes, arrive for a while; the ranks continue."""
    cut_s: tuple[float, float] = (3.0, 120.0)
    long_cut_share: float = 0.1
    long_cut_s: float = 600.0
    standstill_rate: float = 0.05
    """Times that all ranks stand still together, and write nothing: their hosts, or a disk."""
    standstill_s: tuple[float, float] = (2.0, 55.0)
    other_loss_share: float = 0.2
    """Runs whose loss does not only fall: see `losses`."""
    spike_rate_steps: float = 1 / 3000
    spike: tuple[float, float] = (0.3, 1.5)
    spike_decay: float = 0.8
    late_tick_rate: float = 6.0
    late_tick_s: tuple[float, float] = (0.5, 20.0)
    asleep_rate: float = 0.02
    asleep_s: float = 300.0
    messy_share: float = 0.25
    """Runs whose lines come repeated and out of order."""
    mess: float = 0.2


STANDARD = Noise()
CALM = replace(STANDARD, sigma=0.05, own_sigma=0.02)
ROUGH = replace(STANDARD, sigma=0.25, own_sigma=0.1)
DOUBLED = replace(
    STANDARD,
    sigma=0.30,
    own_sigma=0.12,
    drift_sigma=0.08,
    pause_rate=24.0,
    pause_s=(1.0, 10.0),
    long_pause_s=24.0,
    stall_rate=4.0,
    stall_least_s=4.0,
    disk_rate=6.0,
    checkpoint_s=(10.0, 180.0),
    eval_s=(60.0, 600.0),
    wake_s=(0.0, 8.0),
    load_rate=0.6,
    short_load_s=(4.0, 25.0),
    outside_sigma=0.3,
    cut_rate=0.1,
    standstill_rate=0.1,
    spike=(0.6, 3.0),
    late_tick_rate=12.0,
)
NOISES = {"standard": STANDARD, "calm": CALM, "rough": ROUGH, "doubled": DOUBLED}
