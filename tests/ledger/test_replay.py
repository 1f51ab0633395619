"""Every decision replays for ever; whatever was changed by hand is named."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gonogo.contract.canonical import wire_line
from gonogo.contract.criterion import Criterion
from gonogo.contract.decision import Cause, Condition, ConditionState, DecisionKind, Verdict
from gonogo.contract.errors import NotFound
from gonogo.contract.facts import Measure
from gonogo.contract.ids import Kind, new_id
from gonogo.contract.order import JUDGE_VERSION, RunReason
from gonogo.judge.directory import judge_directory
from gonogo.judge.facts.facts import build_facts
from gonogo.judge.facts.record import load_order, load_run
from gonogo.judge.gate.conditions import waived
from gonogo.judge.gate.criteria import evaluate
from gonogo.judge.gate.rules import build_rules
from gonogo.judge.gate.verdict import judge
from gonogo.ledger import v1
from gonogo.ledger.again import judge_again, read_again
from gonogo.ledger.chain import Authority
from gonogo.ledger.difference import first_difference
from gonogo.ledger.places import place_of
from gonogo.ledger.recorded import RecordedDecision, load_decision, record_of
from gonogo.ledger.replay import ReplayResult, Surroundings, replay_decision
from gonogo.ledger.seal import Place, append, by_person, judged, settled
from gonogo.rundir import RunDir, save_json
from gonogo.watch.detectors.non_finite import NonFinite
from gonogo.watch.detectors.process_death import ProcessDeath
from gonogo.watch.detectors.stall import Stall
from gonogo.watch.registry import REGISTRY, RELEASE_0_1
from tests.data.make_runs import HERE, STEPS, exit_of, healthy_ranks, order_of, save_run
from tests.judge.conftest import CopyRun
from tests.judge.runs import with_gate
from tests.ledger.chains import (
    AUTHORITY,
    HOMES,
    KEY,
    RELEASE,
    chain,
    changed_since_the_example,
    edited,
    entry_of,
    judged_anew,
    place,
    present,
    release,
    resealed,
)

GOLDEN = sorted((HERE / "decisions").glob("v*_*.json"))
OLD = [(home, number) for home in HOMES for number in range(len(release(home)))]


def around(rows: list[RecordedDecision], recorded: RecordedDecision, runs: Path) -> Surroundings:
    """Everything that lies around a decision of a chain."""
    run = recorded.decision.run
    return Surroundings(
        run_dir=runs / run if run else None,
        siblings=[row for row in rows if row.id != recorded.id],
        authority=AUTHORITY if recorded.decision.v > 1 else None,
    )


def replayed(home: str, number: int, *, old: bool = False) -> ReplayResult:
    """One decision of a home, replayed with all that lies around it."""
    rows = release(home) if old else chain(home)
    return replay_decision(rows[number], around(rows, rows[number], RELEASE / home / "runs"))


@pytest.mark.parametrize(("home", "number"), OLD)
def test_every_decision_of_release_1_replays_in_both_halves(home: str, number: int) -> None:
    found = replayed(home, number, old=True)
    assert found.equal, found.text
    parts = ("rule", "facts", "hash", "chain", "decision", "run_directory", "order", "watch")
    assert found.checked == parts
    assert found.not_verified == ("who recorded it: it is not signed", RULES_SINCE)


@pytest.mark.parametrize("file", GOLDEN, ids=lambda file: file.stem)
def test_a_golden_decision_replays_for_ever(file: Path) -> None:
    found = replay_decision(load_decision(file), facts_only=True)
    assert found.equal, found.text
    assert found.checked == ("rule", "facts", "hash", "decision")


@pytest.mark.parametrize(
    ("judged_by", "ordered_by", "equal"),
    [(2, 2, True), (3, 2, True), (3, 3, True), (2, 3, False), (1, 2, False)],
)
def test_a_decision_replays_by_its_own_judge_and_none_older_than_its_order(
    judged_by: int, ordered_by: int, equal: bool, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    order = order_of().model_copy(update={"judge_version": ordered_by})
    ranks = healthy_ranks(order)
    save_run(folder, order, ranks, exit_of(ranks))
    found = replay_decision(decided_by(judged_by, folder), Surroundings(run_dir=folder))
    assert found.equal is equal, found.text
    assert equal or found.path == "rules.judge_version"


def decided_by(version: int, folder: Path) -> RecordedDecision:
    """The decision that the judge of a version makes about a directory."""
    order = load_order(RunDir(folder))
    assert order is not None
    place = Place(id=new_id(Kind.DECISION), experiment="", phase=None, run=order.run, at="")
    if version == 1:
        record = v1.record.load_run(folder)
        rules = {**v1.rules.build_rules(record.order, []), "judge_version": 1}
        facts = v1.facts.build_facts(record, rules)
        said = {"rules": rules, "facts": facts, "judge_version": 1, **judge_again(facts, rules)}
        base = append(by_person(Verdict.GO, actor="ann", reason=""), place, None)
        return resealed(record_of({**base.document, "kind": "auto", **said}))
    record = load_run(folder, facts_v=version)
    rules = build_rules(record.order, judge_version=version)
    facts = build_facts(record, rules)
    assert facts.v == version
    return append(judged(judge(facts, rules), rules, facts), place, None)


@pytest.mark.parametrize(("outcome", "said"), [("completed", "GO"), ("cancelled", "no verdict")])
def test_a_decision_that_comes_to_no_verdict_says_so(
    outcome: str, said: str, tmp_path: Path
) -> None:
    ranks = healthy_ranks(order_of())
    save_run(tmp_path / "run", order_of(), ranks, exit_of(ranks, reason=outcome))
    recorded = decided_by(order_of().judge_version, tmp_path / "run")
    found = replay_decision(recorded, Surroundings(run_dir=tmp_path / "run"))
    assert (found.equal, found.text) == (True, f"{said}: the same")


SINCE = sorted(row.name for row in REGISTRY if row.name in RELEASE_0_1 and row.version > 1)
RULES_SINCE = f"findings of {', '.join(SINCE)}: their rule has changed since"


def test_the_golden_decisions_have_every_kind_of_verdict_but_one() -> None:
    assert {load_decision(file).verdict for file in GOLDEN} == {"GO", "NO_GO", "CONDITIONAL_GO"}


@pytest.mark.parametrize(("home", "number"), OLD)
def test_a_signed_decision_replays_with_its_signature_and_chain(home: str, number: int) -> None:
    found = replayed(home, number)
    assert found.equal, found.text
    assert {"signature", "chain", "order", "run_directory"} <= set(found.checked)
    assert found.not_verified == (RULES_SINCE,)


def test_what_nobody_can_show_is_said() -> None:
    recorded = chain()[1]
    alone = replay_decision(recorded, facts_only=True)
    assert (alone.equal, alone.path) == (False, "signature")
    assert "no public key" in alone.text
    assert [text.partition(":")[0] for text in alone.not_verified] == [
        "who recorded it",
        "its chain",
    ]
    gap = Surroundings(siblings=[chain()[3]], authority=AUTHORITY)
    texts = replay_decision(recorded, gap, facts_only=True).not_verified
    assert len(texts) == 2
    assert "decision 1 of" in texts[0]
    assert "decision 3 of" in texts[1]


BROKEN_CHAINS: dict[str, Callable[[list[RecordedDecision]], list[RecordedDecision]]] = {
    "the one before was changed": lambda rows: [edited(rows[0], reason="x"), *rows[2:]],
    "the one before was changed and sealed again": lambda rows: [
        resealed(rows[0], reason="x"),
        *rows[2:],
    ],
    "the one after was made after another": lambda rows: [
        rows[0],
        resealed(rows[2], prev_hash="0" * 64),
    ],
    "a second one has its number": lambda rows: [
        rows[0],
        resealed(rows[1], id="dec_other", actor="bob"),
    ],
}


@pytest.mark.parametrize("name", BROKEN_CHAINS)
def test_a_broken_chain_is_a_difference_even_without_a_key(name: str) -> None:
    rows = chain()
    siblings = BROKEN_CHAINS[name](rows)
    found = replay_decision(rows[1], Surroundings(siblings=siblings), facts_only=True)
    assert not found.equal
    assert found.path is not None
    assert found.path.startswith("chain.")


def test_who_has_no_key_cannot_seal_a_decision_again() -> None:
    rows = chain("hang")
    forged = resealed(rows[2], reason="looks fine")
    for around in (None, Surroundings(authority=Authority()), Surroundings(authority=AUTHORITY)):
        found = replay_decision(forged, around, facts_only=True)
        assert (found.equal, found.path) == (False, "signature")
    bare = resealed(rows[2], reason="looks fine", key_id=None, signature=None)
    found = replay_decision(bare, Surroundings(authority=AUTHORITY), facts_only=True)
    assert (found.equal, found.path) == (False, "signature")


def test_the_word_of_a_person_is_checked_by_digest_chain_and_signature_and_no_more() -> None:
    rows = chain()
    person = rows[-1]
    found = replay_decision(person, Surroundings(siblings=rows[:-1], authority=AUTHORITY))
    assert found.equal, found.text
    assert "nothing but his word" in found.not_verified[0]
    forged = resealed(person, verdict="GO", actor="bob")
    found = replay_decision(forged, Surroundings(siblings=rows[:-1], authority=AUTHORITY))
    assert found.path == "signature"


DECISION_FIELDS = [
    ({"verdict": "GO"}, "verdict"),
    ({"diagnosis": "gremlins"}, "diagnosis"),
    ({"criteria": []}, "criteria.0"),
    ({"judge_version": 2}, "judge_version"),
    ({"phase": "production"}, "phase"),
]


@pytest.mark.parametrize(("fields", "path"), DECISION_FIELDS)
def test_a_decision_that_its_facts_do_not_come_to_is_named_even_when_sealed_again(
    fields: dict[str, Any], path: str
) -> None:
    found = replay_decision(resealed(release("hang")[2], **fields), facts_only=True)
    assert (found.equal, found.path) == (False, path)


def test_a_decision_about_a_run_of_another_experiment_differs() -> None:
    recorded = release("hang")[2]
    around = Surroundings(run_dir=RELEASE / "hang" / "runs" / str(recorded.decision.run))
    found = replay_decision(resealed(recorded, experiment="exp_another"), around)
    assert (found.equal, found.path) == (False, "experiment")
    assert found.found == recorded.decision.experiment


@pytest.mark.parametrize("facts_only", [True, False])
@pytest.mark.parametrize("version", [1, 2, JUDGE_VERSION])
def test_a_decision_that_was_moved_to_another_run_differs(
    version: int, facts_only: bool, tmp_path: Path
) -> None:
    """Its evidence may lie in that one's directory, too; rules of release 0.1 name no run."""
    order = order_of().model_copy(update={"judge_version": version})
    ranks = healthy_ranks(order)
    save_run(tmp_path / "run_9", order, ranks, exit_of(ranks))
    moved = resealed(decided_by(version, tmp_path / "run_9"), run="run_9")
    found = replay_decision(moved, Surroundings(run_dir=tmp_path / "run_9"), facts_only=facts_only)
    if version == 1 and facts_only:
        assert found.equal, found.text
    else:
        assert (found.path, found.recorded, found.found) == ("run", "run_9", order.run)


