"""Build the record of a run from lines and small records in memory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from gonogo.contract.finding import Finding
from gonogo.contract.order import Order
from gonogo.contract.records import ExitRecord, Preflight, RankExit
from gonogo.judge.facts.record import RunRecord, with_lines, with_steps
from gonogo.watch.watch_record import WatchRecord


def build_run_record(
    order: Order | None,
    lines: Mapping[int, Iterable[bytes | str]],
    exit: ExitRecord | None = None,
    rank_exits: Mapping[int, RankExit] | None = None,
    preflight: Preflight | None = None,
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
        findings: every finding of the run.
        watch: what the recorded ticks amount to; None without a watcher.
    """
    if rank_exits is None and exit is not None:
        rank_exits = {int(rank): row for rank, row in exit.ranks.items()}
    record = RunRecord(
        order=order,
        ranks={},
        exit=exit,
        rank_exits=rank_exits or {},
        preflight=preflight,
        findings=tuple(sorted(findings, key=lambda row: (row.at, row.key))),
    )
    record = with_lines(record, lines)
    return with_steps(record, record.ranks, watch)
