"""A thread that repeats a pass: when the bell rings, and at least every few seconds.

A pass that fails is logged, counted and tried again; the truth is in the database.
"""

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field

from gonogo.contract.errors import Unavailable
from service.context import Context
from service.db.store import Topic

MIN_PAUSE_S = 0.02
"""Between two passes, so that a busy bell does not make a loop spin."""
AWAY_S = 5.0
"""A pass that comes so much too late means that the process was away."""
_log = logging.getLogger(__name__)


@dataclass(slots=True)
class Loop:
    """One repeated pass."""

    name: str
    run_once: Callable[[], None]
    every_s: float
    _: KW_ONLY
    hears: Topic | None = None
    """What brings the next pass forward."""
    pause_s: float = MIN_PAUSE_S
    """From what it hears to the pass, so that many commits cost one pass."""
    forget: Callable[[], None] | None = None
    """Called before a pass that comes late: this process was away (a host that stood still), or led
    no more in between."""
    passes: int = 0
    failures: int = 0
    last_pass_at: float | None = None
    """Unix seconds, for the metrics."""
    _thread: threading.Thread | None = field(default=None, repr=False)

    def start(self, context: Context, may_run: Callable[[], bool]) -> None:
        """Start the thread; it ends when the context closes."""
        bell = context.bell.listen(*([self.hears] if self.hears else []))
        self._thread = threading.Thread(
            target=self._repeat, args=(context, bell, may_run), name=self.name, daemon=True
        )
        self._thread.start()

    def join(self, timeout_s: float) -> None:
        """Wait for the thread to end."""
        if self._thread is not None:
            self._thread.join(timeout_s)

    def _repeat(self, context: Context, bell: threading.Event, may_run: Callable[[], bool]) -> None:
        due = float("-inf")
        while not context.closing.is_set():
            if may_run():
                if self.forget is not None and time.monotonic() - due >= AWAY_S:
                    self.forget()
                self._pass(context)
                due = time.monotonic() + self.every_s
            if bell.wait(self.every_s):
                context.closing.wait(self.pause_s)
            bell.clear()

    def _pass(self, context: Context) -> None:
        try:
            self.run_once()
        except Unavailable as error:
            self.failures += 1
            _log.warning("%s: %s", self.name, error, extra={"action": "pass_unavailable"})
        except Exception:  # noqa: BLE001 - the edge of a thread: logged, counted, tried again
            self.failures += 1
            _log.exception("%s: pass failed", self.name, extra={"action": "pass_failed"})
        self.passes += 1
        self.last_pass_at = context.now()