@pytest.mark.parametrize("built_in", [[], ["completed"]])
def test_rules_without_a_built_in_criterion_are_named_from_recorded_facts_alone(
    built_in: list[str],
) -> None:
    recorded = judged_anew(release("hang")[2], rules=hang_rules(built_in=built_in))
    found = replay_decision(recorded, facts_only=True)
    assert (found.equal, found.path) == (False, "rules.built_in")


# Rules that the forger chose for himself (the decision says what they come to, and is resealed).


def hang_rules(**fields: Any) -> dict[str, Any]:
    return {**release("hang")[2].document["rules"], **fields}


FORGED_RULES = [
    ({"built_in": []}, "rules.built_in"),
    ({"built_in": ["completed"]}, "rules.built_in"),
    ({"gate": []}, "rules.gate.0"),
    ({"steps": 10}, "rules.steps"),
    ({"world_size": 1}, "rules.world_size"),
    ({"params_tolerance_ratio": 9.0}, "rules.params_tolerance_ratio"),
    ({"allow_drift": ["git_sha"]}, "rules.allow_drift.0"),
    ({"watch": {}}, "rules.watch.alive_lost.halt_s"),
    ({"phases_after": []}, "rules.phases_after.0"),
]


@pytest.mark.parametrize(("fields", "path"), FORGED_RULES)
def test_rules_are_derived_from_the_order_and_compared(fields: dict[str, Any], path: str) -> None:
    home = RELEASE / "hang" / "runs"
    recorded = release("hang")[2]
    forged = judged_anew(recorded, rules=hang_rules(**fields))
    found = replay_decision(forged, Surroundings(run_dir=home / str(recorded.decision.run)))
    assert not found.equal
    assert found.path is not None
    assert found.path.startswith(path.rpartition(".")[0])


