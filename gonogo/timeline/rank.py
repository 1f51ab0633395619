"""The position of a rank: its step, its section, and since when. `advance.absorb` moves it.

Deadlines use the watcher's clock at receipt (`heard_mono`, `section_mono`, `compute_s`). Step times
use the rank's own clock (`pace`). Both count active time only. Only an advancing step is progress.
Any other line shows that the rank lives, and its section.
"""

from dataclasses import dataclass, field

from gonogo.contract.heartbeat import COMPUTE_SECTIONS, Heartbeat, Section
from gonogo.timeline.step import RankStep, StepPace

SECTION_SAMPLES = 32
NAMED_SECTIONS = frozenset(Section)


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
    begun: int = 0
    """How often the step began: after an evaluation or a checkpoint it restarts."""
    places: tuple[str, ...] = ()
    """Sections in which it has been; of more than `MOST_PLACES` the last."""
    compute_s: float = 0.0
    """Seconds in forward, backward or optimizer since the last step end, up to the last line."""
    longest_apart_s: float = 0.0
    """The longest stay in no section, or in an unknown one, within one step; its own clock."""
    section_times: tuple[tuple[str, float], ...] = ()
    """Durations of the last checkpoint and eval sections."""
    evaluated_s: float = 0.0
    """Seconds of all evaluations that have ended; those of earlier boots, too."""
    saved_s: tuple[float, ...] = ()
    """Seconds of the last checkpoints as their lines report them; writing overlaps later steps."""
    left_mono: float = 0.0
    """When it last left a checkpoint or an evaluation, or restarted."""

    collective_seq: int = 0
    step_counts: tuple[tuple[int, int, int], ...] = ()
    """The last complete steps: step, sections, collectives (-1: not reported)."""
    ended_at: tuple[int, int] = (0, 0)
    """The last step whose end reported a number of collectives, and that number."""

    done: bool = False
    done_mono: float = 0.0
    halt_seen: bool = False
    loss: float | None = None
    tokens: int | None = None
    progress: Heartbeat | None = None
    """The last progress line, for the step that it belongs to."""
    ending: dict[int, RankStep] = field(default_factory=dict)
    """Steps that have ended, but whose numbers may still come."""
    reads_late: bool = False
    """Whether it has written numbers of a step after it had begun the next one."""
    ready: list[RankStep] = field(default_factory=list)
    """Steps that the last line made complete."""

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
