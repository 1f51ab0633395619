"""Which detectors are there? D1 to D26 in order, and those that other packages bring.

A new detector is one module in `detectors/` and one row here. Another package brings one by the
entry point `gonogo.detectors`, whose value is a subclass of `Detector`. One that cannot be had
refuses every new order here, and harms no run that is watched or judged: it is not installed.
"""

from collections.abc import Iterable
from functools import cache
from typing import Any

from gonogo.contract.doubt import Doubt, DoubtKind
from gonogo.contract.errors import Rejected
from gonogo.contract.finding import Act, Finding, Severity
from gonogo.contract.outcome import CLASS_OF, SHOWN_BY_LINES, OutcomeClass, OutcomeCode, code_of
from gonogo.contract.outcome import Detector as Name
from gonogo.watch.checkpoints import CheckpointOverdue
from gonogo.watch.culprit import RankDivergence
from gonogo.watch.deadlines import AliveLost, NoFirstHeartbeat, SectionDeadline, Stall
from gonogo.watch.detector import Detector
from gonogo.watch.detectors.balance import Imbalance, Straggler
from gonogo.watch.detectors.disk import Disk
from gonogo.watch.detectors.hardware import Hardware
from gonogo.watch.detectors.hygiene import Hygiene
from gonogo.watch.detectors.identity import IdentityEqual
from gonogo.watch.detectors.learning import Frozen, GateCollapse, Gradients
from gonogo.watch.detectors.loss import Divergence, FirstLoss, NonFinite
from gonogo.watch.detectors.memory import MemoryLeak, MemoryLimit
from gonogo.watch.detectors.process_death import ProcessDeath
from gonogo.watch.detectors.restart_storm import RestartStorm
from gonogo.watch.detectors.slow import Slow
from gonogo.watch.detectors.speed import ImplausibleSpeed, Loader
from gonogo.watch.detectors.watcher import WatcherAway
from gonogo.watch.packages import load_points
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
def _brought() -> tuple[tuple[Kind, ...], tuple[str, ...]]:
    """Return the detectors that installed packages bring, and what is wrong with the others.

    One whose name several bring is none of theirs: which of them an order meant nobody knows.
    """
    found: dict[str, Kind] = {}
    wrong: list[str] = []
    several: set[str] = set()
    for _, value, kind, failed in load_points(PLUGINS):
        if failed is not None:
            wrong.append(f"{value} {failed}")
        elif not (isinstance(kind, type) and issubclass(kind, Detector)):
            wrong.append(f"{value} is no Detector")
        elif (untold := _untold(kind)) is not None:
            wrong.append(f"{value}: {untold}")
        elif kind.name in found or kind.name in {row.name for row in REGISTRY}:
            wrong.append(f"there is a detector {kind.name!r} already")
            several.add(kind.name)
        else:
            found[kind.name] = kind
    only = (kind for name, kind in found.items() if name not in several)
    return tuple(only), tuple(f"entry point {PLUGINS}: {text}" for text in wrong)


def _untold(kind: Kind) -> str | None:
    """Return what a class does not say, or says otherwise than a detector does; None if nothing.

    The watch asks for it outside of the rule itself, where an error would be the watch's own.
    """
    name, observes = getattr(kind, "name", None), kind.observes
    if not isinstance(name, str) or not name:
        return f"its `name` is {name!r}, which is no text"
    for what, said in (("lines", kind.lines), ("observes", observes or frozenset())):
        if not (isinstance(said, frozenset) and all(isinstance(row, str) for row in said)):
            return f"its `{what}` is {said!r}; expected a frozenset of texts"
    if kind.code is not None and not (isinstance(kind.code, OutcomeCode) and _fails(kind.code)):
        return f"its `code` is {kind.code!r}; expected an OutcomeCode of a run that failed"
    return None


def _fails(code: OutcomeCode) -> bool:
    """Say whether a run that ends so has failed: a halt is no success, and no person's doing."""
    return CLASS_OF[code] not in (OutcomeClass.SUCCESS, OutcomeClass.OPERATOR)


def plugins() -> tuple[Kind, ...]:
    """Return the detectors that installed packages bring, by name.

    Raises:
        Rejected: an entry point that cannot be loaded, is no detector, or takes a name that is
            taken.
    """
    found, wrong = _brought()
    if wrong:
        raise Rejected(wrong[0])
    return found


def all_detectors() -> tuple[Kind, ...]:
    """Return every detector that can be had here: ours as D1 to D26, then other packages'."""
    return (*REGISTRY, *_brought()[0])


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
        brought = next((row.code for row in _brought()[0] if row.name == name), None)
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
    return [Doubt(kind=DoubtKind.DETECTOR_MISSING, name=name[:64]) for name in names]


def failed_text(name: str) -> str:
    """Return how the sentence begins about another package's detector that raised an error."""
    return f"the detector {name[:64]!r} of another package failed"


def ordered_detectors(run: Run) -> tuple[Kind, ...]:
    """Return the detectors that watch a run: those that its order names."""
    named = run.order.detectors or BASIC
    return tuple(row for row in all_detectors() if row.name in named)
