"""Call the kernel in C for the pieces of a plan.

It computes in fp32, for heads of a multiple of 16 numbers; a pair is one thread's. Every tensor is
contiguous. Shapes as in plan.py.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from threading import Thread
from typing import Any

import torch
from torch import Tensor

from nsa.attention.compressed import counts_of_offsets
from nsa.attention.cpu.library import Kernel, load_library
from nsa.attention.pieces import OutputGradient, begin_sums, end_sums
from nsa.attention.plan import Gathered, Plan, Span
from nsa.attention.tensors import Sizes

KERNEL = Kernel.of("pieces.c", "nsa_attend", "nsa_attend_backward", "nsa_attend_compressed")
VECTOR = 16
"""Numbers in one of its vectors."""
KEYS = 64
"""Keys of one of its blocks."""
TILE = 60
"""Most rows that it takes at a time; all heads of a gathered query are among them."""


class _Sizes(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_int64) for name in ("K", "R", "D", "w", "l", "d", "spans", "groups")
    ]


class _Rows(ctypes.Structure):
    _fields_ = [("at", ctypes.c_void_p), ("token", ctypes.c_int64), ("head", ctypes.c_int64)]


class _Column(ctypes.Structure):
    _fields_ = [("at", ctypes.c_void_p), ("step", ctypes.c_int64)]


@dataclass(frozen=True, slots=True)
class Functions:
    """The kernel's functions, in the order of their names."""

    attend: Callable[..., Any]
    attend_backward: Callable[..., Any]
    attend_compressed: Callable[..., Any]


def call_reason(q_BSHD: Tensor, G: int, exact: torch.dtype) -> str:
    """Why the kernel cannot serve these queries in such a dtype, empty where it can."""
    B, _, H, D = q_BSHD.shape
    if q_BSHD.device.type != "cpu":
        return f"it needs a CPU, not {q_BSHD.device.type}"
    if type(q_BSHD) is not Tensor:
        return "these are no plain tensors"
    if exact != torch.float32:
        return f"it computes in fp32, not {exact}"
    if D % VECTOR:
        return f"its vectors hold {VECTOR} numbers, and a head has {D}"
    if H // G > TILE:
        return f"it takes {TILE} heads of a group, not {H // G}"
    if torch.get_num_threads() > B * G:
        return f"PyTorch has {torch.get_num_threads()} threads for {B * G} groups"
    return ""


@functools.cache
def load_functions() -> Functions | str:
    """Return the kernel's functions, or why there are none."""
    library = load_library(KERNEL)
    if isinstance(library, str):
        return library
    pointer, number = ctypes.c_void_p, ctypes.c_int64
    sizes, column, rows = (ctypes.POINTER(one) for one in (_Sizes, _Column, _Rows))
    plan, keys = (*[pointer] * 3, number), (pointer, pointer)
    signatures: tuple[list[Any], ...] = (
        [sizes, *plan, rows, *keys, pointer, rows, pointer, pointer],
        [sizes, *plan, rows, *keys, rows, *[column] * 3, rows, *keys, number, number, pointer],
        [
            *(sizes, rows, *keys, ctypes.c_float, *[number] * 7, pointer),
            *(rows, pointer, pointer, number, pointer),
        ],
    )
    found = [getattr(library, name) for name in KERNEL.functions]
    for function, arguments in zip(found, signatures, strict=True):
        function.argtypes, function.restype = arguments, None
    return Functions(*found)


@dataclass(frozen=True, slots=True)
class _Groups:
    """The gathered pieces of one pair: keys, how many queries and where they begin, and these."""

    table: Tensor
    queries: Tensor


def _table(rows: Sequence[tuple[int, int, int, int]]) -> Tensor:
    return torch.tensor(rows, dtype=torch.int64, device="cpu").view(-1, 4)


def _spans(spans: Sequence[Span]) -> Tensor:
    return _table([(span.t0, span.t1, span.k0, span.k1) for span in spans])


def _groups(gathered: Sequence[Gathered], pairs: int) -> list[_Groups]:
    """The gathered pieces of each pair."""
    found = []
    for n in range(pairs):
        own = [one for one in gathered if one.n == n]
        ends = [0]
        for one in own:
            ends.append(ends[-1] + len(one.queries))
        rows = [
            (one.k0, one.k1, len(one.queries), end) for one, end in zip(own, ends, strict=False)
        ]
        none = torch.empty(0, dtype=torch.int64, device="cpu")
        found.append(_Groups(_table(rows), torch.cat([none, *(one.queries for one in own)])))
    return found


