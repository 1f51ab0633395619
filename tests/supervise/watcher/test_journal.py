"""What a watcher finds again when it starts."""

from __future__ import annotations

import errno
import io
import json
import os
import resource
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import pytest

from gonogo.contract.finding import Finding, Severity
from gonogo.contract.heartbeat import Heartbeat
from gonogo.contract.order import Order
from gonogo.contract.tick import ProcessState, RankProbe, Tick
from gonogo.rundir import RunDir, load_all_lines
from gonogo.supervise.watcher.journal import Journal
from gonogo.supervise.watcher.tails import Tails
from gonogo.watch import tick_digest, tick_line
from tests.supervise.runs import build_test_order


@pytest.fixture
def order() -> Order:
    return build_test_order("run_x", world_size=1)


def beat(seq: int, msg: str, step: int, **fields: object) -> bytes:
    line = {
        "v": 1, "ts": float(seq), "mono": float(seq), "pid": 7, "rank": 0, "boot": "b",
        "seq": seq, "step": step, "msg": msg, "section": None, **fields,
    }  # fmt: skip
    return json.dumps(line).encode() + b"\n"


def write_a_sick_run(run_dir: RunDir, order: Order) -> Tails:
    """Three ticks: boot, a non-finite loss, and a rank that is alive."""
    tails = Tails(run_dir=run_dir, world_size=1)
    journal = Journal(run_dir)
    identity = {k: v for k, v in order.identity.model_dump().items() if v is not None}
    probe = RankProbe(rank=0, pid=7, state=ProcessState.ALIVE)
    parts = [beat(1, "boot", 0, **identity), beat(2, "progress", 1, loss="NaN", grad_norm=1.0), b""]
    for number, part in enumerate(parts):
        with run_dir.heartbeat(0).open("ab") as stream:
            stream.write(part)
        upto = {str(rank): tails.offsets[rank] for rank in tails.read()}
        ranks = [] if part else [probe]
        journal.add_tick(Tick(n=number, mono=number / 5, ts=float(number), upto=upto, ranks=ranks))
    return tails


def test_nothing_recorded_is_a_fresh_start(tmp_path: Path, order: Order) -> None:
    memory = Journal(RunDir(tmp_path)).recover(order)
    assert (memory.ticks, memory.mono, memory.findings, memory.tails.offsets) == (0, None, [], {})


def test_fold_goes_on_where_the_last_recorded_tick_ended(tmp_path: Path, order: Order) -> None:
    tails = write_a_sick_run(RunDir(tmp_path), order)
    lines: list[Heartbeat] = []
    memory = Journal(RunDir(tmp_path)).recover(order, lambda _, beat, arrival: lines.append(beat))
    assert (memory.ticks, memory.mono) == (3, 0.4)
    assert memory.tails.offsets == tails.offsets
    assert len(lines) == 2


def test_finding_that_was_not_recorded_comes_up_once(tmp_path: Path, order: Order) -> None:
    run_dir = RunDir(tmp_path)
    write_a_sick_run(run_dir, order)
    first = Journal(run_dir).recover(order)
    halts = [finding for finding in first.unrecorded if finding.severity is Severity.HALT]
    assert [finding.detector for finding in halts] == ["non_finite"]
    for finding in first.unrecorded:
        Journal(run_dir).add_finding(finding)
    second = Journal(run_dir).recover(order)
    assert second.unrecorded == []
    assert [f.key for f in second.findings] == [f.key for f in first.findings]


def test_recorded_finding_keeps_its_evidence(tmp_path: Path, order: Order) -> None:
    run_dir = RunDir(tmp_path)
    write_a_sick_run(run_dir, order)
    for finding in Journal(run_dir).recover(order).unrecorded:
        Journal(run_dir).add_finding(finding.model_copy(update={"evidence": ["evidence/x"]}))
    assert all(f.evidence == ["evidence/x"] for f in Journal(run_dir).recover(order).findings)


@pytest.mark.parametrize("torn", [b'{"v":1,"n":3', b"x", b'{"v":1,"n":3,"mono":0.6,"ts":3.0}'])
def test_torn_last_line_is_cut_off(tmp_path: Path, order: Order, torn: bytes) -> None:
    run_dir = RunDir(tmp_path)
    write_a_sick_run(run_dir, order)
    whole = run_dir.watch.read_bytes()
    run_dir.watch.write_bytes(whole + torn)
    assert Journal(run_dir).recover(order).ticks == 3
    assert run_dir.watch.read_bytes() == whole


