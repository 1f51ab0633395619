"""The part of a `gonogo run` on this host: devices, keeper, signals, what is shown, its end."""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path

from gonogo.cli.exits import interrupt_on_signals, note_interrupts
from gonogo.cli.judging import directory_evidence
from gonogo.cli.output import duration, say
from gonogo.cli.run_advice import advise_unread, printed_lines
from gonogo.cli.settings import Settings
from gonogo.contract.errors import Unavailable
from gonogo.contract.finding import Finding, Severity
from gonogo.contract.order import Order
from gonogo.contract.patience import Place as Stay
from gonogo.device_slots import choose_together
from gonogo.files import is_there
from gonogo.judge.facts.files import RunFiles
from gonogo.rundir import RunDir
from gonogo.supervise.device_records import without_quarantined
from gonogo.supervise.devices.choice import has_devices, visible_devices
from gonogo.supervise.devices.query import list_host_devices
from gonogo.supervise.end_request import reads_no_halt
from gonogo.supervise.keeper.kill import end_processes
from gonogo.supervise.keeper.nodes import find_port, report_lost_keeper, save_refusal
from gonogo.supervise.keeper_start import start_draining, start_keeper
from gonogo.supervise.launch.nodes import Place
from gonogo.supervise.locks import (
    HOST_FOLDER,
    DeviceLocks,
    holding,
    keeper_lock,
    launch_lock,
    open_host_folder,
)
from gonogo.supervise.lost_run import end_lost
from gonogo.supervise.preflight.host_checks import check_host
from gonogo.supervise.processes import NODE_NAME
from gonogo.supervise.watcher.metrics_file import load_metrics

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
        self._suspicion: Finding | None = None
        self._remainder = Remainder()

    def look(self) -> None:
        """Show what is new."""
        self._pass_on()
        if not self._leads:  # node 0 reports on the run as a whole
            return
        rows = list(RunFiles(self._dir.path).rows("findings.jsonl", Finding))
        for found in rows[self._findings :]:
            self._findings += 1
            self._suspicion = found if found.severity is Severity.SUSPECT else self._suspicion
            say(f"{found.severity}: {found.detector}: {found.text}")
        now = time.monotonic()
        if now - self._told >= TELL_EVERY_S:
            self._told = now
            self._tell(now)

    def _pass_on(self) -> None:
        with suppress(OSError), self._log.open("rb", buffering=0) as log:
            while chunk := os.pread(log.fileno(), _CHUNK_BYTES, self._offset):
                written = os.write(self._shown_on, chunk)
                self._offset, self._last = self._offset + written, chunk[written - 1 : written]

    def end_line(self) -> None:
        """End the last line of the output, unless the program or a bar on a terminal has."""
        if self._last != b"\n":
            with suppress(OSError):
                if self._last != b"\r" or not os.isatty(self._shown_on):
                    os.write(self._shown_on, b"\n")

    def _tell(self, now: float) -> None:
        snapshot = load_metrics(self._dir.path)
        ranks = {} if snapshot is None else snapshot.ranks
        seen = [row.step for row in ranks.values() if row.step is not None]
        if not seen:
            if now - self._began >= MUTE_AFTER_S and not self._warned:
                self._warned = True
                limit_s = self._order.limits_of_places()[Stay.START].seconds
                halt = "nothing is halted for it" if limit_s is None else f"limit {limit_s:g} s"
                advice = advise_unread(self._order, printed_lines(self._dir))
                say(f"no step seen yet ({halt}): {advice[0]}")
            return
        step, steps = min(seen), self._order.steps
        text = f"step {step}" + ("" if steps is None else f" of {steps}")
        loss = next((row.loss for row in ranks.values() if row.loss is not None), None)
        text += "" if loss is None else f", loss {loss:g}"
        hung = self._suspicion is not None and (self._suspicion.step or 0) >= step
        where = next(iter(directory_evidence(self._dir.path)), "") if hung else None
        say(text + self._remainder.tell(step, steps, now, where))


class Remainder:
    """Remaining time by the steps seen so far; the time before the first one does not count."""

    def __init__(self) -> None:
        self._first: tuple[int, float] | None = None
        self._newest = (0, 0.0)

    def tell(self, step: int, steps: int | None, now: float, where: str | None = None) -> str:
        """Take the newest step; return the remaining time, or how long no step has come."""
        if self._first is None:
            self._first = self._newest = (step, now)
        elif step != self._newest[0]:
            self._newest = (step, now)
        text = ""
        ran, took_s = step - self._first[0], self._newest[1] - self._first[1]
        if steps is not None and ran > 0 and step < steps:
            text = f", about {duration(took_s / ran * (steps - step))} left"
        stands_s = now - self._newest[1]
        if stands_s < TELL_EVERY_S:
            return text
        if where is None:
            return f"{text}, no step for {duration(stands_s)}"
        return f", looks hung for {duration(stands_s)}{where and f': {where}'}"


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

    @property
    def home(self) -> Path:
        """The home of gonogo."""
        return self.settings.home

    @cached_property
    def locks(self) -> DeviceLocks:
        """Locks of the devices; nodes share the home, but not their locks."""
        usual = self.settings.locks or HOST_FOLDER
        shared = open_host_folder(usual) if has_devices(self.order) else None
        own = self.home if self.place.is_whole else self.home / "hosts" / os.uname().nodename
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
        """Return the first free devices, one a rank; None if there are too few.

        Without devices, or when the driver does not list them, the result is empty: the preflight
        reports why.
        """
        if not has_devices(self.order):
            return ()
        listing = list_host_devices()
        if listing.error is not None:
            return ()
        seen = visible_devices(listing.devices, self.settings.inherited)
        fit = without_quarantined(self.home, [row.uuid for row in seen], time.time())
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
                home=self.home,
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
