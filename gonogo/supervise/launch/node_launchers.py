"""Which node is this, and of how many? What a launcher of several nodes says in the environment.

Pure, standard library only. The table holds one row for each launcher, the innermost first: where
mpirun runs inside a Slurm job, mpirun started this process.

Not covered: mpirun of MPICH and Intel MPI (`PMI_RANK`), LSF, PBS, Ray. `--nodes N --node-rank I`
of `gonogo run` serves them.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gonogo.supervise.launch.place import NoPlace, count_nodes

_NUMBER = re.compile(r"0|[1-9][0-9]{0,5}")
_SLURM_LIST = re.compile(r"([^,\s\[]+)(?:\[(\d+)[^\]]*\]([^,\s]*))?")
"""The first entry of a list of hosts: a name, or `gpu[07-09,12]`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLauncher:
    """The variables by which one launcher tells a process where it stands."""

    name: str
    node: str
    """Number of this node, from 0."""
    counts: tuple[str, ...] = ()
    """Number of nodes, the most exact first."""
    addresses: tuple[str, ...] = ()
    """Address of node 0, or a list of hosts that begins with it."""
    launch: tuple[str, ...] = ()
    """What tells one launch from another."""
    local: str | None = None
    """Number of this process among those on the node: only 0 is allowed."""
    once: str
    """What to type for one process on each node."""
    source: str


NODE_LAUNCHERS = (
    NodeLauncher(
        name="mpirun",
        node="OMPI_COMM_WORLD_RANK",
        counts=("OMPI_COMM_WORLD_SIZE",),
        launch=("PMIX_NAMESPACE",),
        local="OMPI_COMM_WORLD_LOCAL_RANK",
        once="mpirun --map-by ppr:1:node",
        source="https://docs.open-mpi.org/en/v5.0.x/tuning-apps/environment-var.html",
    ),
    NodeLauncher(
        name="SkyPilot",
        node="SKYPILOT_NODE_RANK",
        counts=("SKYPILOT_NUM_NODES",),
        addresses=("SKYPILOT_NODE_IPS",),
        launch=("SKYPILOT_TASK_ID",),
        once="num_nodes: N in the task",
        source="https://docs.skypilot.co/en/stable/running-jobs/environment-variables.html",
    ),
    NodeLauncher(
        name="dstack",
        node="DSTACK_NODE_RANK",
        counts=("DSTACK_NODES_NUM",),
        addresses=("DSTACK_MASTER_NODE_IP",),
        launch=("DSTACK_RUN_ID", "DSTACK_RUN_NAME"),
        once="nodes: N in the task",
        source="https://dstack.ai/docs/concepts/tasks/#distributed-tasks",
    ),
    NodeLauncher(
        name="Slurm",
        node="SLURM_NODEID",
        counts=("SLURM_STEP_NUM_NODES", "SLURM_NNODES"),
        addresses=("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST"),
        launch=("SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT"),
        local="SLURM_LOCALID",
        once="srun --ntasks-per-node=1",
        source="https://slurm.schedmd.com/srun.html#SECTION_OUTPUT-ENVIRONMENT-VARIABLES",
    ),
    NodeLauncher(
        name="indexed Job (JobSet, Kubeflow Trainer)",
        node="JOB_COMPLETION_INDEX",
        counts=("PET_NNODES", "NNODES"),
        addresses=("PET_MASTER_ADDR", "MASTER_ADDR"),
        once="completionMode: Indexed with one pod a node",
        source="https://kubernetes.io/docs/concepts/workloads/controllers/job/#completion-mode",
    ),
    NodeLauncher(
        name="torchrun's variables",
        node="PET_NODE_RANK",
        counts=("PET_NNODES",),
        addresses=("PET_MASTER_ADDR",),
        launch=("PET_RDZV_ID",),
        once="PET_NODE_RANK",
        source="https://docs.pytorch.org/docs/stable/elastic/run.html",
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeTold:
    """What a launcher tells of this process."""

    launcher: NodeLauncher
    node: int
    nodes: int | None
    """None: the launcher does not tell it."""
    address: str | None
    """Of node 0; None: the launcher does not tell it."""
    launch: str
    """The same on all nodes of a launch; empty where the launcher tells nothing."""


def find_launcher(environ: Mapping[str, str]) -> NodeLauncher | None:
    """Return the launcher that started this process; None where no row of the table fits."""
    return next((row for row in NODE_LAUNCHERS if row.node in environ), None)


def read_node(environ: Mapping[str, str]) -> NodeTold | None:
    """Return which node this is, as its launcher tells; None without a launcher that is known.

    Raises:
        NoPlace: a number cannot be read, or there are several processes on a node.
    """
    row = find_launcher(environ)
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
    """Return which node of an order this is, as whoever started us tells in the environment.

    Raises:
        NoPlace: nobody tells it of an order with several nodes, or another count of nodes is told.
    """
    nodes = count_nodes(order)
    if nodes == 1:
        return 0
    row = find_launcher(environ)
    count = None if row is None else _first(environ, row.counts)
    if count is not None and _alike(count) != str(nodes):
        raise NoPlace(f"the order has {nodes} nodes, and it was started on {count}")
    node = None if row is None else environ[row.node]
    if node is None or _NUMBER.fullmatch(node) is None:
        names = ", ".join(row.node for row in NODE_LAUNCHERS)
        raise NoPlace(f"nobody says which of {nodes} nodes this is (--node, {names})")
    return int(node)


def first_host(listed: str) -> str | None:
    """Return the first host of a list: by lines or commas, or Slurm's `gpu[07-09,12]`."""
    found = _SLURM_LIST.search(listed)
    return None if found is None else "".join(part or "" for part in found.groups())


def _first(environ: Mapping[str, str], names: tuple[str, ...]) -> str | None:
    return next((environ[name] for name in names if name in environ), None)


def _alike(count: str) -> str:
    """Return a count; of torchrun's `2:2` (at least, at most) the one number that it means."""
    least, _, most = count.partition(":")
    return least if least == most else count


def _number(name: str, text: str) -> int:
    if _NUMBER.fullmatch(text) is None:
        raise NoPlace(f"{name} is {text!r}; expected a whole number")
    return int(text)
