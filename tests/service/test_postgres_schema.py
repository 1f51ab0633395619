"""The schema on PostgreSQL databases that are unusual, or refuse it."""

from __future__ import annotations

import uuid

import pytest
from sqlalchemy import text

from gonogo.contract.errors import Unavailable
from service.db.store import HEAD, build_engine, current_revision, migrate
from tests.servers import PostgresServer


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
        pytest.param(
            "LOGIN", "permission denied for schema public; its role must own it", id="role"
        ),
        pytest.param(
            "SET default_transaction_read_only = on",
            "read-only transaction; .* on a server that takes writes",
            id="replica",
        ),
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
    with pytest.raises(Unavailable, match="cannot be opened: permission denied for table"):
        current_revision(url)
    with engine.begin() as connection:
        connection.execute(text(f"DROP ROLE {role}"))
    engine.dispose()
