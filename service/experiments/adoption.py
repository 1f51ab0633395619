"""Where does the home's signing key come from, and what of the decisions from before it?

The first start of a release that signs makes the key, and with it the one adoption record: the
head of every chain of unsigned decisions that is whole. Nothing is adopted at any later time, so a
decision that is put there afterwards is not taken for an old one. Where anything is signed already,
this is no first start: both halves of the key are gone, and another key would adopt what was put
there since.
"""

import fcntl
import json
import logging
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

from sqlalchemy.orm import Session

from gonogo.contract.errors import Corrupt, Rejected
from gonogo.ledger.adoption import ADOPTED_FILE, Head, adopt, heads_of
from gonogo.ledger.chain import check_chain
from gonogo.ledger.recorded import RecordedDecision, parse_decision
from gonogo.ledger.sign import SigningKey, Trust
from gonogo.ledger.verify import load_shelf
from gonogo.private_file import open_private
from gonogo.rundir import save_json
from gonogo.signing import (
    KEY_FILE,
    create_signing_key,
    load_signing_key,
    save_public_key,
    save_signing_key,
)
from service.db.store import Store
from service.instants import stamp
from service.queries.decisions import load_all_documents, load_first_signed
from service.settings import Settings

_log = logging.getLogger(__name__)
_T = TypeVar("_T")


def home_key(settings: Settings, now: float) -> SigningKey:
    """Return the home's signing key; at the first start, make it and adopt what is there.

    Raises:
        Rejected: the key is there and cannot be used, decisions are signed and it is gone, or the
            database is another home's.
    """
    settings.home.mkdir(mode=0o700, parents=True, exist_ok=True)
    with open_private(settings.home / ".signing.lock") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        key = load_signing_key(settings.home)
        if key is not None:
            _check_nobody_elses(settings, key)
            save_public_key(settings.home, key.public)
            return key
        _check_never_signed(settings)
        key = create_signing_key()
        heads = find_heads(settings)
        if heads:
            record = adopt(heads, key, stamp(now))
            save_json(settings.decisions / ADOPTED_FILE, record.model_dump(mode="json"))
            _log.info("adopted %d chains", len(heads), extra={"action": "adopted"})
        return save_signing_key(settings.home, key)  # last: until it is there, this is done again


def _check_never_signed(settings: Settings) -> None:
    """Refuse to begin with a new key where one has signed, in the home or in its database."""
    folder = settings.decisions
    rows = load_shelf(folder, Trust()).rows.values() if folder.is_dir() else ()
    if any(row.signed for row in rows):
        where = f"decisions in {folder}"
    elif _read(settings, _has_signed):
        where = "decisions in the database"
    else:
        return
    raise Rejected(
        f"{settings.home / KEY_FILE} is not there, and {where} are signed: bring the key from a"
        " backup, or from the home that signed them; where it is lost for good, begin with another"
        " GONOGO_HOME and database"
    )


def _check_nobody_elses(settings: Settings, key: SigningKey) -> None:
    """Refuse a database in which another home has signed before: a chain has one key for ever."""
    document = _read(settings, load_first_signed)
    signer = key.key_id if document is None else json.loads(document).get("key_id")
    if signer != key.key_id:
        raise Rejected(
            f"decisions in the database are signed by the key {signer}, and this home's is"
            f" {key.key_id}: bring {KEY_FILE} from the home that signed them, or begin with another"
            " database"
        )


def _read(settings: Settings, load: Callable[[Session], _T]) -> _T:
    store = Store(settings.database_url)
    try:
        return store.read(load)
    finally:
        store.close()


def find_heads(settings: Settings) -> dict[str, Head]:
    """Return the head of every unsigned chain in the database and in `decisions/`, if it is whole.

    Where both have an experiment, the database has the word.
    """
    stored = _read(settings, _load_unsigned)
    filed = _load_filed(settings.decisions)
    return {**_heads_of_whole(filed), **_heads_of_whole(stored)}


def _load_unsigned(session: Session) -> list[RecordedDecision]:
    found = []
    for decision, document in load_all_documents(session):
        if _is_signed(document):
            continue
        try:
            found.append(parse_decision(document))
        except Corrupt as error:
            _log.warning("%s: %s", decision, error, extra={"action": "decision_unreadable"})
    return found


def _has_signed(session: Session) -> bool:
    return any(_is_signed(document) for _, document in load_all_documents(session))


def _is_signed(document: str) -> bool:
    return "signature" in json.loads(document)


def _load_filed(folder: Path) -> list[RecordedDecision]:
    if not folder.is_dir():
        return []
    return [row for row in load_shelf(folder, Trust()).rows.values() if not row.signed]


def _heads_of_whole(rows: Iterable[RecordedDecision]) -> dict[str, Head]:
    """Return the heads of the chains in which nothing is wrong; another is left out, and said."""
    chains: dict[str, list[RecordedDecision]] = {}
    for row in rows:
        if not row.signed:
            chains.setdefault(row.decision.experiment, []).append(row)
    heads: dict[str, Head] = {}
    for experiment, chain in chains.items():
        wrong = check_chain(chain)
        if wrong:
            _log.warning("not adopted: %s", wrong[0].text, extra={"action": "not_adopted"})
            continue
        heads |= heads_of((experiment, row.decision.seq, row.decision.hash) for row in chain)
    return heads
