import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nsa.flight_recorder import REQUEST, FlightRecorder

LIMIT_S = 30.0


def _answer(folder: Path, rank: int, word: str) -> dict[str, Any]:
    file = folder / f"collectives_rank{rank}.json"
    deadline = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline:
        if file.exists() and (found := json.loads(file.read_text()))["request"] == word:
            return dict(found)
        time.sleep(0.02)
    raise AssertionError(f"no answer to {word} in {folder}")


@pytest.fixture
def ask(tmp_path: Path) -> Callable[..., dict[str, Any]]:
    def asked(read: Callable[[], bytes], *words: str) -> dict[str, Any]:
        folder = tmp_path / "evidence"
        folder.mkdir(exist_ok=True)
        recorder = FlightRecorder(tmp_path, 3, read)
        try:
            for word in words:
                (folder / REQUEST).write_text(word)
                found = _answer(folder, 3, word)
        finally:
            recorder.close()
        return found

    return asked


def _entries(count: int, group: str = "0", **more: Any) -> list[dict[str, Any]]:
    said = {"process_group": [group, ""], "thread_id": "1", **more}
    return [{"collective_seq_id": seq, **said} for seq in range(1, count + 1)]


def test_every_request_is_answered_with_its_word(ask: Callable[..., dict[str, Any]]) -> None:
    found = ask(lambda: json.dumps({"version": "2.10", "entries": _entries(2)}).encode(), "1", "2")
    assert (found["request"], found["rank"], found["v"]) == ("2", 3, 1)
    assert found["entries"] == [
        {"collective_seq_id": seq, "process_group": ["0", ""]} for seq in (1, 2)
    ]


def test_a_recorder_that_fails_says_so(ask: Callable[..., dict[str, Any]]) -> None:
    def refuse() -> bytes:
        raise RuntimeError("no recorder")

    found = ask(refuse, "1")
    assert (found["error"], found["entries"]) == ("RuntimeError: no recorder", [])


def test_a_request_from_before_the_start_is_not_answered(tmp_path: Path) -> None:
    folder = tmp_path / "evidence"
    folder.mkdir()
    (folder / REQUEST).write_text("old")
    read: list[int] = []
    recorder = FlightRecorder(tmp_path, 0, lambda: bytes(read.append(1) or b"{}"))
    (folder / REQUEST).write_text("new")
    found = _answer(folder, 0, "new")
    recorder.close()
    assert (found["entries"], read) == ([], [1])


@pytest.mark.long
def test_a_rank_that_stands_in_gloo_tells_its_collectives(
    make_order: Callable[..., Path], launch_ranks: Callable[..., Any], helpers: Any
) -> None:
    train = {"parallel": "ddp", "steps": 10}
    order = make_order(
        world_size=2, train=train, fault="desync:rank=1,step=3", heartbeat={"alive_every_s": 0.2}
    )
    launch_ranks(order, environ={"TORCH_FR_BUFFER_SIZE": "2000"})
    for rank in (0, 1):
        helpers.wait_for(order.parent, lambda line: line["step"] == 3, rank=rank)
    (order.parent / "evidence").mkdir(exist_ok=True)
    for number in range(1, 61):  # a busy machine takes its time to come to where they stand
        (order.parent / "evidence" / REQUEST).write_text(str(number))
        dumps = [_answer(order.parent / "evidence", rank, str(number)) for rank in (0, 1)]
        standing = [
            [entry["process_group"][0] for entry in dump["entries"] if not entry["retired"]]
            for dump in dumps
        ]
        if standing == [["0"], ["1"]]:
            break
        time.sleep(0.5)
    assert standing == [["0"], ["1"]]
    assert dumps[0]["groups"] == {"0": [0, 1], "1": [0, 1]}
