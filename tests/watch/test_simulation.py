"""Zero false halts over simulated hours, with the defaults (the noise of the measured runs).

Log-normal steps that drift, GC pauses, loader stalls with heavy tails, checkpoints and
evaluations; ticks of a second. A seeded sample; it bounds nothing by itself.
"""

import random

import pytest

from gonogo.contract.finding import Severity
from tests.watch.streams import Watched, World, order_of, watch


def simulate(step_s: float, sigma: float, hours: float, seed: int) -> tuple[Watched, float]:
    """One run of two ranks for about so many hours; returns what was found and the hours."""
    dice = random.Random(seed)
    world = World(order_of({}, steps=10**6), alive_every_s=5.0).boot(boot_s=20.0, load_s=11.3)
    began, drift, step = world.mono, 1.0, 0
    while world.mono - began < 3600.0 * hours:
        step += 1
        drift *= dice.lognormvariate(0, 0.001)
        data_s = [dice.expovariate(2000.0) for _ in world.ranks]
        if dice.random() < 1 / 500:
            data_s[dice.randrange(2)] += min(250.0, 2.0 * dice.paretovariate(1.5))
        times_s = [drift * step_s * dice.lognormvariate(0, sigma) for _ in world.ranks]
        if dice.random() < 1 / 300:
            times_s[dice.randrange(2)] += dice.uniform(0.5, 5.0)
        world.open_step(data_s=data_s)
        world.compute(step_s=times_s)
        world.close_step()
        if step % 200 == 0:
            world.pause("checkpoint", dice.uniform(5.0, 90.0), "checkpoint")
        if step % 500 == 0:
            world.pause("eval", dice.uniform(30.0, 300.0))
    return watch(world, interval_s=1.0, stop_at_halt=False), (world.mono - began) / 3600.0


@pytest.mark.parametrize(
    ("step_s", "sigma", "hours"),
    [
        (1.0, 0.15, 0.3),
        (2.4, 0.25, 1.0),
        pytest.param(25.0, 0.15, 5.0, marks=pytest.mark.long),
        pytest.param(108.0, 0.25, 8.0, marks=pytest.mark.long),
    ],
    ids=["1s", "2.4s", "25s", "108s"],
)
def test_noise_never_halts(step_s: float, sigma: float, hours: float) -> None:
    found, simulated = simulate(step_s, sigma, hours, seed=1337)
    assert simulated >= hours
    assert found.halts == []
    assert len(found.of(Severity.WARN)) == 0


def test_the_same_noise_with_a_hang_at_the_end_halts() -> None:
    dice = random.Random(7)
    world = World(order_of({}, steps=10**6), alive_every_s=5.0).boot()
    for _ in range(60):
        world.steps(1, step_s=2.4 * dice.lognormvariate(0, 0.25))
    world.open_step()
    world.hang(1, "backward", 90.0)
    assert watch(world, interval_s=1.0).halted() == [("stall", 1, "backward")]
