"""Is NSA right and fast on this GPU?

Run from the repository root on a machine with a CUDA device (Triton comes with PyTorch there):

    python -m bench.gpu                         # everything, a few minutes
    python -m bench.gpu --only attention --lengths 2048,32768 --json figures.json

1. *proof*: the one that `backend="auto"` goes by on this machine (`python -m nsa.attention.proof`):
   the Triton backend against the plain equations, forward and backward, in fp32, fp16 and bf16, and
   against the torch backend in time. Made if there is none; `--again` makes it anew.
2. *attention*: forward + backward of NSA (each backend) against dense causal SDPA held to
   FLASH_ATTENTION, and cuDNN's figure beside it: 12 heads, 2 groups, D 64, bf16, medians of at
   least 20 CUDA-event timings after warm-up. Batch is stated; dense gets its keys repeated to all
   heads outside the clock.
3. *model*: tokens/s of whole training steps of the 125M model (forward, backward, clipping, fused
   AdamW, bf16 compute over fp32 parameters), batch and accumulation stated.

Exit 0 when Triton was right, 1 when it was wrong or its trial failed, 3 when there is no GPU: then
nothing was measured, and no figure of this page is known.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from nsa.attention import available_backends
from nsa.attention.gpu.trial import HEAD_DIM, HEADS, median_ms, nsa_step
from nsa.attention.proof import device_proof, table
from nsa.config import build_config, load_config
from nsa.model import build_model
from nsa.model.transformer import next_byte_loss
from nsa.optimizer import build_optimizer

FIELD_TOK_S = 38.0


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


def compare_attention(
    lengths: tuple[int, ...], batch: int, repeats: int, backends: list[str]
) -> list[dict[str, Any]]:
    """Medians of each backend and of dense attention, in ms, and the ratios to flash."""
    rows = []
    for S in lengths:
        steps = {
            "flash": lambda S=S: _dense_step(batch, S, SDPBackend.FLASH_ATTENTION),
            "cudnn": lambda S=S: _dense_step(batch, S, SDPBackend.CUDNN_ATTENTION),
            **{
                b: lambda S=S, b=b: nsa_step(batch, S, b, torch.bfloat16, torch.device("cuda"))
                for b in backends
            },
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
    if "triton" in backends:
        print("the proof:", flush=True)
        proof = device_proof(torch.device("cuda", torch.cuda.current_device()), again=args.again)
        figures["proof"] = asdict(proof)
        print(table(proof), flush=True)
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
    parser.add_argument("--only", choices=["all", "proof", "attention", "model"], default="all")
    parser.add_argument("--again", action="store_true", help="make the proof anew")
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
    return 0 if figures.get("proof", {"right": True})["right"] else 1


if __name__ == "__main__":
    sys.exit(main())
