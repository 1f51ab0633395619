"""What did a run leave behind? One record, the same from its directory and from the database.

Heartbeats are canonical here: parsed, de-duplicated by (rank, boot, seq) with the first copy kept,
sorted by boot and seq. What could not be read is counted beside them and is never a fact, since
the database does not have it; a lost line shows as a gap in `seq`.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from gonogo.contract.errors import Corrupt
from gonogo.contract.finding import Finding
from gonogo.contract.heartbeat import Heartbeat, parse_heartbeat
from gonogo.contract.order import Order
from gonogo.contract.records import ExitRecord, ModelRecord, Preflight, RankExit
from gonogo.contract.rundir import RunDir, load_all_lines, load_record
from gonogo.judge.predecessor import is_predecessor, read_predecessor
from gonogo.judge.silence import has_arrived, watch_on
from gonogo.judge.watch import replay_run


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """One rank's heartbeats, canonical, and what was dropped on the way."""

    beats: tuple[Heartbeat, ...]
    duplicates: int = 0
    unreadable: int = 0

    def in_time(self) -> list[Heartbeat]:
        """Return the beats in the order in which they were said: boots by their first stamp."""
        began: dict[str, float] = {}
        for beat in self.beats:
            began[beat.boot] = min(beat.ts, began.get(beat.boot, beat.ts))
        return sorted(self.beats, key=lambda beat: (began[beat.boot], beat.boot, beat.seq))


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """Everything that facts are made of."""

    order: Order | None
    streams: Mapping[int, Stream]
    exit: ExitRecord | None = None
    rank_exits: Mapping[int, RankExit] = field(default_factory=dict)
    preflight: Preflight | None = None
    model: ModelRecord | None = None
    findings: tuple[Finding, ...] = ()
    watched: bool = True
    """Whether a watcher saw the run; without one, silence about findings proves nothing."""
    predecessor: bool = False
    """Whether the lines are the predecessor's, which show less."""
    not_observed: tuple[str, ...] = ()
    """What these files cannot show, one sentence each."""


def build_run_record(
    order: Order | None,
    lines: Mapping[int, Iterable[bytes | str]],
    exit: ExitRecord | None = None,
    rank_exits: Mapping[int, RankExit] | None = None,
    preflight: Preflight | None = None,
    model: ModelRecord | None = None,
    findings: Iterable[Finding] = (),
    *,
    watched: bool = True,
) -> RunRecord:
    """Return the record of a run from its lines and small records.

    Args:
        order: what was ordered.
        lines: rank → its heartbeat lines (raw, or their canonical JSON), in any order.
        exit: how the run ended; None while it has not, or when nobody wrote it down.
        rank_exits: rank → its exit; taken from `exit` where that has them.
        preflight: what was checked before the launch.
        model: identity as counted on the live model.
        findings: every recorded finding of the run.
        watched: whether a watcher saw the run.
    """
    if exit is not None and exit.ranks:
        rank_exits = {int(rank): row for rank, row in exit.ranks.items()}
    return RunRecord(
        order=order,
        streams={rank: read_stream(rank, lines[rank]) for rank in sorted(lines)},
        exit=exit,
        rank_exits=dict(rank_exits or {}),
        preflight=preflight,
        model=model,
        findings=in_order(findings),
        watched=watched,
    )


def read_stream(rank: int, lines: Iterable[bytes | str]) -> Stream:
    """Return the canonical heartbeats of one rank; what is not one of them is counted."""
    kept: dict[tuple[str, int], Heartbeat] = {}
    duplicates = unreadable = 0
    for line in lines:
        raw = line.encode(errors="replace") if isinstance(line, str) else line
        if not raw.strip():
            continue
        try:
            beat = parse_heartbeat(raw)
        except Corrupt:
            unreadable += 1
            continue
        if beat.rank != rank:
            unreadable += 1
        elif (beat.boot, beat.seq) in kept:
            duplicates += 1
        else:
            kept[beat.boot, beat.seq] = beat
    beats = tuple(kept[key] for key in sorted(kept))
    return Stream(beats=beats, duplicates=duplicates, unreadable=unreadable)


def in_order(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return the findings by time and key, each key once."""
    kept: dict[str, Finding] = {}
    for finding in findings:
        kept.setdefault(finding.key, finding)
    return tuple(sorted(kept.values(), key=lambda finding: (finding.at, finding.key)))


def load_run(path: Path, *, now: float | None = None, order: Order | None = None) -> RunRecord:
    """Return the record of a run directory.

    Recorded findings are taken where findings.jsonl is there; otherwise the watch is folded again.

    Args:
        path: the run directory.
        now: Unix seconds at which an unfinished run is looked at; None stops the clock at the
            last line.
        order: what was ordered, for a directory without order.json.

    Raises:
        Corrupt: a small record is there and cannot be read.
    """
    run_dir = RunDir(path)
    lines = {rank: load_all_lines(run_dir.heartbeat(rank)) for rank in run_dir.ranks()}
    order = load_record(run_dir.order, Order) or order
    exit_record = load_record(run_dir.exit, ExitRecord)
    if is_predecessor(lines.values()):
        return _load_predecessor(lines, order, exit_record, now)
    return build_run_record(
        order,
        lines,
        exit_record,
        _load_rank_exits(run_dir, lines),
        load_record(run_dir.preflight, Preflight),
        load_record(run_dir.model, ModelRecord),
        _findings_of(run_dir, order, now if exit_record is None else None),
        watched=not lines or run_dir.watch.exists() or run_dir.findings.exists(),
    )


def _findings_of(run_dir: RunDir, order: Order | None, now: float | None) -> list[Finding]:
    """Return the recorded findings (or those of the watch), and what the silence since says."""
    recorded = load_findings(run_dir)
    if order is None or (recorded is not None and now is None):
        return recorded or []
    watch = replay_run(run_dir.path, order=order, now=now)
    found = watch.findings if recorded is None else recorded
    if now is None or not run_dir.watch.exists() or has_arrived(watch.state, order.steps):
        return found
    return [*found, *watch_on(watch.state, now=now)]


def load_findings(run_dir: RunDir) -> list[Finding] | None:
    """Return the recorded findings, or None when there is no findings.jsonl.

    Raises:
        Corrupt: a complete line of it is not a finding.
    """
    if not run_dir.findings.exists():
        return None
    found = []
    for number, line in enumerate(load_all_lines(run_dir.findings), start=1):
        try:
            found.append(Finding.model_validate_json(line))
        except ValueError as error:
            raise Corrupt(f"findings.jsonl: line {number} is not a finding") from error
    return found


def _load_rank_exits(run_dir: RunDir, lines: Mapping[int, object]) -> dict[int, RankExit]:
    found = {rank: load_record(run_dir.rank_exit(rank), RankExit) for rank in lines}
    return {rank: row for rank, row in found.items() if row is not None}


def _load_predecessor(
    lines: Mapping[int, list[bytes]],
    order: Order | None,
    exit_record: ExitRecord | None,
    now: float | None,
) -> RunRecord:
    read = read_predecessor(lines, order, exit_record, now)
    streams = {
        rank: Stream(beats=beats, unreadable=read.unreadable.get(rank, 0))
        for rank, beats in read.beats.items()
    }
    return RunRecord(
        order=order,
        streams=streams,
        exit=exit_record,
        findings=in_order(read.findings),
        watched=False,
        predecessor=True,
        not_observed=read.not_observed,
    )
