"""Missing evidence never passes, and ending early never passes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from gonogo.contract.canonical import digest
from gonogo.contract.errors import Rejected
from gonogo.contract.facts import ProcessExit
from gonogo.contract.finding import Doubt, DoubtKind, Effect, Severity
from gonogo.contract.heartbeat import Identity
from gonogo.contract.order import Order
from gonogo.contract.outcome import Actor, Detector, OutcomeCode
from gonogo.contract.records import Check, CheckOutcome, Preflight, RankExit
from gonogo.judge.facts.facts import build_facts
from gonogo.judge.gate.built_in import evaluate_built_in
from gonogo.judge.gate.rules import build_rules
from gonogo.judge.gate.verdict import judge
from gonogo.planning.resolve import resolve_plan
from gonogo.planning.source import bundled_plan
from tests.data.make_runs import STEPS, Rank, healthy_ranks, order_of
from tests.judge.runs import (
    PREFLIGHT,
    build_run_record,
    exit_record,
    facts_of,
    finding,
    judged,
    lines_of,
    outcomes,
    record_of,
    with_gate,
)

Change = Callable[[list[Rank]], None]


def changed(change: Change, order: Order | None = None) -> dict[str, str]:
    order = order or order_of()
    ranks = healthy_ranks(order)
    change(ranks)
    return outcomes(judged(record_of(order, ranks)))


def drop(rank: int, **match: Any) -> Change:
    """Lose the lines of a rank that match."""

    def change(ranks: list[Rank]) -> None:
        keep = [
            line
            for line in ranks[rank].lines
            if not all(line.get(name) == value for name, value in match.items())
        ]
        assert len(keep) < len(ranks[rank].lines)
        ranks[rank].lines = keep

    return change


def say(rank: int, msg: str, **fields: Any) -> Change:
    """Change fields of a rank's lines."""

    def change(ranks: list[Rank]) -> None:
        for line in ranks[rank].lines:
            if line["msg"] == msg:
                line.update(fields)

    return change


def test_a_healthy_run_passes_every_built_in_criterion() -> None:
    found = changed(lambda ranks: None)
    names = ("completed", "identity", "coverage", "preflight", "no_halt_finding")
    assert [found[name] for name in names] == ["pass"] * 5


@pytest.mark.parametrize(
    ("change", "outcome"),
    [
        (drop(0, msg="done"), "inconclusive"), (say(1, "done", step=STEPS - 1), "fail"),
        (drop(1, msg="step_end", step=STEPS), "inconclusive"), (drop(1), "inconclusive"),
    ],
    ids=["a rank never said done", "a rank was done early", "last step unseen", "a rank is silent"],
)  # fmt: skip
def test_completed(change: Change, outcome: str) -> None:
    assert changed(change)["completed"] == outcome


def test_an_exit_code_that_is_not_zero_fails_completed_even_if_called_completed() -> None:
    record = record_of(exit=exit_record(code=1))
    assert outcomes(judged(record))["completed"] == "fail"


def test_a_run_without_exit_record_is_not_known_to_have_completed() -> None:
    order = order_of()
    record = build_run_record(order, lines_of(healthy_ranks(order)), preflight=PREFLIGHT)
    found = judged(record)
    assert outcomes(found)["completed"] == "inconclusive"
    assert found.verdict == "INCONCLUSIVE"


def test_without_an_order_nothing_that_was_asked_for_can_pass() -> None:
    order = order_of()
    record = build_run_record(None, lines_of(healthy_ranks(order)), exit_record())
    rules = build_rules(None)
    found = judge(build_facts(record, rules), rules)
    assert found.verdict == "INCONCLUSIVE"
    assert outcomes(found)["completed"] == "inconclusive"
    assert outcomes(found)["identity"] == "inconclusive"


