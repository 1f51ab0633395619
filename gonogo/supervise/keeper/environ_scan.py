"""Which processes carry a run's token in their environment? A program of its own, which may hang.

`python -I -S environ_scan.py MARK SIGNAL PASSES FOLDER PID ...` reads `/proc/*/environ` of every
process but those named, PASSES times at most, as long as it finds none; SIGNAL goes to each that
carries MARK as soon as it is read, since one that forks for ever is elsewhere a moment later (0: to
none). One whose run directory is another than FOLDER (empty: whichever) is not the run's: two homes
may have a run of one id, where one was restored from the other's backup.
On stdout a line each: `? PID` before a process is read, `! PID START_TICKS` where it carries the
mark. A read takes the process's mmap lock, and may never return where that process hangs in the
kernel: whoever waits for this has a limit. Python's standard library only, and little of it, since
it is started often.
"""

import os
import signal
import sys

_FOLDER = b"GONOGO_RUN_DIR="
_STATE, _THREADS, _START = 0, 17, 19
"""Fields of /proc/<pid>/stat behind the name."""


def scan(mark: bytes, number: int, folder: bytes, spared: frozenset[int]) -> int:
    """Read every process once; return how many carry the mark and live.

    Args:
        mark: `NAME=value`, with its zero byte.
        number: signal for each; 0 sends none.
        folder: the run directory; empty: whichever.
        spared: processes that are not read.
    """
    found = 0
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) not in spared:
            os.write(1, f"? {name}\n".encode())
            found += _look(name, mark, number, folder)
    return found


def _look(name: str, mark: bytes, number: int, folder: bytes) -> bool:
    """Say whether one process lives and carries the mark; it is hit before it can be another."""
    try:
        handle = os.pidfd_open(int(name)) if number else -1
    except OSError:
        handle = -1
    try:
        stat = _stat_of(name)
        if stat is None or not _carries(name, mark, folder):
            return False
        if number:
            _send(handle, int(name), number)
    finally:
        if handle >= 0:
            os.close(handle)
    os.write(1, f"! {name} {stat[_START]}\n".encode())
    return True


def _stat_of(name: str) -> list[str] | None:
    """Return the state of a process that lives; None of one that has ended."""
    text = _read(f"/proc/{name}/stat").decode(errors="replace")
    stat = text[text.rfind(")") + 2 :].split()
    if len(stat) <= _START or (stat[_STATE] in "ZXx" and int(stat[_THREADS]) <= 1):
        return None
    return stat


def _carries(name: str, mark: bytes, folder: bytes) -> bool:
    environ = _read(f"/proc/{name}/environ") or _of_a_thread(name)
    marked = environ.startswith(mark) or b"\0" + mark in environ
    return marked and not (folder and is_elsewhere(environ, folder))


def is_elsewhere(environ: bytes, folder: bytes) -> bool:
    """Say whether a process names another run directory than `folder`, which is there as well.

    In a container the run's own may be `/run`: here that is there, too, and no run directory.
    """
    rows = (row for row in environ.split(b"\0") if row.startswith(_FOLDER))
    said = next(rows, _FOLDER)[len(_FOLDER) :]
    if not said or said == folder:
        return False
    try:
        os.stat(said + b"/order.json")
        return not os.path.samestat(os.stat(said), os.stat(folder))
    except OSError:
        return False


def _of_a_thread(name: str) -> bytes:
    """Return the environment by another thread: that of a first one which has ended is empty."""
    try:
        tasks = os.listdir(f"/proc/{name}/task")
    except OSError:
        return b""
    found = (_read(f"/proc/{name}/task/{task}/environ") for task in tasks if task != name)
    return next(filter(None, found), b"")


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
        else:  # a kernel, or a sandbox, without handles of processes
            os.kill(pid, number)
    except OSError:  # gone, or not ours to end: it is told all the same
        return


def main(argv: list[str]) -> int:
    """Scan as often as asked, until something is found."""
    mark, number, passes = os.fsencode(argv[0]) + b"\0", int(argv[1]), int(argv[2])
    folder, spared = os.fsencode(argv[3]), frozenset({os.getpid(), *map(int, argv[4:])})
    for _ in range(passes):
        if scan(mark, number, folder, spared):
            break
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
