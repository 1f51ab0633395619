"""The keeper: starts the processes of one run, ends them, and writes how the run ended.

`python -m gonogo.supervise.keeper RUNDIR [options]` supervises the run whose order lies in RUNDIR,
with or without a control plane. Standard library only, one thread, one loop.

- One keeper a directory (`.keeper.lock`), and one a device (held while a process of the run lives).
- torchrun, its ranks, the watcher and the sampler die with the keeper.
- When torchrun has ended, at `.kill`, or after the time of a `.HALT`, every process of the run is
  killed, and that is proved (`kill`).
- `exit.json` is written once, after everything that the run's processes write.
- SIGINT ends the run with a checkpoint as an operator's halt, SIGTERM as a preemption. A second
  signal ends it at once.
- Each node of an order with several nodes has a keeper (`nodes`).

Exit codes: 0 exit.json is written · 2 bad order · 75 another keeper has the directory or a device.
"""

import argparse
import json
import logging
import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from gonogo.files import is_there, read_small
from gonogo.supervise.keeper.keeper import Keeper
from gonogo.supervise.keeper.nodes import MEET_LIMIT_S, save_refusal
from gonogo.supervise.launch.command import ENTRIES, Allowed, LaunchRefused
from gonogo.supervise.launch.nodes import Place, told_node
from gonogo.supervise.locks import keeper_lock, take_lock
from gonogo.supervise.process_records import load_end
from gonogo.supervise.processes import become_subreaper
from gonogo.supervise.transient_errors import TransientErrors

WATCHER_MODULE = "gonogo.supervise.watcher"
REQUIRED = (
    "experiment", "run", "token", "plan", "plan_digest", "phase", "steps", "world_size", "profile",
    "train",
)  # fmt: skip
"""The fields of every order (`gonogo.contract.order` needs pydantic)."""
_LOCK_WAIT_S = 5.0
_LOCK_POLL_S = 0.05
_BAD_ORDER = 2
_BUSY = 75

_log = logging.getLogger("gonogo.supervise.keeper")
_transient = TransientErrors(_log)


def parse_order(content: bytes) -> dict[str, Any]:
    """Return an order as data.

    Raises:
        ValueError: it is not an order.
    """
    order = json.loads(content)
    if not isinstance(order, dict):
        raise ValueError("order.json is no JSON object")
    lacking = [name for name in REQUIRED if name not in order]
    if lacking:
        raise ValueError(f"order.json lacks {', '.join(lacking)}")
    for name in ("steps", "world_size"):
        if not isinstance(order[name], int) and not (name == "steps" and order[name] is None):
            raise ValueError(f"order.json: {name}: found {order[name]!r}; expected a number")
    return order


def parse_arguments(argv: Sequence[str]) -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(
        prog="gonogo.supervise.keeper", description=(__doc__ or "").split("\n")[0]
    )
    add = parser.add_argument
    several: dict[str, Any] = {"action": "append", "default": []}
    add("run_dir", type=Path)
    holds = "a descriptor that holds a lock: of a device, or `keeper` for .keeper.lock"
    add("--held", type=_held, metavar="NAME=FD", help=holds, **several)
    takes = "lock file of a device to take; ranks get devices in this order"
    add("--lock", type=Path, metavar="FILE", help=takes, **several)
    starts = "a module, script or program that an order may start besides nsa.train, or `any`"
    add("--allow", metavar="PROGRAM", help=starts, **several)
    sets = "an environment name that an order may set, or `any`"
    add("--allow-env", metavar="NAME", help=sets, **several)
    add("--home", type=Path, metavar="DIR", help="where GPUs are quarantined")
    add("--watcher", default=WATCHER_MODULE, metavar="MODULE", help="module that watches the run")
    add("--node", type=int, metavar="K", help="number of this node; default: from the launcher")
    add("--rendezvous", metavar="HOST:PORT", help="address of node 0; default: by its host name")
    add("--shield", action="store_true", help="SIGTERM comes to every process of the run")
    add("--meet-s", type=float, default=MEET_LIMIT_S, metavar="S", help="time to wait for nodes")
    return parser.parse_args(argv)


def main(argv: Sequence[str]) -> int:
    """Keep one run; see the module's text for the exit codes."""
    asked = parse_arguments(argv)
    logging.basicConfig(stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    if os.getpgrp() != os.getpid():
        os.setsid()
    become_subreaper()
    run_dir = asked.run_dir.absolute()
    environ = dict(os.environ)  # noqa: TID251 - handed on to torchrun and the watcher
    try:
        content = _transient.retried("the order", partial(read_small, run_dir / "order.json"))
        order = parse_order(content)
        node = told_node(order, environ) if asked.node is None else asked.node
        place = Place.of(order, node, rendezvous=asked.rendezvous)
    except FileNotFoundError:
        _log.error("%s: no order.json", run_dir)
        return _BAD_ORDER
    except (OSError, ValueError) as error:
        _log.error("%s: bad order: %s", run_dir, error)
        return _BAD_ORDER
    held = dict(asked.held)
    lock = partial(take_lock, run_dir / place.own(keeper_lock(run_dir).name))
    own = held.pop("keeper", None) or _transient.retried("the keeper's lock", lock)
    if own is None or _transient.retried("an end", partial(_has_ended, run_dir, order, place)):
        _log.error("%s: another keeper has it, or it has ended", run_dir)
        return _BUSY
    locks = _take_all(asked.lock)
    if locks is None:
        _log.error("%s: a device of the run is taken", run_dir)
        return _BUSY
    try:
        keeper = Keeper(
            run_dir=run_dir,
            order=order,
            locks={**held, **locks},
            environ=environ,
            allowed=Allowed(programs=ENTRIES.union(asked.allow), names=frozenset(asked.allow_env)),
            watcher=asked.watcher,
            place=replace(place, devices=(*held, *locks)),
            home=asked.home,
            meet_s=asked.meet_s,
            shield=asked.shield,
        )
    except LaunchRefused as error:
        _log.error("%s: %s", run_dir, error)
        save_refusal(run_dir, order, place, "start_failed", "trainer", str(error))
        return 0
    keeper.run()
    return 0


def _take_all(paths: Sequence[Path]) -> dict[str, int] | None:
    taken: dict[str, int] = {}
    give_up = time.monotonic() + _LOCK_WAIT_S
    for path in paths:
        while (descriptor := _transient.retried("a lock", partial(take_lock, path))) is None:
            if time.monotonic() >= give_up:
                return None
            time.sleep(_LOCK_POLL_S)
        taken[path.stem] = descriptor
    return taken


def _held(text: str) -> tuple[str, int]:
    name, _, descriptor = text.rpartition("=")
    os.set_inheritable(int(descriptor), False)
    return name, int(descriptor)


def _has_ended(run_dir: Path, order: Mapping[str, Any], place: Place) -> bool:
    if is_there(run_dir / "exit.json"):
        return True
    return not place.is_whole and load_end(run_dir, place.node, int(order["token"])) is not None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
