"""What is done about findings and commands."""

from __future__ import annotations

import pytest

from gonogo.contract.agent import Command, CommandKind
from gonogo.contract.finding import Finding, Severity
from gonogo.contract.outcome import Detector
from worker.halt import HALT_LIMIT_S
from worker.response import Way, answer_command, answer_finding, answer_isolation

NOW = {"leaving_s": 20.0, "grace_s": 1.0, "now": 1000.0, "now_mono": 50.0}


def halt(detector: Detector) -> Finding:
    return Finding(detector=detector, severity=Severity.HALT, at=1000.0, key="k", text="why")


@pytest.mark.parametrize(
    ("detector", "way", "reason", "by"),
    [
        (Detector.STALL, Way.KILL, "stalled", "watchdog"),
        (Detector.ALIVE_LOST, Way.KILL, "stalled", "watchdog"),
        (Detector.SECTION_DEADLINE, Way.KILL, "stalled", "watchdog"),
        (Detector.NO_FIRST_HEARTBEAT, Way.KILL, "start_failed", "watchdog"),
        (Detector.IDENTITY, Way.KILL, "config_mismatch", "watchdog"),
        (Detector.PROCESS_DEATH, Way.KILL, "nonzero_exit", "trainer"),
        (Detector.SLOW, Way.LEAVE, "too_slow", "watchdog"),
        (Detector.NON_FINITE, Way.LEAVE, "non_finite", "watchdog"),
        (Detector.HYGIENE, Way.LEAVE, "config_mismatch", "watchdog"),
    ],
)
def test_ranks_that_move_are_asked_and_others_are_ended(
    detector: Detector, way: Way, reason: str, by: str
) -> None:
    found = answer_finding(halt(detector), **NOW)
    assert (found.way, found.request.reason, found.request.ended_by) == (way, reason, by)
    assert (found.request.key, found.request.text) == ("k", "why")
    assert (found.request.until_mono is None) is (way is Way.KILL)


def test_leaving_is_limited_by_the_pace_and_by_the_limit() -> None:
    assert answer_finding(halt(Detector.SLOW), **NOW).request.until_mono == 70.0
    slow = answer_finding(halt(Detector.SLOW), **{**NOW, "leaving_s": 9e9})
    assert slow.request.until_mono == 50.0 + HALT_LIMIT_S


@pytest.mark.parametrize(
    ("kind", "reason", "by"),
    [
        (CommandKind.HALT, "halted", "operator"),
        (CommandKind.CANCEL, "cancelled", "operator"),
        (CommandKind.SUPERSEDE, "superseded", "infra"),
    ],
)
def test_command_asks_for_a_checkpoint(kind: CommandKind, reason: str, by: str) -> None:
    found = answer_command(Command(kind=kind, reason="r", actor="a"), **NOW)
    assert (found.way, found.request.reason, found.request.ended_by) == (Way.LEAVE, reason, by)
    assert found.request.text == "a: r"


def test_superseded_attempt_gets_little_time() -> None:
    found = answer_command(Command(kind=CommandKind.SUPERSEDE), **NOW)
    assert found.request.until_mono == 60.0


def test_isolation_is_infrastructures_end_with_a_checkpoint() -> None:
    found = answer_isolation(301.0, **NOW)
    assert (found.way, found.request.reason, found.request.ended_by) == (
        Way.LEAVE,
        "isolated",
        "infra",
    )
    assert "301" in found.request.text
