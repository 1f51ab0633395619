"""What do a launcher's own options say of nodes and ranks?"""

from __future__ import annotations

import pytest

from gonogo.planning.programs import read_launch_line


@pytest.mark.parametrize(
    ("command", "nodes", "ranks"),
    [
        (["torchrun", "--nnodes", "4", "--nproc-per-node", "8", "train.py"], 4, 8),
        (["/venv/bin/torchrun", "--nnodes=4", "--nproc_per_node=8", "train.py"], 4, 8),
        (["python", "-m", "torch.distributed.run", "--nnodes=2:2", "-m", "mine"], 2, None),
        (["env", "A=1", "torchrun", "--standalone", "train.py"], 1, None),
        (["bash", "-c", "exec torchrun --nnodes 4 train.py"], 4, None),
        (["accelerate", "launch", "--num_machines", "2", "train.py"], 2, None),
        (["torchrun", "--nnodes=$N", "--nproc-per-node=gpu", "train.py"], None, None),
        (["torchrun", "train.py", "--nnodes", "4"], None, None),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_options_of_the_launcher_are_read_and_none_of_the_script(
    command: list[str], nodes: int | None, ranks: int | None
) -> None:
    line = read_launch_line(command)
    assert line is not None
    assert (line.nodes, line.ranks_per_node) == (nodes, ranks)
    assert line.has_ranks == any("nproc" in word for word in command)


def test_another_program_has_no_such_options() -> None:
    assert read_launch_line(["python", "train.py", "--nnodes", "4"]) is None
    assert read_launch_line(["bash", "-c", "echo 'open"]) is None