def _each_pair(pairs: int, work: Callable[[int], None]) -> None:
    """Have every pair done, by as many threads as PyTorch has; also once Python is leaving."""
    threads = min(torch.get_num_threads(), pairs)
    failed: list[BaseException] = []

    def share(first: int) -> None:
        try:
            for n in range(first, pairs, threads):
                work(n)
        except BaseException as error:  # noqa: BLE001 - raised where it is waited for
            failed.append(error)

    others = [Thread(target=share, args=(first,)) for first in range(1, threads)]
    for thread in others:
        thread.start()
    share(0)
    for thread in others:
        thread.join()
    if failed:
        raise failed[0]


def _room(numbers: int) -> Tensor:
    """Memory of the kernel's own; what a process makes tensors of by default is a caller's."""
    return torch.empty(numbers, dtype=torch.float32, device="cpu")


def _rows(x_NPD: Tensor, n: int, R: int) -> Any:
    """Where the rows of one pair lie."""
    D = x_NPD.shape[-1]
    return ctypes.byref(_Rows(x_NPD[n].data_ptr(), R * D, D))


def attend(
    functions: Functions,
    q_NPD: Tensor,
    k_NKD: Tensor,
    v_NKD: Tensor,
    plan: Plan,
    out_NPD: Tensor,
    *,
    begin: int = 0,
) -> Tensor:
    """Softmax attention over the pairs of a plan, as `pieces.attend`."""
    reference, total = begin_sums(q_NPD, k_NKD, plan, begin)
    out_NPD[:, : begin * (q_NPD.shape[1] // k_NKD.shape[1])] = 0
    add_pieces(functions, q_NPD, k_NKD, v_NKD, plan, reference, out_NPD, total)
    return end_sums(out_NPD, total, reference)


def add_pieces(
    functions: Functions,
    q_NPD: Tensor,
    k_NKD: Tensor,
    v_NKD: Tensor,
    plan: Plan,
    reference_NP: Tensor | None,
    out_NPD: Tensor,
    total_NP: Tensor,
) -> None:
    """Write the unnormalised output, and the sums that it is to be divided by.

    Both are overwritten for the rows that are in a span. `reference_NP` is taken from a row's
    scores.
    """
    (N, K, D), R = k_NKD.shape, q_NPD.shape[1] // k_NKD.shape[1]
    spans, groups = _spans(plan.spans), _groups(plan.gathered, N)

    def work(n: int) -> None:
        own = groups[n]
        sizes = _Sizes(K, R, D, min(plan.w or K, K), 1, 1, len(spans), len(own.table))
        room = _room(-(-K // KEYS) * KEYS * D + 2 * TILE * D)
        reference = None if reference_NP is None else reference_NP[n].data_ptr()
        functions.attend(
            ctypes.byref(sizes), spans.data_ptr(), own.table.data_ptr(), own.queries.data_ptr(),
            n * K, _rows(q_NPD, n, R), k_NKD[n].data_ptr(), v_NKD[n].data_ptr(), reference,
            _rows(out_NPD, n, R), total_NP[n].data_ptr(), room.data_ptr(),
        )  # fmt: skip

    _each_pair(N, work)


def compressed_attend(
    functions: Functions,
    q_NPD: Tensor,
    k_NCD: Tensor,
    v_NCD: Tensor,
    S: int,
    out_NPD: Tensor,
    lse_NP: Tensor,
    sizes: Sizes,
    *,
    start: int,
    stretch: tuple[int, int],
    factor: float,
) -> Tensor:
    """Output, statistics and scores as `compressed.compressed_attend`."""
    (N, C, D), R, (begin, end) = k_NCD.shape, q_NPD.shape[1] // S, stretch
    blocks, wanted = -(-S // sizes.l_sel), max(0, end - max(start, begin))
    scores = torch.zeros(N, wanted, blocks, dtype=torch.float32, device="cpu")
    out_NPD[:, begin * R : max(begin, min(end, sizes.l - 1)) * R] = 0
    counts = torch.tensor(counts_of_offsets(sizes), dtype=torch.float32, device="cpu")
    row = -(-C // KEYS) * KEYS
    passed = _Sizes(C, R, D, S, sizes.l, sizes.d, 0, 0)

    def work(n: int) -> None:
        room = _room(row * D + 2 * TILE * D + (TILE + 1) * row + 2 * len(counts))
        functions.attend_compressed(
            ctypes.byref(passed), _rows(q_NPD, n, R), k_NCD[n].data_ptr(), v_NCD[n].data_ptr(),
            factor, start, begin, end, blocks, sizes.l_sel // sizes.d, sizes.l // sizes.d - 1,
            len(counts), counts.data_ptr(), _rows(out_NPD, n, R), lse_NP[n].data_ptr(),
            scores[n].data_ptr(), row, room.data_ptr(),
        )  # fmt: skip

    if C:
        _each_pair(N, work)
    return scores


def attend_backward(
    functions: Functions,
    q_NPD: Tensor,
    k_NKD: Tensor,
    v_NKD: Tensor,
    plan: Plan,
    output: OutputGradient,
    dq_NPD: Tensor,
) -> tuple[Tensor, Tensor]:
    """Gradients as `pieces.attend_backward`."""
    N, K, _ = k_NKD.shape
    return _backward(
        functions, q_NPD, k_NKD, v_NKD, K, plan.spans, _groups(plan.gathered, N), output, dq_NPD,
        w=min(plan.w or K, K), lone=K if plan.w == 1 else 1,
    )  # fmt: skip


def compressed_backward(
    functions: Functions,
    q_NPD: Tensor,
    k_NCD: Tensor,
    v_NCD: Tensor,
    S: int,
    output: OutputGradient,
    dq_NPD: Tensor,
    sizes: Sizes,
    _start: int,
) -> tuple[Tensor, Tensor]:
    """Gradients as `compressed.compressed_backward`."""
    (N, C, _), l, d = k_NCD.shape, sizes.l, sizes.d  # noqa: E741
    spans = [Span(t0=l - 1, t1=S, k0=0, k1=C)] if C else []
    return _backward(
        functions, q_NPD, k_NCD, v_NCD, S, spans, _groups((), N), output, dq_NPD,
        w=S, l=l, d=d, lone=l - 1 + d,
    )  # fmt: skip


def _backward(
    functions: Functions,
    q_NPD: Tensor,
    k_NKD: Tensor,
    v_NKD: Tensor,
    S: int,
    spans: Sequence[Span],
    groups: Sequence[_Groups],
    output: OutputGradient,
    dq_NPD: Tensor,
    *,
    w: int,
    l: int = 1,  # noqa: E741
    d: int = 1,
    lone: int,
) -> tuple[Tensor, Tensor]:
    (N, K, D), R = k_NKD.shape, q_NPD.shape[1] // S
    dk, dv, table = torch.zeros_like(k_NKD), torch.zeros_like(v_NKD), _spans(spans)
    widest = max((span.k1 - span.k0 for span in spans), default=0)
    # A tile's keys begin and end with whole blocks.
    row = (-(-widest // KEYS) + 1) * KEYS if output.whole_rows else 0
    numbers = (output.minus_lse_NP1, output.gate_NP1, output.dot_NP1)

    def work(n: int) -> None:
        own = groups[n]
        sizes = _Sizes(K, R, D, w, l, d, len(table), len(own.table))
        room = _room(2 * -(-K // KEYS) * KEYS * D + 6 * TILE * D + 2 * TILE * row)
        columns = [_Column(x[n].data_ptr(), x.stride(1)) for x in numbers]
        functions.attend_backward(
            ctypes.byref(sizes), table.data_ptr(), own.table.data_ptr(), own.queries.data_ptr(),
            n * K, _rows(q_NPD, n, R), k_NKD[n].data_ptr(), v_NKD[n].data_ptr(),
            _rows(output.grad, n, R), *map(ctypes.byref, columns), _rows(dq_NPD, n, R),
            dk[n].data_ptr(), dv[n].data_ptr(), lone, row, room.data_ptr(),
        )  # fmt: skip

    _each_pair(N, work)
    return dk, dv
