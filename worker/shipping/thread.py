"""Ships in a thread of its own, so that the watcher never waits for the control plane.

A control plane that is slow or down delays nothing and decides nothing. A host that cannot start a
thread now still watches the run; each look tries again to start one.
"""

import logging
import queue
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from gonogo.contract.finding import Finding
from gonogo.contract.records import ExitRecord
from gonogo.contract.worker_messages import Command, TelemetryAck
from gonogo.supervise.transient_errors import TransientErrors, start_thread
from gonogo.supervise.watcher.metrics_file import Shipping

if TYPE_CHECKING:  # its imports take a moment, which is the thread's, not the first tick's
    from worker.shipping.shipper import Shipper

PAUSE_S = 0.3
FINISH_PAUSE_S = 0.5
FAILURE_PAUSE_S = 1.0
GIVE_UP_S = 30.0

_log = logging.getLogger(__name__)


class ShippingThread(Shipping):
    """Ships one run, by what `connect` makes, until its exit record arrived or `stop`."""

    def __init__(self, connect: Callable[[], "Shipper"]) -> None:
        self._connect = connect
        self._thread: threading.Thread | None = None
        self._transient = TransientErrors(_log)
        self._commands: queue.SimpleQueue[Command] = queue.SimpleQueue()
        self._unwritten: queue.SimpleQueue[Finding] = queue.SimpleQueue()
        self._exit: ExitRecord | None = None
        self._stopping = False
        self._wake = threading.Event()
        self._acked_at = _boot_clock()
        self.finished = threading.Event()

    def start(self) -> bool:
        """Start the thread unless it was started; False while the host cannot."""
        if self._thread is None:
            begin = partial(start_thread, self.run, "shipping")
            self._thread = self._transient.tried("shipping", begin, None)
        return self._thread is not None

    def join(self, timeout_s: float) -> bool:
        """Wait for the thread to end; say whether none is left."""
        if self._thread is None:
            return True
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def take_command(self) -> Command | None:
        """Return what the control plane asks, once."""
        self.start()
        return None if self._commands.empty() else self._commands.get_nowait()

    def silent_s(self) -> float:
        """Return seconds since the control plane last acknowledged anything, sleep included."""
        return _boot_clock() - self._acked_at

    def tell(self, finding: Finding) -> None:
        """Report a finding that could not be written to the full disk."""
        self._unwritten.put(finding)

    def finish(self, record: ExitRecord) -> None:
        """From now on ship the rest and the end; `finished` is set when all of it arrived."""
        self._exit = record
        self._wake.set()

    def close(self, record: ExitRecord | None) -> None:
        """Ship until everything arrived, for at most GIVE_UP_S; the worker ships what is left."""
        if record is not None:
            self.finish(record)
            give_up = time.monotonic() + GIVE_UP_S
            while not self.start() and time.monotonic() < give_up:
                time.sleep(FINISH_PAUSE_S)
            if not self.finished.wait(max(0.0, give_up - time.monotonic())):
                _log.warning("left unshipped", extra={"action": "left_unshipped"})
        self.stop()

    def stop(self) -> None:
        """Give up."""
        self._stopping = True
        self._wake.set()

    def run(self) -> None:
        """Ship until the end."""
        shipper: Shipper | None = None
        while not self._stopping and not self.finished.is_set():
            try:
                shipper = shipper or self._connect()
                pause_s = self._ship_once(shipper)
            except Exception:  # noqa: BLE001 - edge of a thread: logged, tried again
                pause_s = FAILURE_PAUSE_S
                _log.exception("shipping failed", extra={"action": "shipping_failed"})
            self._wake.wait(pause_s)
            self._wake.clear()

    def _ship_once(self, shipper: "Shipper") -> float:
        record = self._exit
        while not self._unwritten.empty():
            shipper.add_finding(self._unwritten.get_nowait())
        if record is not None:
            if shipper.finish(record):
                self.finished.set()
            return FINISH_PAUSE_S
        near, self.near = self.near, None
        ack = shipper.ship(time.monotonic(), suspect=self.suspect, near=near)
        self.backlog_lines = shipper.backlog_lines
        if ack is not None:
            self._note(ack)
        return PAUSE_S

    def _note(self, ack: TelemetryAck) -> None:
        self._acked_at = _boot_clock()
        if ack.command is not None:
            self._commands.put(ack.command)


def _boot_clock() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)
