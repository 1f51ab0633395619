"""Which lines of a rank's file have come? Its boots: who is obeyed, who is over, who is foreign.

A boot line, or the next one where that is torn, begins another boot; the one before it is refused
from then on, and so is one that names another run or attempt.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from gonogo.contract.heartbeat import Heartbeat, Msg
from gonogo.contract.tick import LinesSeen
from gonogo.timeline.lines import Arrival, BootLines, Line

_AGAIN = frozenset({Arrival.DUPLICATE, Arrival.CONFLICT})
FIRST_SEQ = 2
"""Highest seq of the line after a boot line."""


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

    def admit(self, line: Line) -> Arrival:
        """Take one line and return what it is to the stream."""
        beat, digest = line
        obeyed = self._obeyed
        if obeyed is not None and beat.boot == self.boot:
            arrival = obeyed.take(beat.seq, digest)
            if beat.mono > self.last_mono:
                self.last_mono = beat.mono
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
        if arrival in _AGAIN:
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


def by_seq(lines: list[Line]) -> list[Line]:
    """Return the lines of one read, sorted by seq within each boot (boots as they first appear)."""
    names = dict.fromkeys(row.beat.boot for row in lines)
    boots = {boot: place for place, boot in enumerate(names)}
    return sorted(lines, key=lambda row: (boots[row.beat.boot], row.beat.seq))


def boots_in_front(lines: list[Line]) -> set[str]:
    """Return the boots of a rank's first read that another one's `boot` line follows.

    An earlier process has left what stands before the last boot line when a file is read for the
    first time. Whatever those lines say, they are not of this run.
    """
    booted = [place for place, row in enumerate(lines) if row.beat.msg == Msg.BOOT]
    if not booted:
        return set()
    last = booted[-1]
    return {row.beat.boot for row in lines[:last]} - {lines[last].beat.boot}


def boots_in_order(began_mono: Mapping[str, float], named: Iterable[str] = ()) -> list[str]:
    """Return the boots of a rank, the first one first, by clocks that cannot be set.

    The watcher's ticks name boots in the order of its own clock. Boots that no tick names are
    placed among them by their first stamp on the monotonic clock.

    Args:
        began_mono: boot → its first stamp, in seconds of the rank's monotonic clock.
        named: boots as the ticks name them, each as often as they do.
    """
    known = [boot for boot in dict.fromkeys(named) if boot in began_mono]
    told = frozenset(known)
    others = sorted(
        (boot for boot in began_mono if boot not in told),
        key=lambda boot: (began_mono[boot], boot),
    )
    found: list[str] = []
    place = 0
    for boot in known:
        while place < len(others) and began_mono[others[place]] < began_mono[boot]:
            found.append(others[place])
            place += 1
        found.append(boot)
    return found + others[place:]
