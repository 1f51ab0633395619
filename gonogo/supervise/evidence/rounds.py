"""What is kept about a run that looks sick? Rounds of evidence, taken beside the watching.

A round is a folder `evidence/{number}_{detector}/`: the collectives that the ranks stand in, their
stacks, process state, the last log lines and heartbeats of every rank, nvidia-smi. All collectors
of a round run at once, each in a thread and capped at 5 s; one that fails leaves its reason in its
file. Of ranks beyond those that were ordered only people are told: no detector knows them. Nothing
here blocks a tick, and the names of a round's files are known before it has run, so that a finding
can name them at once, the most telling first.
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
from typing import Any

from gonogo.contract.collectives import Standing
from gonogo.contract.tick import StackProbe
from gonogo.rundir import RunDir
from gonogo.supervise.evidence.collectives import Answers, ask_ranks, find_pipes
from gonogo.supervise.evidence.of_rank import (
    MAX_FILE_BYTES,
    Target,
    names_of_node,
    read_proc,
    read_target,
    save_asked,
    start_collector,
)
from gonogo.supervise.evidence.stacks import LIMIT_S, Readers, find_py_spy
from gonogo.supervise.exit_record import load_tail
from gonogo.supervise.rank_record import load_beyond
from gonogo.supervise.threads import start_thread

MAX_ROUNDS = 12
MAX_ROUNDS_OF_SUSPICION = 6
MAX_ROUNDS_BEFORE_HALTS = MAX_ROUNDS - 1
"""Without these no run ends whose lines come no more, whatever was suspected of it before. The last
one is kept for findings that end a run."""
LOG_LINES = 500
HEARTBEATS = 512
_ROUND = re.compile(r"([0-9]{2})_")
"""How the folder of a round begins; a trainer may have folders of its own beside them."""

_log = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class Round:
    """One round that was started."""

    number: int
    started_at: float
    paths: list[str]
    threads: list[threading.Thread] = field(default_factory=list)

    def is_running(self) -> bool:
        """Say whether a collector is still at work."""
        return any(thread.is_alive() for thread in self.threads)


class Evidence:
    """Takes the rounds of one run; used from the watcher's one loop."""

    def __init__(self, run_dir: RunDir) -> None:
        self._dir = run_dir
        self._probes: queue.SimpleQueue[StackProbe] = queue.SimpleQueue()
        self._standing: queue.SimpleQueue[Standing] = queue.SimpleQueue()
        self._py_spy = find_py_spy()
        self._readers = Readers()
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
        """Start a round; None when the run has had its share, or no disk takes it.

        Args:
            reason: detector that asks for it.
            targets: every rank.
            now: monotonic seconds.
            native: whether native frames are wanted.
            most: how many rounds there may be by it.
        """
        if self._taken >= most:
            return None
        folder = self._dir.evidence / f"{self._taken + 1:02d}_{reason}"
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:  # what the round was for goes on without it
            _log.warning("no evidence: %s", error, extra={"action": "evidence_unwritten"})
            return None
        self._taken += 1
        jobs = self._jobs(self._taken, targets, native, now)
        elsewhere = [row.rank for row in targets.values() if row.elsewhere and row.pid is not None]
        others = [name for rank in elsewhere for name in names_of_node(rank)]
        names = [*jobs, *others]
        paths = [str((folder / name).relative_to(self._dir.path)) for name in names]
        found = Round(number=self._taken, started_at=now, paths=paths)
        for name, collect in jobs.items():
            if (thread := start_collector(folder / name, collect)) is not None:
                found.threads.append(thread)
        if elsewhere:
            found.threads += self._ask_followers(folder, others, native=native)
        self.last = found
        return found

    def _ask_followers(
        self, folder: Path, names: Sequence[str], *, native: bool
    ) -> list[threading.Thread]:
        """Have the nodes' followers look at their ranks, and wait for their files beside."""

        def wait() -> None:
            try:
                save_asked(folder, self._taken, native=native)
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

    def stop(self) -> None:
        """End all readings: a process that is being read takes no signal."""
        self._readers.stop()

    def take_probes(self) -> list[StackProbe]:
        """Return the stack readings that came in since the last call."""
        found = []
        while not self._probes.empty():
            found.append(self._probes.get_nowait())
        return found

    def take_observations(self) -> dict[str, Any]:
        """Return kind → what rounds saw since the last call, for a tick."""
        found: dict[str, Any] = {}
        while not self._standing.empty():
            found["collectives"] = self._standing.get_nowait().model_dump(mode="json")
        return found

    def _jobs(
        self, number: int, targets: Mapping[int, Target], native: bool, now: float
    ) -> dict[str, Callable[[], str]]:
        living = {rank: row for rank, row in sorted(targets.items()) if row.pid is not None}
        named = load_beyond(self._dir.path)
        beyond = {rank: ref.pid for rank, ref in named.items() if rank not in targets}
        if beyond and find_pipes(self._dir.path):
            others = {rank: Target(rank=rank, pid=pid) for rank, pid in beyond.items()}
            jobs = self._collectives_jobs(
                number, {**living, **others}, len({*targets, *beyond}), now, lambda _: None
            )
        else:
            keep = self._standing.put
            jobs = self._collectives_jobs(number, living, len(targets), now, keep)
        here = {rank: row for rank, row in living.items() if not row.elsewhere}
        for rank, target in here.items():
            read = partial(read_target, self._readers, self._py_spy, self._probes.put)
            jobs[f"stacks_rank{rank}.txt"] = partial(read, number, target, native)
        for rank, pid in beyond.items():
            read = partial(read_target, self._readers, self._py_spy, lambda _: None)
            target = Target(rank=rank, pid=pid)
            jobs[f"stacks_rank{rank}.txt"] = partial(read, number, target, native)
        for rank in sorted(targets):
            jobs[f"log_rank{rank}.txt"] = _tail_job(self._dir.rank_log(rank), LOG_LINES)
            beats = _tail_job(self._dir.heartbeat(rank), HEARTBEATS)
            jobs[f"heartbeats_rank{rank}.jsonl"] = beats
        for rank, target in here.items():
            assert target.pid is not None
            jobs[f"proc_rank{rank}.txt"] = partial(read_proc, target.pid)
        for rank, pid in beyond.items():
            jobs[f"proc_rank{rank}.txt"] = partial(read_proc, pid)
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
        world_size: int,
        now: float,
        keep: Callable[[Standing], object],
    ) -> dict[str, Callable[[], str]]:
        asked = [rank for rank, target in living.items() if not target.stopped]
        if not asked or world_size < 2:
            return {}
        ask = partial(ask_ranks, self._dir.evidence, str(number))
        answers = Answers(self._dir.evidence, str(number), asked, world_size, now)

        def analyse() -> str:
            ask()
            found = answers.analyse()
            if found is None:
                return "no rank has told of its collectives\n"
            keep(found)
            return f"{found.text}\n"

        jobs: dict[str, Callable[[], str]] = {"collectives.txt": analyse}
        for rank in asked:
            jobs[f"collectives_rank{rank}.json"] = partial(answers.collect, rank)
        return jobs

    def _nvidia_smi(self) -> str:
        done = self._readers.run(["nvidia-smi", "-q", "-x"], LIMIT_S)
        return (done.stdout + done.stderr).decode("utf-8", "replace")


def _tail_job(path: Path, lines: int) -> Callable[[], str]:
    def collect() -> str:
        tail = load_tail(path, limit=MAX_FILE_BYTES).decode("utf-8", "replace")
        return "".join(tail.splitlines(keepends=True)[-lines:])

    return collect
