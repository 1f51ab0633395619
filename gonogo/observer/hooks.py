"""Wrap functions of torch and of trackers: one function for each module that is observed.

`install` is called when a module has been imported. A wrapper calls the original with its own
arguments, returns its result and raises its errors. What it reports is guarded by `Training`.
"""

import functools
import inspect
import io
import os
import sys
from collections.abc import Callable
from typing import Any

from gonogo.observer.training import Training
from gonogo.trainer.settings import is_launched

training = Training()
"""What this process trains."""
_seen: set[str] = set()


def install(module: Any) -> None:
    """Wrap the functions of a module that has been imported; once."""
    name = module.__name__
    if name in _seen or name not in HOOKS:
        return
    _seen.add(name)
    HOOKS[name](module)


def _wrap(
    owner: Any,
    name: str,
    before: Callable[..., Any] | None = None,
    after: Callable[..., Any] | None = None,
) -> None:
    """Replace a function by one that reports before and after each call.

    Args:
        owner: module or class.
        name: of the function.
        before: is given the arguments.
        after: is given the result (None after an error), and the arguments.
    """
    original = getattr(owner, name, None)
    if original is None:
        return
    begins = None if before is None else training.guarded(before)
    ends = None if after is None else training.guarded(after)

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        if begins is not None:
            begins(*args, **kwargs)
        result = None
        try:
            result = original(*args, **kwargs)
        finally:
            if ends is not None:
                ends(result, *args, **kwargs)
        return result

    setattr(owner, name, call)


# ---- torch ---------------------------------------------------------------------------------------


def _torch(torch: Any) -> None:
    if not hasattr(torch, "__version__"):
        return
    optimizer = sys.modules["torch.optim.optimizer"]

    def begins(row: Any, *_: Any) -> None:
        training.begins_step(row)
        first.remove()

    stepped = training.guarded(training.stepped)
    first = optimizer.register_optimizer_step_pre_hook(training.guarded(begins))
    optimizer.register_optimizer_step_post_hook(lambda row, *_: stepped(row))
    _wrap(optimizer.Optimizer, "__init__", after=lambda _, row, *a, **k: training.made(row))
    _wrap(
        torch.autograd,
        "backward",
        lambda tensors, *a, **k: training.began_backward(tensors),
        lambda *a, **k: training.ended_backward(),
    )
    _wrap(os, "_exit", lambda status, **k: training.leaves(status))
    _wrap(torch.autograd, "grad", lambda *a, **k: training.differentiated())
    _wrap(torch.nn.Module, "train", _evaluates)  # `eval()` calls it, and subclasses do
    for owner in (torch.nn.utils, sys.modules["torch.nn.utils.clip_grad"]):
        _wrap(owner, "clip_grad_norm_", after=_clipped)
    _checkpoints(torch, "save")
    scaler = getattr(torch.amp, "GradScaler", None)
    if scaler is not None:
        _wrap(scaler, "scale", after=_scaled)
        _wrap(scaler, "step", lambda *a, **k: training.scaler_begins(), _scaler_ended)


def _evaluates(module: Any, mode: bool = True) -> None:
    if not mode:
        training.evaluates(module)


def _clipped(result: Any, *args: Any, **kwargs: Any) -> None:
    if result is not None:
        training.clipped(result)


def _scaled(result: Any, scaler: Any, outputs: Any, *args: Any, **kwargs: Any) -> None:
    if result is not None and not isinstance(outputs, list | tuple):
        training.scaled(result, outputs)


def _scaler_ended(_: Any, scaler: Any, optimizer: Any, *args: Any, **kwargs: Any) -> None:
    if scaler.is_enabled():
        training.scaler_ended(optimizer)


def _checkpoints(owner: Any, *names: str) -> None:
    """Wrap functions that write a checkpoint; one into memory counts as none."""

    def to_disk(args: Any, kwargs: Any) -> bool:
        return not any(isinstance(row, io.BytesIO) for row in (*args, *kwargs.values()))

    for name in names:
        _wrap(
            owner,
            name,
            lambda *a, **k: training.saves() if to_disk(a, k) else None,
            lambda _, *a, **k: training.saved() if to_disk(a, k) else None,
        )


def _process_group(module: Any) -> None:
    def joins(*args: Any, **kwargs: Any) -> None:
        if is_launched():
            training.opened()

    _wrap(module, "init_process_group", joins, lambda *a, **k: training.opened())


def _data_loader(module: Any) -> None:
    grad = sys.modules["torch"].is_grad_enabled  # still being imported
    _wrap(
        module._BaseDataLoaderIter,
        "__next__",
        lambda _: training.fetches(grad=grad()),
        lambda batch, _: training.fetched(ended=batch is None),
    )


def _dynamo(module: Any) -> None:
    """Have the compiler call the observer, and neither compile nor inline it."""
    for name in ("gonogo.observer", "gonogo.trainer"):
        module.add(name)


# ---- trackers ------------------------------------------------------------------------------------

_SCALARS = (
    ("SummaryWriter", "add_scalar", "tag", "scalar_value"),
    ("SummaryWriter", "add_scalars", "main_tag", "tag_scalar_dict"),
)
TRACKERS: dict[str, tuple[tuple[str | None, str, str | None, str], ...]] = {
    "torch.utils.tensorboard.writer": _SCALARS,
    "tensorboardX.writer": _SCALARS,
    "wandb.sdk.wandb_run": (("Run", "log", None, "data"),),
    "trackio.run": (("Run", "log", None, "metrics"),),
    "mlflow.tracking.fluent": (
        (None, "log_metric", "key", "value"),
        (None, "log_metrics", None, "metrics"),
    ),
    "mlflow.tracking.client": (
        ("MlflowClient", "log_metric", "key", "value"),
        ("MlflowClient", "log_batch", None, "metrics"),
    ),
}
"""Module → class (None: the module itself), function, and its arguments: the name of one number
(None: there is a dict, or a list of named numbers), and what is logged."""


def listen(module: Any) -> None:
    """Wrap the functions of a tracker's module that log scalars.

    A scalar becomes the metric `user/<name>` of the open step. If that has computed nothing yet, it
    belongs to the step that ended last. Meanwhile the rank is in section log, so a tracker that
    blocks is named.
    """
    for name, function, word, value in TRACKERS[module.__name__]:
        owner = module if name is None else getattr(module, name, None)
        if hasattr(owner, function):
            said = inspect.signature(getattr(owner, function))
            _wrap(
                owner,
                function,
                functools.partial(_log, said, word, value),
                lambda *a, **k: training.logged(),
            )


def _log(
    said: inspect.Signature, name: str | None, value: str, /, *args: Any, **kwargs: Any
) -> None:
    try:
        given = said.bind(*args, **kwargs).arguments
    except TypeError:  # the tracker refuses them, too
        given = {}
    data = given.get(value)
    if name is not None:
        data = {given.get(name): data}
    elif isinstance(data, list | tuple):
        data = {row.key: row.value for row in data}
    training.logs(data if isinstance(data, dict) else {})


HOOKS: dict[str, Callable[[Any], None]] = {
    "torch": _torch,
    "torch.distributed.distributed_c10d": _process_group,
    "torch.utils.data.dataloader": _data_loader,
    "torch.distributed.checkpoint.state_dict_saver": lambda module: _checkpoints(
        module, "save", "async_save"
    ),
    "torch._dynamo.trace_rules": _dynamo,
    "safetensors.torch": lambda module: _checkpoints(module, "save_file", "save_model"),
    **dict.fromkeys(TRACKERS, listen),
}
"""Name of a module → what wraps its functions."""
