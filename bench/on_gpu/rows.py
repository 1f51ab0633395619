"""Where does a figure go the moment it is measured? One JSON line, on the disk before the next."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import torch

from bench.on_gpu.failures import first_line, is_fatal
from bench.on_gpu.plan import ROW_LIMIT_S


def append_row(file: Path, run: str, row: str, **values: Any) -> None:
    """Append one line and sync it to the disk, so that a kill loses nothing of it."""
    line = json.dumps({"run": run, "row": row, **values}, default=str) + "\n"
    with file.open("a+b") as stream:
        if stream.tell() and not _ends_a_line(stream):
            stream.write(b"\n")  # the writer before was killed meanwhile
        stream.write(line.encode())
        stream.flush()
        os.fsync(stream.fileno())
    print(line, end="", flush=True)


def _ends_a_line(stream: BinaryIO) -> bool:
    stream.seek(-1, os.SEEK_END)
    return stream.read(1) == b"\n"


def read_rows(file: Path, run: str) -> list[dict[str, Any]]:
    """The rows of one run; a line that is torn is no row."""
    rows = []
    text = file.read_text(encoding="utf-8", errors="replace") if file.exists() else ""
    for line in text.splitlines():
        try:
            found = json.loads(line)
        except ValueError:
            continue
        if isinstance(found, dict) and found.get("run") == run:
            rows.append(found)
    return rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """What a stage is given.

    Attributes:
        device: Where it measures; on a CPU everything is tiny.
        file: Where rows go.
        run: Of which command they are.
        left_s: Seconds until its own deadline.
        begun: What processes before this one began: they measured it, or broke down at it.
    """

    device: torch.device
    file: Path
    run: str
    left_s: Callable[[], float]
    begun: frozenset[str] = frozenset()

    @property
    def tiny(self) -> bool:
        """Whether this is the smoke test of a machine without a GPU."""
        return self.device.type != "cuda"

    def tell(self, row: str, **values: Any) -> None:
        """Append a row."""
        append_row(self.file, self.run, row, **values)

    def measure(
        self,
        row: str,
        what: str,
        unit: Callable[[], Mapping[str, Any]],
        *,
        needed_s: float = 1.0,
        limit_s: float = ROW_LIMIT_S,
        **known: Any,
    ) -> None:
        """Append the row of one thing that is measured, or why there is none.

        Args:
            row: Its kind.
            what: Its unique name, written before it begins, in case this process dies.
            unit: Measures; any error of it becomes a row, since a kernel that does not compile or
                fit must not take the others with it.
            needed_s: Left out where less time is left; a row says so.
            limit_s: Its own deadline. The parent then ends this process, and another one continues
                with the next thing.
            known: Values of the row whatever comes of it.

        Raises:
            Exception: An error after which nothing more can be measured in this process.
        """
        if what in self.begun:
            return
        if self.left_s() < needed_s:
            left_s = round(self.left_s(), 1)
            self.tell("left_out", what=what, needed_s=needed_s, left_s=left_s)
            return
        self.tell("begin", what=what, limit_s=limit_s)
        try:
            told = unit()
        except Exception as error:
            self.tell(row, **known, error=first_line(error))
            if is_fatal(error):
                raise
        else:
            self.tell(row, **{**known, **told})


def begun(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """What was begun, in order."""
    return [row["what"] for row in rows if row["row"] == "begin"]