IDENTITY = [
    ("another depth", say(0, "boot", layers=1), "fail"),
    ("another digest on one rank", say(1, "boot", config_digest="0" * 64), "fail"),
    ("parameters within 2 %", lambda ranks: [say(r, "boot", params=102_000)(ranks) for r in (0, 1)],
     "pass"),
    ("parameters beyond 2 %", lambda ranks: [say(r, "boot", params=102_001)(ranks) for r in (0, 1)],
     "fail"),
    ("ranks that differ within 2 %", say(1, "boot", params=100_001), "fail"),
    ("another environment", say(0, "boot", nsa_env={}), "fail"),
    ("a rank that never booted", drop(1, msg="boot"), "inconclusive"),
    ("a field that nobody said", say(0, "boot", vocab=None), "inconclusive"),
    ("another batch than was ordered", say(0, "step_end", tokens=64), "fail"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("change", "outcome"), [row[1:] for row in IDENTITY], ids=[row[0] for row in IDENTITY]
)
def test_identity(change: Change, outcome: str) -> None:
    assert changed(change)["identity"] == outcome


def test_the_digest_of_the_configuration_is_taken_of_the_order_and_not_believed() -> None:
    order = order_of()
    other = order.model_copy(update={"train": {**order.train, "seed": 4}})
    found = judged(record_of(other, healthy_ranks(order)))
    (row,) = [row for row in found.criteria if row.id == "identity"]
    assert (row.outcome, row.observed) == ("fail", digest(other.train))


def test_an_allowed_drift_of_the_code_is_a_condition_not_a_mismatch() -> None:
    order = order_of(sets={"allow_drift": ["git_sha"]})
    ranks = healthy_ranks(order)
    for rank in ranks:
        say(rank.rank, "boot", git_sha="f" * 40)(ranks)
    found = judged(record_of(order, ranks))
    assert outcomes(found)["identity"] == "pass"
    assert outcomes(found)["identity_drift"] == "fail"
    assert found.verdict == "CONDITIONAL_GO"
    assert [row.criterion for row in found.conditions] == ["identity_drift"]
    assert found.conditions[0].evidence_from is None
    (drift,) = [row for row in found.criteria if row.id == "identity_drift"]
    was, now = order.identity.git_sha, "f" * 40
    assert (drift.observed, drift.threshold) == ({"git_sha": now}, {"git_sha": was})
    told_of = [f"git_sha of rank {rank} is {now!r}, {was!r} was ordered" for rank in (0, 1)]
    assert drift.evidence == "; ".join(told_of)


@pytest.mark.parametrize(
    ("earlier", "outcome"),
    [
        ({"ended_steps": 0}, "pass"),
        ({"ended_steps": 1}, "fail"),
        ({"ended_steps": 1, "identity": None}, "inconclusive"),
        ({"ended_steps": 0, "identity": None}, "pass"),
    ],
    ids=["took no step", "took one", "took one and said nothing", "neither"],
)
def test_every_process_of_a_rank_counts_that_ended_a_step(
    earlier: dict[str, Any], outcome: str
) -> None:
    order = order_of()
    facts = facts_of(record_of(order))
    (last,) = facts.boots["0"]
    assert last.identity is not None
    other = last.model_copy(update={"identity": last.identity.model_copy(update={"dim": 1})})
    boots = [other.model_copy(update=earlier), last]
    found = evaluate_built_in(
        "identity", facts.model_copy(update={"boots": {**facts.boots, "0": boots}}),
        build_rules(order),
    )  # fmt: skip
    assert found.outcome == outcome, found.evidence


@pytest.mark.parametrize("step", [STEPS, STEPS + 5])
def test_an_attempt_that_owed_no_step_has_shown_nothing(step: int) -> None:
    order = order_of(resume_step=step).model_copy(update={"gate": []})
    assert changed(lambda ranks: None, order)["coverage"] == "inconclusive"


COVERAGE = [
    ("one alive line lost", drop(0, msg="loader_ready"), "inconclusive"),
    ("a step_start lost", drop(0, msg="step_start", step=4), "inconclusive"),
    ("a progress lost on the other rank", drop(1, msg="progress", step=STEPS), "inconclusive"),
    ("the first line lost", drop(0, seq=1), "inconclusive"),
]


@pytest.mark.parametrize(
    ("change", "outcome"), [row[1:] for row in COVERAGE], ids=[row[0] for row in COVERAGE]
)
def test_coverage(change: Change, outcome: str) -> None:
    assert changed(change)["coverage"] == outcome


WARNING = Check(id=PREFLIGHT.checks[0].id, outcome=CheckOutcome.WARN, text="")
FAILED = Check(id=PREFLIGHT.checks[0].id, outcome=CheckOutcome.FAIL, text="")


@pytest.mark.parametrize(
    ("preflight", "outcome"),
    [
        (None, "inconclusive"),
        (Preflight(passed=False), "fail"),
        (
            Preflight(passed=True, checks=[Check(id="x", outcome=CheckOutcome.FAIL, text="")]),
            "fail",
        ),
        (
            Preflight(passed=True, checks=[*PREFLIGHT.checks[1:], WARNING]),
            "pass",
        ),
        (Preflight(passed=True), "inconclusive"),
        (Preflight(passed=True, checks=PREFLIGHT.checks[:-1]), "inconclusive"),
        (Preflight(passed=False, checks=PREFLIGHT.checks), "fail"),
    ],
    ids=[
        "not recorded", "failed", "a failed check inside a pass", "a warning", "no check at all",
        "a required check is missing", "failed though every check passed",
    ],
)  # fmt: skip
def test_preflight(preflight: Preflight | None, outcome: str) -> None:
    assert outcomes(judged(record_of(preflight=preflight)))["preflight"] == outcome


@pytest.mark.parametrize(
    ("severity", "outcome"),
    [("halt", "fail"), ("warn", "pass"), ("suspect", "pass"), ("info", "pass")],
)
def test_only_a_halt_fails_no_halt_finding(severity: str, outcome: str) -> None:
    record = record_of(findings=[finding(Detector.SLOW, Severity(severity))])
    assert outcomes(judged(record))["no_halt_finding"] == outcome


def test_nobody_watching_is_not_the_same_as_no_finding() -> None:
    order = order_of()
    record = build_run_record(
        order, lines_of(healthy_ranks(order)), exit_record(), preflight=PREFLIGHT
    )
    assert outcomes(judged(record))["no_halt_finding"] == "inconclusive"


RUN = "run_01K00000000000000000000000"
OTHER_END = "exit.json was not written under this order.json"


@pytest.mark.parametrize(
    ("name", "part", "changes", "text"),
    [
        ("no_halt_finding", "watch", {"starts": []}, "no tick names the run that was watched"),
        ("no_halt_finding", "watch", {"chained": False}, "the ticks are not one chain"),
        ("no_halt_finding", "watch", {"reaches": False}, "the ticks do not reach every line"),
        (
            "no_halt_finding", "watch", {"sealed": False},
            "watch.jsonl is not the one that exit.json seals",
        ),
        ("no_halt_finding", "exit", {"sealed": None}, "the watcher did not see this exit.json"),
        ("completed", "exit", {"run": "r"}, "exit.json names run r, attempt 1, not this one"),
        (
            "completed", "exit", {"run": None, "attempt": None},
            "exit.json names no run, not this one",
        ),
        (
            "completed", "exit", {"attempt": 2},
            f"exit.json names run {RUN}, attempt 2, not this one",
        ),
        ("completed", "exit", {"order_sha256": "0" * 64}, OTHER_END),
        ("completed", "exit", {"order_sha256": None}, OTHER_END),
    ],
)  # fmt: skip
def test_the_watch_is_whole_and_the_end_is_of_this_run_under_this_order(
    name: str, part: str, changes: dict[str, Any], text: str
) -> None:
    order = order_of()
    facts = facts_of(record_of(order))
    less = facts.model_copy(update={part: getattr(facts, part).model_copy(update=changes)})
    found = evaluate_built_in(name, less, build_rules(order))
    assert (found.outcome, found.evidence) == ("inconclusive", text)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"run": "run_other"}, "the watcher watched run run_other, attempt 1"),
        ({"attempt": 2}, f"the watcher watched run {RUN}, attempt 2"),
        ({"order_sha256": "0" * 64}, "the watcher watched under another order.json"),
    ],
    ids=["run", "attempt", "order"],
)
def test_every_watcher_watches_this_run_under_this_order(
    changes: dict[str, Any], text: str
) -> None:
    order = order_of()
    facts = facts_of(record_of(order))
    assert facts.watch is not None
    (start,) = facts.watch.starts
    starts = [start, start.model_copy(update=changes)]
    other = facts.model_copy(update={"watch": facts.watch.model_copy(update={"starts": starts})})
    found = evaluate_built_in("identity", other, build_rules(order))
    assert (found.outcome, found.evidence) == ("inconclusive", text)


