"""Facts are small, exact, and the digest is that of the canonical heartbeats."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from gonogo.contract.canonical import canonical_bytes, digest
from gonogo.contract.decision import Decision
from gonogo.contract.facts import Facts
from gonogo.contract.heartbeat import parse_heartbeat
from gonogo.contract.order import RunReason
from gonogo.contract.outcome import Detector
from gonogo.contract.rules import Rules
from gonogo.judge.evidence.measure import MAX_BLOCKS, block_means
from gonogo.judge.gate.rules import build_rules
from tests.data.make_runs import HERE, healthy_ranks, non_finite_ranks, order_of
from tests.judge.runs import facts_of, finding, lines_of, record_of


@pytest.mark.parametrize("ranks", [healthy_ranks, non_finite_ranks])
def test_the_digest_is_that_of_the_chain_of_canonical_heartbeats(ranks: object) -> None:
    lines = lines_of(ranks(order_of()))[0]  # type: ignore[operator]
    chain = bytes(32)
    for line in lines:
        said = canonical_bytes(parse_heartbeat(line).canonical())
        chain = hashlib.sha256(chain + hashlib.sha256(said).digest()[:16]).digest()
    found = facts_of(record_of(lines={0: lines})).ranks["0"]
    assert found.digest == digest([["boot0", len(lines), chain.hex()]])


RECORDED = sorted(
    [*(HERE / "decisions").glob("*.json"), *(HERE / "releases").glob("*/*/decisions/*.json")]
)


@pytest.mark.parametrize("file", RECORDED, ids=lambda file: file.stem)
def test_recorded_facts_and_rules_are_read_and_written_without_a_change(file: Path) -> None:
    decision = Decision.model_validate_json(file.read_bytes())
    assert digest(Facts.model_validate(decision.facts).document()) == decision.facts_digest
    assert digest(Rules.model_validate(decision.rules).document()) == decision.rule_digest


def test_a_diverged_loss_beyond_every_exact_integer_is_a_fact_like_any_other() -> None:
    ranks = healthy_ranks(order_of())
    for line in ranks[0].lines:
        if line["msg"] == "progress":
            line["loss"] = 1e30 * line["step"]
            line["grad_norm"] = float(2**60)
    facts = facts_of(record_of(order_of(), ranks)).document()
    assert digest(json.loads(json.dumps(facts))) == digest(facts)


@pytest.mark.parametrize(
    ("count", "blocks"), [(0, 0), (1, 1), (64, 64), (65, 33), (640, 64), (50_000, 64)]
)
def test_there_are_at_most_sixty_four_block_means(count: int, blocks: int) -> None:
    assert len(block_means([1.0] * count)) == blocks <= MAX_BLOCKS


def test_facts_stay_small_however_long_the_run_was() -> None:
    short, long = (
        facts_of(record_of(order)).document()
        for order in (order_of(), order_of(sets={"phases.smoke.steps": 600}))
    )
    assert len(canonical_bytes(long)) < 1.5 * len(canonical_bytes(short))


def test_facts_survive_their_own_file() -> None:
    facts = facts_of(record_of())
    text = json.dumps(facts.document(), allow_nan=False)
    assert Facts.model_validate_json(text) == facts
    rules = build_rules(order_of())
    assert Rules.model_validate_json(json.dumps(rules.document(), allow_nan=False)) == rules


def test_a_finding_is_a_fact_without_its_times_and_texts() -> None:
    row = finding(Detector.STALL, rank=1, section="backward", step=8, value=1 / 3, threshold=5.0)
    (found,) = facts_of(record_of(findings=[row])).document()["findings"]
    assert found == {
        "detector": "stall", "severity": "halt", "rank": 1, "section": "backward", "step": 8,
        "value": 0.333333333, "threshold": 5.0, "source": "default",
        "act": None,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("reason", "steps", "gated", "agrees"),
    [
        ("first", 40, True, True),
        ("first", 20, False, False),
        ("confirm", 20, False, True),
        ("remedy", 20, False, True),
        ("confirm", 20, True, False),
        ("confirm", 60, False, False),
    ],
)
def test_only_a_rerun_without_a_gate_may_be_ordered_to_end_before_its_training_does(
    reason: str, steps: int, gated: bool, agrees: bool
) -> None:
    order = order_of()
    order = order.model_copy(
        update={
            "reason": RunReason(reason),
            "steps": steps,
            "train": {**order.train, "steps": 40},
            "gate": order.gate if gated else [],
        }
    )
    assert order_of().gate
    facts = facts_of(record_of(order))
    asked = [text for text in facts.contradictions if "its training configuration" in text]
    assert (asked == []) is agrees
