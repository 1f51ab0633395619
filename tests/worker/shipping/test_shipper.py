"""Does everything in a run directory arrive once and in order, whatever the network does?"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path

import pytest

from gonogo.contract.finding import Finding, Severity
from gonogo.contract.heartbeat import MAX_LINE_BYTES
from gonogo.contract.lifecycle import RunEvent
from gonogo.contract.worker_messages import MAX_LOG_BYTES, MAX_RECORD_BYTES, CommandKind
from gonogo.rundir import RunDir, save_json
from tests.supervise.orders import completed, make_order, make_run_dir, write_beats, write_finding
from tests.worker.control_plane import KEY, FakeControlPlane, RunStore, serving
from worker.client import ControlPlane
from worker.shipping.shipper import Reported, Shipper, load_reported

ORDER = make_order(token=7)
NewShipper = Callable[[], Shipper]


@pytest.fixture
def plane() -> Iterator[FakeControlPlane]:
    with serving(FakeControlPlane(runs={ORDER.run: RunStore(token=7)})) as served:
        yield served


@pytest.fixture
def run_dir(tmp_path: Path) -> RunDir:
    return make_run_dir(tmp_path, ORDER)


@pytest.fixture
def new_shipper(run_dir: RunDir, plane: FakeControlPlane) -> Iterator[NewShipper]:
    """Factory of shippers of the run, each with a connection of its own."""
    clients: list[ControlPlane] = []

    def make() -> Shipper:
        clients.append(ControlPlane(plane.url, KEY))
        return Shipper(run_dir, ORDER.run, ORDER.token, clients[-1])

    yield make
    for client in clients:
        client.close()


def arrived(plane: FakeControlPlane) -> RunStore:
    return plane.runs[ORDER.run]


def finish_in(shipping: Shipper, tries: int) -> bool:
    return any(shipping.finish(completed()) for _ in range(tries))


@pytest.mark.parametrize("lose_every", [0, 3, 4, 7], ids=lambda n: f"lose-every-{n}")
def test_every_line_arrives_once_and_in_order(
    run_dir: RunDir, plane: FakeControlPlane, new_shipper: NewShipper, lose_every: int
) -> None:
    plane.lose_every = lose_every
    shipping = new_shipper()
    expected: dict[str, list[str]] = {"0": [], "1": []}
    clock = itertools.count(step=10.0)
    for part in range(6):
        for rank in (0, 1):
            expected[str(rank)] += write_beats(run_dir, rank, range(part * 20, part * 20 + 20))
        shipping.ship(next(clock))
    write_finding(run_dir, "a")
    assert finish_in(shipping, 400)
    assert arrived(plane).lines == expected
    assert arrived(plane).events()[-1] == "end"
    assert set(arrived(plane).findings) == {"a"}


def test_another_shipper_continues_from_the_acknowledged_byte(
    run_dir: RunDir, plane: FakeControlPlane, new_shipper: NewShipper
) -> None:
    first = write_beats(run_dir, 0, range(50))
    new_shipper().ship(0.0)
    second = write_beats(run_dir, 0, range(50, 80))
    assert new_shipper().finish(completed())
    assert arrived(plane).lines["0"] == first + second


def test_a_long_backlog_is_sent_in_pieces(
    run_dir: RunDir,
    plane: FakeControlPlane,
    new_shipper: NewShipper,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lines = write_beats(run_dir, 0, range(3000))
    monkeypatch.setattr("worker.shipping.telemetry.MAX_MESSAGE_BYTES", 2 * MAX_LINE_BYTES)
    tries = 0
    while not new_shipper().finish(completed(), within_s=0.0):
        had = len(arrived(plane).lines.get("0", []))
        assert had < len(lines) or arrived(plane).events()[-1:] != ["end"]
        tries += 1
        assert tries < 100
    assert tries > 2
    assert arrived(plane).lines["0"] == lines
    assert arrived(plane).events()[-1] == "end"


def test_suspicion_is_sent_with_telemetry(plane: FakeControlPlane, new_shipper: NewShipper) -> None:
    shipping = new_shipper()
    for at, suspect in enumerate((False, True, False)):
        shipping.ship(float(at), suspect=suspect)
        assert arrived(plane).suspect is suspect


def test_the_end_tells_the_bytes_of_complete_lines_and_the_different_findings(
    run_dir: RunDir, plane: FakeControlPlane, new_shipper: NewShipper
) -> None:
    write_beats(run_dir, 0, range(3))
    size = run_dir.heartbeat(0).stat().st_size
    with run_dir.heartbeat(0).open("ab") as stream:
        stream.write(b'{"torn')
    for key in ("a", "b", "a"):
        write_finding(run_dir, key)
    assert new_shipper().finish(completed())
    end = arrived(plane).states[-1]
    assert (end.sizes, end.findings) == ({"0": size}, 2)
    assert end.exit is not None


def test_events_come_in_the_order_of_the_lifecycle(
    run_dir: RunDir, plane: FakeControlPlane, new_shipper: NewShipper
) -> None:
    shipping = new_shipper()
    run_dir.preflight.rename(run_dir.preflight.with_suffix(".later"))
    shipping.report()
    assert arrived(plane).events() == ["check"]
    run_dir.preflight.with_suffix(".later").rename(run_dir.preflight)
    shipping.ship(0.0)
    assert arrived(plane).events() == ["check"], "who checked the host may die before it begins"
    save_json(run_dir.path / "keeper.json", {"pid": 1})
    shipping.ship(0.0)
    assert arrived(plane).events() == ["check", "launch"]
    write_beats(run_dir, 0, range(2))
    shipping.ship(10.0)
    assert arrived(plane).events() == ["check", "launch", "step"]
    assert arrived(plane).states[-1].at == 100.0
    write_finding(run_dir, "h", Severity.HALT)
    assert shipping.finish(completed())
    assert arrived(plane).events() == ["check", "launch", "step", "halt", "end"]


def test_a_stale_token_supersedes_and_ends_shipping(
    run_dir: RunDir, plane: FakeControlPlane, new_shipper: NewShipper
) -> None:
    arrived(plane).token = 8
    write_beats(run_dir, 0, range(3))
    shipping = new_shipper()
    ack = shipping.ship(0.0)
    assert ack is not None
    assert ack.command is not None
    assert ack.command.kind is CommandKind.SUPERSEDE
    assert shipping.finish(completed())
    assert (run_dir.path / ".shipped").exists()
    assert arrived(plane).lines == {}


def test_an_old_attempt_does_not_mark_a_newer_ones_directory(
    run_dir: RunDir, plane: FakeControlPlane, new_shipper: NewShipper
) -> None:
    """It was set aside during the report of its end: the newer one counted as shipped, and was
    not."""
    shipping = new_shipper()
    arrived(plane).token = 8
    run_dir.path.rename(run_dir.path.with_name("aside"))
    run_dir.path.mkdir()
    save_json(run_dir.order, {**ORDER.document(), "token": 8})
    shipping.ship(0.0)
    assert shipping.finish(completed())
    assert [path.name for path in run_dir.path.iterdir()] == ["order.json"]


@pytest.mark.parametrize(
    ("extra", "reported"),
    [
        ({}, False), ({"state": "running", "allowed": ["halt"]}, True),
        ({"code": "stale_token"}, False), ({"code": "stale_token", "token": ORDER.token}, False),
    ],
    ids=["bare", "past", "no number", "our number"],
)  # fmt: skip
def test_a_409_of_a_proxy_is_an_outage(
    run_dir: RunDir,
    plane: FakeControlPlane,
    new_shipper: NewShipper,
    extra: dict[str, object],
    reported: bool,
) -> None:
    """A proxy's answer, or a wrong step: an answer without a newer token fences nothing."""
    plane.refuse, plane.extra = {"state": 409}, extra
    shipping = new_shipper()
    shipping.report()
    for now in (0.0, 10.0, 100.0):
        shipping.ship(now)
    assert not shipping.fenced
    plane.refuse = {}
    shipping.report()
    assert (arrived(plane).events() == []) is reported
    assert shipping.finish(completed())


