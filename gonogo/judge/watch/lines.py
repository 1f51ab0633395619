"""Which lines of a rank have come, and what do they add up to? De-duplication, holes, digests.

A line is known by its boot and `seq`. Guarantees: a line is new at most once, in whatever order
lines come; the digest of a boot depends on which lines came and not on their order or number; two
different lines of one (rank, boot, seq) are a conflict, for then two processes write one stream.
Lines of a boot that another one replaced, or of another run, are stale: counted, never obeyed.

The digest of a boot is a chain over its lines in the order of `seq`, so that it can be told at any
moment up to the first hole: d₀ = 32 zero bytes, dₖ = SHA-256(dₖ₋₁ ‖ the first 16 bytes of SHA-256
of the canonical line k). Sixteen bytes a line are kept, to tell a repeated line from a forged one.
"""

import hashlib
from base64 import b64decode, b64encode
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import pairwise
from typing import Any

from gonogo.contract.heartbeat import Heartbeat, Msg, canonical_line
from gonogo.contract.tick import LinesSeen

DIGEST_BYTES = 16
START = bytes(32)
FIRST_SEQ = 2
"""Highest seq of the line after a boot line."""
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
        return max(self.first, 0) + len(self.digests) // DIGEST_BYTES - 1

    def take(self, seq: int, digest: bytes) -> Arrival:
        """Take one line and return what it is."""
        if self.first < 0:
            self.first = min(seq, 1)
        elif seq == 0 and self.first == 1:
            return self._begin_lower(digest)
        upto = self.contiguous
        if seq <= upto:
            known = self._digest_at(seq)
        elif seq == upto + 1:
            return self._append(seq, digest)
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
        arrival = Arrival.NEW if seq > self.top else Arrival.LATE
        self.top = max(self.top, seq)
        self.count += 1
        self._link(digest)
        if arrival is Arrival.LATE:
            self._fill(seq)
        while self.ahead and (held := self.ahead.pop(self.contiguous + 1, None)) is not None:
            self._link(held)
        return arrival

    def _link(self, digest: bytes) -> None:
        self.digests += digest
        self.chain = hashlib.sha256(self.chain + digest).digest()

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
            chain = hashlib.sha256(chain + self.ahead[seq]).digest()
        return chain.hex()

    def chains(self) -> Iterator[tuple[int, str]]:
        """Yield every seq up to the first hole, and the digest of the lines up to it; hex."""
        chain = START
        for place, start in enumerate(range(0, len(self.digests), DIGEST_BYTES)):
            held = bytes(self.digests[start : start + DIGEST_BYTES])
            chain = hashlib.sha256(chain + held).digest()
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


