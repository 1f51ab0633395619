"""The samples of devices in `devices.jsonl`."""

from collections.abc import Iterable, Iterator

from gonogo.contract.device import DeviceSample
from gonogo.contract.errors import Corrupt
from service.db.store import Session
from service.evidence.files import load_bytes

FILE = "devices.jsonl"
MAX_BYTES = 64 * 2**20
"""Bytes of the file that are read."""


def load_samples(session: Session, run: str) -> list[DeviceSample]:
    """Return the device samples of a run."""
    return list(read_samples(load_bytes(session, run, FILE, MAX_BYTES)))


def read_samples(pieces: Iterable[bytes]) -> Iterator[DeviceSample]:
    """Yield the samples of a file that comes in pieces; other lines are left out."""
    rest = b""
    try:
        for piece in pieces:
            *lines, rest = (rest + piece).split(b"\n")
            for line in lines:
                try:
                    yield DeviceSample.model_validate_json(line)
                except ValueError:
                    continue
    except Corrupt:
        return
