"""Did a node's keeper end without a word? Asked on that very node, by who saw it end.

`python -m gonogo.supervise.keeper.gone RUNDIR --node K --token T`: what a scheduler starts behind a
task that has ended, such as Slurm's task epilog. The proof lies in `.gone_node{K}.json` then, where
node 0 and the others look for it: no other host can look among this one's processes. A part that
has said its end, another attempt's keeper, one that lives: nothing is written. Standard library
only, for such a program has seconds.
"""

import argparse
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from gonogo.supervise.durable import create_json
from gonogo.supervise.node_record import gone_path, load_keeping, proof_of_loss


def tell_gone(run_dir: Path, node: int, token: int, now: float) -> bool:
    """Write that a node's keeper has ended unsaid, where it has; return whether it was written.

    Args:
        run_dir: the run's directory.
        node: this host's number in the run.
        token: the attempt whose keeper is meant.
        now: Unix seconds.

    Raises:
        OSError: the directory cannot be read or written.
    """
    keeping = load_keeping(run_dir, node)
    if keeping is None or keeping.token != token:
        return False
    proof = proof_of_loss(run_dir, node)
    if proof is None:
        return False
    word = {"v": 1, "by": os.uname().nodename, "text": proof, "at": now}
    return create_json(gone_path(run_dir, node), word)


def main(argv: Sequence[str]) -> int:
    """Tell it of one node; see the module's text."""
    parser = argparse.ArgumentParser(prog="gonogo.supervise.keeper.gone")
    parser.add_argument("run_dir", type=Path)
    parser.add_argument("--node", type=int, required=True, metavar="K")
    parser.add_argument("--token", type=int, required=True, metavar="T")
    asked = parser.parse_args(argv)
    tell_gone(asked.run_dir.absolute(), asked.node, asked.token, time.time())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
