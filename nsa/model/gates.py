"""Do all three branches still have a say? Gate statistics of the last forward pass."""

from collections.abc import Sequence

import torch
from torch import Tensor

from nsa.attention.module import NativeSparseAttention
from nsa.model.transformer import LanguageModel

_COLLAPSED_ENTROPY = 0.18
_COLLAPSED_SHARE = 0.9


def gate_stats(model: LanguageModel) -> Tensor:
    """Mean normalised entropy and mean largest share of every layer, `[layers, 2]` on the device.

    `[0, 2]` where none are kept.
    """
    stats = [
        block.attention.gate_stats
        for block in model.layers()
        if isinstance(block.attention, NativeSparseAttention)
        and block.attention.gate_stats is not None
    ]
    return torch.stack(stats) if stats else torch.zeros(0, 2, device=model.rotation.device)


def gate_rows(numbers: Sequence[float]) -> list[tuple[float, float]]:
    """`(entropy, share)` of every layer, of `gate_stats` row by row."""
    return list(zip(numbers[::2], numbers[1::2], strict=True))


def gate_health(rows: list[tuple[float, float]]) -> dict[str, float]:
    """Gate fields of a progress line; empty when statistics are off or attention is dense.

    Shares are gates divided by their sum over the branches. `gate_entropy` is the mean entropy of
    the shares in units of ln 3 (1 = equal, 0 = one branch has all), `gate_max` the largest share
    of any layer, `gate_collapse_frac` the fraction of layers below 0.18 or above 0.9.
    """
    if not rows:
        return {}
    collapsed = [
        entropy < _COLLAPSED_ENTROPY or share > _COLLAPSED_SHARE for entropy, share in rows
    ]
    return {
        "gate_entropy": sum(entropy for entropy, _ in rows) / len(rows),
        "gate_max": max(share for _, share in rows),
        "gate_collapse_frac": sum(collapsed) / len(rows),
    }
