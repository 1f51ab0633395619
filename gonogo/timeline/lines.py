"""Which lines of a rank have come, and what do they add up to? De-duplication, holes, digests.

A line is known by its boot and `seq`. A line is new at most once, in whatever order lines come. The
digest of a boot depends on which lines came, and not on their order or number. Two different lines
of one (rank, boot, seq) are a conflict, because then two processes write one stream. Lines of a
boot that another one replaced, or of another run, are stale: they are counted and never obeyed.

The digest of a boot is a chain over its lines. They are in the order of `seq`, known at any moment
up to the
first hole: d₀ = 32 zero bytes, dₖ = SHA-256(dₖ₋₁ ‖ the first 16 bytes of SHA-256 of line k). These
sixteen bytes are kept for each line, so that a repeated line differs from a forged one.

A boot line begins another boot, or the next line where that is torn. The boot before it is refused
from then on, and so is a boot that names another run or attempt.
"""

from base64 import b64decode, b64encode
from dataclasses import dataclass, field
from enum import StrEnum
from hashlib import sha256
from typing import Annotated, NamedTuple

from pydantic import PlainSerializer, PlainValidator

from gonogo.contract.errors import Corrupt
from gonogo.contract.heartbeat import Heartbeat, Msg, parse_heartbeat
from gonogo.contract.records import LinesSeen

DIGEST_BYTES = 16
START = bytes(32)
FIRST_SEQ = 2
"""Highest seq of the line after a boot line."""

Hex = Annotated[bytes, PlainValidator(bytes.fromhex), PlainSerializer(bytes.hex, return_type=str)]
Base64 = Annotated[
    bytearray,
    PlainValidator(lambda text: bytearray(b64decode(text))),
    PlainSerializer(lambda data: b64encode(data).decode(), return_type=str),
]
"""Their form in a snapshot."""


class Line(NamedTuple):
    """A heartbeat, and the digest of the bytes that it was read from."""

    beat: Heartbeat
    digest: bytes


def read_line(raw: bytes, rank: int) -> Line | None:
    """Return a rank's heartbeat and its digest; None for any other line."""
    try:
        beat = parse_heartbeat(raw)
    except Corrupt:
        return None
    # white space around a line does not count
    return Line(beat, sha256(raw.strip()).digest()[:DIGEST_BYTES]) if beat.rank == rank else None


class Arrival(StrEnum):
    """What a line is to its stream."""

    NEW = "new"
    """The next line, or one beyond a hole."""
    LATE = "late"
    """It fills a hole: its numbers count, but its position is old."""
    DUPLICATE = "duplicate"
    CONFLICT = "conflict"
    """Another line of the same boot and seq came before."""
    STALE = "stale"
    """From a boot that is over, of another run, or without `boot` while another runs."""


_NEW, _CONFLICT = Arrival.NEW, Arrival.CONFLICT
_AGAIN = frozenset({Arrival.DUPLICATE, Arrival.CONFLICT})