@pytest.mark.parametrize("end", [{"code": 1}, {"signal": 9}], ids=["code", "signal"])
def test_torchrun_itself_has_to_leave_with_0(end: dict[str, int]) -> None:
    order = order_of()
    facts = facts_of(record_of(order))
    assert facts.exit is not None
    bad = facts.exit.model_copy(update={"agent": ProcessExit(**end)})
    found = evaluate_built_in(
        "completed", facts.model_copy(update={"exit": bad}), build_rules(order)
    )
    assert (found.outcome, found.evidence) == ("fail", "torchrun itself did not exit with 0")


@pytest.mark.parametrize("code", [code for code in OutcomeCode if code != "completed"])
def test_every_other_outcome_fails_completed(code: OutcomeCode) -> None:
    record = record_of(exit=exit_record(code, by=Actor.INFRA, code=1))
    assert outcomes(judged(record))["completed"] == "fail"


def waiving(*names: str, **changes: Any) -> Order:
    return order_of().model_copy(update={"waive": list(names), **changes})


def test_what_is_waived_by_name_and_unseen_is_a_condition_that_a_person_settled() -> None:
    order = with_gate(waiving("coverage", "preflight"))
    ranks = healthy_ranks(order)
    say(0, "progress", loss=None)(ranks)
    found = judged(record_of(order, ranks, preflight=None))
    assert found.verdict == "CONDITIONAL_GO"
    told = {row.id: row for row in found.criteria}
    assert told["coverage"].evidence.startswith("waived by name: rank 0")
    states = {row.criterion: (row.state, row.evidence_from) for row in found.conditions}
    assert states == dict.fromkeys(("coverage", "preflight"), ("waived", None))


