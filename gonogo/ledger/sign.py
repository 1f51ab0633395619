"""Ed25519 signatures over the hashes of decisions: made by one home, checked by anyone.

Keys come as PEM bytes. `gonogo.signing` knows the files in which a home keeps them.
"""

import base64
import binascii
import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from gonogo.contract.errors import Rejected

KEY_ID_DIGITS = 16


def _message(digest: str) -> bytes:
    """Return the signed bytes: they name their purpose, so a signature fits no other protocol."""
    return f"gonogo decision\n{digest}\n".encode()


@dataclass(frozen=True, slots=True)
class PublicKey:
    """The public half of a home's key."""

    raw: bytes
    """32 bytes."""

    @property
    def key_id(self) -> str:
        """First 16 hex digits of the SHA-256 of the raw key."""
        return hashlib.sha256(self.raw).hexdigest()[:KEY_ID_DIGITS]

    def verifies(self, digest: str, signature: str) -> bool:
        """Say whether `signature` is this key's over `digest`."""
        try:
            bare = base64.b64decode(signature.encode(), validate=True)
            if base64.b64encode(bare).decode() != signature:
                return False  # one signature has one spelling
            Ed25519PublicKey.from_public_bytes(self.raw).verify(bare, _message(digest))
        except (InvalidSignature, binascii.Error, ValueError):
            return False
        return True

    def pem(self) -> bytes:
        """Return the key as `signing.pub` holds it."""
        return Ed25519PublicKey.from_public_bytes(self.raw).public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )


@dataclass(frozen=True, slots=True)
class SigningKey:
    """The private key of a home; never printed."""

    seed: bytes = field(repr=False)
    """32 bytes."""

    @property
    def public(self) -> PublicKey:
        """The public half."""
        return PublicKey(
            Ed25519PrivateKey.from_private_bytes(self.seed).public_key().public_bytes_raw()
        )

    @property
    def key_id(self) -> str:
        """Name of the public half."""
        return self.public.key_id

    def sign(self, digest: str) -> str:
        """Return the signature over a digest, in base64."""
        bare = Ed25519PrivateKey.from_private_bytes(self.seed).sign(_message(digest))
        return base64.b64encode(bare).decode()

    def pem(self) -> bytes:
        """Return the key as `signing.key` holds it."""
        return Ed25519PrivateKey.from_private_bytes(self.seed).private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )


def parse_public(pem: bytes) -> PublicKey:
    """Return a public key.

    Raises:
        Rejected: the bytes are no Ed25519 public key in PEM form.
    """
    try:
        found = serialization.load_pem_public_key(pem)
    except (ValueError, UnsupportedAlgorithm) as error:
        raise Rejected("not a public key in PEM form") from error
    if not isinstance(found, Ed25519PublicKey):
        raise Rejected("a public key, but not of Ed25519")
    return PublicKey(found.public_bytes_raw())


def parse_signing(pem: bytes) -> SigningKey:
    """Return a signing key.

    Raises:
        Rejected: the bytes are no Ed25519 private key in PEM form.
    """
    try:
        found = serialization.load_pem_private_key(pem, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise Rejected("not a private key in PEM form") from error
    if not isinstance(found, Ed25519PrivateKey):
        raise Rejected("a private key, but not of Ed25519")
    return SigningKey(found.private_bytes_raw())


@dataclass(frozen=True, slots=True)
class Trust:
    """The public keys that a checker trusts, by their id."""

    keys: tuple[PublicKey, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.keys)

    def names(self) -> str:
        """Return the ids for a person."""
        return ", ".join(key.key_id for key in self.keys)

    def problem(self, digest: str, key_id: object, signature: object) -> str | None:
        """Return what is wrong with a signature; None if a trusted key made it."""
        if not isinstance(key_id, str) or not isinstance(signature, str):
            return "the signature is missing"
        if not self.keys:
            return "not verified: no public key is there to check the signature with"
        key = next((row for row in self.keys if row.key_id == key_id), None)
        if key is None:
            return f"signed by the key {key_id}, which is not trusted (trusted: {self.names()})"
        if not key.verifies(digest, signature):
            return f"the signature is not that of the key {key_id}"
        return None


def trusting(keys: Iterable[PublicKey]) -> Trust:
    """Return the trust in these keys, each once."""
    return Trust(tuple(dict.fromkeys(keys)))
