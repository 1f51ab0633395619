"""The home's signing key: made at the first start, and the only key of its database."""

import json

from gonogo.contract.errors import Rejected
from gonogo.ledger.sign import SigningKey
from gonogo.signing import KEY_FILE, load_signing_key, own_signing_key
from service.db.store import Store
from service.queries.experiments import load_first_document
from service.settings import Settings


def home_key(settings: Settings) -> SigningKey:
    """Return the home's signing key; make it at the first start.

    Raises:
        Rejected: the key cannot be used, it is gone though decisions are signed with it, or the
            database is another home's.
    """
    key = load_signing_key(settings.home)
    signer = _signer(settings)
    if key is None and signer is not None:
        raise Rejected(
            f"{settings.home / KEY_FILE} is not there, and decisions in the database are signed:"
            " bring the key from a backup, or from the home that signed them; if it is lost for"
            " good, begin with another GONOGO_HOME and database"
        )
    key = own_signing_key(settings.home)
    if signer not in (None, key.key_id):
        raise Rejected(
            f"decisions in the database are signed by the key {signer}, and this home's is"
            f" {key.key_id}: bring {KEY_FILE} from the home that signed them, or begin with another"
            " database"
        )
    return key


def _signer(settings: Settings) -> str | None:
    """Return the key that signed the database's first decision; None if it holds none."""
    store = Store(settings.database_url)
    try:
        document = store.read(load_first_document)
    finally:
        store.close()
    return None if document is None else str(json.loads(document).get("key_id"))
