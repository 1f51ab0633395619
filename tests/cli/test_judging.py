"""How the end of `gonogo run` reads: eight lines at most, whatever there is to say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gonogo.cli import judging
from gonogo.cli.judging import MOST_LINES, explained, print_brief
from gonogo.judge.directory import judge_directory

RUNS = Path(__file__).parents[1] / "data" / "runs"


def document_of(name: str, **changes: Any) -> dict[str, Any]:
    document = json.loads(json.dumps(judge_directory(RUNS / name)))
    return {**document, **changes}


ADVICE = [f"advice {number}" for number in range(4)]


@pytest.mark.parametrize("advice", [ADVICE[:number] for number in range(5)])
@pytest.mark.parametrize("diagnosis", [None, "hang_in_compute"])
@pytest.mark.parametrize("name", ["healthy", "stalled"])
def test_the_end_is_at_most_eight_lines_and_no_advice_is_lost_in_silence(
    name: str, diagnosis: str | None, advice: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    document = document_of(name, diagnosis=diagnosis)
    shown = print_brief(document, RUNS / name, advice)
    lines = capsys.readouterr().out.rstrip().splitlines()
    assert len(lines) + len(shown) <= MOST_LINES
    names = {line.split()[0] for line in lines}
    assert {"steps", "unseen", "run", "verdict"} <= names
    assert "next" in names or shown, "what to type next"
    assert [text[:8] for text in shown] == advice[: len(shown)]
    left = len(advice) - len(shown)
    assert left == 0 or shown[-1].endswith(f"({left} more: --json)")


def test_the_words_of_the_log_stand_beside_a_known_failure(
    capsys: pytest.CaptureFixture[str],
) -> None:
    document = document_of("stalled", diagnosis="hang_in_compute")
    document["cause"] |= {"log": "rank1.log", "line": "it broke"}
    print_brief(document, RUNS / "stalled", [])
    why = capsys.readouterr().out.splitlines()[0]
    assert why.startswith("why      stall (rank 1")
    assert why.endswith("; rank1.log ends: it broke")


def test_json_carries_what_the_text_says(capsys: pytest.CaptureFixture[str]) -> None:
    document = document_of("stalled", diagnosis="hang_in_compute")
    told = explained(document, RUNS / "stalled")
    judging.print_judged(document, RUNS / "stalled")
    text = capsys.readouterr().out
    for said in (told["means"], told["remedy"], told["next"], *told["stood"]):
        assert said in text
    assert told["remedy"]