@pytest.fixture
def copied(tmp_path: Path) -> Callable[[str, int], tuple[RecordedDecision, Path]]:
    """A decision of release 0.1 and a copy of its run directory."""

    def copy(home: str, number: int) -> tuple[RecordedDecision, Path]:
        recorded = release(home)[number]
        run = str(recorded.decision.run)
        return recorded, Path(shutil.copytree(RELEASE / home / "runs" / run, tmp_path / run))

    return copy


Copied = Callable[[str, int], tuple[RecordedDecision, Path]]


def rewritten(folder: Path, name: str, **fields: Any) -> None:
    file = folder / name
    file.write_text(json.dumps({**json.loads(file.read_text()), **fields}))


TAMPERED = [
    ("exit.json", {"code": 1}, "facts.exit.code"),
    ("exit.json", {"reason": "stalled"}, "facts.outcome.class"),
    ("exit.json", {"ranks": {}}, "facts.rank_exits.0"),
    ("preflight/preflight.json", {"passed": False}, "facts.preflight.passed"),
    ("order.json", {"steps": 4000}, "rules.steps"),
    ("order.json", {"gate": []}, "rules.gate.0"),
    ("order.json", {"identity": {}}, "rules.identity.config_digest"),
    ("order.json", {"reason": "remedy"}, "facts.history.remedy"),
    ("order.json", {"watch": {"stall": {"halt_s": 1e9}}}, "rules.watch.alive_lost.halt_s.source"),
]


@pytest.mark.parametrize(("name", "fields", "path"), TAMPERED)
def test_a_changed_record_is_named(
    name: str, fields: dict[str, Any], path: str, copied: Copied
) -> None:
    recorded, folder = copied("go", 3)
    rewritten(folder, name, **fields)
    if name == "exit.json" and "ranks" in fields:
        for file in folder.glob("exit_rank*.json"):
            file.unlink()
    found = replay_decision(recorded, Surroundings(run_dir=folder))
    assert found.path == path


UNREADABLE = ["order.json", "exit.json", "preflight/preflight.json", "findings.jsonl"]


@pytest.mark.parametrize("name", UNREADABLE)
@pytest.mark.parametrize("raw", [b"{", b"[]\n", b"\xff\n", b'{"ranks": {"x": {"at": 1}}}\n'])
def test_a_record_that_cannot_be_read_is_named_and_no_crash(
    name: str, raw: bytes, copied: Copied
) -> None:
    recorded, folder = copied("hang", 2)
    (folder / name).write_bytes(raw if name != "findings.jsonl" else raw + b"\n")
    found = replay_decision(recorded, Surroundings(run_dir=folder))
    assert not found.equal
    assert name.rpartition("/")[2] in found.text


@pytest.mark.parametrize("name", ["heartbeat_rank1.jsonl", "findings.jsonl"])
def test_lines_of_release_1_that_cannot_be_read_are_a_difference(name: str, copied: Copied) -> None:
    recorded, folder = copied("go", 3)
    (folder / name).unlink(missing_ok=True)
    (folder / name).symlink_to("/proc/self/mem")
    found = replay_decision(recorded, Surroundings(run_dir=folder))
    assert not found.equal
    assert "cannot be read: Input/output error" in found.text


@pytest.mark.parametrize("step", [1, 25, 50])
def test_one_loss_changed_by_hand_is_named_with_its_rank_and_step(
    step: int, copied: Copied
) -> None:
    recorded, folder = copied("go", 3)
    file = folder / "heartbeat_rank1.jsonl"
    lines = [json.loads(line) for line in file.read_bytes().splitlines()]
    for line in lines:
        if line["msg"] == "progress" and line["step"] == step:
            line["loss"] += 1e-9
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = replay_decision(recorded, Surroundings(run_dir=folder))
    assert not found.equal
    assert found.path is not None
    assert found.path.startswith("facts.ranks.1.blocks.")
    assert "heartbeat_rank1.jsonl" in found.text
    assert found.recorded != found.found
    assert replay_decision(recorded, Surroundings(run_dir=folder), facts_only=True).equal


PLACE = re.compile(
    r"\(heartbeat_rank1\.jsonl, boot boot1, seq (\d+) to (\d+), steps (\d+) to (\d+)\)"
)


