"""What must stand before the first step? Device, process group, model, optimizer, batch plan."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from nsa.attention.backends import BackendUnavailableError, choose_backend
from nsa.checkpoint import Snapshot, load_checkpoint
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
    step the weights have seen, `marks` where a stream of data goes on then.
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
    marks: list[list[int]]

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
    marks: list[list[int]] = []
    if launch.resume_path is not None:
        resumed_step, marks = _resume(launch, config, model, optimizer, settings.rank)
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
        marks=marks,
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
) -> tuple[int, list[list[int]]]:
    """Load weights, optimizer and random state; returns their step and where data goes on.

    An order that claims step 0 starts a new run from another's weights: they alone are loaded.
    """
    path = launch.resume_path
    assert path is not None
    weights_only = launch.resume_step == 0
    snapshot = load_checkpoint(path, None if weights_only else launch.resume_step)
    if weights_only:
        _load_weights(model, snapshot, path)
        return 0, []
    if snapshot.next_sequence != snapshot.step * config.batch.global_seqs:
        raise BadConfig(f"checkpoint {path} was trained with another batch.global_seqs")
    if snapshot.step > config.steps:
        raise BadConfig(f"checkpoint of step {snapshot.step}, but only {config.steps} ordered")
    _load_weights(model, snapshot, path)
    try:
        optimizer.load_state_dict(snapshot.optimizer)
    except (RuntimeError, ValueError, KeyError) as error:
        raise BadConfig(f"checkpoint {path} does not fit this model: {error}") from error
    if rank < len(snapshot.rng):
        torch.set_rng_state(snapshot.rng[rank])
    same_data = snapshot.data == (config.data, config.seed)
    return snapshot.step, snapshot.marks if same_data else []


def _load_weights(model: nn.Module, snapshot: Snapshot, path: Path) -> None:
    try:
        model.load_state_dict(snapshot.model)
    except RuntimeError as error:
        raise BadConfig(f"checkpoint {path} does not fit this model: {error}") from error
