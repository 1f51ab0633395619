"""What every part of the service shares: settings, database, clocks and the bell.

The bell rings after every commit, so that the conductor's loops act at once.
"""

import asyncio
import json
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Concatenate, ParamSpec, TypeVar

from gonogo.contract.errors import Rejected
from gonogo.ledger.sign import SigningKey
from gonogo.signing import KEY_FILE, load_signing_key, own_signing_key
from service.db.store import Store, Topic
from service.experiments.decisions import SIGNING_KEY
from service.experiments.lifecycle import Deed
from service.queries.experiments import load_first_document
from service.settings import Settings

READERS = 10
"""How many routes may hold a reading session at once; a pool has more connections than that."""
_P = ParamSpec("_P")
_T = TypeVar("_T")


class Bell:
    """Wakes the listeners of a topic."""

    def __init__(self) -> None:
        self._listeners: list[tuple[frozenset[Topic], threading.Event]] = []

    def listen(self, *topics: Topic) -> threading.Event:
        """Return an event that is set whenever one of the topics rings; the listener clears it."""
        listener = threading.Event()
        self._listeners.append((frozenset(topics), listener))
        return listener

    def ring(self, topics: frozenset[Topic]) -> None:
        """Wake all who listen for one of these."""
        for wanted, listener in self._listeners:
            if wanted & topics:
                listener.set()

    def ring_all(self) -> None:
        """Wake everybody, because it is over."""
        for _, listener in self._listeners:
            listener.set()


@dataclass(slots=True, kw_only=True)
class Context:
    """One running service; `app.state.context` of the web application."""

    settings: Settings
    store: Store
    bell: Bell
    now: Callable[[], float] = time.time
    """Unix seconds, for what people read."""
    mono: Callable[[], float] = time.monotonic
    """Seconds of a clock that only goes forward, for every deadline."""
    url: str = "http://127.0.0.1:8750"
    """Address at which people reach this service, for links in alerts and on pages."""
    local_url: str = "http://127.0.0.1:8750"
    closing: threading.Event = field(default_factory=threading.Event)
    readers: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(READERS))
    reporting: asyncio.Lock = field(default_factory=asyncio.Lock)

    def write(
        self,
        actor: str,
        change: Callable[Concatenate[Deed, _P], _T],
        *args: _P.args,
        **kwargs: _P.kwargs,
    ) -> _T:
        """Change something in somebody's name, in one transaction; return what came of it."""
        return self.store.write(
            lambda session: change(
                Deed(session=session, now=self.now(), actor=actor), *args, **kwargs
            )
        )


def open_context(
    settings: Settings,
    *,
    now: Callable[[], float] = time.time,
    mono: Callable[[], float] = time.monotonic,
) -> Context:
    """Return a context with an open database (already migrated) and the home's signing key."""
    bell = Bell()
    store = Store(
        settings.database_url, after_commit=bell.ring, info={SIGNING_KEY: _home_key(settings)}
    )
    return Context(settings=settings, store=store, bell=bell, now=now, mono=mono)


def _home_key(settings: Settings) -> SigningKey:
    """Return the home's signing key, the only one of its database; make it at the first start."""
    store = Store(settings.database_url)
    try:
        document = store.read(load_first_document)
    finally:
        store.close()
    signer = None if document is None else str(json.loads(document).get("key_id"))
    if signer is not None and load_signing_key(settings.home) is None:
        raise Rejected(
            f"{settings.home / KEY_FILE} is not there, and decisions in the database are signed:"
            " bring it from a backup, or begin with another GONOGO_HOME and database"
        )
    key = own_signing_key(settings.home)
    if signer not in (None, key.key_id):
        raise Rejected(
            f"decisions in the database are signed by the key {signer}, and this home's is"
            f" {key.key_id}: bring {KEY_FILE} from the home that signed them"
        )
    return key
