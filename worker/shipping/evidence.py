"""Which files of evidence go to the control plane? At most 50 MB of a run, each once it is whole.

What is larger than one file may be is cut at its end and says so; the whole of it stays on the
host. So does a file whose name no message takes: too long, or no text.
"""

import base64
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from gonogo.contract.agent import (
    MAX_EVIDENCE_BYTES,
    MAX_EVIDENCE_FILES,
    MAX_EVIDENCE_PATH,
    EvidenceReport,
)
from gonogo.contract.errors import Rejected
from gonogo.rundir import RunDir, is_text

MAX_FILE_BYTES = 4 * 2**20
TOLD_AT_THE_END = (
    *("profile.json", "profile.txt"),
    *("gate_health.csv", "k_stats.csv", "fallback_counters.csv"),
)
"""What a trainer may leave for the report; sent once, when nothing writes to it any more."""
SETTLED_S = 1.0
"""A file that was written more recently may not be whole yet, while the run lives."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvidenceFile:
    """One file to upload; `path` is relative to the run directory."""

    path: str
    bytes: int


def pending_evidence(
    run_dir: RunDir, uploaded: Mapping[str, int], *, ended: bool, now: float | None = None
) -> list[EvidenceFile]:
    """Return the files not uploaded at their present size, evidence first, within the limit."""
    now = time.time() if now is None else now
    room = MAX_EVIDENCE_BYTES - sum(min(size, MAX_FILE_BYTES) for size in uploaded.values())
    pending: list[EvidenceFile] = []
    candidates = _candidates(run_dir, ended=ended)
    for path in sorted(candidates, key=lambda path: (path.name in TOLD_AT_THE_END, path)):
        try:
            stat = path.stat()
        except FileNotFoundError:
            continue
        name = str(path.relative_to(run_dir.path))
        if len(name) > MAX_EVIDENCE_PATH or not is_text(name):
            continue
        settled = ended or abs(now - stat.st_mtime) > SETTLED_S
        if uploaded.get(name) == stat.st_size or not settled:
            continue
        cost = min(stat.st_size, MAX_FILE_BYTES)
        if cost > room or len(uploaded) + len(pending) >= MAX_EVIDENCE_FILES:
            break
        room -= cost
        pending.append(EvidenceFile(path=name, bytes=stat.st_size))
    return pending


def build_evidence(run_dir: RunDir, token: int, item: EvidenceFile) -> EvidenceReport | None:
    """Return the upload of one file, or None when it is gone or leads out of the directory.

    Raises:
        OSError: it cannot be read just now.
    """
    try:
        with run_dir.inside(item.path).open("rb") as stream:
            data = stream.read(MAX_FILE_BYTES)
    except (FileNotFoundError, Rejected):
        return None
    return EvidenceReport(
        token=token,
        path=item.path,
        content_b64=base64.b64encode(data).decode("ascii"),
        truncated=item.bytes > len(data),
    )


def _candidates(run_dir: RunDir, *, ended: bool) -> Iterator[Path]:
    """Yield the plain files of evidence/, the stack dumps, and at the end the trainer's tables."""
    for folder, _, names in os.walk(run_dir.evidence):
        yield from (Path(folder) / name for name in names if _is_whole(Path(folder) / name))
    yield from (path for path in run_dir.path.glob("stackdump_rank*.txt") if _is_whole(path))
    if ended:
        tables = (run_dir.path / name for name in TOLD_AT_THE_END)
        yield from (path for path in tables if _is_whole(path))


def _is_whole(path: Path) -> bool:
    name = path.name
    unfinished = name.startswith(".") or name.endswith((".tmp", ".part"))
    return not unfinished and path.is_file() and not path.is_symlink()
