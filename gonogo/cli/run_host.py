"""A `gonogo run` on this host: devices, keeper, signals, progress, and joining several nodes.

Joining works in a folder that the nodes share. Each node but the first writes `node{K}.json` with a
nonce. Node 0 waits for all, makes the run directory, and writes `begun.json`, which repeats the
nonces. At the end it writes `.verdict.json`. Nothing is started before all nodes have come.
"""

import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from gonogo.cli.exits import interrupt_on_signals, note_interrupts
from gonogo.cli.output import duration, say
from gonogo.cli.settings import Settings
from gonogo.contract.canonical import digest
from gonogo.contract.errors import Rejected, Unavailable
from gonogo.contract.finding import Finding
from gonogo.contract.order import Order
from gonogo.contract.watch import Place as Stay
from gonogo.device_slots import choose_together
from gonogo.files import is_there
from gonogo.judge.facts.record import RunFiles
from gonogo.rundir import RunDir
from gonogo.supervise.devices.choice import has_devices, list_host_devices, visible_devices
from gonogo.supervise.durable import load_json, save_json
from gonogo.supervise.end_request import reads_no_halt
from gonogo.supervise.keeper.kill import end_processes
from gonogo.supervise.keeper.nodes import MEET_LIMIT_S, find_port, report_lost_keeper, save_refusal
from gonogo.supervise.keeper_start import start_draining, start_keeper
from gonogo.supervise.launch.nodes import NODE_LAUNCHERS, NoPlace, Place, read_node
from gonogo.supervise.locks import (
    HOST_FOLDER,
    DeviceLocks,
    holding,
    keeper_lock,
    launch_lock,
    open_host_folder,
    take_lock,
    without_quarantined,
)
from gonogo.supervise.lost_run import end_lost
from gonogo.supervise.preflight.host_checks import check_host
from gonogo.supervise.processes import NODE_NAME
from gonogo.supervise.transient_errors import TransientErrors
from gonogo.supervise.watcher.metrics_file import load_metrics

UNREAD = (
    r"no line of its output (rank0.log) fits: give a --pattern that does, such as"
    r" 'iter (?P<step>\d+): loss (?P<loss>\S+)', or attach it (docs/how-to/attach.md)"
)
TELL_EVERY_S = 10.0
MUTE_AFTER_S = 60.0
_CHUNK_BYTES = 2**16


class RunProgress:
    """Shows a run while it is active; a closed terminal or pipe does not end it."""

    def __init__(
        self, run_dir: RunDir, order: Order, *, quiet: bool, place: Place | None = None
    ) -> None:
        self._dir, self._order = run_dir, order
        self._log = run_dir.rank_log(0 if place is None else place.ranks.start)
        self._leads = place is None or place.leads
        self._shown_on = (sys.stderr if quiet else sys.stdout).fileno()
        self._offset = self._findings = 0
        self._last = b"\n"
        """The last byte of the output that was shown."""
        self._began = self._told = time.monotonic()
        self._warned = False
        self._pace = Pace()

    def look(self) -> None:
        """Show what is new."""
        with suppress(OSError), self._log.open("rb", buffering=0) as log:
            while chunk := os.pread(log.fileno(), _CHUNK_BYTES, self._offset):
                written = os.write(self._shown_on, chunk)
                self._offset, self._last = self._offset + written, chunk[written - 1 : written]
        if not self._leads:  # node 0 reports on the run as a whole
            return
        rows = list(RunFiles(self._dir.path).rows("findings.jsonl", Finding))
        for found in rows[self._findings :]:
            self._findings += 1
            say(f"{found.severity}: {found.detector}: {found.text}")
        now = time.monotonic()
        if now - self._told >= TELL_EVERY_S:
            self._told = now
            self._tell(now)

    def end_line(self) -> None:
        """End the last line of the output, unless the program has."""
        if self._last != b"\n":
            with suppress(OSError):
                os.write(self._shown_on, b"\n")

    def _tell(self, now: float) -> None:
        snapshot = load_metrics(self._dir.path)
        ranks = {} if snapshot is None else snapshot.ranks
        seen = [row.step for row in ranks.values() if row.step is not None]
        if seen:
            losses = [f", loss {row.loss:g}" for row in ranks.values() if row.loss is not None]
            text = self._pace.tell(min(seen), self._order.steps, now)
            say(f"{text}{''.join(losses[:1])}")
        elif now - self._began >= MUTE_AFTER_S and not self._warned:
            self._warned = True
            limit_s = self._order.limits_of_places()[Stay.START].seconds
            halt = "nothing is halted for it" if limit_s is None else f"limit {limit_s:g} s"
            say(f"no step seen yet ({halt})" + (f": {UNREAD}" if self._order.patterns else ""))


