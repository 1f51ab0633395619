"""How does a benchmark fill another's SQLite tables? Row by row, as copies of one that is there."""

import sqlite3
from typing import Any


def insert_row(connection: sqlite3.Connection, table: str, row: dict[str, Any]) -> None:
    """Insert a row by the names of its columns."""
    names = ", ".join(f'"{name}"' for name in row)
    marks = ", ".join("?" * len(row))
    connection.execute(f"INSERT INTO {table} ({names}) VALUES ({marks})", list(row.values()))
