"""A simulation that is gone on with comes to what it would have come to at once."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from gonogo.cli.simulated_parts import FOLDERS, DoneParts
from gonogo.contract.errors import Rejected
from gonogo.judge.simulate import Part, Tally, simulate_part
from tests.cli.conftest import Gonogo

RUNS = Path(__file__).parents[1] / "data" / "runs"
PARTS = [
    Part(seed=f"7/{number}", step_s=60.0, ranks=1, hours=0.2, noise="standard", sick=sick)
    for number, sick in enumerate([None, None, "foreign"])
]


def test_what_was_done_is_read_back_as_it_was(tmp_path: Path) -> None:
    file = tmp_path / "parts.jsonl"
    done = DoneParts(file)
    tallies = {part: simulate_part(part) for part in (PARTS[0], PARTS[2])}
    for part, tally in tallies.items():
        done.add(part, tally)
    again = dict(DoneParts(file).of(PARTS))
    assert again == tallies
    assert Tally.of(again.values()) == Tally.of(tallies.values())


def test_a_line_that_a_kill_tore_in_two_is_simulated_again(tmp_path: Path) -> None:
    file = tmp_path / "parts.jsonl"
    done = DoneParts(file)
    for part in PARTS[:2]:
        done.add(part, Tally(run_hours=1.0))
    file.write_bytes(file.read_bytes()[:-20])
    torn = DoneParts(file)
    assert [part for part, _ in torn.of(PARTS)] == PARTS[:1]
    torn.add(PARTS[1], Tally(run_hours=2.0))
    assert [part for part, _ in DoneParts(file).of(PARTS)] == PARTS[:2]


@pytest.mark.parametrize("first", [json.dumps({"code": "0" * 64}), "no simulation", ""])
def test_parts_that_other_code_has_judged_are_refused(first: str, tmp_path: Path) -> None:
    file = tmp_path / "parts.jsonl"
    file.write_text(first + "\n")
    with pytest.raises(Rejected, match="not begun by this code"):
        DoneParts(file)


def test_what_a_simulated_run_goes_through_is_what_the_digest_covers() -> None:
    script = (
        "import sys\n"
        "from gonogo.judge.simulate import plan_parts, simulate_part\n"
        "from gonogo.judge.simulate.plan import cells_of\n"
        "part, *_ = plan_parts(cells_of(0.01, [1.0], [2]), seed=1, noise='standard',"
        " healthy_only=True)\n"
        "simulate_part(part)\n"
        "print(*(name for name in sys.modules if name.split('.')[0] == 'gonogo'))\n"
    )
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    covered = tuple("gonogo." + name.replace("/", ".") for name in FOLDERS)
    beside = {name for name in ran.stdout.split() if not name.startswith(covered)}
    beneath = {"gonogo", "gonogo.judge", "gonogo.first_file", "gonogo.plain_file", "gonogo.rundir"}
    assert beside == beneath, "names, paths and how a file is opened alone"


def test_of_recorded_runs_those_that_completed_are_perturbed(
    tmp_path: Path, gonogo: Gonogo
) -> None:
    """A halt of what hung is no false one; a folder of runs holds such, too."""
    arguments = ("simulate", "--hours", "0.1", "--step-s", "60", "--ranks", "1", "--healthy-only")
    said = gonogo(*arguments, "--runs", str(RUNS), "--json")
    assert said.code == 0, said.out
    assert "2 of 3 runs did not complete: left out" in said.err
    alone = gonogo(*arguments, "--runs", str(RUNS / "healthy"), "--json")
    assert "did not complete" not in alone.err
    assert said.json() == alone.json(), "the healthy one was looked at, and it alone"
    assert said.json()["run_hours"] > gonogo(*arguments, "--json").json()["run_hours"]
    sick = gonogo(*arguments, "--runs", str(RUNS / "stalled"))
    assert sick.code == 3
    assert "no run that completed" in sick.err
