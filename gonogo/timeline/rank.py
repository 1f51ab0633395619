"""The position of a rank: its step, its section, and since when. `advance.absorb` moves it.

Deadlines use the watcher's clock at receipt (`heard_mono`, `section_mono`, `compute_s`). Step times
use the rank's own clock (`pace`). Both count active time only. Only an advancing step is progress.
Any other line shows that the rank lives, and its section.
"""

from bisect import bisect_left, insort
from collections import deque
from dataclasses import dataclass, field

from gonogo.contract.heartbeat import COMPUTE_SECTIONS, Heartbeat, Section

SECTION_SAMPLES = 32
NAMED_SECTIONS = frozenset(Section)
WINDOW_STEPS = 256


@dataclass(slots=True, kw_only=True)
class StepPace:
    """How long the steps of one boot of one rank take.

    Step times are differences of the rank's own monotonic clock between step ends, without the
    time in checkpoint and eval sections. The first step of a boot (compilation, first batch) is no
    sample. Network delay and a wrong wall clock cannot change these numbers.
    """

    times_s: deque[float] = field(default_factory=lambda: deque(maxlen=WINDOW_STEPS))
    """Seconds per step of the last `WINDOW_STEPS` samples."""
    last_step: int | None = None
    last_mono: float = 0.0
    stride: int = 1
    """Steps between the last two step ends that were seen."""
    excluded_s: float = 0.0
    """Checkpoint and eval time since the last step end."""
    median_s: float | None = None
    sampled_step: int | None = None
    """The step whose end made the last sample."""
    _ordered: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.times_s = deque(self.times_s, maxlen=WINDOW_STEPS)
        self._ordered = sorted(self.times_s)

    def end(self, step: int, mono: float) -> None:
        """Record that `step` ended at `mono` on the rank's clock."""
        if self.last_step is not None and step > self.last_step:
            took_s = mono - self.last_mono - self.excluded_s
            if took_s > 0:
                self.stride, self.sampled_step = step - self.last_step, step
                self._sample(took_s / self.stride)
        self.last_step, self.last_mono, self.excluded_s = step, mono, 0.0

    def _sample(self, step_s: float) -> None:
        ordered = self._ordered
        if len(self.times_s) == WINDOW_STEPS:
            del ordered[bisect_left(ordered, self.times_s[0])]
        self.times_s.append(step_s)
        insort(ordered, step_s)
        half = len(ordered) // 2
        middle = ordered[half]
        self.median_s = middle if len(ordered) % 2 else (ordered[half - 1] + middle) / 2


@dataclass(slots=True, kw_only=True)
class RankStream:
    """What the lines of one rank show. Names in `_mono` are receipts on the watcher's clock."""

    rank: int
    boot: str | None = None
    pid: int | None = None
    first_mono: float = 0.0
    heard_mono: float = 0.0
    heard_ts: float = 0.0
    heard_seq: int = 0
    own_mono: float = 0.0
    """The rank's own clock on its last line."""

    labelled: bool = False
    """Whether the rank names its sections at all."""
    ends_steps: bool = False
    """Whether it has ever written `step_end`."""
    tells_collectives: bool = False
    """Whether a line has reported how many collectives it has entered, none included."""

    step: int = 0
    opened: int = 0
    """The step whose start it reported in order."""
    completed: int = 0
    """Highest step that ended."""
    completed_steps: int = 0
    """Step ends of this boot."""
    from_step: int = 0
    """Step at which this boot began (0, or where it resumed)."""
    backwards: int | None = None
    """A step lower than one before it, reported without a restart."""
    advanced_mono: float = 0.0
    advanced_ts: float | None = None
    """The last line that advanced the step, in Unix seconds."""
    started_mono: float | None = None
    """The first line of the first step."""
    pace: StepPace = field(default_factory=StepPace)
    between_s: float = 0.0
    """Seconds from the end of the step before to the start of this one, on its own clock."""
    first_began: float = 0.0
    """When the first step began, or else the process; its own clock."""
    first_s: float = 0.0
    """Seconds of the first step of this boot or an earlier one, whichever took longer."""

    top_step: int = 0
    """The highest step that an earlier boot of this training ended."""
    idle_boots: int = 0
    """Consecutive earlier boots of this training that ended no higher step than those before."""
    idle_s: float = 0.0
    """Seconds in which those boots trained, on the rank's own clock."""
    another: bool = False
    """Whether the boot before was done and this one begins at step 0: it is another training, for
    example the next fold or seed."""

    section: str | None = None
    section_seq: int = 0
    section_mono: float = 0.0
    section_began: float = 0.0
    """When the section began, on the rank's own clock."""
    step_section_seq: int = 0
    """Section count at the start of the step; a checkpoint on one rank puts it ahead in none."""
    places: tuple[str, ...] = ()
    """Sections in which it has been; of more than `MOST_PLACES` the last."""
    compute_s: float = 0.0
    """Seconds in forward, backward or optimizer since the last step end, up to the last line."""
    apart_s: float = 0.0
    """Seconds of the open step in no section, or in an unknown one, on its own clock."""
    longest_apart_s: float = 0.0
    """The most of that in a step that has ended."""
    section_times: tuple[tuple[str, float], ...] = ()
    """Durations of the last checkpoint and eval sections."""
    evaluated_s: float = 0.0
    """Seconds of all evaluations that have ended; those of earlier boots, too."""
    saved_s: tuple[float, ...] = ()
    """Seconds of the last checkpoints as their lines report them; writing overlaps later steps."""
    left: tuple[str, ...] = ()
    """Checkpoints and evaluations that it left at `left_step`; of `advance.MOST_LEFT` the last."""
    left_step: int = 0
    left_mono: float = 0.0
    """When it last left a checkpoint or an evaluation, or restarted."""

    collective_seq: int = 0
    step_counts: tuple[tuple[int, int, int], ...] = ()
    """Of the last complete steps: step, sections, collectives (-1: not reported)."""
    ended_at: tuple[int, int] = (0, 0)
    """The last step whose end reported a number of collectives, and that number."""

    done: bool = False
    done_mono: float = 0.0
    halt_seen: bool = False
    loss: float | None = None
    tokens: int | None = None
    tokens_step: int = 0
    """Step of the line that reported the tokens."""
    progress: Heartbeat | None = None
    """The last progress line, for the step that it belongs to."""

    @property
    def computing(self) -> bool:
        """Whether the rank is in forward, backward or optimizer (or never names a section)."""
        return self.section in COMPUTE_SECTIONS or not self.labelled

    def computed_s(self, mono: float) -> float:
        """Return seconds of computing since the last step end, as of `mono` (watcher's clock)."""
        return self.compute_s + (max(0.0, mono - self.heard_mono) if self.computing else 0.0)

    def collectives(self) -> int:
        """Return the collectives since the end of the step before, if its end reported them."""
        step, number = self.ended_at
        return self.collective_seq - (number if step == self.completed else 0)
