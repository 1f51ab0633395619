"""Who serves, and why? The words for it, and what a trial of the Triton kernels decides.

The pure half of backends.py and proof.py: nothing here reads, writes or asks a device.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

AGAIN = "`python -m nsa.attention.proof --again` repeats the trial"


class Choice(NamedTuple):
    """What serves (a backend, or a kernel within one), and why not the preferred one.

    Attributes:
        path: Its name, as the counters tell it.
        reason: Empty where it is the preferred one.
    """

    path: str
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """What a trial in one dtype has shown; one dtype's miss says nothing of another's.

    Attributes:
        right: Whether every comparison held.
        faster: Whether Triton beat the torch backend at every length that was timed.
        reason: Why the trial has not come to an end, empty when it has.
        failed_at: When it has not, in seconds of the wall clock; None when it has.
        errors: One row a comparison (nsa/attention/gpu/trial.py).
        times_ms: Milliseconds of "triton" and "torch" by "BxS".
        machine: What the proof holds for, its dtype included.
    """

    right: bool
    faster: bool = False
    reason: str = ""
    failed_at: float | None = None
    errors: tuple[Mapping[str, Any], ...] = ()
    times_ms: Mapping[str, Mapping[str, float]]
    machine: Mapping[str, str]


def choose_by_proof(proof: Proof) -> Choice:
    """The backend of `auto` for the dtype of a proof, on the GPU of a proof."""
    dtype = proof.machine.get("dtype", "an unknown dtype")
    if proof.reason:
        return Choice("torch", f"Triton's trial in {dtype} did not end here: {proof.reason}")
    if not proof.right:
        return Choice("torch", f"Triton was wrong here in {_wrong(proof)} of {dtype} ({AGAIN})")
    if not proof.faster:
        return Choice("torch", f"Triton was not faster here in {dtype}")
    return Choice("triton")


def _wrong(proof: Proof) -> str:
    wrong = [row for row in proof.errors if not row.get("right")]
    first = f", first at S = {wrong[0].get('S')}," if wrong else ""
    return f"{len(wrong)} of {len(proof.errors)} comparisons{first}"


def build_proof(found: Mapping[str, Any], machine: Mapping[str, str]) -> Proof:
    """The proof of what a trial printed: `errors` and `times_ms`.

    Raises:
        ValueError: That is not what a trial prints.
    """
    try:
        errors = tuple(dict(row) for row in found["errors"])
        times = {
            str(shape): {name: float(row[name]) for name in ("triton", "torch")}
            for shape, row in found["times_ms"].items()
        }
        right = bool(errors) and all(row["right"] is True for row in errors)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"not a trial's result: {error!r}") from error
    faster = bool(times) and all(row["triton"] < row["torch"] for row in times.values())
    return Proof(
        right=right, faster=right and faster, errors=errors, times_ms=times, machine=dict(machine)
    )
