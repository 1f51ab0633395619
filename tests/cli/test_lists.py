"""Workers, alerts and decisions on the command line, from a service that runs."""

from __future__ import annotations

import re
from datetime import UTC, datetime

import pytest

from gonogo.cli.experiments import parse_since
from gonogo.cli.output import out
from gonogo.contract.errors import Rejected
from gonogo.contract.wire import short_id
from gonogo.judge.failures import explain
from tests.cli.conftest import Gonogo
from tests.service.conftest import Plane
from tests.service.fake_worker import beats


def cancelled(plane: Plane, name: str) -> str:
    experiment = plane.submit(name=name)
    plane.call("POST", f"/experiments/{experiment}/cancel", json={"reason": "enough"})
    plane.wait_state(experiment, "finished")
    return experiment


def one_decision(plane: Plane) -> tuple[str, str]:
    """An experiment whose first phase is decided: its id and the decision's."""
    experiment = plane.submit(name="decided")
    worker = plane.worker(devices=("cpu:0", "cpu:1"))
    order = plane.next_order(worker)
    worker.start(order)
    lines = {rank: beats(order, rank) for rank in range(order.world_size)}
    worker.ship(order, lines)
    worker.end(order, lines)
    path = f"/experiments/{experiment}/decisions"
    (found, *_) = plane.wait(lambda: plane.get(path)["items"], "a decision")
    return experiment, str(found["id"])


def test_an_empty_list_says_what_to_do(plane: Plane, gonogo: Gonogo) -> None:
    del plane
    assert "gonogo submit demo" in gonogo("list").out
    assert "gonogo worker" in gonogo("workers").out
    assert "nothing has called for attention" in gonogo("alerts").out
    assert gonogo("decisions").code == 3


def test_workers_show_their_devices_and_when_they_were_heard_of(
    plane: Plane, gonogo: Gonogo
) -> None:
    plane.worker(name="gpu1", devices=("cpu:0", "cpu:1")).claim(labels={"rack": "[3]"})
    said = gonogo("workers").out.splitlines()
    assert said[0].split()[:4] == ["worker", "state", "free", "runs"]
    assert said[1].split()[:6] == ["gpu1", "up", "2", "of", "2", "0"]
    assert "rack=[3]" in said[1]
    assert " ago" in said[1] or "now" in said[1]
    (row,) = gonogo("workers", "--json").json()["items"]
    assert row["id"] == "gpu1"
    assert row["last_seen_at"].endswith("+00:00")


