"""Are growing files read to the right byte?"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gonogo.rundir import RunDir
from worker.shipping.parts import load_log_bytes, log_names

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(
    ("offset", "expected"),
    [
        (0, (6, b"6789")),  # more than the lag behind: the tail
        (5, (5, b"5678")),
        (8, (8, b"89")),
        (10, None),
        (99, None),
    ],
)
def test_a_reader_too_far_behind_jumps_to_the_tail(
    tmp_path: Path, offset: int, expected: tuple[int, bytes] | None
) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"0123456789")
    assert load_log_bytes(path, offset, most=4, lag=6) == expected
    assert load_log_bytes(tmp_path / "missing", 0, most=4, lag=6) is None


def test_a_pipe_under_a_file_s_name_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "rank0.log")
    os.mkfifo(tmp_path / "heartbeat_rank0.jsonl")
    ask = (
        "import sys; from pathlib import Path; from gonogo.files import NoPlainFile;"
        "from gonogo.rundir import complete_bytes; from worker.shipping.parts import *;"
        "folder = Path(sys.argv[1]); assert load_log_bytes(folder / 'rank0.log', 0, 4, 6) is None\n"
        "try: complete_bytes(folder / 'heartbeat_rank0.jsonl')\n"
        "except NoPlainFile: print('none')"
    )
    command = [sys.executable, "-c", ask, str(tmp_path)]
    done = subprocess.run(command, timeout=20.0, capture_output=True, text=True, cwd=ROOT)
    assert done.stdout == "none\n", done.stderr


def test_the_log_of_a_rank_that_never_said_a_line_is_sent(tmp_path: Path) -> None:
    for name in ("torchrun.log", "rank0.log", "rank11.log", "rank.log", "rank01.log", "rank2.txt"):
        (tmp_path / name).write_text("No module named 'mine'\n")
    (tmp_path / "heartbeat_rank3.jsonl").touch()
    assert log_names(RunDir(tmp_path)) == ["torchrun.log", "rank0.log", "rank11.log"]
