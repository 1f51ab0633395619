"""Notify systemd of READY, STATUS, WATCHDOG and STOPPING (sd_notify(3)).

Outside a unit of `Type=notify` nothing is sent. A socket that refuses changes nothing.
"""

import socket
from collections.abc import Mapping
from dataclasses import dataclass, field

NAMES = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")
"""Environment names of a unit's main process; its children must not inherit them."""


@dataclass(slots=True)
class Notifier:
    """The socket of the unit that a process runs in."""

    address: str | None = None
    """None: there is no such unit."""
    watchdog_s: float | None = None
    """Seconds of silence after which systemd restarts the process; None: never."""
    _next_at: float = field(default=float("-inf"), init=False, repr=False)

    def say(self, **words: str) -> None:
        """Send `NAME=value`, each on a line of one message."""
        if self.address is None:
            return
        message = "\n".join(f"{name}={value}" for name, value in words.items())
        where = f"\0{self.address[1:]}" if self.address.startswith("@") else self.address
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as out:
                out.setblocking(False)
                out.sendto(message.encode(), where)
        except OSError:
            return

    def live(self, now: float) -> None:
        """Send WATCHDOG as often as systemd needs it; `now` is monotonic."""
        if self.watchdog_s is not None and now >= self._next_at:
            self._next_at = now + self.watchdog_s / 4
            self.say(WATCHDOG="1")


def load_notifier(environ: Mapping[str, str], pid: int) -> Notifier:
    """Return the notifier of process `pid`."""
    micros = environ.get("WATCHDOG_USEC", "")
    ours = environ.get("WATCHDOG_PID", str(pid)) == str(pid) and micros.isdecimal()
    return Notifier(
        address=environ.get("NOTIFY_SOCKET") or None,
        watchdog_s=int(micros) / 1e6 if ours and int(micros) > 0 else None,
    )
