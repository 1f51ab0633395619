"""What a campaign may not be is refused before anything is run for it."""

from __future__ import annotations

from typing import Any

import pytest

from gonogo.contract.errors import Rejected
from gonogo.planning.campaigns import first_order, reseeded, resolve_campaign
from gonogo.planning.resolve import resolve_plan
from gonogo.planning.source import bundled_plan

TWICE = [{"name": "a"}, {"name": "a", "env": {"NSA_DDP_COMPRESS": "bf16"}}]
SEEDED = [{"name": "a"}, {"name": "b", "env": {"NSA_DDP_COMPRESS": "bf16"}, "train": {"seed": 99}}]
GATE = [{"id": "compared", "metric": "loss", "aggregate": "all_finite"}]
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"confirm": {"on": ["stall"]}}, "confirm: expected nothing"),
    ({"remedies": {"out_of_memory": {}}}, "remedies: expected nothing"),
    ({"phases.compared.approve": "always"}, r"approve: found always, expected never"),
    ({"phases.compared.gate": GATE}, "the campaign itself has a criterion of this id"),
    ({"campaign.variants": SEEDED}, "b.train.seed: a seed belongs to the repeat"),
    ({"campaign.variants": TWICE}, "two variants are called a"),
    ({"campaign.repeats": 5, "campaign.max_repeats": 4}, "found 4, expected at least 5"),
    ({"campaign.repeats": 2}, "campaign.repeats: found 2"),
    ({"campaign.warmup_steps": 12}, "found 12; expected fewer than the 12 steps"),
]


@pytest.mark.parametrize(("sets", "said"), REFUSED)
def test_what_would_compare_nothing_or_something_else_is_refused(
    sets: dict[str, Any], said: str
) -> None:
    with pytest.raises(Rejected, match=said):
        resolve_campaign(bundled_plan("campaign-demo"), sets)


def test_who_submits_one_as_an_experiment_is_told_a_command_that_takes_it() -> None:
    plan = {**bundled_plan("campaign-demo"), "name": "mine"}  # of a file of another name
    with pytest.raises(Rejected) as error:
        resolve_plan(plan)
    assert error.value.detail.endswith("gonogo campaign submit takes it as it is")


def test_a_campaign_has_one_phase() -> None:
    plan = bundled_plan("campaign-demo")
    plan["phases"].append({**plan["phases"][0], "name": "another"})
    with pytest.raises(Rejected, match="found 2, expected the one that a campaign compares"):
        resolve_campaign(plan)


@pytest.mark.parametrize("where", ["train.seed", "phases.compared.train.seed"])
def test_every_repeat_has_a_seed_of_its_own_wherever_the_plan_says_the_first(where: str) -> None:
    found = resolve_campaign(bundled_plan("campaign-demo"), {where: 7})
    plans = list(found.variants.values())
    seeds = [
        {first_order(reseeded(plan, repeat)).train["seed"] for plan in plans}
        for repeat in (1, 2, 3)
    ]
    assert seeds == [{7}, {8}, {9}]


def test_a_program_without_a_seed_is_run_again_as_it_is() -> None:
    plan = {**bundled_plan("demo"), "train": {"lr": 1}, "workload": {"command": "python train.py"}}
    plan["phases"] = [{"name": "compared", "steps": 20}]
    found = resolve_plan(plan)
    assert reseeded(found, 3) == found
