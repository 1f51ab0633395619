"""What do the recorded ticks of a run amount to? Folded, and checked link by link.

A watch counts as whole when its ticks are one chain (`ticks`), the first tick of every watcher
names this run and its order, every tick's digests are those of the lines in the files, the last
ticks reach the last line of every boot, and every detector that the order names is there, in a
version that is known here. Each shortcoming is one sentence in `problems`; nothing here says what
they mean for a verdict.

Each tick gets its lines by the bytes that it says it had read, as long as its digests cover every
line: then the files are as they were. Where a line is lost, or lines were moved, they are taken in
the order of their `seq`, so that what comes of them is the same wherever they stand.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from gonogo.contract.doubt import Doubt, DoubtKind
from gonogo.contract.facts import ProcessExit
from gonogo.contract.finding import Finding
from gonogo.contract.order import Order
from gonogo.contract.records import ExitRecord
from gonogo.contract.tick import FileSeal, LinesSeen, Tick, WatchStart, parse_rank
from gonogo.rundir import TICK_BYTES, RunDir, iter_lines
from gonogo.timeline.boots import LineRecord
from gonogo.timeline.timeline import Sink
from gonogo.watch.brought import ByBytes, BySeq
from gonogo.watch.device_rows import DeviceRows
from gonogo.watch.fold import fold, start
from gonogo.watch.registry import missing_detectors
from gonogo.watch.ticks import TickChain
from gonogo.watch.watch_state import WatchState


@dataclass(frozen=True, slots=True, kw_only=True)
class BootRecord:
    """The lines of one boot of one rank."""

    lines: int
    digest: str
    top: int
    gaps: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchRecord:
    """What watch.jsonl amounts to."""

    ticks: int
    starts: tuple[WatchStart, ...]
    chained: bool
    """Whether every tick names the digest of the one before."""
    digest: str
    """Of the last tick, and by the chain of all of them."""
    longest_gap_s: float
    """Between recorded ticks, by the watcher's clock, its own absence as it said it left out."""
    agrees: bool
    """Whether every tick's digests of lines are those of the files."""
    reaches: bool
    """Whether the ticks reach the last line of every rank and boot."""
    files: Mapping[str, FileSeal]
    """Files as the watcher saw them complete."""
    unreadable: int
    probes: Mapping[str, Any] = field(default_factory=dict)
    """Rank → exit code or signal that a tick saw: `{"code": …, "signal": …}`."""
    looked: frozenset[int] = frozenset()
    """Ranks whose process a tick knew the state of."""
    silent_s: Mapping[int, float] = field(default_factory=dict)
    """Node → seconds in which nothing came from it."""
    agent: ProcessExit | None = None
    """How a tick saw torchrun end."""
    heard: Mapping[int, tuple[float, float]] = field(default_factory=dict)
    """Rank → clock of the first and of the last tick that brought lines of it."""
    found_mono: Mapping[int, float] = field(default_factory=dict)
    """Rank → its own clock on the last line that lay there when the first tick of all was made."""
    heard_late_s: Mapping[int, float] = field(default_factory=dict)
    """Rank → how late the last of them was: its lines may have lain there for as long."""
    heard_alone_s: Mapping[int, float] = field(default_factory=dict)
    """Rank → seconds in which its processes were surely heard, without what lies between two."""
    boots: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    """Rank → its boots in the order in which the ticks name them."""
    problems: tuple[Doubt, ...] = ()
    devices_said: DeviceRows = field(default_factory=DeviceRows)
    """What the ticks say of the devices."""
    devices: bytes = b""
    """Digests of the device samples that ticks carry, `TOLD_BYTES` of each."""
    device_errors: Mapping[tuple[int, str], int] = field(default_factory=dict)
    """Rank and its device → uncorrectable memory errors in the first sample that counts them."""
    read: FileSeal | None = None
    """The bytes of watch.jsonl that were folded; None of a record that no file was read for."""


def fold_recorded(
    run_dir: RunDir,
    order: Order,
    exit_record: ExitRecord | None,
    make_sink: Callable[[], Sink] | None,
) -> tuple[WatchState, list[Finding], WatchRecord]:
    """Fold watch.jsonl with the bytes of each tick; by `seq` where they do not give its lines."""
    by_bytes = _Pass(run_dir, order, exit_record, make_sink, ByBytes(run_dir))
    by_bytes.run()
    if by_bytes.is_whole() and not by_bytes.lacks_lines():
        return by_bytes.result()
    by_seq = _Pass(
        run_dir, order, exit_record, make_sink, BySeq(run_dir, by_bytes.named, by_bytes.upto)
    )
    by_seq.run()
    by_seq.state.view.unreadable = by_bytes.state.view.unreadable  # by seq most are passed over
    return by_seq.result()


