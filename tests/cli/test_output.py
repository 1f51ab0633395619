"""Durations are printed for people (R18: 62 days, not 5389473 s)."""

import json

import pytest

from gonogo.cli.output import duration, harmless, out, print_json, print_table, verdict_text
from gonogo.contract.ids import Kind, new_id, short_id, shorten_ids


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "–"),
        (0, "0 s"),
        (42.4, "42 s"),
        (185, "3 min 05 s"),
        (7800, "2 h 10 min"),
        (50_000 * 4096 / 38, "62.4 d"),
    ],
)
def test_a_duration_uses_the_unit_that_fits(seconds: float | None, text: str) -> None:
    assert duration(seconds) == text


def test_identifiers_are_whole_however_narrow_the_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(out, "_width", 60)
    name = new_id(Kind.RUN)
    cells = {"id": [name], "text": ["a long text " * 8], "more": ["another " * 9]}
    print_table(cells, cut=("text",), optional=("more",))
    shown = capsys.readouterr().out
    assert shown.split()[:2] == ["id", "text"]
    assert short_id(name) in shown
    assert max(map(len, shown.splitlines())) <= 60


def test_identifiers_in_paths_and_addresses_stay_whole() -> None:
    name = new_id(Kind.RUN)
    whole = f"/runs/{name}/order.json http://h/runs/{name} x{name}"
    assert shorten_ids(f"{name}: {whole}") == f"{short_id(name)}: {whole}"


HOSTILE = ("\x1b[2J\x1b]0;GO\x07", "\x9b31m", "\r", "\x08\x08", "\u202e", "\x7f")


@pytest.mark.parametrize("place", range(len(HOSTILE)))
def test_what_others_wrote_commands_no_terminal(
    place: int, capsys: pytest.CaptureFixture[str]
) -> None:
    said = f"a reason{HOSTILE[place]} and its end"
    print_table({"host": ["h"], "text": [said]})
    out.print(said, markup=False, highlight=False)
    shown = capsys.readouterr().out
    assert "a reason" in shown
    assert "and its end" in shown
    assert not set(HOSTILE[place]) & set("\x1b\x9b\r\x07\x08\u202e\x7f") & set(shown)


@pytest.mark.parametrize("place", range(len(HOSTILE)))
def test_json_says_it_all_and_commands_no_terminal(
    place: int, capsys: pytest.CaptureFixture[str]
) -> None:
    said = {f"a {HOSTILE[place]} key": f"zwölf{HOSTILE[place]}\t𝛼 \\u202e\n"}
    print_json(said)
    shown = capsys.readouterr().out
    assert json.loads(shown) == said
    assert "zwölf" in shown
    assert not set("\x1b\x9b\r\x07\x08\u202e\x7f") & set(shown)


def test_what_is_no_command_stays_as_it_was_written() -> None:
    said = "zwölf 𝛼\tSchritte\n– 🙂‍↔️ [bold]"
    assert harmless(said) == said


def test_our_own_colours_stay(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(out, "_force_terminal", True)
    monkeypatch.setattr(out, "_color_system", 1)
    out.print(f"{verdict_text('GO')} \x1b[31mfine", highlight=False)
    assert capsys.readouterr().out == "\x1b[1;32mGO\x1b[0m [31mfine\n"
