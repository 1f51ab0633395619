"""How exit.json names the cause."""

from __future__ import annotations

import errno
import hashlib
import json
import os
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gonogo.contract.outcome import Actor, OutcomeCode
from gonogo.contract.records import ExitRecord
from gonogo.supervise.end_request import EndRequest
from gonogo.supervise.exit_record import (
    FULL_BYTES,
    FULL_FILES,
    build_binding,
    build_exit,
    build_refusal,
    seal_lines,
)
from gonogo.supervise.last_lines import Ended
from gonogo.watch.detectors import disk as watched

ORDER = {"world_size": 2, "steps": 10}


def ended(code: int | None = None, signal: int | None = None, at: float = 100.0) -> Ended:
    return Ended(code=code, signal=signal, at=at)


def request(reason: str, by: str, at: float = 50.0) -> EndRequest:
    return EndRequest(reason=reason, ended_by=by, at=at, text="why")


def write_last_step(run_dir: Path, step: int) -> None:
    for rank in range(2):
        line = {"msg": "step_end", "step": step}
        (run_dir / f"heartbeat_rank{rank}.jsonl").write_text(json.dumps(line) + "\n{torn")


def build(
    run_dir: Path,
    ranks: dict[int, Ended],
    asked: EndRequest | None = None,
    order: dict[str, Any] = ORDER,
    oom_at: float | None = None,
    **more: Ended | None,
) -> ExitRecord:
    document = build_exit(
        run_dir=run_dir,
        order=order,
        request=asked,
        agent=more.get("agent", ended(1)),
        ranks=ranks,
        now=200.0,
        oom_at=None if oom_at is None else dict.fromkeys(ranks, oom_at),
    )
    return ExitRecord.model_validate(document)


def test_ranks_that_end_well_after_the_last_step_complete_the_run(tmp_path: Path) -> None:
    write_last_step(tmp_path, 10)
    record = build(tmp_path, {0: ended(0), 1: ended(0)})
    assert (record.reason, record.ended_by) == (OutcomeCode.COMPLETED, Actor.TRAINER)
    assert (record.code, record.ended_at) == (0, 200.0)


@pytest.mark.parametrize(
    ("last", "who"),
    [((0, 0), "every rank"), ((9, 9), "every rank"), ((10, 9), "rank 1"), ((9, 10), "rank 0")],
)
def test_ranks_that_left_before_the_last_step_are_named(
    last: tuple[int, int], who: str, tmp_path: Path
) -> None:
    for rank, step in enumerate(last):
        line = {"msg": "done", "step": step}
        (tmp_path / f"heartbeat_rank{rank}.jsonl").write_text(json.dumps(line) + "\n")
    record = build(tmp_path, {0: ended(0), 1: ended(0)})
    assert (record.reason, record.ended_by) == (OutcomeCode.NONZERO_EXIT, Actor.TRAINER)
    assert record.text == f"{who} ended with 0 before the last ordered step"


@pytest.mark.parametrize(
    ("last", "reason"),
    [
        ({"boot": "b", "msg": "error", "step": 7}, OutcomeCode.NONZERO_EXIT),
        ({"boot": "b", "msg": "done", "step": 7}, OutcomeCode.NONZERO_EXIT),
        ({"boot": "b", "msg": "done", "step": 10}, OutcomeCode.COMPLETED),
        ({"boot": "a", "msg": "alive", "step": 10}, OutcomeCode.COMPLETED),
    ],
)
def test_what_a_process_before_the_last_one_ended_completes_no_run(
    last: dict[str, Any], reason: OutcomeCode, tmp_path: Path
) -> None:
    """As the second of two trainings in a row, whose error the program passes over."""
    for rank in range(2):
        lines = [{"boot": "a", "msg": "done", "step": 10}, last]
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (tmp_path / f"heartbeat_rank{rank}.jsonl").write_text(text)
    assert build(tmp_path, {0: ended(0), 1: ended(0)}).reason is reason


