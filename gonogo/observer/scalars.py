"""Read a tensor's number without making the program wait for its device.

A number on the CPU is read at once. A number on a CUDA device is copied into pinned memory by the
current stream, and read when the event behind the copy has passed, usually one step later.
"""

import sys
from typing import Any, ClassVar, Protocol


class Scalar(Protocol):
    """A number that may still be on its way."""

    def value(self, *, wait: bool = False) -> float | None:
        """Return the number; None while it is not there yet."""


class _OnDevice:
    """A copy that a CUDA stream makes into pinned memory."""

    __slots__ = ("_buffer", "_event")
    _free: ClassVar[list[Any]] = []
    """Pinned buffers whose numbers have been read."""

    def __init__(self, torch: Any, tensor: Any) -> None:
        free = _OnDevice._free
        self._buffer = free.pop() if free else torch.empty((), dtype=torch.float32, pin_memory=True)
        self._buffer.copy_(tensor.detach().reshape(()), non_blocking=True)
        self._event = torch.cuda.Event()
        self._event.record()

    def value(self, *, wait: bool = False) -> float | None:
        if wait:
            self._event.synchronize()
        elif not self._event.query():
            return None
        number = float(self._buffer)
        self._free.append(self._buffer)
        return number


def read(tensor: Any) -> float | Scalar | None:
    """Return the number of a tensor of one element, or a promise of it; None if it is unknown."""
    if isinstance(tensor, int | float):
        return float(tensor)
    kind = tensor.device.type
    if kind == "cpu":
        return float(tensor.detach())
    if kind != "cuda":
        return None
    torch = sys.modules["torch"]
    return None if torch.cuda.is_current_stream_capturing() else _OnDevice(torch, tensor)


class Sum:
    """The sum of the numbers of one step, each read when it is there."""

    __slots__ = ("_known", "_told", "_waiting")

    def __init__(self, first: float | Scalar | None = None) -> None:
        self._known, self._told = 0.0, False
        self._waiting: list[Scalar] = []
        if first is not None:
            self.add(first)

    def add(self, part: "float | Scalar | Sum") -> None:
        """Add one number, or another sum."""
        self._told = True
        if isinstance(part, float):
            self._known += part
        elif isinstance(part, Sum):
            self._known += part._known
            self._waiting += part._waiting
        else:
            self._waiting.append(part)

    def settle(self, *, wait: bool) -> bool:
        """Read the numbers that are there; say whether none is missing."""
        while self._waiting:
            number = self._waiting[0].value(wait=wait)
            if number is None:
                return False
            self._known += number
            self._waiting.pop(0)
        return True

    @property
    def total(self) -> float | None:
        """The sum, once it is settled; None if nothing was added."""
        return self._known if self._told else None
