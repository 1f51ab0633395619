"""What is a device called, and which is a GPU's? Standard library only.

A slot is what one run at a time may hold: a GPU (`GPU-…`) or a slice of one (`MIG-…`) by the UUID
that the driver gives it, or `cpu:N` on a host of CPUs. A place in the driver's list is for display
alone: three programs number the same GPUs in three ways. `cuda:N` is what workers of before said.
"""

from collections.abc import Iterable

_CPU = "cpu:"
_SLICE = "MIG-"


def is_gpu(slot: str) -> bool:
    """Say whether a slot is a GPU or a slice of one."""
    return not slot.startswith(_CPU)


def is_slice(slot: str) -> bool:
    """Say whether a slot is a MIG slice."""
    return slot.startswith(_SLICE)


def gpus_of(slots: Iterable[str]) -> tuple[str, ...]:
    """Return the GPUs and slices among slots, in their order."""
    return tuple(slot for slot in slots if is_gpu(slot))


def choose_together(slots: Iterable[str], ranks: int) -> tuple[str, ...] | None:
    """Return the devices for a run of `ranks` ranks, the first that will do; None: too few.

    CUDA shows a process one slice at most, so a slice is for a run of one rank; that takes a slice
    before a whole GPU.
    """
    found = gpus_of(slots)
    if ranks == 1:
        found = tuple(sorted(found, key=lambda slot: not is_slice(slot)))
    else:
        found = tuple(slot for slot in found if not is_slice(slot))
    return found[:ranks] if len(found) >= ranks else None


def most_ranks(slots: Iterable[str]) -> int:
    """Return how many ranks a run may have at most that takes a device for each."""
    found = gpus_of(slots)
    whole = sum(not is_slice(slot) for slot in found)
    return max(whole, min(1, len(found)))
