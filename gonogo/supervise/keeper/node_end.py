"""`exit_node{K}.json`: how one node's part of a run ended; and refusals to start. Stdlib only.

As a program, `python -m gonogo.supervise.keeper.node_end RUNDIR --node K --token T` reports that
this node's keeper died without writing that file, in `.gone_node{K}.json`. Slurm's task epilog runs
it.
"""

import argparse
import os
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from gonogo.supervise.durable import create_json, load_json, save_json
from gonogo.supervise.exit_record import Ended, build_refusal
from gonogo.supervise.launch.nodes import Place
from gonogo.supervise.node_record import exit_path, gone_path, load_keeping, proof_of_loss
from gonogo.supervise.processes import boot_id


def save_node_end(
    run_dir: Path,
    order: Mapping[str, Any],
    place: Place,
    *,
    agent: Ended | None = None,
    ranks: Mapping[int, Ended] | None = None,
    left: Sequence[Mapping[str, Any]] = (),
    oom_at: float | None = None,
    unheld: Iterable[int] = (),
    refused: Mapping[str, str] | None = None,
) -> None:
    """Write how a node's part ended; node 0's keeper finds the cause.

    Args:
        run_dir: the run's directory.
        order: the order as data.
        place: the node's part.
        agent: how its launcher ended.
        ranks: how each of its ranks ended.
        left: processes that could not be ended.
        oom_at: Unix seconds at which its kernel killed for want of memory.
        unheld: ranks whose wrapper was killed before its program.
        refused: reason, actor and text, if nothing was started.

    Raises:
        OSError: the disk refuses.
    """
    ends = ranks or {}
    record = {
        "v": 1,
        "node": place.node,
        "host": os.uname().nodename,
        "boot_id": boot_id(),
        "run": order.get("run"),
        "token": order.get("token"),
        "ended_at": time.time(),
        "agent": agent.document() if agent is not None else None,
        "ranks": {str(rank): ended.document() for rank, ended in sorted(ends.items())},
        "left": list(left),
        "oom_at": oom_at,
        "unheld": sorted(unheld),
        "refused": dict(refused) if refused is not None else None,
    }
    save_json(exit_path(run_dir, place.node), record)


def save_refusal(
    run_dir: Path, order: Mapping[str, Any], place: Place, reason: str, ended_by: str, text: str
) -> None:
    """Write the end of what was not started: of a node's part, and on node 0 of the run.

    The keeper of an older attempt writes nothing over a newer one.

    Raises:
        OSError: the disk refuses.
    """
    newest = (load_json(run_dir / "order.json") or {}).get("token")
    if isinstance(newest, int) and newest > order["token"]:
        return
    if not place.is_whole:
        refused = {"reason": reason, "ended_by": ended_by, "text": text}
        save_node_end(run_dir, order, place, refused=refused)
    if place.leads:
        now = time.time()
        refusal = build_refusal(reason, ended_by, text, run_dir=run_dir, order=order, now=now)
        save_json(run_dir / "exit.json", refusal)


def report_lost_keeper(run_dir: Path, node: int, token: int, now: float) -> bool:
    """Write `.gone_node{K}.json` if the keeper of a node is proven dead without a report.

    Args:
        run_dir: the run's directory.
        node: this host's number in the run.
        token: the attempt whose keeper is meant.
        now: Unix seconds.

    Raises:
        OSError: the directory cannot be read or written.
    """
    keeping = load_keeping(run_dir, node)
    proof = proof_of_loss(run_dir, node)
    if keeping is None or keeping.token != token or proof is None:
        return False
    word = {"v": 1, "by": os.uname().nodename, "text": proof, "at": now}
    return create_json(gone_path(run_dir, node), word)


def main(argv: Sequence[str]) -> int:
    """Report a lost keeper; see the module's text."""
    parser = argparse.ArgumentParser(prog="gonogo.supervise.keeper.node_end")
    parser.add_argument("run_dir", type=Path)
    parser.add_argument("--node", type=int, required=True, metavar="K")
    parser.add_argument("--token", type=int, required=True, metavar="T")
    asked = parser.parse_args(argv)
    report_lost_keeper(asked.run_dir.absolute(), asked.node, asked.token, time.time())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
