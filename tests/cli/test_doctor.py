"""`gonogo doctor` says which workers the service hears, beside a service that answers."""

from __future__ import annotations

from sqlalchemy import update

from service.db.schema import WorkerRow
from service.experiments.workers import SILENT_S
from tests.cli.conftest import Gonogo
from tests.service.conftest import Plane


def service_row(gonogo: Gonogo) -> tuple[str, str]:
    """Outcome and text of what the doctor says of the service."""
    checks = gonogo("doctor", "--json").json()["checks"]
    (row,) = (row for row in checks if row["id"] == "service")
    return row["outcome"], row["text"]


def test_workers_that_nobody_hears_are_not_well(plane: Plane, gonogo: Gonogo) -> None:
    """A key that is refused, a process that stands still: they were counted among the living."""
    assert service_row(gonogo)[0] == "warn"
    plane.worker(name="w1").claim()
    outcome, text = service_row(gonogo)
    assert (outcome, text) == ("pass", f"{plane.context.url}, 1 worker(s)")
    silence = update(WorkerRow).values(seen_at=WorkerRow.seen_at - SILENT_S - 60)
    plane.context.store.write(lambda session: session.execute(silence))
    outcome, text = service_row(gonogo)
    assert outcome == "warn"
    assert "0 worker(s), 1 silent (`gonogo workers`" in text
    assert "start one with `gonogo worker`" in text
    plane.worker(name="w2", host="host-2").claim()
    outcome, text = service_row(gonogo)
    assert outcome == "pass"
    assert "1 worker(s), 1 silent" in text