def reads(**changes: Any) -> tuple[Order, list[Rank]]:
    """A command without a plan that prints the loss of every second step, and a step alone."""
    command = ["python", "train.py"]
    plain = {"command": command, "plan": "", "plan_digest": "", "identity": Identity(), "gate": []}
    order = order_of().model_copy(update={"entry": None, **plain, **changes})
    ranks = healthy_ranks(order)
    for rank in ranks:
        shown = [row for row in rank.lines if row["msg"] in ("boot", "progress", "done")]
        for seq, row in enumerate(shown, 1):
            row["seq"] = seq
            names = set(Identity.model_fields) if row["msg"] == "boot" else set()
            hidden = {"loss"} if row["msg"] == "progress" and row["step"] % 2 else names
            for name in hidden:
                row.pop(name, None)
        rank.lines = shown
    return order, ranks


def test_a_program_that_is_only_read_is_conditional_go_with_the_reason() -> None:
    found = judged(record_of(*reads()))
    rows = {row.id: (row.severity, row.evidence) for row in found.criteria}
    for name in ("identity", "coverage"):
        severity, evidence = rows[name]
        assert severity == "conditional"
        assert evidence.startswith("the program is only read: ")
    assert found.verdict == "CONDITIONAL_GO", rows
    assert {row.criterion for row in found.conditions} == {"identity", "coverage"}


