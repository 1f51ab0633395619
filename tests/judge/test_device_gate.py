"""The gate of a plan for GPUs: what the devices say decides, and a run that is well is a GO."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from gonogo.contract.order import Order
from gonogo.judge.directory import judge_directory
from gonogo.planning.resolve import build_order, resolve_plan
from gonogo.planning.source import bundled_plan, with_overrides
from tests.data.make_runs import EXPERIMENT, Rank, exit_of, save_run

RUN = "run_01K00000000000000000000001"


@pytest.fixture(scope="module")
def order() -> Order:
    """The smoke phase of the bundled plan, with fewer steps."""
    shorter = with_overrides(bundled_plan("m7c-125m"), {"phases.smoke.steps": 150})
    resolved = resolve_plan(shorter)
    return build_order(resolved, "smoke", experiment=EXPERIMENT, run=RUN, token=1)


def ranks_of(order: Order) -> list[Rank]:
    """Ranks that do all that was ordered, at half a second a step."""
    ranks = [Rank(rank, order) for rank in range(order.world_size)]
    for rank in ranks:
        rank.boot()
        for step in range(1, order.steps + 1):
            rank.step(step, loss=5.6 - 0.005 * step)
        rank.done()
        for line in rank.lines:
            if line["msg"] == "step_end":
                line["tokens"] = order.identity.tokens_per_step
    return ranks


def judged(folder: Path, order: Order, util: Mapping[int, float] | None) -> dict[str, Any]:
    """The decision about a run that is well but for how busy its devices are."""
    ranks = ranks_of(order)
    save_run(folder / "run", order, ranks, exit_of(ranks), util)
    return judge_directory(folder / "run")


def outcomes(decision: Mapping[str, Any]) -> dict[str, str]:
    return {row["id"]: row["outcome"] for row in decision["criteria"]}


def test_a_run_that_is_well_in_every_respect_is_a_clean_go(tmp_path: Path, order: Order) -> None:
    found = judged(tmp_path, order, {0: 95.0, 1: 93.0})
    assert {row for row in outcomes(found).values()} == {"pass"}, found["criteria"]
    assert (found["verdict"], found["conditions"]) == ("GO", [])
    observed = {row["id"]: row["observed"] for row in found["criteria"]}
    assert observed["utilisation"] == 93.0
    assert observed["balance"] == pytest.approx(93 / 95)
    assert not [text for text in found["not_observed"] if "gpu_util" in text]


def test_a_device_that_idles_fails_both_and_is_no_go(tmp_path: Path, order: Order) -> None:
    found = judged(tmp_path, order, {0: 95.0, 1: 30.0})
    said = outcomes(found)
    assert (said["utilisation"], said["balance"]) == ("fail", "fail")
    assert found["verdict"] != "GO"


@pytest.mark.parametrize("util", [None, {0: 95.0}, {0: 95.0, 1: 930.0}])
def test_a_device_that_nobody_heard_is_inconclusive_never_well(
    tmp_path: Path, order: Order, util: Mapping[int, float] | None
) -> None:
    found = judged(tmp_path, order, util)
    said = outcomes(found)
    assert (said["utilisation"], said["balance"]) == ("inconclusive", "inconclusive")
    assert found["verdict"] != "GO"
    assert [text for text in found["not_observed"] if "gpu_util" in text]