class _Pass:
    """One pass over ticks and lines."""

    def __init__(
        self,
        run_dir: RunDir,
        order: Order,
        exit_record: ExitRecord | None,
        make_sink: Callable[[], Sink] | None,
        source: ByBytes | BySeq,
    ) -> None:
        self._dir, self._source = run_dir, source
        self._sink = make_sink() if make_sink is not None else None
        self.state = start(order)
        self.findings: list[Finding] = []
        self.named: dict[int, dict[str, None]] = {}
        """Rank → its boots, each once, as the ticks name them."""
        self.upto: dict[int, int] = {}
        """Rank → bytes that the ticks say were read of its file."""
        self._chain = TickChain()
        self._heard: dict[int, tuple[float, float]] = {}
        self._found_mono: dict[int, float] = {}
        self._heard_late_s: dict[int, float] = {}
        self._heard_boots: dict[tuple[int, str], tuple[float, float]] = {}
        self._seen: dict[tuple[str, str], int] = {}
        self._agrees = True
        self._unwatched = 0
        self._exit = exit_record
        self._last_seen: dict[int, LinesSeen] = {}
        self._read, self._read_bytes = hashlib.sha256(), 0

    def run(self) -> None:
        """Fold every tick, then what no tick brought."""
        sealed = self._exit.watch if self._exit is not None else None
        for number, raw in enumerate(iter_lines(self._dir.watch, TICK_BYTES), start=1):
            self._read.update(raw)
            self._read_bytes += len(raw)
            if not raw.strip():
                continue  # a blank line tells nothing
            try:
                tick = Tick.model_validate_json(raw)
            except ValidationError:
                self._chain.miss(number)
                continue
            beyond = sealed is not None and self._read_bytes > sealed.bytes
            self._chain.take(tick, number, beyond=beyond)
            self._hear(tick)
            self._compare(tick, number)
        if self._chain.last is None:
            self._chain.say(Doubt(kind=DoubtKind.WATCH_BROKEN, name="the file holds no tick"))
        self._fold_the_rest()

    def _hear(self, tick: Tick) -> None:
        """Fold a tick with the lines that it brought."""
        beats = self._source.lines_of(tick)
        for rank, lines in beats.items():
            if lines:
                first, _ = self._heard.get(rank, (tick.mono, tick.mono))
                self._heard[rank] = first, tick.mono
                self._heard_late_s[rank] = tick.late_s
        self._fold(tick, beats)
        if self._chain.ticks == 1:
            found = self.state.view.lines
            self._found_mono = {
                rank: found[rank].last_mono for rank in self._heard if rank in found
            }

    def _fold(self, tick: Tick, beats: Mapping[int, Sequence[bytes]]) -> None:
        self.state, found = fold(self.state, tick, beats, self._sink)
        self.findings += found

    def _compare(self, tick: Tick, number: int) -> None:
        """Hold a tick's digests against those of the lines in the files."""
        for name, end in tick.upto.items():
            rank = parse_rank(name)
            if rank is not None:
                self.upto[rank] = max(end, self.upto.get(rank, 0))
        for name, seen in tick.lines.items():
            rank = parse_rank(name)
            record = None if rank is None else self.state.view.lines.get(rank)
            if record is None or not _agree(record, seen):
                if self._agrees:
                    kind = DoubtKind.LINES_CHANGED
                    self._chain.say(Doubt(kind=kind, rank=rank, name="some", found=number))
                self._agrees = False
            boot = seen.boot
            if rank is not None:
                self._last_seen[rank] = seen
                known = self._heard_boots.get((rank, boot))
                first = tick.mono if known is None else known[0]
                self._heard_boots[rank, boot] = first, max(first, tick.mono - tick.late_s)
                self.named.setdefault(rank, {})[boot] = None
            self._seen[name, boot] = max(self._seen.get((name, boot), -1), seen.seq)

    def _fold_the_rest(self) -> None:
        """Fold lines that no tick brought with the clock of the last tick."""
        last = self._chain.last
        for beats in self._source.rest():
            self._unwatched += sum(map(len, beats.values()))
            tick = Tick(n=0, mono=0.0, ts=0.0) if last is None else _after(last)
            self._fold(tick, beats)

    def is_whole(self) -> bool:
        """Say whether the files gave every tick the lines that it saw, and no more."""
        return self._agrees and not self._unwatched

    def lacks_lines(self) -> bool:
        """Say whether a line is missing: no tick's digest covers those beyond it."""
        return any(
            lines.missing
            for record in self.state.view.lines.values()
            for _, lines in record.every_boot()
        )

    def _reaches(self) -> bool:
        """Say whether the ticks reach the last line of every rank and boot."""
        if self._unwatched:
            return False
        for rank, record in self.state.view.lines.items():
            for boot, lines in record.every_boot():
                if boot == record.boot and self._seen.get((str(rank), boot), -1) < lines.contiguous:
                    return False
        return True

    def result(self) -> tuple[WatchState, list[Finding], WatchRecord]:
        """Return the state, the findings and what the ticks amount to."""
        reaches, chain = self._reaches(), self._chain
        for doubt in missing_detectors(self.state.view.run):
            chain.say(doubt)
        for name, text in self.state.failed.items():
            chain.say(Doubt(kind=DoubtKind.DETECTOR_FAILED, name=name, found=text))
        self._count()
        record = WatchRecord(
            ticks=chain.ticks,
            starts=tuple(chain.starts),
            chained=chain.chained and not chain.unreadable,
            digest=chain.digest,
            longest_gap_s=round(chain.longest_gap_s, 3),
            agrees=self._agrees,
            reaches=reaches,
            files=chain.files,
            unreadable=chain.unreadable,
            probes=chain.probes,
            looked=frozenset(chain.looked),
            silent_s=chain.silences(),
            agent=chain.agent,
            heard=self._heard,
            found_mono=self._found_mono,
            heard_late_s=self._heard_late_s,
            heard_alone_s=self._heard_alone_s(),
            boots={rank: tuple(boots) for rank, boots in self.named.items()},
            problems=tuple(chain.problems),
            devices_said=chain.device_rows,
            devices=bytes(chain.devices),
            device_errors=chain.device_errors,
            read=FileSeal(bytes=self._read_bytes, sha256=self._read.hexdigest()),
        )
        return self.state, self.findings, record

    def _heard_alone_s(self) -> dict[int, float]:
        found: dict[int, float] = {}
        for (rank, _), (first, last) in self._heard_boots.items():
            found[rank] = found.get(rank, 0.0) + last - first
        return found

    def _count(self) -> None:
        """Hold the number of lines against what the ticks and exit.json say there were."""
        sealed = self._exit.heartbeats if self._exit is not None else None
        for rank, record in self.state.view.lines.items():
            seen = self._last_seen.get(rank)
            if seen is not None and seen.boot == record.boot:
                gone = seen.others - record.others()
                if gone < 0:
                    self._unwatched_lines(rank, -gone)
                elif gone > 0 or seen.before != record.before():
                    changed = Doubt(
                        kind=DoubtKind.LINES_CHANGED, rank=rank, name=str(gone or "some")
                    )
                    self._chain.say(changed)
            if sealed is None:
                continue
            written = sealed.get(self._dir.heartbeat(rank).name)
            more = record.distinct() - (written.lines if written is not None else 0)
            if more > 0:
                self._unwatched_lines(rank, more)

    def _unwatched_lines(self, rank: int, count: int) -> None:
        self._chain.say(Doubt(kind=DoubtKind.LINES_UNWATCHED, rank=rank, found=count))


def _agree(record: LineRecord, seen: LinesSeen) -> bool:
    """Say whether lines are those that a tick saw; how many came besides is told at the end."""
    lines = record.now
    if record.boot != seen.boot or lines.chain.hex() != seen.digest:
        return False
    return lines.contiguous == seen.seq


def _after(last: Tick) -> Tick:
    return Tick(n=last.n + 1, mono=last.mono, ts=last.ts, interval_s=last.interval_s)


def boots_of(state: WatchState) -> dict[int, dict[str, BootRecord]]:
    """Return what came of every boot of every rank."""
    return {
        rank: {
            boot: BootRecord(
                lines=lines.count, digest=lines.digest(), top=lines.top, gaps=lines.gaps()
            )
            for boot, lines in record.every_boot()
        }
        for rank, record in sorted(state.view.lines.items())
    }
