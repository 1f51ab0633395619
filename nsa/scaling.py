"""The loss scale of fp16; fp32 and bf16 pass through.

It starts at 65536, halves on overflow and doubles after 2000 good steps (R28).
"""

from typing import Any

import torch
from torch import Tensor

from nsa.errors import BadConfig
from nsa.settings import Settings


class LossScale:
    """The scale of one run.

    Args:
        dtype: fp16 scales; any other dtype does not.
        device: where the loss lives.
        settings: the NSA_SCALER_* variables.

    Raises:
        BadConfig: factors that would not grow or not back off.
    """

    def __init__(self, dtype: str, device: torch.device, settings: Settings) -> None:
        self.on, self._device = dtype == "fp16", device
        try:
            self._scaler = torch.amp.GradScaler(
                device.type,
                init_scale=float(settings.value("NSA_SCALER_INIT_SCALE")),
                growth_factor=float(settings.value("NSA_SCALER_GROWTH_FACTOR")),
                backoff_factor=float(settings.value("NSA_SCALER_BACKOFF_FACTOR")),
                growth_interval=int(settings.value("NSA_SCALER_GROWTH_INTERVAL")),
                enabled=self.on,
            )
        except AssertionError as error:
            raise BadConfig(f"NSA_SCALER_*: {error}") from error

    def scale(self, loss: Tensor) -> Tensor:
        """The loss whose gradients fit into fp16."""
        return self._scaler.scale(loss)

    def unscale(self, optimizer: torch.optim.Optimizer) -> None:
        """Divide the gradients by the scale, so that they can be measured and clipped."""
        self._scaler.unscale_(optimizer)

    def update(self) -> None:
        """Move the scale by what `unscale` saw; nobody waits for it."""
        self._scaler.update()

    def told(self) -> list[Tensor]:
        """The scale that the next step uses, maybe still on the device; nothing outside fp16."""
        return [self._scaler.scale(torch.ones((), device=self._device))] if self.on else []

    def state(self) -> dict[str, Any]:
        """What a checkpoint holds; empty without scaling."""
        return self._scaler.state_dict()

    def load(self, state: dict[str, Any]) -> None:
        """Resume a checkpoint's scale; another dtype's checkpoint has none."""
        if self.on and state:
            self._scaler.load_state_dict(state)
