"""Does the database of an earlier release go on, with all that was in it, on either database?

`tests/data/releases/0.1.0/database.json.gz` is what release 0.1.0 held in the middle of two demos:
one run going on, one queued, five judged. Paths and the host's name are exchanged.
"""

from __future__ import annotations

import gzip
import json
import uuid
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import MetaData, text

from gonogo.contract.errors import Unavailable
from gonogo.contract.order import Order
from gonogo.ledger.recorded import parse_decision
from service.context import open_context
from service.db.engine import build_engine
from service.db.migrate import HEAD, current_revision, migrate
from service.evidence.files import heartbeat_name, load_bytes
from service.http.auth import load_local_keys
from service.settings import Settings
from tests.servers import PostgresServer
from tests.service.conftest import Plane, serving

Rows = dict[str, list[dict[str, Any]]]
RELEASE = Path(__file__).parents[1] / "data" / "releases" / "0.1.0" / "database.json.gz"
ITS_REVISION = "0002"


@pytest.fixture(scope="module")
def before() -> Rows:
    rows: Rows = json.loads(gzip.decompress(RELEASE.read_bytes()))
    return rows


@pytest.fixture
def upgraded(empty_url: str, before: Rows, tmp_path: Path) -> Iterator[Plane]:
    """The release's database, brought to the newest schema and served."""
    migrate(empty_url, ITS_REVISION)
    engine = build_engine(empty_url)
    tables = MetaData()
    tables.reflect(engine)
    with engine.begin() as connection:
        for table in tables.sorted_tables:
            if before[table.name] and table.name != "alembic_version":
                connection.execute(table.insert(), [_typed(row) for row in before[table.name]])
    engine.dispose()
    migrate(empty_url)
    context = open_context(Settings(home=tmp_path, database_url=empty_url))
    load_local_keys(context)
    with serving(context) as http:
        yield Plane(context=context, http=http, home=tmp_path)


def _typed(row: dict[str, Any]) -> dict[str, Any]:
    """SQLite has 0 and 1 where PostgreSQL has false and true."""
    flags = ("suspect", "lost", "judged", "revoked", "draining", "active")
    return {name: bool(value) if name in flags else value for name, value in row.items()}


def test_what_an_earlier_release_held_is_all_there(upgraded: Plane, before: Rows) -> None:
    for row in before["experiments"]:
        view = upgraded.experiment(row["id"])
        assert (view["name"], view["verdict"]) == (row["name"], row["verdict"])
        decisions = upgraded.get(f"/experiments/{row['id']}/decisions")["items"]
        recorded = [old for old in before["decisions"] if old["experiment"] == row["id"]]
        assert [found["hash"] for found in decisions] == [
            parse_decision(old["document"]).decision.hash for old in recorded
        ]
        assert upgraded.call("GET", f"/experiments/{row['id']}/report").status_code == 200
    listed = upgraded.get("/events", limit=1000)["items"]
    old_ids = [row["id"] for row in sorted(before["events"], key=lambda row: row["cursor"])]
    assert [row["id"] for row in listed][: len(old_ids)] == old_ids
    lines = sorted(before["heartbeats"], key=lambda row: (row["run"], row["rank"], row["n"]))
    for (run, rank), rows in groupby(lines, key=lambda row: (row["run"], row["rank"])):
        text = "".join(f"{row['line']}\n" for row in rows).encode()
        held = upgraded.context.store.read(
            lambda session, run=run, rank=rank: list(load_bytes(session, run, heartbeat_name(rank)))
        )
        assert b"".join(held) == text
        assert upgraded.get(f"/runs/{run}/series", metric="loss")["series"][0]


def test_what_was_queued_and_what_was_going_on_goes_on(upgraded: Plane, before: Rows) -> None:
    queued = next(row for row in before["runs"] if row["state"] == "queued")
    going = next(row for row in before["runs"] if row["state"] == "running")
    worker = upgraded.worker("w2")
    order = upgraded.next_order(worker)
    assert (order.run, order.phase) == (queued["id"], queued["phase"])
    worker.run_through(order)
    upgraded.wait(lambda: upgraded.get(f"/runs/{order.run}")["verdict"] == "GO", "its GO")
    body = {"reason": "host-1 is gone"}
    answer = upgraded.call("POST", f"/experiments/{going['experiment']}/takeover", json=body)
    assert answer.status_code == 202, answer.text

    def again() -> Order | None:
        found: Order | None = worker.claim()
        if found is not None and found.experiment != going["experiment"]:
            worker.active.append(found.run)  # the other demo goes on, too
            return None
        return found

    order = upgraded.wait(again, "the next attempt")
    assert (order.phase, order.attempt) == (going["phase"], 2)
    assert order.token > going["token"]


def test_a_database_without_an_encoding_is_migrated_and_keeps_its_texts(
    postgres_server: PostgresServer,
) -> None:
    url = postgres_server.new_database("--encoding=SQL_ASCII", "--locale=C", "--template=template0")
    migrate(url)
    assert current_revision(url) == (HEAD, HEAD)
    engine = build_engine(url)
    with engine.connect() as connection:
        assert connection.scalar(text("SHOW server_encoding")) == "SQL_ASCII"
        assert connection.scalar(text("SELECT 'Δ loss'")) == "Δ loss"
    engine.dispose()


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        pytest.param("LOGIN", "permission denied for schema public: its role may", id="role"),
        pytest.param("SET default_transaction_read_only = on", "it is read-only", id="replica"),
    ],
)
def test_a_database_that_refuses_the_schema_of_postgres_says_why_in_a_line(
    postgres_url: str, setting: str, said: str
) -> None:
    """Since PostgreSQL 15 a role that does not own a database makes no tables in it."""
    role = f"r{uuid.uuid4().hex[:8]}"
    engine = build_engine(postgres_url)
    with engine.begin() as connection:
        connection.execute(text(f"CREATE ROLE {role} LOGIN"))
        connection.execute(text(f"ALTER ROLE {role} {setting}"))
    url = postgres_url.replace("//gonogo@", f"//{role}@")
    with pytest.raises(Unavailable, match=said) as caught:
        migrate(url)
    assert "\n" not in str(caught.value)
    migrate(postgres_url)
    with pytest.raises(Unavailable, match="cannot be read: permission denied for table"):
        current_revision(url)
    with engine.begin() as connection:
        connection.execute(text(f"DROP ROLE {role}"))
    engine.dispose()