@pytest.mark.parametrize(
    ("last", "attached", "reason"),
    [
        ({"msg": "progress", "step": 8}, False, OutcomeCode.COMPLETED),
        ({"msg": "done", "step": 8}, False, OutcomeCode.NONZERO_EXIT),
        ({"msg": "progress", "step": 8}, True, OutcomeCode.NONZERO_EXIT),
    ],
)
def test_a_program_that_is_read_left_early_where_its_lines_say_so(
    last: dict[str, Any], attached: bool, reason: OutcomeCode, tmp_path: Path
) -> None:
    (tmp_path / "heartbeat_rank0.jsonl").write_text(json.dumps(last, separators=(",", ":")) + "\n")
    if attached:
        (tmp_path / ".attached").touch()
    order = {"world_size": 1, "steps": 10, "command": ["x"], "patterns": ["y"]}
    assert build(tmp_path, {0: ended(0)}, order=order).reason is reason


def test_run_of_which_no_rank_started_names_torchrun(tmp_path: Path) -> None:
    record = build(tmp_path, {}, agent=ended(1))
    assert (record.reason, record.code) == (OutcomeCode.NONZERO_EXIT, 1)
    assert "torchrun" in record.text


def test_rank_that_failed_first_is_the_cause_and_not_those_told_to_end(tmp_path: Path) -> None:
    ranks = {0: ended(signal=15, at=1.0), 1: ended(code=7, at=2.0)}
    record = build(tmp_path, ranks)
    assert (record.code, record.signal) == (7, None)
    assert record.text == "rank 1 ended with code 7"


@pytest.mark.parametrize(
    ("reason", "by"), [("stalled", "watchdog"), ("halted", "operator"), ("watcher_failed", "infra")]
)
@pytest.mark.parametrize("end", [ended(3), ended(1), ended(signal=6)], ids=str)
def test_who_asked_first_names_the_cause(tmp_path: Path, reason: str, by: str, end: Ended) -> None:
    record = build(tmp_path, {0: ended(3), 1: end}, request(reason, by))
    assert (record.reason.value, record.ended_by.value, record.text) == (reason, by, "why")


@pytest.mark.parametrize(
    "text",
    [
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB",
        "RuntimeError: DefaultCPUAllocator: can't allocate memory: you tried to allocate",
        "Traceback\nMemoryError\n",
    ],
)
def test_memory_is_named_when_the_failed_rank_says_so(tmp_path: Path, text: str) -> None:
    (tmp_path / "rank1.log").write_text(text)
    asked = request("nonzero_exit", "trainer")
    record = build(tmp_path, {0: ended(signal=15, at=2.0), 1: ended(1, at=1.0)}, asked)
    assert record.reason is OutcomeCode.OOM


@pytest.mark.parametrize(
    ("end", "oom_at", "asked", "reason"),
    [
        (ended(signal=9, at=100.0), 100.9, None, OutcomeCode.OOM),
        (ended(137, at=100.0), 100.9, request("nonzero_exit", "trainer"), OutcomeCode.OOM),
        (ended(signal=9, at=100.0), None, None, OutcomeCode.NONZERO_EXIT),
        (ended(signal=9, at=100.0), 70.0, None, OutcomeCode.NONZERO_EXIT),
        (ended(1, at=100.0), 100.9, None, OutcomeCode.NONZERO_EXIT),
        (ended(signal=9, at=100.0), 100.9, request("stalled", "watchdog"), OutcomeCode.STALLED),
    ],
    ids=["killed", "by a shell's code", "nobody counted", "long before", "by itself", "asked"],
)
def test_a_kill_for_want_of_memory_names_the_cause(
    end: Ended, oom_at: float | None, asked: EndRequest | None, reason: OutcomeCode, tmp_path: Path
) -> None:
    """The kernel's counter shows it: the rank itself says nothing."""
    record = build(tmp_path, {0: ended(1, at=101.0), 1: end}, asked, oom_at=oom_at)
    assert record.reason is reason
    assert ("out of memory" in record.text) is (reason is OutcomeCode.OOM)


NO_SPACE = "OSError: [Errno 28] No space left on device\n"


