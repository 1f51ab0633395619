"""Where does this process stand? SIGUSR1 writes the stacks of all threads, and it lives on.

Whoever gathers evidence sends it; its default would end the process. The dump is written by C code
at the moment of the signal, so it works while Python is stuck, into a hidden file that is open from
the start; `look`, called now and then, gives it its name `stackdump_rank{N}_{ms}.txt`.
"""

import faulthandler
import os
import signal
import time
from pathlib import Path

from gonogo.trainer.descriptor import Descriptor


class StackDumps:
    """Stacks of one rank on request, unless the script handles SIGUSR1 itself."""

    def __init__(self, folder: Path, rank: int) -> None:
        self._folder, self._rank = folder, rank
        self._hidden = folder / f".stackdump_rank{rank}.txt"
        self._file: Descriptor | None = None
        self._previous: Descriptor | None = None
        if signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL:
            self._register()

    def look(self) -> str | None:
        """Name a dump that has been written since the last call; returns the name."""
        if self._file is None:
            return None
        try:
            if self._hidden.stat().st_size == 0:
                if not self._file.is_ours:  # the script has closed it: the next dump needs another
                    self._register()
                return None
            name = f"stackdump_rank{self._rank}_{time.time_ns() // 1_000_000}.txt"
            self._hidden.rename(self._folder / name)
        except OSError:
            return None  # a full disk: the dump stays where it is
        if self._previous is not None:
            self._previous.close()
        # The dump may still be being written: its file stays open until the next one.
        self._previous = self._file
        self._register()
        return name

    def close(self) -> None:
        """Give SIGUSR1 back and remove the hidden file; no file system ends a script here."""
        if self._file is None:
            return
        faulthandler.unregister(signal.SIGUSR1)
        for file in (self._file, self._previous):
            if file is not None:
                file.close()
        self._file = None
        try:
            self._hidden.unlink(missing_ok=True)
        except OSError:
            pass  # an empty file stays behind

    def _register(self) -> None:
        try:
            self._file = Descriptor(self._hidden, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        except OSError:
            return  # the file before it goes on serving, or nobody answers: neither ends anything
        faulthandler.register(signal.SIGUSR1, file=self._file.number, all_threads=True, chain=False)
