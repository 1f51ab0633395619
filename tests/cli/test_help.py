"""Help is whole and by topic; a mistyped command line is one line that says what may be meant."""

from __future__ import annotations

import re

import pytest
import typer.main

from gonogo.cli.app import app
from gonogo.cli.exits import Exit
from gonogo.cli.help import EXIT_WORDS, OTHER_NAMES, TOPICS
from tests.cli.conftest import Gonogo

COMMANDS = typer.main.get_command(app).commands  # type: ignore[attr-defined]


def test_gonogo_alone_shows_the_help_and_ends_well(gonogo: Gonogo) -> None:
    alone, asked = gonogo(), gonogo("--help")
    assert (alone.code, alone.err) == (0, "")
    assert alone.out == asked.out
    assert "Usage: gonogo [OPTIONS] COMMAND" in alone.out


def test_no_text_of_a_command_is_cut(gonogo: Gonogo) -> None:
    said = " ".join(gonogo("--help").out.split())
    assert "..." not in said.replace("[ARGS]...", "")
    for name, command in COMMANDS.items():
        assert f"{name} {' '.join(command.help.split())}" in said


def test_every_command_has_a_topic_and_no_topic_shows_nothing(gonogo: Gonogo) -> None:
    named = [name for _, names in TOPICS for name in names]
    assert len(named) == len(set(named))
    assert set(COMMANDS) <= set(named)
    assert "More:" not in gonogo("--help").out


def test_the_help_lists_the_exit_codes(gonogo: Gonogo) -> None:
    assert set(Exit) <= set(EXIT_WORDS)
    said = gonogo("--help").out.split("Exit codes:")[1]
    for code, words in EXIT_WORDS.items():
        assert re.search(rf"^  {code} +{re.escape(words)}$", said, re.M), code


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["statsu"], "no such command: statsu; did you mean status?"),
        (["shoow"], "did you mean show?"),
        (["stop"], "did you mean halt or cancel?"),
        (["ls"], "did you mean list?"),
        (["xyzzy"], "no such command: xyzzy (see gonogo --help)"),
        (["--verison"], "no such option: --verison; did you mean --version?"),
        (["submit", "demo", "--sett", "a=1"], "no such option: --sett; did you mean --set?"),
        (["submit"], "missing argument 'plan'"),
        (["show", "a", "b"], "unexpected extra argument"),
        (["list", "--limit", "0"], "'--limit'"),
        (["override", "a", "NOGO", "--reason", "r"], "did you mean NO_GO?"),
        (["override", "a", "GO"], "missing option '--reason'"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_mistyped_command_line_is_one_line(
    arguments: list[str], says: str, gonogo: Gonogo
) -> None:
    said = gonogo(*arguments)
    assert (said.code, said.out) == (2, "")
    (line,) = said.err.splitlines()
    assert says in line
    assert line.endswith("--help)")


def test_words_of_other_tools_lead_to_commands_that_are_there() -> None:
    assert not OTHER_NAMES.keys() & COMMANDS.keys()
    assert {name for names in OTHER_NAMES.values() for name in names} <= set(COMMANDS)
