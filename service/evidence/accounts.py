"""The time that a rank reported: the stored fold, and the lines that came since."""

from dataclasses import dataclass

from sqlalchemy.orm import Session

from gonogo.goodput.rank_account import RankAccount, add_line
from service.db.schema import AccountRow
from service.evidence.heartbeats import beat_on, load_lines_after, load_ranks


@dataclass(frozen=True, slots=True, kw_only=True)
class Fold:
    """A fold over the lines of one rank."""

    rank: int | None
    """None: no rank has reported anything."""
    bytes: int
    """Up to which byte of its file it has read."""
    told: RankAccount | None


def load_fold(session: Session, run: str, row: AccountRow | None) -> Fold:
    """Return what the lowest rank of a run has reported until now; `row` is its account, if any."""
    if row is not None and row.rank is not None:
        rank, upto, told = row.rank, row.bytes, RankAccount.model_validate(row.told)
    else:
        lowest = next(iter(load_ranks(session, run)), None)
        if lowest is None:
            return Fold(rank=None, bytes=0, told=None)
        rank, upto, told = lowest, 0, RankAccount()
    if row is None or not row.closed:
        for text, end in load_lines_after(session, run, rank, upto):
            upto, beat = end, beat_on(text, rank)
            if beat is not None:
                add_line(told, beat)
    return Fold(rank=rank, bytes=upto, told=told)
