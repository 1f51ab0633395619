"""Who calls, and may he? Keys by hash, four roles, local key files at the first start.

A key is 256 random bits, so its SHA-256 needs no salt; hashes are compared in constant time. The
local keys lie in `GONOGO_HOME` (`key` of role admin, `worker_key` of role worker), mode 0600.
"""

import hashlib
import hmac
import os
import secrets
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated, cast

from fastapi import Depends, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from sqlalchemy import Table, bindparam, select
from sqlalchemy.orm import Session

from gonogo.contract.errors import Conflict, NotAllowed, NotFound
from gonogo.contract.ids import Kind, new_id
from gonogo.machine_id import load_machine_id
from service.context import Context
from service.db.prepared import Prepared
from service.db.schema import KeyRow
from service.db.store import tables_of
from service.http.connections import show_key
from service.http.problems import NoKey
from service.queries.keys import load_living_key


class Role(StrEnum):
    """What a key may do."""

    VIEWER = "viewer"
    OPERATOR = "operator"
    ADMIN = "admin"
    WORKER = "worker"


ALLOWS: dict[Role, frozenset[Role]] = {
    Role.VIEWER: frozenset({Role.VIEWER, Role.OPERATOR, Role.ADMIN}),
    Role.OPERATOR: frozenset({Role.OPERATOR, Role.ADMIN}),
    Role.ADMIN: frozenset({Role.ADMIN}),
    Role.WORKER: frozenset({Role.WORKER, Role.ADMIN}),
}
"""Role that a call asks for → roles of keys that may make it."""

