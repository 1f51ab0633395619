"""`gonogo campaign` as a person or a script meets it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from gonogo.contract.wire import short_id
from tests.cli.conftest import Gonogo
from tests.cli.test_json_output import fits
from tests.service.conftest import Plane
from tests.service.fake_worker import beats
from tests.service.test_campaigns import campaign_plan

ONE_LINE = "there is no campaign yet; begin one with: gonogo campaign submit campaign-demo"


def plan_file(folder: Path, **said: Any) -> str:
    path = folder / "plan.yaml"
    path.write_text(yaml.safe_dump(campaign_plan(**said), sort_keys=False))
    return str(path)


def test_it_is_submitted_shown_listed_and_cancelled(
    plane: Plane, gonogo: Gonogo, tmp_path: Path
) -> None:
    assert ONE_LINE in gonogo("campaign", "list").out
    assert gonogo("campaign", "show", "last").code == 3
    path = plan_file(tmp_path)
    dry = gonogo("campaign", "submit", path, "--dry-run", "--json").json()
    fits("campaign submit --dry-run", dry)
    assert gonogo("campaign", "list", "--json").json()["items"] == []
    made = gonogo("campaign", "submit", path, "--name", "mine", "--label", "a=b", "--json").json()
    fits("campaign submit", made)
    order = plane.next_order(plane.worker())
    for name in ("last", "mine", made["id"], made["id"][:20], short_id(made["id"])):
        shown = gonogo("campaign", "show", name, "--json").json()
        fits("campaign show", shown)
        assert shown["id"] == made["id"]
    said = gonogo("campaign", "show", "mine").out
    assert short_id(order.experiment) in said
    assert "plain (NSA_DDP_STATIC_GRAPH=0), static (NSA_DDP_STATIC_GRAPH=1)" in said
    assert "0 of 6 runs are made" in said
    assert f"gonogo watch {short_id(order.experiment)}" in said
    listed = gonogo("campaign", "list", "--json").json()
    fits("campaign list", listed)
    assert "0 of 6" in gonogo("campaign", "list").out
    fits("campaign cancel", gonogo("campaign", "cancel", "mine", "--json").json())
    assert "cancelled" in gonogo("campaign", "show", "mine").out
    assert f"{short_id(made['id'])}, run 1 of plain" in gonogo("show", order.experiment).out


def test_what_came_of_it_is_its_exit_code(plane: Plane, gonogo: Gonogo, tmp_path: Path) -> None:
    """Runs that fail show nothing: the baseline is kept, and a script hears of it."""
    first = (
        "campaign",
        "submit",
        plan_file(tmp_path),
        "--idempotency-key",
        "first",
        "--name",
        "mine",
    )
    gonogo(*first)
    worker = plane.worker()
    for _ in range(2):
        order = plane.next_order(worker)
        worker.start(order)
        lines = {rank: beats(order, rank, upto=4) for rank in range(order.world_size)}
        worker.ship(order, lines)
        worker.end(order, lines, reason="nonzero_exit", code=1)
        plane.wait_state(order.experiment, "finished")
    plane.wait(
        lambda: plane.get("/campaigns")["items"][0]["state"] == "finished", "the campaign's end"
    )
    said = gonogo("campaign", "show", "mine")
    assert said.code == 0
    assert "does not count  plain 1: completed: ended as nonzero_exit" in said.out
    assert "plain was given up" in said.out
    assert gonogo(*first, "--wait").code == 12
    late = gonogo("campaign", "cancel", "mine")
    assert late.code == 2
    assert "finished" in late.err
    waited = gonogo("campaign", "submit", plan_file(tmp_path), "--idempotency-key", "k", "--json")
    assert gonogo("campaign", "cancel", waited.json()["id"]).code == 0
    key = ("--idempotency-key", "k", "--wait")
    assert gonogo("campaign", "submit", plan_file(tmp_path), *key).code == 13


def test_what_is_wrong_is_said_with_its_line(gonogo: Gonogo, plane: Plane, tmp_path: Path) -> None:
    path = plan_file(tmp_path, repeats=2)
    said = gonogo("campaign", "submit", path)
    assert said.code == 2
    assert "campaign.repeats" in said.err
    assert "plan.yaml:" in said.err
    said = gonogo("submit", plan_file(tmp_path))
    assert said.code == 2
    assert "gonogo campaign submit" in said.err
    said = gonogo("campaign", "submit", "demo")
    assert said.code == 2
    assert "nothing to compare" in said.err
