"""D16: device memory above the plan's limit, host memory above 90 % of the group's."""

from __future__ import annotations

from typing import Any

import pytest

from gonogo.contract.finding import Act, Source
from gonogo.contract.outcome import OutcomeCode, code_of
from gonogo.watch import armed
from tests.watch.detectors.devices import Fold, device_order, sample
from tests.watch.streams import T0

LIMIT = {"memory_limit": {"reserved_mb": 60_000}}


def reserved(values: list[Any], watch: dict[str, Any] | None = None) -> Fold:
    fold = Fold(device_order(LIMIT if watch is None else watch, world_size=1))
    for step, value in enumerate(values, start=1):
        fold.step(step, gpu_mem_reserved=value)
    return fold


@pytest.mark.parametrize(
    ("values", "halts"),
    [
        ([60_000] * 9, False),
        ([60_001, 60_001], False),
        ([60_001] * 3, True),
        ([60_001, 60_001, 59_000, 60_001, 60_001], False),
        ([60_001, None, 60_001, None, 60_001], True),
        ([60_001, 60_001, "NaN", "Infinity"], False),
        ([60_001, 60_001, 0, 60_001], False),
        ([None] * 9, False),
        ([0] * 9, False),
    ],
)
def test_three_lines_running_above_the_limit_halt(values: list[Any], halts: bool) -> None:
    fold = reserved(values)
    assert fold.said() == [("memory_limit", "halt", 0)] * halts


def test_the_finding_says_what_when_and_where_the_limit_came_from() -> None:
    (halt,) = reserved([61_000] * 3).findings
    assert (halt.rank, halt.step, halt.act) == (0, 3, Act.NOW)
    assert (halt.value, halt.threshold, halt.source) == (61_000, 60_000, Source.PLAN)
    assert code_of(halt.detector) is OutcomeCode.RESOURCE_LIMIT


def test_without_a_limit_there_is_nothing_to_exceed() -> None:
    fold = reserved([10**9] * 9, watch={})
    fold.devices([sample(T0 + n, 0, mem_used_mb=1e9) for n in range(9)])
    assert fold.findings == []
    assert armed(fold.state)["memory_limit"] is False


def in_use(values: list[float | None], fold: Fold | None = None) -> Fold:
    fold = fold or Fold(device_order(LIMIT))
    for number, value in enumerate(values):
        fold.devices([sample(T0 + number, 1, mem_used_mb=value)], after_s=1.0)
    return fold


@pytest.mark.parametrize(
    ("values", "halts"),
    [
        ([61_000.0] * 3, True),
        ([61_000.0, None, 61_000.0, 61_000.0], True),
        ([61_000.0, 61_000.0, 100.0, 61_000.0, 61_000.0], False),
        ([60_000.0] * 9, False),
        ([None] * 9, False),
    ],
)
def test_where_lines_do_not_say_the_device_does(values: list[float | None], halts: bool) -> None:
    assert in_use(values).said() == [("memory_limit", "halt", 1)] * halts


def host(used_mb: float, limit_mb: float | None = 100.0, **ranks: float) -> dict[str, Any]:
    named = {name.removeprefix("r"): mb for name, mb in ranks.items()}
    return {"host_memory": {"used_mb": used_mb, "limit_mb": limit_mb, "ranks": named}}


def seen(rows: list[dict[str, Any]]) -> Fold:
    fold = Fold()
    for row in rows:
        fold.now += 5.0
        fold.tick(row)
    return fold


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([host(90.0, r0=80.0)] * 9, []),
        ([host(91.0, r0=80.0)] * 2, []),
        ([host(91.0, r0=80.0)] * 3, ["halt"]),
        ([host(91.0, r0=80.0), host(91.0, r0=80.0), host(10.0, r0=8.0)] * 3, []),
        ([host(91.0, r0=5.0, r1=5.0)] * 9, ["warn"]),
        ([host(91.0)] * 9, ["warn"]),
        ([host(91.0, None, r0=80.0)] * 9, []),
        ([host(91.0, 0.0, r0=80.0)] * 9, []),
        ([{"host_memory": {"used_mb": "much"}}] * 9, []),
        ([{"host_memory": None}] * 9, []),
    ],
    ids=[
        "at the limit", "too few", "over it", "with breaks", "somebody else's", "nobody says whose",
        "no limit", "a limit of nothing", "no number", "nothing",
    ],
)  # fmt: skip
def test_host_memory_halts_only_when_the_ranks_fill_it(
    rows: list[dict[str, Any]], expected: list[str]
) -> None:
    assert [found.severity.value for found in seen(rows).findings] == expected


A, B = host(91.0, r0=80.0), host(92.0, r1=80.0)
