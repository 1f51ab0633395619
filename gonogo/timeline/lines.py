"""Which lines of a rank have come, and what do they add up to? De-duplication, holes, digests.

A line is known by its boot and `seq`. Guarantees: a line is new at most once, in whatever order
lines come; the digest of a boot depends on which lines came and not on their order or number; two
different lines of one (rank, boot, seq) are a conflict, for then two processes write one stream.
Lines of a boot that another one replaced, or of another run, are stale: counted, never obeyed.

The digest of a boot is a chain over its lines in the order of `seq`, so that it can be told at any
moment up to the first hole: d₀ = 32 zero bytes, dₖ = SHA-256(dₖ₋₁ ‖ the first 16 bytes of SHA-256
of the canonical line k). Sixteen bytes a line are kept, to tell a repeated line from a forged one.
"""

from base64 import b64decode, b64encode
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from hashlib import sha256
from typing import Any

DIGEST_BYTES = 16
START = bytes(32)
MAX_RANGES = 1024
"""Separate holes whose places are kept; the oldest are forgotten beyond that."""


class Arrival(StrEnum):
    """What a line is to its stream."""

    NEW = "new"
    """The next line, or one beyond a hole."""
    LATE = "late"
    """It fills a hole: its numbers count, the position it tells is old."""
    DUPLICATE = "duplicate"
    CONFLICT = "conflict"
    """Another line of the same boot and seq came before."""
    STALE = "stale"
    """Of a boot that is over, of another run, or that never said `boot` while another runs."""


_NEW = Arrival.NEW


@dataclass(slots=True)
class BootLines:
    """The lines of one boot of one rank."""

    first: int = -1
    """Seq at which the boot begins: 0 or 1; -1 before any line."""
    top: int = -1
    """Highest seq."""
    count: int = 0
    chain: bytes = START
    """Digest up to `contiguous`."""
    digests: bytearray = field(default_factory=bytearray)
    """`DIGEST_BYTES` of each line from `first` up to `contiguous`."""
    ahead: dict[int, bytes] = field(default_factory=dict)
    """Seq beyond the first hole → its line's digest."""
    missing: list[tuple[int, int]] = field(default_factory=list)
    """Holes below `top`: first and last seq of each, ascending."""

    @property
    def contiguous(self) -> int:
        """Highest seq up to which none is missing; one below the first while that is missing."""
        first = self.first
        return (first if first > 0 else 0) + len(self.digests) // DIGEST_BYTES - 1

    def take(self, seq: int, digest: bytes) -> Arrival:
        """Take one line and return what it is."""
        if self.first < 0:
            self.first = min(seq, 1)
        elif seq == 0 and self.first == 1:
            return self._begin_lower(digest)
        upto = self.contiguous
        if seq == upto + 1:
            return self._append(seq, digest)
        if seq <= upto:
            known = self._digest_at(seq)
        else:
            held = self.ahead.get(seq)
            if held is None:
                return self._hold(seq, digest)
            known = held
        return Arrival.DUPLICATE if known == digest else Arrival.CONFLICT

    def _digest_at(self, seq: int) -> bytes:
        start = (seq - self.first) * DIGEST_BYTES
        return bytes(self.digests[start : start + DIGEST_BYTES])

    def _append(self, seq: int, digest: bytes) -> Arrival:
        self.count += 1
        self._link(digest)
        if seq > self.top:
            self.top, arrival = seq, _NEW
        else:
            arrival = Arrival.LATE
            self._fill(seq)
        while self.ahead and (held := self.ahead.pop(self.contiguous + 1, None)) is not None:
            self._link(held)
        return arrival

    def _link(self, digest: bytes) -> None:
        self.digests += digest
        self.chain = sha256(self.chain + digest).digest()

    def _hold(self, seq: int, digest: bytes) -> Arrival:
        self.ahead[seq] = digest
        self.count += 1
        if seq < self.top:
            self._fill(seq)
            return Arrival.LATE
        last = max(self.top, self.contiguous)
        if seq > last + 1:
            self.missing.append((last + 1, seq - 1))
            del self.missing[:-MAX_RANGES]
        self.top = seq
        return Arrival.NEW

    def _fill(self, seq: int) -> None:
        """Take a seq out of the holes."""
        for index, (first, last) in enumerate(self.missing):
            if first <= seq <= last:
                parts = ((first, seq - 1), (seq + 1, last))
                self.missing[index : index + 1] = [part for part in parts if part[0] <= part[1]]
                return

    def _begin_lower(self, digest: bytes) -> Arrival:
        """Take seq 0 after seq 1 had stood for the first: the chain begins anew before it."""
        rest = self.digests
        self.first, self.digests, self.chain = 0, bytearray(), START
        self.count += 1
        self._link(digest)
        for start in range(0, len(rest), DIGEST_BYTES):
            self._link(bytes(rest[start : start + DIGEST_BYTES]))
        return Arrival.LATE

    def gaps(self, below: int | None = None) -> int:
        """Return how many lines never came (of those with a seq under `below`)."""
        limit = self.top if below is None else below
        return sum(max(0, min(last, limit - 1) - first + 1) for first, last in self.missing)

    def digest(self) -> str:
        """Return the digest of all lines that came, holes passed over; hex."""
        chain = self.chain
        for seq in sorted(self.ahead):
            chain = sha256(chain + self.ahead[seq]).digest()
        return chain.hex()

    def chains(self) -> Iterator[tuple[int, str]]:
        """Yield every seq up to the first hole, and the digest of the lines up to it; hex."""
        chain = START
        for place, start in enumerate(range(0, len(self.digests), DIGEST_BYTES)):
            held = bytes(self.digests[start : start + DIGEST_BYTES])
            chain = sha256(chain + held).digest()
            yield self.first + place, chain.hex()

    def dump(self) -> dict[str, Any]:
        """Return the JSON form, for a snapshot."""
        return {
            "first": self.first,
            "top": self.top,
            "count": self.count,
            "chain": self.chain.hex(),
            "digests": b64encode(self.digests).decode(),
            "ahead": {str(seq): held.hex() for seq, held in self.ahead.items()},
            "missing": [list(part) for part in self.missing],
        }

    @classmethod
    def load(cls, document: dict[str, Any]) -> "BootLines":
        """Return what `dump` wrote."""
        return cls(
            first=document["first"],
            top=document["top"],
            count=document["count"],
            chain=bytes.fromhex(document["chain"]),
            digests=bytearray(b64decode(document["digests"])),
            ahead={int(seq): bytes.fromhex(held) for seq, held in document["ahead"].items()},
            missing=[(first, last) for first, last in document["missing"]],
        )
