"""Wrap functions of torch and of trackers: one function for each module that is observed.

`install` is called when a module has been imported. A wrapper calls the original with its own
arguments, returns its result and raises its errors. What it reports is guarded by `Training`.
"""

import functools
import io
import os
import sys
from collections.abc import Callable
from typing import Any

from gonogo.observer.settings import is_launched
from gonogo.observer.trackers import TRACKERS, listen
from gonogo.observer.training import Training

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

    first = optimizer.register_optimizer_step_pre_hook(training.guarded(begins))
    optimizer.register_optimizer_step_post_hook(_stepped)
    _wrap(optimizer.Optimizer, "__init__", after=lambda _, row, *a, **k: training.made(row))
    _backward(torch.autograd)
    _wrap(os, "_exit", lambda status, **k: training.leaves(status))
    _wrap(torch.autograd, "grad", lambda *a, **k: training.differentiated())
    _evaluations(torch.nn.Module)
    for owner in (torch.nn.utils, sys.modules["torch.nn.utils.clip_grad"]):
        _wrap(owner, "clip_grad_norm_", after=_clipped)
    _checkpoints(torch, "save", lambda args, kwargs: kwargs.get("f", args[1:2] or None))
    scaler = getattr(torch.amp, "GradScaler", None)
    if scaler is not None:
        _wrap(scaler, "scale", after=_scaled)
        _scaler_step(scaler)


def _stepped(optimizer: Any, args: Any, kwargs: Any) -> None:
    try:
        training.stepped(optimizer)
    except Exception as error:  # noqa: BLE001 - the program must continue
        training.fail(error)


def _backward(autograd: Any) -> None:
    """Wrap the backward pass; without `_wrap`, because each step makes this call."""
    original = autograd.backward

    @functools.wraps(original)
    def backward(tensors: Any, *args: Any, **kwargs: Any) -> Any:
        counts = training.counts_only
        try:
            if counts:
                training.count_backward(tensors)
            else:
                training.began_backward(tensors)
        except Exception as error:  # noqa: BLE001 - the program must continue
            training.fail(error)
        if counts:
            return original(tensors, *args, **kwargs)
        try:
            return original(tensors, *args, **kwargs)
        finally:
            try:
                training.ended_backward()
            except Exception as error:  # noqa: BLE001 - as above
                training.fail(error)

    autograd.backward = backward


def _evaluations(module: Any) -> None:
    """Wrap what puts a module into evaluation mode; `eval()` calls it, and subclasses do."""
    original, report = module.train, training.guarded(training.evaluates)

    @functools.wraps(original)
    def train(self: Any, mode: bool = True) -> Any:
        if not mode:
            report(self)
        return original(self, mode)

    module.train = train


def _clipped(result: Any, *args: Any, **kwargs: Any) -> None:
    if result is not None and not training.counts_only:
        training.clipped(result)


def _scaled(result: Any, scaler: Any, outputs: Any, *args: Any, **kwargs: Any) -> None:
    if result is not None and not isinstance(outputs, list | tuple):
        training.scaled(result, outputs)


def _scaler_step(scaler: Any) -> None:
    original, report = scaler.step, training.guarded(training.skipped)

    @functools.wraps(original)
    def step(self: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        before = training.posts
        result = original(self, optimizer, *args, **kwargs)
        if training.posts == before and self.is_enabled():
            report(optimizer)
        return result

    scaler.step = step


def _checkpoints(owner: Any, name: str, target: Callable[..., Any]) -> None:
    """Wrap a function that writes a checkpoint; one into memory counts as none.

    Args:
        owner: module.
        name: of the function.
        target: returns where it writes to, of its arguments.
    """
    original = getattr(owner, name, None)
    if original is None:
        return
    saves, saved = training.guarded(training.saves), training.guarded(training.saved)

    @functools.wraps(original)
    def save(*args: Any, **kwargs: Any) -> Any:
        place = target(args, kwargs)
        place = place[0] if isinstance(place, tuple) else place
        if isinstance(place, io.BytesIO):
            return original(*args, **kwargs)
        saves()
        try:
            return original(*args, **kwargs)
        finally:
            saved()

    setattr(owner, name, save)


def _process_group(module: Any) -> None:
    def joins(*args: Any, **kwargs: Any) -> None:
        if is_launched():
            training.opened()

    _wrap(module, "init_process_group", joins, lambda *a, **k: training.opened())


def _data_loader(module: Any) -> None:
    """Wrap the fetch of a batch; in steps that are only counted it is left alone."""
    torch = sys.modules["torch"]  # still being imported
    owner = module._BaseDataLoaderIter
    original, grad = owner.__next__, torch.is_grad_enabled
    fetches, fetched = training.guarded(training.fetches), training.guarded(training.fetched)

    @functools.wraps(original)
    def fetch(self: Any) -> Any:
        if training.counts_only and grad():
            return original(self)
        fetches(grad=grad())
        batch = None
        try:
            batch = original(self)
        finally:
            fetched(ended=batch is None)
        return batch

    owner.__next__ = fetch


def _distributed_checkpoint(module: Any) -> None:
    for name in ("save", "async_save"):
        _checkpoints(module, name, lambda args, kwargs: None)


def _safetensors(module: Any) -> None:
    for name in ("save_file", "save_model"):
        _checkpoints(module, name, lambda args, kwargs: None)


def _dynamo(module: Any) -> None:
    """Have the compiler call the observer, and neither compile nor inline it."""
    for name in ("gonogo.observer", "gonogo.trainer"):
        module.add(name)


HOOKS: dict[str, Callable[[Any], None]] = {
    "torch": _torch,
    "torch.distributed.distributed_c10d": _process_group,
    "torch.utils.data.dataloader": _data_loader,
    "torch.distributed.checkpoint.state_dict_saver": _distributed_checkpoint,
    "torch._dynamo.trace_rules": _dynamo,
    "safetensors.torch": _safetensors,
    **dict.fromkeys(TRACKERS, lambda module: listen(module, training)),
}
"""Name of a module → what wraps its functions."""
