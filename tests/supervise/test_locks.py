"""Is a lock held once, and free again when its holder lets go?"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

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


@pytest.mark.parametrize("linked", [True, False])
def test_a_folder_of_ours_is_opened_to_all_only_under_its_own_name(
    linked: bool, tmp_path: Path
) -> None:
    folder, own = tmp_path / "locks", tmp_path / "own"
    own.mkdir(0o700)
    if linked:
        folder.symlink_to(own)
    assert open_host_folder(folder if linked else own) is not None
    assert own.stat().st_mode & 0o7777 == (0o700 if linked else 0o1777)