@dataclass(slots=True)
class LineRecord:
    """All lines of one rank's file. It moves on with the fold and is never copied."""

    run: str | None = None
    """The run and attempt that boot lines must name, where they name any."""
    attempt: int | None = None
    boot: str | None = None
    """The boot that is obeyed."""
    boots: dict[str, BootLines] = field(default_factory=dict)
    refused: set[str] = field(default_factory=set)
    """Boots that are over, or that are another run's."""
    duplicates: int = 0
    conflicts: int = 0
    stale: int = 0
    last_mono: float = 0.0
    """The rank's own clock on the last line that was obeyed."""
    _obeyed: BootLines | None = None
    _beside: tuple[int, str | None] | None = None
    """Count and digest of the lines of other boots, until one of them changes."""

    @property
    def now(self) -> BootLines:
        """The lines of the boot that is obeyed."""
        return self._obeyed or BootLines()

    def admit(self, beat: Heartbeat) -> Arrival:
        """Take one line and return what it is to the stream."""
        digest = hashlib.sha256(canonical_line(beat)).digest()[:DIGEST_BYTES]
        obeyed = self._obeyed
        if obeyed is not None and beat.boot == self.boot:
            arrival = obeyed.take(beat.seq, digest)
            self.last_mono = max(self.last_mono, beat.mono)
        else:
            arrival = self._admit_other(beat, digest)
        if arrival is Arrival.DUPLICATE:
            self.duplicates += 1
        elif arrival is Arrival.CONFLICT:
            self.conflicts += 1
        return arrival

    def _admit_other(self, beat: Heartbeat, digest: bytes) -> Arrival:
        """Take a line of another boot than the one obeyed: a restart, or a line to refuse."""
        boot = beat.boot
        self._beside = None
        lines = self.boots.setdefault(boot, BootLines())
        arrival = lines.take(beat.seq, digest)
        if arrival in (Arrival.DUPLICATE, Arrival.CONFLICT):
            return arrival
        if boot not in self.refused and self._is_foreign(beat):
            self.refused.add(boot)
        if boot in self.refused or (self.boot is not None and not self._restarts(beat)):
            self.stale += 1
            return Arrival.STALE
        if self.boot is not None:
            self.refused.add(self.boot)
        self.boot, self._obeyed, self.last_mono = boot, lines, beat.mono
        return Arrival.NEW

    def _restarts(self, beat: Heartbeat) -> bool:
        """Whether a line of another boot begins it: its boot line, or the next where that is torn.

        An earlier process's lines are older than what has been obeyed; a restart's are newer.
        """
        if beat.msg == Msg.BOOT:
            return True
        return beat.seq <= FIRST_SEQ and beat.mono > self.last_mono

    def refuse(self, boot: str) -> None:
        """Refuse a boot whose lines stand in front of another one's."""
        self.refused.add(boot)

    def _is_foreign(self, beat: Heartbeat) -> bool:
        """Whether a boot line names another run or attempt than this one."""
        if beat.msg != Msg.BOOT:
            return False
        other_run = None not in (beat.run, self.run) and beat.run != self.run
        other_attempt = None not in (beat.attempt, self.attempt) and beat.attempt != self.attempt
        return other_run or other_attempt

    def seen(self) -> LinesSeen | None:
        """Return how far the obeyed boot has been read, for a tick; None before any line."""
        if self.boot is None or self._obeyed is None:
            return None
        lines = self._obeyed
        return LinesSeen(
            boot=self.boot,
            seq=max(lines.contiguous, 0),
            digest=lines.chain.hex(),
            others=self.others(),
            before=self.before(),
        )

    def others(self) -> int:
        """Return how many lines came besides those of the obeyed boot."""
        return self.conflicts + self._others()[0]

    def before(self) -> str | None:
        """Return the digest of all lines of other boots than the obeyed one; None without any.

        A boot's last lines may come with the next one's first, so that no tick tells its end.
        """
        return self._others()[1]

    def _others(self) -> tuple[int, str | None]:
        if self._beside is None:
            rows = [(boot, row) for boot, row in self.every_boot() if boot != self.boot]
            text = "\n".join(f"{boot}\n{row.digest()}" for boot, row in rows)
            digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
            told = digest if len(self.boots) != 1 else None
            self._beside = sum(row.count for _, row in rows), told
        return self._beside

    def distinct(self) -> int:
        """Return how many lines came, each boot and seq once."""
        return sum(lines.count for lines in self.boots.values())

    def every_boot(self) -> Iterator[tuple[str, BootLines]]:
        """Yield every boot whose lines came, refused ones included, by name."""
        return iter(sorted(self.boots.items()))

    def dump(self) -> dict[str, Any]:
        """Return the JSON form, for a snapshot."""
        return {
            "run": self.run,
            "attempt": self.attempt,
            "boot": self.boot,
            "boots": {boot: lines.dump() for boot, lines in self.boots.items()},
            "refused": sorted(self.refused),
            "duplicates": self.duplicates,
            "conflicts": self.conflicts,
            "stale": self.stale,
            "last_mono": self.last_mono,
        }

    @classmethod
    def load(cls, document: dict[str, Any]) -> "LineRecord":
        """Return what `dump` wrote."""
        boots = {boot: BootLines.load(lines) for boot, lines in document["boots"].items()}
        return cls(
            run=document["run"],
            attempt=document["attempt"],
            boot=document["boot"],
            boots=boots,
            refused=set(document["refused"]),
            duplicates=document["duplicates"],
            conflicts=document["conflicts"],
            stale=document["stale"],
            last_mono=document["last_mono"],
            _obeyed=boots.get(document["boot"]),
        )


def by_seq(beats: list[Heartbeat]) -> list[Heartbeat]:
    """Return the lines of one read, sorted by seq within each boot (boots as they first appear)."""
    if all(a.boot == b.boot and a.seq < b.seq for a, b in pairwise(beats)):
        return beats
    boots = {boot: place for place, boot in enumerate(dict.fromkeys(b.boot for b in beats))}
    return sorted(beats, key=lambda beat: (boots[beat.boot], beat.seq))


def boots_in_front(beats: list[Heartbeat]) -> set[str]:
    """Return the boots of a rank's first read that another one's `boot` line follows.

    What stands before the last boot line, when a file is read for the first time, an earlier
    process has left; whatever it says, it is not this run.
    """
    if not beats or beats[0].boot == beats[-1].boot:
        return set()
    booted = [beat.boot for beat in beats if beat.msg == Msg.BOOT]
    if not booted:
        return set()
    return {beat.boot for beat in beats} - {booted[-1]}
