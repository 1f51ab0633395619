"""A decision replays from its facts and from its run directory; every change is named."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gonogo.contract.errors import NotFound
from gonogo.contract.finding import Doubt, DoubtKind
from gonogo.judge.directory import judge_directory
from gonogo.ledger.recorded import RecordedDecision, load_decision, record_of
from gonogo.ledger.replay import Surroundings, replay_decision
from gonogo.ledger.sign import Trust
from gonogo.watch.registry import made_by
from tests.data.make_runs import GOLDEN, HERE, STEPS
from tests.judge.conftest import CopyRun
from tests.ledger.chains import (
    TRUST,
    around_runs,
    chain,
    edited,
    judged_anew,
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
    assert [row.kind for row in alone.not_verified] == [DoubtKind.CHAIN_UNCHECKED]
    gap = Surroundings(siblings=[chain()[3]], trust=TRUST)
    first, second = replay_decision(recorded, gap, facts_only=True).not_verified
    assert (first.kind, first.found) == (DoubtKind.DECISION_MISSING, 1)
    assert (second.kind, second.found) == (DoubtKind.DECISION_MISSING, 3)


BROKEN_CHAINS: dict[str, Callable[[list[RecordedDecision]], list[RecordedDecision]]] = {
    "the one before is changed": lambda rows: [edited(rows[0], reason="x"), *rows[2:]],
    "the one before is resealed": lambda rows: [resealed(rows[0], reason="x"), *rows[2:]],
    "the next one links to another": lambda rows: [rows[0], resealed(rows[2], prev_hash="0" * 64)],
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
    assert found.not_verified[0] == Doubt(kind=DoubtKind.NOT_JUDGED, name="human")
    assert replay_decision(resealed(person, verdict="GO"), where).path == "signature"


DECISION_FIELDS = [
    ({"verdict": "GO"}, "verdict"),
    ({"diagnosis": "gremlins"}, "diagnosis"),
    ({"criteria": []}, "criteria.0"),
]


@pytest.mark.parametrize(("fields", "path"), DECISION_FIELDS)
def test_a_decision_that_its_facts_do_not_yield_is_named(fields: dict[str, Any], path: str) -> None:
    found = replay_decision(unsigned(present("stalled"), **fields), facts_only=True)
    assert (found.equal, found.path) == (False, path)


RULES = [
    ({"built_in": []}, "rules.built_in"),
    ({"gate": []}, "rules.gate.0"),
    ({"steps": 10}, "rules.steps"),
    ({"allow_drift": ["git_sha"]}, "rules.allow_drift.0"),
    ({"watch": {}}, "rules.watch."),
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


def rewritten(folder: Path, name: str, **fields: Any) -> None:
    file = folder / name
    file.write_text(json.dumps({**json.loads(file.read_text()), **fields}))


TAMPERED = [
    ("exit.json", {"code": 1}, "facts."),
    ("preflight/preflight.json", {"passed": False}, "facts."),
    ("order.json", {"steps": 4000}, "rules.steps"),
    ("order.json", {"identity": {}}, "rules.identity."),
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


def by_other_code(
    recorded: RecordedDecision, commit: str | None = None, **fields: Any
) -> RecordedDecision:
    """The decision as another version would have made it."""
    other = made_by().model_copy(update={"gonogo": "9.9", "sources": "f" * 64, "commit": commit})
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
    assert "pip install gonogo==9.9" in found.text
    recorded = by_other_code(present("stalled"), commit="c" * 40, verdict="GO")
    found = replay_decision(recorded, facts_only=True)
    assert f"git checkout {'c' * 40} && pip install ." in found.text
    other = made_by().model_copy(update={"commit": "c" * 40}).wire()
    same = unsigned(present("stalled"), verdict="GO", made_by=other)
    assert "It was made by" not in replay_decision(same, facts_only=True).text


def test_a_go_whose_run_left_no_directory_is_no_evidence() -> None:
    recorded = present("healthy")
    rules = {**recorded.document["rules"], "world_size": 0, "gate": []}
    rules["identity"] = {**rules["identity"], "world_size": None}
    nobody: dict[str, Any] = {name: {} for name in ("ranks", "boots", "identity", "rank_exits")}
    forged = judged_anew(recorded, rules=rules, facts={**recorded.document["facts"], **nobody})
    with pytest.raises(NotFound):
        replay_decision(forged, Surroundings())
