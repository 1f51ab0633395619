"""Inputs of NSA, and a judge of its own: the equations as loops over single queries and heads."""

import math

import pytest
import torch

SMALL = {"l": 8, "d": 4, "l_sel": 16, "n_sel": 4, "w": 20}
BRANCHES = tuple(f"{kind}_{branch}" for branch in ("cmp", "sel", "win") for kind in "kv")


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def small():
    """Block sizes that make every rule matter within a hundred tokens."""
    return dict(SMALL)


@pytest.fixture
def make_inputs():
    """Random leaves by name; `q_factor` multiplies all logits."""

    def make(S, *, B=2, H=4, G=2, D=8, dtype=torch.float64, q_factor=1.0, seed=0):
        generator = torch.Generator().manual_seed(seed)

        def draw(*shape):
            return torch.randn(*shape, generator=generator, dtype=torch.float64)

        tensors = {"q": draw(B, S, H, D) * q_factor}
        tensors |= {name: draw(B, S, G, D) for name in BRANCHES}
        tensors["gates"] = draw(B, S, H, 3).sigmoid()
        return {name: tensor.to(dtype).requires_grad_() for name, tensor in tensors.items()}

    return make


@pytest.fixture
def run():
    """Forward and backward with a fixed random gradient: output, selection, gradients.

    `blocks_in` has wider inputs compress to what inputs of that dtype compress to.
    """
    from nsa.attention import nsa_attention
    from nsa.attention.reference import compress

    def run_once(inputs, *, blocks_in=None, **options):
        leaves = {name: x.detach().clone().requires_grad_() for name, x in inputs.items()}
        if blocks_in is not None:
            means = (compress(leaves[n], options["l"], options["d"]) for n in ("k_cmp", "v_cmp"))
            options["compressed"] = tuple(x.to(blocks_in).to(x.dtype) for x in means)
        out, sel = nsa_attention(**leaves, return_selection=True, **options)
        generator = torch.Generator().manual_seed(99)
        grad = torch.randn(out.shape, generator=generator, dtype=torch.float64).to(out)
        out.backward(grad)
        grads = {n: torch.zeros_like(x) if x.grad is None else x.grad for n, x in leaves.items()}
        return out.detach(), sel, grads

    return run_once


@pytest.fixture
def agree(run):
    """Output, selection and gradients of the torch backend are the reference's in fp64.

    The tolerance is of the norm of a difference, over the norm of what is right.
    """

    def check(inputs, tolerance=1e-9, *, backend="torch", kernels=None, **options):
        dtype = inputs["q"].dtype
        given = {} if kernels is None else {"kernels": kernels}
        got = run(inputs, backend=backend, **given, **options)
        exact = {name: x.detach().double() for name, x in inputs.items()}
        rounded = {"blocks_in": dtype} if dtype.itemsize == 2 else {}
        wanted = run(exact, backend="reference", **rounded, **options)
        assert torch.equal(got[1], wanted[1])
        for name in ("out", *inputs):
            x, y = (part[0] if name == "out" else part[2][name] for part in (got, wanted))
            assert x.dtype == dtype
            off = (x.double() - y).norm() / y.norm().clamp_min(1e-3 * y.numel() ** 0.5)
            assert off <= tolerance, (name, off)
        return got

    return check


def _row(q, keys, values, scale):
    if not keys:
        return torch.zeros_like(q), []
    weights = torch.softmax(scale * torch.stack([q @ k for k in keys]), dim=0)
    return sum(p * v for p, v in zip(weights, values, strict=True)), weights.tolist()


def _chosen(scores, c, n_sel):
    chosen = {j for j in (0, c - 1, c) if 0 <= j <= c}
    for j in sorted(range(c + 1), key=lambda j: (-scores[j], j)):
        if len(chosen) < min(n_sel, c + 1):
            chosen.add(j)
    return sorted(chosen)


def _judge_item(x, l, d, l_sel, n_sel, w):  # noqa: E741
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
                parts, gates = [compressed[h]], x["gates"][t, h]
                for branch, tokens in (("sel", picked), ("win", near)):
                    k, v = ([x[f"{kind}_{branch}"][s, g] for s in tokens] for kind in "kv")
                    parts.append(_row(x["q"][t, h], k, v, scale)[0])
                outs.append(sum(gate * part for gate, part in zip(gates, parts, strict=True)))
    return torch.stack(outs).view(S, H, D), torch.tensor(ids).view(S, G, n_sel)


@pytest.fixture
def judge():
    """NSA by loops, one query and head at a time; differentiable; use fp64 and few tokens."""

    def judge_all(inputs, **sizes):
        items = range(inputs["q"].shape[0])
        results = [_judge_item({n: x[b] for n, x in inputs.items()}, **sizes) for b in items]
        return torch.stack([out for out, _ in results]), torch.stack([ids for _, ids in results])

    return judge_all
