"""The ranks of each node, and the number of this node by each launcher."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from gonogo.log_errors import log_rank
from gonogo.supervise.launch.command import Allowed, build_command
from gonogo.supervise.launch.nodes import (
    NODE_LAUNCHERS,
    NoPlace,
    Place,
    first_host,
    read_node,
    told_node,
)

ORDER = {"run": "run_1", "token": 3, "world_size": 8, "nodes": 2, "entry": "nsa.train"}
RUN_DIR = Path("/runs/run_1")


def test_ranks_are_numbered_node_by_node_and_none_is_on_two() -> None:
    places = [Place.of(ORDER, node) for node in range(2)]
    assert [place.ranks for place in places] == [range(4), range(4, 8)]
    assert [place.leads for place in places] == [True, False]


def test_every_other_node_has_files_of_its_own() -> None:
    place = Place.of(ORDER, 1)
    names = ["keeper.json", "torchrun.log", ".keeper.lock", ".torchrun", ".reserve"]
    assert [place.own(name) for name in names] == [
        "keeper_node1.json", "torchrun_node1.log", ".keeper_node1.lock", ".torchrun_node1",
        ".reserve_node1",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "node", "words"),
    [
        pytest.param({}, 2, "none of the order's 2", id="a node too many"),
        pytest.param({"world_size": 7}, 0, "evenly", id="ranks that cannot be shared"),
    ],
)
def test_what_does_not_fit_the_order_is_no_place(
    changes: dict[str, object], node: int, words: str
) -> None:
    with pytest.raises(NoPlace, match=words):
        Place.of({**ORDER, **changes}, node)


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        pytest.param({}, "nobody says", id="nobody"),
        pytest.param({"SLURM_NODEID": "one"}, "expected a whole number", id="no number"),
        pytest.param({"SLURM_NODEID": "1", "SLURM_NNODES": "3"}, "started on 3", id="three"),
        pytest.param(
            {"PET_NODE_RANK": "1", "PET_NNODES": "1:2"}, "expected a whole number", id="elastic"
        ),
    ],
)
def test_a_node_that_nobody_names_starts_nothing(environ: dict[str, str], words: str) -> None:
    with pytest.raises(NoPlace, match=words):
        told_node(ORDER, environ)


def test_the_launcher_of_one_node_meets_itself_at_an_address_that_needs_no_name() -> None:
    alone = {**ORDER, "nodes": 1}
    command = build_command(alone, RUN_DIR, place=Place.of(alone, 0))
    said = dict(itertools.pairwise(command))
    assert said["--rdzv-endpoint"] == "127.0.0.1:0", "whatever /etc/hosts says of localhost"
    assert (said["--rdzv-backend"], said["--rdzv-id"]) == ("c10d", "run_1")
    assert said["--local-addr"] == "127.0.0.1"
    assert "--nnodes" not in said


def test_launchers_meet_at_node_0_under_run_and_token() -> None:
    places = [Place.of(ORDER, node, rendezvous="10.0.0.1:29400") for node in range(2)]
    commands = [build_command(ORDER, RUN_DIR, place=place) for place in places]
    for command in commands:
        said = dict(itertools.pairwise(command))
        assert said["--rdzv-id"] == "run_1.3"
        assert said["--rdzv-endpoint"] == "10.0.0.1:29400"
        assert (said["--nnodes"], said["--nproc-per-node"]) == ("2", "4")
        assert said["--max-restarts"] == "0"
        waits = said["--rdzv-conf"].split(",")[1:]
        assert waits == ["join_timeout=600", "read_timeout=600"], "a store that is late is met, too"
    confs = [command[command.index("--rdzv-conf") + 1] for command in commands]
    assert [conf.split(",")[0] for conf in confs] == ["is_host=1", "is_host=0"]
    addresses = [command[command.index("--local-addr") + 1] for command in commands]
    assert addresses[0] == "10.0.0.1"
    assert addresses == sorted(addresses), "torch numbers nodes in the order of these"


COMMAND = {**ORDER, "entry": None, "command": ["true"]}


def test_a_command_is_one_program_a_node_and_stands_for_the_first_rank_there() -> None:
    places = [Place.of(COMMAND, node) for node in range(2)]
    assert [place.programs(COMMAND) for place in places] == [range(1), range(4, 5)]
    assert [log_rank(COMMAND, rank) for rank in range(8)] == [0, 0, 0, 0, 4, 4, 4, 4]
    assert [log_rank(ORDER, rank) for rank in range(8)] == list(range(8))


def test_torchrun_and_shells_find_where_the_nodes_of_a_command_meet() -> None:
    names = Place.of(COMMAND, 1, rendezvous="[fd00::1]:20001").launcher_names(COMMAND)
    assert names == {
        "PET_NNODES": "2", "PET_NODE_RANK": "1", "PET_NPROC_PER_NODE": "4",
        "PET_MASTER_ADDR": "fd00::1", "PET_MASTER_PORT": "20001", "PET_RDZV_ID": "run_1.3",
        "PET_LOCAL_ADDR": "~node000001",
        "NNODES": "2", "NODE_RANK": "1", "NPROC_PER_NODE": "4",
        "MASTER_ADDR": "fd00::1", "MASTER_PORT": "20001",
    }  # fmt: skip


def test_the_wrapper_of_a_command_is_told_its_node_and_that_of_an_entry_is_not() -> None:
    """torchrun reads the options of what it starts, too, and called `--node` ambiguous."""
    wrapper = build_command(COMMAND, RUN_DIR, Allowed(programs=frozenset({"any"})),
                            Place.of(COMMAND, 1, rendezvous="a:1"))  # fmt: skip
    assert wrapper[wrapper.index("--node") : wrapper.index("--") + 2] == [
        "--node",
        "1",
        "--",
        "true",
    ]
    torchrun = build_command(ORDER, RUN_DIR, place=Place.of(ORDER, 1, rendezvous="a:1"))
    assert "--node" not in torchrun


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
