"""Where does a figure go the moment it is measured? One JSON line, on the disk before the next."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import torch


def append_row(file: Path, run: str, row: str, **values: Any) -> None:
    """Append one line and have it on the disk; whoever is killed next loses nothing of it."""
    line = json.dumps({"run": run, "row": row, **values}, default=str) + "\n"
    with file.open("a+b") as stream:
        if stream.tell() and not _ends_a_line(stream):
            stream.write(b"\n")  # whoever wrote before was killed at it
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
    """

    device: torch.device
    file: Path
    run: str
    left_s: Callable[[], float]

    @property
    def tiny(self) -> bool:
        """Whether this is the smoke test of a machine without a GPU."""
        return self.device.type != "cuda"

    def tell(self, row: str, **values: Any) -> None:
        """Append a row."""
        append_row(self.file, self.run, row, **values)

    def has_time(self, what: str, needed_s: float = 1.0) -> bool:
        """Whether there is time for this; a row says so where there is not."""
        if self.left_s() >= needed_s:
            return True
        self.tell("left_out", what=what, needed_s=needed_s, left_s=round(self.left_s(), 1))
        return False
