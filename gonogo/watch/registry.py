"""The detectors: D1 to D26 in order, the plug-ins of other packages, and which code judges here.

A new detector is one module in `detectors/` and one row here. A plug-in is an entry point
`gonogo.detectors` with the name of its detector, and a subclass of `Detector` as its value. One
that cannot be loaded refuses every new order here. It harms no run that is watched or judged: it
counts as not installed. A plug-in that raises an error (or exits, or panics) ends no run. It is
left out from there on, a warning reports it, and what it was ordered to watch was not watched, so
nothing passes.
"""

import hashlib
import re
from collections.abc import Callable, Iterable
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import gonogo
from gonogo.contract.decision import MadeBy
from gonogo.contract.errors import Rejected
from gonogo.contract.finding import Act, Doubt, DoubtKind, Finding, Severity
from gonogo.contract.outcome import SHOWN_BY_LINES, OutcomeCode, code_of
from gonogo.contract.outcome import Detector as Name
from gonogo.git_commit import load_commit
from gonogo.watch.detector import Detector
from gonogo.watch.detectors.culprit import RankDivergence
from gonogo.watch.detectors.deadlines import AliveLost, NoFirstHeartbeat, SectionDeadline, Stall
from gonogo.watch.detectors.death import ProcessDeath, RestartStorm
from gonogo.watch.detectors.disk import CheckpointOverdue, Disk
from gonogo.watch.detectors.hardware import Hardware, Imbalance
from gonogo.watch.detectors.hygiene import Hygiene, IdentityEqual, WatcherAway
from gonogo.watch.detectors.loss import (
    Divergence,
    FirstLoss,
    Frozen,
    GateCollapse,
    Gradients,
    NonFinite,
)
from gonogo.watch.detectors.memory import MemoryLeak, MemoryLimit
from gonogo.watch.detectors.slow import Slow
from gonogo.watch.detectors.speed import ImplausibleSpeed, Loader, Straggler
from gonogo.watch.view import Run

Kind = type[Detector[Any]]

REGISTRY: tuple[Kind, ...] = (
    ProcessDeath,
    NoFirstHeartbeat,
    AliveLost,
    Stall,
    SectionDeadline,
    RankDivergence,
    Straggler,
    Slow,
    Frozen,
    NonFinite,
    Divergence,
    Gradients,
    GateCollapse,
    Imbalance,
    MemoryLeak,
    MemoryLimit,
    Loader,
    Hygiene,
    Disk,
    CheckpointOverdue,
    ImplausibleSpeed,
    IdentityEqual,
    WatcherAway,
    Hardware,
    RestartStorm,
    FirstLoss,
)

BASIC = (
    "process_death",
    "no_first_heartbeat",
    "alive_lost",
    "stall",
    "section_deadline",
    "rank_divergence",
    "slow",
    "non_finite",
    "hygiene",
    "identity",
    "first_loss",
)
"""The detectors of an order that names none, as an order by hand may."""

JUDGING = ("contract", "timeline", "watch", "judge", "ledger")
"""Folders of gonogo on which a verdict depends."""
PLUGINS = ("gonogo.detectors", "gonogo.criteria")
ERRORS = BaseException
"""What foreign code may raise, and a watcher survives; `failure` raises an interrupt again."""
_ADDRESS = re.compile("0x[0-9a-f]+")
_MOST = 200


@cache
def made_by() -> MadeBy:
    """Return which code judges here; computed once in a process."""
    root = Path(gonogo.__file__).parent
    paths = (path for name in JUDGING for path in (root / name).rglob("*"))
    files = {path.relative_to(root).as_posix(): path for path in paths}
    sources = hashlib.sha256()
    for name, path in sorted(files.items()):
        if path.suffix in (".py", ".yaml"):
            sources.update(f"{name}\n".encode() + hashlib.sha256(path.read_bytes()).digest())
    points = (point for group in PLUGINS for point in entry_points(group=group))
    packages = {point.dist.name: point.dist.version for point in points if point.dist is not None}
    return MadeBy(
        gonogo=gonogo.__version__,
        sources=sources.hexdigest(),
        commit=load_commit(root.parent),
        packages=dict(sorted(packages.items())),
    )


