"""The position of a rank: its step, its section, and since when. `advance.absorb` moves it.

Deadlines use the watcher's clock at receipt (`heard_mono`, `section_mono`, `compute_s`). Step times
use the rank's own clock (`pace`). Both count active time only. Only an advancing step is progress.
Any other line shows that the rank lives, and its section.
"""

from dataclasses import dataclass, field

from gonogo.contract.heartbeat import COMPUTE_SECTIONS, Heartbeat, Section
from gonogo.timeline.step_time import StepPace

SECTION_SAMPLES = 32
NAMED_SECTIONS = frozenset(Section)


@dataclass(slots=True, kw_only=True)
class RankStream:
    """What the lines of one rank show. Names in `_mono` are receipts on the watcher's clock."""

    rank: int
    step_section_seq: int = 0
    """Section count at the start of the step; a checkpoint on one rank puts it ahead in none."""
    ends_steps: bool = False
    """Whether it has ever said `step_end`."""
    boot: str | None = None
    pid: int | None = None
    msg: str | None = None
    first_mono: float = 0.0
    heard_mono: float = 0.0
    heard_ts: float = 0.0
    heard_seq: int = 0
    own_mono: float = 0.0
    """The rank's own clock on its last line."""
    step: int = 0
    from_step: int = 0
    """Step at which this boot began (0, or where it resumed)."""
    top_step: int = 0
    """The highest step that an earlier boot of this training ended."""
    idle_boots: int = 0
    """Earlier boots of this training running that ended no higher step than those before them."""
    idle_s: float = 0.0
    """Seconds in which these trained, from the begin of the first step to the last step's end, on
    the rank's own clock."""
    another: bool = False
    """Whether the boot before said `done` and this one begins at step 0: it is another training,
    the next fold or the next seed. One that resumes is none: its peers crashed after `done`."""
    backwards: int | None = None
    """A step lower than one before it, told without a restart."""
    section: str | None = None
    section_seq: int = 0
    section_mono: float = 0.0
    left_mono: float = 0.0
    """When it last left a checkpoint or an evaluation, for which its peers may have waited; or was
    started anew, which ends whatever they waited for."""
    left_step: int = 0
    """The step at which it was in there."""
    left: tuple[str, ...] = ()
    """The checkpoints and evaluations that it has left at that step, in order; of more than
    `advance.MOST_LEFT` the last."""
    collective_seq: int = 0
    tells_collectives: bool = False
    """Whether a line has told how many it has entered, none included."""
    labelled: bool = False
    """Whether this rank names its sections at all."""
    places: tuple[str, ...] = ()
    """Sections in which it has been, as its lines say; of more than `MOST_PLACES` the last."""
    advanced_mono: float = 0.0
    advanced_ts: float | None = None
    """The last line that advanced the step, in Unix seconds."""
    started_mono: float | None = None
    """The first step's first line."""
    completed: int = 0
    """Highest step that ended."""
    completed_steps: int = 0
    """Step ends of this boot."""
    compute_s: float = 0.0
    """Seconds in forward, backward or optimizer since the last step end, up to the last line."""
    pace: StepPace = field(default_factory=StepPace)
    apart_s: float = 0.0
    """Seconds in no section, or in one that nobody knows, of the open step, on its own clock."""
    longest_apart_s: float = 0.0
    """The most of that in a step that has ended."""
    first_began: float = 0.0
    """When the first step began, or the process where nothing tells that; its own clock."""
    first_s: float = 0.0
    """Seconds that the first step took, of this boot or an earlier one, whichever took longer, on
    the rank's own clock; an evaluation before it is not in them. 0 before its end."""
    section_times: tuple[tuple[str, float], ...] = ()
    """Durations of the last checkpoint and eval sections."""
    evaluated_s: float = 0.0
    """Seconds of all evaluations that have ended; earlier boots' too."""
    saved_s: tuple[float, ...] = ()
    """What the last checkpoints took as their lines say it: writing goes on beside later steps."""
    section_began: float = 0.0
    """When the section began, on the rank's own clock."""
    done: bool = False
    done_mono: float = 0.0
    """When it said so."""
    step_counts: tuple[tuple[int, int, int], ...] = ()
    """Of the last steps told from start to end: step, sections, collectives (-1: untold)."""
    ended_at: tuple[int, int] = (0, 0)
    """The last step whose end told a number of collectives, and that number."""
    opened: int = 0
    """The step whose start it told in order."""
    between_s: float = 0.0
    """Seconds from the end of the step before to that start, on its own clock; no checkpoint or
    evaluation is in them."""
    halt_seen: bool = False
    loss: float | None = None
    grad_norm: float | None = None
    toks_per_s: float | None = None
    tokens: int | None = None
    tokens_step: int = 0
    """Step of the line that told them."""
    progress: Heartbeat | None = None
    """The last progress line, for the step that it belongs to."""

    @property
    def computing(self) -> bool:
        """Whether the rank stands in forward, backward or optimizer (or never says where)."""
        return self.section in COMPUTE_SECTIONS or not self.labelled

    def computed_s(self, mono: float) -> float:
        """Return seconds of computing since the last step end, as of `mono` (watcher's clock)."""
        return self.compute_s + (max(0.0, mono - self.heard_mono) if self.computing else 0.0)

    def position(self) -> tuple[int, int, int]:
        """Return how far the rank is: step, sections of this step, collective_seq."""
        return self.step, self.section_seq - self.step_section_seq, self.collective_seq

    def collectives(self) -> int:
        """Return the collectives entered since the end of the step before, if that told them."""
        step, number = self.ended_at
        return self.collective_seq - (number if step == self.completed else 0)
