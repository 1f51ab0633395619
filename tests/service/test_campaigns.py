"""A campaign: its runs are begun in turns, ended and compared, and anybody can do it again."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gonogo.contract.campaign import CampaignSpec, Comparison
from gonogo.contract.order import Order
from gonogo.judge.compare.campaign import question_of
from gonogo.judge.compare.compare import compare
from gonogo.judge.directory import unit_of_decision
from gonogo.ledger.recorded import load_decision
from gonogo.planning.source import bundled_plan
from service.campaigns import advance
from service.experiments.lifecycle import Deed
from tests.data.make_runs import WHOLE_GATE
from tests.service.conftest import Plane
from tests.service.fake_run import PREFLIGHT, save_checkpoint
from tests.service.fake_worker import FakeWorker, beats

STEPS = 30
SPEEDS = {"0": 0.2, "1": 0.15}
"""Seconds of a step by the variable that differs between the variants."""


def campaign_plan(**said: Any) -> dict[str, Any]:
    """The demo's smoke phase as a campaign of one toggle."""
    plan = bundled_plan("demo")
    (phase,) = (row for row in plan["phases"] if row["name"] == "smoke")
    phase |= {"steps": STEPS, "gate": WHOLE_GATE, "approve": "never"}
    variants = [
        {"name": "plain", "env": {"NSA_DDP_STATIC_GRAPH": 0}},
        {"name": "static", "env": {"NSA_DDP_STATIC_GRAPH": 1}},
    ]
    section = {"variants": variants, "repeats": 3, "max_repeats": 3, **said}
    return {**plan, "phases": [phase], "campaign": section}


def submit(plane: Plane, plan: Any = None, **more: Any) -> dict[str, Any]:
    answer = plane.call("POST", "/campaigns", json={"plan": plan or campaign_plan(), **more})
    assert answer.status_code == 201, answer.text
    assert answer.headers["Location"] == f"/api/v1/campaigns/{answer.json()['id']}"
    found: dict[str, Any] = answer.json()
    return found


def view(plane: Plane, campaign: str) -> dict[str, Any]:
    found: dict[str, Any] = plane.get(f"/campaigns/{campaign}")
    return found


def run_through(
    worker: FakeWorker, order: Order, wobble: float, *, node: str | None = None
) -> None:
    step_s = SPEEDS[order.env["NSA_DDP_STATIC_GRAPH"]] * wobble
    worker.start(order)
    worker.state(order, "launch", preflight={**PREFLIGHT, "host": node})
    lines = {rank: beats(order, rank, step_s=step_s) for rank in range(order.world_size)}
    worker.ship(order, lines)
    assert worker.end(order, lines).status_code == 200


def test_runs_are_made_in_turns_and_compared(plane: Plane) -> None:
    began = submit(plane, name="static graph", labels={"team": "nsa"})
    assert (began["state"], began["done"], began["planned"]) == ("running", 0, 6)
    worker, wobbles, seen = plane.worker(), itertools.cycle([1.0, 1.01, 0.99]), []
    for _ in range(6):
        order = plane.next_order(worker)
        going = [row["state"] for row in view(plane, began["id"])["members"]]
        assert going == ["finished"] * len(seen) + ["running"], "one run at a time"
        assert (order.reason, order.phase, order.steps) == ("campaign", "smoke", STEPS)
        seen.append((order.env["NSA_DDP_STATIC_GRAPH"], order.train["seed"]))
        run_through(worker, order, next(wobbles))
    assert [toggle for toggle, _ in seen] == ["0", "1", "1", "0", "0", "1"]
    assert [seed for _, seed in seen] == [1337, 1337, 1338, 1338, 1339, 1339]
    done = plane.wait(
        lambda: (row := view(plane, began["id"]))["state"] == "finished" and row, "its end"
    )
    found = Comparison.model_validate(done["comparison"])
    assert (found.result, found.winner, found.baseline) == ("winner", "static", "plain")
    assert [path.path for path in found.paths] == ["env.NSA_DDP_STATIC_GRAPH"]
    assert found.variants[1].ratio == pytest.approx(4 / 3, rel=0.03)
    assert (done["done"], done["planned"], done["text"]) == (6, 6, found.text)
    assert [row["variant"] for row in done["members"]] == [
        *("plain", "static", "static", "plain", "plain", "static")
    ]
    assert {row["verdict"] for row in done["members"]} == {"GO"}
    experiment = plane.experiment(done["members"][1]["experiment"])
    assert experiment["campaign"] == {"campaign": began["id"], "variant": "static", "repeat": 1}
    assert experiment["labels"] == {"team": "nsa", "campaign": "static graph", "variant": "static"}
    assert_again(plane, done)
    late = plane.call("POST", f"/campaigns/{began['id']}/cancel")
    assert late.status_code == 409
    assert "finished" in late.json()["detail"]
    assert view(plane, began["id"])["state"] == "finished"
    alerts = [row for row in plane.get("/alerts")["items"] if row["type"] == "campaign.ended"]
    typed = f"Next: gonogo campaign show {began['id']}"
    assert [found.text in row["data"]["text"] for row in alerts] == [True]
    assert alerts[0]["data"]["text"].endswith(typed)


