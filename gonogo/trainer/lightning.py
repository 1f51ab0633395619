"""Heartbeats of a lightning.Trainer, by a callback.

    trainer = Trainer(max_steps=1000, callbacks=[GonogoCallback()])

It saves into the run directory when the order requires it and stops at the ordered number of steps.
On a halt it saves and exits with code 3. Outside gonogo it does nothing. A step is a batch after
which an optimizer has stepped; Lightning's `max_steps` counts the steps of each optimizer.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from lightning.pytorch.callbacks import Callback

from gonogo.trainer.callback import CallbackBeat, Ordered, largest_rate

CHECKPOINT = "lightning.ckpt"
_STEP = "gonogo_step"


class GonogoCallback(Ordered, Callback):
    """Heartbeats of a lightning.Trainer.

    Args:
        config: the whole configuration of the run, for its digest.
        identity: what runs and cannot be counted, such as `dim` or `dataset`.
        count_tokens: returns the tokens of a batch on this rank.
        val_loss: name of the module's validation loss.
    """

    def __init__(
        self,
        config: Mapping[str, Any] | None = None,
        identity: Mapping[str, Any] | None = None,
        *,
        count_tokens: Callable[[Any], int] | None = None,
        val_loss: str = "val_loss",
    ) -> None:
        self._beat = CallbackBeat(config, identity)
        self._count_tokens = count_tokens or _count_input_ids
        self._val_loss = val_loss
        self._begun = False
        self._global_step = 0
        self._restored: int | None = None
        self._backed: list[Any] = []
        self._losses: list[Any] = []
        self._tokens: int | None = None
        self._claimed: set[str] = set()
        self._loss_before: Any = None
        """The validation loss before an evaluation."""

    @property
    def resume_from(self) -> Path | None:
        """The checkpoint that the order names, for `fit(ckpt_path=…)`."""
        folder = super().resume_from
        return None if folder is None else folder / CHECKPOINT

    def on_load_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        """Resume after the step of the checkpoint."""
        self._restored = checkpoint.get(_STEP)

    def on_sanity_check_start(self, trainer: Any, pl_module: Any) -> None:
        """Boot before the first look at validation data."""
        self._begin(trainer, pl_module)

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Boot, and wait for `.GO`."""
        self._begin(trainer, pl_module)
        self._beat.beat.enter("data")

    def on_train_batch_start(
        self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int
    ) -> None:
        """Begin to compute a batch."""
        self._claim(trainer)
        self._beat.beat.enter("forward")

    def on_before_backward(self, trainer: Any, pl_module: Any, loss: Any) -> None:
        """The backward pass begins."""
        if not pl_module.automatic_optimization:
            self._backed.append(loss.detach())
        self._beat.beat.enter("backward")

    def on_after_backward(self, trainer: Any, pl_module: Any) -> None:
        """The optimizer is about to step."""
        self._beat.beat.enter("optimizer")

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """End the step, if the optimizer has stepped."""
        if not self._beat.beat.writes:
            return
        self._add(outputs, batch, _parts(trainer, pl_module))
        if trainer.global_step == self._global_step:
            self._beat.beat.enter("data")
            return
        self._global_step = trainer.global_step
        losses, tokens = self._losses, self._tokens
        self._losses, self._tokens = [], None
        loss = sum(map(float, losses)) / len(losses) if losses else None
        rate = largest_rate(*trainer.optimizers)
        follows = self._beat.end_step(loss, tokens, lr=rate, **_scaled(trainer))
        if follows.save:
            self._save(trainer)
        if follows.halt:
            self._beat.end()  # ends the process
        trainer.should_stop = trainer.should_stop or follows.stop
        self._beat.beat.enter("checkpoint" if follows.stop else "data")

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        """An evaluation begins."""
        self._claim(trainer)
        self._loss_before = trainer.callback_metrics.get(self._val_loss)
        self._beat.beat.enter("eval")

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        """Report an evaluation that logged a loss."""
        loss = trainer.callback_metrics.get(self._val_loss)
        if loss is not None and loss is not self._loss_before and not trainer.sanity_checking:
            told = trainer.callback_metrics.items()
            own = {name: n for name, n in told if name.startswith("val") and n is not loss}
            self._beat.evaluated(loss, own)
        self._beat.beat.enter("data")

    def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        """A checkpoint is about to be written."""
        if self._beat.beat.writes:
            checkpoint[_STEP] = self._beat.beat.ended
        self._beat.beat.enter("checkpoint")

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """The last checkpoint may follow."""
        self._beat.beat.enter("checkpoint")

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
        """Write `done`."""
        self._claim(trainer)
        self._beat.end()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Write the error."""
        self._beat.end(exception)

    def _begin(self, trainer: Any, pl_module: Any) -> None:
        if self._begun:
            return
        self._begun, self._global_step = True, trainer.global_step
        self._claimed = _written(trainer)
        self._beat.begin(
            pl_module if trainer.model is None else trainer.model,  # the wrapper knows of shards
            rank=trainer.global_rank,
            world_size=trainer.world_size,
            step=trainer.global_step if self._restored is None else self._restored,
            last_step=trainer.max_steps if trainer.max_steps > 0 else None,
        )

    def _add(self, outputs: Any, batch: Any, parts: int) -> None:
        """Add loss and tokens of a batch."""
        loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
        backed, self._backed = self._backed, []
        if loss is not None:
            self._losses.append(loss.detach() * parts)
        elif backed:
            self._losses.append(sum(backed))
        tokens = self._count_tokens(batch)
        if tokens is not None:
            self._tokens = (self._tokens or 0) + tokens

    def _save(self, trainer: Any) -> None:
        """Save into the run directory, on every rank together."""
        folder = self._beat.save_path()
        if folder is not None:
            self._beat.beat.enter("checkpoint")
            trainer.save_checkpoint(folder / CHECKPOINT)
            self._beat.saved(folder)

    def _claim(self, trainer: Any) -> None:
        """Report the checkpoints of ModelCheckpoint since the last call."""
        for path in sorted(_written(trainer) - self._claimed):
            self._claimed.add(path)
            self._beat.beat.checkpoint(path)


def _parts(trainer: Any, module: Any) -> int:
    """Return the divisor of a batch's loss: the batches that a step accumulates."""
    return int(trainer.accumulate_grad_batches) if module.automatic_optimization else 1


def _scaled(trainer: Any) -> dict[str, float]:
    """Return the loss scale, if there is one."""
    scaler = getattr(trainer.precision_plugin, "scaler", None)
    return {} if scaler is None else {"loss_scale": scaler.get_scale()}


def _written(trainer: Any) -> set[str]:
    """Return the checkpoints of the trainer's own callbacks."""
    found = set()
    for callback in trainer.checkpoint_callbacks:
        found |= {getattr(callback, name, "") for name in ("best_model_path", "last_model_path")}
        found |= set(getattr(callback, "best_k_models", ()))
    return {str(path) for path in found if path}


def _count_input_ids(batch: Any) -> int | None:
    """Return the tokens of a batch that has `input_ids`."""
    ids = batch.get("input_ids") if isinstance(batch, Mapping) else None
    return None if ids is None else int(ids.numel())
