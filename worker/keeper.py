"""Who owns the processes of one run? The keeper: it starts them, ends them, and writes the end.

`python -m worker.keeper RUNDIR [--held NAME=FD …] [--lock FILE …] [--allow-entry MODULE …]`
supervises the run whose order lies in RUNDIR, with or without a control plane. `--held` hands over
a descriptor that holds a lock already (NAME is a device, or `keeper` for `.keeper.lock`), `--lock`
names a device's lock file to take. Stdlib only, one thread, one loop.

Guarantees: one keeper a directory (`.keeper.lock`) and one a device (held by
flock while any process of the run lives); torchrun, its ranks and the watcher die with the keeper;
a dead watcher is back within a second (five deaths in a minute end the run, `watcher_failed`);
when torchrun has ended, or `.kill` is there, or a `.HALT` has run out, every process of the run is
ended and none is left; `exit.json` is written last of all that the run's processes write, once.

SIGTERM or SIGINT ends the run with a checkpoint (an operator's halt, unless `.HALT` or `.kill`
already says why), a second one ends it now. `keeper.json` tells who lives: `{v, run, pid,
start_ticks, boot_id, locks, started_at, agent, watcher}`, the last two as `{pid, start_ticks, at,
ended: null | {code, signal, at}}`. After `exit.json` the locks are free and the keeper only waits,
at most LAST_WORDS_S, for the watcher to ship the rest.

Exit codes: 0 exit.json is written · 2 bad order · 75 another keeper has the directory or a device.
Not covered: device memory after the end (the next preflight looks at it).
"""

import argparse
import json
import logging
import os
import select
import signal
import sys
import time
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from worker.children import Child, reap_all, start_child
from worker.durable import save_json
from worker.ending import Ending
from worker.exit_record import Ended, build_refusal
from worker.launch import ENTRIES, LaunchRefused, build_command, build_environment
from worker.locks import keeper_lock, take_lock
from worker.processes import TOKEN_NAME, become_subreaper, boot_id, load_stat

LAST_WORDS_S = 60.0
WATCHER_DEATHS = 5
WATCHER_DEATHS_WITHIN_S = 60.0
_LOOP_S = 0.05
_LOCK_WAIT_S = 5.0
_BAD_ORDER = 2
_BUSY = 75

_log = logging.getLogger("worker.keeper")


class Keeper:
    """One supervised run; `run` returns when everything is over.

    Args:
        run_dir: absolute path of the run directory.
        order: the order as data.
        locks: device → descriptor of its lock, closed when no process of the run is left.
        environ: environment of this process.
        entries: modules that an order may start.

    Raises:
        LaunchRefused: the order asks for what this host does not start.
    """

    def __init__(
        self,
        *,
        run_dir: Path,
        order: Mapping[str, Any],
        locks: Mapping[str, int],
        environ: Mapping[str, str],
        entries: Collection[str],
    ) -> None:
        self._dir, self._order, self._locks = run_dir, order, locks
        self._environ = environ
        self._command = build_command(order, run_dir, entries)
        self._agent_environ = build_environment(order, run_dir, environ, locks)
        self._started_at = time.time()
        self._deadline_s = (order.get("limits") or {}).get("deadline_s")
        self._ending = Ending(run_dir, order, self._spared)
        self._agent: Child | None = None
        self._watcher: Child | None = None
        self._watcher_deaths: deque[float] = deque(maxlen=WATCHER_DEATHS)
        self._statuses: dict[int, Ended] = {}
        self._stops = 0
        self._over = False

    def run(self) -> None:
        """Start, keep, end, and write exit.json."""
        wake = _wake_descriptor(self._stop)
        started = time.monotonic()
        agent = self._start_agent()
        self._start_watcher()
        while not self._ending.is_over(time.monotonic(), agent):
            self._wait(wake)
            now = time.monotonic()
            self._limit(now - started)
            self._ending.obey(now, agent, at_once=self._stops >= 2)
        self._ending.save_exit(agent, self._statuses)
        self._over = True
        for descriptor in self._locks.values():
            os.close(descriptor)
        self._await_last_words(wake)

    def _limit(self, age_s: float) -> None:
        """Ask the run to leave when its time is up, or when this keeper was told to stop."""
        if self._stops:
            self._ending.ask_to_leave("halted", "operator", "the keeper was told to stop")
        if self._deadline_s is not None and age_s >= self._deadline_s:
            text = f"the run exceeded {self._deadline_s:g} s"
            self._ending.ask_to_leave("deadline", "watchdog", text)

    def _start_agent(self) -> Child:
        log = self._dir / "torchrun.log"
        self._agent = start_child(self._command, env=self._agent_environ, log=log)
        self._save_state()
        return self._agent

    def _start_watcher(self) -> None:
        environ = {name: text for name, text in self._environ.items() if name != TOKEN_NAME}
        command = [sys.executable, "-m", "worker.watcher", str(self._dir)]
        self._watcher = start_child(command, env=environ, log=self._dir / "watcher.log")
        self._save_state()

    def _wait(self, wake: int) -> None:
        """Sleep until a child ends or a moment has passed; take note of what ended."""
        if select.select([wake], [], [], _LOOP_S)[0]:
            os.read(wake, 4096)
        for pid, ended in reap_all():
            self._statuses[pid] = ended
            for child in (self._agent, self._watcher):
                if child is not None and child.ref.pid == pid and child.ended is None:
                    child.ended = ended
                    self._save_state()
        if self._watcher is not None and self._watcher.ended is not None:
            self._replace_watcher(self._watcher.ended, time.monotonic())

    def _replace_watcher(self, ended: Ended, now: float) -> None:
        """Start another watcher, unless it is done or they die one after the other."""
        if self._over and ended.code == 0:
            self._watcher = None
            return
        _log.warning("the watcher died: %s", ended)
        self._watcher_deaths.append(now)
        deaths = self._watcher_deaths
        if len(deaths) < WATCHER_DEATHS or now - deaths[0] > WATCHER_DEATHS_WITHIN_S:
            self._start_watcher()
            return
        self._watcher = None
        if not self._over:
            text = f"the watcher died {WATCHER_DEATHS} times in {WATCHER_DEATHS_WITHIN_S:g} s"
            self._ending.ask_to_leave("watcher_failed", "infra", text)

    def _spared(self) -> frozenset[int]:
        watcher = self._watcher
        return frozenset() if watcher is None else frozenset({watcher.ref.pid})

    def _stop(self) -> None:
        """A signal asked this keeper to stop."""
        self._stops += 1

    def _await_last_words(self, wake: int) -> None:
        """Wait for the watcher to ship the rest; the worker's reaper does what it leaves."""
        give_up = time.monotonic() + LAST_WORDS_S
        while self._watcher is not None and time.monotonic() < give_up:
            self._wait(wake)
        if self._watcher is not None:
            self._watcher.ref.send(signal.SIGKILL)

    def _save_state(self) -> None:
        own = load_stat(os.getpid())
        save_json(
            self._dir / "keeper.json",
            {
                "v": 1,
                "run": self._order["run"],
                "pid": os.getpid(),
                "start_ticks": own.start_ticks if own else 0,
                "boot_id": boot_id(),
                "locks": list(self._locks),
                "started_at": self._started_at,
                "agent": self._agent.document() if self._agent else None,
                "watcher": self._watcher.document() if self._watcher else None,
            },
        )


