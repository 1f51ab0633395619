"""What does the keeper do from its start to exit.json? Start, keep, end; one thread, one loop.

The package's `__main__` says what is guaranteed. Standard library only.
"""

import logging
import os
import select
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from gonogo.device_slots import gpus_of
from gonogo.supervise.durable import save_json
from gonogo.supervise.end_request import asked_by
from gonogo.supervise.exit_record import Ended
from gonogo.supervise.keeper.children import Child, reap_all, start_child, start_heir
from gonogo.supervise.keeper.ending import Ending
from gonogo.supervise.keeper.kill import end_marked
from gonogo.supervise.keeper.log_cap import LogCap
from gonogo.supervise.keeper.meeting import MEET_LIMIT_S, Meeting, NotMet, Superseded
from gonogo.supervise.keeper.nodes import Nodes
from gonogo.supervise.keeper.oom import OutOfMemory
from gonogo.supervise.keeper.part import save_refusal
from gonogo.supervise.keeper.refusals import Refusals
from gonogo.supervise.keeper.sampling import build_drain_command
from gonogo.supervise.keeper.staff import Staff
from gonogo.supervise.keeper.stops import Stops
from gonogo.supervise.keeper.watching import AWAY_S
from gonogo.supervise.launch.command import Allowed, build_command, build_environment
from gonogo.supervise.launch.nodes import Place
from gonogo.supervise.processes import NODE_NAME, boot_id, load_stat
from gonogo.supervise.release import load_release
from gonogo.supervise.weather import (
    RESERVE_NAME,
    SCARCE,
    START_LIMIT_S,
    Reserve,
    Weather,
)

LAST_WORDS_S = 60.0
_LOOP_S = 0.05
_TRIED_NAME = ".room.keeper"
_RECORDS = 3
"""Two requests to end and exit.json: what an end writes besides a stamp for each rank."""

_log = logging.getLogger("gonogo.supervise.keeper")


