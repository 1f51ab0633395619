"""How fast is NSA beside the public implementations that PyPI has?

They are not dependencies of the project. Install them into a folder of their own and name it:

    pip install --target /tmp/others --no-deps native-sparse-attention-pytorch==0.2.3 \
        fla-core==0.6.0 einops einx frozendict local-attention rotary-embedding-torch \
        hyper-connections torch-einops-utils jaxtyping wadler-lindig tqdm triton==3.7.1
    python -m bench.compare --packages /tmp/others --length 2048

One CPU thread, fp32, forward + backward, batch 1, CPU time of the thread, medians.

- `native-sparse-attention-pytorch`: its whole layer (projections included) against our whole layer,
  768 wide, 12 heads, 2 groups, D 64, l 32, d 16, l' 64, n 16, w 512.
- `flash-linear-attention`: its naive NSA needs a GPU for pooling and window. So only its naive
  selected branch is run, with our block ids and 16 heads in one group, against our whole operation.
  What it leaves out is to its advantage.

A package that cannot be imported is named and left out; it does not count as beaten.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

from bench.rig import Step, in_turn
from nsa.attention import nsa_attention
from nsa.config import AttentionConfig, ModelConfig, build_config, load_config
from nsa.model.transformer import build_attention


def _moves(parameter: Tensor) -> bool:
    return parameter.requires_grad


def _step_of(module: Callable[[Tensor], Tensor], x: Tensor, leaves: list[Tensor]) -> Step:
    def step() -> None:
        torch.autograd.grad(module(x).square().mean(), leaves, allow_unused=True)

    return step


def build_layers(S: int) -> tuple[Step, Step]:
    """native-sparse-attention-pytorch's layer, and ours."""
    from native_sparse_attention_pytorch import SparseAttention

    config = build_config(load_config(Path("m7c_125m")))
    model: ModelConfig = config.model
    attention: AttentionConfig = config.attention
    theirs: nn.Module = SparseAttention(
        dim=model.dim,
        dim_head=model.head_dim,
        heads=model.heads,
        kv_heads=model.groups,
        sliding_window_size=attention.w,
        compress_block_size=attention.l,
        compress_block_sliding_stride=attention.d,
        selection_block_size=attention.l_sel,
        num_selected_blocks=attention.n_sel,
        causal=True,
    )
    ours = build_attention(config)
    x = torch.randn(1, S, model.dim).requires_grad_()
    return (
        _step_of(theirs, x, [x, *filter(_moves, theirs.parameters())]),
        _step_of(ours, x, [x, *ours.parameters()]),
    )


def build_selected(S: int) -> tuple[Step, Step]:
    """flash-linear-attention's naive selected branch, and our whole operation."""
    from fla.ops.nsa.naive import naive_nsa_selection

    q = torch.randn(1, S, 16, 64).requires_grad_()
    keys_values = [torch.randn(1, S, 1, 64).requires_grad_() for _ in range(6)]
    gates = torch.rand(1, S, 16, 3)
    with torch.no_grad():
        _, ids = nsa_attention(q, *keys_values, gates, return_selection=True)
    k, v = keys_values[2:4]
    return (
        _step_of(lambda x: naive_nsa_selection(x, k, v, ids, 64), q, [q, k, v]),
        _step_of(lambda x: nsa_attention(x, *keys_values, gates), q, [q, *keys_values]),
    )


CONTESTS = {
    "native-sparse-attention-pytorch, layer": build_layers,
    "flash-linear-attention, naive selected branch alone": build_selected,
}


def main(argv: list[str] | None = None) -> int:
    """Print one line per package; 3 if none could be measured."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--packages", type=Path, required=True, help="pip's --target folder")
    parser.add_argument("--length", type=int, default=2048)
    parser.add_argument("--pairs", type=int, default=3)
    args = parser.parse_args(argv)
    sys.path.append(str(args.packages))
    torch.set_num_threads(1)
    torch.manual_seed(0)
    measured = 0
    print(f"torch {torch.__version__}, 1 thread, fp32, S = {args.length}, forward + backward")
    for name, build in CONTESTS.items():
        try:
            theirs, ours = build(args.length)
        except ImportError as error:
            print(f"{name}: not measured, {error}")
            continue
        their_s, our_s, ratio = in_turn(theirs, ours, args.pairs)
        rates = f"{args.length / their_s:.0f} against our {args.length / our_s:.0f} tokens/s"
        print(f"{name}: {their_s:.2f} s, ours {our_s:.2f} s, {ratio:.1f} x ({rates})", flush=True)
        measured += 1
    print("repeat: python -m bench.compare " + " ".join(sys.argv[1:] if argv is None else argv))
    return 0 if measured else 3


if __name__ == "__main__":
    sys.exit(main())
