"""A helper program that finds the processes with a run's token in their environment. Stdlib only.

`python -I -S environ_scan.py MARK SIGNAL PASSES PID ...` reads `/proc/*/environ` of every process
but the named ones, at most PASSES times, until it finds one. It sends SIGNAL (0: none) to each
process that carries MARK. It prints `? PID` before it reads a process, and `! PID START_TICKS` for
a find.

Reading takes the process's mmap lock and may hang for ever, so the caller sets a time limit.
"""

import os
import signal
import sys

_STATE, _THREADS, _START = 0, 17, 19
"""Fields of /proc/<pid>/stat behind the name."""


def scan(mark: bytes, number: int, spared: frozenset[int]) -> int:
    """Read every process once; return how many carry the mark and live.

    Args:
        mark: `NAME=value`, with its zero byte.
        number: signal for each; 0 sends none.
        spared: processes that are not read.
    """
    found = 0
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) not in spared:
            os.write(1, f"? {name}\n".encode())
            found += _look(name, mark, number)
    return found


def _look(name: str, mark: bytes, number: int) -> bool:
    """Return whether a process lives and carries the mark; its handle keeps the pid from reuse."""
    try:
        handle = os.pidfd_open(int(name)) if number else -1
    except OSError:
        handle = -1
    try:
        environ = _read(f"/proc/{name}/environ")
        stat = _stat_of(name)
        if stat is None or not (environ.startswith(mark) or b"\0" + mark in environ):
            return False
        if number:
            _send(handle, int(name), number)
    finally:
        if handle >= 0:
            os.close(handle)
    os.write(1, f"! {name} {stat[_START]}\n".encode())
    return True


def _stat_of(name: str) -> list[str] | None:
    """Return the stat fields of a living process."""
    text = _read(f"/proc/{name}/stat").decode(errors="replace")
    stat = text[text.rfind(")") + 2 :].split()
    if len(stat) <= _START or (stat[_STATE] in "ZXx" and int(stat[_THREADS]) <= 1):
        return None
    return stat


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as stream:
            return stream.read()
    except OSError:
        return b""


def _send(handle: int, pid: int, number: int) -> None:
    try:
        if handle >= 0:
            signal.pidfd_send_signal(handle, number)
        else:  # a kernel or a sandbox without handles of processes
            os.kill(pid, number)
    except OSError:  # gone, or not ours to end
        return


def main(argv: list[str]) -> int:
    """Scan as often as asked, until something is found."""
    mark, number, passes = os.fsencode(argv[0]) + b"\0", int(argv[1]), int(argv[2])
    spared = frozenset({os.getpid(), *map(int, argv[3:])})
    for _ in range(passes):
        if scan(mark, number, spared):
            break
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
