"""What a small file says outlives a power cut, its name too."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gonogo import rundir
from gonogo.supervise import durable


@pytest.mark.parametrize(
    "save",
    [durable.save_json, durable.create_json, rundir.save_json],
    ids=["over what was there", "where nothing was", "with values of the contract"],
)
def test_a_name_is_synced_after_it_was_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, save: Callable[[Path, Any], object]
) -> None:
    """A file's own fsync does not cover its name: without it the file may be gone, whole."""
    real, path = os.fsync, tmp_path / "exit.json"
    synced: list[tuple[str, bool]] = []

    def sync(descriptor: int) -> None:
        name = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        synced.append(("folder" if name == tmp_path else "file", path.exists()))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", sync)
    save(path, {"v": 1})
    assert synced == [("file", False), ("folder", True)]
