"""What must stand before the first step? Device, process group, model, optimizer, batch plan."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from nsa.attention.backends import BackendUnavailableError, choose_backend
from nsa.checkpoint import load_checkpoint
from nsa.config import TrainConfig
from nsa.data import BatchPlan
from nsa.device import choose_device, prepare_torch
from nsa.errors import BadConfig
from nsa.launch import Launch
from nsa.model import LanguageModel, build_model
from nsa.optimizer import build_optimizer
from nsa.ranks import Ranks
from nsa.settings import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Rig:
    """One rank, ready to train.

    `attention_backend` is what `auto` has become (`dense` where attention is not sparse). `net` is
    `model`, wrapped where gradients are averaged over ranks; `resumed_step` is the last
    step the weights have seen.
    """

    config: TrainConfig
    plan: BatchPlan
    device: torch.device
    attention_backend: str
    ranks: Ranks
    model: LanguageModel
    net: nn.Module
    optimizer: torch.optim.Optimizer
    resumed_step: int

    def compute_dtype(self) -> torch.autocast:
        """The context of a forward pass: bf16 arithmetic over fp32 weights, or plain fp32."""
        return torch.autocast(
            self.device.type, dtype=torch.bfloat16, enabled=self.config.dtype == "bf16"
        )

    def settle(self) -> None:
        """Let a section end when its work ends, not when its kernels are queued."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


def build_rig(
    config: TrainConfig,
    plan: BatchPlan,
    launch: Launch,
    settings: Settings,
    on_collective: Callable[[], None],
) -> Rig:
    """Build everything; all ranks draw the same weights from the seed, or load the same ones.

    Raises:
        BadConfig: no device, too many ranks, toggles that exclude each other, or a checkpoint that
            does not fit.
    """
    if settings.on("NSA_DDP_STATIC_GRAPH") and config.batch.accumulate > 1:
        raise BadConfig("NSA_DDP_STATIC_GRAPH=1 with accumulation fails inside PyTorch's reducer")
    device = choose_device(launch.device, settings)
    prepare_torch(device, settings)
    attention_backend = _attention_backend(config, device)
    ranks = Ranks(settings, config.parallel, device, on_collective)
    torch.manual_seed(config.seed)
    model = build_model(config).to(device)
    model.keep_gate_stats(not settings.on("NSA_DISABLE_AUX_STATS"))
    if ranks.backend == "DDP" and settings.on("NSA_DDP_DISABLE_GC"):
        model.gradient_checkpointing = False
    optimizer = build_optimizer(model, config.optim, device)
    resumed_step = 0
    if launch.resume_path is not None:
        resumed_step = _resume(launch, config, model, optimizer, settings.rank)
    return Rig(
        config=config,
        plan=plan,
        device=device,
        attention_backend=attention_backend,
        ranks=ranks,
        model=model,
        net=ranks.wrap(model),
        optimizer=optimizer,
        resumed_step=resumed_step,
    )


def _attention_backend(config: TrainConfig, device: torch.device) -> str:
    if config.attention.kind == "dense":
        return "dense"
    try:
        return choose_backend(config.attention.backend, device)
    except BackendUnavailableError as error:
        raise BadConfig(str(error)) from error


def _resume(
    launch: Launch,
    config: TrainConfig,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    rank: int,
) -> int:
    """Load weights, optimizer and random state; returns the step they are of."""
    path = launch.resume_path
    assert path is not None
    snapshot = load_checkpoint(path, launch.resume_step)
    if snapshot.next_sequence != snapshot.step * config.batch.global_seqs:
        raise BadConfig(f"checkpoint {path} was trained with another batch.global_seqs")
    if snapshot.step > config.steps:
        raise BadConfig(f"checkpoint of step {snapshot.step}, but only {config.steps} ordered")
    try:
        model.load_state_dict(snapshot.model)
        optimizer.load_state_dict(snapshot.optimizer)
    except (RuntimeError, ValueError, KeyError) as error:
        raise BadConfig(f"checkpoint {path} does not fit this model: {error}") from error
    if rank < len(snapshot.rng):
        torch.set_rng_state(snapshot.rng[rank])
    return snapshot.step
