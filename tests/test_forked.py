"""Does no test go missing in the forks that share them?"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DIES = "import os\n\ndef test_dies(): os._exit(0)\n"
FAILS = "def test_fails(): assert False\n"
FULL = "import os, pytest\n\ndef test_full(monkeypatch): monkeypatch.setattr(os, 'write', None)\n"
MANY = (
    "import pytest\n\n@pytest.mark.parametrize('number', range(99))\n"
    "def test_many(number, capfd):\n    print(number)\n"
    "    assert capfd.readouterr().out == f'{number}\\n'\n"
)


@pytest.mark.parametrize(
    ("other", "code", "words"),
    [
        (FULL, 0, "100 passed"),
        (FAILS, 1, "1 failed, 99 passed"),
        (DIES, 1, "a process has died: no word of 1 tests, such as test_other.py::test_dies"),
    ],
    ids=["all pass", "one fails", "one ends its process"],
)
def test_every_test_is_told_or_missed(tmp_path: Path, other: str, code: int, words: str) -> None:
    (tmp_path / "test_many.py").write_text(MANY)
    (tmp_path / "test_other.py").write_text(other)
    command = [sys.executable, "-m", "pytest", "-p", "tests.forked", "--forks", "3"]
    done = subprocess.run(
        [*command, "--rootdir", str(tmp_path), str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert words in done.stdout
    assert done.returncode == code
