"""Has every worker of a home a name of its own?"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from worker.host.worker_name import take_worker_number, worker_name


def test_two_workers_of_a_home_have_different_numbers_and_a_dead_one_leaves_its_own(
    tmp_path: Path,
) -> None:
    first, second = take_worker_number(tmp_path), take_worker_number(tmp_path)
    assert first is not None
    assert second is not None
    assert (first[0], second[0]) == (0, 1)
    os.close(first[1])
    third = take_worker_number(tmp_path)
    assert third is not None
    assert third[0] == 0
    for _, descriptor in (second, third):
        os.close(descriptor)


def new_home(folder: Path) -> Path:
    """Return a home in which a worker has taken its number."""
    taken = take_worker_number(folder)
    assert taken is not None
    os.close(taken[1])
    return folder


def test_a_workers_name_is_its_machines_its_homes_and_its_numbers(tmp_path: Path) -> None:
    home, other = new_home(tmp_path / "a"), new_home(tmp_path / "b")
    names = {
        worker_name(home, "node-1", "machine", 0),
        worker_name(home, "node-1", "machine", 1),
        worker_name(home, "node-1", "another machine", 0),
        worker_name(other, "node-1", "machine", 0),
    }
    assert len(names) == 4
    assert worker_name(home, "node 1/a", "machine", 0).startswith("node-1-a-")


@pytest.mark.parametrize("first", ["home", "link"])
def test_a_home_that_another_path_leads_to_has_the_same_workers(tmp_path: Path, first: str) -> None:
    """The key that a worker claims with is bound to its name: it was locked out."""
    home, link = new_home(tmp_path / "home"), tmp_path / "link"
    link.symlink_to(home)
    paths = [home, link] if first == "home" else [link, home]
    names = [worker_name(path, "node", "machine", 0) for path in (*paths, *paths)]
    assert len(set(names)) == 1


def test_a_home_that_was_copied_or_moved_has_workers_of_its_own(tmp_path: Path) -> None:
    home = new_home(tmp_path / "home")
    name = worker_name(home, "node", "machine", 0)
    copy = Path(shutil.copytree(home, tmp_path / "copy"))
    moved = home.rename(tmp_path / "moved")
    others = [worker_name(path, "node", "machine", 0) for path in (copy, moved)]
    assert len({name, *others}) == 3
