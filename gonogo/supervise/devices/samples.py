"""Read the samples in devices.jsonl: for the watcher's ticks, and between the nodes of a run.

Only complete lines are read, at most `LOOK_BYTES` at once. A line that is no sample is counted and
left out. Every sample of a file has a later `mono` than those before it.

On several nodes each sampler writes `devices_node{K}.jsonl`. The sampler of node 0 copies new lines
into `devices.jsonl`, so that file holds the devices of all ranks. Clocks of two hosts cannot be
compared: `mono` is stamped on receipt, and the node's own is kept in `own_mono`.
"""

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from gonogo.contract.heartbeat import MAX_LINE_BYTES
from gonogo.contract.observation import DeviceSample
from gonogo.contract.order import Order
from gonogo.rundir import RunDir, load_lines
from gonogo.supervise.launch.nodes import Place

LOOK_BYTES = 2 * MAX_LINE_BYTES
"""Bounds the line of watch.jsonl that a tick becomes."""

_log = logging.getLogger(__name__)


class DeviceLines:
    """The source `devices` of the watcher: samples that the sampler wrote."""

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
            OSError: the file exists and cannot be read.
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
        """Leave out the samples of a recorded payload, and all before them."""
        rows = payload if isinstance(payload, list) else []
        clocks = [row.get("mono") for row in rows if isinstance(row, dict)]
        self._after = max(
            (float(mono) for mono in clocks if isinstance(mono, int | float)), default=self._after
        )
        try:
            self._offset = _offset_behind(self._path, self._after)
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
    """Return the sample on one line, or None."""
    try:
        return DeviceSample.model_validate_json(line)
    except ValidationError:
        return None


def _offset_behind(path: Path, mono: float) -> int:
    """Return an offset behind which all samples later than `mono` lie."""
    offset = 0
    while (part := load_lines(path, offset)).lines:
        last = next(filter(None, map(parse_sample, reversed(part.lines))), None)
        if last is not None and last.mono > mono:
            break
        offset = part.offset
    return offset


@dataclass(slots=True)
class _Node:
    """How far the file of one node was read."""

    path: Path
    ranks: range
    offset: int = 0
    after: float = float("-inf")
    """The node's `mono` of the last sample that was copied."""


class OtherNodes:
    """The new samples of the other nodes, for node 0; a node without a file has none.

    Args:
        place: the node whose sampler this is; only node 0 has others.
    """

    def __init__(self, run_dir: RunDir, order: Order, place: Place) -> None:
        numbers = range(1, place.nodes) if place.leads else ()
        places = [Place.of(order.document(), node) for node in numbers]
        self._nodes = [_Node(run_dir.path / row.own("devices.jsonl"), row.ranks) for row in places]
        self.waiting: list[DeviceSample] = []
        """Read and not yet written; oldest first."""
        if self._nodes:
            self._skip_copied(run_dir.devices)

    def look(self) -> None:
        """Read what is new, once everything that was read before is written."""
        if self.waiting:
            return
        for node in self._nodes:
            try:
                part = load_lines(node.path, node.offset, node.offset + LOOK_BYTES)
            except OSError as error:
                _log.debug("%s: %s", node.path.name, error)
                continue
            node.offset = part.offset
            for sample in filter(None, map(parse_sample, part.lines)):
                if sample.rank in node.ranks and sample.mono > node.after:
                    self.waiting.append(sample)

    def _skip_copied(self, copied: Path) -> None:
        """Leave out what a sampler before this one has copied."""
        offset = 0
        try:
            while (part := load_lines(copied, offset)).lines:
                offset = part.offset
                for sample in filter(None, map(parse_sample, part.lines)):
                    for node in self._nodes:
                        if sample.rank in node.ranks and sample.own_mono is not None:
                            node.after = max(node.after, sample.own_mono)
        except OSError as error:
            _log.warning("%s: %s", copied.name, error, extra={"action": "unobserved"})
