"""Which node is this? Every row of the table, as its launcher sets the variables."""

from __future__ import annotations

import pytest

from gonogo.supervise.launch.node_launchers import NODE_LAUNCHERS, first_host, read_node
from gonogo.supervise.launch.place import NoPlace

TOLD = {
    "mpirun": (
        {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2",
         "OMPI_COMM_WORLD_LOCAL_RANK": "0", "SLURM_NODEID": "0", "SLURM_NNODES": "2"},
        None,
    ),
    "SkyPilot": (
        {"SKYPILOT_NODE_RANK": "1", "SKYPILOT_NUM_NODES": "2",
         "SKYPILOT_NODE_IPS": "10.0.0.4\n10.0.0.9", "SKYPILOT_TASK_ID": "sky-1"},
        "10.0.0.4",
    ),
    "dstack": (
        {"DSTACK_NODE_RANK": "1", "DSTACK_NODES_NUM": "2", "DSTACK_MASTER_NODE_IP": "10.0.0.4"},
        "10.0.0.4",
    ),
    "Slurm": (
        {"SLURM_NODEID": "1", "SLURM_NNODES": "4", "SLURM_STEP_NUM_NODES": "2",
         "SLURM_JOB_NODELIST": "gpu[01-04]", "SLURM_STEP_NODELIST": "gpu[03-04]",
         "SLURM_LOCALID": "0", "SLURM_JOB_ID": "7"},
        "gpu03",
    ),
    "indexed Job (JobSet, Kubeflow Trainer)": (
        {"JOB_COMPLETION_INDEX": "1", "PET_NNODES": "2", "PET_MASTER_ADDR": "job-0-0.job"},
        "job-0-0.job",
    ),
    "torchrun's variables": (
        {"PET_NODE_RANK": "1", "PET_NNODES": "2:2", "PET_MASTER_ADDR": "a"},
        "a",
    ),
}  # fmt: skip


def test_every_launcher_of_the_table_is_tried() -> None:
    assert [row.name for row in NODE_LAUNCHERS] == list(TOLD)
    assert all(row.source.startswith("https://") for row in NODE_LAUNCHERS)


@pytest.mark.parametrize("name", TOLD)
def test_a_launcher_tells_node_count_and_first_address(name: str) -> None:
    environ, address = TOLD[name]
    told = read_node(environ)
    assert told is not None
    assert (told.launcher.name, told.node, told.nodes, told.address) == (name, 1, 2, address)


@pytest.mark.parametrize(
    ("listed", "first"),
    [("gpu[07-09,12],gpu20", "gpu07"), ("a,b", "a"), ("n[1,3]x", "n1x"), ("10.0.0.1\n10.0.0.2",
     "10.0.0.1"), ("fd00::1", "fd00::1"), ("", None)],
)  # fmt: skip
def test_the_first_host_of_a_list(listed: str, first: str | None) -> None:
    assert first_host(listed) == first


def test_what_no_launcher_tells_and_what_cannot_be_read() -> None:
    assert read_node({"PATH": "/bin"}) is None
    with pytest.raises(NoPlace, match="SLURM_NODEID is 'x'; expected a whole number"):
        read_node({"SLURM_NODEID": "x"})
    with pytest.raises(NoPlace, match="PET_NNODES is '1:2'"):
        read_node({"PET_NODE_RANK": "0", "PET_NNODES": "1:2"})


def test_several_processes_on_a_node_are_refused_with_what_to_type() -> None:
    environ = {"SLURM_NODEID": "0", "SLURM_NNODES": "2", "SLURM_LOCALID": "3"}
    with pytest.raises(NoPlace, match="started once on each: srun --ntasks-per-node=1"):
        read_node(environ)
