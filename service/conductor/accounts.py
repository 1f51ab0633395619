"""Accounts of where the time of runs went, updated a few runs a pass.

They are stored, so that pages and metrics read no old heartbeats. The runs of an experiment are
taken together: a later attempt shows what of an earlier one was kept.
"""

from typing import Any

from sqlalchemy import or_, select
from sqlalchemy.orm import Session

from gonogo.contract.canonical import wire_value
from gonogo.contract.lifecycle import RunState
from service.context import Context
from service.db.schema import AccountRow, RunRow
from service.views.goodput import RunAccount, columns_of, load_accounts

EVERY_S = 60.0
"""How old the account of a living run may become."""
AT_ONCE = 50
"""Runs that are due and taken together."""
LONGEST_S = 5.0
"""Runs of one pass; the others are next."""


class Accounts:
    """Takes the accounts of runs forward."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def run_once(self) -> None:
        """Take the accounts that are due, the oldest first, for a few seconds at most."""
        context = self._context
        until = context.mono() + LONGEST_S
        while self._take_some(context.now()) and context.mono() < until:
            if context.closing.is_set():
                return

    def _take_some(self, now: float) -> bool:
        """Take the oldest accounts; say whether there may be more."""
        store = self._context.store
        due = store.read(lambda session: find_due(session, now - EVERY_S))
        rows = store.read(
            lambda session: [
                row for name in dict.fromkeys(due) for row in _rows_of(session, name, now)
            ]
        )
        if rows:
            store.write(lambda session: _store(session, rows))
        return len(due) == AT_ONCE


def find_due(session: Session, before: float) -> list[str]:
    """Return experiments with a run whose account is open and older than a moment, oldest first.

    As many names as there are such runs, up to `AT_ONCE`.
    """
    query = (
        select(RunRow.experiment)
        .outerjoin(AccountRow, AccountRow.run == RunRow.id)
        .where(
            RunRow.state != RunState.QUEUED.value,
            or_(
                AccountRow.run.is_(None),
                AccountRow.closed.is_(False) & (AccountRow.at < before),
            ),
        )
        .order_by(AccountRow.at.nulls_first())
        .limit(AT_ONCE)
    )
    return list(session.scalars(query))


def _rows_of(session: Session, experiment: str, now: float) -> list[dict[str, Any]]:
    accounts = load_accounts(session, experiment, now)
    return [_row(found, now) for found in accounts if found.row.state != RunState.QUEUED]


def _row(found: RunAccount, now: float) -> dict[str, Any]:
    run, fold = found.row, found.fold
    return {
        "run": run.id,
        "rank": fold.rank,
        "bytes": fold.bytes,
        "told": wire_value(fold.told.model_dump(mode="json")) if fold.told is not None else {},
        "at": now,
        "closed": run.state == RunState.ENDED and run.judged,
        "devices": max(1, run.gpus or 1),
        **columns_of(found.seconds),
    }


def _store(session: Session, rows: list[dict[str, Any]]) -> None:
    for row in rows:
        session.merge(AccountRow(**row))
