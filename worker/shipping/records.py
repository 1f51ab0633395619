"""Which small records of a run go to the control plane? Those that it judges by, byte by byte."""

import base64
import hashlib
import logging
import os
import re
from dataclasses import dataclass

from gonogo.contract.agent import MAX_RECORD_BYTES, MAX_RECORDS_BYTES, RECORD_PATH, RecordReport
from gonogo.contract.errors import Rejected, StaleToken
from gonogo.files import is_for_good, read_plain
from gonogo.rundir import RunDir
from worker.client import ControlPlane, KeyRefused

_RECORD = re.compile(RECORD_PATH)
_NUMBER = re.compile(r"[0-9]+")
_PATTERNS = ("*.json", "preflight/*.json", "preflight/node*/preflight.json", ".HALT", ".kill")

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
    """Return the small records that there are; one that is too large or no plain file is left out.

    So is what is beyond the room for all of them. Those of ranks and nodes come last, by their
    numbers: a trainer may write thousands under the names of more than were ordered.
    """
    found, room = [], MAX_RECORDS_BYTES
    os.listdir(run_dir.path)  # or raise: `glob` may pass over what cannot be read just now
    paths = (path for pattern in _PATTERNS for path in run_dir.path.glob(pattern))
    names = {str(path.relative_to(run_dir.path)) for path in paths}
    for name in sorted(filter(_RECORD.fullmatch, names), key=_turn):
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


def _turn(name: str) -> tuple[int, str]:
    """Return when a record is told: those of ranks and nodes by their numbers, all others first."""
    number = _NUMBER.search(name)
    return (-1 if number is None else int(number[0])), name


class SentRecords:
    """The small records of one run that the control plane has.

    Args:
        run_dir: the run's directory.
        run: the run.
        token: the token that it was claimed with.
        client: the control plane.
    """

    def __init__(self, run_dir: RunDir, run: str, token: int, client: ControlPlane) -> None:
        self._dir, self._run, self._token, self._client = run_dir, run, token, client
        self._sent: dict[str, str] = {}

    def send(self) -> dict[str, str]:
        """Upload what is new or has changed; return path → digest of those that were taken.

        Raises:
            StaleToken, KeyRefused, Unavailable: see `ControlPlane`; whatever is not the control
                plane's own refusal of a record is tried again before anything is promised.
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
        """Upload a record; one that is refused is not promised and keeps no run from its end."""
        try:
            self._client.post_record(self._run, record.report(self._token))
        except (StaleToken, KeyRefused):
            raise  # of the caller, not of the record
        except Rejected as error:
            _log.warning("%s: %s", record.path, error, extra={"action": "record_refused"})
            return
        self._sent[record.path] = record.sha256
