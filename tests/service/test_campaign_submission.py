"""What is a campaign that is submitted? Refused with every reason, shown dry, stored once."""

from __future__ import annotations

from typing import Any

import pytest

from tests.service.conftest import Plane
from tests.service.test_campaigns import campaign_plan, submit


def test_only_what_was_submitted_is_known(plane: Plane) -> None:
    assert plane.call("GET", "/campaigns/cmp_x").status_code == 404
    assert plane.call("POST", "/campaigns/cmp_x/cancel").status_code == 404
    assert plane.get("/campaigns")["items"] == []
    began = submit(plane)
    assert [row["id"] for row in plane.get("/campaigns")["items"]] == [began["id"]]


def test_the_same_key_submits_once(plane: Plane) -> None:
    body = {"plan": campaign_plan()}
    answers = [
        plane.call("POST", "/campaigns", json=body, headers={"Idempotency-Key": "k"}).json()
        for _ in range(2)
    ]
    assert answers[0]["id"] == answers[1]["id"]
    assert len(plane.get("/campaigns")["items"]) == 1


@pytest.mark.parametrize(
    ("change", "path", "words"),
    [
        ({"campaign": None}, None, "nothing to compare"),
        ({"remedies": {"out_of_memory": {}}}, "remedies", "expected nothing"),
        ({"campaign": {"variants": [{"name": "one"}]}}, "campaign.variants", "2"),
        (
            {"campaign": {"variants": [{"name": "a"}, {"name": "b", "env": {"NSA_NO": 1}}]}},
            "phases.smoke.env.NSA_NO",
            "variant b",
        ),
        (
            {"campaign": {"variants": [{"name": "a"}, {"name": "b"}], "repeats": 2}},
            "campaign.repeats",
            "3",
        ),
        (
            {"campaign": {"variants": [{"name": "a"}, {"name": "b"}], "metric": "toks"}},
            None,
            "toks_per_s",
        ),
        (
            {"campaign": {"variants": [{"name": "a"}, {"name": "b"}]}},
            "campaign.variants.b",
            "changes nothing",
        ),
        (
            {"campaign": {"variants": [{"name": "a"}, {"name": "b", "train": {"seed": 2}}]}},
            "campaign.variants.b.train.seed",
            "a seed belongs to the repeat",
        ),
        (
            {"campaign": {**campaign_plan()["campaign"], "warmup_steps": 30}},
            "campaign.warmup_steps",
            "fewer than the 30 steps",
        ),
    ],
)
def test_what_would_fail_later_is_refused_at_once(
    plane: Plane, change: dict[str, Any], path: str | None, words: str
) -> None:
    answer = plane.call("POST", "/campaigns", json={"plan": campaign_plan() | change})
    assert answer.status_code in (400, 422), answer.text
    problem = answer.json()
    assert words in problem["detail"] or words in str(problem["errors"])
    assert path is None or path in [row["path"] for row in problem["errors"]], problem
    assert plane.get("/campaigns")["items"] == []


def test_a_campaign_is_no_experiment(plane: Plane) -> None:
    answer = plane.call("POST", "/experiments", json={"plan": campaign_plan()})
    assert answer.status_code in (400, 422)
    assert "gonogo campaign submit" in answer.json()["detail"]


def test_a_dry_run_shows_every_order_and_stores_nothing(plane: Plane) -> None:
    body = {"plan": campaign_plan(), "dry_run": True, "repeats": 4}
    body["plan"]["campaign"]["max_repeats"] = None
    answer = plane.call("POST", "/campaigns", json=body)
    assert answer.status_code == 200, answer.text
    found = answer.json()
    assert (found["runs"], found["most_runs"]) == (8, 12)
    toggles = {name: row["env"]["NSA_DDP_STATIC_GRAPH"] for name, row in found["orders"].items()}
    assert toggles == {"plain": "0", "static": "1"}
    gates = {row["id"] for order in found["orders"].values() for row in order["gate"]}
    assert gates == {"compared", "steps"}
    assert plane.get("/campaigns")["items"] == []