def load_plugins(
    group: str, taken: Iterable[str], problem_of: Callable[[str, Any], str | None]
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return what installed packages bring, by name, and what is wrong with the rest.

    A name that several packages bring belongs to none of them.
    """
    found, wrong, names = dict[str, Any](), list[str](), set(taken)
    for point in sorted(entry_points(group=group), key=lambda point: point.name):
        name = point.name
        try:
            loaded = point.load()
            problem = problem_of(name, loaded)
        except ERRORS as error:
            loaded, problem = None, f"cannot be loaded: {failure(error)}"
        if problem is None and name in names:
            problem = f"brings {name!r}, a name that is taken"
            found.pop(name, None)  # nobody knows which one is meant
        if problem is not None:
            wrong.append(f"entry point {group}: {point.value} {problem}")
            continue
        names.add(name)
        found[name] = loaded
    return found, tuple(wrong)


def failure(error: BaseException) -> str:
    """Return an error in words that are the same on every host; an interrupt is raised again."""
    if isinstance(error, KeyboardInterrupt):
        raise error
    try:
        said = str(error)
    except ERRORS:  # it is foreign, too
        said = ""
    words = _ADDRESS.sub("0x", said.partition("\n")[0])[:_MOST]
    return f"{type(error).__name__}: {words}"


@cache
def _installed() -> tuple[tuple[Kind, ...], tuple[str, ...]]:
    """Return the detectors of installed packages, and what is wrong with the others."""

    def problem_of(name: str, kind: Any) -> str | None:
        if not (isinstance(kind, type) and issubclass(kind, Detector)):
            return "is no Detector"
        its = getattr(kind, "name", None)
        return None if its == name else f"has the name {its!r}, not that of its entry point"

    found, wrong = load_plugins(PLUGINS[0], [row.name for row in REGISTRY], problem_of)
    return tuple(found.values()), wrong


def plugins() -> tuple[Kind, ...]:
    """Return the detectors that installed packages bring, by name.

    Raises:
        Rejected: an entry point that cannot be loaded, is no detector, or takes a name that is
            taken.
    """
    found, wrong = _installed()
    if wrong:
        raise Rejected(wrong[0])
    return found


def all_detectors() -> tuple[Kind, ...]:
    """Return every detector that can be had here: ours as D1 to D26, then other packages'."""
    return (*REGISTRY, *_installed()[0])


def is_ours(name: str) -> bool:
    """Say whether a detector is built in."""
    return any(row.name == name for row in REGISTRY)


def shown_by_lines(findings: Iterable[Finding]) -> Finding | None:
    """Return the halt of ours by which a run had failed, where its own lines show that.

    A halt that only waits for a checkpoint does not hide one that was found later.
    """
    for halt in findings:
        if halt.severity is not Severity.HALT or halt.act is Act.PAGE:
            continue
        if is_ours(halt.detector) and cause_of(halt) in SHOWN_BY_LINES:
            return halt
        if halt.act is not Act.AT_CHECKPOINT:
            return None
    return None


def cause_of(halt: Finding) -> OutcomeCode:
    """Return the cause that a halt names, of another package's detector, too.

    A disk without room or inodes is its host's fault; what a quota refuses is the run's own.
    """
    name, value, threshold = halt.detector, halt.value, halt.threshold
    if name == Name.DISK and value is not None and threshold is not None and value < threshold:
        return OutcomeCode.DISK_FULL
    plugged = next((row.code for row in _installed()[0] if row.name == name), None)
    return code_of(name) if plugged is None else plugged


def detector_names() -> list[str]:
    """Return the detectors that an order made now names; a broken plug-in is rejected."""
    return [str(row.name) for row in (*REGISTRY, *plugins())]


def missing_detectors(run: Run) -> list[Doubt]:
    """Return the detectors that the order names and that are not installed."""
    here = {row.name for row in all_detectors()}
    names = (name for name in sorted(run.order.detectors) if name not in here)
    kind, why = DoubtKind.DETECTOR_FAILED, "the order names it, and it is not installed here"
    return [Doubt(kind=kind, name=name[:64], found=why) for name in names]


def ordered_detectors(run: Run) -> tuple[Kind, ...]:
    """Return the detectors that watch a run: those that its order names."""
    named = run.order.detectors or BASIC
    return tuple(row for row in all_detectors() if row.name in named)


def failure_of(name: str, error: BaseException) -> str:
    """Return the sentence about an error of a plug-in; an error of ours is raised again."""
    if is_ours(name):
        raise error
    return f"the detector {name[:64]!r} of another package failed: {failure(error)}"
