"""How long does what a rank does in a step take? Computing, fetching, pauses and sleep."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gonogo.contract.tick import ProcessState
from lab.ranks import Probe, Rank

if TYPE_CHECKING:
    from lab.training import Training

FORWARD, BACKWARD, OPTIMIZER = 0.3, 0.6, 0.1
"""Shares of a step's computing."""
EPOCH_SHARE = 0.3
"""Longest restart of a loader, as a share of the time between epochs; more is starving (D17)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """What the dice say of one step; seconds."""

    times: list[float]
    """How long each rank computes."""
    paused: str
    """The section in which interpreters stand, if any does."""
    epoch_s: float
    """More that each rank waits for its loader."""
    compile_s: float
    """More that the forward takes, for a shape that is new."""


def draw(run: "Training") -> Drawn:
    """Return what the next step is like; all ranks may stand still before it."""
    dice, step, noise, habits = run.dice, run.step, run.noise, run.habits
    each = _times(run)
    paused = dice.choice(("data", "forward", "backward", "optimizer"))
    if run.sick is None and run.chance(noise.standstill_rate, run.step_s):
        # lines that come late as well are no reason to stand beyond the minute of D5
        seconds = min(dice.uniform(*noise.standstill_s), noise.standstill_s[1] - habits.lag_s)
        for rank in run.ranks:
            rank.freeze(seconds, busy=False)
    if run.compiles:
        each = [each[0] + dice.uniform(*noise.compile_s)] * len(each)
        run.compiles = False
    epoch_s = compile_s = 0.0
    if habits.epoch_steps and step > 1 and step % habits.epoch_steps == 1:
        epoch_s = min(dice.uniform(*habits.epoch_s), EPOCH_SHARE * habits.epoch_steps * run.step_s)
    if step in habits.recompiles_at:
        compile_s = dice.uniform(*habits.recompile_s)
    return Drawn(times=each, paused=paused, epoch_s=epoch_s, compile_s=compile_s)


def _times(run: "Training") -> list[float]:
    """Return how long each rank computes in this step."""
    noise, dice, sick = run.noise, run.dice, run.sick
    kept = 1.0 - 1.0 / noise.drift_steps
    run.drift = run.drift * kept + dice.gauss(
        0.0, noise.drift_sigma * (2.0 / noise.drift_steps) ** 0.5
    )
    common_s = run.step_s * dice.lognormvariate(run.drift, noise.sigma)
    common_s *= run.habits.grown_x(run.step)
    ill = sick is not None and run.onset is not None
    if sick is not None and ill:
        common_s *= sick.step_x
    if sick is None:
        common_s = run.load.slowed(common_s, run.known_until)
    times = [common_s * dice.lognormvariate(0.0, noise.own_sigma) for _ in run.ranks]
    if sick is not None and ill and sick.own_x != 1.0:
        times[1] *= sick.own_x
    return times


def fetch_s(run: "Training", step_s: float, epoch_s: float) -> float:
    """Return how long a rank waits for its loader in a step of so many seconds.

    Even with a restart of the loader, a stall does not exceed the deadline of data.
    """
    noise, dice = run.noise, run.dice
    share = noise.fetch_share
    if run.sick is not None and run.onset is not None and run.sick.fetch_share:
        share = run.sick.fetch_share / (1.0 - run.sick.fetch_share)
        return step_s * share * dice.lognormvariate(0.0, 0.1) + epoch_s
    seconds = dice.expovariate(1.0 / (share * step_s)) + epoch_s
    if run.chance(noise.stall_rate, step_s):
        stall_s = noise.stall_least_s * dice.paretovariate(noise.stall_tail)
        seconds += min(max(0.0, noise.stall_most_s - epoch_s), stall_s)
    return seconds


def pause(run: "Training", rank: Rank, step_s: float) -> None:
    """Let a rank's interpreter stand, now and then."""
    noise, dice = run.noise, run.dice
    if not run.chance(noise.pause_rate, step_s):
        return
    if dice.random() < noise.long_pause_share:
        seconds = dice.uniform(noise.pause_s[1], noise.long_pause_s)
        rank.freeze(seconds, busy=dice.random() < 0.5)
    else:
        rank.freeze(dice.uniform(*noise.pause_s))


def wait_for_disk(run: "Training", rank: Rank, step_s: float, probe: Probe) -> None:
    """Let a rank sleep uninterruptibly, now and then; its thread keeps writing lines."""
    noise, dice = run.noise, run.dice
    if not run.chance(noise.disk_rate, step_s):
        return
    seconds = dice.uniform(*noise.disk_s)
    if dice.random() < noise.long_disk_share:
        seconds = dice.uniform(noise.disk_s[1], noise.long_disk_s)
    probe(rank.now, rank.rank, ProcessState.UNINTERRUPTIBLE)
    rank.spend(seconds)
    probe(rank.now, rank.rank, ProcessState.ALIVE)
