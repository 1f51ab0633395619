"""exit.json, built from requests, exit stamps and the ranks' last lines. Standard library only.

exit.json is bound to its run, attempt and order, and seals watch.jsonl, findings.jsonl and the
heartbeat files as they stood at the end (`seals`).
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gonogo.supervise.end_request import EndRequest
from gonogo.supervise.exit_record.end_cause import (
    DISK_FULL,
    ENDED_BY_ITSELF,
    OOM,
    End,
    find_cause,
    first_failed,
)
from gonogo.supervise.exit_record.last_lines import Ended, error_of_cause
from gonogo.supervise.exit_record.seals import build_binding


def build_exit(
    *,
    run_dir: Path,
    order: Mapping[str, Any],
    request: EndRequest | None,
    agent: Ended | None,
    ranks: Mapping[int, Ended],
    now: float,
    left: Sequence[Mapping[str, Any]] = (),
    oom_at: Mapping[int, float] | None = None,
    unheld: frozenset[int] = frozenset(),
) -> dict[str, Any]:
    """Return exit.json.

    Args:
        run_dir: where the ranks' last lines are.
        order: the order as data.
        request: the first request to end, if there was one.
        agent: how torchrun, or the command, ended.
        ranks: how each rank ended.
        now: Unix seconds.
        left: processes that could not be ended: pid, state and the kernel's function of each.
        oom_at: rank → Unix seconds at which its host's kernel killed for want of memory.
        unheld: ranks whose wrapper was killed before its program.
    """
    first = first_failed(run_dir, ranks)
    end = End(
        run_dir=run_dir,
        order=order,
        request=request,
        agent=agent,
        ranks=ranks,
        first=first,
        oom_at=oom_at.get(first) if oom_at and first is not None else None,
        unheld=unheld,
    )
    reason, ended_by, text = find_cause(end)
    shown = ranks[first] if first is not None else None
    if shown is None or not shown.is_known:
        all_known = bool(ranks) and all(ended.is_known for ended in ranks.values())
        shown = None if all_known else agent
    with_error = reason in (ENDED_BY_ITSELF, OOM, DISK_FULL)
    return {
        "v": 1,
        "code": shown.code if shown else 0,
        "signal": shown.signal if shown else None,
        "ended_at": now,
        "ended_by": ended_by,
        "reason": reason,
        "text": text,
        "agent": agent.document() if agent is not None else None,
        "ranks": {str(rank): ended.document() for rank, ended in sorted(ranks.items())},
        "error": error_of_cause(run_dir, order, ranks, first) if with_error else [],
        **({"left": list(left)} if left else {}),
        **build_binding(run_dir, order),
    }


def build_refusal(
    reason: str, ended_by: str, text: str, *, run_dir: Path, order: Mapping[str, Any], now: float
) -> dict[str, Any]:
    """Return exit.json of a run that was not started.

    Args:
        reason: an outcome code.
        ended_by: an actor.
        text: why, in a sentence.
        run_dir: the run's directory.
        order: the order as data.
        now: Unix seconds.
    """
    return {
        "v": 1,
        "code": None,
        "signal": None,
        "ended_at": now,
        "ended_by": ended_by,
        "reason": reason,
        "text": text,
        "agent": None,
        "ranks": {},
        **build_binding(run_dir, order),
    }
