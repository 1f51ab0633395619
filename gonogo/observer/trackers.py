"""Note what a program logs to TensorBoard, wandb, MLflow or trackio, and how long that takes.

A scalar becomes the metric `user/<name>` of the step that is open. If the open step has computed
nothing yet, the scalar belongs to the step that ended last; before the first step to step 0. A
tracker that calls another one, as Accelerate's do, counts once. During a call of the thread that
trains, the rank is in section `log`, so a tracker that blocks is named.
"""

import functools
import threading
from collections.abc import Callable
from typing import Any

from gonogo.observer.own_numbers import OWN, numbers_in
from gonogo.observer.training import Training

Read = Callable[..., dict[str, Any]]
"""Returns what a call logs, of its arguments."""
_inside = threading.local()


def _add_scalar(_: Any, tag: Any, scalar_value: Any = None, *a: Any, **k: Any) -> dict[str, Any]:
    return {str(tag): scalar_value}


def _add_scalars(
    _: Any, main_tag: Any, tag_scalar_dict: Any = None, *a: Any, **k: Any
) -> dict[str, Any]:
    return {str(main_tag): tag_scalar_dict}


def _data(_: Any, data: Any = None, *a: Any, metrics: Any = None, **k: Any) -> dict[str, Any]:
    found = data if metrics is None else metrics
    return found if isinstance(found, dict) else {}


def _log_metric(key: Any, value: Any = None, *a: Any, **k: Any) -> dict[str, Any]:
    return {str(key): value}


def _log_metrics(metrics: Any, *a: Any, **k: Any) -> dict[str, Any]:
    return metrics if isinstance(metrics, dict) else {}


def _client_metric(
    _: Any, run_id: Any, key: Any = None, value: Any = None, *a: Any, **k: Any
) -> dict[str, Any]:
    return {str(key): value}


def _client_batch(
    _: Any, run_id: Any = None, metrics: Any = (), *a: Any, **k: Any
) -> dict[str, Any]:
    return {str(row.key): row.value for row in metrics}


TRACKERS: dict[str, tuple[tuple[str | None, str, Read], ...]] = {
    "torch.utils.tensorboard.writer": (
        ("SummaryWriter", "add_scalar", _add_scalar),
        ("SummaryWriter", "add_scalars", _add_scalars),
    ),
    "tensorboardX.writer": (
        ("SummaryWriter", "add_scalar", _add_scalar),
        ("SummaryWriter", "add_scalars", _add_scalars),
    ),
    "wandb.sdk.wandb_run": (("Run", "log", _data),),
    "trackio.run": (("Run", "log", _data),),
    "mlflow.tracking.fluent": (
        (None, "log_metric", _log_metric),
        (None, "log_metrics", _log_metrics),
    ),
    "mlflow.tracking.client": (
        ("MlflowClient", "log_metric", _client_metric),
        ("MlflowClient", "log_batch", _client_batch),
    ),
}
"""Module → class (None: the module itself), function, and what its calls log."""


def listen(module: Any, training: Training) -> None:
    """Wrap the functions of a tracker's module that log scalars."""
    for name, function, read in TRACKERS[module.__name__]:
        owner = module if name is None else getattr(module, name, None)
        if hasattr(owner, function):
            _wrap(owner, function, read, training)


def _wrap(owner: Any, name: str, read: Read, training: Training) -> None:
    original = getattr(owner, name)
    note = training.guarded(functools.partial(_note, training, read))

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        if training.is_over or getattr(_inside, "call", False):
            return original(*args, **kwargs)
        _inside.call = True
        before: list[str | None] = []
        try:
            note(args, kwargs, before)
            return original(*args, **kwargs)
        finally:
            _inside.call = False
            if before:
                leave(before[0])

    @training.guarded
    def leave(section: str | None) -> None:
        rank = training.rank
        if rank is not None and rank.section == "log":
            rank.enter(section)

    setattr(owner, name, call)


def _note(
    training: Training,
    read: Read,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    before: list[str | None],
) -> None:
    """Note what a call logs, and move the rank to section `log`.

    Args:
        training: of this process.
        read: what the call logs.
        args: of the call.
        kwargs: of the call.
        before: receives the section to return to, if the rank has moved.
    """
    rank = training.rank
    if rank is not None and not rank.is_ours:
        return
    try:
        data = read(*args, **kwargs)
    except TypeError:  # arguments that the tracker will refuse, too
        return
    OWN.note(0 if rank is None else rank.logged_step, numbers_in(data))
    if rank is not None and rank.may_log:
        before.append(rank.section)
        rank.enter("log")
