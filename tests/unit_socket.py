"""The socket on which systemd would hear a process of a unit."""

from __future__ import annotations

import socket
from pathlib import Path
from types import TracebackType
from typing import Self

WAIT_S = 60.0


class UnitSocket:
    """A bound NOTIFY_SOCKET and what was sent on it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)

    def __enter__(self) -> Self:
        self._socket.bind(str(self._path))
        self._socket.settimeout(WAIT_S)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._socket.close()

    def environ(self, watchdog_s: float) -> dict[str, str]:
        """What a unit's main process is given."""
        return {"NOTIFY_SOCKET": str(self._path), "WATCHDOG_USEC": str(int(watchdog_s * 1e6))}

    def hear(self) -> str:
        """The next message, once it is there."""
        return self._socket.recv(4096).decode()

    def rest(self) -> list[str]:
        """Every message that is there already."""
        self._socket.setblocking(False)
        found = []
        try:
            while True:
                found.append(self.hear())
        except BlockingIOError:
            return found
