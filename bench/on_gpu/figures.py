"""What do timings say? Medians and their spread, break-even, and the work that is counted.

Pure: numbers in, numbers out.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from nsa.attention.selection_rule import RULE

DENSE = ("flash", "cudnn", "math")
"""Kernels of dense attention."""
PRODUCTS: Mapping[str, int] = {
    "band_forward": 2,
    "band_dq": 3,
    "band_dkdv": 4,
    "gathered_forward": 2,
    "gathered_backward": 5,
}
"""Products of a query row with a key or value row that a kernel makes for each pair."""


def spread(timings_ms: Sequence[float]) -> dict[str, float]:
    """Median and interquartile range, rounded to 0.1 us."""
    if len(timings_ms) < 2:
        return {"ms": round(timings_ms[0], 4), "iqr_ms": 0.0}
    low, middle, high = statistics.quantiles(timings_ms, n=4, method="inclusive")
    return {"ms": round(middle, 4), "iqr_ms": round(high - low, 4)}


def break_even(ratios: Mapping[int, float]) -> dict[str, object]:
    """Return from which length on NSA is faster, as `at` and in `words`.

    Between two measured lengths it is where a straight line through the logarithms crosses 1.

    Args:
        ratios: time of dense attention over that of NSA, by length.
    """
    lengths = sorted(ratios)
    if not lengths:
        return {"at": None, "words": "not measured"}
    if all(ratios[S] >= 1 for S in lengths):
        return {"at": None, "words": f"faster from {lengths[0]} on, the shortest measured"}
    if ratios[lengths[-1]] < 1:
        return {"at": None, "words": f"not faster up to {lengths[-1]}, the longest measured"}
    below = max(S for S in lengths if ratios[S] < 1)
    above = min(S for S in lengths if below < S)
    from_log, to_log = math.log(ratios[below]), math.log(ratios[above])
    share = -from_log / (to_log - from_log)
    at = round(math.exp(math.log(below) + share * math.log(above / below)))
    return {"at": at, "words": f"faster from about {at} on"}


def measured_ms(
    rows: Iterable[Mapping[str, Any]],
) -> dict[tuple[str, str, str], dict[str, dict[int, float]]]:
    """Median milliseconds of the rows `attention`: by (direction, batch, way), kernel and length.

    The batch is "1" or "64k tokens", the way of launching "eager" or "graph".
    """
    found: dict[tuple[str, str, str], dict[str, dict[int, float]]] = {}
    for row in rows:
        if row["row"] != "attention":
            continue
        for way in ("eager", "graph"):
            if row.get(way):
                batch = "1" if row["B"] == 1 else "64k tokens"
                of_kernel = found.setdefault((row["direction"], batch, way), {})
                of_kernel.setdefault(row["kernel"], {})[row["S"]] = row[way]["ms"]
    return found


def break_even_rows(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Each of our backends against each dense kernel, by direction, batch and way of launching."""
    told = []
    for (direction, batch, way), kernels in measured_ms(rows).items():
        for ours in sorted(kernels.keys() - set(DENSE)):
            for dense in sorted(kernels.keys() & set(DENSE)):
                times, others = kernels[ours], kernels[dense]
                ratios = {S: others[S] / times[S] for S in sorted(times.keys() & others.keys())}
                if ratios:
                    told.append(
                        {
                            "of": ours, "against": dense, "way": way, "direction": direction,
                            "batch": batch,
                            "ratios": {S: round(ratio, 3) for S, ratio in ratios.items()},
                            **break_even(ratios),
                        }
                    )  # fmt: skip
    return told


def pairs(S: int, *, l: int, d: int, l_sel: int, n_sel: int, w: int) -> dict[str, int]:  # noqa: E741
    """(query, key) pairs of one head that the equations ask for, by branch, and of dense attention.

    `own` are those of the selected branch in the dense prefix and in the recent blocks,
    `gathered` those in the first blocks and the ones that were chosen by score.
    """
    free, before = range(min(S, n_sel * l_sel), S), (RULE.recent - 1) * l_sel
    prefix = S - len(free)
    return {
        "compressed": sum((t - l + 1) // d + 1 for t in range(l - 1, S)),
        "own": prefix * (prefix + 1) // 2 + sum(before + t % l_sel + 1 for t in free),
        "gathered": len(free) * (n_sel - RULE.recent) * l_sel,
        "window": sum(min(t + 1, w) for t in range(S)),
        "dense": S * (S + 1) // 2,
    }


def kernel_flop(
    counted: Mapping[str, int], heads: int, width: int, *, bits: bool
) -> dict[str, int]:
    """Return the floating-point operations of one call by kernel.

    Args:
        counted: as `pairs` counts them, for all batch items.
        heads: query heads.
        width: of a head.
        bits: whether the selected branch is one band over all keys (up to 32 blocks).
    """
    selected = counted["dense"] if bits else counted["own"]
    of_band = counted["compressed"] + selected + counted["window"]
    work = {"band": of_band, "gathered": 0 if bits else counted["gathered"]}
    return {
        kernel: 2 * width * heads * products * work[kernel.partition("_")[0]]
        for kernel, products in PRODUCTS.items()
    }


def kernel_rows(
    times_us: Mapping[str, tuple[float, int]], flop: Mapping[str, int]
) -> list[dict[str, object]]:
    """Return a table of kernels, the slowest first, from microseconds and launches of a call."""
    whole = sum(us for us, _ in times_us.values())
    rows: list[dict[str, object]] = []
    for name, (us, launches) in sorted(times_us.items(), key=lambda row: -row[1][0]):
        work = flop.get(name, 0)
        rows.append(
            {
                "kernel": name,
                "us": round(us, 2),
                "launches": launches,
                "share": round(us / whole, 4) if whole else 0.0,
                "tflop_s": round(work / us / 1e6, 2) if work and us else None,
            }
        )
    return rows
