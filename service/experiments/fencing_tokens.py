"""Fencing tokens that grow with time, so that a restored database hands out no token twice.

A token is `epoch · 2³² + n`. The epoch is the hours from 2024 to the service's start, never less
than the epoch before; `n` grows with every eighth of a second.
"""

from sqlalchemy import select
from sqlalchemy.orm import Session

from service.db.insert import insert_if_new
from service.db.schema import EpochRow

_ONE = 1
_SHIFT = 32
_HOUR_S = 3600.0
_FROM_S = 1_704_067_200.0
"""2024-01-01T00:00:00Z. Epochs stay below 2²¹, so that tokens are whole in any JSON reader."""
_TICKS_PER_S = 8
"""So fine that no restore fits between two of them, and 2³² of them last to 2041."""
EPOCH = "epoch"
"""Under which name a writing session's `info` carries the service's epoch."""
STARTED = "started"
"""The same, when the service started, in Unix seconds."""


def next_epoch(last: int, now: float) -> int:
    """Return the epoch of a service that starts at `now` (Unix seconds) after epoch `last`."""
    return max(last, int((now - _FROM_S) // _HOUR_S), 1)


def begin_epoch(session: Session, now: float) -> int:
    """Record and return the epoch of a service that starts."""
    insert_if_new(session, EpochRow, {"id": _ONE, "n": 0})
    row = session.scalars(select(EpochRow).where(EpochRow.id == _ONE).with_for_update()).one()
    row.n = next_epoch(row.n, now)
    return row.n


def next_token(last: int, epoch: int, now: float) -> int:
    """Return the token at `now` (Unix s) after `last` (of the same experiment) in this epoch."""
    ticks = min(max(0, int((now - _FROM_S) * _TICKS_PER_S)), (1 << _SHIFT) - 1)
    return max(last + 1, (epoch << _SHIFT) + ticks)


def is_of_now(token: int, epoch: int) -> bool:
    """Say whether a token may have been given out by now: those of later epochs were not."""
    return token >> _SHIFT <= epoch
