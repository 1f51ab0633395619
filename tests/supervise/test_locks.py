"""Is a lock held once, and free again when its holder lets go?"""

from __future__ import annotations

import os
from pathlib import Path

from gonogo.supervise.locks import holding, is_locked, open_host_folder, take_lock


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


def test_the_hosts_folder_is_open_to_all(tmp_path: Path) -> None:
    assert open_host_folder(tmp_path / "locks") is not None
    assert (tmp_path / "locks").stat().st_mode & 0o7777 == 0o1777
