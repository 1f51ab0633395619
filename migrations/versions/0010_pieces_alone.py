"""Heartbeats are kept once, as pieces of their files; lists of experiments read no plan.

What a file's pieces do not hold from its first byte on (it was shipped, or begun to be, before
there were pieces) is made of the lines.
"""

import zlib
from itertools import groupby

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

_LINES = 2_000


def upgrade() -> None:
    """Number the pieces, make those that are missing, drop the lines; copy what lists show."""
    op.add_column("pieces", sa.Column("n", sa.BigInteger(), nullable=True))
    op.add_column("pieces", sa.Column("lines", sa.Integer(), nullable=True))
    op.add_column("phases", sa.Column("init_from", sa.String(64), nullable=True))
    op.add_column("experiments", sa.Column("needs", sa.Text(), nullable=True))
    _fill_phases(op.get_bind())
    op.add_column("runs", sa.Column("packed", sa.Boolean(), nullable=True))
    op.create_index("ix_runs_judged_state_packed", "runs", ["judged", "state", "packed"])
    op.drop_index("ix_experiments_state", "experiments")
    op.create_index("ix_experiments_state_id_ended_at", "experiments", ["state", "id", "ended_at"])
    connection = op.get_bind()
    known = sa.text("SELECT DISTINCT run, rank FROM heartbeats ORDER BY run, rank")
    ranks = [tuple(row) for row in connection.execute(known)]
    for run, group in groupby(ranks, key=lambda row: row[0]):
        number = 1
        for _, rank in group:
            file = f"heartbeat_rank{rank}.jsonl"
            if not _is_whole(connection, run, file):
                _make_pieces(connection, run, rank, file)
            number = _number_pieces(connection, run, file, number)
    op.drop_table("heartbeats")


def _fill_phases(connection: sa.Connection) -> None:
    """Copy out of each plan which phase another begins with."""
    experiments = sa.table("experiments", sa.column("id"), sa.column("resolved", sa.JSON()))
    for experiment, resolved in connection.execute(sa.select(experiments)).all():
        for phase in resolved.get("plan", {}).get("phases", ()):
            if phase.get("init_from") is not None:
                connection.execute(
                    sa.text(
                        "UPDATE phases SET init_from = :init_from"
                        " WHERE experiment = :experiment AND name = :name"
                    ),
                    {
                        "init_from": phase["init_from"],
                        "experiment": experiment,
                        "name": phase["name"],
                    },
                )


def _is_whole(connection: sa.Connection, run: str, file: str) -> bool:
    first = sa.text("SELECT 1 FROM pieces WHERE run = :run AND file = :file AND start = 0")
    return connection.execute(first, {"run": run, "file": file}).first() is not None


def _make_pieces(connection: sa.Connection, run: str, rank: int, file: str) -> None:
    connection.execute(
        sa.text("DELETE FROM pieces WHERE run = :run AND file = :file"), {"run": run, "file": file}
    )
    lines = sa.text("SELECT line FROM heartbeats WHERE run = :run AND rank = :rank ORDER BY n")
    found = connection.execute(lines, {"run": run, "rank": rank})
    start = 0
    while rows := found.fetchmany(_LINES):
        raw = "".join(f"{line}\n" for (line,) in rows).encode(errors="replace")
        row = {"run": run, "file": file, "start": start, "end": start + len(raw)}
        connection.execute(
            sa.text(
                'INSERT INTO pieces (run, file, start, "end", packed)'
                " VALUES (:run, :file, :start, :end, :packed)"
            ),
            {**row, "packed": zlib.compress(raw, 1)},
        )
        start += len(raw)


def _number_pieces(connection: sa.Connection, run: str, file: str, number: int) -> int:
    """Number a rank's pieces from a line on; return the number of the next line."""
    pieces = sa.text("SELECT start, packed FROM pieces WHERE run = :run AND file = :file")
    rows = connection.execute(pieces, {"run": run, "file": file}).all()
    for start, packed in sorted(tuple(row) for row in rows):
        lines = zlib.decompress(packed).count(b"\n")
        connection.execute(
            sa.text(
                "UPDATE pieces SET n = :n, lines = :lines"
                " WHERE run = :run AND file = :file AND start = :start"
            ),
            {"n": number, "lines": lines, "run": run, "file": file, "start": start},
        )
        number += lines
    return number
