"""What becomes of a run whose keeper is gone? Nothing of it goes on living, and its end is written.

Every process that carries the run's token is ended first and that is proved; then exit.json says
`keeper_lost` (infra), so that the run may resume. Whoever does this holds the run's keeper lock
meanwhile, so no keeper works on the directory.
"""

import logging
from functools import partial
from pathlib import Path

from gonogo.contract.errors import Corrupt
from gonogo.contract.order import Order
from gonogo.contract.outcome import Actor, OutcomeCode
from gonogo.contract.records import ExitRecord, RankExit
from gonogo.rundir import RunDir, load_record, save_json
from gonogo.supervise.exit_record import build_binding
from gonogo.supervise.keeper.kill import end_marked
from gonogo.supervise.weather import Reserve

_log = logging.getLogger(__name__)


def end_lost(run_dir: RunDir, order: Order, now: float) -> ExitRecord | None:
    """End what is left of a lost run and record it; None when something cannot be ended.

    Args:
        run_dir: its directory, which has no exit.json.
        order: its order.
        now: Unix seconds.
    """
    if not end_marked(order.run):
        _log.error("%s: processes outlive SIGKILL", order.run, extra={"action": "reap_failed"})
        return None
    launched = (run_dir.path / "keeper.json").exists()
    text = "the keeper was lost" if launched else "the worker was lost before the launch"
    reason = OutcomeCode.KEEPER_LOST
    record = build_infra_exit(run_dir, order, reason=reason, text=text, now=now)
    Reserve(run_dir.path).write(partial(save_json, run_dir.exit, record.wire()))
    Reserve(run_dir.path).free()  # the keeper held it for these very words
    _log.warning("%s: %s", order.run, text, extra={"action": "keeper_lost"})
    return record


def build_infra_exit(
    run_dir: RunDir, order: Order, *, reason: OutcomeCode, text: str, now: float
) -> ExitRecord:
    """Return the end of a run that infrastructure ended, with what its ranks left."""
    stamps = {
        str(rank): record
        for rank in range(order.world_size)
        if (record := _load_stamp(run_dir.rank_exit(rank))) is not None
    }
    return ExitRecord(
        ended_at=now,
        ended_by=Actor.INFRA,
        reason=reason,
        text=text,
        ranks=stamps,
        **build_binding(run_dir.path, order.document()),
    )


def _load_stamp(path: Path) -> RankExit | None:
    """Return how a rank ended, as far as its stamp can be read."""
    try:
        return load_record(path, RankExit)
    except Corrupt as error:
        _log.warning("unreadable stamp: %s", error, extra={"action": "record_corrupt"})
        return None
