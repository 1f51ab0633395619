"""What does a run directory's watch say? The same fold, over the files, in one pass.

With `watch.jsonl` the recorded ticks are folded with the very bytes that each brought, and nothing
else: live and offline findings are equal by construction. Where the files no longer give the lines
that the ticks saw in their order (lines doubled or moved), each tick gets its lines by `seq`. What
comes after the last tick is folded with its clock, and the record says that nobody watched it.

Without `watch.jsonl` the ranks' own clocks stand for receipt: monotonic, with one offset for each
boot, so that a wall clock that is set moves no deadline. What needs probes is UNKNOWN and said so.

Guarantees: every line is read once and none is kept, so a run of a million lines fits in memory.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from gonogo.contract.doubt import Doubt, DoubtKind
from gonogo.contract.errors import Corrupt, NotFound
from gonogo.contract.finding import Finding
from gonogo.contract.order import Order
from gonogo.contract.outcome import Detector
from gonogo.contract.records import ExitRecord
from gonogo.rundir import RunDir, load_record
from gonogo.timeline.timeline import Sink
from gonogo.watch.byclock import fold_by_clock
from gonogo.watch.fold import armed
from gonogo.watch.guests import failure_of
from gonogo.watch.packages import ERRORS
from gonogo.watch.recorded import WatchRecord, fold_recorded
from gonogo.watch.watch_state import WatchState


@dataclass(frozen=True, slots=True, kw_only=True)
class Refold:
    """A folded directory."""

    state: WatchState
    findings: list[Finding]
    not_observed: list[Doubt]
    watch: WatchRecord | None
    """What the recorded ticks amount to; None where there is no watch.jsonl."""


def replay_watch(
    path: Path, *, order: Order | None = None, now: float | None = None
) -> list[Finding]:
    """Return the findings of a run directory; see `refold`."""
    return refold(path, order=order, now=now).findings


def refold(
    path: Path,
    *,
    order: Order | None = None,
    now: float | None = None,
    make_sink: Callable[[], Sink] | None = None,
    read_exit: Callable[[], ExitRecord | None] | None = None,
) -> Refold:
    """Fold a whole run directory.

    Args:
        path: the run directory.
        order: instead of `order.json`.
        now: Unix seconds at which an unfinished run without `watch.jsonl` is looked at; None
            stops the clock at the last line.
        make_sink: returns what is given every line that came for the first time; called again
            where the pass has to begin anew, and then only the last one counts.
        read_exit: returns how the run ended, as whoever seals exit.json has read it; None reads
            that file.

    Raises:
        NotFound: there is no order.json and no order was given.
        Corrupt: order.json cannot be read.
    """
    run_dir = RunDir(path)
    order = order or load_record(run_dir.order, Order)
    if order is None:
        raise NotFound(f"{path}: no order.json, so nobody knows what was to be watched")
    exit_record = _exit_of(run_dir) if read_exit is None else read_exit()
    if run_dir.watch.is_file():
        state, findings, record = fold_recorded(run_dir, order, exit_record, make_sink)
        return Refold(
            state=state, findings=findings, not_observed=not_observed(state), watch=record
        )
    sink = make_sink() if make_sink is not None else None
    ended_at = None if exit_record is None else exit_record.ended_at
    state, findings = fold_by_clock(run_dir, order, ended_at, now, sink)
    return Refold(state=state, findings=findings, not_observed=not_observed(state), watch=None)


def _exit_of(run_dir: RunDir) -> ExitRecord | None:
    """Return exit.json; None where it is missing or cannot be read, which others name."""
    try:
        return load_record(run_dir.exit, ExitRecord)
    except (Corrupt, OSError):
        return None


def not_observed(state: WatchState) -> list[Doubt]:
    """Return what this watch could not see."""
    found = [
        Doubt(kind=DoubtKind.RANK_SILENT, rank=rank)
        for rank in range(state.run.order.world_size)
        if rank not in state.streams
    ]
    found += [
        Doubt(kind=DoubtKind.SECTIONS_MISSING, rank=rank)
        for rank, stream in sorted(state.streams.items())
        if not stream.labelled
    ]
    blind = dict(state.failed)
    ready = armed(state)
    if not ready.get(Detector.SLOW, True):
        blind[Detector.SLOW] = "no floor is ordered, and there were too few steps for a baseline"
    if not ready.get(Detector.NON_FINITE, True):
        blind[Detector.NON_FINITE] = "no line records a loss"
    if not state.watched:
        probing = "there is no watch.jsonl, so no process was observed"
        blind |= {row.name: probing for row in state.detectors if row.probes}
    for row in state.looking():
        try:
            text = row.missing(state.own[row.name], state.view)
        except ERRORS as error:
            text = failure_of(row.name, error)
        if text is not None:
            blind[row.name] = text
    return found + [
        Doubt(kind=DoubtKind.DETECTOR_BLIND, name=name, found=text) for name, text in blind.items()
    ]
