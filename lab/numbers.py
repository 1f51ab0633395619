"""The numbers that a run reports: loss, gradient norm, gates and memory, healthy or sick.

A healthy loss falls by a power law, with noise of its batch and spikes that it recovers from. A
loss of another kind is made with dice of its own. It is asked for the numbers of a step in any
order, so that a restart in place may repeat steps.
"""

import math
import random
from collections.abc import Callable
from typing import Any

from lab.noise import Noise

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


FIRST_LOSS = math.log(256)
LAST_LOSS = 1.6
FALL_STEPS = 60.0
LEAK_MB = 25.0
SCALE_GROWS_STEPS = 2000
"""As torch.amp.GradScaler's growth_interval."""


class Series:
    """The numbers of one run's steps, the same on every rank but for memory."""

    def __init__(
        self,
        noise: Noise,
        dice: random.Random,
        *,
        sick: str | None,
        onset: int,
        fp16: bool,
        other: Loss | None = None,
    ) -> None:
        self._noise, self._dice, self._sick, self._onset = noise, dice, sick, onset
        self._fp16 = fp16
        self._spike = 0.0
        self._frozen: dict[str, float] = {}
        self._skip = False
        self._scale, self._applied = 65536.0, 0
        self._other = other
        """Gives the loss of a run whose loss does not only fall."""

    def of_step(self, step: int) -> dict[str, Any]:
        """Return the numbers of one step's `progress` lines."""
        noise, dice = self._noise, self._dice
        self._spike *= noise.spike_decay
        if dice.random() < noise.spike_rate_steps:
            self._spike = dice.uniform(*noise.spike)
        fall = (1.0 + (step - 1) / FALL_STEPS) ** -0.5
        loss = LAST_LOSS + (FIRST_LOSS - LAST_LOSS) * fall
        numbers: dict[str, Any] = {
            "loss": loss + dice.gauss(0.0, 0.03) + self._spike,
            "grad_norm": (0.6 + 2.0 * fall + 3.0 * self._spike) * dice.lognormvariate(0.0, 0.2),
            "lr": 1e-3 * min(1.0, step / 200),
            "gate_entropy": 0.9 + 0.02 * dice.random(),
            "gate_max": 0.45 + 0.05 * dice.random(),
            "gate_collapse_frac": 0.0,
        }
        if self._other is not None:
            numbers |= {"lr": None, **self._other(step)}
        if self._fp16:
            numbers |= self._scaled()
        if self._sick is not None and step >= self._onset:
            self._fall_ill(numbers, step)
        return numbers

    def _scaled(self) -> dict[str, Any]:
        """Return fp16's loss scaling: an overflow halves the scale, time doubles it."""
        self._skip = self._dice.random() < (0.2 if self._skip else 1 / 1000)
        self._applied = 0 if self._skip else self._applied + 1
        told = {"skipped": self._skip, "loss_scale": self._scale}
        if self._skip:
            self._scale /= 2.0
            return {**told, "grad_norm": math.inf}
        if self._applied % SCALE_GROWS_STEPS == 0:
            self._scale *= 2.0
        return told

    def _fall_ill(self, numbers: dict[str, Any], step: int) -> None:
        sick = self._sick
        if sick == "nan" and step == self._onset:
            numbers["loss"] = math.nan
        elif sick == "divergence":
            numbers["loss"] += 0.02 * (step - self._onset)
        elif sick == "frozen_loss":
            if not self._frozen:
                self._frozen = {name: numbers[name] for name in ("loss", "grad_norm")}
            numbers |= self._frozen
        elif sick == "zero_gradients":
            numbers["grad_norm"] = 0.0
        elif sick == "gate_collapse":
            numbers |= {"gate_entropy": 0.05, "gate_max": 0.98, "gate_collapse_frac": 1.0}
        elif sick == "first_loss":
            numbers["loss"] = 9.0

    def rss_mb(self, before: float, step: int) -> float:
        """Return a rank's memory after a step: caches that fill, or a continuing leak."""
        if self._sick == "leak" and step >= self._onset:
            return before + LEAK_MB * self._dice.random()
        level = 2400.0 + 200.0 * (1.0 - math.exp(-step / 500.0))
        return before + 0.05 * (level - before) + self._dice.gauss(0.0, 4.0)
