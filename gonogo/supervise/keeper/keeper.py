"""What does the keeper do from its start to exit.json? Start, keep, end; one thread, one loop.

The package's `__main__` says what is guaranteed. Standard library only.
"""

import logging
import os
import select
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from gonogo.slots import gpus_of
from gonogo.supervise.durable import save_json
from gonogo.supervise.exit_record import Ended
from gonogo.supervise.keeper.children import Child, reap_all, start_child, start_heir
from gonogo.supervise.keeper.ending import Ending
from gonogo.supervise.keeper.kill import end_marked
from gonogo.supervise.keeper.log_cap import LogCap
from gonogo.supervise.keeper.meeting import MEET_LIMIT_S, Meeting, NotMet, Superseded
from gonogo.supervise.keeper.nodes import Nodes
from gonogo.supervise.keeper.oom import OutOfMemory
from gonogo.supervise.keeper.part import save_refusal
from gonogo.supervise.keeper.sampling import (
    ALIVE_NAME,
    Sampling,
    build_drain_command,
    build_sampler_command,
    is_wanted,
)
from gonogo.supervise.keeper.watching import SILENT_S, Watching
from gonogo.supervise.launch.command import Allowed, build_command, build_environment
from gonogo.supervise.launch.place import Place
from gonogo.supervise.processes import NODE_NAME, TOKEN_NAME, boot_id, load_stat
from gonogo.supervise.release import load_release, own_python
from gonogo.supervise.weather import RESERVE_NAME, Reserve, Weather

