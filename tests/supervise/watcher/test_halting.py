"""From finding and command to request: evidence first, at most a second of it, and only once."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path

import pytest

from gonogo.contract.finding import Act, Finding, Near, Severity
from gonogo.contract.outcome import Detector
from gonogo.contract.worker_messages import Command, CommandKind
from gonogo.rundir import RunDir
from gonogo.supervise.end_request import (
    HALT_LIMIT_S,
    HALT_NAME,
    KILL_NAME,
    EndRequest,
    load_request,
)
from gonogo.supervise.evidence.rounds import (
    MAX_ROUNDS,
    MAX_ROUNDS_BEFORE_HALTS,
    MAX_ROUNDS_OF_SUSPICION,
    Evidence,
    Round,
    Target,
)
from gonogo.supervise.launch.nodes import Place
from gonogo.supervise.watcher import halting as halting_module
from gonogo.supervise.watcher.halting import (
    AT_CHECKPOINT_LIMIT_S,
    EVIDENCE_WAIT_S,
    NEXT_ROUND_S,
    RECENT_ROUND_S,
    SECOND_ROUND_S,
    SIGN_AFTER_S,
    Halting,
    find_near_deadline,
    leaving,
    patience_s,
)
from gonogo.supervise.watcher.journal import Pace
from gonogo.supervise.watcher.rank_probes import Prober
from gonogo.watch.fold import start
from tests.supervise.runs import build_test_order

STATE = start(build_test_order("run_x"))


class EvidenceOnPaper(Evidence):
    """Starts rounds that run until the test ends them."""

    def __init__(self, run_dir: RunDir) -> None:
        super().__init__(run_dir)
        self.rounds: list[str] = []
        self.running = False
        self.now = 0.0
        self.step = 0

    def start_round(self, reason: str, *_: object, **__: object) -> Round | None:
        self.rounds.append(reason)
        evidence = self

        class RoundOnPaper(Round):
            def is_running(self) -> bool:
                return evidence.running

        self.last = RoundOnPaper(number=1, started_at=self.now, paths=[f"evidence/{reason}"])
        return self.last


class NodesOnPaper(Prober):
    """Ranks of which nothing is known, on nodes whose silence is a test's to say."""

    def __init__(self) -> None:
        super().__init__(RunDir(Path()), Place.of({"world_size": 0}))
        self.silence: dict[int, float] = {}
        self.heard = float("inf")

    def silent(self) -> dict[int, float]:
        return self.silence

    def all_heard(self, since: float) -> bool:
        return self.heard >= since


@pytest.fixture
def evidence(tmp_path: Path) -> EvidenceOnPaper:
    return EvidenceOnPaper(RunDir(tmp_path))


@pytest.fixture
def nodes() -> NodesOnPaper:
    return NodesOnPaper()


@pytest.fixture
def halting(tmp_path: Path, evidence: EvidenceOnPaper, nodes: NodesOnPaper) -> Halting:
    order = build_test_order("run_x", checkpoint={"every_steps": 20})
    return Halting(RunDir(tmp_path), order, Pace(), evidence, nodes, lambda _: evidence.step)


def finding(
    severity: Severity = Severity.HALT,
    detector: Detector = Detector.STALL,
    key: str = "k",
    **place: int,
) -> Finding:
    return Finding.model_validate(
        {"detector": detector, "severity": severity, "at": 1.0, "key": key, "text": "why", **place}
    )


@pytest.mark.parametrize(
    ("severity", "act", "rounds"),
    [
        (Severity.WARN, None, []), (Severity.WARN, Act.PAGE, []),
        (Severity.SUSPECT, None, ["stall"]), (Severity.HALT, Act.PAGE, ["stall"]),
    ],
)  # fmt: skip
def test_what_does_not_end_a_run_asks_for_nothing(
    halting: Halting,
    evidence: EvidenceOnPaper,
    severity: Severity,
    act: Act | None,
    rounds: list[str],
) -> None:
    found = halting.observe(finding(severity).model_copy(update={"act": act}), 0.0)
    halting.saved(time.time())
    halting.advance(1.5)
    assert evidence.rounds == rounds
    assert found.evidence == [f"evidence/{name}" for name in rounds]
    assert not halting.asked()


