"""The detectors: D1 to D26 in order, and the plug-ins of other packages.

A new detector is one module in `detectors/` and one row here. A plug-in is an entry point
`gonogo.detectors` whose value is a subclass of `Detector`. One that cannot be loaded refuses every
new order here. It harms no run that is watched or judged: it counts as not installed. A plug-in
that raises an error ends no run. It is left out from there on, a warning reports it, and what it
was ordered to watch was not watched, so nothing passes.
"""

from collections.abc import Container, Iterable
from functools import cache
from typing import Any

from gonogo.contract.doubt import Doubt, DoubtKind
from gonogo.contract.errors import Rejected
from gonogo.contract.finding import Act, Finding, Severity
from gonogo.contract.outcome import SHOWN_BY_LINES, OutcomeCode, code_of
from gonogo.contract.outcome import Detector as Name
from gonogo.watch.checkpoints import CheckpointOverdue
from gonogo.watch.culprit import RankDivergence
from gonogo.watch.deadlines import AliveLost, NoFirstHeartbeat, SectionDeadline, Stall
from gonogo.watch.detector import Detector
from gonogo.watch.detectors.balance import Imbalance, Straggler
from gonogo.watch.detectors.death import ProcessDeath, RestartStorm
from gonogo.watch.detectors.disk import Disk
from gonogo.watch.detectors.hardware import Hardware
from gonogo.watch.detectors.hygiene import Hygiene, WatcherAway
from gonogo.watch.detectors.identity import IdentityEqual
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
from gonogo.watch.detectors.speed import ImplausibleSpeed, Loader
from gonogo.watch.packages import failure, load_points
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
"""D1 to D26 in order."""

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

PLUGINS = "gonogo.detectors"


@cache
def _installed() -> tuple[tuple[Kind, ...], tuple[str, ...]]:
    """Return the detectors of installed packages, and what is wrong with the others."""
    found: dict[str, Kind] = {}
    wrong: list[str] = []
    taken = {str(row.name) for row in REGISTRY}
    for _, value, kind, failed in load_points(PLUGINS):
        if failed is not None:
            wrong.append(f"{value} {failed}")
        elif not (isinstance(kind, type) and issubclass(kind, Detector)):
            wrong.append(f"{value} is no Detector")
        elif (problem := _problem_of(kind, taken)) is not None:
            wrong.append(f"{value}: {problem}")
            found.pop(str(getattr(kind, "name", "")), None)  # nobody knows which one is meant
        else:
            taken.add(kind.name)
            found[kind.name] = kind
    return tuple(found.values()), tuple(f"entry point {PLUGINS}: {text}" for text in wrong)


def _problem_of(kind: Kind, taken: Container[str]) -> str | None:
    """Return what is wrong with the class of a plug-in; an error there would be the watch's own."""
    name: Any = getattr(kind, "name", None)
    if not isinstance(name, str) or not name:
        return f"its `name` is {name!r}, which is no text"
    if name in taken:
        return f"there is a detector {name!r} already"
    return None


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
    """Say whether a detector is one of D1 to D26."""
    return any(row.name == name for row in REGISTRY)


def shown_by_lines(findings: Iterable[Finding]) -> Finding | None:
    """Return the halt of ours by which a run had failed, where its own lines show that.

    One of another cause that waits for a checkpoint, or ends nothing, hides none found meanwhile.

    Args:
        findings: of the run, in the order in which they were made.
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

    Where the disk itself has no room or no inodes, that is its host's; what a quota refuses is the
    run's own.
    """
    name, value, threshold = halt.detector, halt.value, halt.threshold
    if name == Name.DISK and value is not None and threshold is not None and value < threshold:
        return OutcomeCode.DISK_FULL
    return cause_of_any(name)


def cause_of_any(name: str) -> OutcomeCode:
    """Return the cause that any halt of a detector names."""
    if not is_ours(name):
        brought = next((row.code for row in _installed()[0] if row.name == name), None)
        if brought is not None:
            return brought
    return code_of(name)


def detector_names() -> list[str]:
    """Return the detectors that an order made now names: all that are installed here.

    Raises:
        Rejected: as `plugins` does, so that no run is made without a detector that is meant.
    """
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
    """Return the sentence about an error of a plug-in, which watches no more from there on.

    Raises:
        BaseException: the error itself, if the detector is ours: that is a fault of the watch.
    """
    if is_ours(name):
        raise error
    return f"the detector {name[:64]!r} of another package failed: {failure(error)}"
