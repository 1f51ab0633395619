"""The keeper's loop, from its start to exit.json: start, keep, end. Standard library only."""

import logging
import os
import select
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from gonogo import __version__
from gonogo.device_slots import gpus_of
from gonogo.git_commit import load_commit
from gonogo.supervise.durable import RESERVE_NAME, Reserve, save_json
from gonogo.supervise.end_request import asked_by
from gonogo.supervise.keeper.children import (
    Child,
    Companions,
    StopSignals,
    build_drain_command,
    reap_all,
    start_child,
    start_heir,
)
from gonogo.supervise.keeper.kill import end_processes
from gonogo.supervise.keeper.nodes import (
    MEET_LIMIT_S,
    Meeting,
    NotMet,
    OtherNodes,
    Superseded,
    save_refusal,
)
from gonogo.supervise.keeper.run_end import OutOfMemory, RunEnd
from gonogo.supervise.last_lines import Ended
from gonogo.supervise.launch.command import Allowed, build_command, build_environment
from gonogo.supervise.launch.nodes import Place
from gonogo.supervise.processes import NODE_NAME, boot_id, load_stat
from gonogo.supervise.transient_errors import TransientErrors

LAST_WORDS_S = 60.0  # How long the watcher may ship after the end, and a disk may refuse exit.json.
_LOOP_S = 0.05

_log = logging.getLogger("gonogo.supervise.keeper")


