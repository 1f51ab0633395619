"""What does the keeper do from its start to exit.json? Start, keep, end; one thread, one loop.

The package's `__main__` says what is guaranteed. Standard library only.
"""

import logging
import os
import select
import signal
import sys
import time
from collections import deque
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from gonogo.supervise.durable import save_json
from gonogo.supervise.exit_record import Ended
from gonogo.supervise.keeper.children import Child, reap_all, start_child
from gonogo.supervise.keeper.ending import Ending
from gonogo.supervise.keeper.sampling import Sampling, build_sampler_command, is_wanted
from gonogo.supervise.launch.command import Allowed, build_command, build_environment
from gonogo.supervise.processes import TOKEN_NAME, boot_id, load_stat
from gonogo.supervise.weather import Reserve, Weather

LAST_WORDS_S = 60.0
WATCHER_DEATHS = 5
WATCHER_DEATHS_WITHIN_S = 60.0
START_AGAIN_S = 1.0
"""When a watcher that could not be started is tried again."""
_LOOP_S = 0.05

_log = logging.getLogger("gonogo.supervise.keeper")


class Keeper:
    """One supervised run; `run` returns when everything is over.

    Args:
        run_dir: absolute path of the run directory.
        order: the order as data.
        locks: device → descriptor of its lock, closed when no process of the run is left.
        environ: environment of this process.
        allowed: what an order may start and set.
        watcher: module that watches the run, started with its directory.

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
        allowed: Allowed,
        watcher: str,
    ) -> None:
        self._dir, self._order, self._locks = run_dir, order, locks
        self._environ, self._watcher_module = environ, watcher
        self._command = build_command(order, run_dir, allowed)
        self._agent_environ = build_environment(order, run_dir, environ, locks, allowed)
        self._started_at = time.time()
        self._deadline_s = (order.get("limits") or {}).get("deadline_s")
        self._weather = Weather(_log)
        self._reserve = Reserve(run_dir)
        self._ending = Ending(run_dir, order, self._spared, self._reserve)
        self._agent: Child | None = None
        self._watcher: Child | None = None
        sampled = is_wanted(order, locks, environ)
        self._sampling = Sampling(run_dir, self._start_sampler if sampled else None)
        self._watcher_deaths: deque[float] = deque(maxlen=WATCHER_DEATHS)
        self._watch_again_at = 0.0
        self._statuses: dict[int, Ended] = {}
        self._stops: list[int] = []
        """The signals that told this keeper to stop, in their order."""
        self._over = False

    def run(self) -> None:
        """Start, keep, end, and write exit.json.

        A file that can be neither read nor written ends nothing: it is tried again a moment later.
        """
        wake = _wake_descriptor(self._stop)
        tried = self._weather.tried
        tried("the reserve", self._reserve.hold, None)
        started = time.monotonic()
        agent = self._start_agent()
        self._start_watcher(started)
        self._tend_sampler(started)
        while not tried("the end", partial(self._is_over, agent), False):
            self._wait(wake)
            now = time.monotonic()
            self._tend_sampler(now)
            tried("a limit", partial(self._limit, now - started), None)
            obey = partial(self._ending.obey, now, agent, at_once=len(self._stops) >= 2)
            tried("requests", obey, None)
        self._sampling.stop()
        self._save_exit(agent, wake)
        self._over = True
        for descriptor in self._locks.values():
            os.close(descriptor)
        self._await_last_words(wake)

    def _is_over(self, agent: Child) -> bool:
        return self._ending.is_over(time.monotonic(), agent)

    def _save_exit(self, agent: Child, wake: int) -> None:
        """Write exit.json, as soon as the disk takes it.

        Raises:
            OSError: it has not for LAST_WORDS_S; whoever ends lost runs writes one.
        """
        give_up = time.monotonic() + LAST_WORDS_S
        while True:
            try:
                self._reserve.write(partial(self._ending.save_exit, agent, self._statuses))
                break
            except OSError as error:
                if time.monotonic() >= give_up:
                    raise
                self._weather.note("exit.json", error)
            self._wait(wake)
        self._weather.tried("the reserve", self._reserve.free, None)

    def _limit(self, age_s: float) -> None:
        """Ask the run to leave when its time is up, or when this keeper was told to stop."""
        if self._stops:
            self._ending.ask_to_leave(*self._why_stopped())
        if self._deadline_s is not None and age_s >= self._deadline_s:
            text = f"the run exceeded {self._deadline_s:g} s"
            self._ending.ask_to_leave("deadline", "watchdog", text)

    def _start_agent(self) -> Child:
        log = self._dir / "torchrun.log"
        cwd = self._order.get("cwd")
        self._agent = start_child(self._command, env=self._agent_environ, log=log, cwd=cwd)
        self._save_state()
        return self._agent

    def _start_watcher(self, now: float) -> None:
        """Start a watcher; one that cannot be started now is started later."""
        command = [sys.executable, "-m", self._watcher_module, str(self._dir)]
        start = partial(self._start_own, command, "watcher.log")
        self._watcher = self._weather.tried("starting a watcher", start, None)
        self._watch_again_at = float("inf") if self._watcher is not None else now + START_AGAIN_S
        self._save_state()

    def _tend_sampler(self, now: float) -> None:
        """Keep the sampler going; whatever becomes of it is no harm to the run."""
        if self._weather.tried("the sampler", partial(self._sampling.tend, now), False):
            self._save_state()

    def _start_sampler(self) -> Child:
        return self._start_own(build_sampler_command(self._dir, self._locks), "sampler.log")

    def _start_own(self, command: Sequence[str], log: str) -> Child:
        """Start a process that is none of the run's: it has our environment, without the token."""
        environ = {name: text for name, text in self._environ.items() if name != TOKEN_NAME}
        return start_child(command, env=environ, log=self._dir / log)

    def _wait(self, wake: int) -> None:
        """Sleep until a child ends or a moment has passed; take note of what ended."""
        if select.select([wake], [], [], _LOOP_S)[0]:
            os.read(wake, 4096)
        for pid, ended in reap_all():
            self._statuses[pid] = ended
            self._sampling.note(pid, ended, time.monotonic())
            for child in (self._agent, self._watcher):
                if child is not None and child.ref.pid == pid and child.ended is None:
                    child.ended = ended
                    self._save_state()
        now = time.monotonic()
        if self._watcher is not None and self._watcher.ended is not None:
            self._replace_watcher(self._watcher.ended, now)
        elif self._watcher is None and now >= self._watch_again_at:
            self._start_watcher(now)

    def _replace_watcher(self, ended: Ended, now: float) -> None:
        """Start another watcher, unless it is done or they die one after the other."""
        if self._over and ended.code == 0:
            self._watcher, self._watch_again_at = None, float("inf")
            return
        _log.warning("the watcher died: %s", ended)
        self._watcher_deaths.append(now)
        deaths = self._watcher_deaths
        if len(deaths) < WATCHER_DEATHS or now - deaths[0] > WATCHER_DEATHS_WITHIN_S:
            self._start_watcher(now)
            return
        self._watcher, self._watch_again_at = None, float("inf")
        if not self._over:
            text = f"the watcher died {WATCHER_DEATHS} times in {WATCHER_DEATHS_WITHIN_S:g} s"
            leave = partial(self._ending.ask_to_leave, "watcher_failed", "infra", text)
            self._weather.tried("a request", leave, None)

    def _spared(self) -> frozenset[int]:
        watcher = frozenset() if self._watcher is None else frozenset({self._watcher.ref.pid})
        return watcher | self._sampling.pids()

    def _stop(self, number: int) -> None:
        """A signal asked this keeper to stop."""
        self._stops.append(number)

    def _why_stopped(self) -> tuple[str, str, str]:
        """Return cause, who, and why: a person's Ctrl-C, or a host that is being taken away.

        Whoever of ours ends a run writes `.HALT` first; a SIGTERM without one comes from a
        shutdown, a spot market, an eviction or a scheduler.
        """
        if self._stops[0] == signal.SIGINT:
            return "halted", "operator", "the keeper was told to stop"
        return "preempted", "infra", "the host told the run to end (SIGTERM)"

    def _await_last_words(self, wake: int) -> None:
        """Wait for the watcher to ship the rest; the worker's reaper does what it leaves."""
        give_up = time.monotonic() + LAST_WORDS_S
        while self._watcher is not None and time.monotonic() < give_up:
            self._wait(wake)
        if self._watcher is not None:
            self._watcher.ref.send(signal.SIGKILL)

    def _save_state(self) -> None:
        """Tell who lives, if the disk takes it; the lock says it too."""
        self._weather.tried("keeper.json", self._write_state, None)

    def _write_state(self) -> None:
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
                "sampler": self._sampling.child.document() if self._sampling.child else None,
            },
        )


def _wake_descriptor(stop: Any) -> int:
    """Install the signal handlers; returns a descriptor that is readable after any signal."""
    reading, writing = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _: stop(number))
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    return reading