def _wake_descriptor(stop: Any) -> int:
    """Install the signal handlers; returns a descriptor that is readable after any signal."""
    reading, writing = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop())
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    return reading


def _take_all(paths: Sequence[Path]) -> dict[str, int] | None:
    """Take the lock of every device, or none; waits a moment for one that is being let go."""
    taken: dict[str, int] = {}
    give_up = time.monotonic() + _LOCK_WAIT_S
    for path in paths:
        while (descriptor := take_lock(path)) is None:
            if time.monotonic() >= give_up:
                return None
            time.sleep(_LOOP_S)
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
        prog="worker.keeper", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("run_dir", type=Path)
    parser.add_argument("--held", type=_held, action="append", default=[], metavar="NAME=FD")
    parser.add_argument("--lock", type=Path, action="append", default=[], metavar="FILE")
    parser.add_argument("--allow-entry", action="append", default=[], metavar="MODULE")
    asked = parser.parse_args(argv)
    logging.basicConfig(stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    if os.getpgrp() != os.getpid():
        os.setsid()
    become_subreaper()
    run_dir = asked.run_dir.absolute()
    if not (run_dir / "order.json").exists():
        _log.error("%s: no order.json", run_dir)
        return _BAD_ORDER
    held = dict(asked.held)
    own = held.pop("keeper", None) or take_lock(keeper_lock(run_dir))
    if own is None or (run_dir / "exit.json").exists():
        _log.error("%s: another keeper has it, or it has ended", run_dir)
        return _BUSY
    locks = _take_all(asked.lock)
    if locks is None:
        _log.error("%s: a device of the run is taken", run_dir)
        return _BUSY
    try:
        order = json.loads((run_dir / "order.json").read_bytes())
    except (OSError, ValueError) as error:
        _log.error("%s: bad order: %s", run_dir, error)
        return _BAD_ORDER
    try:
        keeper = Keeper(
            run_dir=run_dir,
            order=order,
            locks={**held, **locks},
            environ=dict(os.environ),  # noqa: TID251 - handed on to torchrun and the watcher
            entries=ENTRIES | set(asked.allow_entry),
        )
    except LaunchRefused as error:
        _log.error("%s: %s", run_dir, error)
        save_json(run_dir / "exit.json", build_refusal(str(error), now=time.time()))
        return 0
    keeper.run()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
