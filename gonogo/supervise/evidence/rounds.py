"""Take rounds of evidence about a run that looks sick, beside the watching.

A round is a folder `evidence/{number}_{detector}/`: collectives, stacks, process state, the last
log lines and heartbeats of the ranks, and nvidia-smi. Each collector has a thread and a time limit,
and writes its error into its file. On several nodes the watcher asks by `.round.json`, and the
follower of each node writes the files of its ranks.
"""

import logging
import queue
import re
import shutil
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from gonogo.contract.collectives import Standing
from gonogo.contract.tick import StackProbe
from gonogo.files import create_plain
from gonogo.rundir import RunDir
from gonogo.supervise.durable import load_json, save_json
from gonogo.supervise.evidence.flight_records import Answers, ask_ranks, find_pipes
from gonogo.supervise.evidence.stacks import LIMIT_S, Readers, find_py_spy, read_stacks
from gonogo.supervise.exit_record import load_tail
from gonogo.supervise.rank_record import load_beyond
from gonogo.supervise.transient_errors import start_thread

MAX_ROUNDS = 12
MAX_ROUNDS_OF_SUSPICION = 6
MAX_ROUNDS_BEFORE_HALTS = MAX_ROUNDS - 1
"""The last round is kept for findings that end the run."""
LOG_LINES = 500
HEARTBEATS = 512
MAX_FILE_BYTES = 2 * 2**20
ASKED_NAME = ".round.json"
LOOK_EVERY_S = 0.4
"""How often a follower looks for new rounds."""
_ROUND = re.compile(r"([0-9]{2})_")
_PROC_FILES = ("status", "wchan", "io", "stack", "syscall")
_log = logging.getLogger(__name__)

Collector = Callable[[], str]
_T = TypeVar("_T")


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


class _Stacks:
    """Reads stacks, and keeps what detectors use of them."""

    def __init__(self) -> None:
        self._readers, self._py_spy = Readers(), find_py_spy()
        self._probes: queue.SimpleQueue[StackProbe] = queue.SimpleQueue()

    def stop(self) -> None:
        """End all readings: a process that is being read takes no signal."""
        self._readers.stop()

    def take_probes(self) -> list[StackProbe]:
        """Return the stack readings since the last call."""
        return _drain(self._probes)

    def _read(self, number: int, target: Target, *, native: bool, keeps: bool = True) -> str:
        """Return the stacks of a rank as text."""
        assert target.pid is not None
        found = read_stacks(
            target.pid,
            rank=target.rank,
            round_number=number,
            stopped=target.stopped,
            native=native,
            program=self._py_spy,
            readers=self._readers,
        )
        if keeps and found.probe is not None:
            self._probes.put(found.probe)
        return found.text


class Evidence(_Stacks):
    """The rounds of one run; used from the watcher's one loop."""

    def __init__(self, run_dir: RunDir) -> None:
        super().__init__()
        self._dir = run_dir
        self._standing: queue.SimpleQueue[Standing] = queue.SimpleQueue()
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
        """Start a round; None if the run has had its share, or the disk refuses.

        Args:
            reason: detector that asks for it.
            targets: every rank.
            now: monotonic seconds.
            native: whether native frames are wanted.
            most: largest number of a round.
        """
        if self._taken >= most:
            return None
        folder = self._dir.evidence / f"{self._taken + 1:02d}_{reason}"
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            _log.warning("no evidence: %s", error, extra={"action": "evidence_unwritten"})
            return None
        self._taken += 1
        jobs = self._jobs(self._taken, targets, native, now)
        elsewhere = [row.rank for row in targets.values() if row.elsewhere and row.pid is not None]
        others = [name for rank in elsewhere for name in _names_of_node(rank)]
        paths = [str((folder / name).relative_to(self._dir.path)) for name in [*jobs, *others]]
        found = Round(number=self._taken, started_at=now, paths=paths)
        for name, collect in jobs.items():
            if (thread := _start_collector(folder / name, collect)) is not None:
                found.threads.append(thread)
        if elsewhere:
            found.threads += self._ask_followers(folder, others, native=native)
        self.last = found
        return found

    def take_observations(self) -> dict[str, Any]:
        """Return kind → what rounds saw since the last call, for a tick."""
        found = _drain(self._standing)
        return {"collectives": found[-1].model_dump(mode="json")} if found else {}

    def _ask_followers(
        self, folder: Path, names: Sequence[str], *, native: bool
    ) -> list[threading.Thread]:
        """Ask the nodes' followers to look at their ranks, and wait for their files."""

        def wait() -> None:
            asked = {"v": 1, "number": self._taken, "native": native}
            try:
                save_json(folder / ASKED_NAME, asked)
            except OSError as error:
                _log.warning("no one is asked: %s", error, extra={"action": "evidence_failed"})
                return
            give_up = time.monotonic() + LIMIT_S
            while time.monotonic() < give_up:
                if all((folder / name).exists() for name in names):
                    return
                time.sleep(0.05)

        try:
            return [start_thread(wait, "followers")]
        except OSError as error:
            _log.warning("no one is asked: %s", error, extra={"action": "evidence_failed"})
            return []

    def _jobs(
        self, number: int, targets: Mapping[int, Target], native: bool, now: float
    ) -> dict[str, Collector]:
        living = {rank: row for rank, row in sorted(targets.items()) if row.pid is not None}
        here = [row for row in living.values() if not row.elsewhere]
        beyond = [
            Target(rank=rank, pid=ref.pid)
            for rank, ref in load_beyond(self._dir.path).items()
            if rank not in targets
        ]
        jobs = self._collectives_jobs(number, living, beyond, len(targets), now)
        for target in [*here, *beyond]:
            read = partial(self._read, number, target, native=native, keeps=target in here)
            jobs[f"stacks_rank{target.rank}.txt"] = read
        for rank in sorted(targets):
            jobs[f"log_rank{rank}.txt"] = _tail_job(self._dir.rank_log(rank), LOG_LINES)
            beats = _tail_job(self._dir.heartbeat(rank), HEARTBEATS)
            jobs[f"heartbeats_rank{rank}.jsonl"] = beats
        for target in [*here, *beyond]:
            jobs[f"proc_rank{target.rank}.txt"] = partial(_read_proc, target.pid)
        jobs["torchrun_log.txt"] = _tail_job(self._dir.torchrun_log, LOG_LINES)
        for path in sorted(self._dir.path.glob("torchrun_node*.log")):
            node = path.stem.removeprefix("torchrun_")
            jobs[f"torchrun_log_{node}.txt"] = _tail_job(path, LOG_LINES)
        if shutil.which("nvidia-smi"):
            jobs["nvidia_smi.xml"] = self._nvidia_smi
        return jobs

    def _collectives_jobs(
        self,
        number: int,
        living: Mapping[int, Target],
        beyond: Sequence[Target],
        world_size: int,
        now: float,
    ) -> dict[str, Collector]:
        more = beyond if find_pipes(self._dir.path) else ()
        asked = [row.rank for row in (*living.values(), *more) if not row.stopped]
        world_size += len(more)
        if not asked or world_size < 2:
            return {}
        answers = Answers(self._dir.evidence, str(number), asked, world_size, now)

        def analyse() -> str:
            ask_ranks(self._dir.evidence, str(number))
            found = answers.analyse()
            if found is None:
                return "no rank has reported its collectives\n"
            if not more:
                self._standing.put(found)
            return f"{found.text}\n"

        jobs: dict[str, Collector] = {"collectives.txt": analyse}
        for rank in asked:
            jobs[f"collectives_rank{rank}.json"] = partial(answers.collect, rank)
        return jobs

    def _nvidia_smi(self) -> str:
        done = self._readers.run(["nvidia-smi", "-q", "-x"], LIMIT_S)
        return (done.stdout + done.stderr).decode("utf-8", "replace")


