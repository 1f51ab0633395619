"""Write the Python stacks of all threads on SIGUSR1, and continue.

C code dumps at the signal into a hidden file; a thread renames it to `stackdump_rank{N}_{ms}.txt`.
While the GIL is held in C the dump stays in `.stackdump_rank{N}.txt`. Needs no torch.
"""

import faulthandler
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TextIO

_POLL_S = 0.1


class StackDumps:
    """SIGUSR1 → `stackdump_rank{N}_{ms}.txt`; `on_dump` is called with each file's name."""

    def __init__(self, folder: Path, rank: int) -> None:
        self._folder, self._rank = folder, rank
        self._hidden = folder / f".stackdump_rank{rank}.txt"
        self.on_dump: Callable[[str], None] = lambda name: None
        self._previous: TextIO | None = None
        self._file = self._register()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="stackdumps", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Give SIGUSR1 back and remove the hidden file; a dump that is there is named first."""
        self._closing.set()
        self._thread.join()
        self._publish()
        faulthandler.unregister(signal.SIGUSR1)
        for file in (self._file, self._previous):
            if file is not None:
                file.close()
        with suppress(OSError):  # an empty file stays behind
            self._hidden.unlink(missing_ok=True)

    def _watch(self) -> None:
        while not self._closing.wait(_POLL_S):
            self._publish()

    def _publish(self) -> None:
        """Name a dump that has been written since the last call, if there is one."""
        try:
            if self._hidden.stat().st_size == 0:
                return
            name = f"stackdump_rank{self._rank}_{time.time_ns() // 1_000_000}.txt"
            self._hidden.rename(self._folder / name)
            if self._previous is not None:
                self._previous.close()
            # The dump may still be being written: its file stays open until the next one.
            self._previous, self._file = self._file, self._register()
        except OSError:
            return  # a full disk: the dump stays where it is
        self.on_dump(name)

    def _register(self) -> TextIO:
        file = self._hidden.open("w", encoding="utf-8")
        faulthandler.register(signal.SIGUSR1, file=file, all_threads=True, chain=False)
        return file
