"""The fast way to a line's canonical bytes gives what the plain way gives."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gonogo.contract.canonical import canonical_bytes
from gonogo.contract.heartbeat import Heartbeat, canonical_line, parse_heartbeat

PLACE: dict[str, Any] = {"ts": 1.5, "mono": 2.5, "pid": 1, "rank": 0, "boot": "b", "seq": 1}

FLOATS = st.one_of(
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from([0.0, -0.0, 1.0, -1.0, 1e15, 1e16, 1e21, 1e22, 1e-6, 1e-7, 5e-324, 1e308]),
    st.integers(-(2**53) + 1, 2**53 - 1),
)
NUMBERS = st.one_of(FLOATS, st.sampled_from(["NaN", "Infinity", "-Infinity"]), st.none())
TEXTS = st.one_of(st.text(max_size=12), st.sampled_from(['a"b\\', "\x00\x7f", "é\u2028\U0001f600"]))
COUNTS = st.integers(0, 2**53 - 1)
SECTIONS = st.dictionaries(
    st.sampled_from(["data", "forward", "backward", "optimizer", "wait", "other"]), FLOATS
)
MORE = st.fixed_dictionaries(
    {},
    optional={
        "v": COUNTS,
        "iso": TEXTS,
        "section": st.one_of(st.none(), TEXTS),
        "section_seq": COUNTS,
        "loss": NUMBERS,
        "grad_norm": NUMBERS,
        "lr": NUMBERS,
        "section_age_s": NUMBERS,
        "skipped": st.one_of(st.none(), st.booleans()),
        "tokens": st.one_of(st.none(), COUNTS),
        "collective_seq": COUNTS,
        "text": TEXTS,
        "nsa_env": st.dictionaries(TEXTS, TEXTS, max_size=3),
        "step_sections": st.one_of(st.none(), SECTIONS),
        "unknown": NUMBERS,
    },
)


@given(MORE, FLOATS, FLOATS, COUNTS, TEXTS, TEXTS)
def test_both_ways_give_the_same_bytes(
    more: dict[str, Any], ts: float, mono: float, seq: int, boot: str, msg: str
) -> None:
    said = {**PLACE, "ts": ts, "mono": mono, "seq": seq, "boot": boot, "msg": msg, "step": seq}
    beat = parse_heartbeat(json.dumps({**said, **more}).encode())
    assert canonical_line(beat) == canonical_bytes(beat.canonical())


@pytest.mark.parametrize("order", [1, -1])
def test_the_order_of_the_fields_and_what_is_null_change_nothing(order: int) -> None:
    said = {**PLACE, "step": 3, "msg": "progress", "loss": 2.0, "lr": None, "tokens": 7}
    plain = canonical_line(Heartbeat(**{**said, "mono": -0.0}))
    again = dict(list({**said, "mono": 0, "lr": None, "val_loss": None}.items())[::order])
    assert canonical_line(Heartbeat(**again)) == plain
    assert plain == (
        b'{"boot":"b","loss":2,"mono":0,"msg":"progress","pid":1,"rank":0,"section_seq":0,'
        b'"seq":1,"step":3,"tokens":7,"ts":1.5,"v":1}'
    )
