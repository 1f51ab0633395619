"""Up to which byte is each growing file of a run here? Read once a message, written once."""

from typing import cast

from sqlalchemy import Connection, Table, bindparam, insert, select, update

from service.db.prepared import Prepared
from service.db.schema import OffsetRow

_OFFSETS = cast(Table, OffsetRow.__table__)
_HAVE = Prepared(
    select(_OFFSETS.c.file, _OFFSETS.c.bytes).where(_OFFSETS.c.run == bindparam("of_run"))
)
_MOVE = Prepared(
    update(_OFFSETS).where(
        _OFFSETS.c.run == bindparam("of_run"), _OFFSETS.c.file == bindparam("of_file")
    )
)
_BEGIN = Prepared(insert(_OFFSETS))


class Offsets:
    """The offsets of one run's files within a transaction.

    Args:
        database: of the transaction, which holds the run's progress row.
        run: whose files they are.
    """

    def __init__(self, database: Connection, run: str) -> None:
        self._database = database
        self._run = run
        self.have: dict[str, int] = dict(_HAVE.all(database, {"of_run": run}))
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
        moved = {file: self.have[file] for file in sorted(self._moved)}
        known = [
            {"of_run": self._run, "of_file": file, "bytes": size}
            for file, size in moved.items()
            if file in self._stored
        ]
        new = [
            {"run": self._run, "file": file, "bytes": size}
            for file, size in moved.items()
            if file not in self._stored
        ]
        for statement, rows in ((_MOVE, known), (_BEGIN, new)):
            if rows:
                statement.run(self._database, *rows)
