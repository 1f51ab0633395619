"""Is a lock held once, and free again when its holder lets go?"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gonogo.supervise.locks import holding, is_locked, take_lock


def test_a_lock_is_held_once(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "x.lock"
    held = take_lock(path)
    assert held is not None
    assert take_lock(path) is None
    os.close(held)
    with holding(path) as free:
        assert free


def test_asking_for_a_lock_does_not_hide_it_from_others_who_ask(tmp_path: Path) -> None:
    path = tmp_path / "x.lock"
    path.touch()
    assert not any(is_locked(path) for _ in range(50))


@pytest.mark.parametrize("asked", ["is_locked", "take_lock"])
def test_a_pipe_in_a_lock_s_place_is_not_waited_for(asked: str, tmp_path: Path) -> None:
    lock = tmp_path / "GPU-1.lock"
    os.mkfifo(lock, 0o444)
    ask = (
        "import sys; from pathlib import Path; from gonogo.supervise import locks;"
        f"locks.{asked}(Path(sys.argv[1]))"
    )
    subprocess.run([sys.executable, "-c", ask, str(lock)], timeout=20.0, check=True)
