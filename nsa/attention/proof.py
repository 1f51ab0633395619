"""Have the Triton kernels been shown right, and faster than PyTorch, on this very machine?

    python -m nsa.attention.proof                    # in bf16: prints the proof; makes it first
    python -m nsa.attention.proof --dtype float32    # in another dtype
    python -m nsa.attention.proof --again            # makes it anew

A *proof* is a JSON file under the user's cache, named after GPU, capability, versions of torch and
Triton, the kernels' sources and a dtype: a change of any of them asks for a new one, and a miss in
one dtype says nothing of another. It is made by a process of its own, in bounded time, so an
illegal access or a kernel that hangs cannot reach the trainer, and under a lock, so the ranks of a
host make it once. `backend="auto"` takes Triton only with a proof that says right and faster.

A trial that did not end (out of time or memory, a device that is busy, no compiler, a crash) has
shown nothing, so it is no verdict: torch serves, the reason is told and is remembered for
`RETRY_AFTER_S`, for the ranks and reruns that ask meanwhile, and then the trial is made again.

Guaranteed: nothing here raises for a broken file, folder, lock or trial; PyTorch serves then, and
the log says why. Not guaranteed: that what was faster in the trial is faster at every shape.
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
from contextlib import contextmanager
from dataclasses import asdict, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

from nsa.attention.choice import AGAIN, Proof, build_proof, choose_by_proof
from nsa.attention.settings import cache_folder

logger = logging.getLogger(__name__)

# A trial compiles some sixty kernels at once. A watcher gives a rank 300 s until its first
# heartbeat.
TRIAL_LIMIT_S = 180.0
RETRY_AFTER_S = 600.0
# For a rank that waits for another's trial, which may have just begun.
LOCK_LIMIT_S = TRIAL_LIMIT_S + 20.0
_LOCK_POLL_S = 0.1
_KILL_LIMIT_S = 10.0
_REASON_LIMIT = 300
_ROOT = Path(__file__).parents[2]
DTYPES = ("bfloat16", "float16", "float32")


def describe_machine(device: torch.device, dtype: torch.dtype) -> dict[str, str]:
    """What a proof holds for; imports no Triton."""
    digest, here = hashlib.sha256(), Path(__file__).parent
    names = ("compression.py", "selection.py", "selection_rule.py", "sequences.py")
    sources = (here / name for name in names)
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

    One of a trial that did not end is there for `RETRY_AFTER_S`; `now` is wall time in seconds.
    """
    try:
        stored = json.loads(file.read_bytes())
        proof = build_proof(stored, machine)
        if stored["machine"] != dict(machine) or not isinstance(stored["reason"], str):
            raise ValueError("it is another machine's")
        if stored["reason"]:
            if not 0 <= now - stored["failed_at"] < RETRY_AFTER_S:
                return None
            return _failed(machine, stored["reason"], failed_at=stored["failed_at"])
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        logger.warning("attention proof %s is made anew: %s", file, error)
        return None
    return proof


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


def _trial_command(device: torch.device, dtype: str) -> list[str]:
    """The trial, of compiled kernels whatever this process does with its own."""
    trial = [sys.executable, "-m", "nsa.attention.proof", "--trial", str(device), "--dtype", dtype]
    return ["env", "-u", "TRITON_INTERPRET", *trial] if device.type == "cuda" else trial


def make_proof(
    machine: Mapping[str, str], command: Sequence[str], limit_s: float = TRIAL_LIMIT_S
) -> Proof:
    """Run the trial's process; of its crash, its silence and its nonsense the reason is told."""
    try:
        trial = subprocess.Popen(
            command, cwd=_ROOT, text=True, errors="replace", start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
    except OSError as error:
        return _of_no_end(machine, f"it could not be started: {error}")
    try:
        out, err = trial.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        return _of_no_end(machine, f"no end after {limit_s:g} s", _kill(trial))
    except BaseException:  # this process is being ended: the trial goes first
        _kill(trial)
        raise
    if trial.returncode != 0:
        return _of_no_end(machine, f"ended with {trial.returncode}", err)
    try:
        return build_proof(json.loads(out.strip().rpartition("\n")[2]), machine)
    except ValueError as error:
        return _of_no_end(machine, f"printed no result ({error})", err)


def _of_no_end(machine: Mapping[str, str], reason: str, stderr: str = "") -> Proof:
    last = stderr.strip().rpartition("\n")[2].strip()
    reason = f"{reason}: {last}" if last else reason
    return _failed(machine, f"{reason[:_REASON_LIMIT]} ({AGAIN})")


def _failed(machine: Mapping[str, str], reason: str, *, failed_at: float | None = None) -> Proof:
    return Proof(
        right=False, reason=reason, failed_at=failed_at, times_ms={}, machine=dict(machine)
    )


def _kill(process: subprocess.Popen[str]) -> str:
    """End a trial and what it started; a process that the GPU's driver holds is left behind."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    try:
        return process.communicate(timeout=_KILL_LIMIT_S)[1]
    except subprocess.TimeoutExpired:
        return "it could not be killed"


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
                time.sleep(_LOCK_POLL_S)
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
        now: Tells the wall time, in seconds.
    """
    if folder is None:
        logger.warning("no home for the attention proof: it is made for this process alone")
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
        reason = f"its lock {file.with_suffix('.lock')} is busy: {error}"
        logger.warning("no attention proof: %s", reason)
        return _failed(machine, reason)
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
    command = _trial_command(device, machine["dtype"])
    return obtain_proof(machine, command, folder, again=again, limit_s=limit_s)


def table(proof: Proof) -> str:
    """A proof for people."""
    lines = [f"{name}: {value}" for name, value in proof.machine.items()]
    for row in proof.errors:
        shape = " ".join(f"{name}={row.get(name)}" for name in ("B", "S", "H", "G", "D", "against"))
        found = f"out {row.get('out'):.1e}, gradients {row.get('gradients'):.1e}"
        lines.append(f"  {'right' if row.get('right') else 'WRONG'}  {shape}: {found}")
    for shape, row in proof.times_ms.items():
        lines.append(f"  {shape}: triton {row['triton']:.3f} ms, torch {row['torch']:.3f} ms")
    backend, reason = choose_by_proof(proof)
    lines.append(f"auto: {backend} ({reason or 'right, and faster'})")
    return "\n".join(lines)


def _run_trial(device: torch.device, dtype: torch.dtype) -> None:
    """The trial's own process: its last line of output is the result."""
    from nsa.attention.gpu.trial import run_trial

    if device.type == "cuda":
        torch.cuda.set_device(device)
    print(json.dumps(run_trial(device, dtype)))


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
    if given.trial:
        _run_trial(torch.device(given.trial), dtype)
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
