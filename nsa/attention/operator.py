"""NSA as an operator that torch.compile keeps whole: `torch.ops.nsa_attention.attend`.

It is used within torch.compile and torch.export; elsewhere the backends' autograd functions serve.
Both call the same two halves, forward and backward. It calls no foreign kernels. The number of its
results depends on the backend: output, block ids, and what backward reads.

Annotations are evaluated here, since PyTorch makes the operators' schemas of them.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from nsa.attention import torch_backend
from nsa.attention.backends import BackendUnavailableError, choose_for_call
from nsa.attention.compression import exact_dtype
from nsa.attention.counters import count
from nsa.attention.kernels import PIECES, asked_kernels
from nsa.attention.tensors import Call

Inputs = list[Tensor]
"""q, k_blocks, v_blocks, k_sel, v_sel, k_win, v_win, gates."""


class Halves(NamedTuple):
    """A backend in two halves.

    Attributes:
        forward: Output, ids and what is kept.
        like_forward: Tensors of the same shapes, dtypes and strides, of no particular content.
        backward: From the output's gradient, the inputs and what `forward` returned after the
            output: the gradients of the inputs.
    """

    forward: Callable[[Inputs, Call], list[Tensor]]
    like_forward: Callable[[Inputs, Call], list[Tensor]]
    backward: Callable[[Tensor, Inputs, list[Tensor], Call], list[Tensor]]


def _torch_forward(inputs: Inputs, call: Call) -> list[Tensor]:
    for operation in ("prefix", "window"):
        count(operation, PIECES, "within a compiled graph")
    out, ids, kept, _ = torch_backend.compute(inputs, call)
    # Packed, wherever it lies: graphs that PyTorch's compiler has kept on disk know this shape.
    out_sel = kept.out_sel.flatten(2, 3).flatten(0, 1)
    return [out, ids, out_sel, *(x for x in kept.lses if x is not None)]


def _torch_like(inputs: Inputs, call: Call) -> list[Tensor]:
    q, groups = inputs[0], inputs[3].shape[2]
    B, S, H, D = q.shape
    pairs, rows, exact = B * groups, S * (H // groups), exact_dtype(q.dtype)
    ids = q.new_empty(B, S, groups, call.n_sel, dtype=torch.int64)
    out_sel = q.new_empty(pairs, rows, D, dtype=exact)
    lses = [q.new_empty(pairs, rows, dtype=exact) for _ in range(3)]
    return [q.new_empty(q.shape), ids, out_sel, *lses]


def _torch_backward(grad: Tensor, inputs: Inputs, kept: list[Tensor], call: Call) -> list[Tensor]:
    ids, out_sel, lse_cmp, lse_sel, lse_win = kept
    (B, S, H, D), G = inputs[0].shape, inputs[3].shape[2]
    whole = torch_backend.Kept(
        out_sel=out_sel.view(B, G, S, H // G, D), lses=(lse_cmp, lse_sel, lse_win)
    )
    plans = torch_backend.plans_of_selection(ids, call)
    grads = torch_backend.gradients(grad, inputs, whole, plans, call)
    return [x for x in grads if x is not None]


def _halves(inputs: Inputs, backend: str, call: Call, *, counted: bool = False) -> Halves:
    """Those of the backend that serves a call; a rule of devices, dtypes and shapes alone."""
    chosen, reason = choose_for_call(
        backend, inputs[0], inputs[3].shape[2], call.l_sel, asked_kernels()
    )
    if counted:
        count("attention", chosen, reason)
    if chosen == "triton":
        from nsa.attention.gpu import function  # Triton is optional, and slow to import

        return Halves(function.forward_half, function.like_forward_half, function.backward_half)
    if chosen == "torch":
        return Halves(_torch_forward, _torch_like, _torch_backward)
    raise BackendUnavailableError(f"attention backend {chosen!r} cannot be part of a graph")


def _call(*sizes: Any) -> Call:
    names = ("l", "d", "l_sel", "n_sel", "w", "scale", "want_ids")
    return Call(**dict(zip(names, sizes, strict=False)))


@torch.library.custom_op("nsa_attention::attend", mutates_args=())
def attend(
    q: Tensor,
    k_blocks: Tensor,
    v_blocks: Tensor,
    k_sel: Tensor,
    v_sel: Tensor,
    k_win: Tensor,
    v_win: Tensor,
    gates: Tensor,
    l: int,  # noqa: E741
    d: int,
    l_sel: int,
    n_sel: int,
    w: int,
    scale: float,
    want_ids: bool,
    backend: str,
) -> list[Tensor]:
    """NSA over given compressed keys and values; arguments as `nsa_attention`.

    Returns:
        out [B, S, H, D], the block ids [B, S, G, n_sel] (empty where neither wanted nor needed),
        and what the backward pass reads.
    """
    inputs = [q, k_blocks, v_blocks, k_sel, v_sel, k_win, v_win, gates]
    call = _call(l, d, l_sel, n_sel, w, scale, want_ids)
    with torch.autocast(q.device.type, enabled=False):
        results = _halves(inputs, backend, call, counted=True).forward(inputs, call)
    return [x.contiguous() for x in results]


@attend.register_fake
def _(*arguments: Any) -> list[Tensor]:
    inputs, call, backend = list(arguments[:8]), _call(*arguments[8:-1]), arguments[-1]
    return _halves(inputs, backend, call).like_forward(inputs, call)


@torch.library.custom_op("nsa_attention::attend_backward", mutates_args=())
def attend_backward(
    grad: Tensor,
    inputs: list[Tensor],
    kept: list[Tensor],
    l: int,  # noqa: E741
    d: int,
    l_sel: int,
    n_sel: int,
    w: int,
    scale: float,
    backend: str,
) -> list[Tensor]:
    """Gradients of the tensors that `attend` was given, from that of its first result."""
    call = _call(l, d, l_sel, n_sel, w, scale)
    with torch.autocast(grad.device.type, enabled=False):
        grads = _halves(inputs, backend, call).backward(grad, inputs, kept, call)
    return [x.contiguous() for x in grads]


@attend_backward.register_fake
def _(_grad: Tensor, inputs: list[Tensor], *_others: Any) -> list[Tensor]:
    return [x.new_empty(x.shape) for x in inputs]


def _keep(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
    tensors, (*sizes, _want_ids, backend) = inputs[:8], inputs[8:]
    ctx.sizes, ctx.backend = sizes, backend
    ctx.save_for_backward(*tensors, *output[1:])
    ctx.set_materialize_grads(False)


def _backward(ctx: Any, grads: list[Tensor | None]) -> tuple[Tensor | None, ...]:
    if grads[0] is None:
        return (None,) * 16
    saved = list(ctx.saved_tensors)
    of_inputs = attend_backward(grads[0], saved[:8], saved[8:], *ctx.sizes, ctx.backend)
    return (*of_inputs, *(None,) * 8)


attend.register_autograd(_backward, setup_context=_keep)
