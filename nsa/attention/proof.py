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
import secrets
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
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
_REASON_LIMIT = 300
_ROOT = Path(__file__).parents[2]
DTYPES = ("bfloat16", "float16", "float32")
AGAIN = "`python -m nsa.attention.proof --again` repeats the trial"


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """The result of a trial in one dtype.

    Attributes:
        machine: What the proof holds for, its dtype included.
        errors: One row a comparison (gpu/trial.py).
        times_ms: Milliseconds of "triton" and "torch" by "BxS".
        reason: Why the trial did not end; empty if it did.
    """

    machine: Mapping[str, str]
    errors: tuple[Mapping[str, Any], ...] = ()
    times_ms: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    reason: str = ""

    @property
    def right(self) -> bool:
        """Whether there were comparisons, and every one held."""
        return bool(self.errors) and all(row["right"] is True for row in self.errors)

    @property
    def faster(self) -> bool:
        """Whether Triton was faster at every length that was timed."""
        times = self.times_ms.values()
        return bool(times) and all(row["triton"] < row["torch"] for row in times)


def choose_by_proof(proof: Proof) -> Choice:
    """The backend of `auto` on the machine and in the dtype of a proof."""
    dtype = proof.machine.get("dtype", "an unknown dtype")
    if proof.reason:
        return Choice("torch", f"Triton's trial in {dtype} did not end here: {proof.reason}")
    if not proof.right:
        wrong = [row for row in proof.errors if row["right"] is not True]
        first = f", first at S = {wrong[0].get('S')}," if wrong else ""
        found = f"{len(wrong)} of {len(proof.errors)} comparisons{first}"
        return Choice("torch", f"Triton was wrong here in {found} of {dtype} ({AGAIN})")
    if not proof.faster:
        return Choice("torch", f"Triton was not faster here in {dtype}")
    return Choice("triton")


def read_proof(text: str | bytes, machine: Mapping[str, str]) -> Proof:
    """The proof in a file, or in what a trial printed.

    Raises:
        ValueError: It has another form.
    """
    try:
        found = json.loads(text)
        proof = Proof(
            machine=dict(machine),
            errors=tuple(dict(row) for row in found["errors"]),
            times_ms={
                str(shape): {name: float(row[name]) for name in ("triton", "torch")}
                for shape, row in found["times_ms"].items()
            },
            reason=str(found.get("reason", "")),
        )
        _ = proof.right
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"not a trial's result: {error!r}") from error
    return proof


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


def make_proof(
    machine: Mapping[str, str], command: Sequence[str], limit_s: float = TRIAL_LIMIT_S
) -> Proof:
    """Run the trial's process; the proof gives the reason if it did not end well."""
    err = ""
    try:
        trial = subprocess.run(
            command, cwd=_ROOT, text=True, errors="replace", timeout=limit_s, check=False,
            stdin=subprocess.DEVNULL, capture_output=True,
        )  # fmt: skip
        err = trial.stderr
        if trial.returncode == 0:
            return read_proof(trial.stdout.strip().rpartition("\n")[2], machine)
        reason = f"ended with {trial.returncode}"
    except OSError as error:
        reason = f"it could not be started: {error}"
    except subprocess.TimeoutExpired:
        reason = f"no end after {limit_s:g} s"
    except ValueError as error:
        reason = f"printed no result ({error})"
    last = err.strip().rpartition("\n")[2].strip()
    reason = f"{reason}: {last}" if last else reason
    return Proof(machine=dict(machine), reason=f"{reason[:_REASON_LIMIT]} ({AGAIN})")


def obtain_proof(
    machine: Mapping[str, str],
    command: Sequence[str],
    folder: Path | None,
    *,
    again: bool = False,
    limit_s: float = TRIAL_LIMIT_S,
) -> Proof:
    """The proof in a folder; made, once for all processes that ask, where there is none.

    Args:
        machine: What it must hold for.
        command: The trial.
        folder: Where proofs are kept, None for nowhere.
        again: Whether one that is there is replaced.
        limit_s: How long a trial may take.
    """
    if folder is None:
        return make_proof(machine, command, limit_s)
    file, made = proof_file(folder, machine), None
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with file.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not again and (proof := _load(file, machine)) is not None:
                return proof
            logger.info("trying the Triton kernels on %s", machine["device"])
            made = make_proof(machine, command, limit_s)
            beside = file.with_suffix(f".{secrets.token_hex(4)}")
            beside.write_text(json.dumps(asdict(made), indent=1), encoding="utf-8")
            beside.replace(file)
    except OSError as error:
        logger.warning("the attention proof cannot be kept: %s", error)
    return made or make_proof(machine, command, limit_s)


def _load(file: Path, machine: Mapping[str, str]) -> Proof | None:
    """The proof in a file; None where there is none, or none that counts."""
    try:
        proof = read_proof(file.read_bytes(), machine)
        if proof.reason and time.time() - file.stat().st_mtime > RETRY_AFTER_S:
            return None
        return proof
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        logger.warning("attention proof %s is made again: %s", file, error)
        return None


def device_proof(
    device: torch.device,
    dtype: torch.dtype,
    *,
    again: bool = False,
    limit_s: float = TRIAL_LIMIT_S,
) -> Proof:
    """The proof of a CUDA device in a dtype; `again` and `limit_s` as `obtain_proof`."""
    base = cache_folder()
    machine = describe_machine(device, dtype)
    command = [
        # Compiled kernels, whatever this process does with its own.
        "env", "-u", "TRITON_INTERPRET", sys.executable, "-m", "nsa.attention.proof",
        "--trial", str(device), "--dtype", machine["dtype"],
    ]  # fmt: skip
    folder = None if base is None else base / "nsa-proof"
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
