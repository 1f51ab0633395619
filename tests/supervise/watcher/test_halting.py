"""From finding to request: evidence first, at most a second of it, and only once."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path

import pytest

from gonogo.contract.agent import Command, CommandKind
from gonogo.contract.finding import Act, Finding, Near, Severity
from gonogo.contract.outcome import Detector
from gonogo.rundir import RunDir
from gonogo.supervise.end_request import HALT_NAME, KILL_NAME, load_request
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
    EVIDENCE_WAIT_S,
    NEXT_ROUND_S,
    RECENT_ROUND_S,
    SECOND_ROUND_S,
    VICTIM_WAIT_S,
    Halting,
    find_near_deadline,
)
from gonogo.supervise.watcher.pace import Pace
from gonogo.supervise.watcher.rank_probes import Prober
from gonogo.watch import start
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
        super().__init__(RunDir(Path()), Place.whole({"world_size": 0}))
        self.silence: dict[int, float] = {}
        self.victims = self.quiet = False

    def silent(self) -> dict[int, float]:
        return self.silence

    def is_quiet(self) -> bool:
        return self.quiet

    def may_be_victim(self, rank: int | None) -> bool:
        return self.victims


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


def test_a_halt_that_is_found_in_a_run_that_is_ending_asks_for_nothing(
    tmp_path: Path, halting: Halting
) -> None:
    (tmp_path / HALT_NAME).touch()
    halting.observe(finding(Severity.HALT), 0.0)
    halting.advance(2.0)
    assert not (tmp_path / KILL_NAME).exists()


@pytest.mark.usefixtures("near_stall")
def test_a_run_that_is_ending_is_looked_at_no_more(
    halting: Halting, evidence: EvidenceOnPaper
) -> None:
    halting.observe(finding(Severity.HALT), 0.0)
    halting.advance(EVIDENCE_WAIT_S)
    assert halting.asked()
    halting.foresee(STATE, 60.0)
    assert evidence.rounds == ["stall"]


def test_standing_suspicion_gets_a_second_round_later_and_then_one_a_minute(
    halting: Halting, evidence: EvidenceOnPaper
) -> None:
    halting.observe(finding(Severity.SUSPECT), 0.0)
    halting.advance(SECOND_ROUND_S - 0.1)
    assert len(evidence.rounds) == 1
    third_s = SECOND_ROUND_S + NEXT_ROUND_S
    for at_s, rounds in ((SECOND_ROUND_S, 2), (third_s - 0.1, 2), (third_s, 3)):
        halting.advance(at_s)
        assert len(evidence.rounds) == rounds


def test_another_suspicion_gets_a_second_round_of_its_own(
    halting: Halting, evidence: EvidenceOnPaper
) -> None:
    halting.observe(finding(Severity.SUSPECT, step=8), 0.0)
    halting.advance(SECOND_ROUND_S)
    halting.observe(finding(Severity.SUSPECT, step=9), 30.0)
    rounds = len(evidence.rounds)
    halting.advance(30.0 + SECOND_ROUND_S)
    assert len(evidence.rounds) == rounds + 1


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


def waiting(left_s: float = 1000.0, *, found_s_ago: float = 0.0, key: str = "leak") -> Finding:
    """A halt that acts at a checkpoint; leaving takes 122 s at an unknown pace."""
    return finding(detector=Detector.MEMORY_LEAK, key=key).model_copy(
        update={"act": Act.AT_CHECKPOINT, "value": left_s, "at": time.time() - found_s_ago}
    )


def reason_in(folder: Path) -> str | None:
    found = load_request(folder / HALT_NAME)
    return None if found is None else found.reason


def test_halt_at_a_checkpoint_asks_to_leave_once_one_has_been_verified(
    tmp_path: Path, halting: Halting
) -> None:
    halting.observe(waiting(), 0.0)
    halting.advance(100.0)
    assert not halting.asked()
    halting.saved(time.time())
    halting.advance(100.2)
    assert reason_in(tmp_path) == "resource_limit"
    assert not (tmp_path / KILL_NAME).exists()


def test_halt_at_a_checkpoint_takes_evidence_at_once(
    halting: Halting, evidence: EvidenceOnPaper
) -> None:
    assert halting.observe(waiting(), 0.0).evidence == ["evidence/memory_leak"]
    assert evidence.rounds == ["memory_leak"]


def test_halt_at_a_checkpoint_waits_no_longer_than_half_of_what_is_left(
    tmp_path: Path, halting: Halting
) -> None:
    halting.observe(waiting(1000.0), 0.0)
    halting.advance(400.0 - 25.0)
    assert not halting.asked()
    halting.advance(500.0)
    assert reason_in(tmp_path) == "resource_limit"


def test_halt_at_a_checkpoint_with_no_time_left_acts_now(tmp_path: Path, halting: Halting) -> None:
    halting.observe(waiting(3.0), 0.0)
    halting.advance(0.1)
    assert reason_in(tmp_path) == "resource_limit"


def test_a_checkpoint_before_anything_waits_changes_nothing(halting: Halting) -> None:
    halting.saved(time.time())
    halting.observe(waiting(), 0.0)
    halting.advance(1.0)
    assert not halting.asked()


def test_a_halt_that_acts_now_comes_before_one_that_waits(tmp_path: Path, halting: Halting) -> None:
    halting.observe(waiting(), 0.0)
    halting.observe(finding(detector=Detector.STALL, key="stall"), 1.0)
    halting.advance(1.1)
    found = load_request(tmp_path / KILL_NAME)
    assert found is not None
    assert found.key == "stall"


def test_the_first_that_waits_decides(tmp_path: Path, halting: Halting) -> None:
    halting.observe(waiting(key="first"), 0.0)
    halting.observe(waiting(key="second"), 1.0)
    halting.saved(time.time())
    halting.advance(2.0)
    found = load_request(tmp_path / HALT_NAME)
    assert found is not None
    assert found.key == "first"


def test_a_page_takes_no_evidence_of_a_warning_and_ends_nothing(
    halting: Halting, evidence: EvidenceOnPaper
) -> None:
    page = finding(Severity.WARN, Detector.WATCHER).model_copy(update={"act": Act.PAGE})
    halting.observe(page, 0.0)
    halting.observe(page.model_copy(update={"severity": Severity.HALT}), 0.0)
    halting.saved(time.time())
    halting.advance(9_999.0)
    assert not halting.asked()
    assert evidence.rounds == ["watcher"]


def test_waiting_survives_a_watcher_that_died(tmp_path: Path, halting: Halting) -> None:
    halting.resume([waiting(1000.0, found_s_ago=100.0)], 50.0)
    halting.advance(60.0)
    assert not halting.asked()
    halting.saved(time.time())
    halting.advance(61.0)
    assert reason_in(tmp_path) == "resource_limit"


@pytest.mark.parametrize(("verified_s_ago", "due"), [(99.0, True), (101.0, False)])
def test_only_a_checkpoint_after_the_finding_is_the_one_waited_for(
    halting: Halting, verified_s_ago: float, due: bool
) -> None:
    halting.resume([waiting(1000.0, found_s_ago=100.0)], 50.0)
    halting.saved(time.time() - verified_s_ago)
    halting.advance(51.0)
    assert halting.asked() is due


def test_a_restart_gives_no_more_time_to_wait(tmp_path: Path, halting: Halting) -> None:
    halting.resume([waiting(1000.0, found_s_ago=900.0)], 50.0)
    halting.advance(50.0)
    assert reason_in(tmp_path) == "resource_limit"


def test_of_what_a_dead_watcher_found_the_one_that_acts_now_decides(
    tmp_path: Path, halting: Halting
) -> None:
    page = finding(key="page").model_copy(update={"act": Act.PAGE})
    halting.resume([page, waiting(), finding(key="now")], 50.0)
    halting.advance(50.0)
    found = load_request(tmp_path / KILL_NAME)
    assert found is not None
    assert found.key == "now"


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


AGAIN = Command(
    kind=CommandKind.HALT,
    actor="ann",
    reason="asked again, to end at once: a wrong rate",
    again=True,
)


def test_an_operator_who_asks_again_ends_a_run_that_is_leaving_after_its_evidence(
    tmp_path: Path, halting: Halting, evidence: EvidenceOnPaper
) -> None:
    halting.obey(Command(kind=CommandKind.HALT, actor="ann"), 0.0)
    evidence.running = True
    for now in (10.0, 10.5):  # every answer of the control plane says it
        halting.obey(AGAIN, now)
        halting.advance(now)
    assert evidence.rounds == ["halt"]
    assert not (tmp_path / KILL_NAME).exists()
    halting.advance(10.0 + EVIDENCE_WAIT_S)
    found = load_request(tmp_path / KILL_NAME)
    assert found is not None
    assert (found.reason, found.ended_by, found.until_mono) == ("halted", "operator", None)
    assert found.text == "ann: asked again, to end at once: a wrong rate"


def test_the_second_word_does_not_wait_for_evidence_that_is_there(
    tmp_path: Path, halting: Halting
) -> None:
    halting.obey(Command(kind=CommandKind.HALT), 0.0)
    halting.obey(AGAIN, 10.0)
    halting.advance(10.0)
    assert (tmp_path / KILL_NAME).exists()


def test_a_run_that_never_heard_the_first_word_is_asked_to_leave_before_it_is_ended(
    tmp_path: Path, halting: Halting
) -> None:
    halting.obey(AGAIN, 0.0)
    halting.advance(0.0)
    assert (tmp_path / HALT_NAME).exists()
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


def test_rank_that_missed_another_is_blamed_only_when_no_node_falls_silent(
    tmp_path: Path, halting: Halting, nodes: NodesOnPaper
) -> None:
    nodes.victims = True
    halting.observe(finding(detector=Detector.PROCESS_DEATH), 0.0)
    halting.advance(VICTIM_WAIT_S - 0.1)
    assert reason_of(tmp_path) is None
    halting.advance(VICTIM_WAIT_S)
    assert reason_of(tmp_path) == "nonzero_exit"


def test_rank_that_missed_a_silent_node_is_a_matter_of_infrastructure(
    tmp_path: Path, halting: Halting, nodes: NodesOnPaper
) -> None:
    nodes.victims = True
    halting.observe(finding(detector=Detector.PROCESS_DEATH), 0.0)
    nodes.silence = {1: 10.0}
    halting.advance(8.0)
    assert reason_of(tmp_path) == "isolated"


@pytest.mark.parametrize(
    ("silence", "reason"),
    [({}, "stalled"), ({1: 10.0}, "isolated")],
    ids=["that is heard again", "that falls silent"],
)
def test_ranks_that_stand_wait_for_what_becomes_of_a_node_that_is_quiet(
    tmp_path: Path, halting: Halting, nodes: NodesOnPaper, silence: dict[int, float], reason: str
) -> None:
    nodes.quiet = True
    halting.observe(finding(rank=1), 0.0)
    halting.advance(8.0)
    assert reason_of(tmp_path) is None
    nodes.quiet, nodes.silence = False, silence
    halting.advance(9.0)
    assert reason_of(tmp_path) == reason


def test_what_a_rank_has_told_itself_waits_for_no_quiet_node(
    tmp_path: Path, halting: Halting, nodes: NodesOnPaper
) -> None:
    nodes.quiet = True
    halting.observe(finding(detector=Detector.IDENTITY), 0.0)
    halting.advance(EVIDENCE_WAIT_S)
    assert reason_of(tmp_path) == "config_mismatch"


def test_lost_node_is_told_once_and_never_over_another_request(
    tmp_path: Path, halting: Halting
) -> None:
    halting.lose(1, "the power is off")
    halting.lose(2, "so is this one's")
    request = load_request(tmp_path / KILL_NAME)
    assert request is not None
    assert (request.reason, request.text) == ("node_lost", "node 1 is lost: the power is off")


@pytest.mark.parametrize(
    ("time_left_s", "value", "near"),
    [
        (9.0, 51.0, False),
        (8.0, 52.0, True),
        (3.5, 2.5, False),
        (2.5, 3.5, True),
        (None, 1.0, False),
    ],
    ids=["too early", "near", "less than half", "more than half", "without a limit"],
)
def test_a_deadline_is_near_in_its_last_seconds_after_half_of_it(
    monkeypatch: pytest.MonkeyPatch, time_left_s: float | None, value: float, near: bool
) -> None:
    limit = None if time_left_s is None else value + time_left_s
    row = Near(value=value, limit=limit, unit="s", time_left_s=time_left_s)
    monkeypatch.setattr(halting_module, "near", lambda state, now: {Detector.STALL: row})
    assert find_near_deadline(STATE, 0.0) == (Detector.STALL if near else None)
