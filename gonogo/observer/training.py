"""Turn what torch is asked to do into steps: one step of the primary optimizer is a step.

The primary optimizer has the most parameters. A step counts if a backward pass has run since the
last one, so closures and calls of `super().step()` count once. If another optimizer takes over
(folds, stages), it becomes the primary one. The loss is the sum of the roots of the step's backward
passes. The first error of a hook ends the observation, not the program.
"""

import functools
import os
import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any

from gonogo.observer.own_numbers import OWN, Sum, numbers_in, read
from gonogo.observer.rank import ObservedRank, announce, is_in_group, open_rank

_MANY, _TIMES = 10, 4
"""Steps of another optimizer after which it is the primary one, and so many times as many as there
ever were between two primary steps."""
_PAUSES = ("eval", "checkpoint")


class _Calls(threading.local):
    """Calls of trackers within each other in one thread, and the section before them."""

    depth = 0
    has_moved = False
    before: str | None = None


class Training:
    """What one process has trained so far; a forked child trains nothing."""

    def __init__(self) -> None:
        self.rank: ObservedRank | None = None
        self.is_over = False
        """Whether nothing is observed any more."""
        self._is_open = False
        self._optimizers: weakref.WeakSet[Any] = weakref.WeakSet()
        self._is_observable = False
        """Whether an optimizer was made."""
        self._has_ended = False
        self._primary: Callable[[], Any] = lambda: None
        self._parameters: frozenset[int] = frozenset()
        """The ids of the primary optimizer's parameters."""
        self._kept: list[tuple[Sum | None, Sum | None]] = []
        """Loss and gradient norm of the steps of other optimizers since the primary one's last."""
        self._most = 0
        """The most of them between two steps of the primary one."""
        self._booted = self._began = False
        self._depth = 0
        """Depth of nested backward passes."""
        self._passes = 0
        self._counted_pass = self._kept_pass = -1
        """The backward passes of the last counted step and the last kept one."""
        self._posts = self._posted_in_backward = self._posts_before = 0
        """Steps of all optimizers; those in this backward pass; those before a scaler's step."""
        self._loss: Sum | None = None
        self._norm: Sum | None = None
        self._loss_is_known = True
        self._scaled: tuple[Callable[[], Any], Any] | None = None
        """The last output of a gradient scaler, and the loss that it was made of."""
        self._saving = 0
        """Calls that write a checkpoint, within each other."""
        self._saved_from: str | None = None
        self._evaluated: Callable[[], Any] = lambda: None
        """The module that was put into evaluation mode."""
        self._trains_in_eval = False
        """Whether the program trains modules in evaluation mode (frozen statistics, no dropout)."""
        self._calls = _Calls()
        os.register_at_fork(after_in_child=self._forget)

    def guarded(self, report: Callable[..., None]) -> Callable[..., None]:
        """Return a call whose first error ends the observation."""

        @functools.wraps(report)
        def call(*args: Any, **kwargs: Any) -> None:
            if not self.is_over:
                try:
                    report(*args, **kwargs)
                except Exception as error:  # noqa: BLE001 - the program must continue
                    self.fail(error)

        return call

    def fail(self, error: BaseException) -> None:
        """End the observation because of an error of the observer."""
        if self.is_over:
            return
        self.is_over = True
        sys.stderr.write(f"gonogo: the program is not observed any more: {error!r}\n")
        rank, self.rank = self.rank, None
        try:
            if rank is not None and rank.is_ours:
                rank.give_up(error)
        except Exception as again:  # noqa: BLE001 - as above
            sys.stderr.write(f"gonogo: {again!r}\n")

    def leaves(self, code: int) -> None:
        """Write what was noted: the process ends at once (`os._exit`), as forked children do."""
        if self.rank is not None and self.rank.is_ours:
            self.rank.leave(code)

    def _forget(self) -> None:
        if self.rank is not None:
            self.rank, self.is_over = None, True

    def opened(self) -> ObservedRank | None:
        """Return the rank that this process writes for; None where it writes for none."""
        rank = self.rank
        if rank is not None:
            if rank.is_ours:
                return rank
            self.rank, self.is_over = None, True  # the script attached itself
        if self._is_open or self.is_over or _is_loader_worker():
            return None
        if not (self._is_observable or is_in_group()):
            return None
        self._is_open = True
        self.rank = open_rank()
        self.is_over = self.rank is None
        if self.rank is not None and self._optimizers:
            self._choose(max(self._optimizers, key=_size))
        return self.rank

    def enter(self, section: str) -> None:
        """Move to a section, unless the rank pauses."""
        rank = self.opened()
        if rank is not None and rank.section not in _PAUSES:
            rank.enter(section)

    def fetches(self, *, grad: bool) -> None:
        """Note that a batch is fetched.

        Args:
            grad: whether gradients are recorded; an evaluation usually records none.
        """
        rank = self.opened()
        if rank is None:
            return
        if rank.section == "eval" and grad and self._trains_again():
            rank.enter(None)
        self.enter("data" if grad or not self._booted else "eval")

    def fetched(self, *, ended: bool) -> None:
        """Note that a batch has come, or that there is none left."""
        rank = self.rank
        if rank is not None and rank.section == "data":
            rank.enter(None if ended or not self._booted else "forward")

    def saves(self) -> None:
        """Note that a checkpoint is being written; one call may make others."""
        self._saving += 1
        rank = self.rank
        if self._saving == 1 and rank is not None:
            self._saved_from = rank.section
            rank.enter("checkpoint")

    def saved(self) -> None:
        """Note that a checkpoint is written."""
        self._saving -= 1
        rank = self.rank
        if self._saving == 0 and rank is not None and rank.section == "checkpoint":
            trains = self._saved_from == "eval" and self._trains_again()
            rank.enter(None if trains else self._saved_from)

    def evaluates(self, module: Any) -> None:
        """Note that a module is put into evaluation mode; only the trained one counts."""
        rank = self.rank
        if rank is None or not self._booted or self._depth or rank.section in _PAUSES:
            return
        if self._trains_in_eval:
            return
        first = next(iter(module.parameters()), None)
        if id(first) in self._parameters:
            self._evaluated = weakref.ref(module)
            rank.enter("eval")

    def _trains_again(self) -> bool:
        """Whether the module that was evaluated is in training mode again."""
        return bool(getattr(self._evaluated(), "training", False))

    def began_backward(self, tensors: Any) -> None:
        """Note a backward pass and its root."""
        self._depth += 1
        if self._depth > 1:
            return
        self._passes += 1
        rank = self.opened()
        if rank is None:
            return
        if rank.section == "eval":
            self._trains_in_eval = not self._trains_again()
            rank.enter(None)
        root = tensors[0] if isinstance(tensors, list | tuple) and tensors else tensors
        if root.numel() == 1:
            self._add_loss(root if self._scaled is None else self._unscaled(root))
        if rank.section != "checkpoint":
            rank.enter("backward")

    def ended_backward(self) -> None:
        """Note the end of a backward pass; optimizers may have stepped within it."""
        self._depth = max(0, self._depth - 1)
        if self._depth:
            return
        if self._posted_in_backward:
            self._posted_in_backward = 0
            self._count()

    def differentiated(self) -> None:
        """Note gradients that were computed without a root (`torch.autograd.grad`)."""
        self._passes += 1

    def scaled(self, output: Any, given: Any) -> None:
        """Note what a gradient scaler made of a loss."""
        if getattr(output, "numel", lambda: 0)() == 1:
            self._scaled = (weakref.ref(output), given.detach())

    def _unscaled(self, root: Any) -> Any:
        """Return the loss of which a gradient scaler made this root; None: nobody knows it."""
        output, given = self._scaled or (lambda: None, None)
        self._scaled = None
        return given if output() is root else None

    def _add_loss(self, root: Any) -> None:
        number = None if root is None else read(root)
        self._loss_is_known = self._loss_is_known and number is not None
        self._loss = _added(self._loss, number)

    def clipped(self, norm: Any) -> None:
        """Note the norm of the gradients that a clipping function returns."""
        if type(norm).__name__ != "DTensor" and (number := read(norm)) is not None:
            self._norm = number

    def logs(self, data: dict[Any, Any]) -> None:
        """Note what a tracker is given, and enter section log; a call within another is none."""
        rank, calls = self.rank, self._calls
        calls.depth += 1
        if calls.depth > 1 or (rank is not None and not rank.is_ours):
            return
        OWN.note(0 if rank is None else rank.logged_step, numbers_in(data))
        if rank is not None and rank.may_log:
            calls.has_moved, calls.before = True, rank.section
            rank.enter("log")

    def logged(self) -> None:
        """Note that a tracker's call has returned."""
        rank, calls = self.rank, self._calls
        calls.depth -= 1
        if not calls.depth and calls.has_moved:
            calls.has_moved = False
            if rank is not None and rank.section == "log":
                rank.enter(calls.before)

    def made(self, optimizer: Any) -> None:
        """Note an optimizer that was constructed."""
        self._optimizers.add(optimizer)
        if not self._is_observable and not _is_loader_worker():
            self._is_observable = True
            announce()

    def begins_step(self, optimizer: Any) -> None:
        """Note that an optimizer begins its step."""
        self._is_observable = True
        if not self._began and self.opened() is not None:
            self._begin(optimizer)

    def stepped(self, optimizer: Any) -> None:
        """Count a step of an optimizer."""
        self._posts += 1
        rank = self.opened()
        if rank is None:
            return
        self._begin(optimizer)
        if self._primary() is not optimizer:
            self._keep(optimizer)
        elif self._depth:
            self._posted_in_backward += 1
        else:
            self._count(getattr(optimizer, "found_inf", None))

    def scaler_begins(self) -> None:
        """Note that a gradient scaler is asked to step an optimizer."""
        self._posts_before = self._posts

    def scaler_ended(self, optimizer: Any) -> None:
        """Count an update that the gradient scaler left out."""
        left_out = self._posts == self._posts_before
        if left_out and self._primary() is optimizer and self.opened() is not None:
            self._count(1.0)

    def _begin(self, optimizer: Any) -> None:
        """Choose the primary optimizer at the first step of any, when all are complete."""
        if self._began:
            return
        self._began = True
        self._optimizers.add(optimizer)
        largest = max(self._optimizers, key=_size)
        self._choose(optimizer if _size(largest) == _size(optimizer) else largest)

    def _choose(self, primary: Any) -> None:
        """Make an optimizer the primary one, and report what runs unless a step has ended."""
        rank = self.rank
        assert rank is not None
        self._primary = weakref.ref(primary)
        self._parameters = frozenset(map(id, _parameters(primary)))
        self._booted = True
        if not self._has_ended:
            rank.boot(primary, _steps_made(primary))

    def _keep(self, optimizer: Any) -> None:
        """Keep a step of an optimizer that is not the primary one; this one may follow it."""
        if self._depth or self._passes in (self._counted_pass, self._kept_pass):
            return
        self._kept_pass = self._passes or -1
        self._kept.append((self._known_loss(), self._norm))
        self._loss, self._loss_is_known, self._norm = None, True, None
        enough = 1 if self._primary() is None else max(_MANY, _TIMES * self._most)
        if len(self._kept) >= enough:
            kept, self._kept, self._most = self._kept, [], 0
            self._choose(optimizer)
            for self._loss, self._norm in kept:
                self._note(optimizer)
            self._counted_pass = self._kept_pass

    def _known_loss(self) -> Sum | None:
        return self._loss if self._loss_is_known else None

    def _count(self, skipped: Any = None) -> None:
        """Count a step of the primary optimizer.

        Args:
            skipped: a number or a tensor; not 0 if the update was left out. None: it was not.
        """
        primary = self._primary()
        if self.rank is None or primary is None or self._passes == self._counted_pass:
            return
        self._counted_pass = self._passes or -1
        self._most = max(self._most, len(self._kept))
        for loss, norm in self._kept:
            self._loss_is_known = self._loss_is_known and loss is not None
            self._loss = _added(self._loss, loss)
            self._norm = norm if self._norm is None else self._norm
        self._kept = []
        self._note(primary, skipped)

    def _note(self, primary: Any, skipped: Any = None) -> None:
        rank = self.rank
        assert rank is not None
        rate = primary.param_groups[0].get("lr")
        rank.note_step(
            {
                "loss": self._known_loss(),
                "grad_norm": self._norm,
                "lr": float(rate) if isinstance(rate, int | float) else None,
                "skipped": False if skipped is None else read(skipped),
            }
        )
        self._has_ended = True
        self._loss = self._norm = None
        self._loss_is_known = True


def _parameters(optimizer: Any) -> list[Any]:
    return [row for group in optimizer.param_groups for row in group["params"]]


def _size(optimizer: Any) -> int:
    return sum(int(row.numel()) for row in _parameters(optimizer))


def _added(one: Sum | None, other: Sum | None) -> Sum | None:
    """Return the sum of two numbers, of which each may be missing."""
    return other if one is None else one if other is None else one + other


def _steps_made(optimizer: Any) -> int:
    """Return the steps that an optimizer was loaded with; 0 where its state does not hold them."""
    for state in optimizer.state.values():
        step = state.get("step") if isinstance(state, dict) else None
        if step is not None:
            return int(step)
    return 0


def _is_loader_worker() -> bool:
    data = sys.modules.get("torch.utils.data")
    return data is not None and data.get_worker_info() is not None
