"""API keys, four roles, the key files of a home, and the sessions of browsers.

Keys and tokens are 256 random bits and are stored by their SHA-256, which needs no salt. A session
has the rights of the key that began it and ends with it. Its cookie opens the pages, never the API.
"""

import hashlib
import os
import secrets
import socket
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated

from fastapi import Depends, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from gonogo.contract.errors import Conflict, NotAllowed, NotFound
from gonogo.contract.wire import Kind, new_id
from gonogo.machine_id import load_machine_id
from service.context import Context
from service.db.columns import SessionKind
from service.db.schema import KeyRow, SessionRow
from service.http.answers import NoKey
from service.queries.callers import load_living_key


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

COOKIE = "gonogo-session"
SECURE_COOKIE = "__Host-gonogo-session"
"""Behind https: a browser sends it over TLS alone, to this host alone."""
SESSION_S = 7 * 86_400.0
LINK_S = 600.0
LOCAL_KEYS = (("key", Role.ADMIN), ("worker_key", Role.WORKER))
_bearer = HTTPBearer(auto_error=False, description="An API key.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Principal:
    """The caller."""

    key_id: str
    name: str
    role: Role
    worker: str | None = None


def hash_key(key: str) -> str:
    """Return what is stored of a key."""
    return hashlib.sha256(key.encode("utf-8", "replace")).hexdigest()


def find_principal(session: Session, key: str) -> Principal | None:
    """Return who holds this key, unless it is unknown or revoked."""
    row = _find_row(session, key)
    return None if row is None or row.revoked_at is not None else _principal_of(row)


def _find_row(session: Session, key: str) -> KeyRow | None:
    return session.scalars(select(KeyRow).where(KeyRow.hash == hash_key(key))).first()


def _principal_of(row: KeyRow) -> Principal:
    return Principal(key_id=row.id, name=row.name, role=Role(row.role), worker=row.worker)


def create_key(
    session: Session,
    name: str,
    role: Role,
    now: float,
    key: str | None = None,
    *,
    home: str | None = None,
) -> str:
    """Store a key (a fresh one when none is given) and return it; it is never shown again."""
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
        )
    )
    return key


def adopt_key(session: Session, name: str, role: Role, key: str, now: float) -> None:
    """Make a key that was made elsewhere the living one of its name; a former one is revoked."""
    known = _find_row(session, key)
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
    """Revoke the living key of this name."""
    row = load_living_key(session, name)
    if row is None:
        raise NotFound(f"there is no key called {name}")
    row.revoked_at = now


def load_local_keys(context: Context) -> None:
    """Make sure that the key files of the home hold living keys that the database knows.

    A revoked key is replaced, and so is that of a worker whose home was elsewhere (a restore).
    """
    home = _name_of(context.settings.home)
    for file_name, role in LOCAL_KEYS:
        path = context.settings.home / file_name
        key = _load_or_create(path)
        known = context.store.read(partial(_find_row, key=key))
        moved = known is not None and known.worker is not None and known.home not in (None, home)
        if known is not None and (moved or known.revoked_at is not None):
            key = _create_key_file(path)
        context.store.write(partial(_register, key, role, home, context.now()))


def _register(key: str, role: Role, home: str, now: float, session: Session) -> None:
    """Store a local key unless it is known, and revoke the older ones of its home."""
    if find_principal(session, key) is not None:
        return
    ours = select(KeyRow).where(KeyRow.home == home, KeyRow.role == role.value)
    for row in session.scalars(ours):
        row.revoked_at = row.revoked_at or now
    session.flush()
    name = f"local {role}"
    if load_living_key(session, name) is not None:  # of another home on this database
        name += f" of {socket.gethostname()} {home}"
    create_key(session, name, role, now, key, home=home)


def _name_of(home: Path) -> str:
    """Return a short name for a home on its machine, the same at every start."""
    whole = f"{load_machine_id(home)}:{socket.gethostname()}:{home.resolve()}"
    return hashlib.sha256(whole.encode("utf-8", "replace")).hexdigest()[:12]