@pytest.mark.parametrize("kind", ["a plan orders it", "it reports an identity", "it is started"])
def test_what_could_report_its_identity_and_steps_needs_a_waiver(kind: str) -> None:
    """A plan asks for more; an attached or observed program could have reported it."""
    command = {"plan": "mine", "plan_digest": "x"} if kind == "a plan orders it" else {}
    started = {"command": None, "entry": "train.py"} if kind == "it is started" else {}
    order, ranks = reads(**command, **started)
    if kind == "it reports an identity":
        say(0, "boot", torch="2.13.0")(ranks)
    assert judged(record_of(order, ranks)).verdict == "INCONCLUSIVE"
    waived = order.model_copy(update={"waive": ["coverage"]})
    (found,) = (row for row in judged(record_of(waived, ranks)).criteria if row.id == "coverage")
    assert found.severity == ("conditional" if kind == "it is started" else "required"), "half"


def test_what_failed_is_never_waived() -> None:
    order = waiving("identity", "coverage", "preflight")
    ranks = healthy_ranks(order)
    say(0, "boot", dim=1)(ranks)
    assert judged(record_of(order, ranks)).verdict == "NO_GO"


@pytest.mark.parametrize(
    ("waived", "evidence"),
    [
        ("completed", {"exit": None}),
        ("no_halt_finding", {"watch": None}),
        ("coverage", {"doubts": [Doubt(kind=DoubtKind.TWO_WRITERS)]}),
        ("coverage", {"doubts": [Doubt(kind=DoubtKind.UNREADABLE, name="findings.jsonl")]}),
    ],
)
def test_a_waiver_excuses_what_was_not_told_and_nothing_else(
    waived: str, evidence: dict[str, Any]
) -> None:
    """Whatever order.json claims to waive: an edit of it may not excuse its own discovery."""
    order = waiving(waived)
    rules = build_rules(order)
    facts = facts_of(record_of(order)).model_copy(update=evidence)
    found = evaluate_built_in(waived, facts, rules)
    assert (found.outcome, found.severity) == ("inconclusive", "required")


@pytest.mark.parametrize("kind", [kind for kind in DoubtKind if kind.effect is not Effect.WEAK])
def test_each_kind_of_doubt_has_the_effect_that_its_table_names(kind: DoubtKind) -> None:
    facts = facts_of(record_of()).model_copy(update={"doubts": [Doubt(kind=kind)]})
    judgement = judge(facts, build_rules(order_of()))
    effect = kind.effect
    assert judgement.verdict == ("GO" if effect is Effect.NONE else "INCONCLUSIVE")
    if effect is not Effect.NONE:
        assert outcomes(judgement)[effect] == "inconclusive"


@pytest.mark.parametrize("name", ["completed", "no_halt_finding"])
def test_a_waiver_of_what_proves_anything_is_refused_in_a_plan(name: str) -> None:
    with pytest.raises(Rejected, match="without it nothing is proved"):
        resolve_plan(bundled_plan("demo"), {"waive": [name]})


def test_where_nobody_said_how_many_steps_there_are_none_are_all() -> None:
    order = waiving(steps=None)
    found = {row.id: row for row in judged(record_of(order, healthy_ranks(order_of()))).criteria}
    assert found["completed"].outcome == found["coverage"].outcome == "inconclusive"
    assert found["completed"].evidence == "the order names no number of steps"


def test_an_order_that_says_nothing_of_what_must_run_proves_no_identity() -> None:
    order = waiving(identity=Identity())
    found = {row.id: row for row in judged(record_of(order)).criteria}
    assert (found["identity"].outcome, found["identity"].evidence) == (
        "inconclusive",
        "the order does not name what must run",
    )


def test_a_command_has_one_exit_for_all_its_ranks() -> None:
    order = waiving(command=["torchrun", "train.py"], entry=None)
    one = exit_record().model_copy(update={"ranks": {"0": exit_record().ranks["0"]}})
    assert judged(record_of(order, exit=one)).verdict == "GO"
    assert judged(record_of(order_of(), exit=one)).verdict == "INCONCLUSIVE"


