"""Who owns the processes of one run? The keeper: it starts them, ends them, and writes the end.

`python -m gonogo.supervise.keeper RUNDIR [--held NAME=FD …] [--lock FILE …] [--allow PROGRAM …]
[--allow-env NAME …] [--home DIR] [--watcher MODULE] [--node K] [--rendezvous HOST:PORT]
[--meet-s S]` supervises the run whose order lies in RUNDIR, with or without a control plane.
`--held` hands over a descriptor that holds a lock already (NAME is a device, or `keeper` for
`.keeper.lock`), `--lock` names a device's lock file to take (the ranks get the devices in that
order), `--watcher` the module that watches in place of our own (a service's watcher also ships).
`--allow` names a module, a script or a program that an order may start besides nsa.train, or
`any`; `--allow-env` a name that an order may set, or `any`; `--home` is where a GPU is quarantined
that is not free after the end. Ranks start in the order's `cwd`, else in the folder that the keeper
was started in. Standard library only, one thread, one loop.

Of an order with several nodes each has a keeper, which keeps its part of the ranks: `--node` says
which this is, else whoever started us (`launch.place`); `--rendezvous` how node 0 is reached, where
its host's name does not tell. They share the run directory, and begin when each has read the others
there (`meeting`, `--meet-s` seconds at most); a keeper that is started twice for an attempt, or for
an older one, starts nothing. Node 0's writes exit.json when it knows how every part ended.

Guarantees: one keeper a directory (`.keeper.lock`) and one a device (held by
flock while any process of the run lives); torchrun, its ranks and the watcher die with the keeper;
a dead watcher is back within a second (five deaths in a minute end the run, `watcher_failed`; of
one that dies before its first look nothing ends), a silent one is replaced (`watching`);
when torchrun has ended, or `.kill` is there, or a `.HALT` has run out, every process of the run is
ended and none is left; `exit.json` is written last of all that the run's processes write, once.

SIGTERM or SIGINT ends the run with a checkpoint (SIGINT is an operator's halt, SIGTERM a host that
is taken away, `preempted`, unless `.HALT` or `.kill` already says why), a second one ends it now.
`keeper.json` tells who lives: `{v, run, pid, start_ticks, boot_id, version, git_sha, locks,
started_at, agent, watcher, sampler}`, the last three as `{pid, start_ticks, at, ended: null |
{code, signal, at}}`. After `exit.json` the locks are free (those of GPUs when their memory is
proven free, by `gonogo.supervise.devices.after_run`, which inherits them); the keeper only waits,
at most LAST_WORDS_S, for the watcher to ship the rest. What outlives SIGKILL for a minute is told
as `left` in both files; its devices stay held, and it is swept on, until it is gone or the keeper
is stopped.

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
from gonogo.supervise.keeper.meeting import MEET_LIMIT_S
from gonogo.supervise.keeper.part import save_refusal
from gonogo.supervise.launch.command import ENTRIES, Allowed, LaunchRefused
from gonogo.supervise.launch.nodes import Place, told_node
from gonogo.supervise.locks import keeper_lock, take_lock
from gonogo.supervise.node_record import load_end
from gonogo.supervise.processes import become_subreaper
from gonogo.supervise.weather import Weather

WATCHER_MODULE = "gonogo.supervise.watcher"
REQUIRED = (
    "experiment", "run", "token", "plan", "plan_digest", "phase", "steps", "world_size", "profile",
    "train",
)  # fmt: skip
"""What every order says (`gonogo.contract.order`, which the keeper does without)."""
_LOCK_WAIT_S = 5.0
_LOCK_POLL_S = 0.05
_BAD_ORDER = 2
_BUSY = 75

_log = logging.getLogger("gonogo.supervise.keeper")
_weather = Weather(_log)


def parse_order(ordered: bytes) -> dict[str, Any]:
    """Return an order as data.

    Raises:
        ValueError: it is no order; what it lacks is named at once.
    """
    order = json.loads(ordered)
    if not isinstance(order, dict):
        raise ValueError("order.json is no JSON object")
    lacking = [name for name in REQUIRED if name not in order]
    if lacking:
        raise ValueError(f"order.json lacks {', '.join(lacking)}")
    for name in ("steps", "world_size"):
        if not isinstance(order[name], int) and not (name == "steps" and order[name] is None):
            raise ValueError(f"order.json: {name}: found {order[name]!r}; expected a number")
    return order


def _take_all(paths: Sequence[Path]) -> dict[str, int] | None:
    """Take the lock of every device, or none; waits a moment for one that is being let go."""
    taken: dict[str, int] = {}
    give_up = time.monotonic() + _LOCK_WAIT_S
    for path in paths:
        while (descriptor := _weather.at_length("a lock", partial(take_lock, path))) is None:
            if time.monotonic() >= give_up:
                return None
            time.sleep(_LOCK_POLL_S)
        taken[path.stem] = descriptor
    return taken


def _held(text: str) -> tuple[str, int]:
    """Return name and descriptor of `NAME=FD`."""
    name, _, descriptor = text.rpartition("=")
    os.set_inheritable(int(descriptor), False)
    return name, int(descriptor)


def main(argv: Sequence[str]) -> int:
    """Keep one run; see the module's text for the exit codes."""
    parser = argparse.ArgumentParser(
        prog="gonogo.supervise.keeper", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("run_dir", type=Path)
    parser.add_argument("--held", type=_held, action="append", default=[], metavar="NAME=FD")
    parser.add_argument("--lock", type=Path, action="append", default=[], metavar="FILE")
    parser.add_argument("--allow", action="append", default=[], metavar="PROGRAM")
    parser.add_argument("--allow-env", action="append", default=[], metavar="NAME")
    parser.add_argument("--home", type=Path, metavar="DIR")
    parser.add_argument("--watcher", default=WATCHER_MODULE, metavar="MODULE")
    parser.add_argument("--node", type=int, metavar="K")
    parser.add_argument("--rendezvous", metavar="HOST:PORT")
    parser.add_argument("--shield", action="store_true")
    parser.add_argument("--meet-s", type=float, default=MEET_LIMIT_S, metavar="S")
    asked = parser.parse_args(argv)
    logging.basicConfig(stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    if os.getpgrp() != os.getpid():
        os.setsid()
    become_subreaper()
    run_dir = asked.run_dir.absolute()
    environ = dict(os.environ)  # noqa: TID251 - handed on to torchrun and the watcher
    try:
        ordered = _weather.at_length("the order", partial(read_small, run_dir / "order.json"))
        order = parse_order(ordered)
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
    own = held.pop("keeper", None) or _weather.at_length("the keeper's lock", lock)
    if own is None or _weather.at_length("an end", partial(_has_ended, run_dir, order, place)):
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
            ordered=ordered,
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


def _has_ended(run_dir: Path, order: Mapping[str, Any], place: Place) -> bool:
    if is_there(run_dir / "exit.json"):
        return True
    return not place.is_whole and load_end(run_dir, place.node, int(order["token"])) is not None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
