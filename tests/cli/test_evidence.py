"""What the evidence of a halt says on a terminal."""

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gonogo.cli.app import app
from gonogo.cli.judging import directory_evidence
from gonogo.judge.failures import explain

RUNS = Path(__file__).parents[1] / "data" / "runs"
STACK = "MainThread (thread {0})\n    {1} (a.py:1)\n    main (b.py:2)\n"
HALT = [{"severity": "warn", "rank": 0}, {"severity": "halt", "rank": 1}]


@pytest.fixture
def stalled(tmp_path: Path) -> Path:
    """A run directory with two rounds of evidence."""
    run = tmp_path / "stalled"
    shutil.copytree(RUNS / "stalled", run)
    shutil.rmtree(run / "evidence", ignore_errors=True)
    for number in (1, 2):
        folder = run / "evidence" / f"{number:02d}_stall"
        folder.mkdir(parents=True)
        for rank, frame in enumerate(("wait", "spin", "wait")):
            (folder / f"stacks_rank{rank}.txt").write_text(STACK.format(rank, f"{frame}{number}"))
        (folder / "collectives.txt").write_text("rank 1 did not come\n")
    return run


def test_the_last_round_is_told_with_the_named_rank_first(stalled: Path) -> None:
    assert directory_evidence(stalled, HALT) == [
        "rank 1 did not come",
        "rank 1: spin2 (a.py:1) < main (b.py:2)",
        "ranks 0, 2: wait2 (a.py:1) < main (b.py:2)",
    ]


def test_judging_a_directory_shows_what_its_evidence_says(stalled: Path) -> None:
    (stalled / "rank1.log").write_text("step 29\n")
    said = CliRunner().invoke(app, ["judge", str(stalled)])
    assert "evidence     rank 1: spin2 (a.py:1) < main (b.py:2)" in said.stdout
    document = json.loads(CliRunner().invoke(app, ["judge", str(stalled), "--json"]).stdout)
    assert document["findings"]
    known = explain(document["diagnosis"])
    assert known is not None
    assert f"diagnosis    {known.name}: {known.cause}" in said.stdout
    assert f"remedy       {known.remedy}" in said.stdout
    assert f"next     tail -n 50 {stalled}/rank1.log" in said.stdout.splitlines()[-1]


def test_without_evidence_nothing_is_said(tmp_path: Path) -> None:
    assert directory_evidence(tmp_path, HALT) == []


def test_rules_that_are_given_beside_an_order_are_said_to_count_for_nothing(stalled: Path) -> None:
    given = ["--plan", "demo", "--phase", "smoke"]
    said = CliRunner().invoke(app, ["judge", str(stalled), *given])
    assert "judged by its own order.json: --plan and --phase are ignored" in said.stderr
    assert said.stdout == CliRunner().invoke(app, ["judge", str(stalled)]).stdout
    (stalled / "order.json").unlink()
    assert "order.json" not in CliRunner().invoke(app, ["judge", str(stalled), *given]).stderr
