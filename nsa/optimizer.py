"""AdamW, clipping, the loss scale, and a learning rate that depends on the step alone."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from nsa.config import OptimConfig
from nsa.errors import BadConfig
from nsa.settings import Settings


class LossScale:
    """The loss scale of fp16 (R28: 65536, 2000, 2, 0.5); fp32 and bf16 pass through."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """What one step did, as scalars that may still be on the device.

    `grad_norm` is the norm before clipping; `skipped` is 1 where the weights did not move: fp16
    overflowed, or the norm was not finite.
    """

    grad_norm: Tensor
    skipped: Tensor


def build_optimizer(
    model: nn.Module, optim: OptimConfig, device: torch.device, *, fused: bool | None = None
) -> torch.optim.AdamW:
    """AdamW over fp32 parameters; weight decay on matrices only. `fused` None: on GPUs."""
    matrices = [parameter for parameter in model.parameters() if parameter.dim() >= 2]
    vectors = [parameter for parameter in model.parameters() if parameter.dim() < 2]
    return torch.optim.AdamW(
        [
            {"params": matrices, "weight_decay": optim.weight_decay},
            {"params": vectors, "weight_decay": 0.0},
        ],
        lr=optim.lr,
        betas=(optim.beta1, optim.beta2),
        eps=optim.eps,
        fused=device.type == "cuda" if fused is None else fused,
    )


def apply_gradients(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    loss_scale: LossScale,
    *,
    rate: float,
    clip: float,
    on_collective: Callable[[], None],
    gradients_stay: bool = False,
) -> Update:
    """Clip the gradients to a norm of `clip`, step at `rate`, and clear them.

    Gradients whose norm is not finite move nothing, in any dtype: neither weights nor moments. The
    fused optimizer leaves that to its kernel; any other has to wait for the norm.

    Args:
        on_collective: called before the ranks add up the norm of sharded gradients.
        gradients_stay: whether they keep their memory, filled with zeros.
    """
    for group in optimizer.param_groups:
        group["lr"] = rate
    if any(hasattr(parameter, "full_tensor") for parameter in model.parameters()):
        on_collective()
    loss_scale.unscale(optimizer)
    norm: Any = torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
    if hasattr(norm, "full_tensor"):  # of sharded gradients: each rank holds a part of it
        norm = norm.full_tensor()
    skipped = (~norm.isfinite()).to(torch.float32)
    _step_unless(skipped, optimizer)
    loss_scale.update()
    optimizer.zero_grad(set_to_none=not gradients_stay)
    return Update(grad_norm=norm, skipped=skipped)


def _step_unless(skipped: Tensor, optimizer: torch.optim.Optimizer) -> None:
    """Step, where `skipped` is 0."""
    fused: Any = optimizer
    if optimizer.param_groups[0]["fused"]:
        fused.found_inf = skipped  # as a GradScaler passes it to the kernel
        optimizer.step()
        del fused.found_inf
    elif not skipped.item():
        optimizer.step()


def learning_rate(step: int, optim: OptimConfig) -> float:
    """The rate of step 1, 2, 3, …: linear warm-up, cosine decay, the minimum; no state."""
    if step <= optim.warmup_steps:
        return optim.lr * step / optim.warmup_steps
    floor = optim.lr * optim.min_lr_ratio
    span = max(1, optim.decay_steps - optim.warmup_steps)
    progress = min(1.0, (step - optim.warmup_steps) / span)
    return floor + (optim.lr - floor) * 0.5 * (1.0 + math.cos(math.pi * progress))
