"""Hold out one document in twenty, chosen by its own content alone.

Names, places, seeds and ranks have no say, so a document is on one side in every run.
"""

import hashlib

from nsa.errors import DataFailure

_ONE_IN = 20


class NothingHeldOut(DataFailure):
    """No document of this corpus is held out."""


def content_digest(document: bytes) -> bytes:
    """What a document is known by, wherever it lies: 16 bytes."""
    return hashlib.blake2b(document, digest_size=16).digest()


def is_held_out(digest: bytes) -> bool:
    """Whether the document of this `content_digest` is for validation."""
    return int.from_bytes(digest[:8], "big") % _ONE_IN == 0


def split_of(document: bytes) -> str:
    """The split that a document belongs to: "train" or "val"."""
    return "val" if is_held_out(content_digest(document)) else "train"
