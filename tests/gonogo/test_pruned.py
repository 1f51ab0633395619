"""Does a run directory say that it was pruned?"""

from __future__ import annotations

from pathlib import Path

import pytest

import gonogo.pruned
from gonogo.pruned import PRUNED_NAME, pruned_text


def test_a_record_that_cannot_be_parsed_says_that_it_was_pruned(tmp_path: Path) -> None:
    (tmp_path / PRUNED_NAME).write_text("{")
    assert pruned_text(tmp_path) == "it was pruned (nobody says why)"


def test_a_directory_that_may_not_be_read_was_not_pruned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(path: Path) -> bytes:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(gonogo.pruned, "read_small", refused)
    assert pruned_text(tmp_path) is None
