"""Numbers of a program: read without waiting for a device, and kept until they are written.

A number on a CUDA device is copied into pinned memory by the current stream, and read when the
event behind the copy has passed, usually one step later.
"""

import sys
from numbers import Real
from threading import Lock
from typing import Any, Protocol

from gonogo.trainer.encoding import MOST_NAMES, fits


class Scalar(Protocol):
    """A number that may still be on its way."""

    def value(self, *, wait: bool = False) -> float | None:
        """Return the number; None while it is not there yet."""


class _OnDevice:
    """A copy that a CUDA stream makes into pinned memory."""

    __slots__ = ("_buffer", "_event")

    def __init__(self, torch: Any, tensor: Any) -> None:
        self._buffer = torch.empty((), dtype=torch.float32, pin_memory=True)
        self._buffer.copy_(tensor.detach().reshape(()), non_blocking=True)
        self._event = torch.cuda.Event()
        self._event.record()

    def value(self, *, wait: bool = False) -> float | None:
        if wait:
            self._event.synchronize()
        return float(self._buffer) if wait or self._event.query() else None


class Sum:
    """A number, or the sum of several, each read when it is there."""

    __slots__ = ("total", "waiting")

    def __init__(self, total: float = 0.0, *waiting: Scalar) -> None:
        self.total, self.waiting = total, list(waiting)

    def __add__(self, other: "Sum") -> "Sum":
        return Sum(self.total + other.total, *self.waiting, *other.waiting)

    def settle(self, *, wait: bool = False) -> bool:
        """Read the numbers that are there; say whether none is missing."""
        while self.waiting:
            number = self.waiting[0].value(wait=wait)
            if number is None:
                return False
            self.total += number
            self.waiting.pop(0)
        return True


def read(tensor: Any) -> Sum | None:
    """Return the number of a tensor of one element; None if it cannot be read."""
    if isinstance(tensor, int | float):
        return Sum(float(tensor))
    kind = tensor.device.type
    if kind == "cpu":
        return Sum(float(tensor.detach()))
    torch = sys.modules["torch"]
    if kind != "cuda" or torch.cuda.is_current_stream_capturing():
        return None
    return Sum(0.0, _OnDevice(torch, tensor))


class OwnNumbers:
    """Numbers by step and name; used by the program's threads and by the writer's."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._by_step: dict[int, dict[str, Sum]] = {}
        self._names: set[str] = set()
        self._has_warned = False

    def note(self, step: int, numbers: dict[str, Sum]) -> None:
        """Note numbers of a step; of several with one name the last one counts.

        The first `MOST_NAMES` names of a process are recorded.
        """
        with self._lock:
            for name, number in numbers.items():
                if name in self._names or len(self._names) < MOST_NAMES:
                    self._names.add(name)
                    self._by_step.setdefault(step, {})[name] = number
                elif not self._has_warned:
                    self._has_warned = True
                    sys.stderr.write(
                        f"gonogo: only the first {MOST_NAMES} names of logged scalars are"
                        f" recorded, and not {name!r}\n"
                    )

    def take(self, *, wait: bool = False) -> list[tuple[int, dict[str, float]]]:
        """Return the numbers of each step, except those of steps that a device still copies.

        Args:
            wait: also wait for such copies.
        """
        found = []
        with self._lock:
            for step, numbers in list(self._by_step.items()):
                if all([row.settle(wait=wait) for row in numbers.values()]):
                    del self._by_step[step]
                    found.append((step, {name: row.total for name, row in numbers.items()}))
        return found


def numbers_in(data: dict[Any, Any], before: str = "") -> dict[str, Sum]:
    """Return the real numbers of a nested dict by name: `{"a": {"b": 1}}` gives `a/b`.

    Words, pictures, truth values, arrays and tensors of several elements are left out.
    """
    found: dict[str, Sum] = {}
    for key, value in data.items():
        name = f"{before}{key}"
        if isinstance(value, dict):
            found |= numbers_in(value, f"{name}/")
        elif fits(name) and (number := _number(value)) is not None:
            found[name] = number
    return found


def _number(value: Any) -> Sum | None:
    """Return a real number; None for anything else. No device is waited for."""
    try:
        if isinstance(value, bool):
            return None
        if isinstance(value, Real):  # NumPy's scalars, too
            return Sum(float(value))
        if not hasattr(value, "detach") or type(value).__name__ == "DTensor":
            return None
        return None if value.numel() != 1 or value.is_complex() else read(value)
    except Exception:  # noqa: BLE001 - what cannot be read is no number
        return None


OWN = OwnNumbers()
"""Those of this process."""
