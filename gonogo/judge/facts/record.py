"""What did a run leave behind? One record, made in one pass over its directory.

No line is kept: each goes through the fold once, and from there into the steps of its rank. Small
records are read one by one; one that is there and cannot be read is named in `unreadable`, and
never ends the judging: what it would have shown is missing, and missing evidence never passes.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from os.path import lexists
from pathlib import Path

from gonogo.contract.canonical import canonical_bytes, wire_line
from gonogo.contract.doubt import Doubt
from gonogo.contract.errors import Corrupt
from gonogo.contract.facts import ProcessExit
from gonogo.contract.finding import Finding
from gonogo.contract.heartbeat import Heartbeat
from gonogo.contract.node import NodeExit
from gonogo.contract.order import Order
from gonogo.contract.records import ExitRecord, ModelRecord, Preflight, RankExit
from gonogo.contract.tick import FileSeal
from gonogo.judge.facts.devices import lay_over
from gonogo.judge.facts.files import (
    SmallFiles,
    check_findings_seal,
    find_kept,
    read_devices,
    unreadable_doubt,
    unreadable_text,
    watch_seal_holds,
)
from gonogo.judge.facts.findings import by_time, compare_findings
from gonogo.judge.facts.lines import RankLines, read_lines
from gonogo.judge.facts.nodes import load_parts, load_preflights
from gonogo.judge.facts.predecessor import is_predecessor, read_predecessor
from gonogo.judge.facts.steps import RankSteps, build_rank_steps, share_apart
from gonogo.pruned import check_not_pruned
from gonogo.rundir import RunDir, check_whole, iter_lines, preflight_name
from gonogo.timeline.lines import Arrival
from gonogo.watch import has_arrived, refold, watch_on
from gonogo.watch.recorded import BootRecord, boots_of
from gonogo.watch.watch_record import WatchRecord

MARKS = (".HALT", ".kill")
"""Files by which somebody asked the run to end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """Everything that facts are made of."""

    order: Order | None
    ranks: Mapping[int, RankSteps]
    lines: Mapping[int, Mapping[str, BootRecord]] = field(default_factory=dict)
    """Rank → boot → count and digest of its lines."""
    conflicts: Mapping[int, int] = field(default_factory=dict)
    """Rank → lines that differ from another one of the same boot and seq."""
    exit: ExitRecord | None = None
    rank_exits: Mapping[int, RankExit] = field(default_factory=dict)
    """Rank → its own exit record."""
    probed: Mapping[int, ProcessExit] = field(default_factory=dict)
    """Rank → how a tick saw it end."""
    parts: Mapping[int, NodeExit] = field(default_factory=dict)
    """Node → how its part ended, where exit.json seals it."""
    preflight: Preflight | None = None
    preflights: Mapping[int, Preflight] = field(default_factory=dict)
    """Node behind the first → what was checked there, of those whose record a tick seals."""
    model: ModelRecord | None = None
    findings: tuple[Finding, ...] = ()
    """Those of the fold, and halts that only the file knows."""
    unrecorded: tuple[Doubt, ...] = ()
    watch: WatchRecord | None = None
    watch_sealed: bool | None = None
    """Whether watch.jsonl begins as exit.json says; None where exit.json does not say."""
    files: Mapping[str, FileSeal] = field(default_factory=dict)
    devices: str | None = None
    devices_gone: int = 0
    """Device samples that ticks carry and devices.jsonl does not hold."""
    marks: tuple[str, ...] = ()
    strays: tuple[int, ...] = ()
    """Ranks without a line whose exit is recorded."""
    kept: frozenset[int] = frozenset()
    """Ranks that were never ordered whose heartbeat file is the one that exit.json seals."""
    predecessor: bool = False
    """Whether the lines are the predecessor's, which show less."""
    unreadable: tuple[Doubt, ...] = ()
    unreadable_lines: Mapping[int, int] = field(default_factory=dict)
    not_observed: tuple[Doubt, ...] = ()
    """What these files cannot show."""


class _Steps:
    """Takes the lines of one pass."""

    def __init__(self, ranks: Iterable[int]) -> None:
        self.ranks = {rank: RankSteps() for rank in ranks}

    def __call__(self, rank: int, beat: Heartbeat, arrival: Arrival) -> None:
        self.ranks[rank].take(beat)


