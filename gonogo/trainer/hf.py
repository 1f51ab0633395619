"""Heartbeats of a transformers.Trainer, by a callback.

    trainer = Trainer(model=model, args=args, train_dataset=data, callbacks=[GonogoCallback()])

It saves when the order requires it and stops at the ordered number of steps. On a halt it saves and
exits with code 3. Outside gonogo it does nothing. The watcher verifies checkpoints if `output_dir`
is the run directory's `checkpoints`.
"""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from gonogo.trainer.callback import CallbackBeat, Next, Ordered, largest_rate

_OF_SPEED = frozenset(
    (
        *("runtime", "samples_per_second", "steps_per_second", "epoch"),
        *("jit_compilation_time", "model_preparation_time"),
    )
)
_LOSS_UNKNOWN = (
    "gonogo: this Trainer trains by another loss than its model's (label_smoothing_factor,"
    " compute_loss_func, its own compute_loss). gonogo reads that loss from the log only: set"
    " logging_steps=1 to log every step, else the verdict is INCONCLUSIVE"
)


class GonogoCallback(Ordered, TrainerCallback):
    """Heartbeats of a transformers.Trainer.

    Args:
        config: the whole configuration of the run, for its digest.
        identity: what runs and cannot be counted, such as `dim` or `dataset`.
    """

    def __init__(
        self, config: Mapping[str, Any] | None = None, identity: Mapping[str, Any] | None = None
    ) -> None:
        self._beat = CallbackBeat(config, identity)
        self._step = _StepSoFar()
        self._computing = False
        """Whether a forward pass now belongs to the training."""
        self._ending: dict[str, Any] | None = None
        """Numbers of a step that has ended and waits for the Trainer's log."""
        self._warned = False
        """Whether a step ended without a known loss."""
        self._hooks: list[Any] = []

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Boot, and wait for `.GO`."""
        model = kwargs["model"]
        self._beat.begin(
            model,
            rank=args.process_index,
            world_size=args.world_size,
            step=state.global_step,
            last_step=state.max_steps,
        )
        self._unhook()  # it may begin again with smaller batches
        self._step, self._ending, self._computing = _StepSoFar(), None, False
        if self._beat.beat.writes:
            self._hooks = [
                model.register_forward_pre_hook(_untraced(self._before_forward), with_kwargs=True),
                model.register_forward_hook(_untraced(self._after_forward), with_kwargs=True),
            ]
            self._beat.beat.enter("data")

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Begin to compute a step."""
        self._end_step(args, control, {})
        self._step, self._computing = _StepSoFar(), True
        self._beat.beat.enter("forward")

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """The optimizer is about to step."""
        self._computing = False
        self._beat.beat.enter("optimizer")
        self._step.lr = largest_rate(kwargs["optimizer"])

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        """End the step, now or with what the Trainer is about to log."""
        if not self._beat.beat.writes:
            return control
        skipped = getattr(kwargs.get("optimizer"), "step_was_skipped", False)
        self._ending = {"lr": self._step.lr} | ({"skipped": True} if skipped else {})
        if control.should_log:
            self._beat.beat.enter("log")
            return control
        return self._end_step(args, control, {})

    def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        """End the step with the Trainer's numbers."""
        return self._end_step(args, control, kwargs.get("logs") or {})

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Enter the section after the epoch."""
        self._go_on(control)

    def on_prediction_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """An evaluation runs."""
        self._beat.beat.enter("eval")

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """An evaluation is over."""
        told = {name.removeprefix("eval_"): n for name, n in (kwargs.get("metrics") or {}).items()}
        loss = told.pop("loss", None)
        if loss is not None:
            own = {name: n for name, n in told.items() if name not in _OF_SPEED}
            self._beat.evaluated(loss, own)
        self._go_on(control)

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """A checkpoint was written."""
        self._beat.saved(Path(args.output_dir) / f"checkpoint-{state.global_step}")
        self._go_on(control)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Write how it ended; after a halt exit with code 3."""
        self._unhook()
        self._end_step(args, control, {})
        self._beat.end()

    def _unhook(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    def _before_forward(self, module: Any, args: Any, kwargs: Mapping[str, Any]) -> None:
        if self._computing:
            self._beat.beat.enter("forward")
            self._step.count(kwargs.get("input_ids"))

    def _after_forward(
        self, module: Any, args: Any, kwargs: Mapping[str, Any], output: Any
    ) -> None:
        if self._computing:
            if "labels" in kwargs:
                of_all = kwargs.get("num_items_in_batch") is not None
                self._step.add(output, of_all=of_all)
            self._beat.beat.enter("backward")

    def _end_step(self, args: Any, control: Any, logs: Mapping[str, Any]) -> Any:
        """End the step that waits, if there is one."""
        if self._ending is None:
            return control
        numbers, self._ending = self._ending, None
        if "grad_norm" in logs:
            numbers["grad_norm"] = logs["grad_norm"]
        spread = args.world_size if getattr(args, "average_tokens_across_devices", False) else 1
        loss = self._step.loss(spread)
        loss = logs.get("loss") if loss is None else loss
        if loss is None and not self._warned:
            self._warned = True
            print(_LOSS_UNKNOWN, file=sys.stderr)
        follows = self._beat.end_step(loss, self._step.tokens, **numbers)
        _obey(follows, control)
        self._go_on(control)
        return control

    def _go_on(self, control: Any) -> None:
        """Enter the section that follows."""
        if control.should_evaluate:
            self._beat.beat.enter("eval")
        elif control.should_save or control.should_training_stop:
            self._beat.beat.enter("checkpoint")
        else:
            self._beat.beat.enter("data")


class _StepSoFar:
    """What the forward passes of one step have reported."""

    def __init__(self) -> None:
        self.tokens: int | None = None
        self.lr: float | None = None
        self._trained: list[Any] = []
        """Losses from which gradients were computed."""
        self._are_shares = False

    def count(self, input_ids: Any) -> None:
        """Count the tokens of a batch."""
        if input_ids is not None:
            self.tokens = (self.tokens or 0) + int(input_ids.numel())

    def add(self, output: Any, *, of_all: bool) -> None:
        """Take the loss of a batch; with `of_all` the losses of a step add up."""
        loss = output.get("loss") if isinstance(output, Mapping) else output[0]
        if loss is not None and loss.requires_grad:
            told = loss.detach()
            loss.register_hook(lambda gradient: self._trained.append(told))
            self._are_shares = of_all

    def loss(self, spread: int) -> float | None:
        """Return the step's loss as the Trainer counts it; None if it is not the model's."""
        if not self._trained:
            return None
        total = sum(float(loss.mean()) for loss in self._trained)
        return total * spread if self._are_shares else total / len(self._trained)


def _obey(follows: Next, control: Any) -> None:
    """Make the Trainer follow the order."""
    if follows.halt:
        control.should_evaluate, control.should_save = False, follows.save
        control.should_training_stop = True
    else:
        control.should_save = control.should_save or follows.save
        control.should_training_stop = control.should_training_stop or follows.stop


def _untraced(function: Any) -> Any:
    """Return a hook that torch.compile keeps out of its graph."""
    return sys.modules["torch"].compiler.disable(function)
