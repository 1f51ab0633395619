"""Numbers of a program: read without waiting for a device, and kept until they are written.

A number on the CPU is read at once. A number on a CUDA device is copied into pinned memory by the
current stream, and read when the event behind the copy has passed, usually one step later.
"""

import sys
from numbers import Real
from threading import Lock
from typing import Any, ClassVar, Protocol

from gonogo.trainer.encoding import MOST_NAMES, fits

_DEEPEST = 8
"""Levels of nested dicts that are read."""


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


class OwnNumbers:
    """Numbers by step and name; used by the program's threads and by the writer's."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._by_step: dict[int, dict[str, float | Sum]] = {}
        self._names: set[str] = set()
        self._has_warned = False

    def __bool__(self) -> bool:
        """Whether any number waits to be written."""
        return bool(self._by_step)

    def note(self, step: int, numbers: dict[str, float | Sum]) -> None:
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

    def take(self, *, wait: bool = False) -> list[tuple[int, dict[str, float | None]]]:
        """Return the numbers of each step, except those of steps that a device still copies.

        Args:
            wait: also wait for such copies.
        """
        found = []
        with self._lock:
            for step, numbers in list(self._by_step.items()):
                sums = [row for row in numbers.values() if isinstance(row, Sum)]
                if all([row.settle(wait=wait) for row in sums]):
                    del self._by_step[step]
                    told = {
                        name: row.total if isinstance(row, Sum) else row
                        for name, row in numbers.items()
                    }
                    found.append((step, told))
        return found


def numbers_in(data: Any, before: str = "", depth: int = 0) -> dict[str, float | Sum]:
    """Return the real numbers of a nested dict by name: `{"a": {"b": 1}}` gives `a/b`.

    Words, pictures, truth values and tensors of several elements are left out.
    """
    found: dict[str, float | Sum] = {}
    for key, value in data.items():
        name = f"{before}{key}"
        if isinstance(value, dict):
            if depth < _DEEPEST:
                found |= numbers_in(value, f"{name}/", depth + 1)
        elif fits(name) and (number := _number(value)) is not None:
            found[name] = number
    return found


def _number(value: Any) -> float | Sum | None:
    """Return a real number; None for anything else. No device is waited for."""
    kind = type(value)
    try:
        if isinstance(value, bool):
            return None
        if isinstance(value, Real):  # NumPy's scalars, too
            return float(value)
        if kind.__module__ == "numpy":
            return float(value) if value.shape == () and value.dtype.kind in "iuf" else None
        if not hasattr(value, "detach") or kind.__name__ == "DTensor":
            return None
        number = None if value.numel() != 1 or value.is_complex() else read(value)
    except Exception:  # noqa: BLE001 - what cannot be read is no number
        return None
    return number if number is None or isinstance(number, float) else Sum(number)


OWN = OwnNumbers()
"""Those of this process."""