@pytest.mark.parametrize(
    ("log", "free", "asked", "reason"),
    [
        (NO_SPACE, (63, 0, 0), None, OutcomeCode.DISK_FULL),
        (NO_SPACE, (63, 0, 0), request("nonzero_exit", "trainer"), OutcomeCode.DISK_FULL),
        (NO_SPACE, (64, 1000, 15), None, OutcomeCode.DISK_FULL),
        (NO_SPACE, (64, 1000, 16), None, OutcomeCode.NONZERO_EXIT),
        (NO_SPACE, (64, 0, 0), None, OutcomeCode.NONZERO_EXIT),
        (NO_SPACE, None, None, OutcomeCode.NONZERO_EXIT),
        ("ValueError: no such word\n", (63, 0, 0), None, OutcomeCode.NONZERO_EXIT),
        (NO_SPACE, (63, 0, 0), request("stalled", "watchdog"), OutcomeCode.STALLED),
        ("OSError: [Errno 116] Stale file handle: 'a'\n", (64, 0, 0), None, OutcomeCode.DISK_FULL),
    ],
    ids=[
        "full", "found dead", "without inodes", "a quota", "one that counts no inodes",
        "nobody can tell", "another error", "asked", "a failing file system",
    ],
)  # fmt: skip
def test_a_disk_that_is_full_is_not_the_programs(
    log: str,
    free: tuple[int, int, int] | None,
    asked: EndRequest | None,
    reason: OutcomeCode,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With room (in MB) and inodes (of so many, so many) on the disk it was a quota: its own."""

    def statvfs(path: Path) -> SimpleNamespace:
        if free is None:
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        mb, files, left = free
        return SimpleNamespace(
            f_blocks=2**30, f_bavail=mb * 256, f_frsize=4096, f_files=files, f_favail=left
        )

    monkeypatch.setattr(os, "statvfs", statvfs)
    (tmp_path / "rank1.log").write_text(log)
    record = build(tmp_path, {0: ended(signal=15, at=2.0), 1: ended(1, at=1.0)}, asked)
    assert record.reason is reason
    error = [] if reason is OutcomeCode.STALLED else [log.splitlines()[-1]]
    assert record.error == error


@pytest.mark.parametrize(
    ("log", "free_kb", "end", "reason"),
    [
        ("", 0, ended(1, at=1.0), OutcomeCode.DISK_FULL),
        ("step 3 loss 2.5\n", 2100, ended(1, at=1.0), OutcomeCode.DISK_FULL),
        ("Traceback (most recent call la", 0, ended(1, at=1.0), OutcomeCode.DISK_FULL),
        ("ValueError: no such word\n", 0, ended(1, at=1.0), OutcomeCode.NONZERO_EXIT),
        ("", FULL_BYTES // 1024, ended(1, at=1.0), OutcomeCode.NONZERO_EXIT),
        ("", 0, ended(signal=11, at=1.0), OutcomeCode.NONZERO_EXIT),
    ],
    ids=["no word", "none of why", "cut short", "another error", "with room", "by a signal"],
)
def test_what_a_full_disk_kept_from_saying_why_is_not_the_programs(
    log: str,
    free_kb: int,
    end: Ended,
    reason: OutcomeCode,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The traceback of `No space left on device` needs room itself."""
    room = SimpleNamespace(f_blocks=2**30, f_bavail=free_kb, f_frsize=1024, f_files=0, f_favail=0)
    monkeypatch.setattr(os, "statvfs", lambda path: room)
    (tmp_path / "rank1.log").write_text(log)
    record = build(tmp_path, {0: ended(signal=15, at=2.0), 1: end})
    assert record.reason is reason


def refuse(tmp_path: Path, order: dict[str, Any]) -> dict[str, Any]:
    return build_refusal(
        "start_failed", "trainer", "not allowed", run_dir=tmp_path, order=order, now=5.0
    )


@pytest.mark.parametrize("refused", [False, True], ids=["ended", "refused"])
def test_end_says_whose_it_is_and_how_much_was_watched(tmp_path: Path, refused: bool) -> None:
    order = {**ORDER, "run": "run_x", "attempt": 2}
    (tmp_path / "order.json").write_text(json.dumps(order))
    ticks = b'{"n":0}\n' * 200_000
    (tmp_path / "watch.jsonl").write_bytes(ticks + b'{"n":9')
    if refused:
        document = refuse(tmp_path, order)
    else:
        document = build_exit(
            run_dir=tmp_path, order=order, request=None, agent=ended(1), ranks={}, now=5.0
        )
    record = ExitRecord.model_validate(document)
    assert (record.run, record.attempt) == ("run_x", 2)
    assert record.order_sha256 == sha256((tmp_path / "order.json").read_bytes()).hexdigest()
    assert record.watch is not None
    assert record.watch.bytes == len(ticks)
    assert record.watch.sha256 == sha256(ticks).hexdigest()


@pytest.mark.parametrize("torn", [False, True], ids=["nothing", "one torn line"])
def test_watch_that_cannot_be_sealed_is_sealed_as_empty(tmp_path: Path, torn: bool) -> None:
    path = tmp_path / "watch.jsonl"
    if torn:
        path.write_bytes(b"x" * 3_000_000)
    assert seal_lines(path) == {"bytes": 0, "sha256": sha256(b"").hexdigest()}


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE])
def test_what_a_disk_refuses_for_a_moment_is_vouched_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """A completed run was left open: its end reported that nothing was written."""
    names = ("order.json", "watch.jsonl", "findings.jsonl", "heartbeat_rank0.jsonl")
    for name in names:
        (tmp_path / name).write_text("{}\n")
    expected = build_binding(tmp_path, ORDER)
    refused = refuse_opens(monkeypatch, number, times=2)
    assert build_binding(tmp_path, ORDER) == expected
    assert refused == dict.fromkeys(names, 0)


