"""What becomes of a run whose keeper is gone? Nothing of it goes on living, and its end is written.

Every process of the run is ended first, those that its records name and those that carry its token,
and that is proved (or, where something outlives SIGKILL for a minute, told); then exit.json says
`keeper_lost` (infra), so that the run may resume; or what it had been asked to end for, where that
is a preemption, or a cause of the watchdog's that the run's own lines show. Whoever does this holds
the run's keeper lock meanwhile, so no keeper works on the directory.
"""

import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from gonogo.contract.errors import Corrupt
from gonogo.contract.order import Order
from gonogo.contract.outcome import SHOWN_BY_LINES, Actor, OutcomeCode
from gonogo.contract.records import ExitRecord, RankExit, Unended
from gonogo.rundir import RunDir, load_record, save_json
from gonogo.supervise.durable import load_json
from gonogo.supervise.end_request import EndRequest, asked_by
from gonogo.supervise.exit_record import build_binding
from gonogo.supervise.keeper.kill import UNKILLABLE_S, describe, end_marked
from gonogo.supervise.keeper.log_cap import LogCap
from gonogo.supervise.processes import ProcessRef, boot_id
from gonogo.supervise.rank_record import load_rank_record, recorded_ranks
from gonogo.supervise.weather import Reserve

_UNENDED_NAME = ".unended"
"""Since when processes of the run outlive SIGKILL."""

_log = logging.getLogger(__name__)


def end_lost(
    run_dir: RunDir, order: Order, now: float, *, proof: str | None = None
) -> ExitRecord | None:
    """End what is left of a lost run and record it; None when something cannot be ended.

    Args:
        run_dir: its directory, which has no exit.json.
        order: its order.
        now: Unix seconds.
        proof: why nothing of it is left on other hosts, where it had any.
    """
    left = describe(end_marked(order.run, run_dir.path, _known(run_dir.path)))
    if left and not _is_long_unended(run_dir.path, now):
        _log.error("%s: %s outlive SIGKILL", order.run, left, extra={"action": "reap_failed"})
        return None
    launched = (run_dir.path / "keeper.json").exists()
    who = "worker" if proof is None else "attempt"
    text = "the keeper was lost" if launched else f"the {who} was lost before the launch"
    text = text if proof is None else f"{text}: {proof}"
    reason, by = OutcomeCode.KEEPER_LOST, Actor.INFRA
    asked = asked_by(run_dir.path)
    if asked is not None and _outlives_its_keeper(asked):
        reason, by = OutcomeCode(asked.reason), Actor(asked.ended_by)
        text = f"{asked.text}; then {text}" if asked.text else text
    record = build_infra_exit(run_dir, order, reason=reason, by=by, text=text, now=now, left=left)
    Reserve(run_dir.path).write(partial(save_json, run_dir.exit, record.wire()))
    Reserve(run_dir.path).free()  # the keeper held it for these very words
    with suppress(OSError):
        LogCap(run_dir.path).free_room()
    _log.warning("%s: %s", order.run, text, extra={"action": "keeper_lost"})
    return record


def _outlives_its_keeper(asked: EndRequest) -> bool:
    """Say whether a request to end stays the cause where nobody lived to write the end.

    A preemption does: what has not left in the time that a scheduler gives (Slurm: 30 s) is killed,
    its keeper with it, and that is no fault of the host's which counts as a retry.
    """
    if asked.reason == OutcomeCode.PREEMPTED:
        return asked.ended_by == Actor.INFRA
    return asked.ended_by == Actor.WATCHDOG and asked.reason in SHOWN_BY_LINES


def _known(run_dir: Path) -> list[ProcessRef]:
    """Return the processes of the run that its records name, where they are of this boot."""
    keeper = load_json(run_dir / "keeper.json") or {}
    if keeper.get("boot_id") != boot_id():
        return []
    records = (load_rank_record(run_dir, rank) for rank in recorded_ranks(run_dir))
    known = [record.ref for record in records if record is not None]
    agent = keeper.get("agent")
    said = agent if isinstance(agent, dict) else {}
    pid, start_ticks = said.get("pid"), said.get("start_ticks")
    if isinstance(pid, int) and isinstance(start_ticks, int):
        known.append(ProcessRef(pid=pid, start_ticks=start_ticks))
    return known


def _is_long_unended(run_dir: Path, now: float) -> bool:
    """Say whether processes of the run have outlived SIGKILL for UNKILLABLE_S."""
    stamp = run_dir / _UNENDED_NAME
    if not stamp.exists():
        stamp.touch()
    return abs(now - stamp.stat().st_mtime) >= UNKILLABLE_S


def build_infra_exit(
    run_dir: RunDir,
    order: Order,
    *,
    reason: OutcomeCode,
    text: str,
    now: float,
    by: Actor = Actor.INFRA,
    left: Sequence[Mapping[str, Any]] = (),
) -> ExitRecord:
    """Return the end of a run that infrastructure ended, with what its ranks left.

    Args:
        run_dir: its directory.
        order: its order.
        reason: why it ended.
        text: the same in a sentence.
        now: Unix seconds.
        by: who had asked it to end before that.
        left: processes that could not be ended.
    """
    stamps = {
        str(rank): record
        for rank in range(order.world_size)
        if (record := _load_stamp(run_dir.rank_exit(rank))) is not None
    }
    return ExitRecord(
        ended_at=now,
        ended_by=by,
        reason=reason,
        text=text,
        ranks=stamps,
        left=[Unended.model_validate(row) for row in left],
        **build_binding(run_dir.path, order.document()),
    )


def _load_stamp(path: Path) -> RankExit | None:
    """Return how a rank ended, as far as its stamp can be read."""
    try:
        return load_record(path, RankExit)
    except Corrupt as error:
        _log.warning("unreadable stamp: %s", error, extra={"action": "record_corrupt"})
        return None
