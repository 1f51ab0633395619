"""For what does a pending job of Slurm wait? How many are ahead, what it needs, what is free.

`PENDING, Priority` alone tells nobody how long. What stands here is for people; nothing is decided
by it. The queue and the nodes are asked for at most every `ASK_EVERY_S`, whatever the number of
jobs: a controller serves a whole cluster.
"""

import re
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from gonogo.contract.errors import Unavailable

ASK_EVERY_S = 30.0
IN_TURN = frozenset({"Priority", "Resources", "None"})
"""Reasons of a job that waits its turn; for any other (a limit, a hold) the reason itself says."""
_GPUS = re.compile(r"\bgpu(?::[A-Za-z][^:,()=]*)?[:=](\d+)")
_UNFIT = re.compile(r"DOWN|DRAIN|FAIL|UNKNOWN|MAINT|RESERVED|NOT_RESPONDING|POWER|REBOOT|\*")

Row = Mapping[str, str]
"""Fields of `scontrol show job` or `scontrol show node`."""

_HELD = {
    "JobHeldUser": "somebody holds it: scontrol release {job}",
    "JobHeldAdmin": "an administrator holds it: ask why",
}
"""What lets a job go on that waits for a person."""


@dataclass(frozen=True, slots=True)
class Pending:
    """A job in the queue of a partition."""

    number: int
    priority: int


@dataclass(frozen=True, slots=True)
class Partition:
    """What there is of one partition."""

    pending: tuple[Pending, ...]
    nodes: tuple[Row, ...]


@dataclass(slots=True)
class Queue:
    """Tells for what jobs wait.

    Args:
        ask: returns what one of Slurm's commands says; raises `Unavailable`.
        parse: returns the fields of one line of scontrol.
        clock: returns monotonic seconds.
    """

    ask: Callable[..., str]
    parse: Callable[[str], dict[str, str]]
    clock: Callable[[], float] = time.monotonic
    _known: dict[str, tuple[float, Partition | None]] = field(default_factory=dict)
    """Partition → when it was asked about, and what was said; None where nothing was."""

    def describe(self, job: Row) -> str:
        """Return for what a job waits, such as `4 ahead, needs 2 GPUs, 1 free`; empty: unknown."""
        reason = job.get("Reason", "None")
        if reason in _HELD:
            return _HELD[reason].format(job=job.get("JobId", "?"))
        if reason not in IN_TURN:
            return ""
        partition = self._load(job.get("Partition", ""))
        return "" if partition is None else describe_wait(job, partition)

    def _load(self, name: str) -> Partition | None:
        asked_at, known = self._known.get(name, (float("-inf"), None))
        if self.clock() - asked_at < ASK_EVERY_S:
            return known
        try:
            found: Partition | None = self._ask(name)
        except Unavailable:
            found = None
        self._known[name] = (self.clock(), found)
        return found

    def _ask(self, name: str) -> Partition:
        here = [f"--partition={name}"] if name else []
        rows = self.ask(
            "squeue", "--all", "--noheader", "--states=PENDING", *here, "--format=%i|%Q"
        )
        told = self.ask("scontrol", "--all", "--details", "--oneliner", "show", "node")
        nodes = [self.parse(line) for line in told.splitlines() if line.strip()]
        asked = set(name.split(","))  # a job may name several, of which it gets one
        return Partition(
            pending=tuple(_pending_of(rows.splitlines())),
            nodes=tuple(row for row in nodes if asked & set(row.get("Partitions", "").split(","))),
        )


def describe_wait(job: Row, partition: Partition) -> str:
    """Return for what a job waits in its partition: pure."""
    number, priority = _whole(job.get("JobId")), _whole(job.get("Priority"))
    ahead = sum(
        row.priority > priority or (row.priority == priority and row.number < number)
        for row in partition.pending
    )
    fit = [row for row in partition.nodes if not _UNFIT.search(row.get("State", "UNKNOWN"))]
    gpus = _gpus_asked(job)
    if gpus:
        free = sum(_gpus_in(row.get("Gres")) - _gpus_in(row.get("GresUsed")) for row in fit)
        return f"{ahead} ahead, needs {_count(gpus, 'GPU')}, {max(0, free)} free"
    free = sum(_whole(row.get("CPUTot")) - _whole(row.get("CPUAlloc")) for row in fit)
    wanted = _whole(job.get("NumCPUs"))
    return f"{ahead} ahead, needs {_count(wanted, 'CPU')}, {max(0, free)} free"


def _gpus_asked(job: Row) -> int:
    """Return the GPUs of all nodes of a job."""
    in_all = _gpus_in(",".join(part for part in (job.get("ReqTRES"), job.get("TRES")) if part))
    if in_all:
        return in_all
    return _gpus_in(job.get("TresPerNode")) * max(1, _whole(job.get("NumNodes")))


def _gpus_in(text: str | None) -> int:
    """Return the sum of GPUs in words such as `gpu:h100:4(S:0-1)`, `gres/gpu=4`, `gres:gpu:4`."""
    plain, typed = 0, 0
    for part in re.split(r",(?![^(]*\))", text or ""):
        found = _GPUS.search(part)
        if found is None:
            continue
        if "gres/gpu:" in part and "=" in part:  # its type again, beside `gres/gpu=4`
            typed += int(found.group(1))
        else:
            plain += int(found.group(1))
    return plain or typed


def _pending_of(rows: Iterable[str]) -> Iterable[Pending]:
    for row in rows:
        number, _, priority = row.strip().partition("|")
        if number:
            yield Pending(_whole(number), _whole(priority))


def _whole(text: str | None) -> int:
    """Return the number that a text begins with; 0 where it begins with none."""
    found = re.match(r"\d+", text or "")
    return int(found.group()) if found else 0


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
