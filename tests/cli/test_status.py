"""`gonogo status` shows whether the service is up, what is active, and what waits for a person."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from gonogo.contract.wire import short_id
from tests.cli.conftest import Gonogo
from tests.service.conftest import Plane


def test_nobody_there_is_an_answer_too(tmp_path: Path, gonogo: Gonogo) -> None:
    text = json.dumps({"url": "http://127.0.0.1:9", "pid": os.getpid()})
    (tmp_path / "service.json").write_text(text)
    said = gonogo("status")
    assert said.code == 5
    assert "not up" in said.out
    assert f"{tmp_path}/service.json names this address" in said.out
    found = gonogo("status", "--json")
    assert found.code == 5
    assert (found.json()["up"], found.json()["workers"]) == (False, [])
    assert "gonogo up" in found.json()["problem"]


def test_an_idle_service_says_so(plane: Plane, gonogo: Gonogo) -> None:
    said = gonogo("status")
    assert said.code == 0
    assert plane.context.url in said.out
    assert "nothing is active" in said.out
    assert "nothing waits for you" in said.out
    assert "none is up: start one with `gonogo worker`" in said.out


def test_what_goes_on_and_what_waits_for_a_person(plane: Plane, gonogo: Gonogo) -> None:
    waits = plane.submit(name="halted")
    plane.call("POST", f"/experiments/{waits}/halt", json={"reason": "look"})
    plane.wait_state(waits, "awaiting_decision")
    goes = plane.submit(name="running")
    worker = plane.worker(devices=("cpu:0", "cpu:1"))
    order = plane.next_order(worker)
    assert order.experiment == goes
    worker.start(order)
    said = gonogo("status")
    assert said.code == 0
    on, wait = said.out.split("waits for you")
    assert short_id(goes) in on
    assert f"step 0/{order.steps}" in on
    assert "1 up, 2 of 2 devices free" in on
    assert short_id(waits) in wait
    assert f"gonogo rerun {short_id(waits)}" in wait
    found = gonogo("status", "--json").json()
    assert [row["id"] for row in found["going_on"]] == [goes]
    assert [row["id"] for row in found["waiting"]] == [waits]
    assert found["ready"] is True


def test_a_wrong_key_is_not_taken_for_a_service_that_is_down(plane: Plane, gonogo: Gonogo) -> None:
    del plane
    assert gonogo("status", GONOGO_API_KEY="gonogo_wrong").code == 4


@pytest.mark.parametrize("arguments", [[], ["mine"]])
def test_open_prints_the_page_and_a_link_that_signs_in_and_leads_there(
    arguments: list[str], plane: Plane, gonogo: Gonogo
) -> None:
    experiment = plane.submit(name="mine")
    path = f"/experiments/{experiment}" if arguments else "/"
    said = gonogo("open", *arguments)
    assert said.code == 0
    assert said.out.strip() == f"{plane.context.url}{path}"
    link = said.err.strip().removeprefix("sign in once with ")
    answer = plane.http.get(link)
    assert answer.status_code == 303
    assert answer.headers["location"] == path
    assert plane.http.get(path).status_code == 200
    found = gonogo("open", *arguments, "--json").json()
    assert found["url"] == f"{plane.context.url}{path}"
    assert found["opened"] is False
