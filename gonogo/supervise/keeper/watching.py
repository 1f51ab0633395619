"""Who keeps the watcher of a run going? The keeper: it starts it, hears it, and replaces it.

A watcher says that it goes on by a byte now and then into a pipe, which no disk has to take. One
that has died is back within a second. One that has been silent for too long (it hangs, or was
stopped) is asked for its stack, which lands in watcher.log, and is replaced; silence while this
process itself was away (a host that slept) counts for nothing.

A watcher that dies again and again ends the run (`failed`), but only where each had begun to watch:
one that dies before its first look (code of another release, a file that it cannot read) ends
nothing. It is tried again after a pause that grows, and since no `.metrics.json` is written
meanwhile the control plane's alert (GonogoRunUnwatched) calls a person. Stdlib only.
"""

import logging
import os
import random
import signal
from collections import deque
from collections.abc import Callable
from subprocess import SubprocessError
from typing import Any

from gonogo.supervise.exit_record import Ended
from gonogo.supervise.keeper.children import Child
from gonogo.supervise.processes import catches, load_wait_channel

SILENT_S = 60.0
"""How long a watcher may give no sign, where the order does not say."""
FIRST_SIGN_S = 600.0
"""The same before its first look: it may have a long run to fold again."""
AWAY_S = 5.0
"""Who has not come by for so long was away itself."""
DUMP_S = 0.5
UNENDED_S = 10.0
"""After so long one that outlives SIGKILL is left behind."""
DEATHS, DEATHS_WITHIN_S = 5, 60.0
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.25, 60.0
_JITTER = 0.25

_log = logging.getLogger("gonogo.supervise.keeper")


class Watching:
    """The watcher of one run; every call returns at once.

    Args:
        start: starts a watcher that is given a descriptor to say that it goes on.
        silent_s: how long it may say nothing.
    """

    def __init__(self, start: Callable[[int], Child], silent_s: float = SILENT_S) -> None:
        self._start, self._silent_s = start, silent_s
        self.child: Child | None = None
        self._last: Child | None = None
        self.failed: str | None = None
        """Why the run has to end: its watchers die one after the other."""
        self._signs = -1
        self._looked = False
        """Whether this watcher has given a sign."""
        self._heard = self._tended = 0.0
        self._kill_at = self._leave_at = float("inf")
        self._due = float("-inf")
        self._pause_s = 0.0
        self._deaths: deque[float] = deque(maxlen=DEATHS)
        self._over = self._stopped = False

    def pids(self) -> frozenset[int]:
        """Return the watcher's process, which nobody has to end."""
        return frozenset() if self.child is None else frozenset({self.child.ref.pid})

    def document(self) -> dict[str, Any] | None:
        """Return the JSON form that keeper.json holds: the watcher, or the one before it."""
        return None if self._last is None else self._last.document()

    def is_done(self) -> bool:
        """Say whether the last watcher has done all there was, or none is to follow."""
        return self.child is None and self._due == float("inf")

    def let_go(self) -> None:
        """Take note that the run is over: a watcher that is done is not replaced."""
        self._over = True

    def note(self, pid: int, ended: Ended, now: float) -> bool:
        """Take note of a process that ended; True when it was the watcher.

        Args:
            pid: of the process.
            ended: how it ended.
            now: monotonic seconds.
        """
        if self.child is None or self.child.ref.pid != pid:
            return False
        self._hear(now)
        self.child.ended = ended
        self._forget()
        if self._stopped or (self._over and ended.code == 0):
            self._due = float("inf")
            return True
        _log.warning("the watcher died: %s", ended)
        if self._looked:
            self._count_death(now)
        else:
            self._put_off(now)
        return True

    def tend(self, now: float) -> bool:
        """Start a watcher when one is due (True then), and see to one that gives no sign.

        Args:
            now: monotonic seconds.
        """
        away, self._tended = now - self._tended >= AWAY_S, now
        if self.child is None:
            return now >= self._due and self._begin(now)
        self._hear(now)
        if away:
            self._heard = max(self._heard, now)
        self._see_to(self.child, now)
        return False

    def stop(self) -> None:
        """End the watcher without waiting; none follows it."""
        self._stopped, self._due = True, float("inf")
        if self.child is not None:
            self.child.ref.send(signal.SIGKILL)

    def _begin(self, now: float) -> bool:
        reading, writing = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            self.child = self._last = self._start(writing)
        except (OSError, SubprocessError) as error:
            os.close(reading)
            _log.warning("no watcher: %s", error)
            self._put_off(now)
            return False
        finally:
            os.close(writing)
        self._signs, self._heard, self._looked = reading, now, False
        return True

    def _hear(self, now: float) -> None:
        """Take note of signs."""
        try:
            said = os.read(self._signs, 4096)
        except BlockingIOError:
            return
        if said:
            self._heard, self._looked, self._pause_s = now, True, 0.0

    def _see_to(self, child: Child, now: float) -> None:
        """Ask one that hangs for its stack, end it a moment later, and leave it if it stays."""
        if now >= self._leave_at:
            _log.error("the watcher outlives SIGKILL: another takes its place")
            self._forget()
            self._due = now
        elif now >= self._kill_at:
            child.ref.send(signal.SIGKILL)
            self._kill_at, self._leave_at = float("inf"), now + UNENDED_S
        elif self._kill_at == self._leave_at and not self._over and self._is_silent(now):
            stat, pid = child.ref.stat(), child.ref.pid
            _log.warning(
                "the watcher gave no sign for %.0f s (state %s, in %s): it is replaced",
                now - self._heard,
                stat.state if stat else "gone",
                load_wait_channel(pid) or "no function of the kernel",
            )
            if catches(pid, signal.SIGUSR1):
                child.ref.send(signal.SIGUSR1)
            child.ref.send(signal.SIGCONT)
            self._kill_at = now + DUMP_S

    def _is_silent(self, now: float) -> bool:
        limit_s = self._silent_s if self._looked else max(self._silent_s, FIRST_SIGN_S)
        return now - self._heard >= limit_s

    def _count_death(self, now: float) -> None:
        """Let another follow at once, unless they die one after the other."""
        self._deaths.append(now)
        if len(self._deaths) < DEATHS or now - self._deaths[0] > DEATHS_WITHIN_S:
            self._due = now
            return
        self._due = float("inf")
        if not self._over:
            self.failed = f"the watcher died {DEATHS} times in {DEATHS_WITHIN_S:g} s"

    def _put_off(self, now: float) -> None:
        """Put the next start off, for longer after the first time, and not in step with others."""
        _log.error("nobody watches: the watcher ended before its first look")
        self._due = now + self._pause_s * random.uniform(1.0, 1.0 + _JITTER)
        self._pause_s = min(LONGEST_PAUSE_S, max(FIRST_PAUSE_S, 2 * self._pause_s))

    def _forget(self) -> None:
        self.child = None
        os.close(self._signs)
        self._signs, self._kill_at, self._leave_at = -1, float("inf"), float("inf")