_KEYS = cast(Table, KeyRow.__table__).c
_KEY = Prepared(
    select(_KEYS.id, _KEYS.name, _KEYS.role, _KEYS.worker, _KEYS.hash, _KEYS.revoked_at).where(
        _KEYS.hash == bindparam("hashed")
    )
)
LOCAL_KEYS = (("key", Role.ADMIN), ("worker_key", Role.WORKER))
_bearer = HTTPBearer(auto_error=False, description="An API key.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Principal:
    """Who calls."""

    key_id: str
    name: str
    role: Role
    worker: str | None = None
    """Whose key it is, of a worker's that has claimed."""

    @property
    def actor(self) -> str:
        """How events and decisions name him."""
        return self.name


def hash_key(key: str) -> str:
    """Return what is stored of a key."""
    return hashlib.sha256(key.encode("utf-8", "replace")).hexdigest()


def bearer_key(headers: Mapping[str, str]) -> str | None:
    """Return the key that a request brings, valid or not; None where it brings none."""
    scheme, _, key = headers.get("authorization", "").partition(" ")
    return key.strip() or None if scheme.lower() == "bearer" else None


def find_principal(session: Session, key: str) -> Principal | None:
    """Return whose key this is, unless it is unknown or revoked."""
    hashed = hash_key(key)
    row = _KEY.first(tables_of(session), {"hashed": hashed})
    if row is None:
        return None
    key_id, name, role, worker, stored, revoked_at = row
    if revoked_at is not None or not hmac.compare_digest(stored, hashed):
        return None
    return Principal(key_id=key_id, name=name, role=Role(role), worker=worker)


def create_key(
    session: Session,
    name: str,
    role: Role,
    now: float,
    key: str | None = None,
    *,
    home: str | None = None,
    in_place_of: str | None = None,
) -> str:
    """Store a key (a fresh one when none is given) and return it; it is never shown again.

    Raises:
        Conflict: a living key has this name.
    """
    if load_living_key(session, name) is not None:
        raise Conflict(f"there is a key called {name}; revoke it first")
    key = key or f"gonogo_{secrets.token_urlsafe(32)}"
    session.add(
        KeyRow(
            id=new_id(Kind.KEY),
            name=name,
            role=role.value,
            hash=hash_key(key),
            created_at=now,
            revoked_at=None,
            home=home,
            in_place_of=in_place_of,
        )
    )
    return key


def adopt_key(session: Session, name: str, role: Role, key: str, now: float) -> None:
    """Make a key that was made elsewhere the living one of its name; a former one is revoked.

    Raises:
        Conflict: the key is, or was, another's.
    """
    known = session.scalars(select(KeyRow).where(KeyRow.hash == hash_key(key))).first()
    if known is not None:
        if known.name == name and known.role == role and known.revoked_at is None:
            return
        raise Conflict(f"this key is known already, as {known.name} of role {known.role}")
    former = load_living_key(session, name)
    if former is not None:
        former.revoked_at = now
        session.flush()
    create_key(session, name, role, now, key)


def revoke_key(session: Session, name: str, now: float) -> None:
    """Revoke the living key of this name.

    Raises:
        NotFound: there is none.
    """
    row = load_living_key(session, name)
    if row is None:
        raise NotFound(f"there is no key called {name}")
    row.revoked_at = now


def load_local_keys(context: Context) -> None:
    """Make sure that the local keys exist, in their files as well as in the database.

    Only an older key of this very home is revoked: other services, each with a home of its own,
    may share the database. A home that was restored, moved or copied holds the key of the worker of
    the place where it was, and its own worker has another name: it gets a key of its own, and that
    one stays valid for what runs there. One that was revoked is followed by another.
    """
    home = _name_of(context.settings.home)
    for file_name, role in LOCAL_KEYS:
        path = context.settings.home / file_name
        key = _load_or_create(path)
        former = context.store.read(partial(_load_former, key=key, home=home))
        if former is not None:
            key = _create(path)

        def register(
            session: Session, key: str = key, role: Role = role, former: _Former | None = former
        ) -> None:
            if find_principal(session, key) is not None:
                return
            ours = select(KeyRow).where(KeyRow.home == home, KeyRow.role == role.value)
            for row in () if former is not None and former.stays else session.scalars(ours):
                row.revoked_at = row.revoked_at or context.now()
            session.flush()
            name = _free_name(session, f"local {role}", home)
            before = None if former is None else former.in_place_of
            create_key(session, name, role, context.now(), key, home=home, in_place_of=before)

        context.store.write(register)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Former:
    """The key of a file that is followed by another."""

    in_place_of: str | None
    """Whose worker the next one may have, too."""
    stays: bool
    """Whether it is valid on."""


def _load_former(session: Session, *, key: str, home: str) -> _Former | None:
    """Return a key that is followed by another: one that was revoked, or one with which a worker
    claims whose home is, or was, elsewhere; None where it is kept."""
    row = session.scalars(select(KeyRow).where(KeyRow.hash == hash_key(key))).first()
    if row is None:
        return None
    if row.revoked_at is not None:
        return _Former(in_place_of=row.in_place_of, stays=False)
    if row.worker is None or row.home in (None, home):
        return None
    return _Former(in_place_of=row.id, stays=True)


def _free_name(session: Session, name: str, home: str) -> str:
    """Return a name for a local key that no living one has."""
    longer = f"{name} of {socket.gethostname()} {home}"  # beside another home's on this database
    for free in (name, longer):
        if load_living_key(session, free) is None:
            return free
    return f"{longer} {secrets.token_hex(3)}"


def _name_of(home: Path) -> str:
    """Return a short name for a home on its machine, the same at every start.

    Hosts may be called alike, and have their homes at one path.

    Raises:
        OSError: the machine has no id and none can be kept in the home.
    """
    whole = f"{load_machine_id(home)}:{socket.gethostname()}:{home.resolve()}"
    return hashlib.sha256(whole.encode("utf-8", "replace")).hexdigest()[:12]


def _load_or_create(path: Path) -> str:
    """Return the key in a file; one that is missing is created, readable by its owner alone.

    So is one that no header takes: what a power cut leaves of a file may be zeros.
    """
    try:
        found = path.read_text(errors="replace").strip()
    except FileNotFoundError:
        found = ""
    return found if found.isascii() and found.isprintable() and found else _create(path)


def _create(path: Path) -> str:
    """Return a fresh key, which the file holds in place of what it held."""
    key = f"gonogo_{secrets.token_urlsafe(32)}"
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as stream:
        stream.write(key + "\n")
        stream.flush()
        os.fsync(stream.fileno())
    temporary.replace(path)
    return key


async def get_context(request: Request) -> Context:
    """Return the service's context (a FastAPI dependency; it waits for no thread)."""
    context: Context = request.app.state.context
    return context


def needs_role(role: Role) -> Callable[..., Principal]:
    """Return a dependency that lets pass whoever holds `role`, and says who it is."""

    def check(
        request: Request,
        context: Annotated[Context, Depends(get_context)],
        credentials: Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)],
    ) -> Principal:
        if credentials is None:
            raise NoKey
        found = context.store.read(lambda session: find_principal(session, credentials.credentials))
        if found is None:
            raise NoKey
        show_key(request.scope)
        if found.role not in ALLOWS[role]:
            raise NotAllowed(f"this needs a key of role {role}; yours is {found.role}")
        return found

    return check


Viewer = Annotated[Principal, Depends(needs_role(Role.VIEWER))]
Operator = Annotated[Principal, Depends(needs_role(Role.OPERATOR))]
Admin = Annotated[Principal, Depends(needs_role(Role.ADMIN))]
Agent = Annotated[Principal, Depends(needs_role(Role.WORKER))]
Service = Annotated[Context, Depends(get_context)]
