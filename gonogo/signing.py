"""The key of a home: `signing.key` (0600) and `signing.pub`, created at the first start.

The key never changes. No process that a trainer can reach gets its path. A home that has lost its
key does not start.
"""

import os
import secrets
import stat
from pathlib import Path

from gonogo.contract.errors import NotFound, Rejected
from gonogo.files import place_first, read_plain, read_small
from gonogo.ledger.sign import PublicKey, SigningKey, parse_public, parse_signing

KEY_FILE = "signing.key"
PUBLIC_FILE = "signing.pub"
_LOST = "bring it back from a backup, or begin with another GONOGO_HOME and database"


def create_signing_key() -> SigningKey:
    """Return a new key."""
    return SigningKey(secrets.token_bytes(32))


def load_signing_key(home: Path) -> SigningKey | None:
    """Return the home's key, or None before its first start.

    Raises:
        Rejected: others may read it, it is no key, or it does not fit the public half.
    """
    path, public = home / KEY_FILE, home / PUBLIC_FILE
    try:
        with read_plain(path) as stream:
            mode = stat.S_IMODE(os.fstat(stream.fileno()).st_mode)
            pem = stream.read()
    except FileNotFoundError:
        if public.exists():
            raise Rejected(f"{public} is there without {KEY_FILE}: {_LOST}") from None
        return None
    except OSError as error:
        raise Rejected(f"{path}: {error.strerror}") from error
    if mode & 0o077:
        raise Rejected(f"{path}: others may read it (mode {mode:o}); chmod 600 it")
    try:
        key = parse_signing(pem)
    except Rejected as error:
        raise Rejected(f"{path}: {error.detail}") from error
    _check_public_half(public, key)
    return key


def _check_public_half(path: Path, key: SigningKey) -> None:
    """Raise `Rejected` if `signing.pub` is no key, or the half of another key."""
    if path.exists() and load_public_key(path) != key.public:
        raise Rejected(f"{path} is not the public half of {KEY_FILE}: one of them was changed")


def own_signing_key(home: Path) -> SigningKey:
    """Return the key that this home signs with; create it in a home without decisions.

    Raises:
        Rejected: as `load_signing_key`; or decisions are there, and the key is gone.
    """
    key = load_signing_key(home)
    if key is not None:
        save_public_key(home, key.public)
        return key
    if any((home / "decisions").glob("dec_*.json")):
        raise Rejected(f"{home / KEY_FILE} is gone, and decisions here are signed with it: {_LOST}")
    return save_signing_key(home, create_signing_key())


def save_signing_key(home: Path, key: SigningKey) -> SigningKey:
    """Save a new key; return the key of the home, which another process may have saved first."""
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    _place(home / KEY_FILE, key.pem(), 0o600)
    kept = load_signing_key(home)
    assert kept is not None
    save_public_key(home, kept.public)
    return kept


def save_public_key(home: Path, key: PublicKey) -> None:
    """Write `signing.pub`, unless it is there."""
    if not (home / PUBLIC_FILE).exists():
        _place(home / PUBLIC_FILE, key.pem(), 0o644)


def _place(path: Path, pem: bytes, mode: int) -> None:
    """Write a file unless another process has written it first."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}.tmp")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(pem)
        place_first(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def load_public_key(path: Path) -> PublicKey:
    """Return the public key in a file.

    Raises:
        NotFound: no such file.
        Rejected: it is no public key.
    """
    try:
        return parse_public(read_small(path))
    except FileNotFoundError as error:
        raise NotFound(f"{path}: no such key") from error
    except OSError as error:
        raise Rejected(f"{path}: {error.strerror}") from error
    except Rejected as error:
        raise Rejected(f"{path}: {error.detail}") from error


def shown_key(home: Path) -> PublicKey | None:
    """Return the public key of a home; None if it has none.

    Raises:
        Rejected: it is no public key.
    """
    path = home / PUBLIC_FILE
    return load_public_key(path) if path.exists() else None