class Pace:
    """Remaining time by the steps seen so far; the time before the first one does not count."""

    def __init__(self) -> None:
        self._first: tuple[int, float] | None = None
        self._newest = (0, 0.0)

    def tell(self, step: int, steps: int | None, now: float) -> str:
        """Take the newest step; return it with the remaining time and how long none has come."""
        if self._first is None or step != self._newest[0]:
            self._newest = (step, now)
        self._first = self._first or self._newest
        text = f"step {step}" + ("" if steps is None else f" of {steps}")
        ran, took_s = step - self._first[0], self._newest[1] - self._first[1]
        if steps is not None and ran > 0 and step < steps:
            text += f", about {duration(took_s / ran * (steps - step))} left"
        stands_s = now - self._newest[1]
        return text if stands_s < TELL_EVERY_S else f"{text}, no step for {duration(stands_s)}"


LAUNCH_WAIT_S = 60.0
_POLL_S = 0.1
Keeper = subprocess.Popen[bytes]


class Refused(Exception):
    """The host is not fit for the run."""


@dataclass(frozen=True, kw_only=True)
class RunHost:
    """A run, or one node's part of it, on this host."""

    order: Order
    run_dir: RunDir
    settings: Settings
    place: Place
    address: str | None = None
    """Address of node 0 for the other nodes; None: its keeper finds it."""
    quiet: bool = False
    """Whether the program's output goes to stderr."""

    @cached_property
    def locks(self) -> DeviceLocks:
        """Locks of the devices; nodes share the home, but not their locks."""
        usual = self.settings.locks or HOST_FOLDER
        shared = open_host_folder(usual) if has_devices(self.order) else None
        own = (
            self.settings.home
            if self.place.is_whole
            else self.settings.home / "hosts" / os.uname().nodename
        )
        return DeviceLocks(home=own, shared=shared)

    def supervise(self) -> bool:
        """Check the host and follow the run to its end; return whether it was interrupted here."""
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # the run outlives its terminal
        early: list[int] = []
        refuse = partial(save_refusal, self.run_dir.path, self.order.document(), self.place)
        try:
            keeper = self._start(early)
        except Refused as refused:
            refuse("preflight_failed", "infra", str(refused))
            return False
        except KeyboardInterrupt as error:
            if error.args[:1] == (signal.SIGTERM,):
                refuse("preempted", "infra", "the host got SIGTERM before the start")
            else:
                refuse("halted", "operator", "it was interrupted before it began")
            return True
        interrupted = self._follow(keeper, early)
        if keeper.returncode != 0:
            self._end_lost("was killed" if keeper.returncode < 0 else "has failed")
        return interrupted

    def _start(self, early: list[int]) -> Keeper:
        """Check the host and start the keeper; signals that come meanwhile go to `early`."""
        while True:
            interrupt_on_signals()
            devices = self._devices()
            checked = check_host(
                self.order, self.run_dir, devices=devices, cwd=Path.cwd(), node=self.place.node
            )
            for check in checked.checks:
                if check.outcome != "pass":
                    say(f"preflight {check.id}: {check.outcome}: {check.text}")
            if not checked.passed or devices is None:
                failed = [row.text for row in checked.checks if row.outcome == "fail"]
                raise Refused("; ".join(failed))
            try:
                keeper = self._launch(devices, early)
            except OSError as error:
                text = f"its keeper cannot be started: {error}"
                say(text)
                raise Refused(text) from error
            if keeper is not None:
                return keeper

    def _devices(self) -> tuple[str, ...] | None:
        """Return the first free devices, one a rank; None: too few."""
        if not has_devices(self.order):
            return ()
        listing = list_host_devices()
        if listing.error is not None:
            return ()
        seen = visible_devices(listing.devices, self.settings.inherited)
        fit = without_quarantined(self.settings.home, [row.uuid for row in seen], time.time())
        return choose_together(self.locks.free(fit), len(self.place.ranks))

    def _launch(self, devices: tuple[str, ...], early: list[int]) -> Keeper | None:
        """Start the keeper; None if another launch has taken one of the devices."""
        options = ["--allow", "any", "--allow-env", "any"]
        if not self.place.is_whole:
            options += ["--node", str(self.place.node)]
        if self.address is not None:
            options += ["--rendezvous", f"{self.address}:{find_port()}"]

        def start() -> Keeper:
            note_interrupts(early)  # an end now would leave the program behind
            return start_keeper(
                self.run_dir.path,
                home=self.settings.home,
                locks=self.locks,
                devices=devices,
                environ=self.settings.inherited,
                cwd=Path.cwd(),
                place=self.place,
                options=options,
            )

        if not devices:
            return start()
        lock, give_up = launch_lock(self.locks.home), time.monotonic() + LAUNCH_WAIT_S
        while time.monotonic() < give_up:
            with holding(lock) as mine:
                if mine:
                    return start() if self.locks.free(devices) == devices else None
            time.sleep(_POLL_S)
        raise Unavailable(f"{lock} is held for a minute: another launch hangs")

    def _follow(self, keeper: Keeper, early: list[int]) -> bool:
        interrupt_on_signals()
        progress = RunProgress(self.run_dir, self.order, quiet=self.quiet, place=self.place)
        interrupts = 0
        while True:
            try:
                ended = keeper.poll() is not None
                if early and not ended:
                    raise KeyboardInterrupt(early.pop(0))
                progress.look()
                if ended:
                    progress.end_line()
                    if keeper.returncode > 0:
                        say(_last_line(self.run_dir.path / self.place.own("keeper.log")))
                    return interrupts > 0
                time.sleep(_POLL_S)
            except KeyboardInterrupt as error:
                interrupts, begun = interrupts + 1, is_there(self.run_dir.go)
                number = error.args[0] if error.args else signal.SIGINT
                keeper.send_signal(number)  # Ctrl-C: a person; SIGTERM: the host is taken away
                if interrupts == 1 and begun and reads_no_halt(self.run_dir.path):
                    say("an unchanged program saves no checkpoint: ending it now (SIGTERM)")
                elif interrupts == 1 and begun:
                    say("asked to leave with a checkpoint; Ctrl-C again ends it now")
                else:  # before .GO nobody reads the request: send the second signal, too
                    both = {signal.SIGINT, signal.SIGTERM}
                    keeper.send_signal((both - {number}).pop())
                    say("ending it now")

    def _end_lost(self, how: str) -> None:
        """End what is left of a run whose keeper is lost. On a later node, report it to node 0."""
        run_dir, place = self.run_dir, self.place
        if not place.leads:
            say(f"the keeper of node {place.node} {how}: what is left here is ended")
            end_processes(f"{self.order.run}/{place.node}", name=NODE_NAME)
            report_lost_keeper(run_dir.path, place.node, self.order.token, time.time())
            return
        with holding(keeper_lock(run_dir.path)) as mine:
            if not mine:
                return
            if is_there(run_dir.exit):
                return
            say(f"its keeper {how}: what is left of the run is ended")
            try:
                while end_lost(run_dir, self.order, time.time()) is None:
                    time.sleep(_POLL_S)
            except OSError as error:
                say(f"its end cannot be written: {error}")
            home, locks = self.locks.home, self.locks
            start_draining(run_dir.path, home=home, locks=locks, environ=self.settings.inherited)


