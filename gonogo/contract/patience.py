"""The table of patience: how long a rank may stay in one place before the watchdog acts.

`TABLE` holds the defaults, by place and kind of program. `patience_of` resolves it with the plan's
settings, and the order stores the result. So no detector knows kinds of programs.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, NamedTuple

from pydantic import Field

from gonogo.contract.finding import Severity, Source
from gonogo.contract.watch import Watch
from gonogo.contract.wire import Recorded


class Place(StrEnum):
    """Where a rank can be."""

    START = "start"
    BOOT = "boot"
    FIRST_STEP = "first_step"
    EARLY_STEPS = "early_steps"
    COMPUTE = "compute"
    CORROBORATED = "compute_corroborated"
    DATA = "data"
    CHECKPOINT = "checkpoint"
    EVAL = "eval"
    LOG = "log"
    NO_SECTION = "no_section"
    AFTER_LAST = "after_last_step"
    EXIT = "exit"
    SILENCE = "silence"
    CHECKPOINT_DUE = "checkpoint_due"
    PRINTED_START = "printed_start"
    PRINTED_RESTART = "printed_restart"
    PRINTED_STEP = "printed_step"
    PRINTED_AFTER_LAST = "printed_after_last_step"


MEANING: Mapping[Place, str] = {
    Place.START: "from the launch to a rank's first line",
    Place.BOOT: "in section boot",
    Place.FIRST_STEP: "until a rank has ended its first step",
    Place.EARLY_STEPS: "in forward, backward or optimizer, before `min_steps` steps have ended",
    Place.COMPUTE: "in forward, backward or optimizer",
    Place.CORROBORATED: "the same, when stacks or process states show that the run stands",
    Place.DATA: "in section data",
    Place.CHECKPOINT: "in section checkpoint",
    Place.EVAL: "in section eval",
    Place.LOG: "in section log",
    Place.NO_SECTION: "in no section, or in one with an unknown name",
    Place.AFTER_LAST: "in no section after the last step",
    Place.EXIT: "every rank is done, and a process still runs",
    Place.SILENCE: "without a line, while other ranks send lines",
    Place.CHECKPOINT_DUE: "a checkpoint is due, and none has been verified",
    Place.PRINTED_START: "no section known: until the first step",
    Place.PRINTED_RESTART: "no section known: from a restart in place to its first step",
    Place.PRINTED_STEP: "no section known: from step to step",
    Place.PRINTED_AFTER_LAST: "no section known: after the last step",
}


class Typical(StrEnum):
    """Base of a multiple."""

    MEDIAN = "median"  # The run's median step.
    USUAL = "usual"  # The median time in the place.
    LONGEST = "longest"  # The longest recent time in the place.


class ProgramKind(StrEnum):
    """How gonogo knows where a program is."""

    OURS = "ours"  # `nsa.train`.
    ATTACHED = "attached"  # It calls `gonogo.trainer`.
    OBSERVED = "observed"  # Unchanged PyTorch, seen by the observer.
    PRINTED = "printed"  # Seen only by its output lines.


class Limit(NamedTuple):
    """A limit and its source."""

    seconds: float
    source: Source


class Patience(Recorded):
    """How long a rank may stay in one place."""

    seconds: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None  # Null: no limit.
    multiple: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """The limit is the larger of `seconds` and this multiple of `of`."""
    of: Typical | None = None
    source: Source = Source.DEFAULT  # Source of `seconds`.
    suspect_s: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """Seconds until evidence is collected; null: never."""
    suspect_multiple: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None

    def limit(self, basis_s: float | None = None) -> Limit | None:
        """Return the limit, if there is one."""
        if self.seconds is None:
            return None
        adaptive_s = (self.multiple or 0.0) * (basis_s or 0.0)
        if adaptive_s > self.seconds:
            return Limit(adaptive_s, Source.ADAPTIVE)
        return Limit(self.seconds, self.source)

    def suspect(self, basis_s: float | None = None) -> float | None:
        """Return the seconds until evidence is collected; None: never."""
        if self.suspect_s is None:
            return None
        return max(self.suspect_s, (self.suspect_multiple or 0.0) * (basis_s or 0.0))

    def passed(self, seconds: float, basis_s: float | None = None) -> tuple[Severity, Limit] | None:
        """Return whether so many seconds halt or warn, and the limit; None: neither."""
        limit, suspect_s = self.limit(basis_s), self.suspect(basis_s)
        if limit is not None and seconds > limit.seconds:
            return Severity.HALT, limit
        if suspect_s is not None and seconds > suspect_s:
            return Severity.WARN, Limit(suspect_s, self.source)
        return None


class Cell(NamedTuple):
    """A default of the table."""

    seconds: float | None
    multiple: float | None = None
    of: Typical | None = None


def _row(*cells: Cell) -> dict[ProgramKind, Cell]:
    """Return a row: one cell for all kinds, two for ours and the others, or one for each."""
    every = (*cells, *cells[-1:] * (len(ProgramKind) - len(cells)))
    return dict(zip(ProgramKind, every, strict=True))


TABLE: Mapping[Place, Mapping[ProgramKind, Cell]] = {
    Place.START: _row(Cell(120), Cell(1800), Cell(1800), Cell(None)),
    Place.BOOT: _row(Cell(300), Cell(1800), Cell(1800), Cell(1800)),
    Place.FIRST_STEP: _row(Cell(900), Cell(1800), Cell(1800), Cell(1800)),
    Place.EARLY_STEPS: _row(Cell(300, 10, Typical.MEDIAN)),
    Place.COMPUTE: _row(Cell(60, 8, Typical.MEDIAN), Cell(120, 20, Typical.MEDIAN)),
    Place.CORROBORATED: _row(Cell(15, 3, Typical.MEDIAN), Cell(30, 10, Typical.MEDIAN)),
    Place.DATA: _row(Cell(300)),
    Place.CHECKPOINT: _row(Cell(600, 10, Typical.USUAL)),
    Place.EVAL: _row(Cell(1800, 5, Typical.USUAL)),
    Place.LOG: _row(Cell(60, 3, Typical.MEDIAN), Cell(300, 3, Typical.MEDIAN)),
    Place.NO_SECTION: _row(Cell(60, 3, Typical.MEDIAN), Cell(300, 1.5, Typical.LONGEST)),
    Place.AFTER_LAST: _row(Cell(600, 10, Typical.USUAL)),
    Place.EXIT: _row(Cell(1800)),
    Place.SILENCE: _row(Cell(60)),
    Place.CHECKPOINT_DUE: _row(Cell(1200, 2, Typical.USUAL)),
    Place.PRINTED_START: _row(Cell(None)),
    Place.PRINTED_RESTART: _row(Cell(3600)),
    Place.PRINTED_STEP: _row(Cell(1800, 1.5, Typical.LONGEST)),
    Place.PRINTED_AFTER_LAST: _row(Cell(14_400)),
}
"""Chosen on simulated runs (docs/explanation/benchmarks.md)."""

SETTING = {
    Place.START: "no_first_heartbeat.exec_s",
    Place.BOOT: "no_first_heartbeat.boot_s",
    Place.FIRST_STEP: "no_first_heartbeat.first_step_s",
    Place.EARLY_STEPS: "stall.early_s",
    Place.COMPUTE: "stall.halt_s",
    Place.CORROBORATED: "stall.corroborate_s",
    Place.DATA: "section_deadline.data.halt_s",
    Place.CHECKPOINT: "section_deadline.checkpoint.halt_s",
    Place.EVAL: "section_deadline.eval.halt_s",
    Place.LOG: "section_deadline.log.halt_s",
    Place.NO_SECTION: "section_deadline.out_of_section.halt_s",
    Place.AFTER_LAST: "section_deadline.checkpoint.halt_s",
    Place.EXIT: "section_deadline.eval.halt_s",
    Place.SILENCE: "alive_lost.halt_s",
    Place.PRINTED_STEP: "stall.halt_s",
}
"""Setting that replaces the seconds of a place."""


def patience_of(
    watch: Watch,
    kind: ProgramKind,
    *,
    from_profile: frozenset[str] = frozenset(),
    compiled: bool = False,
    nodes: int = 1,
    step_s: float | None = None,
) -> dict[Place, Patience]:
    """Return the table of a run; `from_profile` are paths in `watch`, `step_s` is at the floor."""
    table = {}
    for place, row in TABLE.items():
        cell, source = row[kind], Source.DEFAULT
        if place in SETTING:
            source = watch.source_of(SETTING[place], from_profile)
        seconds = cell.seconds
        if source is not Source.DEFAULT:
            seconds = setting_at(watch, SETTING[place])
        table[place] = Patience(seconds=seconds, multiple=cell.multiple, of=cell.of, source=source)
    return _with_suspicion(_adjusted(table, watch, kind, compiled, nodes, step_s), watch, kind)


def setting_at(watch: Watch, path: str) -> float:
    """Return the number of a setting at a dotted path."""
    node: object = watch
    for name in path.split("."):
        node = getattr(node, name)
    assert isinstance(node, int | float)
    return float(node)


def _adjusted(
    table: dict[Place, Patience],
    watch: Watch,
    kind: ProgramKind,
    compiled: bool,
    nodes: int,
    step_s: float | None,
) -> dict[Place, Patience]:
    """Return the table adjusted to nodes, compilation and floor."""
    default = Source.DEFAULT
    if kind is ProgramKind.OURS and nodes > 1 and table[Place.START].source is default:
        _change(table, Place.START, seconds=300.0)  # nodes start one by one
    if compiled and table[Place.FIRST_STEP].source is default:
        _change(table, Place.FIRST_STEP, seconds=1800.0)
    early = TABLE[Place.EARLY_STEPS][kind]
    seconds = (early.multiple or 0.0) * (step_s or 0.0)
    if (early.seconds or 0.0) < seconds:
        _change(table, Place.EARLY_STEPS, seconds=seconds, source=Source.PROFILE)
    _change(table, Place.COMPUTE, multiple=watch.stall.halt_x)
    if table[Place.PRINTED_STEP].source is not default:
        _change(table, Place.PRINTED_STEP, multiple=watch.stall.halt_x, of=Typical.MEDIAN)
    return table


def _change(table: dict[Place, Patience], place: Place, **update: object) -> None:
    table[place] = table[place].model_copy(update=update)


def _with_suspicion(
    table: dict[Place, Patience], watch: Watch, kind: ProgramKind
) -> dict[Place, Patience]:
    """Return the table with the times of evidence; stacks of users' programs are taken early."""
    sections, early = watch.section_deadline, table[Place.EARLY_STEPS]
    suspicions: dict[Place, tuple[float | None, float | None]] = {
        Place.START: (watch.no_first_heartbeat.exec_s, None),
        Place.EARLY_STEPS: ((early.seconds or 0.0) / 2, (early.multiple or 0.0) / 2),
        Place.COMPUTE: (watch.stall.suspect_s, watch.stall.suspect_x),
        Place.DATA: (sections.data.suspect_s, None),
        Place.CHECKPOINT: (sections.checkpoint.suspect_s, None),
        Place.EVAL: (sections.eval.suspect_s, None),
        Place.LOG: (sections.log.suspect_s, None),
        Place.NO_SECTION: (sections.out_of_section.suspect_s, None),
        Place.EXIT: (sections.checkpoint.halt_s, None),
        Place.SILENCE: (watch.alive_lost.suspect_s, None),
        Place.CHECKPOINT_DUE: (CHECKPOINT_LATE_S, 1.0),
        Place.PRINTED_STEP: (watch.stall.suspect_s, watch.stall.suspect_x),
    }
    if kind is not ProgramKind.OURS:
        suspicions |= {Place.BOOT: (BEGINS_LATE_S, None), Place.FIRST_STEP: (BEGINS_LATE_S, None)}
        early_s, early_x = table[Place.CORROBORATED].seconds, table[Place.CORROBORATED].multiple
        suspicions |= dict.fromkeys(_LOCKSTEP, (early_s, early_x))
    for place, (seconds, multiple) in suspicions.items():
        _change(table, place, suspect_s=seconds, suspect_multiple=multiple)
    return table


BEGINS_LATE_S = 300.0  # Evidence of a user's program without a first step is collected then.
_LOCKSTEP = (Place.EARLY_STEPS, Place.NO_SECTION, Place.LOG)  # Unchanged stacks show a hang there.
CHECKPOINT_LATE_S = 600.0  # A due checkpoint is reported as late then.


def bounded(table: Mapping[Place, Patience], seconds: float) -> dict[Place, Patience]:
    """Return the table with one limit for every place (`gonogo run --stall-s`).

    Silence and confirmed stalls keep shorter limits; a due checkpoint keeps its own.
    """
    found: dict[Place, Patience] = {}
    for place, row in table.items():
        if place is Place.CHECKPOINT_DUE:
            found[place] = row
            continue
        most_s = seconds
        if place in (Place.SILENCE, Place.CORROBORATED):
            most_s = min(seconds, row.seconds or seconds)
        suspect_s = None if row.suspect_s is None else min(row.suspect_s, seconds / 2)
        found[place] = Patience(seconds=most_s, source=Source.PLAN, suspect_s=suspect_s)
    return found
