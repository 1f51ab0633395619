"""Keep row groups of remote files on disk, the least recently used leaving first.

Several ranks may share the folder. A cache that cannot be read or written only costs time.
"""

import hashlib
import os
import secrets
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq


class RowGroupCache:
    """Tables by name, in a folder of at most `limit_bytes`."""

    def __init__(self, folder: Path, limit_bytes: int) -> None:
        self._folder, self._limit_bytes = folder, limit_bytes

    def load(self, name: str) -> pa.Table | None:
        """The table of a name; None when it is not here."""
        file = self._file(name)
        try:
            table = pq.read_table(file)
            os.utime(file)
        except (OSError, pa.ArrowException):
            return None
        return table

    def save(self, name: str, table: pa.Table) -> None:
        """Keep a table, at the cost of the least recently used; one that is too large is not."""
        file = self._file(name)
        draft = file.with_suffix(f".{secrets.token_hex(4)}")
        try:
            packed = pa.BufferOutputStream()
            pq.write_table(table, packed, compression="zstd")
            data = packed.getvalue()
            if data.size > self._limit_bytes:
                return
            self._folder.mkdir(parents=True, exist_ok=True)
            self._shrink(self._limit_bytes - data.size)
            draft.write_bytes(data)
            draft.replace(file)
        except (OSError, pa.ArrowException):
            with suppress(OSError):
                draft.unlink()

    def _file(self, name: str) -> Path:
        return self._folder / f"{hashlib.sha256(name.encode()).hexdigest()[:32]}.parquet"

    def _shrink(self, limit_bytes: int) -> None:
        """Delete what is oldest until the rest fits; a killed process's drafts are old some day."""
        kept = []
        for file in self._folder.iterdir():
            try:
                kept.append((file.stat().st_mtime, file.stat().st_size, file))
            except FileNotFoundError:  # another rank was quicker
                continue
        total = sum(size for _, size, _ in kept)
        for _, size, file in sorted(kept):
            if total <= limit_bytes:
                return
            file.unlink(missing_ok=True)
            total -= size