def load_run(path: Path, *, now: float | None = None, order: Order | None = None) -> RunRecord:
    """Return the record of a run directory, ours or the predecessor's.

    Args:
        path: the run directory.
        now: Unix seconds at which an unfinished run is looked at; None stops the clock at the
            last line.
        order: what was ordered, for a directory without order.json.

    Raises:
        Corrupt: order.json is there and cannot be read: nobody knows what was ordered.
        NotFound: it was pruned, or was while it was read.
    """
    check_not_pruned(path)
    try:
        return _load_run(path, now, order)
    finally:  # the record of it stands before anything goes
        check_not_pruned(path)


def _load_run(path: Path, now: float | None, order: Order | None) -> RunRecord:
    run_dir = RunDir(path)
    files = SmallFiles(run_dir)
    order = load_order(run_dir, files) or order
    unreadable: list[Doubt] = []
    ranks = [rank for rank in run_dir.ranks() if _is_file(run_dir.heartbeat(rank), unreadable)]
    exit_record = files.try_record(run_dir.exit, ExitRecord, unreadable)
    if is_predecessor(iter_lines(run_dir.heartbeat(rank)) for rank in ranks):
        return _load_predecessor(run_dir, ranks, order, exit_record, now, unreadable)
    owed = range(order.world_size) if order is not None else ()
    ending = sorted({*ranks, *owed})  # who was never heard may have left an exit, too
    small = _Small(
        exit=exit_record,
        rank_exits=_present(
            {
                rank: files.try_record(run_dir.rank_exit(rank), RankExit, unreadable)
                for rank in ending
            }
        ),
        preflight=files.try_record(run_dir.preflight, Preflight, unreadable),
        model=files.try_record(run_dir.model, ModelRecord, unreadable),
    )
    if order is None:
        lines = {rank: read_lines(rank, iter_lines(run_dir.heartbeat(rank))) for rank in ranks}
        record = _of_lines(None, lines, small)
        compared = compare_findings(run_dir, (), unreadable)
    else:
        _is_file(run_dir.watch, unreadable)
        record, folded = _fold_run(run_dir, ranks, order, small, now)
        compared = compare_findings(run_dir, folded, unreadable)
    check_findings_seal(run_dir, exit_record, compared.lines, unreadable)
    told = bytes(record.watch.devices) if record.watch is not None else b""
    read = record.watch.read if record.watch is not None else None
    watched = record.watch.files if record.watch is not None else {}
    others = range(1, order.nodes) if order is not None else ()
    # no release before this sealed those of other nodes, or sent them to the control plane
    checked = [node for node in others if preflight_name(node) in watched]
    devices = read_devices(run_dir, told, unreadable)
    return replace(
        record,
        findings=compared.findings,
        unrecorded=compared.differences,
        preflights=load_preflights(run_dir, files, checked, unreadable),
        parts=load_parts(run_dir, files, exit_record, unreadable),
        watch_sealed=watch_seal_holds(run_dir, exit_record, read),
        files=files.seals(ending, unreadable, more=map(preflight_name, checked)),
        devices=devices.digest,
        devices_gone=devices.gone,
        marks=tuple(name for name in MARKS if lexists(path / name)),
        strays=tuple(rank for rank in run_dir.ended_ranks() if rank not in ranks),
        kept=find_kept(run_dir, exit_record, range(order.world_size) if order is not None else ()),
        unreadable=_distinct(unreadable),
    )


def load_order(run_dir: RunDir, files: SmallFiles | None = None) -> Order | None:
    """Return the order of a run directory, or None when there is none.

    Args:
        run_dir: the run's directory.
        files: its small files, where more than the order is read of them.

    Raises:
        Corrupt: it is there and cannot be read, or it is no order.
    """
    files = files or SmallFiles(run_dir)
    try:
        order = files.record(run_dir.order, Order)
        if order is not None:
            canonical_bytes(order.document())
    except OSError as error:
        raise Corrupt(unreadable_text("order.json", error)) from error
    return order


@dataclass(frozen=True, slots=True, kw_only=True)
class _Small:
    """The small records."""

    exit: ExitRecord | None = None
    rank_exits: Mapping[int, RankExit] = field(default_factory=dict)
    preflight: Preflight | None = None
    model: ModelRecord | None = None


def _is_file(path: Path, unreadable: list[Doubt]) -> bool:
    """Say whether a growing file can be opened; one that cannot be read to its end is named."""
    if not lexists(path):
        return False
    try:
        check_whole(path)
    except OSError as error:
        unreadable.append(unreadable_doubt(path.name, error))
        return False
    return True


def _distinct(doubts: Iterable[Doubt]) -> tuple[Doubt, ...]:
    return tuple({doubt.model_dump_json(): doubt for doubt in doubts}.values())