class Keeper:
    """One supervised run; `run` returns when everything is over.

    With `shield` SIGTERM comes to every process of the run; launcher and ranks survive it and leave
    because they are asked to.

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
        self._shield, self._stops = shield, StopSignals(shield=shield)
        self._dir, self._order, self._locks, self._home = run_dir, order, locks, home
        self._place, self._allowed, self._meet_s = place, allowed, meet_s
        self._agent_environ = build_environment(order, run_dir, environ, locks, allowed, place)
        build_command(order, run_dir, allowed, replace(place, rendezvous="node0:0"))  # or refuse
        self._started_at = time.time()
        self._git_sha = load_commit(Path(__file__).resolve().parents[3])
        self._deadline_s = (order.get("limits") or {}).get("deadline_s")
        self._grace_s = float((order.get("halt") or {}).get("grace_s") or 0.0)
        self._transient = TransientErrors(_log)
        self._reserve = Reserve(run_dir, place.own(RESERVE_NAME))
        self._memory = OutOfMemory()
        self._companions = Companions(
            run_dir=run_dir,
            order=order,
            slots=tuple(locks),
            environ=environ,
            watcher=watcher,
            place=place,
            transient=self._transient,
            save_state=self._save_state,
        )
        self._end = RunEnd(
            run_dir, order, place, self._companions.pids, self._reserve, self._memory
        )
        self._agent: Child | None = None
        self._statuses: dict[int, Ended] = {}
        self._over = False

    def run(self) -> None:
        """Start, keep, end, and write exit.json. What the run directory refuses is tried again."""
        wake = self._stops.listen()
        tried = self._transient.tried
        tried("the reserve", self._reserve.hold, None)
        if not self._place.is_whole and not self._meet(wake):
            return
        agent = self._start_agent(wake)
        if agent is None:
            return
        started = time.monotonic()
        self._companions.tend(started)
        is_over = self._end.is_over
        while not tried("the end", lambda: is_over(time.monotonic(), agent), False):
            self._wait(wake)
            now = time.monotonic()
            self._memory.look()
            tried("a limit", partial(self._limit, now - started), None)
            twice = self._stops.are_two
            tried("requests", partial(self._end.obey, now, agent, at_once=twice), None)
            if twice:
                self._end.end_unseen(now, agent, self._stops.cause())
        self._companions.stop_sampler()
        self._reap()
        self._save(wake, partial(self._end.save_exit, agent, self._statuses))
        self._companions.let_finish("follower")
        if not self._place.is_whole and self._place.leads:
            self._await_nodes(agent, started, wake)
        tried("the reserve", self._reserve.free, None)
        self._over = True
        self._companions.let_finish("watcher")
        self._release_devices(wake)

    def _meet(self, wake: int) -> bool:
        """Wait until every node has come; return False when nothing is to be started."""
        self._save_state()
        meeting = Meeting(self._dir, self._order, self._place, limit_s=self._meet_s)
        while not self._stops:
            try:
                met = self._transient.tried(
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
        # The signal may be a scheduler's, for a person's cancel.
        asked = self._transient.tried("requests", partial(asked_by, self._dir), None)
        cause = (asked.reason, asked.ended_by, asked.text) if asked else self._stops.cause()
        self._refuse(*cause, wake)
        return False

    def _refuse(self, reason: str, ended_by: str, text: str, wake: int) -> None:
        refuse = partial(save_refusal, self._dir, self._order, self._place, reason, ended_by, text)
        self._save(wake, refuse)
        self._transient.tried("the reserve", self._reserve.free, None)

    def _await_nodes(self, agent: Child, started: float, wake: int) -> None:
        nodes = OtherNodes(self._dir, self._order, self._grace_s)
        tried = self._transient.tried
        while True:
            now = time.monotonic()
            are_over = partial(nodes.are_over, now, stopped=bool(self._stops))
            if tried("the other nodes", are_over, False):
                break
            tried("a limit", partial(self._limit, now - started), None)
            if self._stops.are_two:
                end_now = partial(self._end.end_now, "the keeper was asked to stop now")
                tried("requests", end_now, None)
            self._wait(wake)
        for node in nodes.lost:
            end_processes(f"{self._order['run']}/{node}", name=NODE_NAME)
        self._save(wake, lambda: nodes.save_exit(self._end.first_request(), agent.ended))

    def _save(self, wake: int, save: Callable[[], None]) -> None:
        """Write how it ended, as soon as the disk accepts it."""
        give_up = time.monotonic() + LAST_WORDS_S
        while True:
            try:
                self._reserve.write(save)
                return
            except OSError as error:
                if time.monotonic() >= give_up:
                    raise
                self._transient.note("exit.json", error)
            self._wait(wake)

    def _limit(self, age_s: float) -> None:
        if self._stops:
            self._end.ask_to_leave(*self._stops.cause(), shield=self._shield)
        if (failed := self._companions.failed) is not None:
            self._end.ask_to_leave("watcher_failed", "infra", failed)
        if self._deadline_s is not None and age_s >= self._deadline_s:
            text = f"the run exceeded {self._deadline_s:g} s"
            self._end.ask_to_leave("deadline", "watchdog", text)

    def _start_agent(self, wake: int) -> Child | None:
        log = self._dir / self._place.own("torchrun.log")
        command = build_command(self._order, self._dir, self._allowed, self._place)
        environ = dict(self._agent_environ)
        if self._order.get("command"):
            environ.update(self._place.launcher_names(self._order))
        cwd = self._order.get("cwd")
        try:
            self._agent = start_child(command, env=environ, log=log, cwd=cwd, shield=self._shield)
        except OSError as error:
            text = f"the program cannot be started: {error}"
            self._refuse("preflight_failed", "infra", text, wake)
            return None
        self._save_state()
        return self._agent

    def _wait(self, wake: int) -> None:
        """Sleep until a child ends or a moment has passed."""
        if select.select([wake], [], [], _LOOP_S)[0]:
            os.read(wake, 4096)
        self._reap()
        if self._agent is not None:
            self._companions.tend(time.monotonic())

    def _reap(self) -> None:
        for pid, ended in reap_all():
            self._statuses[pid] = ended
            if self._agent is not None and self._agent.ref.pid == pid:
                self._agent.ended = self._agent.ended or ended
                self._save_state()
            else:
                self._companions.note(pid, ended, time.monotonic())

    def _release_devices(self, wake: int) -> None:
        """Release the devices when nothing of the run is left, and let the watcher ship the rest.

        Processes that cannot be killed keep their devices, until this keeper is asked to stop.
        """
        give_up, held = time.monotonic() + LAST_WORDS_S, True
        self._save_state()
        while True:
            now = time.monotonic()
            if held and self._transient.tried("a sweep", partial(self._end.is_clear, now), False):
                proof = "the proof that devices are free"
                held = not self._transient.tried(proof, self._hand_over, False) and now < give_up
                for descriptor in () if held else self._locks.values():
                    os.close(descriptor)
            ships = now < give_up and not self._companions.are_done()
            if not ships and (not held or self._stops):
                break
            if not ships:
                self._companions.stop()
            self._wait(wake)
        self._companions.stop()

    def _hand_over(self) -> bool:
        """Pass the locks of GPUs to a process that releases them when their memory is free."""
        gpus = {slot: self._locks[slot] for slot in gpus_of(self._locks)}
        if gpus and self._home is not None:
            heir = start_heir(
                build_drain_command(self._dir, self._home, gpus, self._place.node),
                env=self._companions.environ,
                log=self._dir / self._place.own("drained.log"),
                descriptors=gpus.values(),
            )
            heir.returncode = 0  # reaped by `reap_all`
        return True

    def _save_state(self) -> None:
        self._transient.tried("keeper.json", self._write_state, None)

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
                "version": __version__,
                "git_sha": self._git_sha,
                "locks": list(self._locks),
                "started_at": self._started_at,
                "agent": self._agent.document() if self._agent else None,
                **self._companions.document(),
                **({"left": left} if self._over and (left := self._end.left()) else {}),
            },
        )
