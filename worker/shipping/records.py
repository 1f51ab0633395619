"""Which small records of a run go to the control plane? Those that it judges by, byte by byte."""

import base64
import hashlib
import logging
import re
from dataclasses import dataclass

from gonogo.contract.agent import MAX_RECORD_BYTES, RECORD_PATH, RecordReport
from gonogo.rundir import RunDir

_RECORD = re.compile(RECORD_PATH)
_PATTERNS = ("*.json", "preflight/*.json", ".HALT", ".kill")

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class SmallRecord:
    """One record as it stands; `path` is relative to the run directory."""

    path: str
    content: bytes

    @property
    def sha256(self) -> str:
        """Digest of its bytes."""
        return hashlib.sha256(self.content).hexdigest()

    def report(self, token: int) -> RecordReport:
        """Return the message that brings it."""
        content = base64.b64encode(self.content).decode("ascii")
        return RecordReport(token=token, path=self.path, content_b64=content)


def load_small_records(run_dir: RunDir) -> list[SmallRecord]:
    """Return the records that there are; one that is too large or no plain file is left out."""
    found = []
    for path in sorted(path for pattern in _PATTERNS for path in run_dir.path.glob(pattern)):
        name = str(path.relative_to(run_dir.path))
        if not _RECORD.fullmatch(name) or path.is_symlink() or not path.is_file():
            continue
        with path.open("rb") as stream:
            content = stream.read(MAX_RECORD_BYTES + 1)
        if len(content) > MAX_RECORD_BYTES:
            _log.warning("%s is too large to ship", name, extra={"action": "record_too_large"})
            continue
        found.append(SmallRecord(path=name, content=content))
    return found
