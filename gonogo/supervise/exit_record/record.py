"""What does exit.json say? Built from requests, exit stamps and the ranks' last lines; stdlib only.

Who asked first names the cause; a trainer that nobody asked ended by itself: completed when every
rank left with 0 and had reached the last ordered step, else nonzero_exit (oom where its own words
say so; keeper_lost where its wrapper was killed, which takes it along). A program that is only
read, and left with 0, completed too: what it did and did not print nobody knows, and the gate
misses the steps. Every end says whose it is: the run, the attempt, the digest of the order, and how
much of watch.jsonl and of every heartbeat file stood written when the run ended, so that no other
run's file can stand in for it, and nothing can be added to it.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gonogo.supervise.end_request import EndRequest
from gonogo.supervise.exit_record.binding import build_binding
from gonogo.supervise.exit_record.cause import DISK_FULL, ENDED_BY_ITSELF, OOM, first_failed, why
from gonogo.supervise.exit_record.ended import Ended
from gonogo.supervise.exit_record.last_lines import error_of_cause


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
        request: what asked for the end first, if anything did.
        agent: how torchrun ended.
        ranks: how each rank ended.
        now: Unix seconds.
        left: what of the run could not be ended: pid, state and the kernel's function of each.
        oom_at: rank → Unix seconds at which the kernel of its host was seen to have killed for want
            of memory.
        unheld: ranks whose wrapper was gone before its program.
    """
    cause = first_failed(run_dir, ranks)
    killed_at = oom_at.get(cause) if oom_at and cause is not None else None
    reason, ended_by, text = why(run_dir, order, request, agent, ranks, cause, killed_at, unheld)
    seen = [ended for ended in ranks.values() if ended.is_known]
    shown = ranks[cause] if cause is not None else None
    if shown is None or not shown.is_known:
        shown = None if ranks and len(seen) == len(ranks) else agent
    code = shown.code if shown else 0
    return {
        "v": 1,
        "code": code,
        "signal": shown.signal if shown else None,
        "ended_at": now,
        "ended_by": ended_by,
        "reason": reason,
        "text": text,
        "agent": agent.document() if agent is not None else None,
        "ranks": {str(rank): ended.document() for rank, ended in sorted(ranks.items())},
        "error": error_of_cause(run_dir, order, ranks, cause)
        if reason in (ENDED_BY_ITSELF, OOM, DISK_FULL)
        else [],
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
