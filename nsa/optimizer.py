"""How do the weights move? AdamW, and a learning rate that is a function of the step alone."""

import math

import torch
from torch import nn

from nsa.config import OptimConfig


def build_optimizer(
    model: nn.Module, optim: OptimConfig, device: torch.device
) -> torch.optim.AdamW:
    """AdamW over fp32 parameters; weight decay on matrices only, not on norms and biases."""
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
        fused=device.type == "cuda",
    )


def learning_rate(step: int, optim: OptimConfig) -> float:
    """The rate of step 1, 2, 3, …: linear warm-up, cosine decay, then the minimum.

    No state, so resuming at a step restores it.
    """
    if step <= optim.warmup_steps:
        return optim.lr * step / optim.warmup_steps
    floor = optim.lr * optim.min_lr_ratio
    span = max(1, optim.decay_steps - optim.warmup_steps)
    progress = min(1.0, (step - optim.warmup_steps) / span)
    return floor + (optim.lr - floor) * 0.5 * (1.0 + math.cos(math.pi * progress))