def test_an_outage_loses_nothing_and_calls_pause(
    run_dir: RunDir, plane: FakeControlPlane, new_shipper: NewShipper
) -> None:
    shipping = new_shipper()
    plane.down = True
    lines = write_beats(run_dir, 0, range(10))
    for tenth in range(100):
        assert shipping.ship(tenth / 10) is None
    assert plane.calls < 30
    plane.down = False
    assert shipping.ship(100.0) is not None
    assert arrived(plane).lines["0"] == lines


@pytest.mark.parametrize("status", [401, 403, 404, 409, 422, 500])
def test_no_other_answer_fences_a_run(
    run_dir: RunDir, plane: FakeControlPlane, new_shipper: NewShipper, status: int
) -> None:
    plane.refuse = {"telemetry": status}
    shipping = new_shipper()
    assert shipping.ship(0.0) is None
    assert not shipping.finish(completed())
    assert not (run_dir.path / ".shipped").exists()
    plane.refuse = {}
    assert shipping.finish(completed())


@pytest.mark.parametrize("call", ["findings", "evidence"])
def test_refused_findings_or_evidence_do_not_hold_heartbeats_back(
    run_dir: RunDir, plane: FakeControlPlane, new_shipper: NewShipper, call: str
) -> None:
    plane.refuse = {call: 422}
    write_finding(run_dir, "a")
    run_dir.evidence.mkdir()
    (run_dir.evidence / "stack.txt").write_text("frames")
    lines = write_beats(run_dir, 0, range(5))
    assert new_shipper().ship(0.0) is not None
    assert arrived(plane).lines["0"] == lines


