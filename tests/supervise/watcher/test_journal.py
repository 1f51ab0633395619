"""What a watcher records, and what the next one finds."""

from __future__ import annotations

import json
import os
import resource
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from gonogo.contract.finding import Finding, Severity
from gonogo.contract.records import ProcessState, RankProbe, Tick
from gonogo.rundir import RunDir, load_all_lines
from gonogo.supervise.watcher.journal import Journal, Memory
from gonogo.watch.fold import start
from gonogo.watch.offline_fold import tick_digest, tick_line
from tests.supervise.runs import build_test_order

ORDER = build_test_order("run_x", world_size=1)
SLOW = Finding(detector="slow", severity=Severity.WARN, at=1.0, key="k", text="a\nb")


def beat(seq: int, msg: str, step: int, **fields: object) -> bytes:
    line = {
        "v": 1, "ts": float(seq), "mono": float(seq), "pid": 7, "rank": 0, "boot": "b",
        "seq": seq, "step": step, "msg": msg, "section": None, **fields,
    }  # fmt: skip
    return json.dumps(line).encode() + b"\n"


def tick_of(number: int, **parts: Any) -> Tick:
    return Tick(**{"n": number, "mono": 0.2 * number, "ts": 3.0, "go": True, **parts})


def add(journal: Journal, *ticks: Tick) -> list[bool]:
    """Record ticks; return whether each was recorded."""
    return [journal.add_tick(tick, start(ORDER), {}) for tick in ticks]


def recovered(run_dir: RunDir) -> Journal:
    return Journal(run_dir, ORDER)


def ticks_of(run_dir: RunDir) -> list[Tick]:
    """Return the recorded ticks, which form one chain."""
    ticks = [Tick.model_validate_json(line) for line in load_all_lines(run_dir.watch)]
    digests = [tick_digest(tick_line(tick)) for tick in ticks]
    assert [tick.prev for tick in ticks] == [None, *digests[:-1]]
    return ticks


@pytest.fixture
def sick(tmp_path: Path) -> RunDir:
    """A run of three ticks: boot, a non-finite loss, and a rank that is alive."""
    run_dir = RunDir(tmp_path)
    journal = Journal(run_dir, ORDER)
    tails = journal.tails
    identity = {k: v for k, v in ORDER.identity.model_dump().items() if v is not None}
    probe = RankProbe(rank=0, pid=7, state=ProcessState.ALIVE)
    parts = [beat(1, "boot", 0, **identity), beat(2, "progress", 1, loss="NaN", grad_norm=1.0), b""]
    for number, part in enumerate(parts):
        with run_dir.heartbeat(0).open("ab") as stream:
            stream.write(part)
        upto = {str(rank): tails.offsets[rank] for rank in tails.read()}
        ranks = [] if part else [probe]
        add(journal, tick_of(number, upto=upto, ranks=ranks, go=False))
    return run_dir


def test_nothing_recorded_is_a_fresh_start(tmp_path: Path) -> None:
    assert recovered(RunDir(tmp_path)).memory == Memory()


def test_the_fold_continues_after_the_last_recorded_tick(sick: RunDir) -> None:
    memory = recovered(sick).memory
    assert (memory.number, memory.mono) == (3, 0.4)
    assert memory.offsets == {0: sick.heartbeat(0).stat().st_size}


def test_a_finding_that_was_not_recorded_is_recorded_once(sick: RunDir) -> None:
    assert not sick.findings.exists()
    first = recovered(sick).memory.found
    halts = [row for row in first.values() if row.severity is Severity.HALT]
    assert [row.detector for row in halts] == ["non_finite"]
    lines = load_all_lines(sick.findings)
    assert len(lines) == len(first)
    evident = halts[0].model_copy(update={"evidence": ["evidence/x"]})
    rows = [evident if row.key == evident.key else row for row in first.values()]
    sick.findings.write_text("".join(f"{row.model_dump_json()}\n" for row in rows))
    second = recovered(sick).memory.found
    assert list(second) == list(first)
    assert second[evident.key].evidence == ["evidence/x"]
    assert len(load_all_lines(sick.findings)) == len(lines)


@pytest.mark.parametrize("torn", [b'{"v":1,"n":3', b'{"v":1,"n":3,"mono":0.6,"ts":3.0}'])
def test_a_torn_last_line_is_cut_off(sick: RunDir, torn: bytes) -> None:
    whole = sick.watch.read_bytes()
    sick.watch.write_bytes(whole + torn)
    assert recovered(sick).memory.number == 3
    assert sick.watch.read_bytes() == whole


@pytest.mark.parametrize("bad", [b'{"n": "many"}', b"", b"\xff\x00", b"[]", b"x" * 300_000])
def test_a_line_that_is_no_tick_is_skipped(sick: RunDir, bad: bytes) -> None:
    lines = sick.watch.read_bytes().splitlines(keepends=True)
    whole = recovered(sick).memory
    sick.watch.write_bytes(b"".join([lines[0], bad + b"\n", *lines[1:]]))
    memory = recovered(sick).memory
    whole.watch_bytes = sick.watch.stat().st_size
    assert memory.model_dump_json() == whole.model_dump_json()


def test_ticks_form_one_chain_over_a_restart(sick: RunDir) -> None:
    add(recovered(sick), tick_of(3))
    assert [tick.n for tick in ticks_of(sick)] == [0, 1, 2, 3]


@pytest.mark.parametrize("become", [os.mkfifo, os.mkdir], ids=["pipe", "folder"])
@pytest.mark.parametrize("name", ["watch.jsonl", "findings.jsonl", "heartbeat_rank0.jsonl"])
def test_a_replaced_file_keeps_no_watcher_from_its_start(
    sick: RunDir, name: str, become: Callable[[Path], None]
) -> None:
    (sick.path / name).unlink(missing_ok=True)
    become(sick.path / name)
    assert recovered(sick).memory.number == (0 if name == "watch.jsonl" else 3)


@contextmanager
def full_at(size: int) -> Iterator[None]:
    """No file takes more than so many bytes."""
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limit[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
        signal.signal(signal.SIGXFSZ, handler)


def test_what_the_disk_refuses_is_written_in_order_when_it_has_room(sick: RunDir) -> None:
    journal = recovered(sick)
    sick.findings.unlink()
    before = sick.watch.read_bytes()
    with full_at(len(before) + 20):
        assert add(journal, tick_of(3), tick_of(4)) == [True, True]
        journal.add_finding(SLOW)
    assert journal.waits
    assert sick.watch.read_bytes() == before
    assert not sick.findings.exists(), "no finding stands before its tick"
    add(journal, tick_of(5))
    assert not journal.waits
    assert sick.watch.stat().st_size == journal.memory.watch_bytes
    assert [tick.n for tick in ticks_of(sick)] == [0, 1, 2, 3, 4, 5]
    (line,) = load_all_lines(sick.findings)
    assert set(json.loads(line)) == set(Finding.model_fields) - {"held"}


def test_what_there_is_no_room_to_keep_is_counted_and_leaves_nothing(
    sick: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gonogo.supervise.watcher.journal.KEPT_BYTES", 10)
    journal = recovered(sick)
    before, last = sick.watch.read_bytes(), journal.memory.last
    with full_at(len(before) + 20):
        assert add(journal, tick_of(3)) == [False]
    assert sick.watch.read_bytes() == before
    assert (journal.memory.last, journal.waits, journal.failures) == (last, False, 1)
    add(journal, tick_of(4))
    assert recovered(sick).memory.number == 5