@pytest.mark.parametrize("width", [60, 80, 200])
def test_the_list_keeps_the_verdict_at_any_width(
    width: int, plane: Plane, gonogo: Gonogo, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(out, "_width", width)
    done = cancelled(plane, "a name that is rather too long for a narrow terminal")
    override = ("override", done, "CONDITIONAL_GO", "--reason", "by hand")
    assert gonogo(*override).code == 0
    waits = plane.submit(name="second [bold]")
    first, second = gonogo("list").out.splitlines()[1:]
    assert (first.split()[:2], second.split()[:2]) == (
        [short_id(waits), "queued"],
        [short_id(done), "CONDITIONAL_GO"],
    )
    assert max(map(len, (first.rstrip(), second.rstrip()))) <= width
    if width >= 80:
        assert "why" in gonogo("list").out.splitlines()[0]
    if width == 200:
        assert "second [bold]" in first
        assert "local admin" in first


@pytest.mark.parametrize(
    ("options", "found"),
    [
        (("--name", "SECOND"), ["second"]), (("--label", "team=a"), ["first"]),
        (("--label", "team=a", "--label", "kind=x"), []),
        (("--owner", "local admin"), ["second", "first"]), (("--owner", "ann"), []),
        (("--since", "1h", "--limit", "1"), ["second"]), (("--since", "2999-01-01"), []),
        (("--state", "finished"), ["first"]), (("--state", "finished", "--name", "second"), []),
    ],
)  # fmt: skip
def test_the_list_is_filtered(
    options: tuple[str, ...], found: list[str], plane: Plane, gonogo: Gonogo
) -> None:
    first = plane.submit(name="first", labels={"team": "a"})
    plane.call("POST", f"/experiments/{first}/cancel", json={"reason": "enough"})
    plane.wait_state(first, "finished")
    plane.submit(name="second")
    listed = gonogo("list", "--json", *options).json()["items"]
    assert [row["name"] for row in listed] == found
    assert found or gonogo("list", *options).out == "no experiment fits\n"


def test_an_age_or_a_date_is_read_and_nothing_else() -> None:
    now = datetime(2026, 5, 8, 12, tzinfo=UTC)
    assert parse_since("90m", now) == datetime(2026, 5, 8, 10, 30, tzinfo=UTC)
    assert parse_since("2026-05-08T01:00:00Z", now) == datetime(2026, 5, 8, 1, tzinfo=UTC)
    with pytest.raises(Rejected, match="--since: found 'soon'"):
        parse_since("soon", now)


@pytest.mark.parametrize("width", [60, 200])
def test_an_experiment_s_runs_keep_id_and_verdict_at_any_width(
    width: int, plane: Plane, gonogo: Gonogo, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(out, "_width", width)
    experiment, _ = one_decision(plane)
    said = gonogo("show", experiment).out.splitlines()
    begin = next(at for at, line in enumerate(said) if line.split()[:2] == ["phase", "run"])
    heading, row = said[begin], said[begin + 1]
    assert max(map(len, (heading.rstrip(), row.rstrip()))) <= width
    assert heading.split()[:3] == ["phase", "run", "verdict"]
    assert row.split()[1].startswith("run_")
    assert row.split()[2] == "GO"


def test_labels_submitter_and_duration_are_shown(plane: Plane, gonogo: Gonogo) -> None:
    experiment = plane.submit(name="mine", labels={"owner": "[red]me", "team": "a"})
    waits = gonogo("show", experiment).out
    assert "owner=[red]me, team=a" in waits
    assert re.search(r"submitted +\S.* by local admin$", waits, re.M)
    assert "runs for" not in waits
    worker = plane.worker(devices=("cpu:0", "cpu:1"))
    worker.start(plane.next_order(worker))
    assert re.search(r"^ *runs for +\d", gonogo("show", experiment).out, re.M)
    assert "labels" not in gonogo("show", cancelled(plane, "other")).out


def test_decisions_of_an_experiment_and_one_of_them(plane: Plane, gonogo: Gonogo) -> None:
    experiment, decision = one_decision(plane)
    said = gonogo("decisions", "decided").out
    assert "sanity" in said
    assert "GO" in said
    listed = gonogo("decisions", experiment, "--json").json()["items"]
    assert listed[0]["id"] == decision
    one = gonogo("decisions", decision[:-1])
    assert f"gonogo replay {short_id(decision)}" in one.out
    assert gonogo("decisions", short_id(decision), "--json").json()["id"] == decision
    assert "pass         completed" in one.out
    assert gonogo("decisions", decision, "--json").json()["id"] == decision


@pytest.mark.long
def test_alerts_are_listed_with_their_text(plane: Plane, gonogo: Gonogo) -> None:
    one_decision(plane)
    plane.wait(lambda: plane.get("/alerts")["items"], "an alert")
    said = gonogo("alerts").out
    assert "decision.made" in said
    assert "sanity" in said
    (row, *_) = gonogo("alerts", "--limit", "1", "--json").json()["items"]
    assert row["type"] == "decision.made"


def test_a_known_failure_is_told_with_its_cause_and_what_helps(
    plane: Plane, gonogo: Gonogo
) -> None:
    experiment = plane.submit(set={"remedies": {}, "confirm": {"on": []}})
    worker = plane.worker(devices=("cpu:0", "cpu:1"))
    order = plane.next_order(worker)
    worker.start(order)
    lines = {rank: beats(order, rank)[:40] for rank in range(order.world_size)}
    worker.ship(order, lines)
    worker.end(order, lines, "oom", code=1)
    plane.wait_state(experiment, "finished")
    known = explain("out_of_memory")
    assert known is not None
    decision = gonogo("decisions", experiment, "--json").json()["items"][0]["id"]
    for said in (gonogo("show", experiment).out, gonogo("decisions", decision).out):
        assert f"  diagnosis    {known.name}: {known.cause}\n" in said
        assert f"  remedy       {known.remedy}\n" in said


def test_what_was_found_in_a_run_that_goes_on_is_told(plane: Plane, gonogo: Gonogo) -> None:
    experiment = plane.submit()
    worker = plane.worker(devices=("cpu:0", "cpu:1"))
    order = plane.next_order(worker)
    worker.start(order)
    worker.ship(order, {rank: beats(order, rank)[:40] for rank in range(order.world_size)})
    assert "section_deadline" not in gonogo("show", experiment).out
    text = "rank 1 has been in data for 120.0 s (limit 120.0 s) at step 14"
    sign = {
        "detector": "section_deadline", "severity": "suspect", "rank": 1, "section": "data",
        "at": 1.0, "key": f"{order.run}:1", "text": text,
    }  # fmt: skip
    worker.report(order, sign)
    said = gonogo("show", experiment).out
    assert f"suspect: section_deadline: {text}" in said
