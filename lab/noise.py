"""What is normal? The noise of healthy training runs in numbers, and how runs differ.

Steps are log-normal about a slow drift. A rank pauses now and then (garbage collection, a busy
host); a loader stalls with a heavy tail; checkpoints and evaluations come and last; the first step
compiles. Habits, what a trainer reports and what a script calls of our library are drawn once a
run. Times are seconds.
"""

import random
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from gonogo.contract.finding import Severity
from gonogo.contract.heartbeat import Msg
from gonogo.contract.outcome import Detector as Name


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
    spike_rate_steps: float = 1 / 3000
    spike: tuple[float, float] = (0.3, 1.5)
    spike_decay: float = 0.8
    late_tick_rate: float = 6.0
    late_tick_s: tuple[float, float] = (0.5, 20.0)
    asleep_rate: float = 0.02
    asleep_s: float = 300.0


STANDARD = Noise()


@dataclass(frozen=True, slots=True, kw_only=True)
class Habits:
    """What one run does that another does not."""

    epoch_steps: int = 0
    """After so many steps a step waits for a restarting loader (0: never)."""
    epoch_s: tuple[float, float] = (2.0, 60.0)
    first_eval_s: float = 0.0
    """An evaluation before the first step."""
    lag_s: float = 0.0
    """Lines can be read every so many seconds: a shared disk's cache, a writer that buffers."""
    lag_from: int = 0
    """The first rank whose lines are: those of the watcher's own host may be read at once."""


PLAIN = Habits()


