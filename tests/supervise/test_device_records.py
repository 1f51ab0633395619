"""Is a device kept away for as long as it must, and does its record say the way out?"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gonogo.supervise import locks as rooms
from gonogo.supervise.locks import quarantine, without_quarantined

DAY = 86_400.0


def test_a_device_comes_back_by_itself_or_when_its_file_is_removed(tmp_path: Path) -> None:
    quarantine(tmp_path, "GPU-a", "900 MB are in use", now=1000.0)
    path = tmp_path / "quarantine" / "GPU-a.json"
    stored = json.loads(path.read_text())
    assert (stored["reason"], stored["until"]) == ("900 MB are in use", 1600.0)
    assert without_quarantined(tmp_path, ("GPU-a", "GPU-b"), 1599.0) == ("GPU-b",)
    assert without_quarantined(tmp_path, ("GPU-a", "GPU-b"), 1600.0) == ("GPU-a", "GPU-b")
    path.unlink()
    assert without_quarantined(tmp_path, ("GPU-a",), 1001.0) == ("GPU-a",)


def test_a_fault_of_the_device_holds_until_the_host_boots(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quarantine(tmp_path, "GPU-a", "Xid 79", now=0.0, until_reboot=True)
    assert without_quarantined(tmp_path, ("GPU-a",), 30 * DAY) == ()
    quarantine(tmp_path, "GPU-a", "not free", now=1.0)
    assert without_quarantined(tmp_path, ("GPU-a",), 30 * DAY) == (), "no sooner than that"
    monkeypatch.setattr(rooms, "boot_id", lambda: "another")
    assert without_quarantined(tmp_path, ("GPU-a",), 1.0) == ("GPU-a",)


@pytest.mark.parametrize("torn", ["", "{", "[]", '{"until": "soon", "reason": "x"}', "{}"])
def test_a_record_that_cannot_be_read_holds(tmp_path: Path, torn: str) -> None:
    (tmp_path / "quarantine").mkdir()
    (tmp_path / "quarantine" / "GPU-a.json").write_text(torn)
    assert without_quarantined(tmp_path, ("GPU-a", "GPU-b"), 1e12) == ("GPU-b",)
    quarantine(tmp_path, "GPU-a", "x", now=0.0)
    assert without_quarantined(tmp_path, ("GPU-a",), 1e12) == ("GPU-a",)
