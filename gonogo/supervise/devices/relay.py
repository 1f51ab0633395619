"""What do the devices of the other nodes say? Their samplers' lines, for node 0's devices.jsonl.

Every node's sampler writes a file of its own, `devices_node{K}.jsonl`; node 0's takes over what is
new there, so `devices.jsonl` has one writer and holds the devices of all ranks, and watcher, judge
and control plane read what they read of one host. A line keeps its `ts`, which is its own node's
wall clock; `mono` is stamped anew, on receipt, for clocks of two hosts cannot be compared, and what
it was stands in `own_mono`.

A node's file that was removed, emptied or rewritten is read on behind what was taken over.

Not guaranteed: what a node writes while node 0's sampler is gone, or stands, comes when that is
replaced. What comes late, or never, is unknown, and unknown ends no run.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from gonogo.contract.device import DeviceSample
from gonogo.contract.order import Order
from gonogo.rundir import RunDir, complete_bytes, load_lines
from gonogo.supervise.devices.lines import LOOK_BYTES, parse_sample
from gonogo.supervise.launch.place import Place

_log = logging.getLogger("gonogo.supervise.devices.sampler")


@dataclass(slots=True)
class _Node:
    """How far one node's file was read."""

    path: Path
    ranks: range
    offset: int = 0


@dataclass(slots=True)
class Relay:
    """Takes over the lines of the other nodes; a node without a file has said nothing.

    Args:
        taken: node 0's own file.
        nodes: their files, each read on from where it was taken over.
    """

    taken: Path
    nodes: list[_Node]
    waiting: list[DeviceSample] = field(default_factory=list)
    """Read, and not written yet; oldest first."""

    def look(self) -> None:
        """Read what is new, once all that was read before has been written."""
        if self.waiting:
            return
        for node in self.nodes:
            try:
                part = load_lines(node.path, node.offset, node.offset + LOOK_BYTES)
            except OSError as error:
                _log.debug("%s: %s", node.path.name, error)
                continue
            node.offset = part.offset
            for line in part.lines:
                sample = parse_sample(line)
                if sample is not None and sample.rank in node.ranks:
                    self.waiting.append(sample)


def build_relay(run_dir: RunDir, order: Order, place: Place) -> Relay:
    """Return node 0's relay of the other nodes; one without nodes anywhere else.

    Args:
        run_dir: the shared run directory.
        order: its order.
        place: the node whose sampler this is.
    """
    if not place.leads:
        return Relay(taken=run_dir.devices, nodes=[])
    others = [Place.of(order.document(), node) for node in range(1, place.nodes)]
    nodes = [_Node(run_dir.path / row.own("devices.jsonl"), row.ranks) for row in others]
    for row in nodes:
        row.offset = _end_of_taken(run_dir.devices, row)
    return Relay(taken=run_dir.devices, nodes=nodes)


def _end_of_taken(taken: Path, node: _Node) -> int:
    """Return where in a node's file the last line ends that a sampler before this one took over.

    Lines are told apart by what they say, not by which is newer: a node's clock may be set back.
    """
    try:
        last = _find_last(taken, lambda row: row.rank in node.ranks)
        if last is None:
            return 0
        known = _key(last[0])
        found = _find_last(node.path, lambda row: _key(row) == known)
    except OSError as error:
        _log.warning("%s: %s", node.path.name, error, extra={"action": "unobserved"})
        return 0
    return 0 if found is None else found[1]


def _key(sample: DeviceSample) -> tuple[int | None, str, float]:
    return sample.rank, sample.uuid, sample.ts


def _find_last(
    path: Path, wanted: Callable[[DeviceSample], bool]
) -> tuple[DeviceSample, int] | None:
    """Return the last sample of a file that is wanted, and where its line ends.

    Raises:
        OSError: the file is there and cannot be read.
    """
    end = complete_bytes(path)
    while end > 0:
        start = max(0, end - LOOK_BYTES)
        with path.open("rb") as stream:
            stream.seek(start)
            data = stream.read(end - start)
        cut = 0 if start == 0 else data.find(b"\n") + 1  # the rest of a line that began before
        at = end
        for line in reversed(data[cut:].splitlines(keepends=True)):
            sample = parse_sample(line)
            if sample is not None and wanted(sample):
                return sample, at
            at -= len(line)
        end = at if at < end else start
    return None
