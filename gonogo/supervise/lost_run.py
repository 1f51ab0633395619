"""Ending a run whose keeper is gone: its processes are killed, and exit.json is written.

The reason is `keeper_lost` (infra), so the run may resume. A preemption, or a cause of the watchdog
that the run's own lines show, stays the reason. The caller holds the run's keeper lock.
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
from gonogo.supervise.durable import Reserve, load_json
from gonogo.supervise.end_request import EndRequest, asked_by
from gonogo.supervise.exit_record import build_binding
from gonogo.supervise.keeper.kill import UNKILLABLE_S, describe, end_processes
from gonogo.supervise.process_records import load_rank_record, process_of, recorded_ranks
from gonogo.supervise.processes import ProcessRef, boot_id

_UNENDED_NAME = ".unended"
"""Created when processes of the run first outlived SIGKILL."""

_log = logging.getLogger(__name__)


def end_lost(
    run_dir: RunDir, order: Order, now: float, *, proof: str | None = None
) -> ExitRecord | None:
    """End what is left of a lost run and record it; None while something outlives SIGKILL.

    After UNKILLABLE_S such processes are named in exit.json instead. `proof`: why nothing of it is
    left on other hosts, if it had any.
    """
    left = describe(end_processes(order.run, _recorded(run_dir.path)))
    if left and not _is_long_unended(run_dir.path, now):
        _log.error("%s: %s outlive SIGKILL", order.run, left, extra={"action": "reap_failed"})
        return None
    launched = (run_dir.path / "keeper.json").exists()
    who = "worker" if proof is None else "attempt"
    text = "the keeper was lost" if launched else f"the {who} was lost before the launch"
    text = text if proof is None else f"{text}: {proof}"
    reason, by = OutcomeCode.KEEPER_LOST, Actor.INFRA
    asked = asked_by(run_dir.path)
    if asked is not None and _stays_the_cause(asked):
        reason, by = OutcomeCode(asked.reason), Actor(asked.ended_by)
        text = f"{asked.text}; then {text}" if asked.text else text
    record = build_infra_exit(run_dir, order, reason=reason, by=by, text=text, now=now, left=left)
    reserve = Reserve(run_dir.path)
    reserve.write(partial(save_json, run_dir.exit, record.wire()))
    with suppress(OSError):
        reserve.free()
    _log.warning("%s: %s", order.run, text, extra={"action": "keeper_lost"})
    return record


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
    """Return exit.json of a run that infrastructure ended."""
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


def _stays_the_cause(asked: EndRequest) -> bool:
    """Return whether a request to end stays the cause although the keeper died.

    A scheduler kills what has not left in its grace time (Slurm: 30 s), the keeper included.
    """
    if asked.reason == OutcomeCode.PREEMPTED:
        return asked.ended_by == Actor.INFRA
    return asked.ended_by == Actor.WATCHDOG and asked.reason in SHOWN_BY_LINES


def _recorded(run_dir: Path) -> list[ProcessRef]:
    """Return the processes that the run's records name, if they are of this boot."""
    keeper = load_json(run_dir / "keeper.json") or {}
    if keeper.get("boot_id") != boot_id():
        return []
    records = (load_rank_record(run_dir, rank) for rank in recorded_ranks(run_dir))
    agent = process_of(keeper.get("agent"))
    ranks = [record.ref for record in records if record is not None]
    return ranks if agent is None else [*ranks, agent]


def _is_long_unended(run_dir: Path, now: float) -> bool:
    stamp = run_dir / _UNENDED_NAME
    if not stamp.exists():
        stamp.touch()
    return abs(now - stamp.stat().st_mtime) >= UNKILLABLE_S


def _load_stamp(path: Path) -> RankExit | None:
    try:
        return load_record(path, RankExit)
    except Corrupt as error:
        _log.warning("unreadable stamp: %s", error, extra={"action": "record_corrupt"})
        return None
