"""Facts are small, exact, and the digest is that of the canonical heartbeats."""

from __future__ import annotations

import json

import pytest

from gonogo.contract.canonical import canonical_bytes, digest
from gonogo.contract.outcome import Detector
from gonogo.judge.facts import MAX_BLOCKS, block_size, build_facts, digest_beats
from gonogo.judge.record import read_stream
from gonogo.judge.rules import build_rules
from tests.data.make_runs import healthy_ranks, non_finite_ranks, order_of
from tests.judge.runs import finding, lines_of, record_of


@pytest.mark.parametrize("ranks", [healthy_ranks, non_finite_ranks])
def test_the_digest_is_the_sha256_of_the_array_of_canonical_heartbeats(ranks: object) -> None:
    lines = lines_of(ranks(order_of()))[0]  # type: ignore[operator]
    beats = read_stream(0, lines).beats
    found = digest_beats(beats)
    assert found.whole == digest([beat.canonical() for beat in beats])
    assert len(found.blocks) == len(beats) <= MAX_BLOCKS


def test_a_diverged_loss_beyond_every_exact_integer_is_a_fact_like_any_other() -> None:
    ranks = healthy_ranks(order_of())
    for line in ranks[0].lines:
        if line["msg"] == "progress":
            line["loss"] = 1e30 * line["step"]
            line["grad_norm"] = float(2**60)
    facts = build_facts(record_of(order_of(), ranks))
    assert digest(json.loads(json.dumps(facts))) == digest(facts)


@pytest.mark.parametrize(("count", "size"), [(0, 1), (1, 1), (64, 1), (65, 2), (640, 10)])
def test_there_are_at_most_sixty_four_blocks(count: int, size: int) -> None:
    assert block_size(count) == size


def test_facts_stay_small_however_long_the_run_was() -> None:
    short, long = (
        build_facts(record_of(order))
        for order in (order_of(), order_of(sets={"phases.smoke.steps": 600}))
    )
    assert len(canonical_bytes(long)) < 1.5 * len(canonical_bytes(short))


def test_facts_survive_their_own_file() -> None:
    facts = build_facts(record_of())
    assert json.loads(json.dumps(facts, allow_nan=False)) == facts
    rules = build_rules(order_of())
    assert json.loads(json.dumps(rules, allow_nan=False)) == rules


def test_a_finding_is_a_fact_without_its_times_and_texts() -> None:
    row = finding(Detector.STALL, rank=1, section="backward", step=8, value=1 / 3, threshold=5.0)
    (found,) = build_facts(record_of(findings=[row]))["findings"]
    assert found == {
        "detector": "stall", "severity": "halt", "rank": 1, "section": "backward", "step": 8,
        "value": 0.333333333, "threshold": 5.0, "source": "default",
    }  # fmt: skip
