"""Is what was acknowledged remembered, and no more than that?"""

from __future__ import annotations

from pathlib import Path

from gonogo.contract.lifecycle import RunEvent
from worker.shipping.state import Reported, load_reported


def test_what_was_reported_is_remembered(tmp_path: Path) -> None:
    reported = Reported(
        events=[RunEvent.CHECK], stepped_at=1.5, findings_bytes=7, evidence={"a": 1}
    )
    reported.save(tmp_path)
    assert load_reported(tmp_path) == reported
    (tmp_path / ".reported.json").write_text("torn")
    assert load_reported(tmp_path) == Reported()


def test_a_disk_that_refuses_does_not_stop_the_shipping(tmp_path: Path) -> None:
    blocked = tmp_path / "blocked"
    blocked.touch()
    Reported(findings_bytes=7).save(blocked)
    assert load_reported(blocked) == Reported()
