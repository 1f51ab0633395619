import json
import time

import pytest

from nsa.run_signals import REQUEST, FlightRecorder
from tests.nsa.runs import wait_for

LIMIT_S = 30.0


def answer(folder, rank, word):
    file = folder / f"collectives_rank{rank}.json"
    deadline = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline:
        if file.exists() and (found := json.loads(file.read_text()))["request"] == word:
            return found
        time.sleep(0.02)
    raise AssertionError(f"no answer to {word} in {folder}")


@pytest.fixture
def ask(tmp_path):
    """What a recorder answers last; `before` stood there when it began."""

    def asked(read, *words, before=None):
        folder = tmp_path / "evidence"
        folder.mkdir()
        if before:
            (folder / REQUEST).write_text(before)
        recorder = FlightRecorder(tmp_path, 3, read)
        try:
            for word in words:
                (folder / REQUEST).write_text(word)
                found = answer(folder, 3, word)
        finally:
            recorder.close()
        return found

    return asked


def test_every_request_is_answered_with_its_word(ask):
    entries = [
        {"collective_seq_id": seq, "process_group": ["0", ""], "thread_id": "1"} for seq in (1, 2)
    ]
    found = ask(lambda: json.dumps({"version": "2.10", "entries": entries}).encode(), "1", "2")
    assert (found["request"], found["rank"], found["v"]) == ("2", 3, 1)
    assert found["entries"] == [
        {"collective_seq_id": seq, "process_group": ["0", ""]} for seq in (1, 2)
    ]


def test_a_recorder_that_fails_says_so(ask):
    def refuse():
        raise RuntimeError("no recorder")

    found = ask(refuse, "1")
    assert (found["error"], found["entries"]) == ("RuntimeError: no recorder", [])


def test_a_request_from_before_the_start_is_not_answered(ask):
    read = []
    found = ask(lambda: bytes(read.append(1) or b"{}"), "new", before="old")
    assert (found["entries"], read) == ([], [1])


@pytest.mark.long
def test_a_rank_that_stands_in_gloo_tells_its_collectives(make_order, launch_ranks):
    order = make_order(
        world_size=2, train={"parallel": "ddp", "steps": 10}, fault="desync:rank=1,step=3",
        heartbeat={"alive_every_s": 0.2},
    )  # fmt: skip
    launch_ranks(order, environ={"TORCH_FR_BUFFER_SIZE": "2000"})
    for rank in (0, 1):
        wait_for(order.parent, lambda line: line["step"] == 3, rank=rank)
    folder = order.parent / "evidence"
    folder.mkdir(exist_ok=True)
    for number in range(1, 61):  # a busy machine takes its time to come to where they stand
        (folder / REQUEST).write_text(str(number))
        dumps = [answer(folder, rank, str(number)) for rank in (0, 1)]
        standing = [
            [entry["process_group"][0] for entry in dump["entries"] if not entry["retired"]]
            for dump in dumps
        ]
        if standing == [["0"], ["1"]]:
            break
        time.sleep(0.5)
    assert standing == [["0"], ["1"]]
    assert dumps[0]["groups"] == {"0": [0, 1], "1": [0, 1]}
