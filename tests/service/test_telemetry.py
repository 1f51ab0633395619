"""Does every complete line arrive exactly once, whatever happens to the messages?"""

from __future__ import annotations

import random
from typing import Any

import pytest

from tests.service.conftest import Plane
from tests.service.fake_worker import FakeWorker, beats, size_of


@pytest.fixture
def started(plane: Plane) -> tuple[FakeWorker, Any]:
    plane.submit(set={"phases.sanity.steps": 30})
    worker = plane.worker()
    order = worker.claim()
    assert order is not None
    worker.start(order)
    return worker, order


def keys(plane: Plane, run: str) -> list[tuple[int, str, int]]:
    found, cursor = [], 0
    while cursor is not None:
        page = plane.get(f"/runs/{run}/heartbeats", after=cursor, limit=50)
        found += [(row["rank"], row["boot"], row["seq"]) for row in page["items"]]
        cursor = page["next_cursor"]
    return found


def test_lost_doubled_and_reordered_messages_change_nothing(
    plane: Plane, started: tuple[FakeWorker, Any]
) -> None:
    worker, order = started
    chance = random.Random(7)
    lines = beats(order, 0)
    held: list[dict[str, Any]] = []
    acked = 0
    for _ in range(2000):
        done = 0
        index = 0
        while done < acked:
            done += size_of(lines[index : index + 1])
            index += 1
        assert done == acked
        if index == len(lines):
            break
        part = lines[index : index + chance.randint(1, 7)]
        message = {"rank": 0, "start": acked, "end": acked + size_of(part), "lines": part}
        held.append(message)
        if chance.random() < 0.3:
            continue  # lost on its way
        sent = held if chance.random() < 0.3 else [message]
        for old in chance.sample(sent, min(len(sent), 4)):
            answer = worker.telemetry(order, ranks=[old]).json()
            assert int(answer["acked"].get("0", 0)) >= acked
            acked = int(answer["acked"].get("0", 0))
    assert acked == size_of(lines)
    found = keys(plane, order.run)
    assert [seq for _, _, seq in found] == list(range(len(lines)))


def test_a_stale_token_is_refused_by_every_call(
    plane: Plane, started: tuple[FakeWorker, Any]
) -> None:
    worker, order = started
    stale = order.model_copy(update={"token": order.token - 1})
    path = f"/runs/{order.run}"
    calls = [
        worker.telemetry(stale),
        worker.state(stale, "halt"),
        worker.post(f"{path}/findings", {"token": stale.token, "findings": []}),
        worker.post(f"{path}/evidence", {"token": stale.token, "path": "a", "content_b64": ""}),
    ]
    assert [answer.status_code for answer in calls] == [409] * 4
    problem = calls[0].json()
    assert (problem["code"], problem["token"]) == ("stale_token", order.token)
    assert "state" not in problem


def test_lines_that_are_no_heartbeats_are_kept_and_advance_the_offset(
    plane: Plane, started: tuple[FakeWorker, Any]
) -> None:
    worker, order = started
    known = beats(order, 1)[0]
    strange = ["{torn", '{"v":1}', "\x00\x00", known]
    worker.ship(order, {0: strange, 1: [known, known]})
    answer = worker.telemetry(order).json()
    assert answer["acked"]["0"] == size_of(strange)
    rows = plane.get(f"/runs/{order.run}/heartbeats")["items"]
    assert sorted(row["boot"] for row in rows) == [*[""] * 4, "boot11"], "a doubled line once"
    assert rows[2]["line"] == "\ufffd\ufffd"


def test_progress_is_what_rank_zero_said_last(
    plane: Plane, started: tuple[FakeWorker, Any]
) -> None:
    worker, order = started
    lines = beats(order, 0, upto=10)
    nan = lines[-2].replace('"loss": 4.', '"loss": "NaN", "was": 4.')
    worker.ship(order, {0: [*lines[:-2], nan, lines[-1]]})
    run = plane.get(f"/runs/{order.run}")
    assert (run["step"], run["steps"], run["loss"]) == (10, 30, "NaN")
    assert run["identity"]["git_sha"] == "a" * 40


