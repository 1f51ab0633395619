"""A resumed simulation gives the same result as an uninterrupted one."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from gonogo.contract.errors import Rejected
from lab import Part, Tally, simulate_part
from lab.finished_parts import FOLDERS, FinishedParts

PARTS = [
    Part(seed=f"7/{number}", step_s=60.0, ranks=1, hours=0.2, noise="standard", sick=sick)
    for number, sick in enumerate([None, None, "foreign"])
]


def test_what_was_done_is_read_back_as_it_was(tmp_path: Path) -> None:
    file = tmp_path / "parts.jsonl"
    done = FinishedParts(file)
    tallies = {part: simulate_part(part) for part in (PARTS[0], PARTS[2])}
    for part, tally in tallies.items():
        done.add(part, tally)
    again = dict(FinishedParts(file).of(PARTS))
    assert again == tallies
    assert Tally.of(again.values()) == Tally.of(tallies.values())


def test_a_line_that_a_kill_tore_in_two_is_simulated_again(tmp_path: Path) -> None:
    file = tmp_path / "parts.jsonl"
    done = FinishedParts(file)
    for part in PARTS[:2]:
        done.add(part, Tally(run_hours=1.0))
    file.write_bytes(file.read_bytes()[:-20])
    torn = FinishedParts(file)
    assert [part for part, _ in torn.of(PARTS)] == PARTS[:1]
    torn.add(PARTS[1], Tally(run_hours=2.0))
    assert [part for part, _ in FinishedParts(file).of(PARTS)] == PARTS[:2]


@pytest.mark.parametrize("first", [json.dumps({"code": "0" * 64}), "no simulation", ""])
def test_parts_that_other_code_has_judged_are_refused(first: str, tmp_path: Path) -> None:
    file = tmp_path / "parts.jsonl"
    file.write_text(first + "\n")
    with pytest.raises(Rejected, match="not begun by this code"):
        FinishedParts(file)


def test_what_a_simulated_run_goes_through_is_what_the_digest_covers() -> None:
    script = (
        "import sys\n"
        "from lab import plan_parts, simulate_part\n"
        "from lab.plan import cells_of\n"
        "part, *_ = plan_parts(cells_of(0.01, [1.0], [2]), seed=1, noise='standard',"
        " healthy_only=True)\n"
        "simulate_part(part)\n"
        "print(*(n for n in sys.modules if n.split('.')[0] in ('gonogo', 'lab')))\n"
    )
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    covered = tuple(name.replace("/", ".") for name in FOLDERS)
    beside = {name for name in ran.stdout.split() if not name.startswith(covered)}
    beneath = {f"gonogo.{name}" for name in ("files", "git_commit", "rundir")}
    assert beside == {"gonogo", *beneath}, "names, paths and how a file is opened alone"
