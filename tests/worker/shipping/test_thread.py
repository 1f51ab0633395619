"""The shipping thread: it never stops trying, and hands over what the control plane asks."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest

from gonogo.contract.finding import Finding, Severity
from gonogo.contract.outcome import Actor, OutcomeCode
from gonogo.contract.records import ExitRecord
from gonogo.contract.worker_messages import Command, CommandKind, TelemetryAck
from tests.supervise.runs import wait_until
from worker.shipping.thread import ShippingThread

EXIT = ExitRecord(ended_at=1.0, ended_by=Actor.TRAINER, reason=OutcomeCode.COMPLETED)


class ShipperOnPaper:
    """Answers with what it was given; raises what is an exception."""

    def __init__(self, answers: list[Any]) -> None:
        self.answers = answers
        self.backlog_lines = 7
        self.suspects: list[bool] = []
        self.finishes = [False, True]
        self.told: list[Finding] = []

    def add_finding(self, finding: Finding) -> None:
        self.told.append(finding)

    def ship(self, _now: float, *, suspect: bool, near: object) -> TelemetryAck | None:
        del near
        self.suspects.append(suspect)
        answer = self.answers.pop(0) if self.answers else None
        if isinstance(answer, Exception):
            raise answer
        return cast("TelemetryAck | None", answer)

    def finish(self, record: ExitRecord) -> bool:
        assert record is EXIT
        return self.finishes.pop(0)


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[ShipperOnPaper], ShippingThread]]:
    started: list[ShippingThread] = []
    monkeypatch.setattr("worker.shipping.thread.PAUSE_S", 0.01)
    monkeypatch.setattr("worker.shipping.thread.FAILURE_PAUSE_S", 0.01)
    monkeypatch.setattr("worker.shipping.thread.FINISH_PAUSE_S", 0.01)

    def begin(shipper: ShipperOnPaper) -> ShippingThread:
        thread = ShippingThread(lambda: cast("Any", shipper))
        started.append(thread)
        thread.start()
        return thread

    yield begin
    for thread in started:
        thread.stop()
        assert thread.join(60)


def test_command_is_handed_over_once(start: Callable[[ShipperOnPaper], ShippingThread]) -> None:
    asked = Command(kind=CommandKind.HALT, reason="r")
    thread = start(ShipperOnPaper([None, TelemetryAck(command=asked), TelemetryAck()]))
    assert wait_until(thread.take_command, "the command") == asked
    assert thread.take_command() is None
    assert thread.backlog_lines == 7


def test_bug_in_shipping_is_logged_and_shipping_goes_on(
    start: Callable[[ShipperOnPaper], ShippingThread], caplog: pytest.LogCaptureFixture
) -> None:
    asked = Command(kind=CommandKind.CANCEL)
    answers = [RuntimeError("a bug"), RuntimeError("again"), TelemetryAck(command=asked)]
    thread = start(ShipperOnPaper(answers))
    assert wait_until(thread.take_command, "the command") == asked
    assert "a bug" in caplog.text


def test_silence_ends_with_an_answer_only(
    start: Callable[[ShipperOnPaper], ShippingThread],
) -> None:
    shipper = ShipperOnPaper([])
    thread = start(shipper)
    wait_until(lambda: len(shipper.suspects) >= 5, "some silence")
    before = thread.silent_s()
    assert before > 0
    shipper.answers.append(TelemetryAck())
    wait_until(lambda: thread.silent_s() < before, "an answer")


def test_what_the_disk_does_not_take_is_told_all_the_same(
    start: Callable[[ShipperOnPaper], ShippingThread],
) -> None:
    shipper = ShipperOnPaper([])
    finding = Finding(detector="disk", severity=Severity.WARN, at=1.0, key="d", text="why")
    start(shipper).tell(finding)
    wait_until(lambda: shipper.told, "the finding")
    assert shipper.told == [finding]


def test_end_is_shipped_until_it_arrived(start: Callable[[ShipperOnPaper], ShippingThread]) -> None:
    shipper = ShipperOnPaper([])
    thread = start(shipper)
    thread.finish(EXIT)
    assert thread.finished.wait(60)
    assert shipper.finishes == []


def test_suspicion_rides_along(start: Callable[[ShipperOnPaper], ShippingThread]) -> None:
    shipper = ShipperOnPaper([])
    thread = start(shipper)
    thread.suspect = True
    wait_until(lambda: any(shipper.suspects), "the flag")


def test_host_without_a_thread_for_a_moment_is_watched_and_ships_later(
    start: Callable[[ShipperOnPaper], ShippingThread],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Python raises RuntimeError there, by which the watcher ended before its first look."""
    asked = Command(kind=CommandKind.HALT)
    scarce = True
    begin = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if scarce:
            raise RuntimeError("can't start new thread")
        begin(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    thread = start(ShipperOnPaper([TelemetryAck(command=asked)]))
    assert thread.take_command() is None
    assert [row.getMessage() for row in caplog.records] == [
        "shipping: [Errno 11] no thread can be started for shipping"
    ]
    scarce = False
    assert wait_until(thread.take_command, "the command") == asked
    thread.close(EXIT)
    assert thread.finished.is_set()
