"""Fencing of messages about a run: the token of its newest claim, and the secret of that claim.

The token says which claim is the newest, the secret who made it. A worker's key alone does not
allow messages about the run of another worker. Tokens grow with time, so that a restored database
hands out no token twice.
"""

import hashlib
import hmac
import re
import shlex
from dataclasses import dataclass

from sqlalchemy.orm import Session

from gonogo.contract.agent import CLAIM_HEADER
from gonogo.contract.errors import NotAllowed, StaleToken
from service.db.schema import KeyRow, RunRow
from service.queries.callers import load_living_keys_of, lock_living_keys

_FROM_S = 1_704_067_200.0
"""2024-01-01T00:00:00Z."""
_TICKS_PER_S = 1000
_NUMBERED = re.compile(r"(-[0-9a-f]{6})-\d{1,2}$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Bearer:
    """The sender of a message about a run."""

    token: int
    secret: str | None = None
    worker: str | None = None
    """The worker of the key; None: an administrator's key, or one that never claimed."""
    by_admin: bool = False


def next_token(last: int, now: float) -> int:
    """Return the token at `now` (Unix seconds) after `last` of the same experiment."""
    return max(last + 1, int((now - _FROM_S) * _TICKS_PER_S))


def home_of_worker(worker: str) -> str:
    """Return the common name of the workers of one home, which share its key."""
    return _NUMBERED.sub(r"\1", worker)


def bind_key(session: Session, key_id: str, worker: str) -> None:
    """Bind a worker's key to the worker that claims with it first, and the worker to the key."""
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
    """Refuse a bearer that does not hold the run's newest claim."""
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
