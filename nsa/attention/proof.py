"""Prove once a machine that the Triton kernels are right and faster than PyTorch there.

    python -m nsa.attention.proof --head-dim 64 --heads 6 --dtype bfloat16

A proof holds for a GPU, versions, the sources, the width of a head, the heads of a group and a
dtype. It is kept in the user's cache. A process of its own makes it, so a kernel that crashes or
hangs harms no trainer; a lock lets the ranks of a host make it once. The command prints the result
of a trial: why `backend="auto"` does not take Triton, or nothing.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nsa.attention.compression import compress_tokens
from nsa.attention.kernels import Kernels
from nsa.attention.precision import exact_products
from nsa.attention.reference import nsa_attention_reference
from nsa.attention.settings import cache_folder
from nsa.attention.tensors import Call, Tensors
from nsa.attention.torch_backend import nsa_attention_torch

LIMIT_S = 180.0
"""A trial compiles some twenty kernels; a watcher gives a rank 300 s to its first heartbeat."""
RETRY_AFTER_S = 600.0
"""How long a trial that did not end counts."""
_TOLERANCES = {"float32": 1e-4, "float16": 5e-3, "bfloat16": 2e-2}
_FEWEST_SAME = 0.99
"""Share of queries that choose the same blocks: between two of nearly equal score any is right."""
# Everything is selected, words of bits, gathered blocks.
_LENGTHS, _TIMED_LENGTH, _REPEATS = (33, 1500, 2500), 2048, 10
_ROOT = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """What is proven: the kernels on a device, for so many heads of a group of such a width."""

    device: str
    head_dim: int
    heads: int
    dtype: str


def reason_against(subject: Subject) -> str:
    """Why Triton does not serve `auto`; empty where it is proven right and faster."""
    base = cache_folder()
    if base is None:
        return "a proof needs a folder to be kept in, and this user has no home"
    file = base / "nsa-proof" / f"{_digest(subject)}.json"
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if (found := _load(file)) is None:
                found = _run_trial(_command(subject))
                file.write_text(json.dumps(found), encoding="utf-8")
    except OSError as error:
        return f"the proof of its kernels cannot be kept: {error}"
    return str(found["reason"])


def _digest(subject: Subject) -> str:
    here, digest = Path(__file__).parent, hashlib.sha256()
    for file in sorted(here.rglob("*.py")):
        digest.update(file.read_bytes())
    name = torch.cuda.get_device_name(subject.device)
    told = (name, torch.__version__, version("triton"), *list(asdict(subject).values())[1:])
    digest.update(json.dumps(told).encode())
    return digest.hexdigest()[:24]


def _load(file: Path) -> dict[str, Any] | None:
    """The result in a file; None if there is none that counts."""
    try:
        found: dict[str, Any] = json.loads(file.read_bytes())
        old = time.time() - file.stat().st_mtime > RETRY_AFTER_S
        return None if old and not found["ended"] else found
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None


def _command(subject: Subject) -> list[str]:
    options = (f"--{name.replace('_', '-')}={value}" for name, value in asdict(subject).items())
    # Compiled kernels, whatever this process does with its own.
    python = ("env", "-u", "TRITON_INTERPRET", sys.executable)
    return [*python, "-m", "nsa.attention.proof", *options]


def _run_trial(command: list[str]) -> dict[str, Any]:
    """`reason`, and whether the trial `ended`: else it says nothing of the kernels."""
    try:
        done = subprocess.run(
            command, cwd=_ROOT, capture_output=True, text=True, errors="replace",
            timeout=LIMIT_S, check=False,
        )  # fmt: skip
        if done.returncode == 0:
            return {"reason": json.loads(done.stdout.splitlines()[-1])["reason"], "ended": True}
        last = done.stderr.strip().rpartition("\n")[2]
        reason = f"exit code {done.returncode}: {last[:300]}"
    except subprocess.TimeoutExpired:
        reason = f"no end after {LIMIT_S:g} s"
    except (ValueError, LookupError, TypeError) as error:
        reason = f"it printed no result: {error}"
    return {"reason": f"the trial of its kernels did not end: {reason}", "ended": False}


def try_kernels(subject: Subject) -> str:
    """Compare and time the kernels in this process; as `reason_against`."""
    for S in _LENGTHS:
        if wrong := compare(subject, S):
            return f"its kernels were wrong here: {wrong}"
    by_triton, by_torch = (_median_ms(subject, backend) for backend in ("triton", "torch"))
    faster = by_triton < by_torch
    return "" if faster else f"it was not faster here: {by_triton:.2f} ms, torch {by_torch:.2f} ms"


def compare(subject: Subject, S: int, backend: str = "triton", **sizes: Any) -> str:
    """What is off in output or gradients, beside the equations in fp32; empty where nothing is."""
    leaves, call = _draw(subject, S), Call(scale=subject.head_dim**-0.5, **sizes)
    # Rounded before either starts: else the rounding would decide near ties.
    blocks = [compress_tokens(x.detach(), call.l, call.d).to(x.dtype) for x in leaves[1:3]]
    leaves[1:3] = [x.requires_grad_() for x in blocks]
    exact = [x.detach().float().requires_grad_() for x in leaves]
    out, ids = _attend(backend, leaves, call)
    with exact_products(out.device):
        expected, expected_ids = _attend("reference", exact, call)
        same = (ids == expected_ids).all(-1).repeat_interleave(subject.heads, dim=2)[..., None]
        grad = torch.randn(expected.shape, device=out.device) * same
        expected.backward(grad)
    out.backward(grad.to(out.dtype))
    read = [(x, y) for x, y in zip(leaves, exact, strict=True) if x.numel()]
    errors = [_relative_error((out * same).detach(), (expected * same).detach())]
    errors += [_relative_error(x.grad, y.grad) for x, y in read]
    worst = max(errors, key=lambda error: (error != error, error))  # NaN above all
    if same.float().mean() < _FEWEST_SAME:
        return f"other blocks at S = {S}"
    limit = _TOLERANCES[subject.dtype]
    return "" if worst <= limit else f"off by {worst:.1e} at S = {S}"


def _attend(backend: str, tensors: list[Tensor], call: Call) -> tuple[Tensor, Tensor]:
    """Output and ids; the keys and values of the compressed branch are those of its blocks."""
    given, blocks = Tensors(*tensors), (tensors[1], tensors[2])
    if backend == "reference":
        return nsa_attention_reference(given, call, blocks)
    if backend == "torch":
        return nsa_attention_torch(given, call, blocks, Kernels())
    from nsa.attention.gpu.function import nsa_attention_triton

    out, ids = nsa_attention_triton(given, call, blocks)
    assert ids is not None
    return out, ids


def _draw(subject: Subject, S: int) -> list[Tensor]:
    groups, device, dtype = 2, torch.device(subject.device), getattr(torch, subject.dtype)
    generator = torch.Generator(device).manual_seed(S)
    D, H = subject.head_dim, groups * subject.heads
    shapes = [(1, S, H, D), *[(1, S, groups, D)] * 6, (1, S, H, 3)]
    return [
        torch.randn(shape, device=device, generator=generator).to(dtype).requires_grad_()
        for shape in shapes
    ]


def _relative_error(got: Tensor | None, wanted: Tensor | None) -> float:
    """Norm of the difference over the norm of `wanted`; small where both are nearly zero."""
    assert got is not None
    assert wanted is not None
    least = 1e-3 * wanted.numel() ** 0.5
    return float((got.float() - wanted).norm() / wanted.norm().clamp_min(least))


def _median_ms(subject: Subject, backend: str) -> float:
    """Forward and backward, by CUDA events."""
    leaves, call = _draw(subject, _TIMED_LENGTH), Call(scale=subject.head_dim**-0.5)
    blocks = [compress_tokens(x, call.l, call.d).to(x.dtype) for x in leaves[1:3]]
    read = [leaves[0], *(x.detach().requires_grad_() for x in blocks), *leaves[3:]]

    def step() -> None:
        _attend(backend, read, call)[0].sum().backward()

    return statistics.median(_timed_ms(step) for _ in range(_REPEATS))


def _timed_ms(step: Callable[[], None]) -> float:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    step()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end)


def main() -> int:
    """Print the result of a trial in this process."""
    parser = argparse.ArgumentParser(prog="python -m nsa.attention.proof", allow_abbrev=False)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--head-dim", type=int, required=True)
    parser.add_argument("--heads", type=int, required=True, help="in a group")
    parser.add_argument("--dtype", choices=tuple(_TOLERANCES), required=True)
    subject = Subject(**vars(parser.parse_args()))
    print(json.dumps({"reason": try_kernels(subject)}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
