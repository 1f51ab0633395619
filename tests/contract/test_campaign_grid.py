"""A grid becomes the variants of a campaign."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from gonogo.contract.campaign import CampaignSpec


def spec(grid: Any, **more: Any) -> CampaignSpec:
    return CampaignSpec.model_validate({"metric": "loss", "grid": grid, **more})


def test_each_combination_is_a_variant_and_the_first_is_the_baseline() -> None:
    found = spec({"train": {"lr": [1e-3, 3e-4], "optim.decay": [0, 0.1]}, "env": {"A": ["x"]}})
    assert [row.document() for row in found.variants] == [
        {
            "name": f"lr-{lr}_decay-{decay}_a-x",
            "train": {"lr": lr, "optim": {"decay": decay}},
            "env": {"A": "x"},
        }
        for lr in (0.001, 0.0003)
        for decay in (0, 0.1)
    ]
    again = CampaignSpec.model_validate(found.model_dump(mode="json", exclude_unset=True))
    assert again == found


def test_values_without_a_name_of_their_own_are_numbered() -> None:
    found = spec({"train": {"text": ["a b", "a/b", "c" * 80]}})
    assert [row.name for row in found.variants] == ["text-a-b", "v2", "v3"]


@pytest.mark.parametrize(
    ("grid", "more", "line"),
    [
        ({"train": {"lr": [1]}}, {}, "at least 2 items"),
        ({"train": {"lr": 1}}, {}, "grid.train.lr: found 1; expected a list of values"),
        ({"train": {"lr": []}}, {}, "grid.train.lr: found []; expected a list of values"),
        ({"lr": [1, 2]}, {}, "grid.lr: expected train.KEY or env.NAME"),
        ({"train": {"lr": [*range(21)]}}, {}, "grid: found 21 combinations, expected at most 20"),
        ({}, {}, "campaign.variants: missing; expected variants, or a grid of their values"),
        ({"train": {"a": [1], "a.b": [2]}}, {}, "grid.train.a.b: lies inside a value, train.a"),
        ({"train": {"lr": [1, 2]}}, {"variants": [{"name": "a"}]}, "a grid, found both"),
    ],
)
def test_another_form_is_refused(grid: Any, more: dict[str, Any], line: str) -> None:
    with pytest.raises(ValidationError) as refused:
        spec(grid, **more)
    assert line in str(refused.value)
