"""What did a run leave behind, as release 0.1 read its directory?"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import Field

from gonogo.contract.errors import Corrupt
from gonogo.contract.wire import Recorded
from gonogo.ledger.v1.beats import Stream, read_stream
from gonogo.ledger.v1.rules import Order
from gonogo.rundir import RunDir, load_all_lines, load_record


class RankExit(Recorded):
    """exit_rank{N}.json."""

    code: int | None = None
    signal: int | None = None


class ExitRecord(Recorded):
    """exit.json."""

    code: int | None = None
    signal: int | None = None
    ended_by: str
    reason: str
    ranks: dict[str, RankExit] = Field(default_factory=dict)


class Check(Recorded):
    """One preflight check."""

    id: str
    outcome: str


class Preflight(Recorded):
    """preflight/preflight.json."""

    passed: bool
    checks: list[Check] = Field(default_factory=list)


class Finding(Recorded):
    """One line of findings.jsonl, or one finding of the watch."""

    detector: str
    severity: str
    rank: int | None = None
    section: str | None = None
    step: int | None = None
    value: float | None = None
    threshold: float | None = None
    source: str = "default"
    at: float
    key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """Everything that facts were made of."""

    order: Order | None
    streams: Mapping[int, Stream]
    exit: ExitRecord | None
    rank_exits: Mapping[int, RankExit]
    preflight: Preflight | None
    findings: tuple[Finding, ...]
    watched: bool


def load_run(path: Path) -> RunRecord:
    """Return the record of a run directory; without findings.jsonl the watch found nothing.

    Raises:
        Corrupt: a record is there and cannot be read.
    """
    run_dir = RunDir(path)
    lines = {rank: load_all_lines(run_dir.heartbeat(rank)) for rank in run_dir.ranks()}
    ended = load_record(run_dir.exit, ExitRecord)
    exits = {rank: load_record(run_dir.rank_exit(rank), RankExit) for rank in lines}
    rank_exits = {rank: row for rank, row in exits.items() if row is not None}
    if ended is not None and ended.ranks:
        rank_exits = _by_rank(ended.ranks)
    return RunRecord(
        order=load_record(run_dir.order, Order),
        streams={rank: read_stream(rank, lines[rank]) for rank in sorted(lines)},
        exit=ended,
        rank_exits=rank_exits,
        preflight=load_record(run_dir.preflight, Preflight),
        findings=in_order(load_findings(run_dir)),
        watched=not lines or run_dir.watch.exists() or run_dir.findings.exists(),
    )


def _by_rank(ranks: Mapping[str, RankExit]) -> dict[int, RankExit]:
    try:
        return {int(rank): row for rank, row in ranks.items()}
    except ValueError as error:
        raise Corrupt(f"exit.json: ranks: {error}") from error


def load_findings(run_dir: RunDir) -> list[Finding]:
    """Return the recorded findings; none where there is no findings.jsonl.

    Raises:
        Corrupt: a complete line of it is not a finding.
    """
    found = []
    for number, line in enumerate(load_all_lines(run_dir.findings), start=1):
        try:
            found.append(Finding.model_validate_json(line))
        except ValueError as error:
            raise Corrupt(f"findings.jsonl: line {number} is not a finding") from error
    return found


def in_order(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return the findings by time and key, each key once."""
    kept: dict[str, Finding] = {}
    for finding in findings:
        kept.setdefault(finding.key, finding)
    return tuple(sorted(kept.values(), key=lambda finding: (finding.at, finding.key)))
