"""Is every piece of a plan that a page shows one that gonogo takes?"""

from __future__ import annotations

import re
from typing import Any

import pytest

from gonogo.contract.campaign import variants_of
from gonogo.contract.workload import Patch
from gonogo.contract.yaml_text import parse_yaml
from gonogo.planning.campaigns import resolve_campaign
from gonogo.planning.resolve import resolve_plan
from gonogo.planning.source import bundled_plan
from tests.laws.test_docs import PAGES, ROOT

CAMPAIGN = {
    "v": 1,
    "name": "shown",
    "profile": "cpu",
    "workload": {"command": ["python", "train.py", "{lr}", "{decay}"], "world_size": 1},
    "phases": [{"name": "try", "steps": 10}],
}
SHOWN = [
    pytest.param(text, id=f"{page.relative_to(ROOT)}:{number}")
    for page in PAGES
    for number, text in enumerate(re.findall(r"^```yaml\n(.*?)^```", page.read_text(), re.S | re.M))
]


def whole(said: dict[str, Any]) -> dict[str, Any]:
    """Return a plan that says what a piece says; the rest is the demo's, or the least there is."""
    if "phases" in said:
        return {"v": 1, "name": "shown", **said}
    plan = bundled_plan("demo")
    if "gate" in said:
        plan["phases"][-1]["gate"] = said["gate"]
        return plan
    if "command" in said.get("workload", {}):
        phases = [{"name": "try", "steps": 10}]
        return {"v": 1, "name": "shown", "profile": "cpu", "phases": phases, **said}
    return {**plan, **said}


@pytest.mark.parametrize("text", SHOWN)
def test_a_plan_that_a_page_shows_is_taken(text: str) -> None:
    said = parse_yaml(text)
    if "campaign" in said:
        found = resolve_campaign({**CAMPAIGN, **said})
        asked = said["campaign"]
        rows = variants_of(asked["grid"]) if "grid" in asked else asked["variants"]
        assert list(found.variants) == [row["name"] for row in rows]
    elif set(said) <= set(Patch.model_fields) and "env" in said:
        resolve_plan({**bundled_plan("demo"), "remedies": {"imbalance": said}})
    else:
        resolve_plan(whole(said))


def test_pages_show_plans() -> None:
    assert len(SHOWN) >= 6
