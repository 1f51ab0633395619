"""What do the devices of the other nodes say? Their samplers' lines, for node 0's devices.jsonl.

Every node's sampler writes a file of its own, `devices_node{K}.jsonl`; node 0's takes over what is
new there, so `devices.jsonl` has one writer and holds the devices of all ranks, and watcher, judge
and control plane read what they read of one host. A line keeps its `ts`, which is its own node's
wall clock; `mono` is stamped anew, on receipt, for clocks of two hosts cannot be compared.

Not guaranteed: what a node writes while node 0's sampler hangs in its driver comes when that is
replaced. What comes late, or never, is unknown, and unknown ends no run.
"""

import logging
from dataclasses import dataclass, field
from pathlib import Path

from gonogo.contract.device import DeviceSample
from gonogo.contract.order import Order
from gonogo.rundir import RunDir, load_lines
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
        nodes: their files.
        known: rank → `ts` of its newest line in devices.jsonl: what a sampler that died took over.
    """

    nodes: list[_Node]
    known: dict[int, float] = field(default_factory=dict)
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
                if sample is not None and sample.rank in node.ranks and not self._has(sample):
                    self.waiting.append(sample)

    def _has(self, sample: DeviceSample) -> bool:
        return sample.rank is not None and sample.ts <= self.known.get(sample.rank, float("-inf"))


def build_relay(run_dir: RunDir, order: Order, place: Place) -> Relay:
    """Return node 0's relay of the other nodes; one without nodes anywhere else.

    Args:
        run_dir: the shared run directory.
        order: its order.
        place: the node whose sampler this is.
    """
    if not place.leads:
        return Relay(nodes=[])
    others = [Place.of(order.document(), node) for node in range(1, place.nodes)]
    nodes = [_Node(run_dir.path / row.own("devices.jsonl"), row.ranks) for row in others]
    return Relay(nodes=nodes, known=_newest(run_dir.devices) if nodes else {})


def _newest(path: Path) -> dict[int, float]:
    """Return rank → `ts` of its newest line, of those at the end of a file."""
    found: dict[int, float] = {}
    try:
        start = max(0, path.stat().st_size - LOOK_BYTES)
        lines = load_lines(path, start, start + LOOK_BYTES).lines
    except OSError:
        return found
    for line in lines:
        sample = parse_sample(line)
        if sample is not None and sample.rank is not None:
            found[sample.rank] = max(sample.ts, found.get(sample.rank, sample.ts))
    return found