def refuse_opens(monkeypatch: pytest.MonkeyPatch, number: int, *, times: int) -> dict[str, int]:
    """Have a disk refuse each file some times; returns how often it will do so yet."""
    left: dict[str, int] = {}
    real = os.open

    def refuse(path: Any, *args: Any, **named: Any) -> int:
        name = Path(path).name
        if left.setdefault(name, times):
            left[name] -= 1
            raise OSError(number, os.strerror(number), str(path))
        return real(path, *args, **named)

    monkeypatch.setattr(os, "open", refuse)
    return left


def test_the_end_says_what_stood_written_and_who_had_asked(tmp_path: Path) -> None:
    for rank in (0, 7):  # one that was never ordered, too
        (tmp_path / f"heartbeat_rank{rank}.jsonl").write_bytes(b"{}\n{}\n{torn")
    (tmp_path / "findings.jsonl").write_bytes(b"{}\n")
    (tmp_path / ".HALT").touch()
    found = build_binding(tmp_path, {"run": "r"})
    whole = (tmp_path / "heartbeat_rank0.jsonl").read_bytes()[:6]
    sealed = {"bytes": 6, "lines": 2, "sha256": hashlib.sha256(whole).hexdigest()}
    assert found["heartbeats"] == {f"heartbeat_rank{rank}.jsonl": sealed for rank in (0, 7)}
    assert found["findings"] == seal_lines(tmp_path / "findings.jsonl")
    assert found["findings"]["bytes"] == 3
    assert found["requests"] == [".HALT"]


SURVIVED = (
    "Traceback (most recent call last):\ntorch.OutOfMemoryError: CUDA out of memory\n"
    "step 9 loss 2.5\n"
)
VALUE_ERROR = "Traceback (most recent call last):\nValueError: no such word\n"


@pytest.mark.parametrize(
    ("log", "end", "reason"),
    [
        (SURVIVED, ended(signal=9), OutcomeCode.NONZERO_EXIT),
        (SURVIVED, ended(3), OutcomeCode.NONZERO_EXIT),
        (SURVIVED + VALUE_ERROR, ended(1), OutcomeCode.NONZERO_EXIT),
        (SURVIVED.partition("step")[0], ended(1), OutcomeCode.OOM),
        (SURVIVED.partition("step")[0], ended(signal=6), OutcomeCode.OOM),
        (SURVIVED.partition("step")[0], ended(signal=9), OutcomeCode.NONZERO_EXIT),
    ],
    ids=["survived, killed", "survived", "another error", "the last", "aborted", "killed"],
)
def test_memory_that_lacked_earlier_is_no_cause_of_the_end(
    log: str, end: Ended, reason: OutcomeCode, tmp_path: Path
) -> None:
    (tmp_path / "rank0.log").write_text(log)
    record = build(tmp_path, {0: end}, order={"world_size": 1, "steps": 10, "command": ["x"]})
    assert record.reason is reason
    assert ("OutOfMemoryError" in str(record.error)) == (reason is OutcomeCode.OOM)
    assert record.text.startswith("the command ended")