@dataclass(slots=True)
class BootLines:
    """The lines of one boot of one rank."""

    first: int = -1
    """Seq at which the boot begins: 0 or 1; -1 before any line."""
    top: int = -1
    """Highest seq."""
    count: int = 0
    chain: Hex = START
    """Digest up to `contiguous`."""
    contiguous: int = -1
    """Highest seq up to which none is missing; one below the first while that is missing."""
    digests: Base64 = field(default_factory=bytearray)
    """`DIGEST_BYTES` of each line from `first` up to `contiguous`."""
    ahead: dict[int, Hex] = field(default_factory=dict)
    """Seq beyond the first hole → the digest of its line."""

    def take(self, seq: int, digest: bytes) -> Arrival:
        """Take one line and return what it is."""
        if self.first < 0:
            self.first = min(seq, 1)
            self.contiguous = self.first - 1
        if seq > self.contiguous + 1:
            return self._hold(seq, digest)
        if seq < self.first:
            return self._put_first(digest)
        if seq <= self.contiguous:
            start = (seq - self.first) * DIGEST_BYTES
            is_same = self.digests[start : start + DIGEST_BYTES] == digest
            return Arrival.DUPLICATE if is_same else Arrival.CONFLICT
        self.count += 1
        link: bytes | None = digest
        while link is not None:
            self.digests += link
            self.chain = sha256(self.chain + link).digest()
            self.contiguous += 1
            link = self.ahead.pop(self.contiguous + 1, None) if self.ahead else None
        if seq < self.top:
            return Arrival.LATE
        self.top = seq
        return _NEW

    def _put_first(self, digest: bytes) -> Arrival:
        """Take the line of seq 0, which comes after lines behind it."""
        self.first, self.digests, self.chain = 0, bytearray(digest) + self.digests, START
        for start in range(0, len(self.digests), DIGEST_BYTES):
            link = self.digests[start : start + DIGEST_BYTES]
            self.chain = sha256(self.chain + link).digest()
        self.count += 1
        return Arrival.LATE

    def _hold(self, seq: int, digest: bytes) -> Arrival:
        """Take a line beyond the first hole."""
        held = self.ahead.get(seq)
        if held is not None:
            return Arrival.DUPLICATE if held == digest else Arrival.CONFLICT
        self.ahead[seq] = digest
        self.count += 1
        if seq < self.top:
            return Arrival.LATE
        self.top = seq
        return _NEW

    def gaps(self, below: int | None = None) -> int:
        """Return how many lines never came (of those with a seq under `below`)."""
        if not self.ahead:
            return 0
        limit = self.top if below is None else max(below, self.contiguous + 1)
        beyond = sum(seq in self.ahead for seq in range(limit, self.top + 1))
        return limit - 1 - self.contiguous - (len(self.ahead) - beyond)

    def digest(self) -> str:
        """Return the digest of all lines that came, holes passed over; hex."""
        chain = self.chain
        for seq in sorted(self.ahead):
            chain = sha256(chain + self.ahead[seq]).digest()
        return chain.hex()


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
    conflicts: int = 0
    stale: int = 0
    last_mono: float = 0.0
    """The rank's own clock on the last line that was obeyed."""

    @property
    def now(self) -> BootLines:
        """The lines of the boot that is obeyed."""
        return BootLines() if self.boot is None else self.boots[self.boot]

    def admit(self, line: Line) -> Arrival:
        """Take one line and return what it is to the stream."""
        beat, digest = line
        if beat.boot == self.boot:
            arrival = self.boots[beat.boot].take(beat.seq, digest)
            if beat.mono > self.last_mono:
                self.last_mono = beat.mono
        else:
            arrival = self._admit_other(beat, digest)
        if arrival is _CONFLICT:
            self.conflicts += 1
        return arrival

    def _admit_other(self, beat: Heartbeat, digest: bytes) -> Arrival:
        """Take a line of another boot than the one obeyed: a restart, or a line to refuse."""
        boot = beat.boot
        arrival = self.boots.setdefault(boot, BootLines()).take(beat.seq, digest)
        if arrival in _AGAIN:
            return arrival
        if self._is_foreign(beat):
            self.refused.add(boot)
        if boot in self.refused or (self.boot is not None and not self._restarts(beat)):
            self.stale += 1
            return Arrival.STALE
        if self.boot is not None:
            self.refused.add(self.boot)
        self.boot, self.last_mono = boot, beat.mono
        return Arrival.NEW

    def _restarts(self, beat: Heartbeat) -> bool:
        """Whether a line of another boot begins it: its boot line, or the next where that is torn.

        An earlier process's lines are older than what has been obeyed; a restart's are newer.
        """
        if beat.msg == Msg.BOOT:
            return True
        return beat.seq <= FIRST_SEQ and beat.mono > self.last_mono

    def _is_foreign(self, beat: Heartbeat) -> bool:
        """Whether a boot line names another run or attempt than this one."""
        if beat.msg != Msg.BOOT:
            return False
        other_run = None not in (beat.run, self.run) and beat.run != self.run
        other_attempt = None not in (beat.attempt, self.attempt) and beat.attempt != self.attempt
        return other_run or other_attempt

    def refuse_in_front(self, lines: list[Line]) -> None:
        """Refuse the boots of a rank's first read that another one's `boot` line follows.

        An earlier process has left what stands before the last boot line when a file is read for
        the first time. Whatever those lines report, they are not of this run.
        """
        booted = [place for place, row in enumerate(lines) if row.beat.msg == Msg.BOOT]
        if booted:
            last = booted[-1]
            self.refused |= {row.beat.boot for row in lines[:last]} - {lines[last].beat.boot}

    def seen(self) -> LinesSeen | None:
        """Return how far the obeyed boot has been read, for a tick; None before any line."""
        if self.boot is None:
            return None
        lines, (others, before) = self.now, self.beside()
        return LinesSeen(
            boot=self.boot,
            seq=max(lines.contiguous, 0),
            digest=lines.chain.hex(),
            others=others,
            before=before,
        )

    def is_at(self, seen: LinesSeen) -> bool:
        """Whether those lines have come that a tick had read, and no others."""
        if self.boot != seen.boot:
            return False
        lines, beside = self.boots[seen.boot], (seen.others, seen.before)
        read = lines.contiguous == seen.seq and lines.chain.hex() == seen.digest
        return read and self.beside() == beside

    def beside(self) -> tuple[int, str | None]:
        """Return how many lines came besides the obeyed boot's, and the digest of other boots'.

        A boot's last lines may come with the next one's first, so that no tick names its end.
        """
        if len(self.boots) == 1:
            return self.conflicts, None
        rows = [(boot, row) for boot, row in sorted(self.boots.items()) if boot != self.boot]
        text = "\n".join(f"{boot}\n{row.digest()}" for boot, row in rows)
        digest = sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
        return self.conflicts + sum(row.count for _, row in rows), digest

    def distinct(self) -> int:
        """Return how many lines came, each boot and seq once."""
        return sum(lines.count for lines in self.boots.values())
