"""Is a run of `gonogo run` found by the id that it printed?"""

import shutil
from pathlib import Path

import pytest

from gonogo.cli.app import run
from gonogo.cli.exits import Exit
from gonogo.cli.logs import find_run_dir
from gonogo.contract.errors import Rejected
from gonogo.contract.ids import short_id
from gonogo.rundir import NO_SERVICE, SHIPPED_NAME

RUNS = Path(__file__).parents[1] / "data" / "runs"
OWN = "run_01M8PYDD1XJPP7DDFBPRPRF37Z"
OTHER = "run_01M8PYF4XN1CPHJRD9Z59TQQAF"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home with two runs of `gonogo run`, and one of a worker."""
    for name in (OWN, OTHER, "run_01M9PYF4XN1CPHJRD9Z59TQQAF"):
        folder = tmp_path / "runs" / name
        shutil.copytree(RUNS / "healthy", folder)
        if name in (OWN, OTHER):
            (folder / SHIPPED_NAME).write_text(f"gonogo run: {NO_SERVICE} of it\n")
        (folder / "rank0.log").write_text(f"words of {name}\n")
    return tmp_path


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (OWN, OWN),
        ("run_01M8PYD", OWN),
        ("01m8pyd", OWN),
        (short_id(OWN), OWN),
        ("01M9", None),  # a worker's: the service knows it
        ("run_", None),
        ("01M8PYX", None),
        ("../runs", None),
        ("nightly", None),
    ],
)
def test_an_id_or_its_beginning_is_a_run_directory(
    home: Path, text: str, found: str | None
) -> None:
    place = find_run_dir(text, home)
    assert (None if place is None else place.name) == found


def test_a_beginning_of_several_runs_is_refused_with_their_ids(home: Path) -> None:
    with pytest.raises(Rejected, match="may mean 2 runs") as refused:
        find_run_dir("01M8PY", home)
    assert [row.path for row in refused.value.problems] == [OWN, OTHER]


def test_logs_and_judge_take_the_id_and_need_no_service(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GONOGO_HOME", str(home))
    assert run(["logs", OWN, "--rank", "0"]) == Exit.OK
    assert f"words of {OWN}" in capsys.readouterr().out
    assert run(["judge", OWN[:12]]) == run(["judge", str(RUNS / "healthy")])
    assert "verdict" in capsys.readouterr().out
