"""What was recorded is one document with one reading, and any change of it shows."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gonogo.contract.errors import Corrupt
from gonogo.ledger.recorded import parse_decision
from gonogo.ledger.replay import Surroundings, replay_decision
from gonogo.ledger.verify import check_alone
from tests.ledger.chains import TRUST, edited, present, resealed, unsigned

SIGNED = present("non_finite")
"""A NO_GO with findings."""


def test_formatting_changes_nothing() -> None:
    text = json.dumps(SIGNED.document, indent=3, sort_keys=True, ensure_ascii=True)
    again = parse_decision(text.encode())
    assert check_alone(again, TRUST) == []
    assert again.content_hash() == SIGNED.decision.hash


def test_the_digest_of_rules_is_the_same_for_two_runs_of_which_the_same_was_asked() -> None:
    rules = SIGNED.document["rules"]
    other = resealed(SIGNED, rules={**rules, "run": "run_other", "attempt": 2})
    assert rules["run"] is not None
    assert other.seals() is None
    assert other.decision.rule_digest == SIGNED.decision.rule_digest
    assert other.decision.hash != SIGNED.decision.hash, "whose it is, is sealed"
    longer = resealed(SIGNED, rules={**rules, "steps": rules["steps"] + 1})
    assert longer.decision.rule_digest != SIGNED.decision.rule_digest


@pytest.mark.parametrize("field", ["approved_by", "v3", "", "criteria "])
def test_a_field_that_nobody_knows_is_under_the_hash(field: str) -> None:
    assert SIGNED.seals() is None
    found = edited(SIGNED, **{field: "ann"}).seals()
    assert found is not None
    assert found.path == "hash"


def paths(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place in a document, the whole of it aside."""
    if at:
        yield at
    if isinstance(value, dict):
        for name, row in value.items():
            yield from paths(row, (*at, name))
    elif isinstance(value, list):
        for number, row in enumerate(value):
            yield from paths(row, (*at, number))


def changed(document: Any, path: tuple[Any, ...], value: Any, *, remove: bool) -> Any:
    """A copy with one place removed or replaced."""
    whole = copy.deepcopy(dict(document))
    node = whole
    for part in path[:-1]:
        node = node[part]
    if remove:
        del node[path[-1]]
    else:
        node[path[-1]] = value
    return whole


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=4,
)


@settings(max_examples=40, deadline=None)
@given(data=st.data(), value=JSON, remove=st.booleans())
def test_any_change_of_any_part_is_detected_and_nothing_crashes(
    data: st.DataObject, value: Any, remove: bool
) -> None:
    recorded = SIGNED
    path = data.draw(st.sampled_from(sorted(paths(recorded.document), key=str)))
    document = changed(recorded.document, path, value, remove=remove)
    raw = json.dumps(document).encode()
    if json.loads(raw) == recorded.document and json.dumps(document, sort_keys=True) == json.dumps(
        recorded.document, sort_keys=True
    ):
        return  # the value that was there
    try:
        found = parse_decision(raw)
    except Corrupt:
        return
    if found.document == recorded.document:
        return  # 1 for 1.0 is formatting
    assert check_alone(found, TRUST) != []
    assert not replay_decision(found, Surroundings(trust=TRUST), facts_only=True).equal


@settings(max_examples=40, deadline=None)
@given(data=st.data(), value=JSON, remove=st.booleans())
def test_facts_and_rules_that_were_resealed_never_crash_a_replay(
    data: st.DataObject, value: Any, remove: bool
) -> None:
    recorded = SIGNED
    part = data.draw(st.sampled_from(["facts", "rules"]))
    inner = recorded.document[part]
    path = data.draw(st.sampled_from(sorted(paths(inner), key=str)))
    try:
        forged = unsigned(recorded, **{part: changed(inner, path, value, remove=remove)})
    except Corrupt:
        return
    result = replay_decision(forged, facts_only=True)
    assert result.equal or result.text
    if forged.document[part] != inner:
        assert not replay_decision(forged, Surroundings(trust=TRUST), facts_only=True).equal
