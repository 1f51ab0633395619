"""A sign is seen in the type or the text of an error, whichever there is."""

from __future__ import annotations

from typing import Any

import pytest

from gonogo.contract.heartbeat import Heartbeat
from gonogo.judge.facts.signs import signs_at_end, signs_of
from tests.judge.runs import exit_record


@pytest.mark.parametrize(
    ("msg", "fields", "signs"),
    [
        ("error", {"type": "MemoryError"}, {"out_of_memory"}),
        ("error", {"text": "CUDA out of memory"}, {"out_of_memory"}),
        ("error", {"type": "IndexError", "text": "ENOSPC"}, {"index_error", "no_space"}),
        ("error", {"text": "Watchdog caught it"}, {"collective_timeout"}),
        ("error", {}, set()),
        ("loader_error", {}, {"loader_error"}),
        ("loader_error", {"text": "IndexError"}, {"loader_error", "index_error"}),
    ],
)
def test_a_sign_is_seen_in_type_or_text(msg: str, fields: dict[str, Any], signs: set[str]) -> None:
    stamp = {"ts": 1.0, "mono": 1.0, "pid": 1, "rank": 0, "boot": "b", "seq": 1, "step": 1}
    assert signs_of(Heartbeat.model_validate({**stamp, "msg": msg, **fields})) == signs


def test_the_signs_of_an_end_are_those_that_are_known() -> None:
    ended = exit_record().model_copy(update={"signs": ["no_space", "of_a_later_release"]})
    assert signs_at_end(ended) == {"no_space"}
    assert signs_at_end(None) == set()
