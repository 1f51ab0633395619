"""The table of patience: every cell is filled, and settings replace the seconds of their place."""

from __future__ import annotations

from typing import Any

import pytest

from gonogo.contract.finding import Source
from gonogo.contract.watch import (
    MEANING,
    TABLE,
    Patience,
    Place,
    ProgramKind,
    Typical,
    Watch,
    bounded,
    patience_of,
)
from tests.watch.streams import order_of


def test_every_place_has_a_meaning_and_a_cell_for_each_kind_of_program() -> None:
    assert set(TABLE) == set(MEANING) == set(Place)
    assert all(set(row) == set(ProgramKind) for row in TABLE.values())


def test_the_defaults_of_settings_are_the_cells_of_our_own_trainer() -> None:
    watch = Watch()
    seconds = {place: row[ProgramKind.OURS].seconds for place, row in TABLE.items()}
    assert seconds[Place.COMPUTE] == watch.stall.halt_s
    assert seconds[Place.CORROBORATED] == watch.stall.corroborate_s
    assert seconds[Place.START] == watch.no_first_heartbeat.exec_s
    assert seconds[Place.SILENCE] == watch.alive_lost.halt_s
    assert seconds[Place.EVAL] == watch.section_deadline.eval.halt_s
    assert TABLE[Place.COMPUTE][ProgramKind.OURS].multiple == watch.stall.halt_x


@pytest.mark.parametrize(
    ("settings", "place", "seconds"),
    [
        ({"stall": {"halt_s": 5}}, Place.COMPUTE, 5),
        ({"stall": {"halt_s": 5}}, Place.PRINTED_STEP, 5),
        ({"section_deadline": {"data": {"halt_s": 10}}}, Place.DATA, 10),
        ({"alive_lost": {"halt_s": 7}}, Place.SILENCE, 7),
        ({"no_first_heartbeat": {"exec_s": 9}}, Place.START, 9),
    ],
)
def test_a_setting_of_the_plan_replaces_the_seconds(
    settings: dict[str, Any], place: Place, seconds: float
) -> None:
    for kind in ProgramKind:
        row = patience_of(Watch.model_validate(settings), kind)[place]
        assert (row.seconds, row.source) == (seconds, Source.PLAN)


def test_a_limit_is_the_larger_of_seconds_and_multiple() -> None:
    row = Patience(seconds=60, multiple=8, of=Typical.MEDIAN)
    assert row.limit(None) == (60, Source.DEFAULT)
    assert row.limit(5.0) == (60, Source.DEFAULT)
    assert row.limit(10.0) == (80, Source.ADAPTIVE)
    assert Patience(seconds=None).limit(10.0) is None


def test_one_bound_replaces_every_limit_that_is_longer() -> None:
    table = bounded(patience_of(Watch(), ProgramKind.PRINTED), 45.0)
    limits = {place: row.limit(1e6) for place, row in table.items()}
    assert limits.pop(Place.CHECKPOINT_DUE) is not None
    assert limits.pop(Place.CORROBORATED) == (30.0, Source.PLAN)
    assert set(limits.values()) == {(45.0, Source.PLAN)}


def test_an_order_keeps_the_table_that_it_was_made_with() -> None:
    order = order_of({"stall": {"halt_s": 5}})
    assert "patience" not in order.document()
    table = order.limits_of_places()
    stored = order.model_copy(update={"patience": table, "watch": Watch()})
    assert stored.limits_of_places()[Place.COMPUTE].seconds == 5
    assert type(order).model_validate(stored.document()).patience == table
