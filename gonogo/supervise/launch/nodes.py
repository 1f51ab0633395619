"""The nodes of a run: which node this is, which ranks run here, and where the nodes meet.

An order of several nodes (`order.nodes`) has one keeper on each. Ranks are numbered node by node,
the same number on each: of 8 ranks on 2 nodes, node 1 has ranks 4 to 7. The number of this node is
given by hand (`--node`) or by a launcher (`NODE_LAUNCHERS`). Pure, standard library only.

Not covered: mpirun of MPICH and Intel MPI (`PMI_RANK`), LSF, PBS, Ray. `--nodes N --node-rank I`
of `gonogo run` serves them.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

_NUMBER = re.compile(r"0|[1-9][0-9]{0,5}")
_SLURM_LIST = re.compile(r"([^,\s\[]+)(?:\[(\d+)[^\]]*\]([^,\s]*))?")
"""The first entry of a list of hosts: a name, or `gpu[07-09,12]`."""


class NoPlace(ValueError):
    """The node or its launcher does not fit the order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The part of an order that one node has."""

    node: int  # Number of this node, from 0.
    nodes: int
    ranks: range  # The ranks that run here.
    devices: tuple[str, ...] = ()  # Slots held here, in the order of the ranks.
    rendezvous: str | None = None
    """`host:port` of node 0, where the launchers meet; None: one node, or not known yet."""

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

        Raises:
            NoPlace: the order has no such node, or its ranks cannot be divided evenly.
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
        """Address that this node gives to torch's launchers, which number nodes in its order.

        Only node 0's is connected to. The others give a name that sorts behind every address.
        """
        host = (self.rendezvous or "").rpartition(":")[0]
        return host.strip("[]") if self.leads else f"~node{self.node:06}"

    def programs(self, order: Mapping[str, Any]) -> range:
        """Return the numbers of the programs that are started here: ranks, or one command."""
        return self.ranks[:1] if order.get("command") else self.ranks

    def launcher_names(self, order: Mapping[str, Any]) -> dict[str, str]:
        """Return the environment of a command on several nodes; empty on one node.

        torchrun reads options from `PET_…` (https://docs.pytorch.org/docs/stable/elastic/run.html).
        The plain names are for other launchers. The id keeps the launcher of an older attempt out.

        Raises:
            NoPlace: it is not known where the nodes meet.
        """
        if self.is_whole:
            return {}
        if self.rendezvous is None:
            raise NoPlace("it is not known where the nodes meet")
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
        """Return the name of a file of which every node has one: `a.json`, `a_node1.json`, …"""
        if self.leads:
            return name
        stem, dot, ending = name.rpartition(".")
        return f"{stem}_node{self.node}{dot}{ending}" if stem else f"{name}_node{self.node}"


def count_nodes(order: Mapping[str, Any]) -> int:
    """Return on how many nodes an order runs."""
    return int(order.get("nodes") or 1)


def fence_of(order: Mapping[str, Any]) -> str:
    """Return the id under which the launchers of one attempt meet."""
    return f"{order['run']}.{order['token']}"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLauncher:
    """The variables in which one launcher gives a process its place."""

    name: str
    node: str  # Number of this node, from 0.
    counts: tuple[str, ...] = ()  # Number of nodes, the most exact first.
    addresses: tuple[str, ...] = ()  # Address of node 0, or a list of hosts that begins with it.
    launch: tuple[str, ...] = ()  # Variables that differ between launches.
    local: str | None = None  # Number of this process among those on the node: only 0 is allowed.
    once: str  # How one process is started on each node.


NODE_LAUNCHERS = (
    NodeLauncher(
        name="mpirun",
        node="OMPI_COMM_WORLD_RANK",
        counts=("OMPI_COMM_WORLD_SIZE",),
        launch=("PMIX_NAMESPACE",),
        local="OMPI_COMM_WORLD_LOCAL_RANK",
        once="mpirun --map-by ppr:1:node",
    ),
    NodeLauncher(
        name="SkyPilot",
        node="SKYPILOT_NODE_RANK",
        counts=("SKYPILOT_NUM_NODES",),
        addresses=("SKYPILOT_NODE_IPS",),
        launch=("SKYPILOT_TASK_ID",),
        once="num_nodes: N in the task",
    ),
    NodeLauncher(
        name="dstack",
        node="DSTACK_NODE_RANK",
        counts=("DSTACK_NODES_NUM",),
        addresses=("DSTACK_MASTER_NODE_IP",),
        launch=("DSTACK_RUN_ID", "DSTACK_RUN_NAME"),
        once="nodes: N in the task",
    ),
    NodeLauncher(
        name="Slurm",
        node="SLURM_NODEID",
        counts=("SLURM_STEP_NUM_NODES", "SLURM_NNODES"),
        addresses=("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST"),
        launch=("SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT"),
        local="SLURM_LOCALID",
        once="srun --ntasks-per-node=1",
    ),
    NodeLauncher(
        name="indexed Job (JobSet, Kubeflow Trainer)",
        node="JOB_COMPLETION_INDEX",
        counts=("PET_NNODES", "NNODES"),
        addresses=("PET_MASTER_ADDR", "MASTER_ADDR"),
        once="completionMode: Indexed with one pod a node",
    ),
    NodeLauncher(
        name="torchrun's variables",
        node="PET_NODE_RANK",
        counts=("PET_NNODES",),
        addresses=("PET_MASTER_ADDR",),
        launch=("PET_RDZV_ID",),
        once="PET_NODE_RANK",
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeTold:
    """What a launcher says about this process."""

    launcher: NodeLauncher
    node: int
    nodes: int | None  # None: unknown.
    address: str | None  # Address of node 0; None: unknown.
    launch: str  # The same on all nodes of a launch; empty if unknown.


def read_node(environ: Mapping[str, str]) -> NodeTold | None:
    """Return which node this is, from its launcher; None without a known launcher.

    Raises:
        NoPlace: a number cannot be read, or there are several processes on a node.
    """
    row = next((row for row in NODE_LAUNCHERS if row.node in environ), None)
    if row is None:
        return None
    if row.local is not None and environ.get(row.local, "0") != "0":
        raise NoPlace(
            f"{row.name} starts several processes on this node ({row.local} is"
            f" {environ[row.local]}); gonogo is started once on each: {row.once}"
        )
    count = _first(environ, row.counts)
    listed = _first(environ, row.addresses)
    return NodeTold(
        launcher=row,
        node=_number(row.node, environ[row.node]),
        nodes=None if count is None else _number(row.counts[0], _alike(count)),
        address=None if listed is None else first_host(listed),
        launch="/".join(environ[name] for name in row.launch if name in environ),
    )


def told_node(order: Mapping[str, Any], environ: Mapping[str, str]) -> int:
    """Return which node of an order this is, from the environment.

    Raises:
        NoPlace: unknown in an order with several nodes, or the count of nodes differs.
    """
    nodes = count_nodes(order)
    if nodes == 1:
        return 0
    told = read_node(environ)
    if told is None:
        names = ", ".join(row.node for row in NODE_LAUNCHERS)
        raise NoPlace(f"nobody says which of {nodes} nodes this is (--node, {names})")
    if told.nodes not in (None, nodes):
        raise NoPlace(f"the order has {nodes} nodes, and it was started on {told.nodes}")
    return told.node


def first_host(listed: str) -> str | None:
    """Return the first host of a list: by lines or commas, or Slurm's `gpu[07-09,12]`."""
    found = _SLURM_LIST.search(listed)
    return None if found is None else "".join(part or "" for part in found.groups())


def _first(environ: Mapping[str, str], names: tuple[str, ...]) -> str | None:
    return next((environ[name] for name in names if name in environ), None)


def _alike(count: str) -> str:
    """Return a count; of torchrun's `2:2` (at least, at most) the one number."""
    least, _, most = count.partition(":")
    return least if least == most else count


def _number(name: str, text: str) -> int:
    if _NUMBER.fullmatch(text) is None:
        raise NoPlace(f"{name} is {text!r}; expected a whole number")
    return int(text)
