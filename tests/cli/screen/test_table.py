"""A narrow terminal takes columns away in their order; what matters stays, whole."""

from __future__ import annotations

import pytest

from gonogo.cli.output import out
from gonogo.cli.screen.table import Column, fitting, print_columns
from gonogo.contract.ids import Kind, new_id

ID = new_id(Kind.EXPERIMENT)


def table() -> list[Column]:
    return [
        Column(name="id", cells=[ID]),
        Column(name="verdict", cells=["[bold]CONDITIONAL_GO[/bold]"]),
        Column(name="name", cells=["a long name of an experiment"], cut=True),
        Column(name="state", cells=["awaiting_decision"], gives_way=1),
        Column(name="plan", cells=["m7c-125m"], gives_way=2),
    ]


@pytest.mark.parametrize(
    ("room", "names"),
    [
        (200, ["id", "verdict", "name", "state", "plan"]),
        (85, ["id", "verdict", "name", "state", "plan"]),
        (80, ["id", "verdict", "name", "state"]),
        (60, ["id", "verdict", "name"]),
        (20, ["id", "verdict", "name"]),
    ],
)
def test_columns_give_way_in_their_order(room: int, names: list[str]) -> None:
    assert [column.name for column in fitting(table(), room)] == names


def test_an_empty_column_that_may_give_way_is_not_shown() -> None:
    columns = [*table(), Column(name="labels", cells=[""], gives_way=9)]
    assert "labels" not in [column.name for column in fitting(columns, 500)]


def test_others_give_way_before_a_text_is_cut_too_short() -> None:
    columns = [
        Column(name="text", cells=["x" * 80], cut=True, cut_to=30),
        Column(name="kind", cells=["y" * 20], gives_way=1),
    ]
    assert [column.name for column in fitting(columns, 60)] == ["text", "kind"]
    assert [column.name for column in fitting(columns, 50)] == ["text"]


@pytest.mark.parametrize("width", [60, 80, 120])
def test_what_is_kept_stands_whole_on_one_line(
    width: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(out, "_width", width)
    print_columns(table())
    head, row = capsys.readouterr().out.splitlines()
    assert ID in row
    assert "CONDITIONAL_GO" in row
    assert "verdict" in head
    assert len(row.rstrip()) <= width


@pytest.mark.parametrize("width", [60, 61, 64, 70, 79])
def test_a_name_is_cut_before_what_stands_behind_it(
    width: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(out, "_width", width)
    text = Column(name="why", cells=["because of " * 9], cut=True)
    print_columns([*table()[::2], Column(name="state", cells=["finished"]), text])
    head, row = (line.rstrip() for line in capsys.readouterr().out.splitlines())
    assert "finished" in row
    assert "state" in head
    assert row.count("…") == 2
    assert len(row) <= width


def test_only_the_column_that_may_is_cut(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(out, "_width", 60)
    print_columns(table())
    assert "a long na" in capsys.readouterr().out.splitlines()[1]
    monkeypatch.setattr(out, "_width", 200)
    print_columns(table())
    assert "a long name of an experiment" in capsys.readouterr().out
