"""Is NSA right and fast on this GPU?

Run from the repository root on a machine with a CUDA device (Triton comes with PyTorch there):

    python -m bench.gpu                         # everything, a few minutes
    python -m bench.gpu --only attention --lengths 2048,32768 --json figures.json

1. *right*: the Triton backend against the plain equations, forward and backward, in fp32 and bf16.
2. *attention*: forward + backward of NSA (each backend) against dense causal SDPA held to
   FLASH_ATTENTION, and cuDNN's figure beside it: 12 heads, 2 groups, D 64, bf16, medians of at
   least 20 CUDA-event timings after warm-up. Batch is stated; dense gets its keys repeated to all
   heads outside the clock.
3. *model*: tokens/s of whole training steps of the 125M model (forward, backward, clipping, fused
   AdamW, bf16 compute over fp32 parameters), batch and accumulation stated.

Exit 0 when everything was right, 1 when something was wrong, 3 when there is no GPU: then nothing
was measured, and no figure of this page is known.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from nsa.attention import available_backends, nsa_attention
from nsa.attention.compression import compress_tokens
from nsa.config import build_config, load_config
from nsa.model import build_model
from nsa.model.transformer import next_byte_loss
from nsa.optimizer import build_optimizer

HEADS, GROUPS, HEAD_DIM = 12, 2, 64
# Largest relative error of outputs and of gradients.
TOLERANCES = {torch.float32: (1e-5, 1e-4), torch.bfloat16: (1.5e-2, 2e-2)}
WARM_UP = 5
FIELD_TOK_S = 38.0


def median_ms(step: Callable[[], None], repeats: int) -> float:
    """Median of `repeats` CUDA-event timings after warm-up, in milliseconds."""
    for _ in range(WARM_UP):
        step()
    marks = [
        (torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True))
        for _ in range(repeats)
    ]
    for begin, end in marks:
        begin.record()
        step()
        end.record()
    torch.cuda.synchronize()
    return statistics.median(begin.elapsed_time(end) for begin, end in marks)


def _inputs(B: int, S: int, dtype: torch.dtype) -> list[Tensor]:
    generator = torch.Generator(device="cuda").manual_seed(0)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, device="cuda", dtype=dtype, generator=generator)

    keys_values = [draw(B, S, GROUPS, HEAD_DIM) for _ in range(6)]
    gates = draw(B, S, HEADS, 3).sigmoid()
    tensors = [draw(B, S, HEADS, HEAD_DIM), *keys_values, gates]
    return [tensor.requires_grad_() for tensor in tensors]


def _result(
    inputs: list[Tensor], blocks: tuple[Tensor, Tensor], backend: str
) -> tuple[Tensor, list[Tensor]]:
    leaves = [x.detach().requires_grad_() for x in (*inputs, *blocks)]
    out, ids = nsa_attention(
        *leaves[:-2], compressed=(leaves[-2], leaves[-1]), backend=backend, return_selection=True
    )
    out.backward(torch.ones_like(out) / 8)
    return ids, [out.detach(), *(x.grad for x in leaves if x.grad is not None)]


def check_right(lengths: tuple[int, ...]) -> list[dict[str, Any]]:
    """Triton against the equations; rows whose selection differs by a near tie are counted."""
    rows = []
    for dtype, (out_limit, grad_limit) in TOLERANCES.items():
        for S in lengths:
            inputs = _inputs(2, S, dtype)
            # Both start from the same rounded blocks: else near ties are decided by the rounding.
            k, v = (compress_tokens(x.detach(), 32, 16).to(dtype) for x in inputs[1:3])
            ids, got = _result(inputs, (k, v), "triton")
            exact = [x.detach().float() for x in inputs]
            wanted_ids, wanted = _result(exact, (k.float(), v.float()), "reference")
            errors = [
                ((x.float() - y).norm() / y.norm().clamp_min(1e-3 * y.numel() ** 0.5)).item()
                for x, y in zip(got, wanted, strict=True)
            ]
            same = (ids == wanted_ids).all(-1).float().mean().item()
            # A query that chose another of two nearly equal blocks moves its own row only.
            slack = 1.0 + 100.0 * (1.0 - same)
            fine = errors[0] < out_limit * slack and max(errors[1:]) < grad_limit * slack
            rows.append(
                {"S": S, "dtype": str(dtype), "same_selection": same, "out": errors[0],
                 "gradients": max(errors[1:]), "right": fine and same > 0.95}
            )  # fmt: skip
            print("  right" if rows[-1]["right"] else "  WRONG", rows[-1], flush=True)
    return rows


def _dense_step(B: int, S: int, kernel: SDPBackend) -> Callable[[], None]:
    q, k, v, grad = (
        torch.randn(B, HEADS, S, HEAD_DIM, device="cuda", dtype=torch.bfloat16) for _ in range(4)
    )
    leaves = [x.requires_grad_() for x in (q, k, v)]

    def step() -> None:
        with sdpa_kernel(kernel):
            out = scaled_dot_product_attention(*leaves, is_causal=True)
            torch.autograd.grad(out, leaves, grad)

    return step


def _nsa_step(B: int, S: int, backend: str) -> Callable[[], None]:
    leaves = _inputs(B, S, torch.bfloat16)
    grad = torch.randn(B, S, HEADS, HEAD_DIM, device="cuda", dtype=torch.bfloat16)

    def step() -> None:
        torch.autograd.grad(nsa_attention(*leaves, backend=backend), leaves, grad)

    return step


def compare_attention(
    lengths: tuple[int, ...], batch: int, repeats: int, backends: list[str]
) -> list[dict[str, Any]]:
    """Medians of each backend and of dense attention, in ms, and the ratios to flash."""
    rows = []
    for S in lengths:
        steps = {
            "flash": lambda S=S: _dense_step(batch, S, SDPBackend.FLASH_ATTENTION),
            "cudnn": lambda S=S: _dense_step(batch, S, SDPBackend.CUDNN_ATTENTION),
            **{b: lambda S=S, b=b: _nsa_step(batch, S, b) for b in backends},
        }
        row: dict[str, Any] = {"S": S, "batch": batch, "repeats": repeats}
        for name, build in steps.items():
            try:
                row[f"{name}_ms"] = median_ms(build(), repeats)
            except RuntimeError as error:  # a kernel that this GPU or build does not have
                row[f"{name}_ms"] = None
                print(f"  {name} at {S}: {str(error).splitlines()[0]}")
        for backend in backends:
            if row["flash_ms"] and row[f"{backend}_ms"]:
                row[f"flash_over_{backend}"] = row["flash_ms"] / row[f"{backend}_ms"]
        rows.append(row)
        print(" ", row, flush=True)
    return rows


def time_model(
    backend: str, kind: str, batch: int, accumulate: int, repeats: int
) -> dict[str, Any]:
    """Tokens/s of whole training steps of the 125M model at S = 2048."""
    mapping = load_config(Path("m7c_125m"))
    mapping["attention"] |= {"backend": backend, "kind": kind}
    config = build_config(mapping)
    device = torch.device("cuda")
    model = build_model(config).to(device).train()
    optimizer = build_optimizer(model, config.optim, device)
    S = config.model.seq_len
    tokens = torch.randint(config.model.vocab, (batch, S + 1), device=device)

    def step() -> None:
        for _ in range(accumulate):
            with torch.autocast("cuda", dtype=torch.bfloat16):
                logits = model(tokens[:, :-1])
            (next_byte_loss(logits, tokens[:, 1:]) / accumulate).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), config.optim.clip)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    milliseconds = median_ms(step, repeats)
    tok_s = batch * accumulate * S / milliseconds * 1e3
    return {
        "attention": kind if kind == "dense" else backend, "batch": batch,
        "accumulate": accumulate, "S": S, "step_ms": milliseconds, "tok_s": tok_s,
        "times_the_field": tok_s / FIELD_TOK_S,
        "peak_gib": torch.cuda.max_memory_allocated() / 2**30,
    }  # fmt: skip


def _figures(args: argparse.Namespace) -> dict[str, Any]:
    lengths = tuple(int(length) for length in args.lengths.split(","))
    backends = [b for b in ("triton", "torch") if available_backends("cuda")[b] is None]
    figures: dict[str, Any] = {
        "device": torch.cuda.get_device_name(), "torch": torch.__version__, "backends": backends
    }  # fmt: skip
    print(figures)
    if args.only in ("all", "right") and "triton" in backends:
        print("Triton against the equations:")
        figures["right"] = check_right((1, 33, 65, 1025, 1500))
    if args.only in ("all", "attention"):
        print(f"forward + backward, bf16, batch {args.batch}, median of {args.repeats}, ms:")
        figures["attention"] = compare_attention(lengths, args.batch, args.repeats, backends)
    if args.only in ("all", "model"):
        print("the 125M model, whole steps:")
        figures["model"] = []
        for kind, backend in (*(("nsa", b) for b in backends), ("dense", "auto")):
            torch.cuda.reset_peak_memory_stats()
            row = time_model(backend, kind, args.model_batch, args.accumulate, args.repeats)
            figures["model"].append(row)
            print(" ", row, flush=True)
    return figures


def main(argv: list[str] | None = None) -> int:
    """Measure, print, and say by the exit code whether it was right."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=["all", "right", "attention", "model"], default="all")
    parser.add_argument("--lengths", default="2048,4096,8192,16384,32768")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=20, help="timings of each figure, >= 20")
    parser.add_argument("--model-batch", type=int, default=16)
    parser.add_argument("--accumulate", type=int, default=1)
    parser.add_argument("--json", type=Path, help="also write the figures here")
    args = parser.parse_args(argv)
    if not torch.cuda.is_available():
        print("No CUDA device here: nothing was measured, and no GPU figure is claimed.")
        return 3
    figures = _figures(args)
    if args.json:
        args.json.write_text(json.dumps(figures, indent=1), encoding="utf-8")
    return 0 if all(row["right"] for row in figures.get("right", [])) else 1


if __name__ == "__main__":
    sys.exit(main())
