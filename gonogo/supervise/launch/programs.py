"""Which program prints what is read? Of a command that starts others: a shell, `make`, `timeout`.

Each of several programs in a row counts its steps anew. Whether a counter that begins anew is the
next epoch of one program, or another program, is told by which processes are there as lines come:
the Pythons below the command, or the command itself where it is no shell and has none. How the last
of them ended a shell may tell nobody (`… | tee log`, `…; true`): it is looked at. Standard library
only.
"""

import math
import time

from gonogo.supervise.launch.launched import SETTLE_S, Ends
from gonogo.supervise.processes import (
    SHELLS,
    ProcessRef,
    find_descendants,
    find_process,
    load_program,
    load_stat,
    load_wait_channel,
)

_ASK_EVERY_S = 1.0
"""Who prints is asked that often: each time all processes are looked at."""
_WAITS = "do_wait"
"""The kernel's function in which a process waits for another that it has started to end."""


class Programs:
    """The programs of one command, one after the other.

    Args:
        pid: of the command.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._by_shell = False
        """Whether the command is a shell, or was one before it became another program."""
        self._was_another = False
        """Whether it is, or was, anything else than a Python."""
        self._may_start_others = False
        """Whether that is so (a shell, `make`, `timeout`), or it has waited for others."""
        self._printers: frozenset[ProcessRef] | None = None
        """What may print there, where this look has asked."""
        self._printing: frozenset[ProcessRef] = frozenset()
        """What ran there when it last was asked who prints; empty where nobody knows."""
        self.number = 0
        """How often nothing of that was there any more the next time, and something else was."""
        self._asked = self._awaited = -math.inf
        self._last: ProcessRef | None = None
        """The only program that ran there then; None where there were several."""
        self._ends: Ends | None = None

    def look(self) -> None:
        """See what the command is by now: what follows is of this moment."""
        if (program := load_program(self._pid)) and not _is_python(program):
            self._was_another = self._may_start_others = True
            self._by_shell = self._by_shell or program in SHELLS
        self._printers = None
        if self._was_another and not self.number:
            self._await_lines()

    def ask(self, *, now: bool = False) -> None:
        """Look at what runs while steps are printed: now, or if it is long ago."""
        if not now and time.monotonic() - self._asked < _ASK_EVERY_S:
            return
        self._asked = time.monotonic()
        if not (self._may_start_others or self._waits()):
            return
        self._may_start_others = True
        if printers := self._find_printers():
            goes_on = self._printing & printers or (self.number > 0 and self._prints(printers))
            self.number += not goes_on
            self._printing = printers
            if self._was_another:
                self._follow(_topmost(printers))

    def has_failed(self) -> bool | None:
        """Say whether what printed last ended otherwise than with 0, though its command did not.

        None where nobody saw. A Python that has started it vouches for it.
        """
        if not self._was_another or (self._last is not None and self._last.pid == self._pid):
            return False
        if self._last is None or self._ends is None:
            return None
        self._ends.settle(SETTLE_S)
        ended = self._ends.of(self._last)
        return None if ended is None else (ended.code, ended.signal) != (0, None)

    def _await_lines(self) -> None:
        """Follow what runs before any line comes: all of them may come when it has ended."""
        now = time.monotonic()
        if now - self._awaited < _ASK_EVERY_S:
            return
        self._awaited = now
        if printers := self._find_printers():
            self._follow(_topmost(printers))

    def _follow(self, program: ProcessRef | None) -> None:
        """Have it seen how a program ends."""
        if program is not None and program != self._last:
            self._ends = self._ends or Ends()
            self._ends.watch(program)
        self._last = program

    def is_one(self, number: int | None) -> bool:
        """Say whether it is still the program of a shell that printed something.

        How one has ended that a shell starts nobody sees but the shell: a counter that another one
        begins anew may go on from what failed without a word. The last one a shell may become.

        Args:
            number: which it was then.
        """
        self.ask(now=True)
        if not self._may_start_others:
            return True
        return self.number > 0 and number == self.number

    def is_begun_since(self, ticks: int) -> bool | None:
        """Say whether a shell may have started the program again since some time.

        None where nobody knows: no program is there any more. It may have failed and begun again,
        or gone on to its end, and what it printed have come late (by `| grep`).

        Args:
            ticks: of the clock that says when a process began.
        """
        if not self._by_shell:
            return False
        printers = self._find_printers()
        if not printers:
            return None
        return min(ref.start_ticks for ref in printers) >= ticks

    def _prints(self, printers: frozenset[ProcessRef]) -> bool:
        """Say whether the command prints itself, though it has waited for others.

        Between its epochs it may wait for its workers, or for an evaluation, to end.
        """
        return not self._was_another and any(ref.pid == self._pid for ref in printers)

    def _waits(self) -> bool:
        """Say whether the command waits for a program that it has started, as far as is told."""
        return load_wait_channel(self._pid) == _WAITS

    def _find_printers(self) -> frozenset[ProcessRef]:
        """Return the Pythons of the command; where there are none, itself, if it has no shell.

        One that waits for others prints nothing.
        """
        if self._printers is None:
            below = find_descendants(self._pid)
            if (own := find_process(self._pid)) is not None:
                below[self._pid] = own
            programs = {pid: load_program(pid) for pid in below}
            pythons = frozenset(ref for pid, ref in below.items() if _is_python(programs[pid]))
            found = pythons - {own} if self._waits() else pythons
            if not found and own is not None and SHELLS.isdisjoint(programs.values()):
                found = frozenset((own,))
            self._printers = found
        return self._printers


def _topmost(printers: frozenset[ProcessRef]) -> ProcessRef | None:
    """Return the one of them that none of the others has started; None of several."""
    pids = {ref.pid for ref in printers}
    stats = {ref: load_stat(ref.pid) for ref in printers}
    found = [ref for ref, stat in stats.items() if stat is not None and stat.ppid not in pids]
    return found[0] if len(found) == 1 else None


def _is_python(program: str) -> bool:
    return program.startswith("python")
