"""A device that is slow, or computes other bits, is found among its equals."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gonogo.contract.records import CheckOutcome
from gonogo.supervise.preflight.node_load import NodeLoad, judge_node

PASS, WARN, FAIL = CheckOutcome.PASS, CheckOutcome.WARN, CheckOutcome.FAIL
GPUS = ("GPU-0", "GPU-1", "GPU-2", "GPU-3")
PEAK = 989e12


def load(count: int = 4, **changes: Any) -> NodeLoad:
    """What healthy devices say; `changes` holds for the last of them."""
    row = {"name": "NVIDIA H100", "flops": 700e12, "checksums": ["a1", "a1"], "h2d_gb_s": 50.0}
    rows = [dict(row) for _ in range(count)]
    rows[-1] |= {name: value for name, value in changes.items() if name in row}
    ways = [[None if a == b else 300.0 for a in range(count)] for b in range(count)]
    more = {name: value for name, value in changes.items() if name not in row}
    said = {"devices": rows, "p2p_gb_s": ways, "all_reduce_gb_s": 400.0, **more}
    return NodeLoad.model_validate(said)


def judged(found: NodeLoad, gpus: tuple[str, ...] = GPUS) -> tuple[CheckOutcome, set[str]]:
    (outcome, _), unfit = judge_node(found, gpus, peak_flops=PEAK, floor_gb_s=350.0)
    return outcome, set(unfit)


@given(st.integers(1, 4))
def test_equal_devices_that_hold_up_pass(count: int) -> None:
    assert judged(load(count), GPUS[:count]) == (PASS, set())


@pytest.mark.parametrize(
    "change",
    [
        {"flops": 600e12},
        {"flops": None},
        {"checksums": ["a1", "a2"]},
        {"checksums": ["a2", "a2"]},
        {"checksums": []},
        {"checksums": ["a1"]},
    ],
)
def test_one_that_does_not_is_named(change: dict[str, Any]) -> None:
    assert judged(load(4, **change)) == (FAIL, {"GPU-3"})


def test_of_two_that_disagree_none_is_trusted() -> None:
    assert judged(load(2, checksums=["b", "b"]), GPUS[:2]) == (FAIL, {"GPU-0", "GPU-1"})


@pytest.mark.parametrize(
    ("other", "expected"),
    [
        ({"name": "H200"}, (PASS, set())),
        ({"sms": 114}, (PASS, set())),
        ({"memory_mb": 40_960}, (PASS, set())),
        ({}, (FAIL, {"GPU-0", "GPU-1"})),
        ({"memory_mb": 81_243}, (FAIL, {"GPU-0", "GPU-1"})),
    ],
)
def test_devices_of_two_kinds_are_not_compared(
    other: dict[str, Any], expected: tuple[CheckOutcome, set[str]]
) -> None:
    """Cards of one name may differ in units and memory; a few megabytes make no other card."""
    kind = {"name": "H100", "sms": 132, "memory_mb": 81_559}
    rows = [
        {**kind, "flops": 700e12, "checksums": ["a", "a"]},
        {**kind, **other, "flops": 900e12, "checksums": ["b", "b"]},
    ]
    found = NodeLoad.model_validate({"devices": rows, "all_reduce_gb_s": 400.0})
    assert judged(found, GPUS[:2]) == expected


def test_one_that_is_missing_fails_without_a_culprit() -> None:
    assert judged(load(3)) == (FAIL, set())


def test_slow_ways_warn() -> None:
    assert judged(load(4, all_reduce_gb_s=340.0)) == (WARN, set())
    assert judged(load(4, all_reduce_gb_s=None)) == (WARN, set())
    assert judged(load(4, h2d_gb_s=40.0)) == (WARN, set())
    assert judged(load(4, h2d_gb_s=46.0)) == (PASS, set())
    assert judged(load(4, h2d_gb_s=None)) == (PASS, set())
    slow = [[None if a == b else 300.0 if b != 2 else 200.0 for a in range(4)] for b in range(4)]
    found = load(4, p2p_gb_s=slow)
    (outcome, text), unfit = judge_node(found, GPUS, peak_flops=PEAK, floor_gb_s=None)
    assert (outcome, unfit) == (WARN, {})
    assert "GPU-2" in text
    assert "GPU-1" not in text
