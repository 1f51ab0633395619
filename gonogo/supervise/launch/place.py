"""Where do the ranks of an order run, and which of them here? A place: pure, standard library only.

An order of several nodes (`order.nodes`) has as many places, one keeper each, and every keeper
takes care of the ranks of its own place alone. Ranks are numbered node by node, the same number on
each: of 8 ranks on 2 nodes, node 1 has 4 to 7. Which node this is says who started us: by hand
(`--node`), or a launcher (`gonogo.supervise.launch.node_launchers`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self
from zlib import crc32

_PORTS = range(20_000, 32_768)
"""Below those that Linux hands out by itself."""
_TRIED = 64


class NoPlace(ValueError):
    """What is told of nodes does not fit the order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The part of an order that one node has."""

    node: int
    """Number of this node, from 0."""
    nodes: int
    ranks: range
    """The ranks that run here."""
    devices: tuple[str, ...] = ()
    """Slots that are held here, in the order of the ranks."""
    rendezvous: str | None = None
    """`host:port` of node 0, where the nodes' launchers meet; None where there is one node, and
    until node 0 has told it."""

    @classmethod
    def whole(cls, order: Mapping[str, Any], devices: Sequence[str] = ()) -> Self:
        """Return the place of an order that runs on one host: all ranks are here."""
        ranks = range(int(order["world_size"]))
        return cls(node=0, nodes=1, ranks=ranks, devices=tuple(devices))

    @classmethod
    def of(
        cls,
        order: Mapping[str, Any],
        node: int = 0,
        *,
        devices: Sequence[str] = (),
        rendezvous: str | None = None,
    ) -> Self:
        """Return the place of one node of an order.

        Args:
            order: the order as data.
            node: which of its nodes this is.
            devices: slots that are held here.
            rendezvous: where the launchers meet, if that is known already.

        Raises:
            NoPlace: the order has no such node, or its ranks cannot be shared out evenly.
        """
        nodes, world_size = count_nodes(order), int(order["world_size"])
        if not 0 <= node < nodes:
            raise NoPlace(f"node {node} is none of the order's {nodes}")
        if world_size % nodes:
            raise NoPlace(f"{world_size} ranks cannot be shared out evenly over {nodes} nodes")
        each = world_size // nodes
        ranks = range(node * each, (node + 1) * each)
        return cls(
            node=node, nodes=nodes, ranks=ranks, devices=tuple(devices), rendezvous=rendezvous
        )

    @property
    def is_whole(self) -> bool:
        """Whether all ranks of the order are here."""
        return self.nodes == 1

    @property
    def leads(self) -> bool:
        """Whether this node's keeper writes the run's end, and its watcher decides."""
        return self.node == 0

    @property
    def sorted_address(self) -> str:
        """Address that this node tells torch's launchers, which number nodes in its order.

        Only node 0's is ever connected to. The others tell a name that sorts behind every address,
        and behind each other: rank numbers are those of the place.
        """
        host = (self.rendezvous or "").rpartition(":")[0]
        return host.strip("[]") if self.leads else f"~node{self.node:06}"

    def programs(self, order: Mapping[str, Any]) -> range:
        """Return the numbers of the programs started here behind a wrapper: ranks, or a command."""
        return self.ranks[:1] if order.get("command") else self.ranks

    def launcher_names(self, order: Mapping[str, Any]) -> dict[str, str]:
        """Return what a command on several nodes finds in its environment; nothing on one node.

        torchrun takes each of its options that is not typed from `PET_…`
        (https://docs.pytorch.org/docs/stable/elastic/run.html). The plain names are for other
        launchers, by way of a shell. The id keeps the launcher of an older attempt out. The local
        address gives c10d the node's own number (`sorted_address`).

        Raises:
            NoPlace: nobody has told where the nodes meet.
        """
        if self.is_whole:
            return {}
        if self.rendezvous is None:
            raise NoPlace("nobody has told where the nodes meet")
        host, _, port = self.rendezvous.rpartition(":")
        plain = {
            "NNODES": str(self.nodes),
            "NODE_RANK": str(self.node),
            "NPROC_PER_NODE": str(len(self.ranks)),
            "MASTER_ADDR": host.strip("[]"),
            "MASTER_PORT": port,
        }
        theirs = {f"PET_{name}": value for name, value in plain.items()}
        theirs |= {"PET_RDZV_ID": fence_of(order), "PET_LOCAL_ADDR": self.sorted_address}
        names = {**plain, **theirs}
        own = order.get("env") or {}
        return {name: value for name, value in names.items() if name not in own}

    def own(self, name: str) -> str:
        """Return the name of a file of which every node has its own.

        Node 0 has the plain name, so who looks for the run's keeper finds it there:
        `keeper.json`, and on node 1 `keeper_node1.json`.
        """
        if self.leads:
            return name
        stem, dot, ending = name.rpartition(".")
        return f"{stem}_node{self.node}{dot}{ending}" if stem else f"{name}_node{self.node}"


def count_nodes(order: Mapping[str, Any]) -> int:
    """Return on how many nodes an order runs."""
    return int(order.get("nodes") or 1)


def rendezvous_ports(order: Mapping[str, Any]) -> list[int]:
    """Return the ports at which an attempt's launchers may meet on node 0, the best first.

    Another attempt's begin elsewhere: where both are on one host, they seldom try the same.
    """
    first = crc32(fence_of(order).encode()) % len(_PORTS)
    return [_PORTS[(first + number) % len(_PORTS)] for number in range(_TRIED)]


def fence_of(order: Mapping[str, Any]) -> str:
    """Return the id under which an attempt's launchers meet: an older one meets nobody."""
    return f"{order['run']}.{order['token']}"
