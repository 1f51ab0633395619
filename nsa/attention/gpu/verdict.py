"""What does a trial of the Triton kernels say, and who serves a call then?

The pure half of nsa/attention/proof.py: nothing here reads, writes or asks a device.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

AGAIN = "`python -m nsa.attention.proof --again` repeats the trial"


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """What a trial has shown.

    Attributes:
        right: Whether every comparison with the reference held.
        faster: Dtypes in which Triton beat the torch backend at every length that was timed.
        reason: Why the trial has not come to an end, empty when it has.
        errors: One row a comparison (nsa/attention/gpu/trial.py).
        times_ms: Milliseconds of "triton" and "torch" by "dtype BxS".
        machine: What the proof holds for.
    """

    right: bool
    faster: tuple[str, ...] = ()
    reason: str = ""
    errors: tuple[Mapping[str, Any], ...] = ()
    times_ms: Mapping[str, Mapping[str, float]]
    machine: Mapping[str, str]


class Verdict(NamedTuple):
    """The backend that `auto` takes, and why it is not Triton (empty when it is)."""

    backend: str
    reason: str = ""


def judge_proof(proof: Proof, dtype: str | None = None, call_reason: str | None = None) -> Verdict:
    """What serves on a GPU.

    Args:
        proof: Of this machine.
        dtype: Of the call ("bfloat16"), None to ask whether Triton serves any.
        call_reason: Why the kernels cannot serve the call at all, None if they can.
    """
    if proof.reason:
        return Verdict("torch", f"Triton's trial here failed: {proof.reason}")
    if not proof.right:
        return Verdict("torch", f"Triton was wrong here in {_wrong(proof)} ({AGAIN})")
    if call_reason is not None:
        return Verdict("torch", call_reason)
    if not proof.faster:
        return Verdict("torch", "Triton was not faster here")
    if dtype is not None and dtype not in proof.faster:
        return Verdict("torch", f"Triton was not faster here in {dtype}")
    return Verdict("triton")


def _wrong(proof: Proof) -> str:
    wrong = [row for row in proof.errors if not row.get("right")]
    first = f", first {wrong[0].get('dtype')} at S = {wrong[0].get('S')}" if wrong else ""
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
    lost = {shape.split()[0] for shape, row in times.items() if not row["triton"] < row["torch"]}
    timed = {shape.split()[0] for shape in times}
    return Proof(
        right=right,
        faster=tuple(sorted(timed - lost)) if right else (),
        errors=errors,
        times_ms=times,
        machine=dict(machine),
    )