class Keeper:
    """One supervised run; `run` returns when everything is over.

    Args:
        run_dir: absolute path of the run directory.
        order: the order as data.
        ordered: its bytes.
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
        ordered: bytes,
        locks: Mapping[str, int],
        environ: Mapping[str, str],
        allowed: Allowed,
        watcher: str,
        place: Place,
        home: Path | None = None,
        meet_s: float = MEET_LIMIT_S,
        shield: bool = False,
    ) -> None:
        self._shield, self._stops = shield, Stops(shield=shield)
        self._dir, self._order, self._locks = run_dir, order, locks
        self._folder = _which(run_dir.parent)
        self._home = home
        self._place, self._allowed, self._meet_s = place, allowed, meet_s
        self._agent_environ = build_environment(order, run_dir, environ, locks, allowed, place)
        build_command(order, run_dir, allowed, replace(place, rendezvous="node0:0"))  # or refuse
        self._started_at, self._release = time.time(), load_release()
        self._deadline_s = (order.get("limits") or {}).get("deadline_s")
        self._weather = Weather(_log)
        self._reserve = Reserve(run_dir, place.own(RESERVE_NAME))
        self._memory, self._logs = OutOfMemory(), LogCap(run_dir)
        self._refusals = Refusals(run_dir / place.own(_TRIED_NAME))
        self._staff = Staff(
            run_dir=run_dir,
            order=order,
            ordered=ordered,
            slots=tuple(locks),
            environ=environ,
            watcher=watcher,
            place=place,
            weather=self._weather,
            tell=self._save_state,
        )
        self._ending = Ending(
            run_dir,
            order,
            place,
            self._staff.pids,
            self._reserve,
            self._memory,
            self._refusals,
        )
        self._agent: Child | None = None
        self._grace_s = float((order.get("halt") or {}).get("grace_s") or 0.0)
        self._statuses: dict[int, Ended] = {}
        self._over = False
        self._waited = time.clock_gettime(time.CLOCK_BOOTTIME)

    def run(self) -> None:
        """Start, keep, end, and write exit.json.

        A file that can be neither read nor written ends nothing: it is tried again a moment later.
        """
        wake = self._stops.listen()
        tried = self._weather.tried
        files = len(self._place.programs(self._order)) + _RECORDS
        tried("the reserve", partial(self._reserve.hold, files), None)
        if not self._place.is_whole and not self._meet(wake):
            return
        agent = self._start_at_length(wake)
        if agent is None:
            return
        started = time.monotonic()
        self._staff.tend(started)
        self._staff.tend_sampler(started)
        while not tried("the end", partial(self._is_over, agent), False):
            self._wait(wake)
            now = time.monotonic()
            self._memory.look(now)
            self._refusals.tend(now)
            self._staff.tend_sampler(now)
            if self._place.leads:
                tried("the size of a log", partial(self._logs.tend, now), None)
            tried("a limit", partial(self._limit, now - started), None)
            twice = self._stops.is_told_twice()
            obey = partial(self._ending.obey, now, agent, at_once=twice)
            tried("requests", obey, None)
            if twice:
                self._ending.end_unseen(now, agent, self._stops.why())
        self._staff.stop_sampler()
        self._reap()  # a program that ended since is as dead as what it was killed with
        self._save(wake, partial(self._ending.save_exit, agent, self._statuses))
        self._staff.see_part_end()
        if not self._place.is_whole and self._place.leads:
            self._await_nodes(agent, started, wake)
        if self._place.leads:
            tried("the room of a log", self._logs.free_room, None)
        tried("the reserve", self._reserve.free, None)
        self._over = True
        self._staff.see_run_end()
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
        self._refuse_stopped(wake)
        return False

    def _refuse_stopped(self, wake: int) -> None:
        """Refuse for whoever asked: a scheduler's signal may be that of a person's cancel."""
        asked = self._weather.tried("requests", partial(asked_by, self._dir), None)
        told = self._stops.why() if asked is None else (asked.reason, asked.ended_by, asked.text)
        self._refuse(*told, wake)

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
            are_over = partial(nodes.are_over, now, stopped=bool(self._stops))
            if tried("the other nodes", are_over, False):
                break
            tried("a limit", partial(self._limit, now - started), None)
            if self._stops.is_told_twice():
                end_now = partial(self._ending.end_now, "the keeper was told to stop now")
                tried("requests", end_now, None)
            self._wait(wake)
        for node in nodes.lost:
            end_marked(f"{self._order['run']}/{node}", self._dir, name=NODE_NAME)
        self._save(wake, partial(self._ending.save_end_of_all, agent, nodes))

    def _hand_over(self) -> bool:
        """Pass the locks of GPUs to who proves that they are free, and lets them go then.

        Raises:
            OSError: that cannot be started just now.
        """
        gpus = {slot: self._locks[slot] for slot in gpus_of(self._locks)}
        if gpus and self._home is not None:
            start_heir(
                build_drain_command(self._dir, self._home, gpus, self._place.node),
                env=self._staff.environ,
                log=self._dir / self._place.own("drained.log"),
                descriptors=gpus.values(),
            )
        return True

    def _is_over(self, agent: Child) -> bool:
        return self._ending.is_over(time.monotonic(), agent)

    def _save(self, wake: int, save: Callable[[], None]) -> None:
        """Write how it ended, as soon as the disk takes it.

        Raises:
            OSError: it has not for LAST_WORDS_S, and nobody waits for it; whoever ends lost runs
                writes one.
        """
        give_up = time.monotonic() + LAST_WORDS_S
        while True:
            try:
                self._reserve.write(save)
                return
            except OSError as error:
                if time.monotonic() >= give_up and not self._is_waited_for():
                    raise
                self._weather.note("exit.json", error)
                self._ending.disk_refused = True
            self._wait(wake)

    def _is_waited_for(self) -> bool:
        """Say whether node 0 waits for the end of this part, of which nobody else tells it.

        Its scheduler holds the job of a node that has ended for those that have not. Nobody waits
        where the run's directory was removed from its folder, and that is there.
        """
        if self._place.leads or self._stops or _is_removed(self._dir, self._folder):
            return False
        return not self._weather.tried("the end of all", (self._dir / "exit.json").exists, False)

    def _limit(self, age_s: float) -> None:
        """Ask the run to leave when its time is up, or when this keeper was told to stop."""
        if self._stops:
            self._ending.ask_to_leave(*self._stops.why(), shield=self._shield)
        if (failed := self._staff.failed) is not None:
            self._ending.ask_to_leave("watcher_failed", "infra", failed)
        if self._deadline_s is not None and age_s >= self._deadline_s:
            text = f"the run exceeded {self._deadline_s:g} s"
            self._ending.ask_to_leave("deadline", "watchdog", text)

    def _start_at_length(self, wake: int) -> Child | None:
        """Start the agent, as soon as the host has a process for it; None when it had none.

        That is told as the end of a run that its host was not fit for.
        """
        give_up = time.monotonic() + START_LIMIT_S
        while not self._stops:
            try:
                return self._start_agent()
            except OSError as error:
                if error.errno not in SCARCE or time.monotonic() >= give_up:
                    text = f"the program cannot be started: {error}"
                    self._refuse("preflight_failed", "infra", text, wake)
                    return None
                self._weather.note("the program", error)
            self._wait(wake)
        self._refuse_stopped(wake)
        return None

    def _start_agent(self) -> Child:
        log = self._dir / self._place.own("torchrun.log")
        cwd = self._order.get("cwd")
        command = build_command(self._order, self._dir, self._allowed, self._place)
        environ = dict(self._agent_environ)
        if self._order.get("command"):
            environ.update(self._place.launcher_names(self._order))
        self._agent = start_child(command, env=environ, log=log, cwd=cwd, shield=self._shield)
        self._save_state()
        return self._agent

    def _wait(self, wake: int) -> None:
        """Sleep until a child ends or a moment has passed; take note of what ended."""
        if select.select([wake], [], [], _LOOP_S)[0]:
            os.read(wake, 4096)
        now = time.clock_gettime(time.CLOCK_BOOTTIME)
        away_s, self._waited = now - self._waited, now
        self._reap(away_s if away_s >= AWAY_S else 0.0)
        if self._agent is not None:
            self._staff.tend(time.monotonic())

    def _reap(self, late_s: float = 0.0) -> None:
        """Take note of what ended, and for how long nobody was there to see it."""
        for pid, ended in reap_all():
            self._statuses[pid] = ended
            if late_s:
                self._ending.late_s[pid] = late_s
            if self._agent is not None and self._agent.ref.pid == pid:
                self._agent.ended = self._agent.ended or ended
                self._save_state()
            else:
                self._staff.note(pid, ended, time.monotonic())

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
                proof = "the proof that devices are free"
                held = not self._weather.tried(proof, self._hand_over, False) and now < give_up
                for descriptor in () if held else self._locks.values():
                    os.close(descriptor)
            speaks = now < give_up and not self._staff.are_done()
            if not speaks and (not held or self._stops):
                break
            if not speaks:
                self._staff.stop()
            self._wait(wake)
        self._staff.stop()

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
                **self._staff.document(),
                **({"left": left} if self._over and (left := self._ending.left()) else {}),
            },
        )


def _is_removed(path: Path, folder: tuple[int, int] | None) -> bool:
    """Say whether a folder is gone and the one that it lay in is there; not of a disk that is.

    Args:
        path: it.
        folder: which one it lay in (`_which`). Another one in its place is where a disk was
            mounted, or what has been mounted over it.
    """
    try:
        path.stat()
    except FileNotFoundError:
        return folder is not None and _which(path.parent) == folder
    except OSError:
        return False
    return False


def _which(folder: Path) -> tuple[int, int] | None:
    """Return which folder a path leads to, whatever it is called; None: none that can be read."""
    try:
        found = folder.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino
