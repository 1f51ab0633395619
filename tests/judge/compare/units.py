"""Units as tests make them: one value, or a value with blocks around it."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from typing import Any

from gonogo.judge.compare.unit import Ran, Unit


def ran(**told: Any) -> Ran:
    """A run of one batch size; `batch` is what its order says."""
    batch = told.pop("batch", 4)
    paths = {"train.batch.global_seqs": batch, "train.seed": told.pop("seed", 1)}
    return Ran(ordered={**paths, **told}, told={})


def unit(name: str, value: float, **fields: Any) -> Unit:
    return Unit(
        name=name,
        run=f"{name}/1",
        value=value,
        window="6..69",
        samples=64,
        **{"ran": ran(), **fields},
    )


def runs(
    letter: str,
    values: Iterable[float],
    *,
    paired: bool = True,
    seeds: Sequence[int | None] = range(1, 100),
    **what: Any,
) -> list[Unit]:
    """Runs `a1`, `a2`, … of one variant, each of its own seed."""
    return [
        unit(f"{letter}{n}", value, repeat=n if paired else None, ran=ran(seed=seed, **what))
        for n, (value, seed) in enumerate(zip(values, seeds, strict=False), start=1)
    ]


def blocks(mean: float, *, noise: float, count: int = 64, seed: int = 0) -> tuple[float, ...]:
    draw = random.Random(seed)
    return tuple(mean * (1 + draw.gauss(0, noise)) for _ in range(count))


def single(letter: str, series: Sequence[float], **what: Any) -> list[Unit]:
    """One run with its blocks."""
    value = sum(series) / len(series)
    return [unit(f"{letter}1", value, blocks=tuple(series), repeat=1, ran=ran(**what))]
