"""Fencing of messages about a run: the token of its newest claim, and the secret of that claim.

The token says which claim is the newest, the secret who made it. A worker's key alone does not
allow messages about the run of another worker.

Fencing tokens that grow with time, so that a restored database hands out no token twice.

A token is `epoch · 2³² + n`. The epoch is the hours from 2024 to the service's start, never less
than the epoch before; `n` grows with every eighth of a second.
"""

import hashlib
import hmac
import re
import shlex
from dataclasses import dataclass

from sqlalchemy import select
from sqlalchemy.orm import Session

from gonogo.contract.agent import CLAIM_HEADER
from gonogo.contract.errors import NotAllowed, StaleToken
from service.db.schema import EpochRow, KeyRow, RunRow
from service.db.store import insert_if_new
from service.queries.callers import load_living_keys_of, lock_living_keys


@dataclass(frozen=True, slots=True, kw_only=True)
class Bearer:
    """The sender of a message about a run."""

    token: int
    secret: str | None = None
    worker: str | None = None
    """The worker of the key; None: an administrator's key, or one that never claimed."""
    by_admin: bool = False
    """Whether the key is an administrator's, which may act for every worker."""


_NUMBERED = re.compile(r"(-[0-9a-f]{6})-\d{1,2}$")


def home_of_worker(worker: str) -> str:
    """Return the common name of the workers of one home, which share its key."""
    return _NUMBERED.sub(r"\1", worker)


def bind_key(session: Session, key_id: str, worker: str) -> None:
    """Bind a worker's key to the worker that claims with it first, and the worker to the key.

    Two local keys belong to one worker if they are of one home.

    Raises:
        NotAllowed: another worker has the key, or the worker has another key.
    """
    row = session.get_one(KeyRow, key_id)
    home = home_of_worker(worker)
    if row.worker is None:
        lock_living_keys(session)  # two claims at once under one name: one of them wins
    if row.worker is None:
        held = load_living_keys_of(session, home)
        if held and not any(row.home and row.home == other.home for other in held):
            raise NotAllowed(
                f"worker {home} has a key already, {held[-1].name!r}; if this one is to replace "
                f"it: `gonogo keys revoke {shlex.quote(held[-1].name)}`"
            )
        row.worker = home
    elif row.worker != home:
        raise NotAllowed(
            f"this key belongs to worker {row.worker}; each has its own: "
            f"`gonogo keys create {worker} --role worker`"
        )


def hash_claim(secret: str) -> str:
    """Return what is stored of a claim's secret; of 128 random bits, so it needs no salt."""
    return hashlib.sha256(secret.encode("utf-8", "replace")).hexdigest()


def check_bearer(run: RunRow, bearer: Bearer) -> None:
    """Refuse a bearer that does not hold the run's newest claim.

    Raises:
        NotAllowed: another worker's key, a wrong secret, or nobody claimed the run.
        StaleToken: a newer claim owns the run.
    """
    if bearer.worker not in (None, home_of_worker(run.worker or "")) and run.claim is not None:
        raise NotAllowed(
            f"run {run.id} belongs to worker {run.worker}, this key to {bearer.worker}"
        )
    if bearer.token != run.token:
        raise StaleToken(
            f"stale token {bearer.token}: a newer claim owns run {run.id}", newer=run.token
        )
    if run.worker is None or run.claim is None:
        raise NotAllowed(f"no worker has claimed run {run.id}")
    if bearer.secret is None or not hmac.compare_digest(run.claim, hash_claim(bearer.secret)):
        raise NotAllowed(f"{CLAIM_HEADER} is not what run {run.id} was claimed with")


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
