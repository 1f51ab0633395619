"""What is done about findings and commands."""

from __future__ import annotations

import pytest

from gonogo.contract.agent import Command, CommandKind
from gonogo.contract.finding import Act, Finding, Severity
from gonogo.contract.outcome import Detector
from gonogo.supervise.end_request import HALT_LIMIT_S
from gonogo.supervise.watcher.response import (
    AT_CHECKPOINT_LIMIT_S,
    Way,
    answer_command,
    answer_finding,
    answer_isolation,
    answer_lost_node,
    blame_silence,
    ends_run,
    patience_s,
)
from tests.supervise.runs import build_test_order

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
        (Detector.HARDWARE, Way.KILL, "hardware", "watchdog"),
        (Detector.DISK, Way.KILL, "resource_limit", "watchdog"),
        (Detector.MEMORY_LEAK, Way.LEAVE, "resource_limit", "watchdog"),
        (Detector.MEMORY_LIMIT, Way.LEAVE, "resource_limit", "watchdog"),
        (Detector.CHECKPOINT_OVERDUE, Way.LEAVE, "resource_limit", "watchdog"),
        (Detector.LOADER, Way.LEAVE, "too_slow", "watchdog"),
        (Detector.FROZEN, Way.LEAVE, "diverged", "watchdog"),
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


@pytest.mark.parametrize(
    ("severity", "act", "ends"),
    [
        (Severity.HALT, Act.NOW, True),
        (Severity.HALT, None, True),
        (Severity.HALT, Act.AT_CHECKPOINT, True),
        (Severity.HALT, Act.PAGE, False),
        (Severity.WARN, Act.PAGE, False),
        (Severity.SUSPECT, None, False),
    ],
)
def test_only_a_halt_that_is_no_page_ends_a_run(
    severity: Severity, act: Act | None, ends: bool
) -> None:
    found = halt(Detector.WATCHER).model_copy(update={"severity": severity, "act": act})
    assert ends_run(found) is ends


EVERY_20 = {"every_steps": 20}


@pytest.mark.parametrize(
    ("act", "cadence", "left_s", "waits_s"),
    [
        (Act.NOW, EVERY_20, 1000.0, 0.0),
        (None, EVERY_20, 1000.0, 0.0),
        (Act.AT_CHECKPOINT, EVERY_20, 1000.0, 480.0),
        (Act.AT_CHECKPOINT, {"every_s": 60.0}, 1000.0, 480.0),
        (Act.AT_CHECKPOINT, {}, 1000.0, 0.0),
        (Act.AT_CHECKPOINT, EVERY_20, 30.0, 0.0),
        (Act.AT_CHECKPOINT, EVERY_20, -5.0, 0.0),
        (Act.AT_CHECKPOINT, EVERY_20, 1e9, AT_CHECKPOINT_LIMIT_S),
        (Act.AT_CHECKPOINT, EVERY_20, None, AT_CHECKPOINT_LIMIT_S),
        (Act.AT_CHECKPOINT, EVERY_20, float("nan"), AT_CHECKPOINT_LIMIT_S),
    ],
    ids=str,
)
def test_a_halt_waits_for_a_checkpoint_half_of_the_time_that_is_left(
    act: Act | None, cadence: dict[str, float], left_s: float | None, waits_s: float
) -> None:
    found = halt(Detector.MEMORY_LEAK).model_copy(update={"act": act, "value": left_s})
    order = build_test_order("run_x", checkpoint=cadence)
    assert patience_s(found, order, leaving_s=20.0) == waits_s


def test_leaving_is_limited_by_the_pace_and_by_the_limit() -> None:
    for leaving_s, moving_s in ((20.0, 20.0), (9e9, HALT_LIMIT_S)):
        asked = answer_finding(halt(Detector.SLOW), **{**NOW, "leaving_s": leaving_s}).request
        assert asked.moving_s == moving_s
        assert asked.until_mono == 50.0 + HALT_LIMIT_S, "for those that evaluate or save"
    deaf = answer_finding(halt(Detector.SLOW), **{**NOW, "leaving_s": 0.0}).request
    assert (deaf.until_mono, deaf.moving_s) == (50.0, None), "a program that is read is not asked"


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


def test_stall_while_a_node_is_silent_is_nobodys_fault() -> None:
    answer = answer_finding(halt(Detector.STALL), **NOW)
    assert blame_silence(answer, {}) == answer
    blamed = blame_silence(answer, {1: 12.4, 3: 61.0})
    assert (blamed.way, blamed.request.reason) == (answer.way, "isolated")
    assert blamed.request.ended_by == "infra"
    assert blamed.request.text.startswith("nothing was heard of node 3 for 61 s; ")
    assert answer.request.text in blamed.request.text


def test_lost_node_ends_the_others_at_once_and_is_infrastructure() -> None:
    answer = answer_lost_node(1, "its keeper is gone", grace_s=2.0, now=100.0)
    assert (answer.way, answer.request.reason) == (Way.KILL, "node_lost")
    assert answer.request.ended_by == "infra"
    assert answer.request.text == "node 1 is lost: its keeper is gone"