def assert_again(plane: Plane, done: dict[str, Any]) -> None:
    """The decisions alone give the same comparison, byte by byte."""
    question = question_of(CampaignSpec.model_validate(done["spec"]))
    units: dict[str, list[Any]] = {row["name"]: [] for row in done["spec"]["variants"]}
    for row in done["members"]:
        path = plane.home / "decisions" / f"{row['decision']}.json"
        plane.wait(path.exists, "the decision's file")
        unit = unit_of_decision(row["decision"], load_decision(path), question)
        units[row["variant"]].append(replace(unit, repeat=row["repeat"]))
    again = compare(units, question)
    recorded = Comparison.model_validate(done["comparison"])
    assert again.variants == recorded.variants
    assert (again.text, again.result, again.kept) == (recorded.text, recorded.result, recorded.kept)


@pytest.mark.long
def test_a_run_that_fails_is_made_once_more(plane: Plane) -> None:
    began = submit(plane)
    worker = plane.worker()
    run_through(worker, plane.next_order(worker), 1.0)
    order = plane.next_order(worker)
    worker.start(order)
    lines = {rank: beats(order, rank, upto=4) for rank in range(order.world_size)}
    worker.ship(order, lines)
    assert worker.end(order, lines, reason="nonzero_exit", code=1).status_code == 200
    again = plane.next_order(worker)
    assert (again.env, again.train) == (order.env, order.train)
    members = view(plane, began["id"])["members"]
    assert [row["repeat"] for row in members] == [1, 1, 1]
    assert "nonzero_exit" in members[1]["why"]
    assert view(plane, began["id"])["planned"] == 7


def test_a_run_that_a_person_halts_is_waited_for_and_counts_when_it_has_gone_on(
    plane: Plane, tmp_path: Path
) -> None:
    """docs/how-to/compare.md: a run that you halt waits for you."""
    plan = campaign_plan()
    plan["phases"][0]["checkpoint"] = {"every_steps": 10}
    began = submit(plane, plan)
    worker = plane.worker(home=tmp_path)
    order = plane.next_order(worker)
    (tmp_path / order.run).mkdir()
    save_checkpoint(tmp_path / order.run, step=10)
    worker.start(order)
    lines = {rank: beats(order, rank, upto=12) for rank in range(order.world_size)}
    worker.ship(order, lines)
    experiment = order.experiment
    plane.call("POST", f"/experiments/{experiment}/halt", json={"reason": "lunch"})
    worker.end(order, lines, "halted", "operator", code=3)
    plane.wait_state(experiment, "awaiting_decision")
    plane.context.store.write(lambda s: advance(Deed(session=s, now=0.0), began["id"]))
    halted = view(plane, began["id"])
    assert (halted["state"], halted["done"], len(halted["members"])) == ("running", 0, 1)
    commands = [row["command"] for row in halted["next"]]
    assert commands == [f"gonogo resume {experiment}", f"gonogo campaign cancel {began['id']}"]
    plane.call("POST", f"/experiments/{experiment}/resume", json={"reason": "back"})
    again = plane.next_order(worker)
    assert (again.experiment, again.resume_from.step) == (experiment, 10)
    run_through(worker, again, 1.0)
    going = plane.wait(
        lambda: len((row := view(plane, began["id"]))["members"]) == 2 and row, "the next run"
    )
    assert (going["done"], going["members"][0]["why"]) == (1, None)


