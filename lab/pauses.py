"""What comes between two steps? Checkpoints and evaluations: of all ranks, or of rank 0 alone."""

from typing import TYPE_CHECKING, Any

from gonogo.contract.tick import ProcessState
from lab.ranks import Probe

if TYPE_CHECKING:
    from lab.training import Training


def alone(run: "Training", section: str, seconds: float) -> None:
    """Rank 0 acts for all; the others wait for it in no section, and continue a little later."""
    for rank in run.ranks:
        if rank.rank == 0:
            rank.enter(section)
        rank.collective_seq += rank.rank != 0
        rank.spend(seconds)
        if rank.rank == 0:
            rank.say(section, **_told_of(section, seconds))
            rank.enter(None)
            rank.collective_seq += 1
    run.meet()
    for rank in run.ranks[1:]:
        rank.spend(run.dice.uniform(*run.noise.wake_s))


def checkpoint(run: "Training", probe: Probe) -> None:
    """All ranks save, or rank 0 alone; now and then one cannot speak, or waits for its disk."""
    noise, dice = run.noise, run.dice
    long = dice.random() < noise.long_checkpoint_share
    seconds = noise.long_checkpoint_s if long else dice.uniform(*noise.checkpoint_s)
    run.saved_step = run.step
    if dice.random() < noise.alone_share:
        alone(run, "checkpoint", seconds)
        return
    mute = dice.randrange(len(run.ranks)) if dice.random() < noise.silent_checkpoint_share else -1
    for rank in run.ranks:
        if dice.random() < noise.disk_checkpoint_share:
            probe(rank.now + 1.0, rank.rank, ProcessState.UNINTERRUPTIBLE)
            probe(rank.now + seconds, rank.rank, ProcessState.ALIVE)
    outside(run, "checkpoint", seconds, mute)


def outside(run: "Training", section: str, seconds: float, mute: int = -1) -> None:
    """All ranks spend time in a section between steps."""
    for rank in run.ranks:
        rank.enter(section)
        if rank.rank == mute:
            rank.freeze(seconds)
        else:
            rank.spend(seconds)
        rank.say(section, **_told_of(section, seconds))
        rank.enter(None)
    run.meet()


def _told_of(section: str, seconds: float) -> dict[str, Any]:
    """Return what a line says of an evaluation or a checkpoint."""
    return {"val_loss": 2.0} if section == "eval" else {"dt": seconds}
