"""Texts for people: durations, sizes, tables and short identifiers."""

import subprocess
import sys

import pytest

from gonogo.cli.output import duration, harmless, out, print_table, size_text, verdict_text
from gonogo.contract.wire import Kind, new_id, short_id, shorten_ids


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "–"), (42.4, "42 s"), (185, "3 min 05 s"), (7800, "2 h 10 min"),
        (50_000 * 4096 / 38, "62.4 d"),
    ],
)  # fmt: skip
def test_a_duration_uses_the_unit_that_fits(seconds: float | None, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (10**13, "10.0 TB")]
)
def test_a_size_uses_the_unit_that_fits(count: int, text: str) -> None:
    assert size_text(count) == text


def test_a_narrow_table_keeps_identifiers_whole(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(out, "_width", 60)
    row = {"id": new_id(Kind.RUN), "text": "a long text " * 8, "more": "another " * 9, "none": None}
    print_table([row], {name: name for name in row}, cut=("text",), optional=("more", "none"))
    shown = capsys.readouterr().out
    assert shown.split()[:2] == ["id", "text"]
    assert short_id(str(row["id"])) in shown
    assert "…" in shown
    assert "more" not in shown
    assert max(map(len, shown.splitlines())) <= 60


def test_a_pipe_gets_every_text_whole() -> None:
    text = "a long reason, " * 60 + "and its end"
    code = (
        "from gonogo.cli.output import print_table\n"
        f"print_table([{{'text': {text!r}}}], {{'text': 'text'}}, cut=['text'])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[1].rstrip() == text


def test_identifiers_in_paths_and_addresses_stay_whole() -> None:
    name = new_id(Kind.RUN)
    whole = f"/runs/{name}/order.json http://h/runs/{name} x{name}"
    assert shorten_ids(f"{name}: {whole}") == f"{short_id(name)}: {whole}"


def test_control_sequences_of_others_are_removed_and_our_colours_stay(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(out, "_force_terminal", True)
    monkeypatch.setattr(out, "_color_system", 1)
    out.print(f"{verdict_text('GO')} \x1b[2Jfine", highlight=False)
    assert capsys.readouterr().out == "\x1b[1;32mGO\x1b[0m [2Jfine\n"
    said = "zwölf 𝛼\tSchritte\n– 🙂‍↔️ [bold]"
    assert harmless(said) == said
