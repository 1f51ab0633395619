"""What does a trainer tell of itself? Ours tells all; others tell less, and are as healthy."""

import random
from dataclasses import dataclass

from gonogo.contract.heartbeat import Msg
from lab.noise import Noise

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
class Telling:
    """What one run's ranks write, and by which clock."""

    messages_left_out: frozenset[str] = frozenset()
    fields_left_out: frozenset[str] = frozenset()
    sections: bool = True
    every_steps: int = 1
    """Lines of steps come at each so many of them."""
    rank_0_logs: bool = False
    """Whether `progress` is rank 0's alone, where the others tell the ends of their steps."""
    alive_every_s: float = 5.0
    boots_at_zero: bool = False
    """Whether a boot line says step 0 whatever the process goes on from."""
    own_clock: bool = False
    """Whether the monotonic clock counts from the start of the process."""

    @property
    def tokens(self) -> bool:
        """Whether the ends of steps say how many tokens they carried."""
        left_out = self.messages_left_out | self.fields_left_out
        return not left_out & {Msg.STEP_END, "tokens"}

    def tells(self, msg: str, step: int, rank: int) -> bool:
        """Whether a rank writes a line."""
        if msg in self.messages_left_out:
            return False
        if msg == Msg.PROGRESS and rank and self.rank_0_logs:
            return Msg.STEP_END in self.messages_left_out
        return msg not in _OF_STEPS or step % self.every_steps == 0


_OF_STEPS = frozenset({Msg.STEP_START, Msg.PROGRESS, Msg.STEP_END})
WHOLE = Telling()


def telling_of(noise: Noise, dice: random.Random) -> Telling:
    """Return what a healthy run tells: all, or less by one choice of each kind."""
    if dice.random() >= noise.terse_share:
        return WHOLE
    sections = dice.random() < 0.7
    left_out = set[str](
        dice.choice(((), (Msg.STEP_START,), (Msg.STEP_END,), (Msg.STEP_START, Msg.STEP_END)))
    )
    if not sections:
        left_out.add(Msg.SECTION)
        left_out.update(dice.choice(((), (Msg.ALIVE,))))
    return Telling(
        messages_left_out=frozenset(left_out),
        fields_left_out=frozenset(name for name in _OPTIONAL if dice.random() < 0.3),
        sections=sections,
        every_steps=1 if sections else dice.choice((1, 1, 10)),
        rank_0_logs=dice.random() < 0.3,
        alive_every_s=dice.choice((1.0, 5.0, 10.0)),
        boots_at_zero=dice.random() < 0.5,
        own_clock=dice.random() < 0.5,
    )