@pytest.mark.parametrize("bad", [b'{"n": "many"}', b"", b"\xff\x00", b"[]", b"x" * 300_000])
def test_line_that_is_no_tick_is_passed_over_and_counted(
    tmp_path: Path, order: Order, bad: bytes
) -> None:
    run_dir = RunDir(tmp_path)
    tails = write_a_sick_run(run_dir, order)
    lines = run_dir.watch.read_bytes().splitlines(keepends=True)
    whole = Journal(run_dir).recover(order)
    run_dir.watch.write_bytes(b"".join([lines[0], bad + b"\n", *lines[1:]]))
    memory = Journal(run_dir).recover(order)
    assert memory.unreadable >= bool(bad)  # a blank line tells nothing
    assert (memory.ticks, memory.mono, memory.last) == (whole.ticks, whole.mono, whole.last)
    assert memory.tails.offsets == tails.offsets
    assert [f.key for f in memory.findings] == [f.key for f in whole.findings]


def test_ticks_form_one_chain_over_a_restart(tmp_path: Path, order: Order) -> None:
    run_dir = RunDir(tmp_path)
    write_a_sick_run(run_dir, order)
    journal = Journal(run_dir)
    journal.recover(order)
    journal.add_tick(Tick(n=3, mono=0.8, ts=3.0, go=True))
    ticks = [Tick.model_validate_json(line) for line in load_all_lines(run_dir.watch)]
    assert [tick.prev for tick in ticks] == [
        None,
        *(tick_digest(tick_line(tick)) for tick in ticks[:-1]),
    ]


@pytest.mark.parametrize("become", [os.mkfifo, os.mkdir], ids=["pipe", "folder"])
@pytest.mark.parametrize("name", ["watch.jsonl", "findings.jsonl", "heartbeat_rank0.jsonl"])
def test_a_file_that_a_program_has_replaced_keeps_no_watcher_from_its_start(
    tmp_path: Path, order: Order, name: str, become: Callable[[Path], None]
) -> None:
    """A run whose watcher had died was watched by nobody, however it hung."""
    write_a_sick_run(RunDir(tmp_path), order)
    (tmp_path / name).unlink(missing_ok=True)
    become(tmp_path / name)
    memory = Journal(RunDir(tmp_path)).recover(order)
    assert memory.ticks == (0 if name == "watch.jsonl" else 3)


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