def _last_line(path: Path) -> str:
    lines = path.read_text(errors="replace").strip().splitlines()
    return lines[-1] if lines else f"{path} is empty"


VERDICT_NAME = ".verdict.json"
VERDICT_LIMIT_S = 120.0
"""How long node 0 may show nothing new before the others stop waiting for its verdict."""
MOST_NODES = 1024
_SAY_AFTER_S = 10.0
_BEGUN_NAME = "begun.json"
_transient = TransientErrors(logging.getLogger(__name__))


@dataclass(frozen=True, slots=True, kw_only=True)
class Nodes:
    """Which part of a joint start this process is."""

    count: int
    """At least 2."""
    node: int
    address: str | None
    """Where the other nodes reach node 0; None: node 0 finds that out."""
    launch: str
    """The same on all nodes of one start."""


def find_nodes(
    asked: str | None,
    node_rank: int | None,
    master_addr: str | None,
    environ: Mapping[str, str],
) -> Nodes | None:
    """Return this process's part of a joint start by options and launcher; None for one node."""
    if asked is None:
        if node_rank is not None or master_addr is not None:
            raise Rejected("--node-rank and --master-addr need --nodes")
        return None
    if asked != "auto" and not (asked.isascii() and asked.isdigit() and int(asked) > 0):
        raise Rejected(f"--nodes: found {asked!r}; expected a number, or auto")
    try:
        told = read_node(environ) if asked == "auto" or node_rank is None else None
    except NoPlace as error:
        raise Rejected(str(error)) from error
    if told is None and node_rank is None and asked != "1":
        known = ", ".join(f"{row.node} ({row.name})" for row in NODE_LAUNCHERS)
        raise Rejected(f"the number of this node is unknown: say --node-rank I; looked for {known}")
    count = int(asked) if asked != "auto" else None if told is None else told.nodes
    if count is None:
        where = "no launcher is found" if told is None else f"{told.launcher.name} sets no number"
        raise Rejected(f"--nodes auto: {where}; say --nodes N")
    if told is not None and told.nodes not in (None, count):
        raise Rejected(f"--nodes {count}: {told.launcher.name} tells of {told.nodes} nodes")
    node = node_rank if node_rank is not None else 0 if told is None else told.node
    if not 0 <= node < count <= MOST_NODES:
        raise Rejected(f"node {node} is none of {count} (of {MOST_NODES} at most)")
    if count == 1:
        return None
    address = master_addr or (None if told is None else told.address)
    named = [told.launcher.name, told.launch] if told is not None else []
    launch = digest([*named, count, address or ""])[:16]
    return Nodes(count=count, node=node, address=address, launch=launch)