FOLLOWER_MODULE = "gonogo.supervise.follower"
LAST_WORDS_S = 60.0
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
        place: which part of the order is kept here.
        home: where a GPU is quarantined that is not free after the end; None: nobody looks.
        meet_s: how long to wait for the other nodes.
        shield: SIGTERM comes to every process of the run, not to this one alone: launcher and ranks
            live on, and leave because they are asked to.

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
        place: Place,
        home: Path | None = None,
        meet_s: float = MEET_LIMIT_S,
        shield: bool = False,
    ) -> None:
        self._shield = shield
        self._dir, self._order, self._locks = run_dir, order, locks
        self._home = home
        self._environ, self._watcher_module = environ, watcher
        self._place, self._allowed, self._meet_s = place, allowed, meet_s
        self._agent_environ = build_environment(order, run_dir, environ, locks, allowed, place)
        build_command(order, run_dir, allowed, replace(place, rendezvous="node0:0"))  # or refuse
        self._started_at, self._release = time.time(), load_release()
        self._deadline_s = (order.get("limits") or {}).get("deadline_s")
        self._weather = Weather(_log)
        self._reserve = Reserve(run_dir, place.own(RESERVE_NAME))
        self._memory, self._logs = OutOfMemory(), LogCap(run_dir)
        self._ending = Ending(run_dir, order, place, self._spared, self._reserve, self._memory)
        self._agent: Child | None = None
        settings = (order.get("watch") or {}).get("watcher") or {}
        silent_s = settings.get("silent_s", SILENT_S)
        self._watching = Watching(self._start_watcher, silent_s) if place.leads else None
        self._following = None if place.is_whole else Watching(self._start_follower, silent_s)
        self._grace_s = float((order.get("halt") or {}).get("grace_s") or 0.0)
        start = self._start_sampler if is_wanted(order, locks, environ) else None
        self._sampling = Sampling(run_dir, start, place.own(ALIVE_NAME))
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
        if not self._place.is_whole and not self._meet(wake):
            return
        started = time.monotonic()
        agent = self._start_agent()
        self._tend_watcher(started)
        self._tend_sampler(started)
        while not tried("the end", partial(self._is_over, agent), False):
            self._wait(wake)
            now = time.monotonic()
            self._memory.look(now)
            self._tend_sampler(now)
            if self._place.leads:
                tried("the size of a log", partial(self._logs.tend, now), None)
            tried("a limit", partial(self._limit, now - started), None)
            obey = partial(self._ending.obey, now, agent, at_once=self._is_told_twice())
            tried("requests", obey, None)
        self._sampling.stop()
        self._save(wake, partial(self._ending.save_exit, agent, self._statuses))
        if self._following is not None:
            self._following.let_go()
        if not self._place.is_whole and self._place.leads:
            self._await_nodes(agent, started, wake)
        self._weather.tried("the reserve", self._reserve.free, None)
        self._over = True
        if self._watching is not None:
            self._watching.let_go()
        self._see_off(wake)

    def _meet(self, wake: int) -> bool:
        """Wait until every node has come; False when nothing is to be started, which is told."""
        self._save_state()
        meeting = Meeting(self._dir, self._order, self._place, limit_s=self._meet_s)
        while not self._stops:
            try:
                met = self._weather.tried(
                    "the other nodes", partial(meeting.advance, time.monotonic()), None
                )
            except Superseded as error:
                _log.error("%s: %s", self._dir, error)
                return False
            except NotMet as error:
                self._refuse("preflight_failed", "infra", str(error), wake)
                return False
            if met is not None:
                self._place = replace(self._place, rendezvous=met)
                return True
            self._wait(wake)
        self._refuse(*self._why_stopped(), wake)
        return False

    def _refuse(self, reason: str, ended_by: str, text: str, wake: int) -> None:
        """Write the end of a part, and where it is node 0's of the run, that was not started."""
        refuse = partial(save_refusal, self._dir, self._order, self._place, reason, ended_by, text)
        self._save(wake, refuse)
        self._weather.tried("the reserve", self._reserve.free, None)

    def _await_nodes(self, agent: Child, started: float, wake: int) -> None:
        """Write the end of all when every node has told its own."""
        nodes = Nodes(self._dir, self._order, self._place, self._grace_s)
        tried = self._weather.tried
        while True:
            now = time.monotonic()
            if tried("the other nodes", partial(nodes.are_over, now), False):
                break
            tried("a limit", partial(self._limit, now - started), None)
            if self._is_told_twice():
                end_now = partial(self._ending.end_now, "the keeper was told to stop now")
                tried("requests", end_now, None)
            self._wait(wake)
        for node in nodes.lost:
            end_marked(f"{self._order['run']}/{node}", name=NODE_NAME)
        self._save(wake, partial(self._ending.save_end_of_all, agent, nodes))

    def _hand_over(self) -> None:
        """Pass the locks of GPUs to who proves that they are free, and lets them go then."""
        gpus = {slot: self._locks[slot] for slot in gpus_of(self._locks)}
        if gpus and self._home is not None:
            start_heir(
                build_drain_command(self._dir, self._home, gpus),
                env=self._own_environ(),
                log=self._dir / self._place.own("drained.log"),
                descriptors=gpus.values(),
            )

    def _is_over(self, agent: Child) -> bool:
        return self._ending.is_over(time.monotonic(), agent)

    def _save(self, wake: int, save: Callable[[], None]) -> None:
        """Write how it ended, as soon as the disk takes it.

        Raises:
            OSError: it has not for LAST_WORDS_S; whoever ends lost runs writes one.
        """
        give_up = time.monotonic() + LAST_WORDS_S
        while True:
            try:
                self._reserve.write(save)
                return
            except OSError as error:
                if time.monotonic() >= give_up:
                    raise
                self._weather.note("exit.json", error)
            self._wait(wake)

    def _limit(self, age_s: float) -> None:
        """Ask the run to leave when its time is up, or when this keeper was told to stop."""
        if self._stops:
            self._ending.ask_to_leave(*self._why_stopped())
        for watching in self._looking():
            if watching.failed is not None:
                self._ending.ask_to_leave("watcher_failed", "infra", watching.failed)
        if self._deadline_s is not None and age_s >= self._deadline_s:
            text = f"the run exceeded {self._deadline_s:g} s"
            self._ending.ask_to_leave("deadline", "watchdog", text)

    def _start_agent(self) -> Child:
        log = self._dir / self._place.own("torchrun.log")
        cwd = self._order.get("cwd")
        command = build_command(self._order, self._dir, self._allowed, self._place)
        self._agent = start_child(
            command, env=self._agent_environ, log=log, cwd=cwd, shield=self._shield
        )
        self._save_state()
        return self._agent

    def _start_watcher(self, signs: int) -> Child:
        """Start a watcher, which says through a descriptor that it goes on."""
        command = [own_python(), "-m", self._watcher_module, str(self._dir)]
        return self._start_own([*command, "--signs", str(signs)], "watcher.log", (signs,))

    def _start_follower(self, signs: int) -> Child:
        """Start the follower, who looks at this node's part of a run that has several."""
        command = [own_python(), "-m", FOLLOWER_MODULE, str(self._dir)]
        options = ["--node", str(self._place.node), "--signs", str(signs)]
        return self._start_own([*command, *options], self._place.own("follower.log"), (signs,))

    def _looking(self) -> list[Watching]:
        """Return those who look at the run for us: watcher, follower, or both."""
        return [row for row in (self._watching, self._following) if row is not None]

    def _tend_watcher(self, now: float) -> None:
        """Keep those who look at the run going."""
        for watching in self._looking():
            if self._weather.tried("the watcher", partial(watching.tend, now), False):
                self._save_state()

    def _tend_sampler(self, now: float) -> None:
        """Keep the sampler going; whatever becomes of it is no harm to the run."""
        if self._weather.tried("the sampler", partial(self._sampling.tend, now), False):
            self._save_state()

    def _start_sampler(self) -> Child:
        command = build_sampler_command(self._dir, self._locks, self._place.node)
        return self._start_own(command, self._place.own("sampler.log"))

    def _start_own(self, command: Sequence[str], log: str, pass_fds: Sequence[int] = ()) -> Child:
        """Start a process that is none of the run's: it has our environment, without the token."""
        return start_child(command, env=self._own_environ(), log=self._dir / log, pass_fds=pass_fds)

    def _own_environ(self) -> dict[str, str]:
        return {name: text for name, text in self._environ.items() if name != TOKEN_NAME}

    def _wait(self, wake: int) -> None:
        """Sleep until a child ends or a moment has passed; take note of what ended."""
        if select.select([wake], [], [], _LOOP_S)[0]:
            os.read(wake, 4096)
        for pid, ended in reap_all():
            self._statuses[pid] = ended
            now = time.monotonic()
            self._sampling.note(pid, ended, now)
            if self._agent is not None and self._agent.ref.pid == pid:
                self._agent.ended = self._agent.ended or ended
                self._save_state()
            elif any(watching.note(pid, ended, now) for watching in self._looking()):
                self._save_state()
        if self._agent is not None:
            self._tend_watcher(time.monotonic())

    def _spared(self) -> frozenset[int]:
        return self._sampling.pids().union(*(row.pids() for row in self._looking()))

    def _stop(self, number: int) -> None:
        """A signal asked this keeper to stop."""
        self._stops.append(number)

    def _is_told_twice(self) -> bool:
        """Say whether who asked this keeper to stop asks again: the ranks get no more time.

        A scheduler that signals all processes of a job does so several times in one ending.
        """
        asked = [row for row in self._stops if row == signal.SIGINT or not self._shield]
        return len(asked) >= 2

    def _why_stopped(self) -> tuple[str, str, str]:
        """Return cause, who, and why: a person's Ctrl-C, or a host that is being taken away.

        Whoever of ours ends a run writes `.HALT` first; a SIGTERM without one comes from a
        shutdown, a spot market, an eviction or a scheduler.
        """
        if self._stops[0] == signal.SIGINT:
            return "halted", "operator", "the keeper was told to stop"
        return "preempted", "infra", "the host told the run to end (SIGTERM)"

    def _see_off(self, wake: int) -> None:
        """Let the devices go when nothing of the run is left, and the watcher ship the rest.

        What cannot be ended keeps its devices, unless this keeper is told to stop; what the watcher
        leaves the worker's reaper does.
        """
        give_up, held = time.monotonic() + LAST_WORDS_S, True
        self._save_state()
        while True:
            now = time.monotonic()
            if held and self._weather.tried("a sweep", partial(self._ending.is_clear, now), False):
                held = False
                self._weather.tried("the proof that devices are free", self._hand_over, None)
                for descriptor in self._locks.values():
                    os.close(descriptor)
            speaks = now < give_up and not all(row.is_done() for row in self._looking())
            if not speaks and (not held or self._stops):
                break
            if not speaks:
                self._stop_looking()
            self._wait(wake)
        self._stop_looking()

    def _stop_looking(self) -> None:
        for watching in self._looking():
            watching.stop()

    def _save_state(self) -> None:
        """Tell who lives, if the disk takes it; the lock says it too."""
        self._weather.tried("keeper.json", self._write_state, None)

    def _write_state(self) -> None:
        own = load_stat(os.getpid())
        save_json(
            self._dir / self._place.own("keeper.json"),
            {
                "v": 1,
                "run": self._order["run"],
                "pid": os.getpid(),
                "start_ticks": own.start_ticks if own else 0,
                "boot_id": boot_id(),
                **self._release,
                "locks": list(self._locks),
                "started_at": self._started_at,
                "agent": self._agent.document() if self._agent else None,
                "watcher": self._watching.document() if self._watching else None,
                **self._node_state(),
                "sampler": self._sampling.child.document() if self._sampling.child else None,
                **({"left": left} if self._over and (left := self._ending.left()) else {}),
            },
        )

    def _node_state(self) -> dict[str, Any]:
        """Return what keeper.json tells besides where a run has several nodes."""
        if self._following is None:
            return {}
        return {"node": self._place.node, "follower": self._following.document()}


def _wake_descriptor(stop: Any) -> int:
    """Install the signal handlers; returns a descriptor that is readable after any signal."""
    reading, writing = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _: stop(number))
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    return reading
