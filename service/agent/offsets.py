"""Up to which byte is each growing file of a run here? Read once a message, written once."""

from typing import cast

from sqlalchemy import Connection, Table, bindparam, insert, select, update

from service.db.schema import OffsetRow

_OFFSETS = cast(Table, OffsetRow.__table__)
_HAVE = select(_OFFSETS.c.file, _OFFSETS.c.bytes).where(_OFFSETS.c.run == bindparam("run_id"))
_MOVE = update(_OFFSETS).where(
    _OFFSETS.c.run == bindparam("of_run"), _OFFSETS.c.file == bindparam("of_file")
)


class Offsets:
    """The offsets of one run's files within a transaction.

    Args:
        database: of the transaction, which holds the run's progress row.
        run: whose files they are.
    """

    def __init__(self, database: Connection, run: str) -> None:
        self._database = database
        self._run = run
        self.have: dict[str, int] = {
            row.file: row.bytes for row in database.execute(_HAVE, {"run_id": run})
        }
        self._stored = frozenset(self.have)
        self._moved: set[str] = set()

    def advance(self, file: str, start: int, end: int) -> bool:
        """Move a file's offset from `start` to `end`; False when it does not stand at `start`."""
        if start != self.have.get(file, 0) or end <= start:
            return False
        self.skip_to(file, end)
        return True

    def skip_to(self, file: str, end: int) -> None:
        """Move a file's offset, wherever it stands."""
        self.have[file] = end
        self._moved.add(file)

    def store(self) -> None:
        """Write what has moved."""
        for statement, known in ((_MOVE, True), (insert(_OFFSETS), False)):
            rows = [
                {"of_run": self._run, "of_file": file, "bytes": self.have[file]}
                if known
                else {"run": self._run, "file": file, "bytes": self.have[file]}
                for file in sorted(self._moved)
                if (file in self._stored) is known
            ]
            if rows:
                self._database.execute(statement, rows)
