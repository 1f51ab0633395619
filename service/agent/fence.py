"""Whose run is it? Checked with every message about one: its token, and who brings it.

The token says which claim is the newest, the secret who made it: a worker's key alone is not
enough to speak of another worker's run, and a number can be guessed.
"""

import hashlib
import hmac
import re
import shlex
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

from sqlalchemy.orm import Session

from gonogo.contract.agent import CLAIM_HEADER
from gonogo.contract.errors import NotAllowed, StaleToken
from service.db.schema import KeyRow
from service.queries.keys import load_living_keys_of, lock_living_keys


@dataclass(frozen=True, slots=True, kw_only=True)
class Bearer:
    """Who brings a message about a run."""

    token: int
    secret: str | None = None
    worker: str | None = None
    """Whose key it is; None: an administrator's, or one that never claimed."""
    by_admin: bool = False
    """Whether the key is an administrator's, which is every worker's."""


class HeldRun(Protocol):
    """A run, as far as it says who may speak of it."""

    @property
    def id(self) -> str:
        """The run."""
        ...

    @property
    def token(self) -> int:
        """Of its newest claim."""
        ...

    @property
    def claim(self) -> str | None:
        """Hash of that claim's secret."""
        ...

    @property
    def worker(self) -> str | None:
        """Who made it."""
        ...


_NUMBERED = re.compile(r"(-[0-9a-f]{6})-\d{1,2}$")


@lru_cache(maxsize=1024)
def home_of_worker(worker: str) -> str:
    """Return what the workers of one home, which share its key, have in common."""
    return _NUMBERED.sub(r"\1", worker)


def bind_key(session: Session, key_id: str, worker: str) -> None:
    """Make a worker's key the one of the worker that claims with it; the first one has it.

    And the worker has it: where a key of it lives already, what claims under its name with another
    is not it, whatever host and machine it says. Two local keys are one worker's where one was made
    in place of the other, or both for one home.

    Raises:
        NotAllowed: another worker has it, or the worker has another.
    """
    row = session.get_one(KeyRow, key_id)
    home = home_of_worker(worker)
    if row.worker is None:
        lock_living_keys(session)  # two that claim at once under one name: one of them has it
    if row.worker is None:
        held = load_living_keys_of(session, home)
        if held and not any(_is_of_one_home(row, other) for other in held):
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


def _is_of_one_home(key: KeyRow, other: KeyRow) -> bool:
    """Say whether who holds a local key holds, or held, another one: the service put it there."""
    return key.home is not None and (key.home == other.home or key.in_place_of == other.id)


def hash_claim(secret: str) -> str:
    """Return what is stored of a claim's secret; of 128 random bits, so it needs no salt."""
    return hashlib.sha256(secret.encode("utf-8", "replace")).hexdigest()


def check_bearer(run: HeldRun, bearer: Bearer) -> None:
    """Refuse whoever does not hold the run's newest claim.

    A run that was claimed under a release without secrets is held by its token alone: its worker
    may have another name by now, and what the run still has to send must arrive. One that nobody
    has claimed yet is nobody's.

    Raises:
        NotAllowed: another worker's key, not the claim's secret, or there was no claim.
        StaleToken: a newer claim owns the run.
    """
    theirs = home_of_worker(run.worker or "")
    if run.claim is not None and bearer.worker is not None and bearer.worker != theirs:
        raise NotAllowed(
            f"run {run.id} belongs to worker {run.worker}, this key to {bearer.worker}"
        )
    if bearer.token != run.token:
        raise StaleToken(
            f"stale token {bearer.token}: a newer claim owns run {run.id}", newer=run.token
        )
    if run.worker is None:
        raise NotAllowed(f"no worker has claimed run {run.id}")
    if run.claim is None:
        return
    if bearer.secret is None or not hmac.compare_digest(run.claim, hash_claim(bearer.secret)):
        raise NotAllowed(f"{CLAIM_HEADER} is not what run {run.id} was claimed with")
