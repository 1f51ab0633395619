"""Which steps did one rank take, as release 0.1 counted them?"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from gonogo.ledger.v1.beats import Beat, Identity

STEP_MESSAGES = ("step_start", "progress", "step_end")


@dataclass(frozen=True, slots=True, kw_only=True)
class RankSteps:
    """One rank, by step; of a step said by two boots, the later boot counts."""

    said: dict[str, dict[int, Beat]]
    evals: dict[int, float] = field(default_factory=dict)
    boots: dict[str, tuple[int, int, int]] = field(default_factory=dict)
    """Boot → lowest seq, highest seq, number of lines."""
    boot_line: Beat | None = None
    last: Beat | None = None
    done_step: int | None = None

    @property
    def gaps(self) -> int:
        """Number of lines that `seq` says are missing (it starts at 0 or 1)."""
        return sum(high - min(low, 1) + 1 - count for low, high, count in self.boots.values())

    @property
    def last_step(self) -> int:
        """Highest step with its `step_end`; 0 before the first."""
        return max(self.said["step_end"], default=0)

    def identity(self) -> Identity | None:
        """Return what the last boot said it is."""
        return self.boot_line.identity() if self.boot_line is not None else None

    def step_times(self) -> dict[int, float]:
        """Return step → seconds between its `step_start` and `step_end`, by the rank's clock."""
        starts = self.said["step_start"]
        return {
            step: end.mono - starts[step].mono
            for step, end in self.said["step_end"].items()
            if step in starts and starts[step].boot == end.boot and end.mono > starts[step].mono
        }

    def applied(self) -> dict[int, Beat]:
        """Return the progress lines of the steps whose update was applied."""
        rows = self.said["progress"].items()
        return {step: beat for step, beat in rows if beat.skipped is not True}


def build_rank_steps(beats: Iterable[Beat]) -> RankSteps:
    """Return one rank's steps from its beats in time order."""
    said: dict[str, dict[int, Beat]] = {msg: {} for msg in STEP_MESSAGES}
    evals: dict[int, float] = {}
    boots: dict[str, tuple[int, int, int]] = {}
    boot_line = last = done_step = None
    for beat in beats:
        low, high, count = boots.get(beat.boot, (beat.seq, beat.seq, 0))
        boots[beat.boot] = (min(low, beat.seq), max(high, beat.seq), count + 1)
        last = beat
        if beat.msg in said:
            said[beat.msg][beat.step] = beat
        elif beat.msg == "eval" and beat.val_loss is not None:
            evals[beat.step] = beat.val_loss
        elif beat.msg == "boot":
            boot_line = beat
        elif beat.msg == "done":
            done_step = beat.step
    return RankSteps(
        said=said,
        evals=evals,
        boots=boots,
        boot_line=boot_line,
        last=last,
        done_step=done_step,
    )
