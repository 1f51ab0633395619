"""Is a lock held once, and free again when its holder lets go?"""

from __future__ import annotations

import os
from pathlib import Path

from gonogo.supervise.locks import holding, take_lock


def test_a_lock_is_held_once(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "x.lock"
    held = take_lock(path)
    assert held is not None
    assert take_lock(path) is None
    os.close(held)
    with holding(path) as free:
        assert free
