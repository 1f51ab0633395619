"""The numbers that a run reports: loss, gradient norm, gates and memory, healthy or sick.

A healthy loss falls by a power law, with noise of its batch and spikes that it recovers from.
"""

import math
import random
from typing import Any

from lab.losses import Loss
from lab.rates import Noise

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
