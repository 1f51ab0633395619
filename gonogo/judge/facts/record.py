"""What a run left behind: one record, made in one pass over its directory.

No line is kept: each goes through the fold once, and from there into the steps of its rank. A small
record that exists and cannot be read is named in `unreadable`, and never ends the judging: what it
would have shown is missing, and missing evidence never passes.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from os.path import lexists
from pathlib import Path
from tempfile import TemporaryDirectory

from gonogo.contract.canonical import canonical_bytes
from gonogo.contract.errors import Corrupt
from gonogo.contract.facts import ProcessExit
from gonogo.contract.finding import Doubt, Finding
from gonogo.contract.order import Order
from gonogo.contract.records import ExitRecord, FileSeal, ModelRecord, NodeExit, Preflight, RankExit
from gonogo.judge.facts.devices import lay_over
from gonogo.judge.facts.files import (
    SEALED,
    RunFiles,
    compare_findings,
    load_parts,
    read_devices,
)
from gonogo.rundir import RunDir, check_not_pruned, iter_lines, preflight_name
from gonogo.timeline.lines import LineRecord
from gonogo.timeline.predecessor import convert_directory, is_predecessor
from gonogo.timeline.rank_steps import RankSteps, read_lines, share_pauses
from gonogo.watch import refold
from gonogo.watch.watch_record import WatchRecord

MARKS = (".HALT", ".kill")
"""Files by which somebody asked the run to end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """Everything that facts are made of."""

    order: Order | None
    ranks: Mapping[int, RankSteps]
    lines: Mapping[int, LineRecord] = field(default_factory=dict)
    """Rank → its lines as such: count, digests and conflicts."""
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
    predecessor: bool = False
    """Whether the lines are the predecessor's, which show less."""
    unreadable: tuple[Doubt, ...] = ()
    unreadable_lines: Mapping[int, int] = field(default_factory=dict)
    not_observed: tuple[Doubt, ...] = ()
    """What these files cannot show."""


def load_run(path: Path, *, now: float | None = None, order: Order | None = None) -> RunRecord:
    """Return the record of a run directory, ours or the predecessor's.

    Args:
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
    run_dir, files = RunDir(path), RunFiles(path)
    order = load_order(run_dir, files) or order
    ranks = [rank for rank in run_dir.ranks() if files.is_readable(run_dir.heartbeat(rank).name)]
    if is_predecessor(iter_lines(run_dir.heartbeat(rank)) for rank in ranks):
        return _load_predecessor(run_dir, ranks, order, now)
    owed = range(order.world_size) if order is not None else ()
    ending = {rank: f"exit_rank{rank}.json" for rank in sorted({*ranks, *owed})}
    exits = {rank: files.record(name, RankExit) for rank, name in ending.items()}
    ended = files.record("exit.json", ExitRecord)
    files.record("model.json", ModelRecord)  # a torn one is named
    record = RunRecord(
        order=order,
        ranks={},
        exit=ended,
        rank_exits={rank: row for rank, row in exits.items() if row is not None},
        preflight=files.record(preflight_name(0), Preflight),
    )
    folded: list[Finding] = []
    if order is None:
        record = with_lines(record, {rank: iter_lines(run_dir.heartbeat(rank)) for rank in ranks})
    else:
        files.is_readable("watch.jsonl")
        record, folded = _fold_run(run_dir, ranks, order, record, now)
    findings, differences = compare_findings(folded, files.rows("findings.jsonl", Finding))
    watch, watch_sealed = record.watch, None
    if ended is not None:
        files.check_seal("findings.jsonl", ended.findings)
        watch_sealed = (
            None if ended.watch is None else files.begins_with("watch.jsonl", ended.watch)
        )
    watched = {} if watch is None else watch.files
    others = {node: preflight_name(node) for node in range(1, 1 if order is None else order.nodes)}
    checked = {node: name for node, name in others.items() if name in watched}
    preflights = {node: files.record(name, Preflight) for node, name in checked.items()}
    devices, gone = read_devices(files, b"" if watch is None else bytes(watch.devices))
    return replace(
        record,
        findings=findings,
        unrecorded=differences,
        preflights={node: row for node, row in preflights.items() if row is not None},
        parts=load_parts(files, ended),
        watch_sealed=watch_sealed,
        files=files.seals([*SEALED, *ending.values(), *checked.values()]),
        devices=devices,
        devices_gone=gone,
        marks=tuple(name for name in MARKS if lexists(path / name)),
        strays=tuple(rank for rank in run_dir.ended_ranks() if rank not in ranks),
        unreadable=tuple({row.model_dump_json(): row for row in files.unreadable}.values()),
    )


def _load_predecessor(
    run_dir: RunDir, ranks: Iterable[int], order: Order | None, now: float | None
) -> RunRecord:
    """Return the record of the predecessor's lines, which show less; see `predecessor`."""
    tokens = order.identity.tokens_per_step if order is not None else None
    with TemporaryDirectory() as folder:
        convert_directory(run_dir, ranks, Path(folder), tokens)
        record = _load_run(Path(folder), now, order)
    return replace(record, predecessor=True, unrecorded=())


def load_order(run_dir: RunDir, files: RunFiles | None = None) -> Order | None:
    """Return the order of a run directory, or None when there is none.

    Args:
        files: its files, none read before, where more than the order is read of them.

    Raises:
        Corrupt: it is there and cannot be read, or it is no order.
    """
    files = files or RunFiles(run_dir.path)
    order = files.record("order.json", Order)
    if order is not None:
        canonical_bytes(order.document())
    for doubt in files.unreadable:
        raise Corrupt(f"{doubt.name}: {doubt.found}")
    return order


def _fold_run(
    run_dir: RunDir, ranks: Iterable[int], order: Order, record: RunRecord, now: float | None
) -> tuple[RunRecord, list[Finding]]:
    """Return the record with what one pass over ticks and lines shows, and the findings."""
    steps = {rank: RankSteps() for rank in ranks}
    folded = refold(
        run_dir.path,
        order=order,
        now=now,
        sink=lambda rank, beat, arrival: steps[rank].take(beat),
        read_exit=lambda: record.exit,
    )
    state, watch = folded.state, folded.watch
    heard = watch.heard if watch is not None else {}
    for rank, row in steps.items():
        row.order_by(heard[rank].boots if rank in heard else ())
    record = replace(
        record,
        lines=dict(sorted(state.view.lines.items())),
        probed=watch.probes if watch is not None else {},
        unreadable_lines={rank: row.count for rank, row in state.view.unreadable.items()},
        not_observed=tuple(folded.not_observed),
    )
    return with_steps(record, steps, watch), folded.findings


def with_lines(record: RunRecord, lines: Mapping[int, Iterable[bytes | str]]) -> RunRecord:
    """Return the record with lines that are read without a fold.

    Args:
        record: without lines.
        lines: rank → its heartbeat lines (raw, or their canonical JSON), in any order.
    """
    read = {rank: read_lines(rank, lines[rank]) for rank in sorted(lines)}
    record = replace(
        record,
        lines={rank: row.record for rank, row in read.items()},
        unreadable_lines={rank: row.unreadable for rank, row in read.items() if row.unreadable},
    )
    return with_steps(record, {rank: row.steps for rank, row in read.items()}, None)


def with_steps(
    record: RunRecord, steps: Mapping[int, RankSteps], watch: WatchRecord | None
) -> RunRecord:
    """Return the record with the steps of each rank, and what the ticks amount to."""
    share_pauses(steps)
    if watch is not None:
        lay_over(steps, watch.device_rows, record.order)
    return replace(record, ranks=steps, watch=watch)