class JointStart:
    """One start of a command on several nodes, as one of them sees it."""

    def __init__(
        self, runs: Path, starts: Path, nodes: Nodes, limit_s: float = MEET_LIMIT_S
    ) -> None:
        self._runs, self._folder = runs, starts / nodes.launch
        self._nodes, self._limit_s = nodes, limit_s

    def lead(self, make_run: Callable[[], str]) -> None:
        """Wait for the other nodes, make the run directory, and let them follow the run."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if take_lock(self._folder / "lead.lock") is None:  # held until this process ends
            raise Rejected(f"another start is under way in {self._folder}")
        for path in self._folder.glob("*.json"):
            path.unlink(missing_ok=True)
        others: dict[int, dict[str, Any]] = {}

        def have_come() -> bool:
            for node in range(1, self._nodes.count):
                row = load_json(self._folder / f"node{node}.json")
                others.update({} if row is None else {node: row})
            return len(others) == self._nodes.count - 1

        def missing() -> str:
            absent = [str(node) for node in range(1, self._nodes.count) if node not in others]
            return (
                f"nothing of node {', '.join(absent)} in {self._folder} within {self._limit_s:g} s:"
                " was gonogo run started there, and does that node see the same folder?"
            )

        self._wait(have_come, missing)
        nonces = {str(node): row.get("nonce") for node, row in others.items()}
        self._save(_BEGUN_NAME, {"run": make_run(), "nonces": nonces})

    def follow(self) -> str:
        """Return the run that node 0 has begun with this node."""
        node, host = self._nodes.node, os.uname().nodename
        own = {"nonce": os.urandom(8).hex()}
        name, run = f"node{node}.json", ""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)

        def is_answered() -> bool:
            nonlocal run
            if (load_json(self._folder / name) or {}).get("nonce") != own["nonce"]:
                self._save(name, own)  # also where node 0 came later, and removed it
            begun = load_json(self._folder / _BEGUN_NAME) or {}
            if begun.get("nonces", {}).get(str(node)) != own["nonce"]:
                return False
            run = str(begun.get("run"))
            return (self._runs / run / "order.json").exists()  # a network shows it later

        def unanswered() -> str:
            return (
                f"node {node} ({host}) was not answered in {self._folder} within"
                f" {self._limit_s:g} s: was gonogo run started on node 0, and does node 0 see the"
                " same folder (GONOGO_HOME)?"
            )

        self._wait(is_answered, unanswered)
        return run

    def _save(self, name: str, document: Mapping[str, Any]) -> None:
        save_json(self._folder / name, {"v": 1, **document})

    def _wait(self, holds: Callable[[], bool], missing: Callable[[], str]) -> None:
        began, said = time.monotonic(), False
        while not _transient.tried("the other nodes", holds, False):
            age_s = time.monotonic() - began
            if age_s >= self._limit_s:
                raise Unavailable(missing())
            if age_s >= _SAY_AFTER_S and not said:
                said = True
                say(f"waiting for the other nodes: {missing()}")
            time.sleep(_POLL_S)


def save_verdict(run_dir: RunDir, code: int) -> None:
    """Write the exit code with which the other nodes end."""
    save_json(run_dir.path / VERDICT_NAME, {"v": 1, "exit": code})


def wait_for_verdict(run_dir: RunDir, limit_s: float = VERDICT_LIMIT_S) -> int:
    """Return the exit code of node 0's verdict; while its watcher writes, there is more to come."""
    seen, since = -1, time.monotonic()
    look = partial(load_json, run_dir.path / VERDICT_NAME)
    while (found := _transient.tried("the verdict", look, None)) is None:
        size = _transient.tried("the watch", partial(_size_of, run_dir.watch), seen)
        if size != seen:
            seen, since = size, time.monotonic()
        if time.monotonic() - since >= limit_s:
            raise Unavailable(
                f"node 0 has written no verdict in {run_dir.path} for {limit_s:g} s;"
                f" gonogo judge {run_dir.path} derives it"
            )
        time.sleep(_POLL_S)
    return int(found["exit"])


def _size_of(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
