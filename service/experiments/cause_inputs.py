"""Why did a run not end in GO? Its findings, its end and its logs, as the decision quotes them."""

from gonogo.contract.decision import Cause
from gonogo.contract.facts import Facts
from gonogo.contract.records import ExitRecord
from gonogo.judge.follow_up.explanation import TORCHRUN_LOG, describe_cause, last_line
from gonogo.judge.gate.verdict import Judgement
from gonogo.rundir import TAIL_BYTES
from service.db.schema import RunRow
from service.db.store import Session
from service.evidence.logs import load_log
from service.queries.findings import load_findings

_MOST_LINES = 100_000
"""No bound of its own: of the log's end that counts, however many ranks wrote into it."""


def load_cause(session: Session, run: RunRow, judgement: Judgement, facts: Facts) -> Cause | None:
    """Return why the verdict on an ended run is not GO; None for a GO."""
    exits = ExitRecord.model_validate(run.exit).ranks if run.exit else {}
    return describe_cause(
        judgement.verdict,
        load_findings(session, run.id),
        run.outcome,
        judgement.criteria,
        diagnosis=judgement.diagnosis,
        exits=exits,
        read_tail=lambda name: _load_tail(session, run.id, name),
        ranks_per_log=_ranks_per_log(run),
    )


def load_last_line(session: Session, run: RunRow, rank: int) -> tuple[str, str] | None:
    """Return the log that holds what a rank has written so far and its last line, if there is
    one."""
    own = f"rank{rank}.log"
    line = last_line(_load_end(session, run.id, rank))
    if line is None and (ranks := _ranks_per_log(run)):  # its ranks on a node write into one
        shared = rank - rank % ranks
        own, line = f"rank{shared}.log", last_line(_load_end(session, run.id, shared), rank)
    return None if line is None else (own, line)


def _ranks_per_log(run: RunRow) -> int:
    """Return how many ranks of a command write into one log; 0 without a command."""
    order = run.order or {}
    return int(order["world_size"]) // int(order.get("nodes") or 1) if order.get("command") else 0


def _load_tail(session: Session, run: str, name: str) -> str:
    rank = None if name == TORCHRUN_LOG else int(name.removeprefix("rank").removesuffix(".log"))
    return _load_end(session, run, rank)


def _load_end(session: Session, run: str, rank: int | None) -> str:
    """Return as much of a log's end as who judges the run's directory reads."""
    text = load_log(session, run, rank, _MOST_LINES, 0).text
    return text.encode()[-TAIL_BYTES:].decode(errors="replace")