@pytest.mark.parametrize(
    ("rank", "end", "outcome"),
    [
        (1, {"code": 1}, "fail"), (1, {"signal": 9}, "fail"), (1, {}, "inconclusive"),
        (0, {}, "inconclusive"), (1, {"code": 0}, "pass"),
    ],
    ids=["failed", "killed", "nobody saw it", "nobody saw that of rank 0", "well"],
)  # fmt: skip
def test_how_a_rank_of_a_command_ended_counts_where_it_is_told(
    rank: int, end: dict[str, int], outcome: str
) -> None:
    """A shell leaves with 0 whatever became of what it started."""
    order = waiving(command=["bash", "run.sh"], entry=None)
    ranks = {**exit_record().ranks, str(rank): RankExit(at=1.0, **end)}
    facts = facts_of(record_of(order, exit=exit_record().model_copy(update={"ranks": ranks})))
    assert evaluate_built_in("completed", facts, build_rules(order)).outcome == outcome


@pytest.mark.parametrize(
    ("passed", "checks", "text"),
    [
        (False, PREFLIGHT.checks, "failed: not said which"),
        (False, [*PREFLIGHT.checks[1:], FAILED], f"failed: {FAILED.id}"),
        (True, [*PREFLIGHT.checks[1:], FAILED], f"failed: {FAILED.id}"),
    ],
    ids=["which is not said", "as a check says", "by a check alone"],
)
def test_what_another_node_failed_is_told_as_that_of_the_first(
    passed: bool, checks: list[Check], text: str
) -> None:
    there = Preflight(passed=passed, checks=checks)
    found = judged(replace(record_of(), preflights={1: there}))
    (said,) = (row for row in found.criteria if row.id == "preflight")
    assert (said.outcome, said.evidence) == ("fail", f"node 1: {text}")


@pytest.mark.parametrize("rank", [None, 1])
def test_a_halt_is_named_with_its_rank(rank: int | None) -> None:
    facts = facts_of(record_of(findings=[finding(Detector.STALL, rank=rank)]))
    found = evaluate_built_in("no_halt_finding", facts, build_rules(order_of()))
    assert (" on rank 1" in found.evidence) is (rank == 1)


@pytest.mark.parametrize(
    ("count", "text"), [(0, "rank 0 wrote no line"), (1, "rank 0: its lines were not counted")]
)
def test_a_rank_that_wrote_nothing_is_not_covered(count: int, text: str) -> None:
    facts = facts_of(record_of())
    row = facts.ranks["0"].model_copy(update={"count": count, "missing": None})
    less = facts.model_copy(update={"ranks": {**facts.ranks, "0": row}})
    found = evaluate_built_in("coverage", less, build_rules(order_of()))
    assert (found.outcome, found.evidence) == ("inconclusive", text)


def test_either_witness_of_the_end_fails_completed() -> None:
    """The order or exit.json makes an outcome known; without both nobody knows whose it was."""
    order = order_of()
    stalled = exit_record(OutcomeCode.STALLED, by=Actor.WATCHDOG)
    facts = facts_of(record_of(order, exit=stalled))
    gone = facts.model_copy(update={"exit": None})
    found = {
        name: evaluate_built_in("completed", *said).outcome
        for name, said in {
            "both": (facts, build_rules(order)),
            "order alone": (gone, build_rules(order)),
            "exit alone": (facts, build_rules(None)),
            "neither": (gone, build_rules(None)),
        }.items()
    }
    assert list(found.values()) == ["fail", "fail", "fail", "inconclusive"], found


def test_an_attempt_of_one_step_must_show_that_step() -> None:
    order = order_of(resume_step=STEPS - 1)
    ranks = healthy_ranks(order)
    assert outcomes(judged(record_of(order, ranks)))["completed"] == "pass"
    drop(1, msg="step_end")(ranks)
    drop(1, msg="progress")(ranks)
    assert outcomes(judged(record_of(order, ranks)))["completed"] == "inconclusive"
