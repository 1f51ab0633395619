"""Names of device slots, and which of them a run takes. Standard library only.

One run at a time holds a slot: a GPU (`GPU-…`), a MIG slice (`MIG-…`), or `cpu:N` on a host
without GPUs. GPUs and slices have the UUID of the driver.
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
    """Return the first devices that fit a run of `ranks` ranks; None: too few.

    CUDA shows a process one slice at most, so only a run of one rank takes a slice, before a GPU.
    """
    found = gpus_of(slots)
    if ranks == 1:
        found = tuple(sorted(found, key=lambda slot: not is_slice(slot)))
    else:
        found = tuple(slot for slot in found if not is_slice(slot))
    return found[:ranks] if len(found) >= ranks else None


def most_ranks(slots: Iterable[str]) -> int:
    """Return the largest number of ranks for which there is a device each."""
    found = gpus_of(slots)
    whole = sum(not is_slice(slot) for slot in found)
    return max(whole, min(1, len(found)))