COMMAND = {"world_size": 2, "steps": 10, "command": ["torchrun"]}


def test_of_a_launchers_ranks_each_has_its_own_words_in_the_log_of_all(tmp_path: Path) -> None:
    said = {0: "RuntimeError: [x/gloo/pair.cc] closed by peer", 1: "MemoryError: out of memory"}
    for rank, text in said.items():
        with (tmp_path / "rank0.log").open("a") as log:
            log.write(f"[rank{rank}]: Traceback (most recent call last):\n[rank{rank}]: {text}\n")
    first = build(tmp_path, {0: ended(1, at=2.0), 1: ended(1, at=1.0)}, order=COMMAND)
    assert (first.reason, first.text) == (OutcomeCode.OOM, "rank 1 ended with code 1")
    first = build(tmp_path, {0: ended(1, at=1.0), 1: ended(1, at=2.0)}, order=COMMAND)
    assert (first.reason, first.error) == (OutcomeCode.NONZERO_EXIT, [said[0]])


@pytest.mark.parametrize(
    ("command", "agent", "reason"),
    [
        (["bash"], 0, OutcomeCode.COMPLETED),
        (["bash"], 1, OutcomeCode.NONZERO_EXIT),
        (None, 0, OutcomeCode.NONZERO_EXIT),
    ],
    ids=["a command that left with 0", "one that did not", "torchrun of ours"],
)
def test_an_end_that_nobody_saw_fails_no_run_whose_command_left_with_0(
    command: list[str] | None, agent: int, reason: OutcomeCode, tmp_path: Path
) -> None:
    write_last_step(tmp_path, 10)
    order = {**COMMAND, "command": command}
    record = build(tmp_path, {0: ended(0), 1: ended()}, order=order, agent=ended(agent))
    assert record.reason is reason
    assert record.ranks["1"].code is None, "and it is not made up"


@pytest.mark.parametrize(
    ("said", "text"),
    [
        ({}, "the command ended with code 1, and nobody saw which rank failed"),
        ({0: 9.0, 1: 8.0}, "rank 1 ended with code 1"),
        ({0: -9.0}, "the command ended with code 1, and nobody saw which rank failed"),
    ],
    ids=["no rank said anything", "both said an error", "one missed the other"],
)
def test_where_nobody_saw_an_end_the_ranks_own_last_lines_name_the_cause(
    said: dict[int, float], text: str, tmp_path: Path
) -> None:
    for rank, ts in said.items():
        text_said = "no" if ts > 0 else "gloo/pair.cc: closed by peer"
        line = {"msg": "error", "ts": ts, "type": "RuntimeError", "text": text_said}
        (tmp_path / f"heartbeat_rank{rank}.jsonl").write_text(json.dumps(line) + "\n")
    record = build(tmp_path, {0: ended(), 1: ended()}, order=COMMAND)
    assert (record.code, record.reason, record.text) == (1, OutcomeCode.NONZERO_EXIT, text)


def test_who_only_missed_another_is_blamed_when_nobody_else_can_be(tmp_path: Path) -> None:
    missed = Ended(code=1, signal=None, at=1.0, lost_peer=True)
    assert build(tmp_path, {0: missed, 1: ended(7, at=2.0)}).text == "rank 1 ended with code 7"
    later = ended(signal=15, at=1.1)
    assert build(tmp_path, {0: missed, 1: later}).text == "rank 0 ended with code 1"
    record = build(tmp_path, {0: missed, 1: ended(7, at=2.0)})
    assert {rank: row.lost_peer for rank, row in record.ranks.items()} == {"0": True, "1": False}


def test_a_disk_is_full_where_the_watch_calls_it_full() -> None:
    assert FULL_BYTES == watched.FULL_MB * watched.MB
    assert FULL_FILES == watched.FULL_FILES