def restore(plane: FakeControlPlane) -> RunStore:
    """Have the control plane know of the run what it knew when it was given out."""
    plane.runs[ORDER.run] = RunStore(token=7)
    return plane.runs[ORDER.run]


def test_a_restored_control_plane_is_sent_everything_again(
    run_dir: RunDir, plane: FakeControlPlane, new_shipper: NewShipper
) -> None:
    shipping = new_shipper()
    lines = write_beats(run_dir, 0, range(5))
    write_finding(run_dir, "a")
    run_dir.evidence.mkdir()
    (run_dir.evidence / "stack.txt").write_text("frames")
    os.utime(run_dir.evidence / "stack.txt", (1.0, 1.0))
    shipping.ship(0.0)
    shipping.ship(2.0)
    told = arrived(plane)
    assert told.events() == ["check", "launch", "step"]
    assert list(told.findings) == ["a"]
    assert list(told.evidence) == ["evidence/stack.txt"]

    again = restore(plane)
    shipping.ship(4.0)
    shipping.ship(6.0)
    assert again.events() == told.events()
    assert list(again.findings) == ["a"]
    assert list(again.evidence) == ["evidence/stack.txt"]
    assert again.lines["0"] == lines
    calls = plane.calls
    shipping.ship(8.0)
    assert plane.calls == calls + 1, "once"


def test_due_reports_do_not_block_a_run_that_a_restore_calls_queued(
    run_dir: RunDir, plane: FakeControlPlane, new_shipper: NewShipper
) -> None:
    """A finding of the outage: it takes none before telemetry, by which the run is taken up."""
    shipping = new_shipper()
    lines = write_beats(run_dir, 0, range(5))
    shipping.ship(0.0)
    plane.runs[ORDER.run] = RunStore(token=0, queued=True)
    write_finding(run_dir, "a")
    for now in (10.0, 20.0, 30.0):
        shipping.ship(now)
    assert arrived(plane).token == ORDER.token
    assert arrived(plane).lines["0"] == lines
    assert arrived(plane).events() == ["check", "launch", "step"]
    assert list(arrived(plane).findings) == ["a"]


def test_a_refused_record_is_not_promised_at_the_end(
    run_dir: RunDir, plane: FakeControlPlane, new_shipper: NewShipper
) -> None:
    plane.refuse = {"records": 403}
    assert new_shipper().finish(completed())
    assert arrived(plane).states[-1].records == {}