def draw_habits(noise: Noise, dice: random.Random, ranks: int) -> Habits:
    """Return the habits of a healthy run of so many ranks."""

    def has() -> bool:
        return dice.random() < noise.habit_share

    return Habits(
        epoch_steps=dice.randrange(50, 3000) if has() else 0,
        first_eval_s=dice.uniform(*noise.eval_s) if has() else 0.0,
        lag_s=dice.uniform(*noise.lag_s) if has() else 0.0,
        lag_from=dice.choice((0, ranks // 2)),
    )


_OPTIONAL = (
    "collective_seq",
    "dt_fetch_s",
    "dt_step_s",
    "gpu_mem_alloc",
    "gpu_mem_reserved",
    "host_rss_mb",
    "lr",
    "section_age_s",
    "step_sections",
    "tokens",
    "toks_per_s",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reporting:
    """What one run's ranks write, and by which clock."""

    messages_left_out: frozenset[str] = frozenset()
    fields_left_out: frozenset[str] = frozenset()
    sections: bool = True
    every_steps: int = 1
    """Lines of steps come at each so many of them."""
    rank_0_logs: bool = False
    """Whether only rank 0 writes `progress`; the others write the ends of their steps."""
    alive_every_s: float = 5.0
    boots_at_zero: bool = False
    """Whether a boot line has step 0 even in a resumed process."""
    own_clock: bool = False
    """Whether the monotonic clock counts from the start of the process."""

    def tells(self, msg: str, step: int, rank: int) -> bool:
        """Whether a rank writes a line."""
        if msg in self.messages_left_out:
            return False
        if msg == Msg.PROGRESS and rank and self.rank_0_logs:
            return Msg.STEP_END in self.messages_left_out
        return msg not in _OF_STEPS or step % self.every_steps == 0


_OF_STEPS = frozenset({Msg.STEP_START, Msg.PROGRESS, Msg.STEP_END})
WHOLE = Reporting()


def draw_reporting(noise: Noise, dice: random.Random) -> Reporting:
    """Return what a healthy run reports: all, or less by one choice of each kind."""
    if dice.random() >= noise.terse_share:
        return WHOLE
    sections = dice.random() < 0.7
    left_out = set[str](
        dice.choice(((), (Msg.STEP_START,), (Msg.STEP_END,), (Msg.STEP_START, Msg.STEP_END)))
    )
    if not sections:
        left_out.add(Msg.SECTION)
        left_out.update(dice.choice(((), (Msg.ALIVE,))))
    return Reporting(
        messages_left_out=frozenset(left_out),
        fields_left_out=frozenset(name for name in _OPTIONAL if dice.random() < 0.3),
        sections=sections,
        every_steps=1 if sections else dice.choice((1, 1, 10)),
        rank_0_logs=dice.random() < 0.3,
        alive_every_s=dice.choice((1.0, 5.0, 10.0)),
        boots_at_zero=dice.random() < 0.5,
        own_clock=dice.random() < 0.5,
    )


class Who(StrEnum):
    """Which ranks save or evaluate, and what the others do meanwhile."""

    ALL = "all"
    FIRST = "first"
    """Rank 0 alone: the others continue until they need it."""
    FIRST_AWAITED = "first_awaited"
    """Rank 0 alone: the others wait for it in a barrier that nobody names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pause:
    """Evaluations, or checkpoints."""

    every: int = 0
    """After so many steps (0: never)."""
    seconds: float = 1.0
    """The longest that one lasts."""
    who: Who = Who.ALL


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """What one run's script calls."""

    names_data: bool = False
    names_computing: bool = False
    flows: bool = False
    """Whether it goes from section to section and is never in none, as the adapters do."""
    logs_every: int = 0
    """Steps after which it names that it logs, of which rank 0 does more (0: never)."""
    asks: bool = True
    """Whether it asks after each step if it shall halt: the only collective that is counted."""
    tells_tokens: bool = True
    in_step: bool = False
    """Whether it evaluates and saves before it reports the step, not after it."""
    evaluates: Pause = Pause()
    saves: Pause = Pause()


UNNAMED_STALL_S = 20.0
"""Longest stall of a loader that no section names: D4 takes it for computing."""


PAUSED_SHARE = 0.5
"""Times the training that evaluations may take, and checkpoints: longer ones come more rarely."""


def draw_script(dice: random.Random, step_s: float) -> Script:
    """Return what the script of a healthy run of such steps calls."""

    def pause(every: tuple[int, ...], longest_s: tuple[float, ...], who: tuple[Who, ...]) -> Pause:
        steps, seconds = dice.choice(every), dice.choice(longest_s)
        if steps:
            steps = max(steps, round(seconds / (PAUSED_SHARE * step_s)))
        return Pause(every=steps, seconds=seconds, who=dice.choice(who))

    kind = dice.choice(("plain", "plain", "loader", "named", "flows"))
    flows = kind == "flows"
    evals = (Who.ALL,) if flows else tuple(Who)
    saves = (Who.ALL, Who.FIRST_AWAITED) if flows else tuple(Who)
    return Script(
        names_data=kind != "plain",
        names_computing=kind in ("named", "flows"),
        flows=flows,
        logs_every=dice.choice((0, 1, 10, 50)),
        asks=flows or dice.random() < 0.8,
        tells_tokens=dice.random() < 0.8,
        in_step=not flows and dice.random() < 0.3,
        evaluates=pause((0, 10, 50, 200), (1.0, 20.0, 200.0, 1200.0), evals),
        saves=pause((0, 20, 50, 200), (1.0, 20.0, 90.0, 400.0), saves),
    )


ONSET_STEP = 260
"""After warm-up and baseline (20 + 200 steps), where a fault may begin at any step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One fault and the answer that is due."""

    name: str
    by: tuple[Name, ...]
    """Detectors of which one must answer."""
    severity: Severity = Severity.HALT
    rank: int | None = None
    """Culprit that must be named; None where the fault has none."""
    section: str | None = None
    onset_step: int = ONSET_STEP
    within_s: float = 1200.0
    """How long after the onset an answer is waited for."""
    hang: bool = False
    """Whether `rank` stays in `section` for ever."""
    silent: bool = False
    """Whether it cannot speak meanwhile."""
    state: str | None = None
    """How its process is found."""
    code: int | None = None
    together: bool = False
    """Whether its peers cannot speak either, so that all ranks are silent at once."""
    rounds: bool = False
    """Whether every rank goes from section to section and ends no step."""
    lingers: bool = False
    """Whether `rank` is done and does not exit."""
    tie: bool = False
    """Whether the ranks cannot be distinguished: no rank may be named."""
    step_x: float = 1.0
    """Factor on every rank's step."""
    own_x: float = 1.0
    """Factor on the step of `rank` 1 alone."""
    fetch_share: float = 0.0
    """Share of a step that is spent fetching."""
    numbers: str | None = None
    """What happens to loss, gradient or gates: see `series.py`."""
    backwards: bool = False
    claim_x: float = 1.0
    """Factor on the tokens a second that the trainer reports."""
    boot: str | None = None
    """What goes wrong at the start: `absent`, `stuck`, `foreign`."""
    watch: dict[str, Any] = field(default_factory=dict)
    """Settings that the fault needs (a limit to leak towards)."""
    step_s: tuple[float, ...] = (1.0, 2.4, 25.0)
    """Step times at which it is simulated."""
    script: Script | None = None
    """The calls of a script that attached our library; None: our own trainer reports."""

    @property
    def slows(self) -> bool:
        """Whether the run also becomes slow: then it has no floor, which would answer first."""
        return self.step_x != 1.0 or self.own_x != 1.0 or self.fetch_share > 0.0


def _hang(section: str, by: Name) -> Fault:
    return Fault(name=f"hang_{section}", by=(by,), rank=1, section=section, hang=True)


_ALONE = Script(
    names_data=True,
    evaluates=Pause(every=100, seconds=40.0, who=Who.FIRST),
    saves=Pause(every=50, seconds=20.0, who=Who.FIRST_AWAITED),
)
"""Rank 0 evaluates and saves for all; before the fault it has done so, and all was well."""


def _script(section: str, by: Name, script: Script = _ALONE, **more: Any) -> Fault:
    """Return a hang of a script that attached our library, by default of rank 1."""
    row = {"rank": 1, "section": section, "script": script, "hang": True, **more}
    return Fault(name=f"script_{section}", by=(by,), **row)


STALLS = (Name.STALL, Name.ALIVE_LOST)
FAULTS: tuple[Fault, ...] = (
    _hang("data", Name.SECTION_DEADLINE),
    _hang("forward", Name.STALL),
    _hang("backward", Name.STALL),
    _hang("optimizer", Name.STALL),
    _hang("log", Name.SECTION_DEADLINE),
    Fault(
        name="hang_together", by=(Name.STALL,), section="backward", hang=True, tie=True
    ),
    Fault(
        name="freeze", by=STALLS, rank=1, section="backward", hang=True, silent=True,
        state="stopped",
    ),
    Fault(name="mute", by=STALLS, rank=1, section="forward", hang=True, silent=True),
    Fault(
        name="mute_together", by=(Name.STALL,), rank=1, section="forward", hang=True, silent=True,
        together=True, within_s=2400.0,  # 15 minutes, and again once if the watcher was away
    ),
    Fault(
        name="rounds", by=(Name.SECTION_DEADLINE,), rounds=True, tie=True,
        within_s=16_000.0,  # twice all limits; a checkpoint's is eight times those before it
    ),
    Fault(
        name="lingers", by=(Name.SECTION_DEADLINE,), rank=1, lingers=True, within_s=2400.0,
    ),
    Fault(
        name="death", by=(Name.PROCESS_DEATH,), rank=1, section="backward", hang=True, silent=True,
        state="dead", code=1,
    ),
    Fault(name="never_speaks", by=(Name.NO_FIRST_HEARTBEAT,), rank=1, boot="absent"),
    Fault(name="stuck_boot", by=(Name.NO_FIRST_HEARTBEAT,), section="boot", boot="stuck"),
    Fault(name="foreign", by=(Name.IDENTITY,), boot="foreign"),
    Fault(name="half_speed", by=(Name.SLOW,), step_x=2.1, within_s=9000.0),
    Fault(
        name="third_slower", by=(Name.SLOW,), severity=Severity.WARN, step_x=1.55, within_s=9000.0
    ),
    Fault(
        name="straggler", by=(Name.STRAGGLER,), severity=Severity.WARN, rank=1, own_x=1.5,
        within_s=9000.0,
    ),
    Fault(name="nan", by=(Name.NON_FINITE,), numbers="nan"),
    Fault(name="divergence", by=(Name.DIVERGENCE,), numbers="divergence", within_s=9000.0),
    Fault(name="frozen_loss", by=(Name.FROZEN,), numbers="frozen_loss", within_s=9000.0),
    Fault(name="zero_gradients", by=(Name.GRADIENTS,), numbers="zero_gradients"),
    Fault(
        name="gate_collapse", by=(Name.GATE_COLLAPSE,), numbers="gate_collapse", onset_step=510,
        within_s=9000.0,
    ),
    Fault(
        name="starvation", by=(Name.LOADER,), fetch_share=0.8, within_s=9000.0,
    ),
    Fault(
        name="leak", by=(Name.MEMORY_LEAK,), severity=Severity.WARN, numbers="leak",
        within_s=9000.0, watch={"memory_leak": {"limit_mb": 64_000}}, step_s=(1.0, 2.4),
    ),
    Fault(name="claims", by=(Name.IMPLAUSIBLE_SPEED,), claim_x=25.0, within_s=3000.0),
    Fault(name="backwards", by=(Name.HYGIENE,), rank=1, backwards=True),
    _script("data", Name.SECTION_DEADLINE),
    _script("forward", Name.STALL, replace(_ALONE, names_computing=True)),
    _script("backward", Name.SECTION_DEADLINE, rank=None, tie=True),  # it names no computing
    _script("log", Name.SECTION_DEADLINE, replace(_ALONE, logs_every=1)),
    _script("eval", Name.SECTION_DEADLINE, rank=0, within_s=4200.0),  # again, if nobody watched
    _script("checkpoint", Name.SECTION_DEADLINE, rank=0),
    Fault(
        name="first_loss", by=(Name.FIRST_LOSS,), severity=Severity.WARN, numbers="first_loss",
        onset_step=1,
    ),
)  # fmt: skip
