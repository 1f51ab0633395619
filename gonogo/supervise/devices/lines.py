"""What have the devices said since the last look? New lines of devices.jsonl, by byte offset.

Only complete lines are read, at most `LOOK_BYTES` a look; one that is no sample is counted and left
out. A watcher that starts leaves out what one before it recorded: every sample has a later `mono`
than those before it, so the place to go on at is found by halving the file.
"""

import logging
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from gonogo.contract.device import DeviceSample
from gonogo.contract.heartbeat import MAX_LINE_BYTES
from gonogo.rundir import RunDir, load_lines

LOOK_BYTES = 2 * MAX_LINE_BYTES
"""Bounds the line of watch.jsonl that a tick becomes: readers take one of twice as much as whole,
and what the tick says of its ranks has to find room beside what was read at one look."""

_log = logging.getLogger(__name__)


class DeviceLines:
    """The source `devices`: samples that the sampler wrote, as the tick carries them.

    Args:
        run_dir: where `python -m gonogo.supervise.devices.sampler` writes devices.jsonl.
    """

    kind = "devices"
    every_s = 0.0

    def __init__(self, run_dir: RunDir) -> None:
        self._path = run_dir.devices
        self._offset = 0
        self._after = float("-inf")
        self.unreadable = 0

    def look(self, now: float) -> list[dict[str, Any]] | None:
        """Return the new samples, oldest first; None when there is none.

        Raises:
            OSError: the file is there and cannot be read.
        """
        part = load_lines(self._path, self._offset, self._offset + LOOK_BYTES)
        self._offset = part.offset
        parsed = [sample for line in part.lines if (sample := self._parse(line)) is not None]
        new = [sample for sample in parsed if sample.mono > self._after]
        if not new:
            return None
        self._after = max(sample.mono for sample in new)
        return [sample.model_dump(mode="json", exclude_none=True) for sample in new]

    def resume(self, payload: Any) -> None:
        """Leave out what stands in a recorded payload, and all before it."""
        rows = payload if isinstance(payload, list) else []
        clocks = [row.get("mono") for row in rows if isinstance(row, dict)]
        known = [float(mono) for mono in clocks if isinstance(mono, int | float)]
        if not known:
            return
        self._after = max(known)
        try:
            self._offset = find_offset(self._path, self._after)
        except OSError as error:
            _log.warning("devices.jsonl: %s", error, extra={"action": "unobserved"})

    def _parse(self, line: bytes) -> DeviceSample | None:
        sample = parse_sample(line)
        if sample is None:
            self.unreadable += 1
            if self.unreadable == 1:
                _log.warning("devices.jsonl: a line is no sample", extra={"action": "odd_line"})
        return sample


def parse_sample(line: bytes) -> DeviceSample | None:
    """Return the sample on one line, or None when it is none."""
    try:
        return DeviceSample.model_validate_json(line)
    except ValidationError:
        return None


def find_offset(path: Path, mono: float) -> int:
    """Return the start of a line that no line later than `mono` precedes, near the first of those.

    Raises:
        OSError: the file is there and cannot be read.
    """
    if not path.exists():
        return 0
    low, high = 0, path.stat().st_size
    while high - low > LOOK_BYTES:
        middle = (low + high) // 2
        found = _first_sample(path, middle, high)
        if found is None or found[1] > mono:
            high = middle
        else:
            low = found[0]
    return low


def _first_sample(path: Path, start: int, end: int) -> tuple[int, float] | None:
    """Return offset and clock of the first whole sample after `start`."""
    with path.open("rb") as stream:
        stream.seek(start)
        data = stream.read(min(LOOK_BYTES, end - start))
    offset = data.find(b"\n") + 1
    if not offset:
        return None
    for line in data[offset:].splitlines(keepends=True):
        sample = parse_sample(line) if line.endswith(b"\n") else None
        if sample is not None:
            return start + offset, sample.mono
        offset += len(line)
    return None
