"""How did one node's part of a run end? `exit_node{K}.json`, which says no word of why.

Why a run ended is one question, answered once, in exit.json by node 0's keeper. Stdlib only.
"""

import os
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from gonogo.supervise.durable import load_json, save_json
from gonogo.supervise.exit_record import Ended, build_refusal
from gonogo.supervise.launch.nodes import Place
from gonogo.supervise.node_record import exit_path
from gonogo.supervise.processes import boot_id


def save_part(
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
    """Write how a node's part ended.

    Args:
        run_dir: the run's directory.
        order: the order as data.
        place: the node's.
        agent: how its launcher ended.
        ranks: how each of its ranks ended.
        left: what could not be ended there.
        oom_at: Unix seconds at which its kernel was seen to have killed for want of memory.
        unheld: ranks whose wrapper was gone before its program.
        refused: reason, who and why, where nothing was started.

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

    A newer attempt's directory lies where an older one's did: there an older one ends nothing.

    Raises:
        OSError: the disk refuses.
    """
    newest = (load_json(run_dir / "order.json") or {}).get("token")
    if isinstance(newest, int) and newest > order["token"]:
        return
    if not place.is_whole:
        refused = {"reason": reason, "ended_by": ended_by, "text": text}
        save_part(run_dir, order, place, refused=refused)
    if place.leads:
        now = time.time()
        refusal = build_refusal(reason, ended_by, text, run_dir=run_dir, order=order, now=now)
        save_json(run_dir / "exit.json", refusal)
