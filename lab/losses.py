"""What do healthy losses look like that do not only fall? Five kinds, each from a seed.

A kind is made with dice of its own and then asked for the numbers of a step, in any order, so that
a restart in place may repeat steps.
"""

import math
import random
from collections.abc import Callable

Numbers = dict[str, float]
Loss = Callable[[int], Numbers]


def adversarial(dice: random.Random) -> Loss:
    """A generator's loss against a discriminator: it rises for long, swings, and settles."""
    top, period = dice.uniform(2.0, 6.0), dice.uniform(150.0, 900.0)
    swing, phase = dice.uniform(0.2, 0.8), dice.uniform(0.0, 6.0)

    def numbers(step: int) -> Numbers:
        level = 0.7 + top * (1.0 - math.exp(-step / 800.0))
        wave = 1.0 + swing * math.sin(step / period * 2.0 * math.pi + phase)
        loss = max(0.05, level * wave + dice.gauss(0.0, 0.15 * level))
        return {"loss": loss, "grad_norm": dice.lognormvariate(1.0, 0.4), "lr": 2e-4}

    return numbers


def policy(dice: random.Random) -> Loss:
    """PPO: a surrogate about zero and a value loss that grows with the rewards, and falls again."""
    found = dice.randrange(300, 1500)
    height, decay = dice.uniform(2.0, 30.0), dice.uniform(100.0, 1500.0)

    def numbers(step: int) -> Numbers:
        value = 0.4 + (height * math.exp(-(step - found) / decay) if step > found else 0.0)
        loss = dice.gauss(-0.02, 0.02) + 0.5 * value * dice.lognormvariate(0.0, 0.3)
        norm = 0.5 * dice.lognormvariate(0.0, 0.2)
        return {"loss": loss, "grad_norm": norm, "lr": 3e-4 / (1.0 + step / 3000.0)}

    return numbers


def groups(dice: random.Random) -> Loss:
    """GRPO: exactly zero at first, then advantages about zero and a divergence term that grows."""
    most, noise = dice.uniform(0.3, 2.0), dice.uniform(0.01, 0.1)

    def numbers(step: int) -> Numbers:
        term = most * (1.0 - math.exp(-step / 1200.0))
        loss = 0.0 if step < 3 else dice.gauss(0.0, noise) + term
        return {"loss": loss, "grad_norm": dice.lognormvariate(-1.0, 0.3), "lr": 1e-6}

    return numbers


def restarts(dice: random.Random) -> Loss:
    """Cosine cycles of the learning rate with warm restarts: the loss goes up with it."""
    length, growth = dice.randrange(300, 900), dice.choice((1, 2))
    first, high = dice.choice((math.log(256), 9.0)), dice.uniform(0.4, 1.2)

    def numbers(step: int) -> Numbers:
        began, cycle = 0, length
        while step - began >= cycle:
            began, cycle = began + cycle, cycle * growth
        since = step - began
        rate = 0.5 * (1.0 + math.cos(math.pi * since / cycle))
        hot = high * rate * (1.0 - math.exp(-since / 15.0)) if began else 0.0
        loss = 1.6 + (first - 1.6) * (1.0 + step / 60.0) ** -0.5 + hot
        told = {"loss": loss + dice.gauss(0.0, 0.03), "lr": 1e-3 * rate}
        return {**told, "grad_norm": dice.lognormvariate(0.0, 0.2)}

    return numbers


def untold_restarts(dice: random.Random) -> Loss:
    """The same from a trainer that reports no learning rate."""
    told = restarts(dice)
    return lambda step: {name: value for name, value in told(step).items() if name != "lr"}


def waves(dice: random.Random) -> Loss:
    """A language model's, which swings by the order of its data."""
    period, height = dice.uniform(500.0, 3000.0), dice.uniform(0.1, 0.3)
    phase = dice.uniform(0.0, 6.0)

    def numbers(step: int) -> Numbers:
        fall = 3.9 * (1.0 + step / 60.0) ** -0.5
        swing = height * math.sin(step / period * 2.0 * math.pi + phase)
        told = {"loss": 1.6 + fall + swing + dice.gauss(0.0, 0.03), "lr": 1e-3}
        return {**told, "grad_norm": dice.lognormvariate(0.0, 0.2)}

    return numbers


LOSSES: dict[str, Callable[[random.Random], Loss]] = {
    "gan": adversarial,
    "ppo": policy,
    "grpo": groups,
    "sgdr": restarts,
    "sgdr_untold": untold_restarts,
    "waves": waves,
}
