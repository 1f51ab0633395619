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
from worker.durable import load_json, save_json
from worker.exit_record import Ended, build_exit, build_refusal, ended_of
from worker.halt import (
    HALT_LIMIT_S,
    HALT_NAME,
    KILL_NAME,
    EndRequest,
    ask_halt,
    ask_kill,
    asked_by,
    load_request,
    until_after,
)
from worker.kill import Killer
from worker.launch import ENTRIES, LaunchRefused, build_command, build_environment
from worker.locks import keeper_lock, take_lock
from worker.processes import TOKEN_NAME, ProcessRef, become_subreaper, boot_id, load_stat

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
        self._grace_s = float((order.get("halt") or {}).get("grace_s") or 0.0)
        self._agent: Child | None = None
        self._watcher: Child | None = None
        self._watcher_deaths: deque[float] = deque(maxlen=WATCHER_DEATHS)
        self._statuses: dict[int, Ended] = {}
        self._killer: Killer | None = None
        self._halt_until: float | None = None
        self._stops = 0
        self._over = False

    def run(self) -> None:
        """Start, keep, end, and write exit.json."""
        wake = _wake_descriptor(self._stop)
        started = time.monotonic()
        self._start_agent()
        self._start_watcher()
        while not self._all_ended(time.monotonic()):
            self._wait(wake)
            now = time.monotonic()
            if self._deadline_s is not None and now - started >= self._deadline_s:
                self._ask_to_leave(
                    "deadline", "watchdog", f"the run exceeded {self._deadline_s:g} s"
                )
            self._obey(now)
        self._save_exit()
        self._over = True
        for descriptor in self._locks.values():
            os.close(descriptor)
        self._await_last_words(wake)

    # ---- processes ------------------------------------------------------------------------

    def _start_agent(self) -> None:
        self._agent = start_child(
            self._command, env=self._agent_environ, log=self._dir / "torchrun.log"
        )
        self._save_state()

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
            self._replace_watcher(time.monotonic())

    def _replace_watcher(self, now: float) -> None:
        """Start another watcher, unless they die one after the other."""
        ended = self._watcher.ended if self._watcher is not None else None
        if self._over and ended is not None and ended.code == 0:
            self._watcher = None
            return
        self._watcher_deaths.append(now)
        _log.warning("the watcher died: %s", ended)
        storm = (
            len(self._watcher_deaths) == WATCHER_DEATHS
            and now - self._watcher_deaths[0] <= WATCHER_DEATHS_WITHIN_S
        )
        if storm and self._over:
            self._watcher = None
        elif storm:
            self._watcher = None
            text = f"the watcher died {WATCHER_DEATHS} times in {WATCHER_DEATHS_WITHIN_S:g} s"
            self._ask_to_leave("watcher_failed", "infra", text)
        else:
            self._start_watcher()

    def _spared(self) -> frozenset[int]:
        watcher = self._watcher
        return frozenset() if watcher is None else frozenset({watcher.ref.pid})

    # ---- the end ----------------------------------------------------------------------------

    def _stop(self) -> None:
        """A signal asked this keeper to stop."""
        self._stops += 1

    def _obey(self, now: float) -> None:
        """Do what signals and the request files ask."""
        if self._stops >= 1:
            self._ask_to_leave("halted", "operator", "the keeper was told to stop")
        if self._killer is not None:
            return
        request = load_request(self._dir / KILL_NAME)
        if request is None and self._stops >= 2:
            request = self._end_now("halted", "operator", "the keeper was told to stop now")
        if request is None and self._has_run_out(now):
            request = self._end_now("halted", "operator", "asked to leave, the ranks did not")
        if request is not None:
            self._kill(now, grace_s=request.grace_s, dump=request.dump)

    def _has_run_out(self, now: float) -> bool:
        """Say whether the time to leave, as `.HALT` tells it, is over."""
        if self._halt_until is None:
            request = load_request(self._dir / HALT_NAME)
            if request is None:
                return False
            self._halt_until = request.until_mono or now + HALT_LIMIT_S
        return now >= self._halt_until

    def _ask_to_leave(self, reason: str, ended_by: str, text: str) -> None:
        if (self._dir / HALT_NAME).exists() or (self._dir / KILL_NAME).exists():
            return
        until = until_after(HALT_LIMIT_S)
        ask_halt(self._dir, self._request(reason, ended_by, text, until))

    def _end_now(self, reason: str, ended_by: str, text: str) -> EndRequest:
        request = self._request(reason, ended_by, text, None)
        ask_kill(self._dir, request)
        return load_request(self._dir / KILL_NAME) or request

    def _request(self, reason: str, by: str, text: str, until: float | None) -> EndRequest:
        return EndRequest(
            reason=reason,
            ended_by=by,
            at=time.time(),
            text=text,
            until_mono=until,
            grace_s=self._grace_s,
        )

    def _kill(self, now: float, *, grace_s: float, dump: bool) -> None:
        agent = self._agent
        self._killer = Killer(
            token=str(self._order["run"]),
            agent=agent.ref if agent is not None and agent.ended is None else None,
            ranks=[ref for _, ref, _ in self._rank_records()],
            spare=self._spared,
            grace_s=grace_s,
            dump=dump,
            pipes=sorted(self._dir.glob(".nccl_dump_rank_*")),
            now=now,
        )

    def _all_ended(self, now: float) -> bool:
        """Say whether torchrun has ended and nothing of the run is left; sweep what is."""
        agent_ended = self._agent is None or self._agent.ended is not None
        if agent_ended and self._killer is None:
            self._kill(now, grace_s=0.0, dump=False)
        if self._killer is None:
            return False
        if agent_ended:
            self._killer.hurry(now)
        return self._killer.advance(now) and agent_ended

    def _rank_records(self) -> list[tuple[int, ProcessRef, int]]:
        """Return (rank, its process, pid of its wrapper) of every rank that was started."""
        found = []
        for rank in range(int(self._order["world_size"])):
            record = load_json(self._dir / f".rank{rank}.json")
            if record is not None:
                ref = ProcessRef(pid=record["pid"], start_ticks=record["start_ticks"])
                found.append((rank, ref, int(record["wrapper"])))
        return found

    def _rank_exits(self) -> dict[int, Ended]:
        """Return how each rank ended; what a wrapper could not write any more is written here."""
        exits: dict[int, Ended] = {}
        for rank, ref, wrapper in self._rank_records():
            path = self._dir / f"exit_rank{rank}.json"
            document = load_json(path)
            if document is None:
                known = self._statuses.get(ref.pid) or self._statuses.get(wrapper)
                ended = known or Ended(code=None, signal=int(signal.SIGKILL), at=time.time())
                save_json(path, ended.document())
            else:
                ended = ended_of(document)
            exits[rank] = ended
        return exits

    def _save_exit(self) -> None:
        record = build_exit(
            run_dir=self._dir,
            order=self._order,
            request=asked_by(self._dir),
            agent=self._agent.ended if self._agent is not None else None,
            ranks=self._rank_exits(),
            now=time.time(),
        )
        save_json(self._dir / "exit.json", record)

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
