"""From finding to request: evidence first, at most a second of it, and only once."""

from __future__ import annotations

from pathlib import Path

import pytest

from gonogo.contract.agent import Command, CommandKind
from gonogo.contract.finding import Finding, Severity
from gonogo.contract.outcome import Detector
from gonogo.contract.rundir import RunDir
from tests.worker.runs import build_test_order
from worker.evidence import MAX_ROUNDS, MAX_ROUNDS_OF_SUSPICION, Evidence, Round, Target
from worker.halt import HALT_NAME, KILL_NAME, load_request
from worker.halting import EVIDENCE_WAIT_S, RECENT_ROUND_S, SECOND_ROUND_S, Halting
from worker.pace import Pace


class EvidenceOnPaper(Evidence):
    """Starts rounds that run until they are told to have ended."""

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


@pytest.fixture
def evidence(tmp_path: Path) -> EvidenceOnPaper:
    return EvidenceOnPaper(RunDir(tmp_path))


@pytest.fixture
def halting(tmp_path: Path, evidence: EvidenceOnPaper) -> Halting:
    order = build_test_order("run_x")
    return Halting(RunDir(tmp_path), order, Pace(), evidence, dict, lambda _: evidence.step)


def finding(
    severity: Severity = Severity.HALT,
    detector: Detector = Detector.STALL,
    key: str = "k",
    **place: int,
) -> Finding:
    return Finding.model_validate(
        {"detector": detector, "severity": severity, "at": 1.0, "key": key, "text": "why", **place}
    )


def test_warning_takes_no_evidence_and_asks_for_nothing(
    tmp_path: Path, halting: Halting, evidence: EvidenceOnPaper
) -> None:
    halting.observe(finding(Severity.WARN), 0.0)
    halting.advance(10.0)
    assert evidence.rounds == []
    assert not halting.asked()


def test_suspicion_takes_evidence_and_asks_for_nothing(
    halting: Halting, evidence: EvidenceOnPaper
) -> None:
    found = halting.observe(finding(Severity.SUSPECT), 0.0)
    halting.advance(1.5)
    assert found.evidence == ["evidence/stall"]
    assert evidence.rounds == ["stall"]
    assert not halting.asked()


def test_standing_suspicion_gets_a_second_round_later(
    halting: Halting, evidence: EvidenceOnPaper
) -> None:
    halting.observe(finding(Severity.SUSPECT), 0.0)
    halting.advance(SECOND_ROUND_S - 0.1)
    assert len(evidence.rounds) == 1
    halting.advance(SECOND_ROUND_S)
    halting.advance(SECOND_ROUND_S + 1)
    assert len(evidence.rounds) == 2


def test_suspicion_that_went_away_gets_no_second_round(
    halting: Halting, evidence: EvidenceOnPaper
) -> None:
    halting.observe(finding(Severity.SUSPECT, rank=1, step=8), 0.0)
    evidence.step = 9
    halting.advance(SECOND_ROUND_S + 1)
    assert len(evidence.rounds) == 1


def test_halt_waits_for_its_evidence_but_not_for_long(
    tmp_path: Path, halting: Halting, evidence: EvidenceOnPaper
) -> None:
    evidence.running = True
    halting.observe(finding(), 0.0)
    halting.advance(EVIDENCE_WAIT_S - 0.1)
    assert not halting.asked()
    halting.advance(EVIDENCE_WAIT_S)
    found = load_request(tmp_path / KILL_NAME)
    assert found is not None
    assert (found.reason, found.key) == ("stalled", "k")


def test_halt_does_not_wait_when_the_evidence_is_there(halting: Halting) -> None:
    halting.observe(finding(), 0.0)
    halting.advance(0.01)
    assert halting.asked()


def test_halt_uses_a_recent_round_and_takes_another_after_a_while(
    halting: Halting, evidence: EvidenceOnPaper
) -> None:
    halting.observe(finding(Severity.SUSPECT), 0.0)
    halting.observe(finding(Severity.SUSPECT, key="k2"), RECENT_ROUND_S)
    assert len(evidence.rounds) == 1
    halting.observe(finding(), RECENT_ROUND_S + 0.1)
    assert len(evidence.rounds) == 2


def test_first_halt_finding_decides(tmp_path: Path, halting: Halting) -> None:
    halting.observe(finding(detector=Detector.NON_FINITE, key="first"), 0.0)
    halting.observe(finding(detector=Detector.STALL, key="second"), 0.0)
    halting.advance(0.1)
    halting.advance(5.0)
    found = load_request(tmp_path / HALT_NAME)
    assert found is not None
    assert (found.key, found.reason) == ("first", "non_finite")
    assert not (tmp_path / KILL_NAME).exists()


def test_run_that_is_ending_is_not_asked_again(tmp_path: Path, halting: Halting) -> None:
    halting.obey(Command(kind=CommandKind.HALT), 0.0)
    halting.obey(Command(kind=CommandKind.CANCEL), 0.0)
    halting.isolate(400.0, 0.0)
    halting.observe(finding(), 1.0)
    halting.advance(5.0)
    found = load_request(tmp_path / HALT_NAME)
    assert found is not None
    assert found.reason == "halted"
    assert not (tmp_path / KILL_NAME).exists()


def test_decision_of_a_watcher_that_died_is_carried_out_at_once(
    tmp_path: Path, halting: Halting
) -> None:
    halting.resume([finding(Severity.WARN), finding(key="old"), finding(key="later")], 7.0)
    halting.advance(7.0)
    found = load_request(tmp_path / KILL_NAME)
    assert found is not None
    assert found.key == "old"


def test_evidence_of_one_run_is_bounded(tmp_path: Path) -> None:
    real = Evidence(RunDir(tmp_path))
    target = {0: Target(rank=0, pid=None)}
    rounds = [real.start_round("stall", target, float(n)) for n in range(MAX_ROUNDS)]
    taken = [found is not None for found in rounds]
    assert taken == [n < MAX_ROUNDS_OF_SUSPICION for n in range(MAX_ROUNDS)]
    halts = [real.start_round("stall", target, 99.0, halts=True) for _ in range(MAX_ROUNDS)]
    assert [found is not None for found in halts].count(True) == MAX_ROUNDS - taken.count(True)
    for found in rounds + halts:
        for thread in found.threads if found is not None else ():
            thread.join(5)
    again = Evidence(RunDir(tmp_path))
    assert again.start_round("stall", target, 0.0, halts=True) is None