def _load_or_create(path: Path) -> str:
    """Return the key in a file; a missing or unusable one is created, for its owner alone."""
    try:
        found = path.read_text(errors="replace").strip()
    except FileNotFoundError:
        found = ""
    return found if found.isascii() and found.isprintable() and found else _create_key_file(path)


def _create_key_file(path: Path) -> str:
    key = f"gonogo_{secrets.token_urlsafe(32)}"
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as stream:
        stream.write(key + "\n")
        stream.flush()
        os.fsync(stream.fileno())
    temporary.replace(path)
    return key


def cookie_name(url: str) -> str:
    """Return the name of the cookie of a service at `url`."""
    return SECURE_COOKIE if url.startswith("https") else COOKIE


def create_link(session: Session, key_id: str, now: float) -> str:
    """Return the token of a new one-time link."""
    session.execute(delete(SessionRow).where(SessionRow.expires_at < now))
    return _create_token(session, key_id, SessionKind.LINK, now, LINK_S)


def begin_session(session: Session, key: str, now: float) -> str | None:
    """Return the token of a new session with the rights of a key that may look at pages, if any."""
    found = find_principal(session, key)
    if found is None or _may_look(session, found.key_id) is None:
        return None
    return _create_token(session, found.key_id, SessionKind.SESSION, now, SESSION_S)


def use_link(session: Session, token: str, now: float) -> str | None:
    """Use a link up and return the token of the session that it begins, None when it is void."""
    used = session.execute(
        delete(SessionRow)
        .where(SessionRow.hash == hash_key(token), SessionRow.kind == SessionKind.LINK)
        .where(SessionRow.expires_at >= now)
        .returning(SessionRow.key)
    ).first()
    if used is None:
        return None
    return _create_token(session, used.key, SessionKind.SESSION, now, SESSION_S)


def find_viewer(session: Session, token: str, now: float) -> Principal | None:
    """Return whose session it is, when it lives and may look at pages."""
    row = session.get(SessionRow, hash_key(token))
    if row is None or row.kind != SessionKind.SESSION or row.expires_at < now:
        return None
    return _may_look(session, row.key)


def end_session(session: Session, token: str) -> None:
    """End a session."""
    session.execute(delete(SessionRow).where(SessionRow.hash == hash_key(token)))


def _create_token(session: Session, key_id: str, kind: str, now: float, lives_s: float) -> str:
    token = secrets.token_urlsafe(32)
    session.add(
        SessionRow(
            hash=hash_key(token), key=key_id, kind=kind, created_at=now, expires_at=now + lives_s
        )
    )
    return token


def _may_look(session: Session, key_id: str) -> Principal | None:
    row = session.get(KeyRow, key_id)
    if row is None or row.revoked_at is not None or Role(row.role) not in ALLOWS[Role.VIEWER]:
        return None
    return _principal_of(row)


async def get_context(request: Request) -> Context:
    """Return the service's context (a FastAPI dependency; it waits for no thread)."""
    context: Context = request.app.state.context
    return context


def needs_role(role: Role) -> Callable[..., Principal]:
    """Return a dependency that returns the caller, if the key allows `role`."""

    def check(
        context: Annotated[Context, Depends(get_context)],
        credentials: Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)],
    ) -> Principal:
        if credentials is None:
            raise NoKey
        found = context.store.read(lambda session: find_principal(session, credentials.credentials))
        if found is None:
            raise NoKey
        if found.role not in ALLOWS[role]:
            raise NotAllowed(f"this needs a key of role {role}; yours is {found.role}")
        return found

    return check


Viewer = Annotated[Principal, Depends(needs_role(Role.VIEWER))]
Operator = Annotated[Principal, Depends(needs_role(Role.OPERATOR))]
Admin = Annotated[Principal, Depends(needs_role(Role.ADMIN))]
Agent = Annotated[Principal, Depends(needs_role(Role.WORKER))]
Service = Annotated[Context, Depends(get_context)]