@pytest.mark.parametrize("status", [401, 409])
def test_evidence_waits_while_the_key_is_refused(
    run_dir: RunDir, plane: FakeControlPlane, new_shipper: NewShipper, status: int
) -> None:
    """A new key, or a database that is being restored, proves nothing about a file."""
    run_dir.evidence.mkdir()
    (run_dir.evidence / "stack.txt").write_text("frames")
    os.utime(run_dir.evidence / "stack.txt", (1.0, 1.0))
    write_beats(run_dir, 0, range(5))
    plane.refuse = {"evidence": status}
    shipping = new_shipper()
    assert shipping.ship(0.0) is not None
    plane.refuse = {"evidence": status, "state": 500}
    assert not new_shipper().finish(completed())
    plane.refuse = {}
    assert new_shipper().finish(completed())
    assert list(arrived(plane).evidence) == ["evidence/stack.txt"]


@pytest.mark.parametrize("name", ["heartbeat_rank1.jsonl", "rank1.log", "findings.jsonl"])
def test_an_unreadable_file_does_not_delay_the_others(
    run_dir: RunDir, plane: FakeControlPlane, new_shipper: NewShipper, name: str
) -> None:
    """A silent worker counts as cut off, and its healthy run is ended."""
    (run_dir.path / name).mkdir()
    os.mkfifo(run_dir.path / "rank2.log")
    lines = write_beats(run_dir, 0, range(5))
    run_dir.rank_log(0).write_text("said\n")
    run_dir.watch.write_bytes(b'{"n":0}\n')
    arrived(plane).command = {"kind": "halt", "reason": "enough", "actor": "someone"}
    shipping = new_shipper()
    clock = itertools.count(step=10.0)
    acks = [shipping.ship(next(clock)) for _ in range(3)]
    assert [ack is not None and ack.command is not None for ack in acks] == [True] * 3
    store = arrived(plane)
    assert store.lines["0"] == lines
    assert store.files["watch.jsonl"] == b'{"n":0}\n'
    assert store.logs["rank0.log"][1] == "said\n"
    assert {"check", "launch"} <= set(store.events())
    if not name.endswith(".log"):  # a log is a tail: the end promises nothing of it
        with pytest.raises(IsADirectoryError):
            new_shipper().finish(completed())
        (run_dir.path / name).rmdir()
    assert new_shipper().finish(completed())


def test_messages_pass_a_proxy_that_takes_a_megabyte(
    run_dir: RunDir, plane: FakeControlPlane, new_shipper: NewShipper
) -> None:
    """Nginx lets a megabyte pass; after an outage there is more to send at once."""
    lines = {rank: write_beats(run_dir, rank, range(12_000)) for rank in (0, 1)}
    for path in (run_dir.watch, run_dir.devices):
        path.write_bytes(b"".join(b'{"n": %d, "x": "%s"}\n' % (n, b"y" * 400) for n in range(3000)))
    run_dir.torchrun_log.write_bytes(b"z" * MAX_LOG_BYTES)
    plane.passes = 2**20
    assert new_shipper().ship(0.0) is not None, "heartbeats arrive while it lives"
    assert new_shipper().finish(completed())
    store = arrived(plane)
    assert store.lines == {str(rank): rows for rank, rows in lines.items()}
    assert store.files["watch.jsonl"] == run_dir.watch.read_bytes()
    assert store.files["devices.jsonl"] == run_dir.devices.read_bytes()


def test_findings_go_out_before_the_heartbeats(
    run_dir: RunDir, plane: FakeControlPlane, new_shipper: NewShipper
) -> None:
    plane.refuse = {"telemetry": 500}
    write_finding(run_dir, "h", Severity.HALT)
    write_beats(run_dir, 0, range(5))
    assert new_shipper().ship(0.0) is None
    assert set(arrived(plane).findings) == {"h"}


