"""Names of device slots, and which of them a run takes. Standard library only.

One run at a time holds a slot: a GPU (`GPU-…`, the UUID of the driver), or `cpu:N` on a host
without GPUs.
"""

from collections.abc import Iterable

_CPU = "cpu:"


def is_gpu(slot: str) -> bool:
    """Say whether a slot is a GPU."""
    return not slot.startswith(_CPU)


def gpus_of(slots: Iterable[str]) -> tuple[str, ...]:
    """Return the GPUs among slots, in their order."""
    return tuple(slot for slot in slots if is_gpu(slot))


def choose_together(slots: Iterable[str], ranks: int) -> tuple[str, ...] | None:
    """Return the first GPUs for a run of `ranks` ranks; None: too few."""
    found = gpus_of(slots)
    return found[:ranks] if len(found) >= ranks else None
