"""Where does a figure go the moment it is measured? One JSON line, on the disk before the next."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import torch

from bench.on_gpu.plan import ROW_LIMIT_S

_FATAL = (
    "CUDA error",
    "illegal memory access",
    "illegal instruction",
    "misaligned address",
    "unspecified launch failure",
    "device-side assert",
)


def first_line(error: BaseException) -> str:
    """Return kind and text of an error in one line."""
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"[:300]


def is_fatal(error: BaseException) -> bool:
    """Whether every later CUDA call would fail as well."""
    return any(word in str(error) for word in _FATAL)


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
    """What a stage is given."""

    device: torch.device
    """Where it measures; on a CPU everything is tiny."""
    file: Path
    run: str
    left_s: Callable[[], float]
    """Seconds until the deadline of the stage."""
    begun: frozenset[str] = frozenset()
    """What earlier processes measured, or broke down at."""

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
            row: kind of the row.
            what: unique name, written first in case this process dies.
            unit: measures; its errors become rows.
            needed_s: left out if less time is left.
            limit_s: deadline, at which the parent ends this process.
            known: values of the row in any case.

        Raises:
            Exception: an error after which the device is of no use to this process.
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
