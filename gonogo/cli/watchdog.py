"""Does a process that `gonogo up` started still turn? It says so, as it would to systemd.

A process that hangs does not end by itself, and nobody but who started it would end it. Only one
that has spoken can fall silent: while a service brings its database up to date it says nothing.
"""

import socket
from collections.abc import Mapping

from gonogo.systemd import NAMES

SILENT_S = 60.0
"""As in the units (deploy/systemd)."""
_AWAY_S = 5.0
"""Who looks so much later than it should was away itself (a host that stood still)."""
_MESSAGE_BYTES = 4096


class Watchdog:
    """Hears one process.

    Args:
        silent_s: after how long without a word it is taken for hung.
    """

    def __init__(self, silent_s: float = SILENT_S) -> None:
        self._silent_s = silent_s
        self._heard_at: float | None = None
        self._looked_at = float("-inf")
        kind = socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK
        self._socket = socket.socket(socket.AF_UNIX, kind)
        self._socket.bind("")  # the kernel gives it a name

    def told(self, environ: Mapping[str, str]) -> dict[str, str]:
        """Return an environment that also says where to speak, and how often."""
        name = self._socket.getsockname()[1:].decode()
        others = {key: value for key, value in environ.items() if key not in NAMES}
        micros = f"{self._silent_s * 1e6:.0f}"
        return {**others, "NOTIFY_SOCKET": f"@{name}", "WATCHDOG_USEC": micros}

    def begin(self) -> None:
        """Forget what was heard: the process is started, or was ended."""
        self._hear()
        self._heard_at = None

    def is_hung(self, now: float) -> bool:
        """Say whether it has spoken, and has not for too long; `now` is monotonic."""
        was_away = now - self._looked_at >= _AWAY_S
        self._looked_at = now
        if self._hear() or (was_away and self._heard_at is not None):
            self._heard_at = now
        return self._heard_at is not None and now - self._heard_at >= self._silent_s

    def close(self) -> None:
        """Hear nobody any more."""
        self._socket.close()

    def _hear(self) -> bool:
        """Take what was said since the last call; say whether it was a sign of life."""
        spoke = False
        while True:
            try:
                said = self._socket.recv(_MESSAGE_BYTES)
            except BlockingIOError:
                return spoke
            spoke = spoke or b"WATCHDOG=1" in said.splitlines()
