"""A heartbeat is read leniently, and what is none is Corrupt, never a crash."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gonogo.contract.errors import Corrupt
from gonogo.contract.heartbeat import Heartbeat, Identity, parse_heartbeat

LINE = {
    "v": 1, "ts": 1.5, "mono": 2.5, "pid": 7, "rank": 0, "boot": "b", "seq": 1, "step": 3,
    "msg": "progress", "section": "log", "section_seq": 4, "loss": 5.123456789,
}  # fmt: skip


def raw(**fields: Any) -> bytes:
    return json.dumps({**LINE, **fields}).encode()


def test_unknown_fields_are_ignored_and_unknown_messages_kept() -> None:
    beat = parse_heartbeat(raw(msg="of_tomorrow", colour="green"))
    assert beat.msg == "of_tomorrow"
    assert "colour" not in beat.wire()


@pytest.mark.parametrize(
    ("text", "value"), [("NaN", math.nan), ("Infinity", math.inf), ("-Infinity", -math.inf)]
)
def test_a_loss_that_is_not_finite_comes_as_a_string_and_goes_as_one(
    text: str, value: float
) -> None:
    beat = parse_heartbeat(raw(loss=text))
    assert beat.loss == pytest.approx(value, nan_ok=True)
    assert beat.wire()["loss"] == text


@pytest.mark.parametrize(
    "fields",
    [
        {"ts": "NaN"}, {"mono": None}, {"seq": -1}, {"seq": 2**53}, {"rank": "x"}, {"boot": None},
        {"boot": "\ud800"}, {"tokens": 10**30}, {"params": -5},
    ],
)  # fmt: skip
def test_a_line_without_a_usable_clock_or_number_is_corrupt(fields: dict[str, Any]) -> None:
    with pytest.raises(Corrupt):
        parse_heartbeat(raw(**fields))


@given(line=st.binary(max_size=200))
def test_no_bytes_crash_the_reader(line: bytes) -> None:
    try:
        parse_heartbeat(line)
    except Corrupt:
        return
    raise AssertionError("random bytes are no heartbeat")


@pytest.mark.parametrize("line", [b"[" * 60_000, b"1" * 60_000, b" " * 70_000, b"null", b""])
def test_hostile_lines_are_corrupt(line: bytes) -> None:
    with pytest.raises(Corrupt):
        parse_heartbeat(line)


def test_a_boot_line_says_what_it_is() -> None:
    beat = parse_heartbeat(raw(msg="boot", dim=64, vocab=256))
    assert beat.identity() == Identity(dim=64, vocab=256)
    assert set(Identity.model_fields) <= set(Heartbeat.model_fields)
