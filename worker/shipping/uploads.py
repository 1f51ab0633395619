"""Whole files that are uploaded: evidence, and the small records that the judge reads.

At most 50 MB of evidence a run, each file once it is complete. A larger file is truncated and
marked so; all of it stays on the host.
"""

import base64
import hashlib
import logging
import os
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from gonogo.contract.agent import (
    MAX_EVIDENCE_BYTES,
    MAX_EVIDENCE_FILES,
    MAX_EVIDENCE_PATH,
    MAX_RECORD_BYTES,
    MAX_RECORDS_BYTES,
    RECORD_PATH,
    EvidenceReport,
    RecordReport,
)
from gonogo.contract.errors import Rejected, StaleToken
from gonogo.files import is_for_good, read_plain
from gonogo.rundir import RunDir, is_text
from worker.client import ControlPlane, KeyRefused

MAX_FILE_BYTES = 4 * 2**20
SENT_AT_THE_END = (
    *("profile.json", "profile.txt"),
    *("gate_health.csv", "k_stats.csv", "fallback_counters.csv"),
)
"""Tables of a trainer, uploaded once nothing writes to them any more."""
SETTLED_S = 1.0
"""While the run lives, a file that was written more recently may be incomplete."""

_RECORD = re.compile(RECORD_PATH)
_NUMBER = re.compile(r"[0-9]+")
_PATTERNS = ("*.json", "preflight/*.json", "preflight/node*/preflight.json", ".HALT", ".kill")

_log = logging.getLogger(__name__)


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
    for path in sorted(candidates, key=lambda path: (path.name in SENT_AT_THE_END, path)):
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
        OSError: it cannot be read now.
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
    """Yield the files of evidence/, the stack dumps, and at the end the trainer's tables."""
    paths = [
        Path(folder) / name for folder, _, names in os.walk(run_dir.evidence) for name in names
    ]
    paths += run_dir.path.glob("stackdump_rank*.txt")
    paths += [run_dir.path / name for name in SENT_AT_THE_END] if ended else []
    for path in paths:
        unfinished = path.name.startswith(".") or path.name.endswith((".tmp", ".part"))
        if not unfinished and path.is_file() and not path.is_symlink():
            yield path


@dataclass(frozen=True, slots=True, kw_only=True)
class SmallRecord:
    """One record; `path` is relative to the run directory."""

    path: str
    content: bytes

    @property
    def sha256(self) -> str:
        """Digest of its bytes."""
        return hashlib.sha256(self.content).hexdigest()


def load_small_records(run_dir: RunDir) -> list[SmallRecord]:
    """Return the small records that there are.

    One that is too large is left out, and so are those beyond the limit for all of them. Records of
    ranks and nodes come last, in the order of their numbers.
    """
    found, room = [], MAX_RECORDS_BYTES
    os.listdir(run_dir.path)  # or raise: `glob` may pass over what cannot be read now
    paths = (path for pattern in _PATTERNS for path in run_dir.path.glob(pattern))
    names = {str(path.relative_to(run_dir.path)) for path in paths}
    for name in sorted(filter(_RECORD.fullmatch, names), key=_record_order):
        path = run_dir.path / name
        if path.is_symlink():
            continue
        try:
            with read_plain(path) as stream:
                content = stream.read(MAX_RECORD_BYTES + 1)
        except OSError as error:
            if not (isinstance(error, FileNotFoundError) or is_for_good(error)):
                raise
            continue
        if len(content) > MAX_RECORD_BYTES:
            _log.warning("%s is too large to ship", name, extra={"action": "record_too_large"})
            continue
        if len(content) > room:
            _log.warning("%s and more is too much to ship", name, extra={"action": "no_room"})
            break
        room -= len(content)
        found.append(SmallRecord(path=name, content=content))
    return found


def _record_order(name: str) -> tuple[int, str]:
    number = _NUMBER.search(name)
    return (-1 if number is None else int(number[0])), name


class SentRecords:
    """The small records of one run that the control plane has."""

    def __init__(self, run_dir: RunDir, run: str, token: int, client: ControlPlane) -> None:
        self._dir, self._run, self._token, self._client = run_dir, run, token, client
        self._sent: dict[str, str] = {}

    def send(self) -> dict[str, str]:
        """Upload what is new or has changed; return path → digest of those that were accepted.

        Raises:
            StaleToken, KeyRefused, Unavailable: see `ControlPlane`.
        """
        records = load_small_records(self._dir)
        for record in records:
            if self._sent.get(record.path) != record.sha256:
                self._send(record)
        return {
            record.path: record.sha256
            for record in records
            if self._sent.get(record.path) == record.sha256
        }

    def forget(self) -> None:
        """Send all of them again."""
        self._sent = {}

    def _send(self, record: SmallRecord) -> None:
        content = base64.b64encode(record.content).decode("ascii")
        report = RecordReport(token=self._token, path=record.path, content_b64=content)
        try:
            self._client.post_record(self._run, report)
        except (StaleToken, KeyRefused):
            raise  # about the caller, not about the record
        except Rejected as error:
            _log.warning("%s: %s", record.path, error, extra={"action": "record_refused"})
            return
        self._sent[record.path] = record.sha256