class NodeEvidence(_Stacks):
    """The part of another node in the rounds; used from its follower's one loop."""

    def __init__(self, run_dir: RunDir) -> None:
        super().__init__()
        self._dir = run_dir
        self._seen: set[Path] = set()
        self._look_at = float("-inf")

    def tend(self, now: float, targets: Mapping[int, Target]) -> None:
        """Take the rounds that were asked for since the last call.

        Args:
            now: monotonic seconds.
            targets: the ranks of this node.

        Raises:
            OSError: the folder cannot be read just now.
        """
        if now < self._look_at:
            return
        self._look_at = now + LOOK_EVERY_S
        for path in sorted(self._dir.evidence.glob(f"[0-9]*_*/{ASKED_NAME}")):
            if path not in self._seen:
                self._seen.add(path)
                self._take(path.parent, load_json(path) or {}, targets)

    def _take(
        self, folder: Path, asked: Mapping[str, object], targets: Mapping[int, Target]
    ) -> None:
        number, native = asked.get("number"), asked.get("native") is True
        if not isinstance(number, int):
            return
        for rank, target in targets.items():
            stacks, proc = (folder / name for name in _names_of_node(rank))
            if target.pid is not None and not stacks.exists():
                _start_collector(stacks, partial(self._read, number, target, native=native))
                _start_collector(proc, partial(_read_proc, target.pid))


def _names_of_node(rank: int) -> tuple[str, str]:
    """Return the files that only a rank's own host can write."""
    return f"stacks_rank{rank}.txt", f"proc_rank{rank}.txt"


def _drain(found: "queue.SimpleQueue[_T]") -> list[_T]:
    return [found.get_nowait() for _ in range(found.qsize())]


def _read_proc(pid: int | None) -> str:
    """Return what the kernel reports of a process."""
    parts = []
    for name in _PROC_FILES:
        try:
            text = Path(f"/proc/{pid}/{name}").read_text(errors="replace")
        except OSError as error:
            text = f"{error}\n"
        parts.append(f"== /proc/{pid}/{name}\n{text.rstrip()}\n")
    return "".join(parts)


def _tail_job(path: Path, lines: int) -> Collector:
    def collect() -> str:
        tail = load_tail(path, limit=MAX_FILE_BYTES).decode("utf-8", "replace")
        return "".join(tail.splitlines(keepends=True)[-lines:])

    return collect


def _start_collector(path: Path, collect: Collector) -> threading.Thread | None:
    """Start a collector; None if the host has no thread for it."""
    try:
        return start_thread(partial(run_collector, path, collect), path.name)
    except OSError as error:
        _write(path, f"failed: {error}\n")
        return None


def run_collector(path: Path, collect: Collector) -> None:
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
