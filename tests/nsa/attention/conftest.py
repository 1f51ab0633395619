"""Inputs of NSA, and a judge of its own: the equations as loops over single queries and heads."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

SMALL = {"l": 8, "d": 4, "l_sel": 16, "n_sel": 4, "w": 20}
NAMES = ("q", "k_cmp", "v_cmp", "k_sel", "v_sel", "k_win", "v_win", "gates")


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def small() -> dict[str, int]:
    """Block sizes that make every rule matter within a hundred tokens."""
    return dict(SMALL)


@pytest.fixture
def make_inputs() -> Callable[..., dict[str, Tensor]]:
    """Random leaves by name; `q_factor` multiplies all logits."""

    def make(
        S: int,
        *,
        B: int = 2,
        H: int = 4,
        G: int = 2,
        D: int = 8,
        dtype: torch.dtype = torch.float64,
        q_factor: float = 1.0,
        seed: int = 0,
    ) -> dict[str, Tensor]:
        generator = torch.Generator().manual_seed(seed)

        def draw(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=generator, dtype=torch.float64)

        tensors = {"q": draw(B, S, H, D) * q_factor}
        tensors |= {name: draw(B, S, G, D) for name in NAMES[1:-1]}
        tensors["gates"] = draw(B, S, H, 3).sigmoid()
        return {name: tensor.to(dtype).requires_grad_() for name, tensor in tensors.items()}

    return make


@pytest.fixture
def run() -> Callable[..., tuple[Tensor, Tensor, dict[str, Tensor]]]:
    """Forward and backward with a fixed random gradient: output, selection, gradients.

    `blocks_in` has wider inputs compress to what inputs of that dtype compress to.
    """
    from nsa.attention import nsa_attention
    from nsa.attention.reference import compress

    def run_once(
        inputs: dict[str, Tensor], *, blocks_in: torch.dtype | None = None, **options: Any
    ) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        leaves = {name: x.detach().clone().requires_grad_() for name, x in inputs.items()}
        if blocks_in is not None:
            means = (compress(leaves[n], options["l"], options["d"]) for n in ("k_cmp", "v_cmp"))
            options["compressed"] = tuple(x.to(blocks_in).to(x.dtype) for x in means)
        out, sel = nsa_attention(**leaves, return_selection=True, **options)
        generator = torch.Generator().manual_seed(99)
        grad = torch.randn(out.shape, generator=generator, dtype=torch.float64).to(out)
        out.backward(grad)
        zero = {name: torch.zeros_like(x) for name, x in leaves.items()}
        grads = {n: zero[n] if x.grad is None else x.grad for n, x in leaves.items()}
        return out.detach(), sel, grads

    return run_once


def _row(q: Tensor, keys: list[Tensor], values: list[Tensor], scale: float) -> tuple[Tensor, Any]:
    if not keys:
        return torch.zeros_like(q), []
    weights = torch.softmax(scale * torch.stack([q @ k for k in keys]), dim=0)
    return sum(p * v for p, v in zip(weights, values, strict=True)), weights.tolist()


def _chosen(scores: list[float], c: int, n_sel: int) -> list[int]:
    chosen = {j for j in (0, c - 1, c) if 0 <= j <= c}
    for j in sorted(range(c + 1), key=lambda j: (-scores[j], j)):
        if len(chosen) < min(n_sel, c + 1):
            chosen.add(j)
    return sorted(chosen)


def _judge_item(x: dict[str, Tensor], l: int, d: int, l_sel: int, n_sel: int, w: int) -> Any:  # noqa: E741
    S, H, D = x["q"].shape
    G = x["k_sel"].shape[1]
    scale = 1 / math.sqrt(D)
    C = max(0, (S - l) // d + 1)
    means = {
        name: [[x[name][i * d : i * d + l, g].mean(0) for i in range(C)] for g in range(G)]
        for name in ("k_cmp", "v_cmp")
    }
    outs, ids = [], []
    for t in range(S):
        seen = [i for i in range(C) if i * d + l - 1 <= t]
        c = t // l_sel
        for g in range(G):
            heads = range(g * H // G, (g + 1) * H // G)
            scores = [0.0] * (c + 1)
            compressed = {}
            for h in heads:
                k, v = ([means[n][g][i] for i in seen] for n in ("k_cmp", "v_cmp"))
                compressed[h], p = _row(x["q"][t, h], k, v, scale)
                for i, weight in enumerate(p):
                    for j in range(c + 1):
                        low, high = max(i * d, j * l_sel), min(i * d + l, (j + 1) * l_sel)
                        scores[j] += weight * max(0, high - low) / d
            chosen = _chosen(scores, c, n_sel)
            ids.append(chosen + [-1] * (n_sel - len(chosen)))
            picked = [s for s in range(t + 1) if s // l_sel in chosen]
            near = range(max(0, t - w + 1), t + 1)
            for h in heads:
                q = x["q"][t, h]
                sel, _ = _row(
                    q, [x["k_sel"][s, g] for s in picked], [x["v_sel"][s, g] for s in picked], scale
                )
                win, _ = _row(
                    q, [x["k_win"][s, g] for s in near], [x["v_win"][s, g] for s in near], scale
                )
                gate = x["gates"][t, h]
                outs.append(gate[0] * compressed[h] + gate[1] * sel + gate[2] * win)
    return torch.stack(outs).view(S, H, D), torch.tensor(ids).view(S, G, n_sel)


@pytest.fixture
def judge() -> Callable[..., tuple[Tensor, Tensor]]:
    """NSA by loops, one query and head at a time; differentiable; use fp64 and few tokens."""

    def judge_all(inputs: dict[str, Tensor], **sizes: int) -> tuple[Tensor, Tensor]:
        items = range(inputs["q"].shape[0])
        results = [_judge_item({n: x[b] for n, x in inputs.items()}, **sizes) for b in items]
        return torch.stack([out for out, _ in results]), torch.stack([ids for _, ids in results])

    return judge_all
