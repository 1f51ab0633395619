"""What does the watch of a run directory show? The same fold, over the files, in one pass.

With `watch.jsonl` the recorded ticks are folded with the bytes that each brought (`recorded`).
Without it the ranks' own clocks stand for receipt (`byclock`), and what needs probes is not
observed. Every line is read once and none is kept, so a run of a million lines fits in memory.
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
from gonogo.watch.fold import WatchState, armed
from gonogo.watch.packages import ERRORS
from gonogo.watch.recorded import fold_recorded
from gonogo.watch.registry import failure_of
from gonogo.watch.watch_record import WatchRecord

_UNLABELLED = "the lines name no section, so a hang has no place"


@dataclass(frozen=True, slots=True, kw_only=True)
class Refold:
    """A folded directory."""

    state: WatchState
    findings: list[Finding]
    not_observed: list[Doubt]
    watch: WatchRecord | None
    """What the recorded ticks show; None without watch.jsonl."""


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
    sink: Sink | None = None,
    read_exit: Callable[[], ExitRecord | None] | None = None,
) -> Refold:
    """Fold a whole run directory.

    Args:
        path: the run directory.
        order: instead of `order.json`.
        now: Unix seconds at which an unfinished run without `watch.jsonl` is looked at; None
            stops the clock at the last line.
        sink: receives every line that came for the first time.
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
    record = None
    if run_dir.watch.is_file():
        state, findings, record = fold_recorded(run_dir, order, exit_record, sink)
    else:
        ended_at = None if exit_record is None else exit_record.ended_at
        state, findings = fold_by_clock(run_dir, order, ended_at, now, sink)
    return Refold(state=state, findings=findings, not_observed=not_observed(state), watch=record)


def _exit_of(run_dir: RunDir) -> ExitRecord | None:
    """Return exit.json; None if it is missing or cannot be read, which others report."""
    try:
        return load_record(run_dir.exit, ExitRecord)
    except (Corrupt, OSError):
        return None


def not_observed(state: WatchState) -> list[Doubt]:
    """Return what this watch could not observe."""
    found = [
        Doubt(kind=DoubtKind.RANK_SILENT, rank=rank)
        for rank in range(state.run.order.world_size)
        if rank not in state.streams
    ]
    found += [
        Doubt(kind=DoubtKind.DETECTOR_BLIND, rank=rank, name="sections", found=_UNLABELLED)
        for rank, stream in sorted(state.streams.items())
        if not stream.labelled
    ]
    blind = dict(state.failed)
    ready = armed(state)
    if not ready.get(Detector.SLOW, True):
        blind[Detector.SLOW] = "no floor is ordered, and there were too few steps for a baseline"
    if not ready.get(Detector.NON_FINITE, True):
        blind[Detector.NON_FINITE] = "no line records a loss"
    if not state.view.watched:
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
