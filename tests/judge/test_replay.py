"""Every decision replays for ever; whatever was changed by hand is named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gonogo.contract.decision import Decision, Verdict
from gonogo.contract.errors import Corrupt, NotFound
from gonogo.contract.order import JUDGE_VERSION
from gonogo.contract.rundir import save_json
from gonogo.judge.conditions import conditions_of, waived
from gonogo.judge.difference import first_difference
from gonogo.judge.facts import build_facts
from gonogo.judge.record import load_run
from gonogo.judge.replay import (
    check_chain,
    load_decision,
    replay_decision,
    run_dir_of,
)
from gonogo.judge.rules import build_rules
from gonogo.judge.seal import build_condition_decision, build_decision, build_human_decision
from gonogo.judge.verdict import judge
from tests.data.make_runs import GOLDEN, HERE
from tests.judge.conftest import CopyRun

FILES = sorted((HERE / "decisions").glob("*.json"))
AT = "2026-01-01T00:00:00Z"


def golden(name: str) -> Decision:
    return load_decision(HERE / "decisions" / f"v1_{name}.json")


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_golden_decision_replays_for_ever(file: Path) -> None:
    found = replay_decision(load_decision(file), None, facts_only=True)
    assert found.equal, found.text
    assert found.checked == ("rule", "facts", "hash", "decision")


def test_the_corpus_has_every_kind_of_verdict_of_this_version() -> None:
    verdicts = [golden(name).verdict for name in GOLDEN]
    assert verdicts == ["GO", "NO_GO", "NO_GO", "CONDITIONAL_GO", "CONDITIONAL_GO"]
    assert all(golden(name).judge_version <= JUDGE_VERSION for name in GOLDEN)


RUN_OF = {"healthy": "healthy", "stalled": "stalled", "non_finite": "non_finite",
          "conditional": "healthy", "confirmed": "stalled"}  # fmt: skip


@pytest.mark.parametrize("name", RUN_OF)
def test_the_run_directory_gives_the_same_facts_and_the_watch_the_same_findings(
    name: str, copy_run: CopyRun
) -> None:
    found = replay_decision(golden(name), copy_run(RUN_OF[name]))
    assert found.equal, found.text
    assert found.checked[-2:] == ("run_directory", "watch")


@pytest.mark.parametrize("step", [1, 7, 12])
def test_one_loss_changed_by_hand_is_named_with_its_rank_and_step(
    step: int, copy_run: CopyRun
) -> None:
    folder = copy_run("healthy")
    file = folder / "heartbeat_rank1.jsonl"
    lines = [json.loads(line) for line in file.read_bytes().splitlines()]
    for line in lines:
        if line["msg"] == "progress" and line["step"] == step:
            line["loss"] += 1e-9
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = replay_decision(golden("healthy"), folder)
    assert not found.equal
    assert found.path is not None
    assert found.path.startswith("facts.ranks.1.blocks.")
    assert f"steps {step} to {step}" in found.text
    assert found.recorded != found.found
    assert replay_decision(golden("healthy"), folder, facts_only=True).equal


def rewritten(folder: Path, name: str, **fields: Any) -> None:
    file = folder / name
    file.write_text(json.dumps({**json.loads(file.read_text()), **fields}))


TAMPERED = [
    ("exit.json", {"code": 1}, "facts.exit.code"),
    ("exit.json", {"reason": "stalled"}, "facts.outcome.class"),
    ("preflight/preflight.json", {"passed": False}, "facts.preflight.passed"),
]


@pytest.mark.parametrize(("name", "fields", "path"), TAMPERED)
def test_a_changed_record_is_named(
    name: str, fields: dict[str, Any], path: str, copy_run: CopyRun
) -> None:
    folder = copy_run("healthy")
    rewritten(folder, name, **fields)
    assert replay_decision(golden("healthy"), folder).path == path


def test_a_finding_that_the_watch_does_not_come_to_is_named(copy_run: CopyRun) -> None:
    folder = copy_run("stalled")
    ticks = (folder / "watch.jsonl").read_bytes().splitlines(keepends=True)
    (folder / "watch.jsonl").write_bytes(b"".join(ticks[: len(ticks) // 2]))
    found = replay_decision(golden("stalled"), folder)
    assert (found.equal, found.checked[-1]) == (False, "watch")
    assert found.path is not None
    assert found.path.startswith("findings.")
    assert found.found == "(absent)"


@pytest.mark.parametrize(("code", "equal"), [("keeper_lost", True), ("stalled", False)])
def test_a_watcher_that_died_with_its_run_may_have_found_more_than_it_wrote(
    code: str, equal: bool, copy_run: CopyRun
) -> None:
    folder = copy_run("stalled")
    (folder / "findings.jsonl").write_bytes(b"")
    rewritten(folder, "exit.json", reason=code, ended_by="infra")
    decision = decision_about(folder)
    assert replay_decision(decision, folder).equal is equal


DECISION_FIELDS = [
    ({"verdict": "NO_GO"}, "verdict"),
    ({"diagnosis": "gremlins"}, "diagnosis"),
]


@pytest.mark.parametrize(("fields", "path"), DECISION_FIELDS)
def test_a_decision_that_its_facts_do_not_come_to_is_named_even_when_sealed_again(
    fields: dict[str, Any], path: str
) -> None:
    forged = Decision.model_validate(
        {**golden("healthy").model_dump(mode="json"), **fields}
    ).sealed()
    found = replay_decision(forged, None, facts_only=True)
    assert (found.equal, found.path) == (False, path)


@pytest.mark.parametrize("name", ["facts", "rules"])
def test_changed_facts_or_rules_do_not_fit_their_digest(name: str) -> None:
    document = golden("healthy").model_dump(mode="json")
    document[name] = {**document[name], "world_size": 3}
    found = replay_decision(Decision.model_validate(document), None, facts_only=True)
    assert found.path == ("facts_digest" if name == "facts" else "rule_digest")


def test_a_changed_reason_breaks_the_seal() -> None:
    changed = golden("healthy").model_copy(update={"reason": "because"})
    assert replay_decision(changed, None, facts_only=True).path == "hash"


def test_without_the_run_directory_it_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="--facts-only"):
        replay_decision(golden("healthy"), tmp_path / "none")
    with pytest.raises(NotFound, match="--facts-only"):
        replay_decision(golden("healthy"), None)


def test_an_end_that_only_the_control_plane_knew_does_not_differ(copy_run: CopyRun) -> None:
    folder = copy_run("healthy")
    document = golden("healthy").model_dump(mode="json")
    facts = document["facts"]
    facts["outcome"] = {"code": "worker_lost", "actor": "infra", "class": "infra"}
    (folder / "exit.json").unlink()
    found = replay_decision(_resealed(document), folder)
    assert found.equal, found.text


def decision_about(folder: Path) -> Decision:
    """The decision about a run directory as it stands."""
    record = load_run(folder)
    rules = build_rules(record.order)
    facts = build_facts(record, rules)
    return _resealed({"id": "dec_1", "rules": rules, "facts": facts})


def _resealed(document: dict[str, Any]) -> Decision:
    """The decision that the facts of a document come to."""
    return build_decision(
        id=document["id"], seq=1, experiment="exp_1", phase="smoke", run="run_1",
        judgement=judge(document["facts"], document["rules"]), rules=document["rules"],
        facts=document["facts"], at=AT,
    )  # fmt: skip


def test_the_word_of_a_person_and_of_a_condition_is_checked_by_digest_and_chain() -> None:
    first = golden("conditional")
    human = build_human_decision(
        id="dec_2", seq=2, experiment=first.experiment, phase="smoke", run=None,
        verdict=Verdict.GO, actor="ana", reason="seen", at=AT, prev_hash=first.hash,
    )  # fmt: skip
    (row,) = conditions_of([first])
    condition = build_condition_decision(
        id="dec_3", seq=3, experiment=first.experiment, phase="smoke", run=None,
        verdict=Verdict.CONDITIONAL_GO, conditions=[waived(row.condition)], at=AT,
        prev_hash=human.hash,
    )  # fmt: skip
    for decision in (human, condition):
        assert replay_decision(decision, None).equal
        forged = decision.model_copy(update={"verdict": Verdict.NO_GO})
        assert replay_decision(forged, None).path == "hash"
    assert check_chain([first, human, condition]).equal
    assert check_chain([first, condition]).path == "decisions.2.prev_hash"
    assert check_chain([human]).path == "decisions.1.prev_hash"
    assert check_chain([first, human.model_copy(update={"reason": "x"})]).path == (
        "decisions.2.hash"
    )


def test_a_decision_file_finds_its_run_beside_it(copy_run: CopyRun, tmp_path: Path) -> None:
    decision = golden("healthy")
    (copy_run("healthy")).rename(tmp_path / "runs" / str(decision.run))
    file = tmp_path / "decisions" / f"{decision.id}.json"
    save_json(file, decision.model_dump(mode="json"))
    loaded = load_decision(file)
    assert replay_decision(loaded, run_dir_of(loaded, file)).equal


def test_a_file_that_is_no_decision_says_so(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text("{}")
    with pytest.raises(Corrupt):
        load_decision(tmp_path / "x.json")
    with pytest.raises(NotFound):
        load_decision(tmp_path / "y.json")


DIFFERENCES = [
    ({"a": 1}, {"a": 1}, None),
    ({"a": 1, "b": 2}, {"a": 1, "b": 3}, "b"),
    ({"a": [1, {"x": 2}]}, {"a": [1, {"x": 3}]}, "a.1.x"),
    ({"a": [1]}, {"a": [1, 2]}, "a.1"),
    ({"a": 1}, {}, "a"),
    ({"a": 1}, {"a": True}, "a"),
    ({"a": None}, {"a": 0}, "a"),
]


@pytest.mark.parametrize(("left", "right", "path"), DIFFERENCES)
def test_the_first_differing_path(left: Any, right: Any, path: str | None) -> None:
    found = first_difference(left, right)
    assert (None if found is None else found.path) == path