@pytest.mark.long
@pytest.mark.parametrize("name", ["host-2", "host-1"], ids=["another name", "the same name"])
def test_runs_wait_for_the_host_of_the_others_while_it_lives(plane: Plane, name: str) -> None:
    submit(plane)
    here = plane.worker(name="w1", host="host-1")
    there = plane.worker(name="w2", host=name)
    run_through(here, plane.next_order(here, machine_id="a" * 32), 1.0)
    plane.wait(lambda: len(plane.get("/campaigns")["items"][0]["members"]) == 2, "the next run")
    assert there.claim(machine_id="b" * 32) is None
    assert plane.next_order(here, machine_id="a" * 32) is not None


@pytest.mark.long
def test_a_run_that_misses_its_gate_wins_nothing(plane: Plane) -> None:
    plan = campaign_plan()
    low = {"id": "low", "metric": "loss", "aggregate": "last", "pass_below": 2.0}
    plan["phases"][0]["gate"] = [low]
    began = submit(plane, plan)
    worker = plane.worker()
    for _ in range(2):
        run_through(worker, plane.next_order(worker), 1.0)
    done = plane.wait(
        lambda: (row := view(plane, began["id"]))["state"] == "finished" and row, "its end"
    )
    assert [row["why"] for row in done["members"]] == ["its verdict is NO_GO"] * 2
    assert (done["comparison"]["result"], done["comparison"]["winner"]) == ("inconclusive", None)


def test_a_grid_at_once_begins_all_its_runs_and_devices_bound_them(plane: Plane) -> None:
    plan = {
        "v": 1,
        "name": "mine",
        "profile": "cpu",
        "workload": {"command": "train --lr {lr} --seed {seed}"},
        "train": {"lr": 1, "seed": 7},
        "phases": [{"name": "compared", "steps": STEPS}],
    }
    sets = {"campaign.grid.train.lr": [1, 2], "campaign.metric": "loss", "campaign.at_once": True}
    began = submit(plane, plan, set=sets)
    made = plane.wait(lambda: view(plane, began["id"])["members"], "its runs")
    places = [(row["variant"], row["repeat"]) for row in made]
    assert places == [
        *[("lr-1", 1), ("lr-2", 1), ("lr-2", 2), ("lr-1", 2), ("lr-1", 3), ("lr-2", 3)]
    ]
    worker = plane.worker(devices=("cpu:0", "cpu:1"))
    first = plane.next_order(worker, allow=["train"])
    worker.active.append(first.run)
    second = plane.next_order(worker, allow=["train"], free=["cpu:1"])
    assert first.command == ["train", "--lr", "1", "--seed", "7"]
    assert second.command == ["train", "--lr", "2", "--seed", "7"]
    view_ = view(plane, began["id"])
    assert (view_["done"], view_["planned"], len(view_["members"])) == (0, 6, 6)
    assert [row["command"].split()[1] for row in view_["next"]] == [*["watch"] * 3, "campaign"]
    assert plane.call("POST", f"/campaigns/{began['id']}/cancel").status_code < 300


@pytest.mark.long
def test_cancelled_it_begins_nothing_more(plane: Plane) -> None:
    began = submit(plane)
    worker = plane.worker()
    order = plane.next_order(worker)
    worker.start(order)
    answer = plane.call("POST", f"/campaigns/{began['id']}/cancel", json={"reason": "enough"})
    assert (answer.status_code, answer.json()["state"]) == (202, "cancelled")
    assert "enough" in answer.json()["text"]
    assert plane.call("POST", f"/campaigns/{began['id']}/cancel").status_code == 200
    assert plane.experiment(order.experiment)["state"] in ("stopping", "finished")
    lines = {rank: beats(order, rank, upto=4) for rank in range(order.world_size)}
    worker.ship(order, lines)
    assert worker.end(order, lines, reason="cancelled", by="operator").status_code == 200
    plane.wait_state(order.experiment, "finished")
    plane.context.store.write(lambda s: advance(Deed(session=s, now=0.0), began["id"]))
    assert len(view(plane, began["id"])["members"]) == 1