def _present(rows: Mapping[int, RankExit | None]) -> dict[int, RankExit]:
    return {rank: row for rank, row in rows.items() if row is not None}


def _fold_run(
    run_dir: RunDir,
    ranks: Iterable[int],
    order: Order,
    small: _Small,
    now: float | None,
) -> tuple[RunRecord, list[Finding]]:
    """Return what one pass over ticks and lines comes to, and its findings."""
    sink = _Steps(ranks)
    open_end = None if small.exit is not None else now
    folded = refold(
        run_dir.path, order=order, now=open_end, sink=sink, read_exit=lambda: small.exit
    )
    state, findings = folded.state, list(folded.findings)
    if open_end is not None and folded.watch is not None and not has_arrived(state):
        findings += watch_on(state, now=open_end)
    steps = sink.ranks
    named = folded.watch.boots if folded.watch is not None else {}
    for rank, row in steps.items():
        row.order_by(named.get(rank, ()))
    share_apart(steps)
    if folded.watch is not None:
        lay_over(steps, folded.watch.device_rows, order)
    record = RunRecord(
        order=order,
        ranks=steps,
        lines=boots_of(state),
        conflicts={rank: row.conflicts for rank, row in state.view.lines.items()},
        exit=small.exit,
        rank_exits=small.rank_exits,
        probed=folded.watch.probes if folded.watch is not None else {},
        preflight=small.preflight,
        model=small.model,
        watch=folded.watch,
        unreadable_lines={rank: row.count for rank, row in state.view.unreadable.items()},
        not_observed=tuple(folded.not_observed),
    )
    return record, findings


def build_run_record(
    order: Order | None,
    lines: Mapping[int, Iterable[bytes | str]],
    exit: ExitRecord | None = None,
    rank_exits: Mapping[int, RankExit] | None = None,
    preflight: Preflight | None = None,
    model: ModelRecord | None = None,
    findings: Iterable[Finding] = (),
    watch: WatchRecord | None = None,
) -> RunRecord:
    """Return the record of a run from lines and small records in memory; nothing is folded.

    Args:
        order: what was ordered.
        lines: rank → its heartbeat lines (raw, or their canonical JSON), in any order.
        exit: how the run ended; None while it has not, or when nobody wrote it down.
        rank_exits: rank → its own exit record; those of `exit` when None.
        preflight: what was checked before the launch.
        model: identity as counted on the live model.
        findings: every finding of the run.
        watch: what the recorded ticks amount to; None where nobody watched.
    """
    if rank_exits is None and exit is not None:
        rank_exits = {int(rank): row for rank, row in exit.ranks.items()}
    small = _Small(exit=exit, rank_exits=rank_exits or {}, preflight=preflight, model=model)
    read = {rank: read_lines(rank, lines[rank]) for rank in sorted(lines)}
    record = _of_lines(order, read, small)
    share_apart(record.ranks)
    if watch is not None:
        lay_over(record.ranks, watch.device_rows, order)
    return replace(record, findings=by_time(findings), watch=watch)


def _of_lines(order: Order | None, lines: Mapping[int, RankLines], small: _Small) -> RunRecord:
    return RunRecord(
        order=order,
        ranks={rank: row.steps for rank, row in lines.items()},
        lines={rank: row.boots for rank, row in lines.items()},
        conflicts={rank: row.conflicts for rank, row in lines.items()},
        exit=small.exit,
        rank_exits=small.rank_exits,
        preflight=small.preflight,
        model=small.model,
        unreadable_lines={rank: row.unreadable for rank, row in lines.items() if row.unreadable},
    )


def _load_predecessor(
    run_dir: RunDir,
    ranks: Iterable[int],
    order: Order | None,
    exit_record: ExitRecord | None,
    now: float | None,
    unreadable: list[Doubt],
) -> RunRecord:
    lines = {rank: list(iter_lines(run_dir.heartbeat(rank))) for rank in ranks}
    read = read_predecessor(lines, order, exit_record, now)
    ranks_steps = {rank: build_rank_steps(beats) for rank, beats in read.beats.items()}
    for rank, spacing in read.spacings.items():
        ranks_steps[rank].spacing = spacing
    return RunRecord(
        order=order,
        ranks=ranks_steps,
        lines={
            rank: read_lines(rank, (wire_line(beat.wire()) for beat in beats)).boots
            for rank, beats in read.beats.items()
        },
        exit=exit_record,
        findings=by_time(read.findings),
        predecessor=True,
        unreadable=tuple(unreadable),
        unreadable_lines={rank: count for rank, count in read.unreadable.items() if count},
        not_observed=read.not_observed,
    )
