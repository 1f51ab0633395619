"""Prove once a machine that the Triton kernels are right, and faster than PyTorch, in a dtype.

    python -m nsa.attention.proof [--dtype float32] [--again]

A *proof* is a JSON file in the user's cache. Its name covers the GPU, the versions of torch and
Triton, the kernels' sources and a dtype. A process of its own makes it in bounded time, so a kernel
that crashes or hangs cannot harm the trainer; a lock lets the ranks of a host make it once.
`backend="auto"` takes Triton only with a proof that says right and faster.

A trial that did not end (time, memory, no compiler, a crash) is no verdict: PyTorch serves, and the
trial is made again after `RETRY_AFTER_S`. Nothing here raises for a broken file, folder or trial.
Exit codes: 0 proven, 1 not, 3 no CUDA device.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import json
import logging
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from nsa.attention.counters import Choice
from nsa.attention.settings import cache_folder

logger = logging.getLogger(__name__)

TRIAL_LIMIT_S = 180.0
"""A trial compiles some sixty kernels; a watcher gives a rank 300 s to its first heartbeat."""
RETRY_AFTER_S = 600.0
LOCK_LIMIT_S = TRIAL_LIMIT_S + 20.0
_KILL_LIMIT_S = 10.0
_REASON_LIMIT = 300
_ROOT = Path(__file__).parents[2]
DTYPES = ("bfloat16", "float16", "float32")
AGAIN = "`python -m nsa.attention.proof --again` repeats the trial"


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """The result of a trial in one dtype.

    Attributes:
        right: Whether every comparison held.
        faster: Whether Triton was faster at every length that was timed.
        reason: Why the trial did not end; empty if it did.
        failed_at: When it did not end, in seconds of the wall clock.
        errors: One row a comparison (gpu/trial.py).
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
    """The backend of `auto` on the machine and in the dtype of a proof."""
    dtype = proof.machine.get("dtype", "an unknown dtype")
    if proof.reason:
        return Choice("torch", f"Triton's trial in {dtype} did not end here: {proof.reason}")
    if not proof.right:
        wrong = [row for row in proof.errors if not row.get("right")]
        first = f", first at S = {wrong[0].get('S')}," if wrong else ""
        found = f"{len(wrong)} of {len(proof.errors)} comparisons{first}"
        return Choice("torch", f"Triton was wrong here in {found} of {dtype} ({AGAIN})")
    if not proof.faster:
        return Choice("torch", f"Triton was not faster here in {dtype}")
    return Choice("triton")


