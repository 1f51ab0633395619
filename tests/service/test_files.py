"""Is the directory that the database gives back the one that was shipped, byte by byte?"""

from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from gonogo.contract.errors import Corrupt
from service.db.schema import PieceRow
from service.judging.ended import find_unjudged, save_run
from service.queries.runs import load_run
from tests.data.make_runs import WHOLE_GATE
from tests.service.conftest import Plane
from tests.service.fake_worker import FakeWorker, beats, coded, size_of

STRANGE = (
    b'{"v":1}\r\n' + b"\xff\xfe not utf-8\n" + b"\n" + b"null \x00 byte\n" + "ü".encode() + b"\n"
)


def started(plane: Plane, **more: Any) -> tuple[FakeWorker, Any]:
    plane.submit()
    worker = plane.worker(**more)
    order = worker.claim()
    assert order is not None
    worker.start(order)
    return worker, order


def written(plane: Plane, run: str, folder: Path) -> dict[str, bytes]:
    """Path → content of every file that the database gives back."""
    plane.context.store.read(lambda session: save_run(session, load_run(session, run), folder))
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_whole_directory_comes_back_as_it_stands_on_the_host(still: Plane, tmp_path: Path) -> None:
    worker, order = started(still, home=tmp_path / "runs")
    told = {f"watch_node{node}.jsonl": b'{"node":%d}\n' % node for node in range(2)}
    files = [{"name": name, "start": 0, "content_b64": coded(raw)} for name, raw in told.items()]
    worker.telemetry(order, files=files)
    lines = {rank: beats(order, rank) for rank in range(order.world_size)}
    worker.ship(order, lines)
    worker.end(order, lines)
    found = written(still, order.run, tmp_path / "again")
    folder = tmp_path / "runs" / order.run
    assert found == told | {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }
    assert {"watch.jsonl", "order.json", "exit.json", "preflight/preflight.json"} <= found.keys()


def test_lines_that_are_no_text_and_lines_that_say_the_same_come_back(
    still: Plane, tmp_path: Path
) -> None:
    worker, order = started(still)
    short = {"rank": 0, "start": 0, "end": 9, "lines": ["x"], "raw_b64": coded(b"x\n")}
    refused = worker.telemetry(order, ranks=[short])
    assert (refused.status_code, refused.json()["code"]) == (422, "rejected")
    line = beats(order, 0)[0].encode() + b"\n"
    raw = line + STRANGE + line
    rows = [row.decode("utf-8", "replace") for row in raw.splitlines()]
    part = {"rank": 0, "start": 0, "end": len(raw), "lines": rows, "raw_b64": coded(raw)}
    assert worker.telemetry(order, ranks=[part]).json()["acked"] == {"0": len(raw)}
    found = written(still, order.run, tmp_path / "again")
    assert found["heartbeat_rank0.jsonl"] == raw


def test_stretches_of_ticks_that_come_twice_late_or_overlap_change_nothing(
    still: Plane, tmp_path: Path
) -> None:
    worker, order = started(still)
    ticks = [b'{"n":0}\n', STRANGE, b'{"n":1}\n']
    starts = [0, len(ticks[0]), len(ticks[0] + STRANGE)]
    sent = [(0, ticks[0]), (starts[2], ticks[2]), (0, ticks[0]), (starts[1], ticks[1]),
            (starts[1], ticks[1] + b"z\n"), (starts[2], ticks[2])]  # fmt: skip
    acked = []
    for start, content in sent:
        file = {"name": "watch.jsonl", "start": start, "content_b64": coded(content)}
        acked.append(worker.telemetry(order, files=[file]).json()["files"]["watch.jsonl"])
    assert acked == [starts[1], starts[1], starts[1], starts[2], starts[2], len(b"".join(ticks))]
    assert written(still, order.run, tmp_path / "again")["watch.jsonl"] == b"".join(ticks)


