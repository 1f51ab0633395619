"""Read the stacks of a rank with py-spy.

Python frames take 10–50 ms. Native ones take 0.1–7 s, and the process stands still for half of it,
so they are for runs that stand already. If py-spy is missing, hangs or is refused, the text says
so. A process that is being read takes no signal: who ends a run stops its readings first
(`StackReader.stop`).
"""

import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from gonogo.contract.records import StackProbe
from gonogo.contract.stack_trace import Frame, classify
from gonogo.supervise.processes import load_cpu_s, load_stat

LIMIT_S = 5.0
_WAITING = re.compile(
    r"gloo|nccl|c10d|all_?reduce|all_?gather|reduce_?scatter|barrier|broadcast|wait_?tensor"
    r"|(?:stream|event|device|ctx)_?synchronize|libcuda|libamdhip",
    re.IGNORECASE,
)


class StackReader:
    """Reads stacks with py-spy; safe to use from several threads."""

    def __init__(self, program: str | None) -> None:
        self._program = program
        self._lock = threading.Lock()
        self._running: set[int] = set()
        self._stopped = False

    def read(
        self,
        pid: int,
        *,
        rank: int,
        round_number: int,
        stopped: bool = False,
        native: bool = False,
        limit_s: float = LIMIT_S,
    ) -> tuple[str, StackProbe | None]:
        """Return the stacks of one process as text, and what detectors use of them."""
        if self._program is None:
            return "py-spy is not installed\n", None
        ways: list[tuple[list[str], float]] = [([], limit_s)]
        stat = load_stat(pid)
        if stopped or (stat is not None and stat.state == "T"):
            ways = [(["--nonblocking"], limit_s)]
        elif native:
            ways = [(["--native"], 0.6 * limit_s), ([], 0.4 * limit_s)]
        said = []
        for options, seconds in ways:
            command = [self._program, "dump", "--pid", str(pid), "--json", *options]
            try:
                done = self.run(command, seconds)
                threads = json.loads(done.stdout) if done.returncode == 0 else None
                problem = f"code {done.returncode}: {done.stderr.decode('utf-8', 'replace')[:300]}"
            except (subprocess.TimeoutExpired, OSError, ValueError) as error:
                threads, problem = None, str(error)
            if isinstance(threads, list):
                is_native = "--native" in options
                return render(threads), build_probe(threads, pid, rank, round_number, is_native)
            said.append(f"{' '.join(command)}: {problem}\n")
        return "".join(said), None

    def run(self, command: Sequence[str], limit_s: float) -> subprocess.CompletedProcess[bytes]:
        """Run a command in a process group of its own, bounded by coreutils' `timeout`."""
        bounded = ["timeout", "-s", "KILL", f"{limit_s:.1f}", *command]
        with self._lock:
            if self._stopped:
                return subprocess.CompletedProcess(bounded, -1, b"", b"the run was being ended")
            process = subprocess.Popen(
                bounded, stdout=subprocess.PIPE, stderr=subprocess.PIPE, process_group=0
            )
            self._running.add(process.pid)
        try:
            with process:
                out, error = process.communicate(timeout=limit_s + 0.5)
        finally:
            with self._lock:
                self._running.discard(process.pid)
        return subprocess.CompletedProcess(bounded, process.returncode, out, error)

    def stop(self) -> None:
        """End every reading now, and start none from here on."""
        with self._lock:
            self._stopped = True
            for group in self._running:
                with suppress(ProcessLookupError):
                    os.killpg(group, signal.SIGKILL)


def find_py_spy() -> str | None:
    """Return the py-spy beside this Python, else that on the path, else None."""
    beside = Path(sys.executable).with_name("py-spy")
    return str(beside) if beside.exists() else shutil.which("py-spy")


def build_probe(
    threads: Sequence[dict[str, Any]], pid: int, rank: int, round_number: int, native: bool
) -> StackProbe | None:
    """Return what detectors use of a reading: where the main thread stands.

    The digest covers Python frames only, so that readings of both kinds compare. A thread that
    loads, saves, sends or compiles may stay in one place for minutes: it has no digest.
    """
    main = [thread for thread in threads if thread.get("os_thread_id") == pid]
    main = main or [thread for thread in threads if thread.get("thread_name") == "MainThread"]
    if not main or not main[0].get("frames"):
        return None
    frames = main[0]["frames"]
    place = classify([_frame(frame) for frame in frames])
    return StackProbe(
        rank=rank,
        round=round_number,
        frame=_innermost(frames),
        place=place.text(),
        waiting=_is_waiting(frames) or (False if native else None),
        digest=None if place.takes_time else _digest(frames),
        cpu_s=load_cpu_s(pid),
    )


def render(threads: Sequence[dict[str, Any]]) -> str:
    """Return a reading as text: the main thread first, innermost frames first."""
    lines = []
    for thread in sorted(threads, key=lambda row: row.get("thread_name") != "MainThread"):
        marks = [mark for mark in ("active", "owns_gil") if thread.get(mark)]
        name = thread.get("thread_name") or "thread"
        lines.append(f"{name} (thread {thread.get('os_thread_id')}) {' '.join(marks)}".rstrip())
        lines += [f"    {_place(frame)}" for frame in thread.get("frames", ())]
    return "\n".join(lines) + "\n"


def _digest(frames: Sequence[dict[str, Any]]) -> str | None:
    places = [_place(frame) for frame in frames if _is_python(frame)]
    return hashlib.sha256("\n".join(places).encode()).hexdigest() if places else None


def _is_python(frame: dict[str, Any]) -> bool:
    """Whether a frame is of Python code; a native frame names its library."""
    return not frame.get("module") and ".so" not in str(frame.get("filename", ""))


def _innermost(frames: Sequence[dict[str, Any]]) -> str:
    """Return the innermost frame that has a name."""
    names = [str(frame.get("name")) for frame in frames]
    return next((name for name in names if not name.startswith("0x")), names[0])


def _frame(frame: dict[str, Any]) -> Frame:
    line = frame.get("line")
    file = str(frame.get("short_filename") or frame.get("filename") or "")
    return Frame(function=str(frame.get("name")), file=file, line=line or None)


def _is_waiting(frames: Sequence[dict[str, Any]]) -> bool:
    """Whether the innermost frames, up to the first of Python code, wait in a collective."""
    for frame in frames:
        if _WAITING.search(f"{frame.get('name')} {frame.get('short_filename')}"):
            return True
        if _is_python(frame):
            return False
    return False


def _place(frame: dict[str, Any]) -> str:
    line = frame.get("line")
    where = frame.get("short_filename") or frame.get("filename")
    return f"{frame.get('name')} ({where}:{line})" if line else f"{frame.get('name')} ({where})"
