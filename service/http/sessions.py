"""Browser sessions in the database, by the hash of a random token.

A session has the rights of the API key that began it and ends with it. A sign-in link is used up by
its first use and lives for minutes. The cookie is HttpOnly and SameSite=Strict and opens the pages
only, never the API, so no other site can act through it.
"""

import secrets

from sqlalchemy import delete
from sqlalchemy.orm import Session

from service.db.documents import SessionKind
from service.db.schema import KeyRow, SessionRow
from service.http.auth import ALLOWS, Principal, Role, find_principal, hash_key

COOKIE = "gonogo-session"
SECURE_COOKIE = "__Host-gonogo-session"
"""Behind https: a browser takes it from this very host over TLS alone, for no other path."""
SESSION_S = 7 * 86_400.0
LINK_S = 600.0


def cookie_name(url: str) -> str:
    """Return how the cookie of a service at `url` is called."""
    return SECURE_COOKIE if url.startswith("https") else COOKIE


def create_link(session: Session, key_id: str, now: float) -> str:
    """Return the token of a new one-time link."""
    session.execute(delete(SessionRow).where(SessionRow.expires_at < now))
    return _create(session, key_id, SessionKind.LINK, now, LINK_S)


def create_session(session: Session, key_id: str, now: float) -> str:
    """Return the token of a new session."""
    return _create(session, key_id, SessionKind.SESSION, now, SESSION_S)


def begin_session(session: Session, key: str, now: float) -> str | None:
    """Return the token of a new session with the rights of a key that may look at pages, if any."""
    found = find_principal(session, key)
    if found is None or _principal(session, found.key_id) is None:
        return None
    return create_session(session, found.key_id, now)


def use_link(session: Session, token: str, now: float) -> str | None:
    """Use a link up and return the token of the session that it begins, None when it is void."""
    used = session.execute(
        delete(SessionRow)
        .where(SessionRow.hash == hash_key(token), SessionRow.kind == SessionKind.LINK)
        .where(SessionRow.expires_at >= now)
        .returning(SessionRow.key)
    ).first()
    if used is None or _principal(session, used.key) is None:
        return None
    return create_session(session, used.key, now)


def find_viewer(session: Session, token: str, now: float) -> Principal | None:
    """Return whose session it is, when it lives and may look at pages."""
    row = session.get(SessionRow, hash_key(token))
    if row is None or row.kind != SessionKind.SESSION or row.expires_at < now:
        return None
    return _principal(session, row.key)


def end_session(session: Session, token: str) -> None:
    """End a session."""
    session.execute(delete(SessionRow).where(SessionRow.hash == hash_key(token)))


def _create(session: Session, key_id: str, kind: str, now: float, lives_s: float) -> str:
    token = secrets.token_urlsafe(32)
    session.add(
        SessionRow(
            hash=hash_key(token), key=key_id, kind=kind, created_at=now, expires_at=now + lives_s
        )
    )
    return token


def _principal(session: Session, key_id: str) -> Principal | None:
    row = session.get(KeyRow, key_id)
    if row is None or row.revoked_at is not None or Role(row.role) not in ALLOWS[Role.VIEWER]:
        return None
    return Principal(key_id=row.id, name=row.name, role=Role(row.role))