@pytest.mark.parametrize("watched", [True, False])
@pytest.mark.parametrize("step", [1, 7, STEPS])
def test_a_changed_loss_of_the_present_release_is_named_with_its_boot_and_what_a_tick_brought(
    step: int, watched: bool, copy_run: CopyRun
) -> None:
    folder = copy_run("healthy")
    recorded = record_of(judge_directory(folder))
    file = folder / "heartbeat_rank1.jsonl"
    lines = [json.loads(line) for line in file.read_bytes().splitlines()]
    (changed,) = (row for row in lines if row["msg"] == "progress" and row["step"] == step)
    changed["loss"] += 1e-12
    file.write_bytes(b"".join(wire_line(line) for line in lines))
    path = "facts.ranks.1.blocks.0"
    if not watched:
        (folder / "watch.jsonl").unlink()
    text = place_of(path, folder, v1=False)
    place = PLACE.search(text)
    assert place is not None, text
    first, last, low, high = map(int, place.groups())
    assert first <= changed["seq"] <= last
    assert low <= step <= high
    assert (last - first < len(lines) // 4) is watched
    assert text in replay_decision(recorded, Surroundings(run_dir=folder)).text or not watched


def test_a_boot_that_is_not_there_has_no_place(copy_run: CopyRun) -> None:
    assert place_of("facts.ranks.1.blocks.1", copy_run("healthy"), v1=False) == ""
    assert place_of("facts.ranks.1.digest", Path("nowhere"), v1=False) == ""


def test_fields_that_heartbeats_have_gained_since_change_no_old_decision(copied: Copied) -> None:
    recorded, folder = copied("go", 3)
    for file in folder.glob("heartbeat_rank*.jsonl"):
        lines = [json.loads(line) for line in file.read_bytes().splitlines()]
        more = {"run": "run_1", "attempt": 1, "torch": "2.13", "device": "cpu", "driver": "x"}
        file.write_text("".join(json.dumps({**line, **more}) + "\n" for line in lines))
    found = read_again(folder, recorded.document["rules"], None)
    assert first_difference(recorded.document["facts"], found.facts) is None


def test_a_finding_that_the_watch_does_not_come_to_is_named(copied: Copied) -> None:
    recorded, folder = copied("nan", 2)
    invented = {"detector": "identity", "severity": "warn", "at": 1.0, "key": "k", "text": "odd"}
    with (folder / "findings.jsonl").open("ab") as stream:
        stream.write(wire_line(invented))
    seen = replay_decision(recorded, Surroundings(run_dir=folder))
    assert not seen.equal
    assert (seen.path or "").startswith("facts.findings")
    facts = v1.facts.build_facts(v1.record.load_run(folder), recorded.document["rules"])
    forged = judged_anew(recorded, facts=facts)
    found = replay_decision(forged, Surroundings(run_dir=folder))
    assert (found.equal, found.checked[-1]) == (False, "watch")
    assert found.path is not None
    assert found.path.startswith("findings.")


def around_run(name: str) -> Surroundings:
    return Surroundings(run_dir=HERE / "runs" / name, siblings=[], authority=AUTHORITY)


def test_a_rule_that_changes_later_changes_no_decision(monkeypatch: pytest.MonkeyPatch) -> None:
    decisions = {name: present(name) for name in ("healthy", "stalled")}
    monkeypatch.setattr(Stall, "observe_tick", lambda self, own, tick, view: (own, []))
    assert replay_decision(decisions["healthy"], around_run("healthy")).equal
    silent = replay_decision(decisions["stalled"], around_run("stalled"))
    assert not silent.equal
    monkeypatch.setattr(Stall, "version", Stall.version + 1)
    for name, recorded in decisions.items():
        found = replay_decision(recorded, around_run(name))
        assert found.equal, found.text
        (text,) = found.not_verified
        said = text.removeprefix("findings of ").removesuffix(": their rule has changed since")
        assert set(said.split(", ")) == changed_since_the_example(name)
        assert "stall" in said


def test_beside_a_changed_rule_another_detectors_findings_are_still_compared(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    recorded = present("non_finite")
    monkeypatch.setattr(Stall, "version", Stall.version + 1)
    monkeypatch.setattr(ProcessDeath, "version", 2)  # the example's: it halts where none else does
    monkeypatch.setattr(NonFinite, "version", 2)  # the example's, too
    assert replay_decision(recorded, around_run("non_finite")).equal
    monkeypatch.setattr(NonFinite, "observe_line", lambda self, own, beat, view: (own, []))
    found = replay_decision(recorded, around_run("non_finite"))
    assert (found.equal, (found.path or "").split(".")[:2]) == (False, ["facts", "findings"])


@pytest.mark.parametrize("code", ["worker_lost", "superseded", "keeper_lost"])
def test_an_end_that_only_the_control_plane_knew_does_not_differ_and_is_said(
    code: str, copied: Copied
) -> None:
    recorded, folder = copied("go", 3)
    (folder / "exit.json").unlink()
    klass = {"superseded": ("operator", "operator")}.get(code, ("infra", "infra"))
    ended = {"code": code, "actor": klass[0], "class": klass[1]}
    forged = judged_anew(recorded, facts={**recorded.document["facts"], "outcome": ended})
    found = replay_decision(forged, Surroundings(run_dir=folder))
    assert found.equal, found.text
    assert any("the control plane's word" in text for text in found.not_verified)


@pytest.mark.parametrize("code", ["worker_lost", "superseded"])
@pytest.mark.parametrize("later", ["none", "another"])
def test_of_the_present_release_an_end_of_the_control_plane_does_not_differ_either(
    code: str, later: str, copy_run: CopyRun
) -> None:
    recorded, folder, own = ended_by_service(copy_run("healthy"), code)
    if later == "another":  # its host was not dead, and its keeper wrote an end
        (folder / "exit.json").write_bytes(own)
    found = replay_decision(recorded, Surroundings(run_dir=folder))
    assert found.equal, found.text
    assert any("the control plane's word" in text for text in found.not_verified)
    (folder / "heartbeat_rank1.jsonl").unlink()
    assert not replay_decision(recorded, Surroundings(run_dir=folder)).equal


@pytest.mark.parametrize(("code", "equal"), [("non_finite", True), ("stalled", False)])
def test_nor_does_the_end_that_it_wrote_of_a_run_which_had_failed_by_its_own_lines(
    code: str, equal: bool, copy_run: CopyRun
) -> None:
    recorded, folder, _ = ended_by_service(copy_run("non_finite"), code)
    assert recorded.verdict is Verdict.NO_GO
    found = replay_decision(recorded, Surroundings(run_dir=folder))
    assert found.equal is equal
    assert any("the control plane's word" in text for text in found.not_verified) is equal


def ended_by_service(folder: Path, code: str) -> tuple[RecordedDecision, Path, bytes]:
    """The decision about a run whose end the control plane wrote; no exit.json is left there."""
    path, ticks = folder / "exit.json", folder / "watch.jsonl"
    own, order = path.read_bytes(), json.loads((folder / "order.json").read_bytes())
    lines = ticks.read_text().splitlines(keepends=True)
    ticks.write_text("".join(line for line in lines if "exit.json" not in line))
    actor = {"worker_lost": "infra", "superseded": "operator"}.get(code, "watchdog")
    end = {name: json.loads(own)[name] for name in ("v", "ended_at", "run", "attempt")}
    assert end["run"] == order["run"]
    save_json(path, {**end, "ended_by": actor, "reason": code})
    recorded = record_of(judge_directory(folder))
    path.unlink()
    return recorded, folder, own


def test_an_end_of_infrastructure_that_the_directory_contradicts_is_named(copied: Copied) -> None:
    recorded, folder = copied("hang", 2)
    ended = {"code": "keeper_lost", "actor": "infra", "class": "infra"}
    forged = judged_anew(recorded, facts={**recorded.document["facts"], "outcome": ended})
    found = replay_decision(forged, Surroundings(run_dir=folder))
    assert (found.equal, found.path) == (False, "facts.outcome.actor")


# Other runs.


def confirmed(
    copied: Copied, tmp_path: Path, *, order: Mapping[str, str] | None = None, **said: Any
) -> tuple[RecordedDecision, Path]:
    """The decision about the hang, saying that a rerun came to something.

    `order` is what the rerun's order has otherwise than it should, of experiment, phase and run.
    """
    recorded, folder = copied("hang", 2)
    other = release("go")[3]
    shutil.copytree(RELEASE / "go" / "runs" / str(other.decision.run), tmp_path / "run_other")
    own = json.loads((folder / "order.json").read_text())
    whose = {name: own[name] for name in ("experiment", "phase")}
    path = tmp_path / "run_other" / "order.json"
    whose |= {"run": "run_other", "attempt": own["attempt"] + 1}
    save_json(path, {**json.loads(path.read_text()), **whose, **(order or {})})
    row = {"run": "run_other", "variant": None, "verdict": "GO", "code": "completed", **said}
    facts = {**recorded.document["facts"], "history": {"confirmations": [row]}}
    return judged_anew(recorded, facts=facts), folder


def test_the_runs_that_a_history_names_are_judged_again(copied: Copied, tmp_path: Path) -> None:
    forged, folder = confirmed(copied, tmp_path)
    assert forged.verdict == "CONDITIONAL_GO"
    found = replay_decision(forged, Surroundings(run_dir=folder))
    assert found.equal, found.text
    assert "history" in found.checked


def test_a_run_that_a_history_calls_undecided_is_judged_again(
    copied: Copied, tmp_path: Path
) -> None:
    """Here it came to GO."""
    recorded, folder = confirmed(copied, tmp_path)
    row = {"run": "run_other", "criteria": ["speed"]}
    facts = {**recorded.document["facts"], "history": {"undecided": [row]}}
    forged = judged_anew(recorded, facts=facts)
    found = replay_decision(forged, Surroundings(run_dir=folder))
    assert (found.equal, found.path) == (False, "facts.history.undecided.0.verdict")


@pytest.mark.parametrize(
    ("code", "criteria", "path"),
    [
        ("completed", [], None),
        ("completed", ["speed"], "facts.history.failed_before.0.criteria.0"),
        ("completed", ["smoke:speed"], None),
        ("keeper_lost", ["speed"], None),
    ],
    ids=["nothing", "what it had not", "a condition that was waived", "it has another end"],
)
def test_what_a_history_says_that_a_run_had_failed_is_measured_again(
    code: str, criteria: list[str], path: str | None, copied: Copied, tmp_path: Path
) -> None:
    """Here it came to its end."""
    recorded, folder = confirmed(copied, tmp_path)
    row = {"run": "run_other", "code": code, "criteria": criteria}
    facts = {**recorded.document["facts"], "history": {"failed_before": [row]}}
    found = replay_decision(judged_anew(recorded, facts=facts), Surroundings(run_dir=folder))
    assert (found.equal, found.path) == (path is None, path)
    unsure = [
        any(text in row for row in found.not_verified)
        for text in ("its directory has another end", "by 'smoke:speed': it is open no more")
    ]
    assert unsure == [code != "completed", criteria == ["smoke:speed"]]


@pytest.mark.parametrize("said", [{"verdict": "CONDITIONAL_GO"}, {"code": "stalled"}])
def test_a_history_that_its_runs_do_not_come_to_is_named(
    said: dict[str, Any], copied: Copied, tmp_path: Path
) -> None:
    forged, folder = confirmed(copied, tmp_path, **said)
    found = replay_decision(forged, Surroundings(run_dir=folder))
    assert (found.equal, found.path) == (
        False,
        f"facts.history.confirmations.0.{next(iter(said))}",
    )


@pytest.mark.parametrize("field", ["experiment", "phase", "run"])
def test_another_run_confirms_nothing_though_its_directory_has_the_name(
    field: str, copied: Copied, tmp_path: Path
) -> None:
    forged, folder = confirmed(copied, tmp_path, order={field: "other"})
    found = replay_decision(forged, Surroundings(run_dir=folder))
    assert (found.equal, found.path) == (False, f"facts.history.confirmations.0.run.{field}")


@pytest.mark.parametrize(
    "order", [{"attempt": 1}, {"reason": "remedy"}], ids=["ordered before", "a remedy"]
)
def test_a_run_that_was_not_ordered_as_a_rerun_confirms_nothing(
    order: dict[str, Any], copied: Copied, tmp_path: Path
) -> None:
    forged, folder = confirmed(copied, tmp_path, order=order)
    found = replay_decision(forged, Surroundings(run_dir=folder))
    assert (found.equal, found.path) == (False, "facts.history.confirmations.0.rerun")


@pytest.mark.parametrize("run", ["run_none", "../run_other", "", 7])
def test_a_history_of_runs_that_are_not_there_is_not_verified(
    run: Any, copied: Copied, tmp_path: Path
) -> None:
    forged, folder = confirmed(copied, tmp_path, run=run)
    found = replay_decision(forged, Surroundings(run_dir=folder))
    assert found.equal
    assert any("which the history names" in text for text in found.not_verified)


def test_a_history_of_runs_that_were_pruned_is_not_verified(copied: Copied, tmp_path: Path) -> None:
    forged, folder = confirmed(copied, tmp_path)
    (tmp_path / "run_other" / "pruned.json").write_text('{"v": 1, "what": "all", "at": 0}')
    found = replay_decision(forged, Surroundings(run_dir=folder))
    assert found.equal
    assert any("it was pruned on 1970-01-01" in text for text in found.not_verified)


def test_conditions_in_the_rules_are_those_that_the_decisions_before_left_open() -> None:
    rows = release("go")
    condition = {"id": "smoke:fast", "text": "", "criterion": "fast", "evidence_from": "extended",
                 "due": "production", "on_miss": "no_go", "state": "open"}  # fmt: skip
    rules = rows[3].document["rules"]
    rules = {**rules, "conditions": [{"condition": condition, "criterion": rules["gate"][1]}]}
    measures = rows[3].document["facts"]["measures"]
    facts = {
        **rows[3].document["facts"],
        "measures": {**measures, "smoke:fast": measures["learning"]},
    }
    forged = judged_anew(rows[3], rules=rules, facts=facts)
    folder = RELEASE / "go" / "runs" / str(forged.decision.run)
    found = replay_decision(forged, Surroundings(run_dir=folder, siblings=rows[:3]))
    assert (found.equal, found.path) == (False, "rules.conditions")
    found = replay_decision(forged, Surroundings(run_dir=folder, siblings=rows[:2]))
    assert found.equal
    assert any("open conditions" in text for text in found.not_verified)


@pytest.mark.parametrize("waived", [False, True], ids=["", "waived meanwhile"])
@pytest.mark.parametrize("told", [True, False], ids=["told", "left out"])
def test_rules_without_a_condition_that_an_earlier_phase_left_open_are_a_difference(
    told: bool, waived: bool
) -> None:
    """Where its row in the database was edited meanwhile, the service signed a GO without it."""
    folder, made = HERE / "runs" / "healthy", present("healthy")
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
    first = append(before, place([], "sanity", None, experiment=decision.experiment), None)
    siblings = [first]
    if waived:  # by a person, once the run had been judged
        end = [Condition.model_validate({**left, "state": "waived"})]
        entry = replace(before, kind=DecisionKind.HUMAN, verdict=Verdict.GO, conditions=end)
        where = place(siblings, "sanity", None, experiment=decision.experiment)
        siblings.append(append(entry, replace(where, supersedes=first.id), None))
    if told:
        rules = {**rules, "conditions": [{"condition": left, "criterion": kept}]}
        facts = {
            **facts,
            "measures": {**facts["measures"], "sanity:kept": facts["measures"][row["id"]]},
        }
    last = siblings[-1].decision
    more = {"seq": last.seq + 1, "prev_hash": last.hash, "id": new_id(Kind.DECISION)}
    unsigned = {"key_id": None, "signature": None}
    forged = judged_anew(made, rules=rules, facts=facts, **more, **unsigned)
    found = replay_decision(forged, Surroundings(run_dir=folder, siblings=siblings))
    equal = told or waived
    assert (found.equal, found.path) == (equal, None if equal else "rules.conditions"), found.text


# Conditions.

CRITERION = {"id": "fast", "metric": "toks_per_s", "pass_above": 900.0, "severity": "conditional"}
MEASURE = {
    "window": "1..12",
    "ranks": {
        str(rank): {"samples": 12, "owed": 12, "non_finite": 0, "value": 1000.0, "low": 1000.0,
                    "high": 1000.0}
        for rank in range(2)
    },
}  # fmt: skip
CONDITION = Condition(id="smoke:fast", text="slow", criterion="fast", evidence_from="extended")


def met(**measure: Any) -> RecordedDecision:
    """A decision that a condition was met, by a run that was this fast."""
    criterion = Criterion.model_validate(CRITERION)
    ranks = {rank: {**row, **measure} for rank, row in MEASURE["ranks"].items()}  # type: ignore[attr-defined]
    seen = {**MEASURE, "ranks": ranks}
    said = CONDITION.model_copy(update={"state": ConditionState.MET})
    entry = settled(
        [said],
        Verdict.GO,
        criteria=[evaluate(criterion, Measure.model_validate(MEASURE), 2)],
        rules={"world_size": 2, "criteria": {CONDITION.id: criterion.model_dump(mode="json")}},
        facts={"measures": {CONDITION.id: seen}},
    )
    rows = chain()
    return append(entry, place(rows, "extended", rows[3].decision.run), KEY)


def test_that_a_condition_was_met_replays_from_its_criterion_and_measure() -> None:
    found = replay_decision(met(), Surroundings(siblings=chain(), authority=AUTHORITY))
    assert found.equal, found.text
    assert "decision" in found.checked
    assert found.not_verified == ()


@pytest.mark.parametrize(
    ("measure", "path"),
    [({"value": 800.0, "low": 800.0, "high": 800.0}, "conditions"), ({"value": 950.0}, "criteria")],
)
def test_a_condition_that_its_measure_does_not_meet_is_named(
    measure: dict[str, Any], path: str
) -> None:
    found = replay_decision(met(**measure))
    assert not found.equal
    assert found.path is not None
    assert found.path.startswith(path)


@pytest.mark.parametrize("facts", [{}, {"measures": {}}, {"measures": {"smoke:fast": None}}])
def test_a_condition_without_its_measure_is_not_met(facts: dict[str, Any]) -> None:
    found = replay_decision(resealed(met(), facts=facts, criteria=[]))
    assert not found.equal
    assert found.path != "signature", "which nothing here can check"


def missed_by(value: float) -> RecordedDecision:
    """A decision that a condition was due and not met, by a run that was this fast."""
    criterion = Criterion.model_validate(CRITERION)
    bounds = {"value": value, "low": value, "high": value}
    ranks = {rank: {**row, **bounds} for rank, row in MEASURE["ranks"].items()}  # type: ignore[attr-defined]
    seen = {**MEASURE, "ranks": ranks}
    entry = settled(
        [CONDITION.model_copy(update={"state": ConditionState.MISSED})],
        Verdict.NO_GO,
        criteria=[evaluate(criterion, Measure.model_validate(seen), 2)],
        rules={"world_size": 2, "criteria": {CONDITION.id: criterion.model_dump(mode="json")}},
        facts={"measures": {CONDITION.id: seen}},
    )
    rows = chain()
    return append(entry, place(rows, "extended", rows[3].decision.run), KEY)


def test_that_a_condition_was_missed_replays_from_its_criterion_and_measure() -> None:
    around = Surroundings(siblings=chain(), authority=AUTHORITY)
    found = replay_decision(missed_by(800.0), around)
    assert found.equal, found.text
    assert "decision" in found.checked
    assert found.not_verified == ()
    found = replay_decision(missed_by(1000.0), around)
    assert (found.equal, found.path, found.recorded) == (False, "conditions", "missed")


@pytest.mark.parametrize(
    ("state", "asked", "bounds"),
    [
        (ConditionState.MISSED, {"pass_above": 900.0}, {"value": 800.0, "high": 850.0}),
        (ConditionState.MET, {"aggregate": "slope", "pass_below": 0.0}, {"value": 0.0}),
    ],
    ids=["a failure that was told without its value", "one sample, which had a slope of 0"],
)
def test_a_condition_is_settled_again_by_the_judge_that_settled_it(
    state: ConditionState, asked: dict[str, Any], bounds: dict[str, float]
) -> None:
    criterion = Criterion.model_validate({"id": "fast", "metric": "toks_per_s", **asked})
    row = {"samples": 1, "owed": 1, "non_finite": 0, "low": 0.0, "high": 0.0, **bounds}
    seen = {"window": "12..12", "ranks": {"0": row}}
    entry = settled(
        [CONDITION.model_copy(update={"state": state})],
        Verdict.NO_GO,
        criteria=[evaluate(criterion, Measure.model_validate(seen), 1, judge_version=3)],
        rules={"world_size": 1, "criteria": {CONDITION.id: criterion.model_dump(mode="json")}},
        facts={"measures": {CONDITION.id: seen}},
    )
    rows = chain()
    at, around = place(rows, "extended", None), Surroundings(siblings=rows, authority=AUTHORITY)
    found = replay_decision(append(replace(entry, judge_version=3), at, KEY), around)
    assert found.equal, found.text
    assert "decision" in found.checked
    assert not replay_decision(append(entry, at, KEY), around).equal


def test_a_condition_of_a_judge_that_nobody_knows_is_not_settled_again() -> None:
    entry = settled([CONDITION.model_copy(update={"state": ConditionState.MISSED})], Verdict.NO_GO)
    rows = chain()
    recorded = append(replace(entry, judge_version=99), place(rows, "smoke", None), KEY)
    found = replay_decision(recorded, Surroundings(siblings=rows, authority=AUTHORITY))
    assert not found.equal
    assert "judge_version is 99" in found.text


def test_a_missed_condition_that_nothing_measured_is_somebodys_word() -> None:
    rows = chain()
    late = CONDITION.model_copy(update={"state": ConditionState.MISSED})
    recorded = append(settled([late], Verdict.NO_GO), place(rows, "smoke", None), KEY)
    found = replay_decision(recorded, Surroundings(siblings=rows, authority=AUTHORITY))
    assert found.equal
    assert any("missed or waived" in text for text in found.not_verified)


def test_the_words_of_a_cause_decide_nothing_and_are_under_the_hash() -> None:
    recorded = present("stalled")
    assert "cause" not in recorded.document
    cause = Cause(text="rank 1 hung", rank=1, log="rank1.log", line="boom")
    entry = replace(entry_of(recorded), weakened=recorded.decision.weakened, cause=cause)
    said = append(entry, place([], "smoke", recorded.decision.run), KEY)
    assert said.document["cause"]["line"] == "boom"
    around = Surroundings(siblings=[], authority=AUTHORITY)
    assert replay_decision(said, around, facts_only=True).equal
    changed = edited(said, cause={**said.document["cause"], "line": "all fine"})
    found = replay_decision(changed, around, facts_only=True)
    assert (found.equal, found.path) == (False, "hash")


@pytest.mark.parametrize("state", [None, ConditionState.MISSED])
def test_a_no_go_is_no_go_by_being_called_a_decision_about_conditions(
    state: ConditionState | None,
) -> None:
    rows = [] if state is None else [CONDITION.model_copy(update={"state": state}).wire()]
    said = {"kind": "condition", "verdict": "GO", "conditions": rows, "rules": {}, "facts": {}}
    unsigned = resealed(present("stalled"), key_id=None, signature=None, **said)
    found = replay_decision(unsigned, Surroundings(run_dir=HERE / "runs" / "stalled"))
    assert (found.equal, found.path) == (False, "verdict" if rows else "conditions")


def test_a_waived_condition_is_somebodys_word() -> None:
    rows = chain()
    entry = settled([waived(CONDITION)], Verdict.GO, actor="ana", reason="seen")
    recorded = append(entry, place(rows, "smoke", None), KEY)
    found = replay_decision(recorded, Surroundings(siblings=rows, authority=AUTHORITY))
    assert found.equal
    assert any("waived" in text for text in found.not_verified)


def test_without_the_run_directory_it_says_what_to_do(tmp_path: Path) -> None:
    for folder in (tmp_path / "none", None):
        with pytest.raises(NotFound, match="--facts-only"):
            replay_decision(release("go")[3], Surroundings(run_dir=folder))


def test_an_unsigned_decision_of_release_1_is_a_difference_where_a_key_is_and_no_adoption() -> None:
    found = replay_decision(
        release("go")[0], Surroundings(authority=Authority(trust=AUTHORITY.trust)), facts_only=True
    )
    assert (found.equal, found.path) == (False, "signature")
    assert "no adoption record" in found.text


BEYOND: list[tuple[str, Any, str | None]] = [
    ("seq", 10**15, None),
    ("run", "a" * 5000, "run"),
    ("run", "a\0b", "run"),
    ("run", "../..", "run"),
]


@pytest.mark.parametrize(("name", "value", "path"), BEYOND, ids=lambda value: str(value)[:20])
def test_a_number_or_a_name_beyond_measure_is_named_and_no_crash(
    name: str, value: Any, path: str | None
) -> None:
    forged = resealed(present("healthy"), key_id=None, signature=None, **{name: value})
    run_dir = HERE / "runs" / "healthy" if name == "seq" else HERE / "runs" / value
    found = replay_decision(forged, Surroundings(run_dir=run_dir, siblings=[]))
    assert (found.equal, found.path) == (path is None, path)
    if path is None:
        assert any("open conditions" in text for text in found.not_verified)


def test_more_ranks_than_any_run_has_are_named_and_not_counted() -> None:
    recorded = present("healthy")
    rules = {**recorded.document["rules"], "world_size": 10**12}
    found = replay_decision(resealed(recorded, rules=rules), facts_only=True)
    assert (found.equal, found.path) == (False, "rules.world_size")


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


def test_a_go_whose_run_left_no_directory_is_no_evidence() -> None:
    """Of no ranks every one is well."""
    recorded = present("healthy")
    rules = {**recorded.document["rules"], "world_size": 0, "gate": []}
    rules["identity"] = {**rules["identity"], "world_size": None}
    nobody: dict[str, Any] = {name: {} for name in ("ranks", "boots", "identity", "rank_exits")}
    forged = judged_anew(recorded, rules=rules, facts={**recorded.document["facts"], **nobody})
    assert forged.verdict == "GO"
    with pytest.raises(NotFound):
        replay_decision(forged, Surroundings())


@pytest.mark.parametrize(
    ("ordered", "verdict", "path"),
    [
        (3, "NO_GO", None),
        (3, "INCONCLUSIVE", None),
        (3, "GO", "facts.history.confirmations.0.verdict"),
        (4, "INCONCLUSIVE", None),
        (4, "NO_GO", "facts.history.confirmations.0.verdict"),
    ],
)
def test_a_run_of_before_an_upgrade_that_a_history_names_may_have_been_judged_before_it(
    ordered: int, verdict: str, path: str | None, tmp_path: Path
) -> None:
    """One sample has no slope, says the judge since version 4; before, it had none that passed."""
    slope = {"metric": "val_loss", "aggregate": "slope", "warmup_steps": 6, "pass_below": -0.001}
    order = with_gate(order_of(), {"id": "slope", **slope}).model_copy(
        update={"run": "run_other", "attempt": 2, "judge_version": ordered}
    )
    ranks = healthy_ranks(order)
    save_run(tmp_path / "run_other", order, ranks, exit_of(ranks))
    shutil.copytree(HERE / "runs" / "healthy", tmp_path / "run")
    recorded = record_of(judge_directory(tmp_path / "run"))
    row = {"run": "run_other", "variant": None, "verdict": verdict, "code": "completed"}
    facts = {**recorded.document["facts"], "history": {"confirmations": [row]}}
    found = replay_decision(
        judged_anew(recorded, facts=facts), Surroundings(run_dir=tmp_path / "run")
    )
    assert (found.equal, found.path) == (path is None, path)


@pytest.mark.parametrize(
    ("said", "path"),
    [
        ({"until": STEPS}, None),
        ({}, "facts.history.confirmations.0.until"),
        ({"until": None}, "facts.history.confirmations.0.until"),
        ({"until": STEPS + 1}, "facts.history.confirmations.0.until"),
    ],
)
def test_a_rerun_that_was_made_to_end_early_is_told_as_one(
    said: dict[str, Any], path: str | None, tmp_path: Path
) -> None:
    """Told as a whole run that passed, it made a failure one that had not come again."""
    order = order_of()
    whole = {**order.train, "steps": 100}
    again = {"run": "run_other", "attempt": 2, "reason": RunReason.CONFIRM}
    order = order.model_copy(update={**again, "steps": STEPS, "train": whole})
    ranks = healthy_ranks(order)
    save_run(tmp_path / "run_other", order, ranks, exit_of(ranks))
    shutil.copytree(HERE / "runs" / "healthy", tmp_path / "run")
    recorded = record_of(judge_directory(tmp_path / "run"))
    alone = read_again(tmp_path / "run_other", recorded.document["rules"], None)
    assert alone.rules is not None
    verdict = judge_again(alone.facts, alone.rules)["verdict"]
    row = {"run": "run_other", "variant": None, "verdict": verdict, "code": "completed", **said}
    facts = {**recorded.document["facts"], "history": {"confirmations": [row]}}
    found = replay_decision(
        judged_anew(recorded, facts=facts), Surroundings(run_dir=tmp_path / "run")
    )
    assert (found.equal, found.path) == (path is None, path)