def test_lines_after_the_end_are_stored_and_change_nothing(
    plane: Plane, started: tuple[FakeWorker, Any]
) -> None:
    worker, order = started
    lines = {rank: beats(order, rank) for rank in (0, 1)}
    worker.ship(order, lines)
    worker.end(order, lines)
    plane.wait(lambda: plane.get(f"/runs/{order.run}")["verdict"], "a verdict")
    late = beats(order, 0)[3].replace('"seq": 3', '"seq": 9999')
    answer = worker.telemetry(
        order,
        ranks=[
            {
                "rank": 0,
                "start": size_of(lines[0]),
                "end": size_of(lines[0]) + size_of([late]),
                "lines": [late],
            }
        ],
    )
    assert answer.status_code == 200
    assert answer.json()["command"] is None
    assert (0, "boot01", 9999) in keys(plane, order.run)
    assert plane.get(f"/runs/{order.run}")["state"] == "ended"


def test_judgement_waits_for_every_byte_and_every_finding(
    plane: Plane, started: tuple[FakeWorker, Any]
) -> None:
    worker, order = started
    lines = {rank: beats(order, rank) for rank in (0, 1)}
    worker.ship(order, {0: lines[0]})
    assert worker.end(order, lines, findings=1).status_code == 200
    judging = plane.context
    from service.judging.ended import find_unjudged

    assert judging.store.read(find_unjudged) == []
    worker.ship(order, {1: lines[1]})
    assert plane.get(f"/runs/{order.run}")["verdict"] is None
    finding = {
        "detector": "straggler", "severity": "warn", "at": 1.0, "key": "k1", "text": "slow rank",
    }  # fmt: skip
    answer = worker.post(
        f"/runs/{order.run}/findings", {"token": order.token, "findings": [finding]}
    )
    assert answer.json()["detail"] == {"new": 1}
    judged = plane.wait(lambda: plane.get(f"/runs/{order.run}")["verdict"], "the verdict")
    assert judged == "INCONCLUSIVE"  # nothing that was watched comes to that finding


def test_logs_are_taken_by_offset_and_read_by_tail_or_offset(
    plane: Plane, started: tuple[FakeWorker, Any]
) -> None:
    worker, order = started
    text = "".join(f"line {n}\n" for n in range(10))
    log = {"name": "rank0.log", "start": 0, "end": len(text), "text": text}
    assert worker.telemetry(order, logs=[log]).json()["logs"] == {"rank0.log": len(text)}
    assert worker.telemetry(order, logs=[log]).json()["logs"] == {"rank0.log": len(text)}
    skipped = {"name": "rank0.log", "start": 1000, "end": 1006, "text": "later\n"}
    worker.telemetry(order, logs=[skipped])
    path = f"/runs/{order.run}/logs"
    found = plane.get(path, rank=0, tail=2)
    assert found["text"] == "line 9\nlater\n"
    assert found["next_offset"] == 1006
    assert plane.get(path, rank=0, offset=len(text) - 7)["text"] == "line 9\nlater\n"
    assert plane.get(path, rank=0, offset=1006)["text"] == ""
    assert plane.get(path, tail=5)["name"] == "torchrun.log"


def test_a_run_is_shown_as_suspect_as_long_as_its_watcher_says_so(
    plane: Plane, started: tuple[FakeWorker, Any]
) -> None:
    worker, order = started
    for suspect in (False, True, True, False):
        assert worker.telemetry(order, suspect=suspect).status_code == 200
        assert plane.get(f"/runs/{order.run}")["suspect"] is suspect


def test_a_run_shows_how_near_its_detectors_are(
    plane: Plane, started: tuple[FakeWorker, Any]
) -> None:
    worker, order = started
    path = f"/runs/{order.run}/near"
    assert plane.get(path) == {}
    near = {"stall": {"value": 12.0, "limit": 60.0, "unit": "s"}, "slow": {"blind": "no steps"}}
    assert worker.telemetry(order, near=near).status_code == 200
    assert worker.telemetry(order).status_code == 200
    found = plane.get(path)
    assert found["stall"]["value"] == 12.0
    assert found["slow"]["blind"] == "no steps"