def test_a_finding_that_could_not_be_written_is_sent(
    run_dir: RunDir, plane: FakeControlPlane, new_shipper: NewShipper
) -> None:
    shipping = new_shipper()
    plane.refuse = {"findings": 503}
    shipping.add_finding(
        Finding(detector="disk", severity=Severity.WARN, at=1.0, key="d", text="why")
    )
    assert shipping.ship(0.0) is None
    plane.refuse = {}
    assert shipping.ship(100.0) is not None
    assert set(arrived(plane).findings) == {"d"}
    arrived(plane).findings.clear()
    assert shipping.ship(200.0) is not None
    assert not arrived(plane).findings


def test_a_shipped_run_is_not_shipped_again(
    run_dir: RunDir, plane: FakeControlPlane, new_shipper: NewShipper
) -> None:
    save_json(run_dir.path / ".shipped", {"v": 1})
    assert new_shipper().finish(completed())
    assert plane.calls == 0


STRANGE = [
    b'{"v":1}\r\n',
    b"\xff\xfe not utf-8\n",
    b"\n",
    b"null \x00 byte\n",
    "ü".encode() + b"\n",
    b"x" * 70_000 + b"\n",
    b"\r" * 6_000 + b"\n",
]


@pytest.mark.parametrize("lose_every", [0, 3], ids=lambda n: f"lose-every-{n}")
def test_growing_files_arrive_byte_for_byte(
    run_dir: RunDir, plane: FakeControlPlane, new_shipper: NewShipper, lose_every: int
) -> None:
    plane.lose_every = lose_every
    names = ("watch.jsonl", "devices.jsonl", "findings.jsonl", "watch_node0.jsonl")
    expected = dict.fromkeys((*names, "watch_node1.jsonl"), b"")
    heartbeats = b""
    shipping = new_shipper()
    clock = itertools.count(step=10.0)
    for line in STRANGE:
        for name in expected:
            expected[name] += line
            (run_dir.path / name).write_bytes(expected[name] + b"torn")
        heartbeats += line
        run_dir.heartbeat(0).write_bytes(heartbeats + b"torn")
        shipping.ship(next(clock))
    assert finish_in(shipping, 400)
    store = arrived(plane)
    assert store.files == expected
    assert store.raw["0"] == heartbeats
    assert store.states[-1].files == {name: len(raw) for name, raw in expected.items()}


def test_small_records_arrive_unchanged_with_their_digest(
    run_dir: RunDir, plane: FakeControlPlane, new_shipper: NewShipper
) -> None:
    small = {
        "exit.json": b'{ "v": 1,\r\n "half',
        "exit_rank1.json": b"",
        "model.json": b"\xff",
        "preflight/preflight.json": b"{}",
        "preflight/node1/preflight.json": b"{ }",
    }
    (run_dir.path / "preflight" / "node1").mkdir(exist_ok=True, parents=True)
    for name, content in small.items():
        (run_dir.path / name).write_bytes(content)
    (run_dir.path / "env.json").write_bytes(b"z" * (MAX_RECORD_BYTES + 1))
    (run_dir.path / "exit_rank0.json").mkdir()
    (run_dir.path / "keeper.json").write_bytes(b"{}")
    assert new_shipper().finish(completed())
    store = arrived(plane)
    assert store.records == {**small, "order.json": run_dir.order.read_bytes()}
    assert store.states[-1].records == {
        name: sha256(content).hexdigest() for name, content in store.records.items()
    }


def test_what_was_reported_is_remembered(tmp_path: Path) -> None:
    reported = Reported(
        events=[RunEvent.CHECK], stepped_at=1.5, findings_bytes=7, evidence={"a": 1}
    )
    reported.save(tmp_path)
    assert load_reported(tmp_path) == reported
    (tmp_path / ".reported.json").write_text("torn")
    assert load_reported(tmp_path) == Reported()


def test_a_disk_that_refuses_does_not_stop_the_shipping(tmp_path: Path) -> None:
    blocked = tmp_path / "blocked"
    blocked.touch()
    Reported(findings_bytes=7).save(blocked)
    assert load_reported(blocked) == Reported()
