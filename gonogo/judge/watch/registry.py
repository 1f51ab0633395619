"""Which detectors are there? D1 to D26 in order, and those that other packages bring.

A new detector is one module in `detectors/` and one row here. Another package brings one by the
entry point `gonogo.detectors`, whose value is a subclass of `Detector`.
"""

from collections.abc import Mapping
from functools import cache
from importlib.metadata import entry_points
from typing import Any

from gonogo.contract.errors import Rejected
from gonogo.judge.watch.detector import Detector
from gonogo.judge.watch.detectors.alive_lost import AliveLost
from gonogo.judge.watch.detectors.checkpoint_overdue import CheckpointOverdue
from gonogo.judge.watch.detectors.disk import Disk
from gonogo.judge.watch.detectors.divergence import Divergence
from gonogo.judge.watch.detectors.first_loss import FirstLoss
from gonogo.judge.watch.detectors.frozen import Frozen
from gonogo.judge.watch.detectors.gate_collapse import GateCollapse
from gonogo.judge.watch.detectors.gradients import Gradients
from gonogo.judge.watch.detectors.hardware import Hardware
from gonogo.judge.watch.detectors.hygiene import Hygiene
from gonogo.judge.watch.detectors.identity import IdentityEqual
from gonogo.judge.watch.detectors.imbalance import Imbalance
from gonogo.judge.watch.detectors.implausible_speed import ImplausibleSpeed
from gonogo.judge.watch.detectors.loader import Loader
from gonogo.judge.watch.detectors.memory_leak import MemoryLeak
from gonogo.judge.watch.detectors.memory_limit import MemoryLimit
from gonogo.judge.watch.detectors.no_first_heartbeat import NoFirstHeartbeat
from gonogo.judge.watch.detectors.non_finite import NonFinite
from gonogo.judge.watch.detectors.process_death import ProcessDeath
from gonogo.judge.watch.detectors.rank_divergence import RankDivergence
from gonogo.judge.watch.detectors.restart_storm import RestartStorm
from gonogo.judge.watch.detectors.section_deadline import SectionDeadline
from gonogo.judge.watch.detectors.slow import Slow
from gonogo.judge.watch.detectors.stall import Stall
from gonogo.judge.watch.detectors.straggler import Straggler
from gonogo.judge.watch.detectors.watcher import WatcherAway
from gonogo.judge.watch.view import Run

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

RELEASE_0_1 = (
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
"""The detectors of an order that names none: release 0.1 made it."""

PLUGINS = "gonogo.detectors"


@cache
def plugins() -> tuple[Kind, ...]:
    """Return the detectors that installed packages bring, by name.

    Raises:
        Rejected: an entry point that is no detector, or that takes a name that is taken.
    """
    found: dict[str, Kind] = {}
    for point in sorted(entry_points(group=PLUGINS), key=lambda point: point.name):
        kind = point.load()
        if not (isinstance(kind, type) and issubclass(kind, Detector)):
            raise Rejected(f"entry point {PLUGINS}: {point.value} is no Detector")
        if kind.name in found or kind.name in {row.name for row in REGISTRY}:
            raise Rejected(f"entry point {PLUGINS}: there is a detector {kind.name!r} already")
        found[kind.name] = kind
    return tuple(found.values())


def all_detectors() -> tuple[Kind, ...]:
    """Return every detector: ours in the order of D1 to D26, then those of other packages."""
    return (*REGISTRY, *plugins())


def versions() -> dict[str, int]:
    """Return what an order made now says: detector → version of its rule."""
    return {str(row.name): row.version for row in all_detectors()}


def unknown_versions(detectors: Mapping[str, int]) -> dict[str, int]:
    """Return our own detectors that an order names in a version that none of them ever had."""
    known = {str(row.name): row.version for row in REGISTRY}
    return {
        name: version
        for name, version in sorted(detectors.items())
        if name in known and not 1 <= version <= known[name]
    }


def missing_text(name: str) -> str:
    """Return how the sentence begins about a detector that the order names and is not here."""
    return f"the order names detector {name[:64]!r}, which is not installed here"


def missing_detectors(run: Run) -> list[str]:
    """Return what the order names and is not here, one sentence each: detectors and versions."""
    present = versions()
    found = []
    for name, version in sorted(run.order.detectors.items()):
        if name not in present:
            found.append(missing_text(name))
        elif not 1 <= version <= present[name]:
            found.append(f"{missing_text(name)} in version {version}")
    return found


def build_detectors(run: Run) -> tuple[Detector[Any], ...]:
    """Return the detectors that watch a run: those that its order names."""
    named = run.order.detectors or dict.fromkeys(RELEASE_0_1, 1)
    return tuple(row(run) for row in all_detectors() if row.name in named)
