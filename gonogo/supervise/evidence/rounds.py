"""Take rounds of evidence about a run that looks sick, beside the watching.

A round is a folder `evidence/{number}_{detector}/`: collectives, stacks, process state, the last
log lines of the ranks, and nvidia-smi. Each collector has a thread and a time limit,
and writes its error into its file. On several nodes the watcher asks by `.round.json`, and the
follower of each node writes the files of its ranks.
"""

import logging
import queue
import re
import shutil
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from gonogo.contract.observation import Standing
from gonogo.contract.records import StackProbe
from gonogo.files import create_plain
from gonogo.rundir import RunDir
from gonogo.supervise.durable import load_json, save_json
from gonogo.supervise.evidence.collectives import analyse
from gonogo.supervise.evidence.flight_records import gather_dumps
from gonogo.supervise.evidence.stacks import LIMIT_S, StackReader, find_py_spy
from gonogo.supervise.last_lines import load_tail
from gonogo.supervise.transient_errors import start_thread

MAX_ROUNDS = 12
MAX_ROUNDS_OF_SUSPICION = 6
MAX_ROUNDS_BEFORE_HALTS = MAX_ROUNDS - 1
"""The last round is kept for findings that end the run."""
LOG_LINES = 500
MAX_FILE_BYTES = 2 * 2**20
ASKED_NAME = ".round.json"
_ROUND = re.compile(r"([0-9]{2})_")
_PROC_FILES = ("status", "wchan", "io", "stack", "syscall")
_log = logging.getLogger(__name__)

