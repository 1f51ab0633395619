"""A decision replays from its facts and from its run directory; every change is named."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gonogo.contract.criterion import Criterion
from gonogo.contract.decision import Cause, Condition, ConditionState, DecisionKind, Verdict
from gonogo.contract.errors import NotFound
from gonogo.contract.facts import Measure
from gonogo.contract.ids import Kind, new_id
from gonogo.contract.order import RunReason
from gonogo.judge.directory import judge_directory
from gonogo.judge.gate.conditions import waived
from gonogo.judge.gate.criteria import evaluate
from gonogo.ledger.recorded import RecordedDecision, first_difference, load_decision, record_of
from gonogo.ledger.replay import Surroundings, replay_decision
from gonogo.ledger.seal import append, settled
from gonogo.ledger.sign import Trust
from gonogo.rundir import save_json
from gonogo.watch.sources import made_by
from tests.data.make_runs import GOLDEN, HERE, STEPS, exit_of, healthy_ranks, order_of, save_run
from tests.judge.conftest import CopyRun
from tests.ledger.chains import (
    KEY,
    TRUST,
    around_runs,
    chain,
    edited,
    entry_of,
    judged_anew,
    place,
    present,
    resealed,
    unsigned,
)


def around(rows: list[RecordedDecision], recorded: RecordedDecision) -> Surroundings:
    """Everything that lies around a decision of a chain."""
    return Surroundings(
        run_dir=around_runs() / str(recorded.decision.run),
        siblings=[row for row in rows if row.id != recorded.id],
        trust=TRUST,
    )


@pytest.mark.parametrize("name", GOLDEN)
def test_a_golden_decision_replays(name: str) -> None:
    found = replay_decision(load_decision(HERE / "decisions" / f"{name}.json"), facts_only=True)
    assert found.equal, found.text
    assert found.checked == ("rule", "facts", "hash", "decision")


def test_the_golden_decisions_have_every_kind_of_verdict_but_one() -> None:
    found = {load_decision(HERE / "decisions" / f"{name}.json").verdict for name in GOLDEN}
    assert found == {"GO", "NO_GO", "CONDITIONAL_GO"}


def test_a_signed_decision_replays_with_signature_chain_and_both_halves() -> None:
    rows = chain()
    for recorded in rows[:-1]:
        found = replay_decision(recorded, around(rows, recorded))
        assert found.equal, found.text
        assert found.not_verified == ()
        assert {"signature", "chain", "order", "run_directory", "decision"} <= set(found.checked)


@pytest.mark.parametrize("name", ["healthy", "stalled", "non_finite"])
def test_a_decision_about_an_example_run_replays(name: str) -> None:
    recorded = present(name)
    where = Surroundings(run_dir=HERE / "runs" / name, siblings=[], trust=TRUST)
    found = replay_decision(recorded, where)
    assert (found.equal, found.not_verified) == (True, ()), found.text


def test_what_cannot_be_checked_is_listed() -> None:
    recorded = chain()[1]
    alone = replay_decision(recorded, facts_only=True)
    assert (alone.equal, alone.path) == (False, "signature")
    assert "no public key" in alone.text
    texts = [text.partition(":")[0] for text in alone.not_verified]
    assert texts == ["who recorded it", "its chain"]
    gap = Surroundings(siblings=[chain()[3]], trust=TRUST)
    first, second = replay_decision(recorded, gap, facts_only=True).not_verified
    assert "decision 1 of" in first
    assert "decision 3 of" in second


BROKEN_CHAINS: dict[str, Callable[[list[RecordedDecision]], list[RecordedDecision]]] = {
    "the one before is changed": lambda rows: [edited(rows[0], reason="x"), *rows[2:]],
    "the one before is resealed": lambda rows: [resealed(rows[0], reason="x"), *rows[2:]],
    "the next one links to another": lambda rows: [
        rows[0],
        resealed(rows[2], prev_hash="0" * 64),
    ],
    "a second one has its number": lambda rows: [rows[0], resealed(rows[1], id="dec_other")],
}


@pytest.mark.parametrize("name", BROKEN_CHAINS)
def test_a_broken_chain_is_a_difference_even_without_a_key(name: str) -> None:
    rows = chain()
    where = Surroundings(siblings=BROKEN_CHAINS[name](rows))
    found = replay_decision(rows[1], where, facts_only=True)
    assert not found.equal
    assert (found.path or "").startswith("chain.")


def test_without_the_key_nobody_can_seal_a_decision_again() -> None:
    forged = resealed(chain()[2], reason="looks fine")
    for where in (None, Surroundings(trust=Trust()), Surroundings(trust=TRUST)):
        found = replay_decision(forged, where, facts_only=True)
        assert (found.equal, found.path) == (False, "signature")
    bare = unsigned(chain()[2], reason="looks fine")
    found = replay_decision(bare, Surroundings(trust=TRUST), facts_only=True)
    assert (found.equal, found.path) == (False, "signature")


def test_the_word_of_a_person_is_checked_by_digest_chain_and_signature() -> None:
    *rows, person = chain()
    where = Surroundings(siblings=rows, trust=TRUST)
    found = replay_decision(person, where)
    assert found.equal, found.text
    assert "a person decided" in found.not_verified[0]
    assert replay_decision(resealed(person, verdict="GO"), where).path == "signature"


DECISION_FIELDS = [
    ({"verdict": "GO"}, "verdict"),
    ({"diagnosis": "gremlins"}, "diagnosis"),
    ({"criteria": []}, "criteria.0"),
    ({"phase": "production"}, "phase"),
    ({"run": "run_9"}, "run"),
]


@pytest.mark.parametrize(("fields", "path"), DECISION_FIELDS)
def test_a_decision_that_its_facts_do_not_yield_is_named(fields: dict[str, Any], path: str) -> None:
    found = replay_decision(unsigned(present("stalled"), **fields), facts_only=True)
    assert (found.equal, found.path) == (False, path)


RULES = [
    ({"built_in": []}, "rules.built_in"),
    ({"gate": []}, "rules.gate.0"),
    ({"steps": 10}, "rules.steps"),
    ({"world_size": 1}, ""),
    ({"world_size": 10**12}, "rules.world_size"),
    ({"params_tolerance_ratio": 9.0}, "rules.params_tolerance_ratio"),
    ({"allow_drift": ["git_sha"]}, "rules.allow_drift.0"),
    ({"watch": {}}, "rules.watch."),
    ({"phases_after": []}, "rules.phases_after.0"),
]


@pytest.mark.parametrize(("fields", "path"), RULES)
def test_rules_are_derived_from_the_order_and_compared(fields: dict[str, Any], path: str) -> None:
    recorded = present("stalled")
    rules = {**recorded.document["rules"], **fields}
    if "world_size" in fields or "built_in" in fields:  # no judge takes them
        forged = unsigned(recorded, rules=rules)
    else:
        forged = judged_anew(recorded, rules=rules)
    found = replay_decision(forged, Surroundings(run_dir=HERE / "runs" / "stalled"))
    assert not found.equal
    assert (found.path or "").startswith(path)


def test_a_decision_about_a_run_of_another_experiment_differs() -> None:
    forged = unsigned(present("stalled"), experiment="exp_another")
    found = replay_decision(forged, Surroundings(run_dir=HERE / "runs" / "stalled"))
    assert (found.equal, found.path) == (False, "experiment")


def rewritten(folder: Path, name: str, **fields: Any) -> None:
    file = folder / name
    file.write_text(json.dumps({**json.loads(file.read_text()), **fields}))


TAMPERED = [
    ("exit.json", {"code": 1}, "facts."),
    ("exit.json", {"reason": "stalled"}, "facts."),
    ("preflight/preflight.json", {"passed": False}, "facts."),
    ("order.json", {"steps": 4000}, "rules.steps"),
    ("order.json", {"gate": []}, "rules.gate.0"),
    ("order.json", {"identity": {}}, "rules.identity."),
    ("order.json", {"watch": {"stall": {"halt_s": 1e9}}}, "rules.watch."),
]


@pytest.mark.parametrize(("name", "fields", "path"), TAMPERED)
def test_a_changed_record_is_named(
    name: str, fields: dict[str, Any], path: str, copy_run: CopyRun
) -> None:
    folder = copy_run("healthy")
    recorded = record_of(judge_directory(folder))
    rewritten(folder, name, **fields)
    found = replay_decision(recorded, Surroundings(run_dir=folder))
    assert not found.equal
    assert (found.path or "").startswith(path)


@pytest.mark.parametrize("name", ["order.json", "exit.json", "findings.jsonl", "watch.jsonl"])
@pytest.mark.parametrize("raw", [b"{\n", b"[]\n", b"\xff\n", None])
def test_a_record_that_cannot_be_read_is_a_difference(
    name: str, raw: bytes | None, copy_run: CopyRun
) -> None:
    folder = copy_run("non_finite")
    recorded = record_of(judge_directory(folder))
    if raw is None:
        (folder / name).unlink()
        (folder / name).symlink_to("/proc/self/mem")
    else:
        (folder / name).write_bytes(raw)
    found = replay_decision(recorded, Surroundings(run_dir=folder))
    assert not found.equal
    assert found.text


@pytest.mark.parametrize("step", [1, 7, STEPS])
def test_one_changed_loss_is_named_with_its_rank(step: int, copy_run: CopyRun) -> None:
    folder = copy_run("healthy")
    recorded = record_of(judge_directory(folder))
    file = folder / "heartbeat_rank1.jsonl"
    lines = [json.loads(line) for line in file.read_bytes().splitlines()]
    for line in lines:
        if line["msg"] == "progress" and line["step"] == step:
            line["loss"] += 1e-12
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = replay_decision(recorded, Surroundings(run_dir=folder))
    assert not found.equal
    assert "facts." in (found.path or "")
    assert replay_decision(recorded, Surroundings(run_dir=folder), facts_only=True).equal


# The end of a run that only the control plane knew.


def ended_by_service(folder: Path, code: str) -> tuple[RecordedDecision, bytes]:
    """The decision about a run whose end the control plane wrote; no exit.json is left there."""
    path, ticks = folder / "exit.json", folder / "watch.jsonl"
    own = path.read_bytes()
    lines = ticks.read_text().splitlines(keepends=True)
    ticks.write_text("".join(line for line in lines if "exit.json" not in line))
    actor = {"worker_lost": "infra", "superseded": "operator"}.get(code, "watchdog")
    end = {name: json.loads(own)[name] for name in ("v", "ended_at", "run", "attempt")}
    save_json(path, {**end, "ended_by": actor, "reason": code})
    recorded = record_of(judge_directory(folder))
    path.unlink()
    return recorded, own


@pytest.mark.parametrize(
    ("run", "code"),
    [("healthy", "worker_lost"), ("healthy", "superseded"), ("non_finite", "non_finite")],
)
@pytest.mark.parametrize("later", ["none", "another"])
def test_an_end_that_the_control_plane_recorded_is_not_verified(
    run: str, code: str, later: str, copy_run: CopyRun
) -> None:
    folder = copy_run(run)
    recorded, own = ended_by_service(folder, code)
    if later == "another":  # its host was not dead, and its keeper wrote an end
        (folder / "exit.json").write_bytes(own)
    found = replay_decision(recorded, Surroundings(run_dir=folder))
    assert found.equal, found.text
    assert any("the control plane" in text for text in found.not_verified)
    (folder / "heartbeat_rank1.jsonl").unlink()
    assert not replay_decision(recorded, Surroundings(run_dir=folder)).equal


# Other runs.


def confirmed(
    tmp_path: Path, order: Mapping[str, Any] | None = None, **said: Any
) -> tuple[RecordedDecision, Path]:
    """The decision about a hang, whose history says that a rerun came to something."""
    folder = Path(shutil.copytree(HERE / "runs" / "stalled", tmp_path / "run_1"))
    more = {"run": "run_other", "attempt": 2, "reason": RunReason.CONFIRM}
    ordered = order_of().model_copy(update={**more, **(order or {})})
    ranks = healthy_ranks(ordered)
    save_run(tmp_path / "run_other", ordered, ranks, exit_of(ranks))
    recorded = record_of(judge_directory(folder))
    row = {"run": "run_other", "variant": None, "verdict": "GO", "code": "completed"}
    facts = {**recorded.document["facts"], "history": {"confirmations": [{**row, **said}]}}
    return judged_anew(recorded, facts=facts), folder


def test_the_runs_that_confirm_are_judged_again(tmp_path: Path) -> None:
    forged, folder = confirmed(tmp_path)
    found = replay_decision(forged, Surroundings(run_dir=folder))
    assert found.equal, found.text
    assert "history" in found.checked


@pytest.mark.parametrize(
    ("order", "said", "field"),
    [
        ({}, {"verdict": "NO_GO"}, "verdict"),
        ({}, {"code": "stalled"}, "code"),
        ({}, {"until": STEPS + 1}, "until"),
        ({"experiment": "exp_other"}, {}, "run"),
        ({"phase": "production"}, {}, "run"),
        ({"run": "run_third"}, {}, "run"),
        ({"attempt": 1}, {}, "run"),
        ({"reason": RunReason.REMEDY}, {}, "run"),
    ],
)
def test_a_confirmation_that_its_run_does_not_yield_is_named(
    order: dict[str, Any], said: dict[str, Any], field: str, tmp_path: Path
) -> None:
    forged, folder = confirmed(tmp_path, order, **said)
    found = replay_decision(forged, Surroundings(run_dir=folder))
    assert (found.equal, found.path) == (False, f"facts.history.confirmations.0.{field}")


@pytest.mark.parametrize("run", ["run_none", "../run_other", ""])
def test_a_confirmation_without_a_directory_is_not_verified(run: str, tmp_path: Path) -> None:
    forged, folder = confirmed(tmp_path, run=run)
    found = replay_decision(forged, Surroundings(run_dir=folder))
    assert found.equal, found.text
    assert any("which the history names" in text for text in found.not_verified)


@pytest.mark.parametrize("told", [True, False], ids=["told", "left out"])
@pytest.mark.parametrize("waive", [False, True], ids=["", "waived meanwhile"])
def test_the_open_conditions_in_the_rules_are_compared(told: bool, waive: bool) -> None:
    made = present("healthy")
    rules, facts, decision = made.document["rules"], made.document["facts"], made.decision
    row, *gate = rules["gate"]
    kept = {**row, "id": "kept"}
    left = {"id": "sanity:kept", "text": "", "criterion": "kept", "evidence_from": decision.phase,
            "due": "end", "on_miss": "no_go", "state": "open"}  # fmt: skip
    before = replace(
        entry_of(made),
        verdict=Verdict.CONDITIONAL_GO,
        conditions=[Condition.model_validate(left)],
        rules={**rules, "phase": "sanity", "gate": [kept, *gate]},
    )
    siblings = [append(before, place([], "sanity", None), None)]
    if waive:  # by a person, once the run had been judged
        end = [Condition.model_validate({**left, "state": "waived"})]
        entry = replace(before, kind=DecisionKind.HUMAN, verdict=Verdict.GO, conditions=end)
        where = place(siblings, "sanity", None, supersedes=siblings[0].id)
        siblings.append(append(entry, where, None))
    if told:
        rules = {**rules, "conditions": [{"condition": left, "criterion": kept}]}
        measure = facts["measures"][row["id"]]
        facts = {**facts, "measures": {**facts["measures"], "sanity:kept": measure}}
    last = siblings[-1].decision
    more = {"seq": last.seq + 1, "prev_hash": last.hash, "id": new_id(Kind.DECISION)}
    forged = judged_anew(made, rules=rules, facts=facts, **more)
    found = replay_decision(
        forged, Surroundings(run_dir=HERE / "runs" / "healthy", siblings=siblings)
    )
    equal = told or waive
    assert (found.equal, found.path) == (equal, None if equal else "rules.conditions"), found.text


# Conditions.

CRITERION = Criterion.model_validate(
    {"id": "fast", "metric": "toks_per_s", "pass_above": 900.0, "severity": "conditional"}
)
CONDITION = Condition(id="smoke:fast", text="slow", criterion="fast", evidence_from="extended")


def measured(state: ConditionState, value: float, seen: float | None = None) -> RecordedDecision:
    """A decision that a run of this speed settled a condition; `seen` is what its facts say."""

    def measure(speed: float) -> Measure:
        row = {"samples": 12, "owed": 12, "value": speed, "low": speed, "high": speed}
        return Measure.model_validate({"window": "1..12", "ranks": {"0": row, "1": row}})

    entry = settled(
        [CONDITION.model_copy(update={"state": state})],
        Verdict.GO if state is ConditionState.MET else Verdict.NO_GO,
        criteria=[evaluate(CRITERION, measure(value), 2)],
        rules={"world_size": 2, "criteria": {CONDITION.id: CRITERION.model_dump(mode="json")}},
        facts={"measures": {CONDITION.id: measure(seen or value).model_dump(mode="json")}},
    )
    rows = chain()
    return append(entry, place(rows, "extended", rows[3].decision.run), KEY)


@pytest.mark.parametrize(
    ("state", "value", "seen", "path"),
    [
        (ConditionState.MET, 1000.0, None, None),
        (ConditionState.MISSED, 800.0, None, None),
        (ConditionState.MET, 1000.0, 800.0, "conditions"),
        (ConditionState.MISSED, 800.0, 1000.0, "conditions"),
        (ConditionState.MET, 1000.0, 950.0, "criteria.0.evidence"),
    ],
)
def test_a_settled_condition_replays_from_its_criterion_and_measure(
    state: ConditionState, value: float, seen: float | None, path: str | None
) -> None:
    recorded = measured(state, value, seen)
    found = replay_decision(recorded, Surroundings(siblings=chain(), trust=TRUST))
    assert (found.equal, found.path) == (path is None, path), found.text
    assert "decision" in found.checked or path == "conditions"


@pytest.mark.parametrize("facts", [{}, {"measures": {}}, {"measures": {"smoke:fast": None}}])
def test_a_condition_without_its_measure_is_not_met(facts: dict[str, Any]) -> None:
    recorded = measured(ConditionState.MET, 1000.0)
    found = replay_decision(unsigned(recorded, facts=facts, criteria=[]))
    assert not found.equal


@pytest.mark.parametrize("state", [ConditionState.WAIVED, ConditionState.MISSED])
def test_a_condition_that_nothing_measured_is_the_word_of_a_person(state: ConditionState) -> None:
    rows = chain()
    row = waived(CONDITION).model_copy(update={"state": state})
    recorded = append(settled([row], Verdict.NO_GO, actor="ana"), place(rows, "smoke", None), KEY)
    found = replay_decision(recorded, Surroundings(siblings=rows, trust=TRUST))
    assert found.equal, found.text
    assert any("the word of a person" in text for text in found.not_verified)


@pytest.mark.parametrize("state", [None, ConditionState.MISSED])
def test_a_no_go_cannot_pass_as_a_decision_about_conditions(state: ConditionState | None) -> None:
    rows = [] if state is None else [CONDITION.model_copy(update={"state": state}).wire()]
    said = {"kind": "condition", "verdict": "GO", "conditions": rows, "rules": {}, "facts": {}}
    found = replay_decision(unsigned(present("stalled"), **said))
    assert (found.equal, found.path) == (False, "verdict" if rows else "conditions")


# Other code.


def by_other_code(recorded: RecordedDecision, **fields: Any) -> RecordedDecision:
    """The decision as another version would have made it."""
    other = made_by().model_copy(update={"gonogo": "9.9", "sources": "f" * 64})
    return unsigned(recorded, made_by=other.wire(), **fields)


def test_a_decision_of_another_version_is_judged_by_this_one() -> None:
    found = replay_decision(by_other_code(present("stalled")), facts_only=True)
    assert found.equal, found.text
    assert "made by gonogo 9.9" in found.text


def test_a_difference_names_both_versions_and_how_to_install_the_other() -> None:
    found = replay_decision(by_other_code(present("stalled"), verdict="GO"), facts_only=True)
    assert (found.equal, found.path) == (False, "verdict")
    assert "gonogo 9.9 (sources ffffffffffff)" in found.text
    assert made_by().sources[:12] in found.text
    assert "git checkout v9.9 && pip install ." in found.text
    same = unsigned(present("stalled"), verdict="GO")
    assert "git checkout" not in replay_decision(same, facts_only=True).text


# The rest.


def test_the_words_of_a_cause_decide_nothing_and_are_under_the_hash() -> None:
    recorded = present("stalled")
    cause = Cause(text="rank 1 hung", rank=1, log="rank1.log", line="boom")
    said = append(replace(entry_of(recorded), cause=cause), place([], "smoke", None), KEY)
    where = Surroundings(siblings=[], trust=TRUST)
    assert replay_decision(said, where, facts_only=True).equal
    changed = edited(said, cause={**said.document["cause"], "line": "all fine"})
    assert replay_decision(changed, where, facts_only=True).path == "hash"


def test_without_the_run_directory_it_says_what_to_do(tmp_path: Path) -> None:
    for folder in (tmp_path / "none", None):
        with pytest.raises(NotFound, match="--facts-only"):
            replay_decision(unsigned(chain()[3]), Surroundings(run_dir=folder))


@pytest.mark.parametrize("run", ["a" * 5000, "a\0b", "../.."], ids=["long", "null", "dots"])
def test_a_run_that_is_no_name_of_a_directory_is_named(run: str) -> None:
    forged = unsigned(present("healthy"), run=run)
    found = replay_decision(forged, Surroundings(run_dir=HERE / "runs" / run, siblings=[]))
    assert (found.equal, found.path) == (False, "run")


def test_a_go_whose_run_left_no_directory_is_no_evidence() -> None:
    recorded = present("healthy")
    rules = {**recorded.document["rules"], "world_size": 0, "gate": []}
    rules["identity"] = {**rules["identity"], "world_size": None}
    nobody: dict[str, Any] = {name: {} for name in ("ranks", "boots", "identity", "rank_exits")}
    forged = judged_anew(recorded, rules=rules, facts={**recorded.document["facts"], **nobody})
    with pytest.raises(NotFound):
        replay_decision(forged, Surroundings())


@pytest.mark.parametrize(
    ("left", "right", "path"),
    [
        ({"a": 1}, {"a": 1}, None),
        ({"a": 1, "b": 2}, {"a": 1, "b": 3}, "b"),
        ({"a": [1, {"x": 2}]}, {"a": [1, {"x": 3}]}, "a.1.x"),
        ({"a": [1]}, {"a": [1, 2]}, "a.1"),
        ({"a": 1}, {}, "a"),
        ({"a": 1}, {"a": True}, "a"),
        ({"a": None}, {"a": 0}, "a"),
    ],
)
def test_the_first_differing_path(left: Any, right: Any, path: str | None) -> None:
    found = first_difference(left, right)
    assert (None if found is None else found.path) == path
