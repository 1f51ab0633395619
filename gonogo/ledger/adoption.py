"""Which unsigned decisions stand? Those that the home found and adopted when it got its key.

Decisions of release 0.1 carry no signature, nor do those of `gonogo run` in a home that it left, as
long as no service has started there. At the upgrade the home signs one record of the head of every
chain: each unsigned decision must lead to a head that the record names, so that none can be added,
changed or replaced later. The record is made once, together with the key.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import Field, ValidationError

from gonogo.contract.canonical import digest
from gonogo.contract.errors import Corrupt
from gonogo.contract.wire import Submitted
from gonogo.ledger.sign import Purpose, SigningKey, Trust

ADOPTED_FILE = "adopted.json"


class Head(Submitted):
    """The last unsigned decision of one experiment."""

    seq: int
    hash: str


class Adoption(Submitted):
    """decisions/adopted.json."""

    v: int = 1
    at: str
    """RFC 3339 UTC."""
    key_id: str
    heads: dict[str, Head] = Field(default_factory=dict)
    """Experiment → its head."""
    signature: str = ""

    def content_digest(self) -> str:
        """Return the digest of everything but `signature`."""
        return digest(self.model_dump(mode="json", exclude={"signature"}))

    def problem(self, trust: Trust) -> str | None:
        """Return why this record is not the home's, or None when it is."""
        return trust.problem(Purpose.ADOPTION, self.content_digest(), self.key_id, self.signature)


def adopt(heads: Mapping[str, Head], key: SigningKey, at: str) -> Adoption:
    """Return the signed record of these heads."""
    bare = Adoption(at=at, key_id=key.key_id, heads=dict(heads))
    return bare.model_copy(update={"signature": key.sign(Purpose.ADOPTION, bare.content_digest())})


def parse_adoption(raw: bytes) -> Adoption:
    """Return an adoption record.

    Raises:
        Corrupt: it is none.
    """
    try:
        return Adoption.model_validate_json(raw)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise Corrupt(f"not an adoption record: {where}: {first['msg']}") from error


def heads_of(rows: Iterable[tuple[str, int, str]]) -> dict[str, Head]:
    """Return experiment → head, of (experiment, seq, hash) in any order."""
    found: dict[str, Head] = {}
    for experiment, seq, hash_ in rows:
        if experiment not in found or seq > found[experiment].seq:
            found[experiment] = Head(seq=seq, hash=hash_)
    return found


def unsigned_problem(experiment: str, seq: int, adopted: Adoption | None) -> str | None:
    """Return why an unsigned decision does not stand, as far as its place says.

    That it leads to the head is for `led_to_head` to show.
    """
    if adopted is None:
        return "unsigned, and no adoption record that a trusted key signed is there"
    head = adopted.heads.get(experiment)
    if head is None:
        return "unsigned, and the adoption record does not name its experiment"
    if seq > head.seq:
        return f"unsigned, and after the adopted head (decision {head.seq})"
    return None


def head_problem(experiment: str, seq: int, hash_: Any, adopted: Adoption) -> str | None:
    """Return why a decision at the adopted head's place is not the head, or None."""
    head = adopted.heads.get(experiment)
    if head is None or head.seq != seq or head.hash == hash_:
        return None
    return f"not the adopted head: the adoption record has {head.hash[:16]}…"