class Ailing(io.FileIO):
    """A file of a disk that takes half of what is written, and then nothing."""

    def write(self, data: Any) -> NoReturn:
        super().write(data[: len(data) // 2])
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    def truncate(self, size: int | None = None) -> NoReturn:
        raise OSError(errno.EIO, os.strerror(errno.EIO))


def test_half_a_line_that_could_not_be_taken_back_costs_no_other(
    tmp_path: Path, order: Order, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_dir = RunDir(tmp_path)
    write_a_sick_run(run_dir, order)
    journal = Journal(run_dir)
    journal.recover(order)
    before = run_dir.watch.read_bytes()
    with monkeypatch.context() as ailing:
        ailing.setattr(Path, "open", lambda path, mode, **_: Ailing(path, mode))
        for number in (3, 4):
            journal.add_tick(Tick(n=number, mono=0.2 * number, ts=3.0, go=True))
    assert len(run_dir.watch.read_bytes()) > len(before), "half a line lies there"
    journal.add_tick(Tick(n=5, mono=1.0, ts=3.2, go=True))
    ticks = [Tick.model_validate_json(line) for line in load_all_lines(run_dir.watch)]
    assert [tick.n for tick in ticks] == [0, 1, 2, 3, 4, 5]
    assert run_dir.watch.stat().st_size == journal.bytes


def test_what_the_disk_refuses_is_written_in_its_order_when_it_takes_it(
    tmp_path: Path, order: Order
) -> None:
    run_dir = RunDir(tmp_path)
    write_a_sick_run(run_dir, order)
    journal = Journal(run_dir)
    journal.recover(order)
    before = run_dir.watch.read_bytes()
    finding = Finding(detector="slow", severity=Severity.WARN, at=1.0, key="k", text="slow")
    with full_at(len(before) + 20):
        for number in (3, 4):
            journal.add_tick(Tick(n=number, mono=0.2 * number, ts=3.0, go=True))
        journal.add_finding(finding)
    assert journal.waits
    assert run_dir.watch.read_bytes() == before
    assert not run_dir.findings.exists()  # no finding stands before its tick
    journal.add_tick(Tick(n=5, mono=1.0, ts=3.2, go=True))
    assert not journal.waits
    assert run_dir.watch.stat().st_size == journal.bytes
    ticks = [Tick.model_validate_json(line) for line in load_all_lines(run_dir.watch)]
    assert [tick.n for tick in ticks] == [0, 1, 2, 3, 4, 5]
    assert [tick.prev for tick in ticks[1:]] == [
        tick_digest(tick_line(tick)) for tick in ticks[:-1]
    ]
    assert len(load_all_lines(run_dir.findings)) == 1


def test_what_an_unmounted_disk_lacks_is_written_to_no_folder_of_its_name(
    tmp_path: Path, order: Order
) -> None:
    """A trainer that saves makes one below the mount, where all of it is hidden afterwards."""
    run_dir, away = RunDir(tmp_path / "run"), tmp_path / "away"
    run_dir.path.mkdir()
    write_a_sick_run(run_dir, order)
    journal = Journal(run_dir)
    journal.recover(order)
    run_dir.path.rename(away)
    journal.add_tick(Tick(n=3, mono=0.6, ts=3.0, go=True))
    run_dir.path.mkdir()
    journal.add_tick(Tick(n=4, mono=0.8, ts=3.0, go=True))
    assert list(run_dir.path.iterdir()) == []
    run_dir.path.rmdir()
    away.rename(run_dir.path)
    journal.add_tick(Tick(n=5, mono=1.0, ts=3.2, go=True))
    ticks = [Tick.model_validate_json(line) for line in load_all_lines(run_dir.watch)]
    assert [tick.n for tick in ticks] == [0, 1, 2, 3, 4, 5]
    assert [tick.prev for tick in ticks[1:]] == [
        tick_digest(tick_line(tick)) for tick in ticks[:-1]
    ]


def test_a_disk_that_comes_back_by_another_device_number_is_written_to(
    tmp_path: Path, order: Order
) -> None:
    """That of NFS, FUSE and btrfs is drawn at each mount; a directory of FUSE has another inode."""
    run_dir, away = RunDir(tmp_path / "run"), tmp_path / "away"
    run_dir.path.mkdir()
    write_a_sick_run(run_dir, order)
    run_dir.order.write_text(order.model_dump_json())
    journal = Journal(run_dir)
    journal.recover(order)
    run_dir.path.rename(away)
    journal.add_tick(Tick(n=3, mono=0.6, ts=3.0, go=True))
    shutil.copytree(away, run_dir.path)
    journal.add_tick(Tick(n=4, mono=0.8, ts=3.0, go=True))
    ticks = [Tick.model_validate_json(line) for line in load_all_lines(run_dir.watch)]
    assert [tick.n for tick in ticks] == [0, 1, 2, 3, 4]


def test_what_there_is_no_room_to_keep_leaves_nothing_of_itself(
    tmp_path: Path, order: Order, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gonogo.supervise.watcher.journal.KEPT_BYTES", 10)
    run_dir = RunDir(tmp_path)
    write_a_sick_run(run_dir, order)
    journal = Journal(run_dir)
    journal.recover(order)
    before, last = run_dir.watch.read_bytes(), journal.last
    refused = pytest.raises(OSError, match=r"watch\.jsonl|File too large")
    with full_at(len(before) + 20), refused:
        journal.add_tick(Tick(n=3, mono=0.8, ts=3.0, go=True))
    assert run_dir.watch.read_bytes() == before
    assert (journal.last, journal.waits) == (last, False)
    journal.add_tick(Tick(n=4, mono=1.0, ts=3.2, go=True))
    assert Journal(run_dir).recover(order).ticks == 5


def test_finding_is_written_whole_on_one_line(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path)
    finding = Finding(detector="stall", severity="halt", at=1.0, key="k", text="a\nb")
    Journal(run_dir).add_finding(finding)
    document = json.loads(run_dir.findings.read_bytes())
    assert set(document) == set(Finding.model_fields) - {"held"}, "nothing holds the process"
