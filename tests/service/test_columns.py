"""Do columns give the contract's words, and what earlier releases wrote too?"""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import pytest
from pydantic import BaseModel
from sqlalchemy.dialects import sqlite

from gonogo.contract.decision import Verdict
from gonogo.contract.order import ResumePoint, RunReason
from gonogo.contract.outcome import Actor, Outcome, OutcomeCode
from gonogo.contract.worker_messages import ClaimRequest
from gonogo.judge.follow_up.decide import Attempt
from service.db.columns import (
    WORDS,
    Asked,
    Awaited,
    AwaitedKind,
    Held,
    OneOf,
    Promised,
    Stop,
    StopKind,
    Table,
)

SQLITE = sqlite.dialect()  # type: ignore[no-untyped-call]
OUTCOME = Outcome(code=OutcomeCode.STALLED, actor=Actor.WATCHDOG, text="rank 1")
STORED: tuple[tuple[dict[str, Any], BaseModel], ...] = (
    (
        {"kind": "decision", "phase": "smoke", "text": "a decision: why"},
        Awaited(kind=AwaitedKind.DECISION, phase="smoke", text="a decision: why"),
    ),
    (
        {"kind": "approval", "phase": "smoke", "text": "x"},
        Awaited(kind=AwaitedKind.APPROVAL, phase="smoke", text="x"),
    ),
    (
        {"kind": "approval", "phase": "a", "text": "x", "following": "b", "asked_at": 1.5,
         "expires_s": None},
        Awaited(kind=AwaitedKind.APPROVAL, phase="a", text="x", following="b", asked_at=1.5),
    ),
    (
        {"kind": "halt", "reason": "", "actor": "bob"},
        Stop(kind=StopKind.HALT, reason="", actor="bob"),
    ),
    ({"reason": "hot", "actor": "bob"}, Asked(reason="hot", actor="bob")),
    (
        {"code": "stalled", "actor": "watchdog", "text": "rank 1", "class": "policy"},
        OUTCOME,
    ),
    ({"files": {"watch.jsonl": 3}}, Promised(files={"watch.jsonl": 3})),
    (
        {"worker": "w", "host": "h", "boot_id": "b", "pid": 1, "version": "0.1",
         "devices": ["cpu:0"], "of_a_later_release": True},
        ClaimRequest(
            worker="w1", host="h", boot_id="b", pid=1, version="0.1", devices=["cpu:0"]
        ),
    ),
    ({"path": "p", "step": 3, "later": 1}, ResumePoint(path="p", step=3)),
)  # fmt: skip


def given(column: Held, document: Any) -> Any:
    """What a row gives that holds this document."""
    process = column.dialect_impl(SQLITE).result_processor(SQLITE, None)
    assert process is not None
    return process(json.dumps(document))


def test_an_attempt_is_stored_and_read_field_by_field() -> None:
    attempt = Attempt(
        run="run_1", reason=RunReason.RERUN, outcome=OUTCOME, verdict=Verdict.NO_GO,
        change={"train": {"lr": 0.5}}, step=7, failed=("spikes",),
    )  # fmt: skip
    before = {
        **asdict(attempt), "outcome": OUTCOME.model_dump(mode="json"), "failed": ["spikes"],
    }  # fmt: skip
    column = Held(Attempt)
    assert column.process_bind_param(attempt, SQLITE) == before
    assert given(column, before) == attempt


def test_every_word_fits_its_column() -> None:
    for table in Table.metadata.tables.values():
        for column in table.columns:
            if isinstance(column.type, OneOf):
                longest = max(len(word.value) for word in column.type.words)
                assert longest <= (column.type.impl_instance.length or 0), column


def test_a_word_that_the_enum_does_not_have_is_not_stored() -> None:
    for words in WORDS:
        with pytest.raises(ValueError, match="nonsense"):
            OneOf(words).process_bind_param("nonsense", SQLITE)
