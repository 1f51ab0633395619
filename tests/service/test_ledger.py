"""The control plane signs what it records, adopts what was there, and says where the chain ends."""

from __future__ import annotations

import errno
import os
import stat
from typing import Any

import pytest

from gonogo.contract.errors import Rejected
from gonogo.ledger.recorded import load_decision, record_of
from gonogo.ledger.sign import trusting
from gonogo.ledger.verify import check_chain, verify_folder
from gonogo.signing import create_signing_key, load_public_key, load_signing_key, save_signing_key
from service.conductor.conductor import save_decision_files
from service.context import open_context
from service.settings import Settings
from tests.service.conftest import Plane


def decisions_of(plane: Plane, runs: int = 1) -> list[dict[str, Any]]:
    """The decisions of an experiment after its first runs, whatever they came to."""
    experiment = plane.submit()
    worker = plane.worker()
    for _ in range(runs):
        worker.run_through(plane.next_order(worker))
    path = f"/experiments/{experiment}/decisions"
    found: list[dict[str, Any]] = plane.wait(
        lambda: (rows := plane.get(path)["items"])[runs - 1 :] and rows, "decisions"
    )
    return found


def test_every_decision_is_signed_by_the_home_and_verifies_from_its_file(plane: Plane) -> None:
    rows = decisions_of(plane)
    key = load_public_key(plane.home / "signing.pub")
    assert {row["key_id"] for row in rows} == {key.key_id}
    files = [plane.home / "decisions" / f"{row['id']}.json" for row in rows]
    for file in files:
        plane.wait(file.exists, file.name)
    assert [load_decision(file).document for file in files] == rows
    found = verify_folder(plane.home / "decisions", trusting([key]))
    assert (found.ok, found.decisions) == (True, len(rows))
    assert plane.get(f"/decisions/{rows[0]['id']}") == rows[0], "the document itself"
    assert check_chain([record_of(row) for row in rows], trusting([key])) == []
    assert_head_stands_outside(plane, rows)


def assert_head_stands_outside(plane: Plane, rows: list[dict[str, Any]]) -> None:
    """In alerts, events and the report."""
    said = {"hash": rows[-1]["hash"], "key_id": rows[-1]["key_id"]}
    alerts = [row["data"]["decision"] for row in plane.get("/alerts", limit=100)["items"]
              if row["type"] == "decision.made"]  # fmt: skip
    assert said in [{name: row[name] for name in said} for row in alerts]
    made = plane.wait(
        lambda: [row["data"] for row in plane.get("/events", limit=1000)["items"]
                 if row["type"] == "decision.made"][len(rows) - 1 :],
        "the events",
    )  # fmt: skip
    assert said in [{name: row[name] for name in said} for row in made]
    report = plane.call("GET", f"/experiments/{rows[0]['experiment']}/report").text
    assert rows[-1]["hash"][:16] in report
    assert rows[-1]["key_id"] in report


def test_a_decision_stands_though_the_disk_takes_no_file_of_it(
    plane: Plane, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A person who saw a failure decided a second time; the file comes when there is room."""

    def refuse(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as full:
        full.setattr("service.experiments.decisions.save_json", refuse)
        experiment = plane.submit()
        worker = plane.worker()
        worker.run_through(plane.next_order(worker))
        plane.wait(lambda: plane.get(f"/experiments/{experiment}/decisions")["items"], "a decision")
        plane.call("POST", f"/experiments/{experiment}/cancel", json={"reason": "enough"})
        plane.wait_state(experiment, "finished")
        said = {"verdict": "NO_GO", "reason": "not worth it"}
        answer = plane.call("POST", f"/experiments/{experiment}/decisions", json=said)
        assert answer.status_code == 201, answer.text
    told = plane.get("/events", limit=500)["items"]
    assert "run.unjudged" not in {row["type"] for row in told}
    rows = plane.get(f"/experiments/{experiment}/decisions")["items"]
    assert [row["kind"] for row in rows].count("human") == 1
    save_decision_files(plane.context)
    folder = plane.home / "decisions"
    assert {path.stem for path in folder.glob("dec_*.json")} == {row["id"] for row in rows}
    assert verify_folder(folder, trusting([load_public_key(plane.home / "signing.pub")])).ok


def test_the_first_start_makes_the_key_and_later_ones_keep_it(settings: Settings) -> None:
    open_context(settings).store.close()
    mode = stat.S_IMODE((settings.home / "signing.key").stat().st_mode)
    assert mode == 0o600
    key = load_signing_key(settings.home)
    context = open_context(settings)
    context.store.close()
    assert load_signing_key(settings.home) == key


@pytest.mark.parametrize("left", ["files", "rows"])
def test_a_home_that_lost_both_halves_of_its_key_starts_no_more(plane: Plane, left: str) -> None:
    for row in decisions_of(plane):
        plane.wait((plane.home / "decisions" / f"{row['id']}.json").exists, row["id"])
    settings = plane.context.settings
    if left == "rows":
        settings = Settings(home=plane.home / "another", database_url=settings.database_url)
    for name in ("signing.key", "signing.pub"):
        (plane.home / name).rename(plane.home / f"{name}.away")
    said = r"are signed.*: bring .* a backup.* begin with another GONOGO_HOME and database"
    with pytest.raises(Rejected, match=said):
        open_context(settings)
    assert not (settings.home / "signing.key").exists()
    settings.home.mkdir(exist_ok=True)
    for name in ("signing.key", "signing.pub"):
        (plane.home / f"{name}.away").rename(settings.home / name)
    open_context(settings).store.close()


def test_a_home_with_a_key_of_its_own_starts_on_no_database_of_another_home(plane: Plane) -> None:
    """It signed on where the other had, and every such chain had two keys from then on."""
    signer = decisions_of(plane)[0]["key_id"]
    url = plane.context.settings.database_url
    other = Settings(home=plane.home / "another", database_url=url)
    key = save_signing_key(other.home, create_signing_key())
    said = f"signed by the key {signer}, and this home's is {key.key_id}"
    with pytest.raises(Rejected, match=said):
        open_context(other)
    open_context(plane.context.settings).store.close()
