"""What this process is to train: from an order or from a command line."""

import json
from dataclasses import dataclass, replace
from pathlib import Path

from nsa.config import BatchConfig, OptimConfig, TrainConfig, build_config, load_config
from nsa.errors import BadConfig
from nsa.settings import Settings

_DEFAULT_ALIVE_EVERY_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Cadence:
    """When checkpoints are due: after so many steps, or seconds, whichever is first; None = not."""

    every_steps: int | None = None
    every_s: float | None = None

    def __bool__(self) -> bool:
        return self.every_steps is not None or self.every_s is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """One run of the trainer.

    `supervised`: somebody writes `.GO`, and decides what a non-finite loss means. `attempt` is the
    order's, where it says one.
    `last_step` is where this run ends, of the `config.steps` that the whole has; None = there.
    `resume_step` is what the order claims about the checkpoint; None = not claimed. `weights_only`:
    take its weights, whatever step they are of, and start from step 1 with nothing else of it. An
    order says that with step 0 (`init_from` of a plan), the command line with --weights-only.
    """

    run_dir: Path
    config: TrainConfig
    supervised: bool
    last_step: int | None = None
    resume_path: Path | None = None
    resume_step: int | None = None
    weights_only: bool = False
    alive_every_s: float = _DEFAULT_ALIVE_EVERY_S
    checkpoint: Cadence = Cadence()
    fault: str | None = None
    attempt: int | None = None
    device: str = "auto"


def launch_from_order(file: Path, settings: Settings) -> Launch:
    """The launch of an `order.json` in its run directory; BadConfig where it does not fit."""
    try:
        order = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise BadConfig(f"cannot read order {file}: {error}") from error
    if not isinstance(order, dict):
        raise BadConfig(f"order {file} holds no object")
    config = build_config(order.get("train") or {})
    steps = order.get("steps")
    if type(steps) is not int or not 1 <= steps <= config.steps:
        raise BadConfig(f"order: steps {steps!r}, but train.steps {config.steps}")
    if order.get("world_size") != settings.world_size:
        raise BadConfig(
            f"order: world_size {order.get('world_size')!r}, but {settings.world_size} are running"
        )
    _refuse_disagreement(config, settings)
    resume, heartbeat = order.get("resume_from") or {}, order.get("heartbeat") or {}
    path, step = resume.get("path"), resume.get("step")
    run_dir = file.parent
    return Launch(
        run_dir=run_dir,
        config=config,
        supervised=True,
        last_step=steps,
        resume_path=None if path is None else run_dir / path,
        resume_step=step or None,
        weights_only=step == 0,
        alive_every_s=heartbeat.get("alive_every_s") or _DEFAULT_ALIVE_EVERY_S,
        checkpoint=Cadence(**(order.get("checkpoint") or {})),
        fault=order.get("fault"),
        attempt=order.get("attempt"),
        device="cpu" if order.get("profile") == "cpu" else "auto",
    )


def launch_from_file(
    file: Path,
    *,
    run_dir: Path,
    settings: Settings,
    steps: int | None = None,
    data: str | None = None,
    resume: Path | None = None,
    weights_only: bool = False,
    checkpoint: Cadence = Cadence(),
    device: str = "auto",
) -> Launch:
    """The launch of a configuration file; the arguments, NSA_LR and NSA_ACCUM override it."""
    if weights_only and resume is None:
        raise BadConfig("--weights-only needs --resume: whose weights?")
    mapping = load_config(file)
    if steps is not None:
        mapping["steps"] = steps
    if data is not None:
        mapping["data"] = data
    config = _overridden(build_config(mapping), settings)
    if settings.world_size == 1 and not settings.under_torchrun:
        config = replace(config, parallel="single")
    try:
        run_dir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadConfig(f"cannot make the run directory {run_dir}: {error}") from error
    return Launch(
        run_dir=run_dir,
        config=config,
        supervised=False,
        resume_path=resume,
        weights_only=weights_only,
        checkpoint=checkpoint,
        device=device,
    )


def _overridden(config: TrainConfig, settings: Settings) -> TrainConfig:
    optim: OptimConfig = config.optim
    batch: BatchConfig = config.batch
    if "NSA_LR" in settings.nsa_env:
        optim = replace(optim, lr=float(settings.value("NSA_LR")))
    if "NSA_ACCUM" in settings.nsa_env:
        batch = replace(batch, accumulate=int(settings.value("NSA_ACCUM")))
    return replace(config, optim=optim, batch=batch)


def _refuse_disagreement(config: TrainConfig, settings: Settings) -> None:
    if settings.config_name not in (None, config.config):
        raise BadConfig(f"CONFIG={settings.config_name}, but the order says {config.config}")
    if _overridden(config, settings) != config:
        raise BadConfig("NSA_LR or NSA_ACCUM disagrees with the order; change `train` instead")
