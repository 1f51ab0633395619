"""Which lines of a rank have come, and what do they add up to? De-duplication, holes, digests.

A line is known by its boot and `seq`. A line is new at most once, in whatever order lines come. The
digest of a boot depends on which lines came, and not on their order or number. Two different lines
of one (rank, boot, seq) are a conflict, because then two processes write one stream. Lines of a
boot that another one replaced, or of another run, are stale: they are counted and never obeyed.

The digest of a boot is a chain over its lines in the order of `seq`, known at any moment up to the
first hole: d₀ = 32 zero bytes, dₖ = SHA-256(dₖ₋₁ ‖ the first 16 bytes of SHA-256 of line k). These
sixteen bytes are kept for each line, so that a repeated line differs from a forged one.
"""

from base64 import b64decode, b64encode
from dataclasses import dataclass, field
from enum import StrEnum
from hashlib import sha256
from typing import Any, NamedTuple

from gonogo.contract.heartbeat import Heartbeat

DIGEST_BYTES = 16
START = bytes(32)
MAX_RANGES = 1024
"""Separate holes whose places are kept; the oldest are forgotten beyond that."""


class Line(NamedTuple):
    """A heartbeat, and the digest of the bytes that it was read from."""

    beat: Heartbeat
    digest: bytes


def digest_of(raw: bytes) -> bytes:
    """Return the digest by which a line is known; white space around it does not count."""
    return sha256(raw.strip()).digest()[:DIGEST_BYTES]


def line_of(beat: Heartbeat) -> Line:
    """Return a heartbeat that was never bytes as a line."""
    return Line(beat, digest_of(beat.model_dump_json().encode("utf-8", "surrogatepass")))


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
    contiguous: int = -1
    """Highest seq up to which none is missing; one below the first while that is missing."""
    digests: bytearray = field(default_factory=bytearray)
    """`DIGEST_BYTES` of each line from `first` up to `contiguous`."""
    ahead: dict[int, bytes] = field(default_factory=dict)
    """Seq beyond the first hole → the digest of its line."""
    missing: list[tuple[int, int]] = field(default_factory=list)
    """Holes below `top`: first and last seq of each, ascending."""

    def take(self, seq: int, digest: bytes) -> Arrival:
        """Take one line and return what it is."""
        if self.first < 0:
            self.first = min(seq, 1)
            self.contiguous = self.first - 1
        if seq > self.contiguous + 1:
            return self._hold(seq, digest)
        if seq <= self.contiguous:
            start = (seq - self.first) * DIGEST_BYTES
            is_same = start >= 0 and self.digests[start : start + DIGEST_BYTES] == digest
            return Arrival.DUPLICATE if is_same else Arrival.CONFLICT
        self.count += 1
        self._link(digest)
        while self.ahead and (held := self.ahead.pop(self.contiguous + 1, None)) is not None:
            self._link(held)
        if seq > self.top:
            self.top = seq
            return _NEW
        self._fill(seq)
        return Arrival.LATE

    def _link(self, digest: bytes) -> None:
        self.digests += digest
        self.chain = sha256(self.chain + digest).digest()
        self.contiguous += 1

    def _hold(self, seq: int, digest: bytes) -> Arrival:
        """Take a line beyond the first hole."""
        held = self.ahead.get(seq)
        if held is not None:
            return Arrival.DUPLICATE if held == digest else Arrival.CONFLICT
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

    def dump(self) -> dict[str, Any]:
        """Return the JSON form, for a snapshot."""
        return {
            "first": self.first,
            "top": self.top,
            "count": self.count,
            "chain": self.chain.hex(),
            "contiguous": self.contiguous,
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
            contiguous=document["contiguous"],
            digests=bytearray(b64decode(document["digests"])),
            ahead={int(seq): bytes.fromhex(held) for seq, held in document["ahead"].items()},
            missing=[(first, last) for first, last in document["missing"]],
        )