def test_only_files_of_a_run_are_taken(still: Plane) -> None:
    worker, order = started(still)
    for name in (
        *("order.json", "../exit.json", "watch.jsonl", "env.json.tmp"),
        *("exit_node1.json", "watch_node12.jsonl", "watch_nodex.jsonl", "exit_node.json"),
    ):
        file = {"name": name, "start": 0, "content_b64": coded(b"{}\n")}
        as_file = worker.telemetry(order, files=[file])
        body = {"token": order.token, "path": name, "content_b64": coded(b"{}")}
        as_record = worker.post(f"/runs/{order.run}/records", body)
        assert (as_file.status_code == 200) == (name in ("watch.jsonl", "watch_node12.jsonl"))
        assert (as_record.status_code == 200) == (name in ("order.json", "exit_node1.json"))


@pytest.mark.parametrize("missing", ["watch.jsonl", "findings.jsonl", "exit.json", "heartbeat"])
def test_a_run_waits_for_every_byte_that_its_end_promised(still: Plane, missing: str) -> None:
    worker, order = started(still)
    lines = {rank: beats(order, rank) for rank in (0, 1)}
    if missing != "heartbeat":
        worker.ship(order, lines)
    ticks, record = b'{"n":0}\n', b"{}"
    files = {name: len(ticks) for name in ("watch.jsonl", "findings.jsonl")}
    parts = [
        {"name": name, "start": 0, "content_b64": coded(ticks)} for name in files if name != missing
    ]
    worker.telemetry(order, files=parts)
    upload = {"token": order.token, "path": "exit.json", "content_b64": coded(record)}
    if missing == "exit.json":
        worker.post(f"/runs/{order.run}/records", {**upload, "content_b64": coded(b"{ }")})
    else:
        worker.post(f"/runs/{order.run}/records", upload)
    ended = {"ended_at": 1.0, "ended_by": "trainer", "reason": "completed"}
    sizes = {str(rank): size_of(rows) for rank, rows in lines.items()}
    records = {"exit.json": sha256(record).hexdigest()}
    worker.state(order, "end", exit=ended, sizes=sizes, files=files, records=records)
    assert still.context.store.read(find_unjudged) == []
    worker.ship(order, lines) if missing == "heartbeat" else None
    late = {"name": missing, "start": 0, "content_b64": coded(ticks)}
    worker.telemetry(order, files=[late] if missing.endswith(".jsonl") else [])
    worker.post(f"/runs/{order.run}/records", {**upload, "content_b64": coded(b"[]")})
    worker.post(f"/runs/{order.run}/records", upload)
    assert still.context.store.read(find_unjudged) == [order.run]


def test_what_comes_after_the_promised_bytes_is_not_judged(still: Plane, tmp_path: Path) -> None:
    worker, order = started(still, home=tmp_path / "runs")
    lines = {rank: beats(order, rank) for rank in (0, 1)}
    worker.ship(order, lines)
    worker.end(order, lines)
    have = (tmp_path / "runs" / order.run / "watch.jsonl").read_bytes()
    file = {"name": "watch.jsonl", "start": len(have), "content_b64": coded(b'{"n":9}\n')}
    assert worker.telemetry(order, files=[file]).json()["files"]["watch.jsonl"] == len(have) + 8
    assert written(still, order.run, tmp_path / "again")["watch.jsonl"] == have


def test_piece_that_is_missing_is_named_and_never_passed_over(still: Plane, tmp_path: Path) -> None:
    worker, order = started(still)
    for start, content in ((0, b"a\n"), (2, b"b\n"), (4, b"c\n")):
        file = {"name": "watch.jsonl", "start": start, "content_b64": coded(content)}
        worker.telemetry(order, files=[file])

    def lose(session: Any) -> None:
        session.delete(session.get_one(PieceRow, (order.run, "watch.jsonl", 2)))

    still.context.store.write(lose)
    with pytest.raises(Corrupt, match="bytes 2 to 4"):
        written(still, order.run, tmp_path / "again")


def test_order_that_is_not_the_one_given_out_is_no_evidence(still: Plane, tmp_path: Path) -> None:
    worker, order = started(still)
    changed = {**order.model_dump(mode="json"), "steps": 1, "gate": WHOLE_GATE}
    other = json.dumps(changed).encode()
    for content in (other, b"{"):
        body = {"token": order.token, "path": "order.json", "content_b64": coded(content)}
        assert worker.post(f"/runs/{order.run}/records", body).status_code == 200
        found = written(still, order.run, tmp_path / sha256(content).hexdigest())["order.json"]
        assert b'"steps": 1,' in found or order.steps != 1
        assert found != content