@pytest.fixture
def near_stall(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "gonogo.supervise.watcher.halting.find_near_deadline"
    monkeypatch.setattr(name, lambda state, now: Detector.STALL)


@pytest.mark.usefixtures("near_stall")
def test_a_near_deadline_takes_one_round_and_asks_for_nothing(
    halting: Halting, evidence: EvidenceOnPaper
) -> None:
    for now in (0.0, 1.0, 7.0):
        halting.foresee(STATE, now)
        halting.advance(now)
    halting.advance(60.0)
    assert evidence.rounds == ["stall"]
    assert not halting.asked()
    found = halting.observe(finding(Severity.HALT), 8.0)
    assert found.evidence == ["evidence/stall"]
    assert evidence.rounds == ["stall"]


def test_a_halt_that_is_found_while_no_disk_answers_is_decided_on_later(
    tmp_path: Path, halting: Halting
) -> None:
    away = tmp_path.rename(tmp_path.with_name("away"))
    tmp_path.symlink_to("x" * 300)  # any access behind it is refused
    try:
        with pytest.raises(OSError, match="too long"):
            halting.observe(finding(Severity.HALT), 0.0)
        with pytest.raises(OSError, match="too long"):
            halting.advance(1.0)
    finally:
        tmp_path.unlink()
        away.rename(tmp_path)
    halting.advance(2.0)
    request = load_request(tmp_path / KILL_NAME)
    assert request is not None
    assert (request.key, request.reason) == ("k", "stalled")
    halting.advance(3.0)
    assert load_request(tmp_path / KILL_NAME) == request


@pytest.mark.parametrize("running", [True, False])
def test_halt_waits_for_its_evidence_but_not_for_long(
    tmp_path: Path, halting: Halting, evidence: EvidenceOnPaper, running: bool
) -> None:
    evidence.running = running
    halting.observe(finding(), 0.0)
    halting.advance(EVIDENCE_WAIT_S - 0.1)
    assert halting.asked() is not running
    halting.advance(EVIDENCE_WAIT_S)
    found = load_request(tmp_path / KILL_NAME)
    assert found is not None
    assert (found.reason, found.key) == ("stalled", "k")


@pytest.mark.parametrize(
    ("detector", "name", "reason", "by"),
    [
        (Detector.STALL, KILL_NAME, "stalled", "watchdog"),
        (Detector.ALIVE_LOST, KILL_NAME, "stalled", "watchdog"),
        (Detector.SECTION_DEADLINE, KILL_NAME, "stalled", "watchdog"),
        (Detector.NO_FIRST_HEARTBEAT, KILL_NAME, "start_failed", "watchdog"),
        (Detector.IDENTITY, KILL_NAME, "config_mismatch", "watchdog"),
        (Detector.PROCESS_DEATH, KILL_NAME, "nonzero_exit", "trainer"),
        (Detector.HARDWARE, KILL_NAME, "hardware", "watchdog"),
        (Detector.DISK, KILL_NAME, "resource_limit", "watchdog"),
        (Detector.MEMORY_LEAK, HALT_NAME, "resource_limit", "watchdog"),
        (Detector.MEMORY_LIMIT, HALT_NAME, "resource_limit", "watchdog"),
        (Detector.CHECKPOINT_OVERDUE, HALT_NAME, "resource_limit", "watchdog"),
        (Detector.LOADER, HALT_NAME, "too_slow", "watchdog"),
        (Detector.FROZEN, HALT_NAME, "diverged", "watchdog"),
        (Detector.SLOW, HALT_NAME, "too_slow", "watchdog"),
        (Detector.NON_FINITE, HALT_NAME, "non_finite", "watchdog"),
        (Detector.HYGIENE, HALT_NAME, "config_mismatch", "watchdog"),
    ],
)
def test_ranks_that_move_are_asked_and_others_are_ended(
    tmp_path: Path, halting: Halting, detector: Detector, name: str, reason: str, by: str
) -> None:
    halting.observe(finding(detector=detector), 0.0)
    halting.advance(0.0)
    found = load_request(tmp_path / name)
    assert found is not None
    assert (found.reason, found.ended_by, found.key, found.text) == (reason, by, "k", "why")
    assert (found.leave_s is None) is (name == KILL_NAME)


def test_leaving_is_limited_by_the_pace_and_by_the_limit() -> None:
    kill = EndRequest(reason="too_slow", ended_by="watchdog", at=1000.0)
    for leaving_s, moving_s in ((20.0, 20.0), (9e9, HALT_LIMIT_S)):
        asked = leaving(kill, leaving_s, 50.0, HALT_LIMIT_S)
        assert asked.moving_s == moving_s
        assert asked.until_mono == 50.0 + HALT_LIMIT_S, "for those that evaluate or save"
    deaf = leaving(kill, 0.0, 50.0, HALT_LIMIT_S)
    assert (deaf.until_mono, deaf.moving_s) == (50.0, None), "a program that is read is not asked"
    superseded = leaving(kill, 20.0, 50.0, 10.0)
    assert (superseded.until_mono, superseded.moving_s) == (60.0, None)


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
    found = finding(detector=Detector.MEMORY_LEAK).model_copy(update={"act": act, "value": left_s})
    order = build_test_order("run_x", checkpoint=cadence)
    assert patience_s(found, order, leaving_s=20.0) == waits_s


def test_a_standing_suspicion_gets_further_rounds_until_its_rank_moves(
    halting: Halting, evidence: EvidenceOnPaper
) -> None:
    halting.observe(finding(Severity.SUSPECT, rank=1, step=8), 0.0)
    third_s = SECOND_ROUND_S + NEXT_ROUND_S
    rows = [(SECOND_ROUND_S - 0.1, 1), (SECOND_ROUND_S, 2), (third_s - 0.1, 2), (third_s, 3)]
    for at_s, rounds in rows:
        halting.advance(at_s)
        assert len(evidence.rounds) == rounds
    halting.observe(finding(Severity.SUSPECT, rank=1, step=9), 200.0)
    halting.advance(200.0 + SECOND_ROUND_S)
    assert len(evidence.rounds) == 5
    evidence.step = 10
    halting.advance(200.0 + third_s)
    assert len(evidence.rounds) == 5


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize(
    "keys",
    [
        ["!decides", "later"], ["warns", "!decides"], ["waits", "!decides"],
        ["pages", "waits", "!decides"], ["?decides", "waits"],
    ],
    ids=str,
)  # fmt: skip
def test_the_first_halt_that_is_due_decides_once(
    tmp_path: Path, halting: Halting, keys: list[str], restarted: bool
) -> None:
    """`!` marks a stall and `?` one that waits for a checkpoint."""
    rows = []
    for key in keys:
        row = waiting(key=key) if key in ("waits", "?decides") else finding(key=key)
        row = row.model_copy(update={"act": Act.PAGE}) if key == "pages" else row
        rows.append(finding(Severity.WARN) if key == "warns" else row)
    if restarted:
        halting.resume(rows, 0.0)
    else:
        for row in rows:
            halting.observe(row, 0.0)
    if "?decides" in keys:
        halting.saved(time.time())
    for now in (EVIDENCE_WAIT_S, 5.0):
        halting.advance(now)
    found = load_request(tmp_path / (HALT_NAME if "?decides" in keys else KILL_NAME))
    assert found is not None
    assert found.key in ("!decides", "?decides")
    assert not ((tmp_path / HALT_NAME).exists() and (tmp_path / KILL_NAME).exists())


def test_a_run_that_is_ending_is_not_asked_again_nor_looked_at(
    tmp_path: Path, halting: Halting, evidence: EvidenceOnPaper, near_stall: None
) -> None:
    halting.isolate(301.0, 0.0)
    halting.isolate(400.0, 0.0)
    halting.lose(2, "so is this one's")
    halting.obey(Command(kind=CommandKind.CANCEL), 0.0)
    halting.observe(finding(), 1.0)
    halting.foresee(STATE, 2.0)
    halting.advance(5.0)
    found = load_request(tmp_path / HALT_NAME)
    assert found is not None
    assert (found.reason, found.ended_by) == ("isolated", "infra")
    assert "301" in found.text
    assert not (tmp_path / KILL_NAME).exists()
    assert evidence.rounds == []


def test_a_lost_node_ends_the_run_as_infrastructure(tmp_path: Path, halting: Halting) -> None:
    halting.lose(1, "the power is off")
    request = load_request(tmp_path / KILL_NAME)
    assert request is not None
    assert (request.reason, request.ended_by) == ("node_lost", "infra")
    assert request.text == "node 1 is lost: the power is off"


@pytest.mark.parametrize(
    ("found_s_ago", "at_s", "asked"), [(0.0, 375.0, False), (0.0, 500.0, True), (900.0, 0.0, True)]
)
def test_a_halt_waits_for_a_checkpoint_half_of_the_time_that_is_left_also_over_a_restart(
    halting: Halting, found_s_ago: float, at_s: float, asked: bool
) -> None:
    halting.saved(time.time() - found_s_ago - 1.0)
    halting.resume([waiting(1000.0, found_s_ago=found_s_ago)], 0.0)
    halting.advance(at_s)
    assert halting.asked() is asked


def test_halt_uses_a_recent_round_and_takes_another_after_a_while(
    halting: Halting, evidence: EvidenceOnPaper
) -> None:
    halting.observe(finding(Severity.SUSPECT), 0.0)
    halting.observe(finding(Severity.SUSPECT, key="k2"), RECENT_ROUND_S)
    assert len(evidence.rounds) == 1
    halting.observe(finding(), RECENT_ROUND_S + 0.1)
    assert len(evidence.rounds) == 2


def waiting(left_s: float = 1000.0, *, found_s_ago: float = 0.0, key: str = "leak") -> Finding:
    """A halt that acts at a checkpoint; leaving takes 122 s at an unknown pace."""
    return finding(detector=Detector.MEMORY_LEAK, key=key).model_copy(
        update={"act": Act.AT_CHECKPOINT, "value": left_s, "at": time.time() - found_s_ago}
    )


@pytest.mark.parametrize(("verified_s_ago", "due"), [(99.0, True), (101.0, False)])
def test_only_a_checkpoint_after_the_finding_is_the_one_waited_for(
    tmp_path: Path, halting: Halting, verified_s_ago: float, due: bool
) -> None:
    halting.resume([waiting(1000.0, found_s_ago=100.0)], 50.0)
    halting.saved(time.time() - verified_s_ago)
    halting.advance(51.0)
    assert (tmp_path / HALT_NAME).exists() is due


@pytest.mark.parametrize(
    ("kind", "reason", "by"),
    [
        (CommandKind.HALT, "halted", "operator"),
        (CommandKind.CANCEL, "cancelled", "operator"),
        (CommandKind.SUPERSEDE, "superseded", "infra"),
    ],
)
def test_command_asks_for_a_checkpoint_and_ends_the_run_when_it_is_repeated(
    tmp_path: Path, halting: Halting, kind: CommandKind, reason: str, by: str
) -> None:
    again = Command(kind=kind, reason="r", actor="a", again=True)
    halting.obey(again, 0.0)
    halting.advance(0.0)
    found = load_request(tmp_path / HALT_NAME)
    assert found is not None
    assert (found.reason, found.ended_by, found.text) == (reason, by, "a: r")
    assert not (tmp_path / KILL_NAME).exists(), "it never heard the first word"
    halting.obey(again.model_copy(update={"again": False}), 1.0)
    assert not (tmp_path / KILL_NAME).exists()
    halting.obey(again, 2.0)
    found = load_request(tmp_path / KILL_NAME)
    assert found is not None
    assert (found.reason, found.ended_by, found.until_mono) == (reason, by, None)


def test_evidence_of_one_run_is_bounded(tmp_path: Path) -> None:
    real = Evidence(RunDir(tmp_path))
    target = {0: Target(rank=0, pid=None)}
    rounds = [real.start_round("stall", target, float(n)) for n in range(MAX_ROUNDS)]
    taken = [found is not None for found in rounds]
    assert taken == [n < MAX_ROUNDS_OF_SUSPICION for n in range(MAX_ROUNDS)]
    halts = [real.start_round("stall", target, 99.0, most=MAX_ROUNDS) for _ in range(MAX_ROUNDS)]
    assert [found is not None for found in halts].count(True) == MAX_ROUNDS - taken.count(True)
    for found in rounds + halts:
        for thread in found.threads if found is not None else ():
            thread.join(60)
    again = Evidence(RunDir(tmp_path))
    assert again.start_round("stall", target, 0.0, most=MAX_ROUNDS) is None


@pytest.mark.usefixtures("near_stall")
def test_a_near_deadline_has_rounds_of_its_own_after_suspicions(tmp_path: Path) -> None:
    run_dir, order = RunDir(tmp_path), build_test_order("run_x", world_size=2)
    real = Evidence(run_dir)
    halting = Halting(run_dir, order, Pace(), real, NodesOnPaper(), lambda _: 0)
    counts = []
    suspect = partial(halting.observe, finding(Severity.SUSPECT))
    for act in (suspect, partial(halting.foresee, STATE)):
        for number in range(MAX_ROUNDS):
            act(100.0 * (len(counts) * MAX_ROUNDS + number))
        counts.append(len(list(run_dir.evidence.iterdir())))
    assert counts == [MAX_ROUNDS_OF_SUSPICION, MAX_ROUNDS_BEFORE_HALTS]
    assert not halting.asked()
    assert halting.observe(finding(), 9000.0).evidence
    assert real.last is not None
    for thread in real.last.threads:
        thread.join(60)


def reason_of(tmp_path: Path) -> str | None:
    request = load_request(tmp_path / KILL_NAME)
    return None if request is None else request.reason


@pytest.mark.parametrize("detector", [Detector.PROCESS_DEATH, Detector.STALL])
@pytest.mark.parametrize("silent", [False, True])
def test_deaths_and_stalls_wait_for_a_later_sign_of_every_node(
    tmp_path: Path, halting: Halting, nodes: NodesOnPaper, detector: Detector, silent: bool
) -> None:
    """A node that is lost takes the ranks of the others along."""
    nodes.heard = 1.0
    halting.observe(finding(detector=detector), 0.0)
    halting.advance(9.0)
    assert reason_of(tmp_path) is None
    nodes.silence, nodes.heard = ({1: 12.4, 3: 61.0}, 1.0) if silent else ({}, SIGN_AFTER_S)
    halting.advance(10.0)
    request = load_request(tmp_path / KILL_NAME)
    assert request is not None
    if silent:
        assert (request.reason, request.ended_by, request.key) == ("isolated", "infra", "k")
        assert request.text == "nothing was heard of node 3 for 61 s; why"
    else:
        assert request.reason == ("stalled" if detector is Detector.STALL else "nonzero_exit")


@pytest.mark.parametrize(
    ("time_left_s", "value", "near"),
    [
        (9.0, 51.0, False), (8.0, 52.0, True), (3.5, 2.5, False), (2.5, 3.5, True),
        (None, 1.0, False),
    ],
    ids=["too early", "near", "less than half", "more than half", "without a limit"],
)  # fmt: skip
def test_a_deadline_is_near_in_its_last_seconds_after_half_of_it(
    monkeypatch: pytest.MonkeyPatch, time_left_s: float | None, value: float, near: bool
) -> None:
    limit = None if time_left_s is None else value + time_left_s
    row = Near(value=value, limit=limit, unit="s", time_left_s=time_left_s)
    monkeypatch.setattr(halting_module, "near", lambda state, now: {Detector.STALL: row})
    assert find_near_deadline(STATE, 0.0) == (Detector.STALL if near else None)