def build_proof(found: Mapping[str, Any], machine: Mapping[str, str]) -> Proof:
    """The proof of `errors` and `times_ms` as a trial prints them.

    Raises:
        ValueError: They have another form.
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


def _unended(machine: Mapping[str, str], reason: str, failed_at: float | None = None) -> Proof:
    return Proof(
        right=False, reason=reason, failed_at=failed_at, times_ms={}, machine=dict(machine)
    )


def describe_machine(device: torch.device, dtype: torch.dtype) -> dict[str, str]:
    """What a proof holds for; imports no Triton."""
    digest, here = hashlib.sha256(), Path(__file__).parent
    sources = [here / name for name in ("compression.py", "selection.py", "selection_rule.py")]
    for file in (*sorted((here / "gpu").glob("*.py")), *sources, Path(__file__)):
        digest.update(file.name.encode() + b"\0" + file.read_bytes())
    try:
        triton_version = version("triton")
    except PackageNotFoundError:
        triton_version = "unknown"
    cuda = device.type == "cuda"
    major, minor = torch.cuda.get_device_capability(device) if cuda else (0, 0)
    return {
        "dtype": str(dtype).removeprefix("torch."),
        "device": torch.cuda.get_device_name(device) if cuda else device.type,
        "capability": f"{major}.{minor}",
        "torch": torch.__version__,
        "triton": triton_version,
        "sources": digest.hexdigest(),
    }


def proof_file(folder: Path, machine: Mapping[str, str]) -> Path:
    """Where the proof of a machine is kept."""
    name = hashlib.sha256(json.dumps(machine, sort_keys=True).encode()).hexdigest()[:24]
    return folder / f"{name}.json"


def load_proof(file: Path, machine: Mapping[str, str], now: float) -> Proof | None:
    """The proof in a file; None where there is none, or none that can be read (logged).

    One of a trial that did not end counts for `RETRY_AFTER_S`; `now` is wall time in seconds.
    """
    try:
        stored = json.loads(file.read_bytes())
        proof = build_proof(stored, machine)
        if not stored["reason"]:
            return proof
        failed_at = stored["failed_at"]
        recent = 0 <= now - failed_at < RETRY_AFTER_S
        return _unended(machine, stored["reason"], failed_at) if recent else None
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        logger.warning("attention proof %s is made again: %s", file, error)
        return None


def save_proof(file: Path, proof: Proof) -> None:
    """Write a proof whole or not at all.

    Raises:
        OSError: The folder cannot be written.
    """
    beside = file.with_suffix(f".{secrets.token_hex(4)}")
    try:
        beside.write_text(json.dumps(asdict(proof), indent=1), encoding="utf-8")
        beside.replace(file)
    finally:
        beside.unlink(missing_ok=True)


def make_proof(
    machine: Mapping[str, str], command: Sequence[str], limit_s: float = TRIAL_LIMIT_S
) -> Proof:
    """Run the trial's process; the proof gives the reason if it did not end well."""
    try:
        trial = subprocess.Popen(
            command, cwd=_ROOT, text=True, errors="replace", start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
    except OSError as error:
        return _unended(machine, f"it could not be started: {error} ({AGAIN})")
    out = err = ""
    try:
        out, err = trial.communicate(timeout=limit_s)
        reason = f"ended with {trial.returncode}" if trial.returncode else ""
    except subprocess.TimeoutExpired:
        reason = f"no end after {limit_s:g} s"
    finally:
        if trial.returncode is None:  # with what it started
            os.killpg(trial.pid, signal.SIGKILL)
            with suppress(subprocess.TimeoutExpired):
                trial.communicate(timeout=_KILL_LIMIT_S)
    if not reason:
        try:
            return build_proof(json.loads(out.strip().rpartition("\n")[2]), machine)
        except ValueError as error:
            reason = f"printed no result ({error})"
    last = err.strip().rpartition("\n")[2].strip()
    reason = f"{reason}: {last}" if last else reason
    return _unended(machine, f"{reason[:_REASON_LIMIT]} ({AGAIN})")


@contextmanager
def _locked(file: Path, limit_s: float) -> Iterator[None]:
    """Hold the lock beside a proof.

    Raises:
        OSError: The folder cannot be written, or another held the lock for too long.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.with_suffix(".lock").open("w") as lock:
        deadline = time.monotonic() + limit_s
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise TimeoutError(f"another process held it for {limit_s:g} s") from None
                time.sleep(0.1)
        yield


def obtain_proof(
    machine: Mapping[str, str],
    command: Sequence[str],
    folder: Path | None,
    *,
    again: bool = False,
    limit_s: float = TRIAL_LIMIT_S,
    lock_limit_s: float = LOCK_LIMIT_S,
    now: Callable[[], float] = time.time,
) -> Proof:
    """The proof in a folder; made, once for all processes that ask, where there is none.

    Args:
        machine: What it must hold for.
        command: The trial.
        folder: Where proofs are kept, None for nowhere.
        again: Whether one that is there is replaced.
        limit_s: How long a trial may take.
        lock_limit_s: How long to wait for another process that is making the proof.
        now: Wall time, in seconds.
    """
    if folder is None:
        return make_proof(machine, command, limit_s)
    file = proof_file(folder, machine)
    if not again and (proof := load_proof(file, machine, now())) is not None:
        return proof
    made: Proof | None = None
    try:
        with _locked(file, lock_limit_s):
            if not again and (proof := load_proof(file, machine, now())) is not None:
                return proof
            logger.info("trying the Triton kernels on %s", machine["device"])
            made = make_proof(machine, command, limit_s)
            save_proof(file, replace(made, failed_at=now()) if made.reason else made)
            return made
    except TimeoutError as error:
        return _unended(machine, f"its lock {file.with_suffix('.lock')} is busy: {error}")
    except OSError as error:
        logger.warning("the attention proof cannot be kept: %s", error)
        return make_proof(machine, command, limit_s) if made is None else made


def device_proof(
    device: torch.device,
    dtype: torch.dtype,
    *,
    again: bool = False,
    limit_s: float = TRIAL_LIMIT_S,
) -> Proof:
    """The proof of a CUDA device in a dtype; `again` and `limit_s` as `obtain_proof`."""
    base = cache_folder()
    folder = None if base is None else base / "nsa-proof"
    machine = describe_machine(device, dtype)
    command = [
        # Compiled kernels, whatever this process does with its own.
        "env", "-u", "TRITON_INTERPRET", sys.executable, "-m", "nsa.attention.proof",
        "--trial", str(device), "--dtype", machine["dtype"],
    ]  # fmt: skip
    return obtain_proof(machine, command, folder, again=again, limit_s=limit_s)


def table(proof: Proof) -> str:
    """A proof for people."""
    lines = [f"{name}: {value}" for name, value in proof.machine.items()]
    for row in proof.errors:
        shape = " ".join(f"{name}={row.get(name)}" for name in ("B", "S", "H", "G", "D", "against"))
        found = f"out {row.get('out'):.1e}, gradients {row.get('gradients'):.1e}"
        lines.append(f"  {'right' if row.get('right') else 'WRONG'}  {shape}: {found}")
    for shape, times in proof.times_ms.items():
        lines.append(f"  {shape}: triton {times['triton']:.3f} ms, torch {times['torch']:.3f} ms")
    backend, reason = choose_by_proof(proof)
    lines.append(f"auto: {backend} ({reason or 'right, and faster'})")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Show the proof of a device."""
    parser = argparse.ArgumentParser(
        prog="python -m nsa.attention.proof", allow_abbrev=False,
        description="Are the Triton kernels right and faster on this GPU?",
    )  # fmt: skip
    parser.add_argument("--again", action="store_true", help="make the proof anew")
    parser.add_argument("--device", default="cuda", help="cuda, or cuda:N")
    parser.add_argument("--dtype", choices=DTYPES, default="bfloat16")
    parser.add_argument("--trial", metavar="DEVICE", help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    dtype = getattr(torch, given.dtype)
    if given.trial:  # the trial's own process: its last line of output is the result
        from nsa.attention.gpu.trial import run_trial

        device = torch.device(given.trial)
        if device.type == "cuda":
            torch.cuda.set_device(device)
        print(json.dumps(run_trial(device, dtype)))
        return 0
    if not torch.cuda.is_available():
        print("No CUDA device here: nothing can be proven, and `auto` is torch.")
        return 3
    proof = device_proof(torch.device(given.device), dtype, again=given.again)
    print(table(proof))
    return 0 if choose_by_proof(proof).path == "triton" else 1


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    sys.exit(main())