Collector = Callable[[], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A rank to look at; `pid` is None when its process is gone."""

    rank: int
    pid: int | None
    stopped: bool = False
    elsewhere: bool = False
    """Whether it runs on another node, whose follower looks at it."""


@dataclass(slots=True, kw_only=True)
class Round:
    """One round that was started."""

    number: int
    started_at: float
    paths: list[str]
    threads: list[threading.Thread] = field(default_factory=list)

    def is_running(self) -> bool:
        """Whether a collector is still at work."""
        return any(thread.is_alive() for thread in self.threads)


class _Collectors:
    """Collectors of one run directory."""

    def __init__(self, run_dir: RunDir) -> None:
        self._dir, self._stacks = run_dir, StackReader(find_py_spy())
        self._probes: queue.SimpleQueue[StackProbe] = queue.SimpleQueue()

    def stop(self) -> None:
        """End all readings: a process that is being read takes no signal."""
        self._stacks.stop()

    def take_probes(self) -> list[StackProbe]:
        """Return the stack readings since the last call."""
        return [self._probes.get_nowait() for _ in range(self._probes.qsize())]

    def _jobs_of_node(
        self, number: int, targets: Mapping[int, Target], *, native: bool
    ) -> dict[str, Collector]:
        """Return file → collector of what only a rank's own host can see."""
        jobs: dict[str, Collector] = {}
        for rank, target in sorted(targets.items()):
            if target.pid is not None and not target.elsewhere:
                stacks, process = _names_of_node(rank)
                jobs[stacks] = partial(self._read_stacks, number, target, target.pid, native)
                jobs[process] = partial(_read_proc, target.pid)
        return jobs

    def _read_stacks(self, number: int, target: Target, pid: int, native: bool) -> str:
        text, probe = self._stacks.read(
            pid, rank=target.rank, round_number=number, stopped=target.stopped, native=native
        )
        if probe is not None:
            self._probes.put(probe)
        return text


class Evidence(_Collectors):
    """The rounds of one run; used from the watcher's one loop."""

    def __init__(self, run_dir: RunDir) -> None:
        super().__init__(run_dir)
        self._standings: list[Standing] = []
        names = (_ROUND.match(path.name) for path in run_dir.evidence.glob("[0-9]*_*"))
        numbers = [int(name[1]) for name in names if name is not None]
        self._taken = max((row for row in numbers if row <= MAX_ROUNDS), default=0)
        self.last: Round | None = None

    def start_round(
        self,
        reason: str,
        targets: Mapping[int, Target],
        now: float,
        *,
        native: bool = False,
        most: int = MAX_ROUNDS_OF_SUSPICION,
    ) -> Round | None:
        """Start a round; None if number `most` is reached, or the disk refuses."""
        if self._taken >= most:
            return None
        folder = self._dir.evidence / f"{self._taken + 1:02d}_{reason}"
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            _log.warning("no evidence: %s", error, extra={"action": "evidence_unwritten"})
            return None
        self._taken += 1
        found = self.last = Round(number=self._taken, started_at=now, paths=[])
        jobs = self._jobs(targets, native=native)
        living = [row for _, row in sorted(targets.items()) if row.pid is not None]
        asked = [row.rank for row in living if not row.stopped]
        dumps: list[str] = []
        if asked and len(targets) > 1:
            gather = partial(self._gather, folder, asked, len(targets), now)
            jobs = {"collectives.txt": gather, **jobs}
            dumps = [f"collectives_rank{rank}.json" for rank in asked]
        elsewhere = [name for row in living if row.elsewhere for name in _names_of_node(row.rank)]
        names = (*jobs, *dumps, *elsewhere)
        found.paths += [str((folder / name).relative_to(self._dir.path)) for name in names]
        found.threads += _start(folder, jobs)
        if elsewhere:
            asks = {"v": 1, "number": self._taken, "native": native}
            try:
                save_json(folder / ASKED_NAME, asks)
            except OSError as error:
                _log.warning("no one is asked: %s", error, extra={"action": "evidence_failed"})
        return found

    def take_observations(self) -> dict[str, Any]:
        """Return kind → what rounds saw since the last call, for a tick."""
        if not self._standings:
            return {}
        return {"collectives": self._standings.pop(0).model_dump(mode="json")}

    def _jobs(self, targets: Mapping[int, Target], *, native: bool) -> dict[str, Collector]:
        """Return file → collector, without those of the collectives."""
        jobs = self._jobs_of_node(self._taken, targets, native=native)
        for rank in sorted(targets):
            jobs[f"log_rank{rank}.txt"] = partial(_tail, self._dir.rank_log(rank))
        for path in [self._dir.torchrun_log, *sorted(self._dir.path.glob("torchrun_node*.log"))]:
            node = path.stem.removeprefix("torchrun")
            jobs[f"torchrun_log{node}.txt"] = partial(_tail, path)
        if shutil.which("nvidia-smi"):
            jobs["nvidia_smi.xml"] = self._nvidia_smi
        return jobs

    def _gather(self, folder: Path, asked: Sequence[int], world_size: int, now: float) -> str:
        """Write the ranks' dumps, and return what all of them say."""
        dumps = gather_dumps(self._dir.evidence, str(self._taken), asked)
        for rank in asked:
            dump = dumps.get(rank)
            text = "failed: no answer" if dump is None else dump.model_dump_json()
            _write(folder / f"collectives_rank{rank}.json", f"{text}\n")
        found = analyse(dumps, world_size)
        if found is None:
            return "no rank has reported its collectives\n"
        self._standings.append(found.model_copy(update={"asked_mono": now}))
        return f"{found.text}\n"

    def _nvidia_smi(self) -> str:
        done = self._stacks.run(["nvidia-smi", "-q", "-x"], LIMIT_S)
        return (done.stdout + done.stderr).decode("utf-8", "replace")


class NodeEvidence(_Collectors):
    """The part of another node in the rounds; used from its follower's one loop."""

    def __init__(self, run_dir: RunDir) -> None:
        super().__init__(run_dir)
        self._seen: set[Path] = set()

    def tend(self, targets: Mapping[int, Target]) -> None:
        """Take the rounds that were asked for since the last call."""
        for path in sorted(self._dir.evidence.glob(f"[0-9]*_*/{ASKED_NAME}")):
            if path in self._seen:
                continue
            self._seen.add(path)
            asked = load_json(path) or {}
            number, native = asked.get("number"), asked.get("native") is True
            if isinstance(number, int):
                jobs = self._jobs_of_node(number, targets, native=native)
                new = {name: job for name, job in jobs.items() if not (path.parent / name).exists()}
                _start(path.parent, new)


def _names_of_node(rank: int) -> tuple[str, str]:
    """Return the files that only a rank's own host can write."""
    return f"stacks_rank{rank}.txt", f"proc_rank{rank}.txt"


def _read_proc(pid: int) -> str:
    """Return what the kernel reports of a process."""
    parts = []
    for name in _PROC_FILES:
        try:
            text = Path(f"/proc/{pid}/{name}").read_text(errors="replace")
        except OSError as error:
            text = f"{error}\n"
        parts.append(f"== /proc/{pid}/{name}\n{text.rstrip()}\n")
    return "".join(parts)


def _tail(path: Path) -> str:
    tail = load_tail(path, limit=MAX_FILE_BYTES).decode("utf-8", "replace")
    return "".join(tail.splitlines(keepends=True)[-LOG_LINES:])


def _start(folder: Path, jobs: Mapping[str, Collector]) -> list[threading.Thread]:
    """Start collectors; those for which the host has no thread are left out."""
    threads = []
    for name, collect in jobs.items():
        try:
            threads.append(start_thread(partial(_run_collector, folder / name, collect), name))
        except OSError as error:
            _write(folder / name, f"failed: {error}\n")
    return threads


def _run_collector(path: Path, collect: Collector) -> None:
    """Write what a collector found, or why it found nothing."""
    try:
        text = collect()
    except Exception as error:  # noqa: BLE001 - edge of a thread: the file holds the reason
        _log.warning("%s: %s", path.name, error, extra={"action": "evidence_failed"})
        text = f"failed: {type(error).__name__}: {error}\n"
    _write(path, text)


def _write(path: Path, text: str) -> None:
    draft = path.with_name(f".{path.name}.part")
    try:
        with create_plain(draft) as stream:
            stream.write(text[-MAX_FILE_BYTES:].encode(errors="replace"))
        draft.replace(path)
    except OSError as error:
        _log.warning("%s: %s", path.name, error, extra={"action": "evidence_unwritten"})
