"""Can another user of the host hold what only we are to lock?"""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from gonogo.private_file import open_private

NOBODY = 65_534
HOLD = (
    "import fcntl, os, sys; os.seteuid(65534);"
    "fcntl.flock(os.open(sys.argv[1], os.O_RDONLY), fcntl.LOCK_EX | fcntl.LOCK_NB)"
)


@pytest.fixture
def home() -> Iterator[Path]:
    """A folder that every user of the host may look into, as one that was made by hand."""
    with tempfile.TemporaryDirectory(prefix="gonogo-test-") as found:
        os.chmod(found, 0o755)
        yield Path(found)


@pytest.mark.parametrize("before", [None, 0o644, 0o666, 0o640])
def test_others_may_not_open_it(before: int | None, home: Path) -> None:
    path = home / "up.lock"
    if before is not None:
        path.write_bytes(b"kept")
        path.chmod(before)
    with open_private(path) as stream:
        assert path.stat().st_mode & 0o777 == 0o600
        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with open_private(path) as other, pytest.raises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    assert path.read_bytes() == (b"" if before is None else b"kept")


def test_another_user_holds_no_lock_of_ours(home: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root may act as another user")
    open_to_all = home / "open.lock"
    open_to_all.touch(0o644)
    open_to_all.chmod(0o644)
    open_private(home / "own.lock").close()
    held = [subprocess.run([sys.executable, "-c", HOLD, path], check=False, capture_output=True)
            for path in (open_to_all, home / "own.lock")]  # fmt: skip
    assert [row.returncode == 0 for row in held] == [True, False]
    assert b"PermissionError" in held[1].stderr


def test_one_of_another_owner_is_left_as_it_is(home: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root may give a file away")
    path = home / "up.lock"
    path.touch(0o644)
    path.chmod(0o644)
    os.chown(path, NOBODY, -1)
    open_private(path).close()
    assert path.stat().st_mode & 0o777 == 0o644
