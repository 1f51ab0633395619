"""What really runs? Counted on the live model, not copied from the configuration.

One report celebrated the speed of a 128-dim toy that ran instead of the model (R16, R70). So
dims are read off the module tree, parameters are counted, and the digest is of what was built.
"""

from pathlib import Path
from typing import Any

import torch

from nsa.code import git_sha
from nsa.config import TrainConfig, config_digest
from nsa.data import BatchPlan
from nsa.model.transformer import LanguageModel
from nsa.settings import Settings

_DRIVER_VERSION = Path("/sys/module/nvidia/version")


def count_identity(
    model: LanguageModel,
    config: TrainConfig,
    plan: BatchPlan,
    settings: Settings,
    device: torch.device,
) -> dict[str, Any]:
    """The flat identity of a run, with the names that an order uses.

    `device` is the model of the device, not its number; `driver` its driver's version.
    """
    attention = model.layers()[0].attention
    return {
        "config_digest": config_digest(config),
        "params": sum(parameter.numel() for parameter in model.parameters()),
        "dim": model.embedding.weight.shape[1],
        "layers": len(model.layers()),
        "heads": attention.heads,
        "groups": attention.groups,
        "seq_len": model.rotation.shape[1],
        "vocab": model.head.out_features,
        "dtype": config.dtype,
        "tokens_per_step": plan.tokens_per_step,
        "world_size": settings.world_size,
        "dataset": config.data,
        "parallel": config.parallel,
        "git_sha": git_sha(Path(__file__).resolve().parents[1]),
        "nsa_env": dict(settings.nsa_env),
        "torch": str(torch.__version__),
        "device": device_name(device),
        "driver": driver_version(device),
    }


def device_name(device: torch.device) -> str:
    """The model of a device ("NVIDIA H200"), `cpu` for the processor."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def driver_version(device: torch.device, said_by: Path = _DRIVER_VERSION) -> str | None:
    """The version of a GPU's driver ("570.86.15"); None on a CPU, or if it is unknown."""
    if device.type != "cuda":
        return None
    try:
        return said_by.read_text(encoding="ascii", errors="replace").strip() or None
    except OSError:
        return None
