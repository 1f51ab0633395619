"""Which processes carry a run's token? Asked of a helper with a time limit; stdlib only.

To read a process's environment takes its mmap lock, and one process of the host that hangs under
it (in the kernel, for ever) would hang whoever reads. So a helper reads (`environ_scan`); where it
does not come back it is left behind, and the process at which it stood is asked no more. What is
known by its pid, and what descends from the keeper, is found without it (`kill`).
"""

import logging
import os
import select
import signal
import subprocess
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from gonogo.supervise.launch.nodes import Place
from gonogo.supervise.processes import NODE_NAME, TOKEN_NAME, ProcessRef

LIMIT_S = 5.0
_SCAN = Path(__file__).with_name("environ_scan.py").read_text("ascii")
"""The helper's program: read as the keeper starts, since its folder may be gone at the end."""
_PYTHON = "/proc/self/exe"
"""The interpreter that runs here, by no name: a deployment may have removed its environment."""

_log = logging.getLogger("gonogo.supervise.keeper")


@dataclass(frozen=True, slots=True, kw_only=True)
class Swept:
    """What one sweep brought."""

    found: frozenset[ProcessRef]
    """Processes that carry the token."""
    whole: bool
    """Whether every process was read; False where the helper had to be left behind."""


class Environs:
    """The environments of this host's processes, asked for one run's token.

    Args:
        token: the run's token.
        folder: its run directory; None: whichever, of whatever home.
        limit_s: how long one sweep may take.
        scan: the helper's program.
        name: the name in the environment that holds the token.
    """

    def __init__(
        self,
        token: str,
        *,
        folder: Path | None = None,
        limit_s: float = LIMIT_S,
        scan: str = _SCAN,
        name: str = TOKEN_NAME,
    ) -> None:
        self._mark, self._limit_s, self._scan = f"{name}={token}", limit_s, scan
        self._folder = "" if folder is None else str(folder)
        self._unreadable: set[int] = set()
        self.helpers: frozenset[int] = frozenset()
        """Helpers that were left behind: nobody has to end them."""

    def sweep(self, number: int = 0, *, passes: int = 1, spare: Iterable[int] = ()) -> Swept:
        """Read every process, and send a signal to each that carries the token.

        Args:
            number: the signal; 0 sends none.
            passes: how often to read, as long as nothing is found.
            spare: processes that are passed over, besides this one.
        """
        passed_over = {os.getpid(), *spare, *self._unreadable, *self.helpers}
        command = [_PYTHON, "-I", "-S", "-c", self._scan]
        command += [self._mark, str(int(number)), str(passes), self._folder]
        command += map(str, sorted(passed_over))
        helper = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            process_group=0,  # a terminal's Ctrl-C is ours to heed: it would say where it stood
        )
        text, whole = self._listen(helper)
        found: set[ProcessRef] = set()
        last = 0
        for kind, *numbers in (line.split() for line in text.decode().splitlines()):
            last = int(numbers[0])
            if kind == "!":
                found.add(ProcessRef(pid=last, start_ticks=int(numbers[1])))
        if not whole:
            self._leave(helper, last)
        return Swept(found=frozenset(found), whole=whole)

    def _listen(self, helper: subprocess.Popen[bytes]) -> tuple[bytes, bool]:
        """Return the helper's whole lines, and whether it came to its end."""
        assert helper.stdout is not None
        said, give_up = b"", time.monotonic() + self._limit_s
        with helper.stdout as stream:
            while select.select([stream], [], [], max(0.0, give_up - time.monotonic()))[0]:
                part = os.read(stream.fileno(), 65_536)
                if not part:
                    return said, helper.wait() == 0
                said += part
        return said[: said.rfind(b"\n") + 1], False

    def _leave(self, helper: subprocess.Popen[bytes], pid: int) -> None:
        """Leave a helper that hangs behind, and ask the process at which it hangs no more."""
        helper.send_signal(signal.SIGKILL)
        self.helpers |= {helper.pid}
        helper.returncode = 0  # whoever reaps our children reaps it, should it ever end
        if pid and pid not in self._unreadable:
            self._unreadable.add(pid)
            _log.warning("process %d does not let its environment be read", pid)


def environs_of(run: str, place: Place, folder: Path) -> Environs:
    """Return who finds the processes of a run, or of several nodes those of this one.

    Args:
        run: the run's id.
        place: the part of it that is here.
        folder: its run directory.
    """
    if place.is_whole:
        return Environs(run, folder=folder)
    return Environs(f"{run}/{place.node}", folder=folder, name=NODE_NAME)


def find_marked(token: str, *, passes: int = 1) -> frozenset[int]:
    """Return the processes that carry a run's token, as far as they can be read.

    Args:
        token: the run's token.
        passes: how often to look, as long as there is none.
    """
    return frozenset(ref.pid for ref in Environs(token).sweep(passes=passes).found)
