"""What do the recorded ticks of a run amount to? Folded, and checked link by link.

A watch counts as whole when its ticks form one chain, the first tick of every watcher names this
run and its order, no tick is missing for longer than `HOLE_S` (`AWAY_S` where the watcher says that
it was away), every tick's digests are those of the lines in the files, the last ticks reach the
last line of every boot, and every detector that the order names is there. What follows the ticks
that exit.json seals may show the end, and may not take back what was recorded before. Each
shortcoming is one sentence in `problems`; nothing here says what they mean for a verdict.
"""

import hashlib
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from gonogo.contract.device import devices_in
from gonogo.contract.errors import Corrupt
from gonogo.contract.facts import ProcessExit
from gonogo.contract.finding import Finding
from gonogo.contract.order import Order
from gonogo.contract.records import ExitRecord
from gonogo.contract.tick import (
    FileSeal,
    LinesSeen,
    ProcessState,
    RankProbe,
    Tick,
    WatchStart,
    parse_rank,
)
from gonogo.judge.watch.brought import ByBytes, BySeq
from gonogo.judge.watch.device_rows import DeviceRows
from gonogo.judge.watch.fold import Sink, WatchState, fold, start
from gonogo.judge.watch.registry import missing_detectors, missing_text
from gonogo.rundir import RunDir, iter_lines, load_record

HOLE_S = 15.0
AWAY_S = 300.0
"""How long a watcher may say of itself that it was away (its host slept, it was restarted)."""
MOST_PROBLEMS = 20
TOLD_BYTES = 16
"""Of each device sample's digest that are kept."""
_WRITTEN_AGAIN = re.compile(r"exit_rank\d+\.json")
"""What a rank that starts anew in place writes again, up to the end of the run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BootRecord:
    """The lines of one boot of one rank."""

    lines: int
    digest: str
    top: int
    gaps: int
    obeyed: bool
    """Whether it is the boot that the rank ended with, or one before it that was replaced."""


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
    agent: ProcessExit | None = None
    """How a tick saw torchrun end."""
    heard: Mapping[int, tuple[float, float]] = field(default_factory=dict)
    """Rank → clock of the first and of the last tick that brought lines of it."""
    problems: tuple[str, ...] = ()
    devices_said: DeviceRows = field(default_factory=DeviceRows)
    """What the ticks say of the devices."""
    devices: bytes = b""
    """Digests of the device samples that ticks carry, `TOLD_BYTES` of each."""


def tick_digest(tick: Tick) -> str:
    """Return the digest of a recorded tick, which the next one names.

    SHA-256 of the tick as compact JSON with sorted keys, defaults left out and floats as Python
    writes them (the shortest text that gives the same double): a tenth of RFC 8785's time, and
    ticks are many.
    """
    document = tick.model_dump(mode="json", exclude_defaults=True)
    text = json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def fold_recorded(
    run_dir: RunDir, order: Order, make_sink: Callable[[], Sink] | None
) -> tuple[WatchState, list[Finding], WatchRecord]:
    """Fold watch.jsonl with the bytes of each tick; by `seq` where the files were rearranged."""
    by_bytes = _Pass(run_dir, order, make_sink, ByBytes(run_dir))
    by_bytes.run()
    if by_bytes.is_whole():
        return by_bytes.result()
    by_seq = _Pass(run_dir, order, make_sink, BySeq(run_dir))
    by_seq.run()
    by_seq.state.view.unreadable = by_bytes.state.view.unreadable  # by seq they are passed over
    if by_seq.is_whole() or make_sink is None:
        return (by_seq if by_seq.is_whole() else by_bytes).result()
    again = _Pass(run_dir, order, make_sink, ByBytes(run_dir))  # its sink must be the last made
    again.run()
    return again.result()


class _Pass:
    """One pass over ticks and lines."""

    def __init__(
        self,
        run_dir: RunDir,
        order: Order,
        make_sink: Callable[[], Sink] | None,
        source: ByBytes | BySeq,
    ) -> None:
        self._dir, self._source = run_dir, source
        self._sink = make_sink() if make_sink is not None else None
        self.state = start(order)
        self.findings: list[Finding] = []
        self._ticks = self._unreadable = 0
        self._starts: list[WatchStart] = []
        self._files: dict[str, FileSeal] = {}
        self._probes: dict[str, Any] = {}
        self._agent: ProcessExit | None = None
        self._heard: dict[int, tuple[float, float]] = {}
        self._device_rows = DeviceRows()
        self._away_s, self._back_at = 0.0, -math.inf
        self._devices = bytearray()
        self._seen: dict[tuple[str, str], int] = {}
        self._last: Tick | None = None
        self._previous: str | None = None
        self._longest_gap_s = 0.0
        self._chained = self._agrees = True
        self._unwatched = 0
        self._problems: list[str] = []
        self._exit = _exit_of(run_dir)
        self._beyond = False
        self._lived: dict[int, bool] = {}
        self._last_seen: dict[int, LinesSeen] = {}

    def run(self) -> None:
        """Fold every tick, then what no tick brought."""
        sealed = self._exit.watch if self._exit is not None else None
        end = 0
        for number, raw in enumerate(iter_lines(self._dir.watch), start=1):
            end += len(raw)
            if not raw.strip():
                continue  # a blank line tells nothing
            self._beyond = sealed is not None and end > sealed.bytes
            try:
                tick = Tick.model_validate_json(raw)
            except ValidationError:
                self._unreadable += 1
                self._say(f"watch.jsonl: line {number} is no tick")
                continue
            self._link(tick, number)
            self._hear(tick)
            self._compare(tick, number)
        if self._last is None:
            self._say("watch.jsonl holds no tick")
        self._fold_the_rest()

    def _away(self, left: float, back: float) -> float:
        """Return for how long nobody watched until `back`, absences that follow closely together.

        A deadline is armed anew after an absence: of several with moments between them each would
        be too short to be seen, and what stood all the while would not be found.
        """
        if back - left > HOLE_S:
            again = left - self._back_at < AWAY_S
            self._away_s = (self._away_s if again else 0.0) + back - left
            self._back_at = back
            return self._away_s
        return back - left

    def _link(self, tick: Tick, number: int) -> None:
        """Check a tick against the one before it, and take note of what it records."""
        last = self._last
        if tick.prev != self._previous:
            self._chained = False
            self._say(f"watch.jsonl: tick {number} does not follow from the one before it")
        if last is not None:
            gap_s = tick.mono - last.mono - tick.late_s
            self._longest_gap_s = max(self._longest_gap_s, gap_s)
            away_s = self._away(last.mono, tick.mono)
            if away_s > AWAY_S:
                self._say(f"watch.jsonl: nobody watched for {away_s:.0f} s before tick {number}")
            elif gap_s > HOLE_S:
                self._say(f"watch.jsonl: {gap_s:.0f} s without a tick before tick {number}")
            if tick.mono < last.mono:
                self._chained = False
                self._say(f"watch.jsonl: the clock of tick {number} runs backwards")
        if tick.start is not None:
            self._starts.append(tick.start)
        self._take_seals(tick, number)
        self._take_devices(tick, number)
        for probe in tick.ranks:
            self._take_probe(probe, number)
        agent = tick.agent
        if agent is not None and (agent.code is not None or agent.signal is not None):
            self._agent = ProcessExit(code=agent.code, signal=agent.signal)
        self._ticks += 1
        self._previous, self._last = tick_digest(tick), tick

    def _take_seals(self, tick: Tick, number: int) -> None:
        """Keep the seals of a tick; another seal of what is written once is a problem."""
        ended = "exit.json" in self._files
        for name, seal in tick.files.items():
            again = (name == "model.json" and not self._beyond) or (
                _WRITTEN_AGAIN.fullmatch(name) is not None and not ended
            )
            if not again and self._files.setdefault(name, seal) != seal:
                self._say(f"watch.jsonl: tick {number} seals {name} again, with other bytes")
            self._files[name] = seal

    def _take_devices(self, tick: Tick, number: int) -> None:
        """Keep what a tick tells of the devices; of times long before the last tick it may not."""
        samples, last = devices_in(tick), self._last
        if last is not None and any(row.mono < last.mono - HOLE_S for row in samples):
            self._say(f"watch.jsonl: tick {number} tells of devices what the one before it owed")
        self._device_rows.take(samples)
        for sample in samples:
            self._devices += sample.digest()[:TOLD_BYTES]

    def _take_probe(self, probe: RankProbe, number: int) -> None:
        """Keep how a rank was seen to end; after the end of the run that changes no more."""
        if probe.code is not None or probe.signal is not None:
            end = {"code": probe.code, "signal": probe.signal}
            known = self._probes.setdefault(str(probe.rank), end)
            if known != end and self._beyond and not self._lived.get(probe.rank):
                self._say(f"watch.jsonl: tick {number} gives rank {probe.rank} another exit")
            self._probes[str(probe.rank)] = end
        if probe.state is ProcessState.DEAD or not self._beyond:
            self._lived[probe.rank] = probe.state is not ProcessState.DEAD

    def _hear(self, tick: Tick) -> None:
        """Fold a tick with the lines that it brought."""
        beats = self._source.lines_of(tick)
        for rank, lines in beats.items():
            if lines:
                self._heard[rank] = self._heard.get(rank, (tick.mono, 0.0))[0], tick.mono
        self._fold(tick, beats)

    def _fold(self, tick: Tick, beats: Mapping[int, Sequence[bytes]]) -> None:
        self.state, found = fold(self.state, tick, beats, self._sink)
        self.findings += found

    def _compare(self, tick: Tick, number: int) -> None:
        """Hold a tick's digests against those of the lines in the files."""
        for name, seen in tick.lines.items():
            rank = parse_rank(name)
            record = None if rank is None else self.state.view.lines.get(rank)
            if record is None or not _agree(record.seen(), seen):
                if self._agrees:
                    text = f"rank {name[:8]}: its lines up to tick {number} are not those watched"
                    self._say(text)
                self._agrees = False
            if rank is not None:
                self._last_seen[rank] = seen
            self._seen[name, seen.boot] = max(self._seen.get((name, seen.boot), -1), seen.seq)

    def _fold_the_rest(self) -> None:
        """Fold lines that no tick brought with the clock of the last tick."""
        last = self._last
        for beats in self._source.rest():
            self._unwatched += sum(map(len, beats.values()))
            tick = Tick(n=0, mono=0.0, ts=0.0) if last is None else _after(last)
            self._fold(tick, beats)

    def is_whole(self) -> bool:
        """Say whether the files gave every tick the lines that it saw, and no more."""
        return self._agrees and not self._unwatched

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
        reaches = self._reaches()
        if not reaches:
            self._say("the ticks do not reach every line")
        for name in missing_detectors(self.state.view.run):
            self._say(missing_text(name))
        self._count()
        record = WatchRecord(
            ticks=self._ticks,
            starts=tuple(self._starts),
            chained=self._chained and not self._unreadable,
            digest=self._previous or hashlib.sha256(b"").hexdigest(),
            longest_gap_s=round(self._longest_gap_s, 3),
            agrees=self._agrees,
            reaches=reaches,
            files=self._files,
            unreadable=self._unreadable,
            probes=self._probes,
            agent=self._agent,
            heard=self._heard,
            problems=tuple(self._problems),
            devices_said=self._device_rows,
            devices=bytes(self._devices),
        )
        return self.state, self.findings, record

    def _count(self) -> None:
        """Hold the number of lines against what the ticks and exit.json say there were."""
        sealed = self._exit.heartbeats if self._exit is not None else None
        for rank, record in self.state.view.lines.items():
            seen = self._last_seen.get(rank)
            if seen is not None and seen.boot == record.boot:
                gone = seen.others - record.others()
                if gone > 0:
                    self._say(f"rank {rank}: {gone} lines that the watcher had read are gone")
                elif seen.before is not None and not gone and seen.before != record.before():
                    self._say(f"rank {rank}: lines of an earlier boot are not those watched")
            if sealed is None:
                continue
            written = sealed.get(self._dir.heartbeat(rank).name)
            more = record.distinct() - (written.lines if written is not None else 0)
            if more > 0:
                self._say(f"rank {rank}: {more} lines were added after the end of the run")

    def _say(self, problem: str) -> None:
        if len(self._problems) < MOST_PROBLEMS:
            self._problems.append(problem)


def _exit_of(run_dir: RunDir) -> ExitRecord | None:
    """Return exit.json; None where it is missing or cannot be read, which others name."""
    try:
        return load_record(run_dir.exit, ExitRecord)
    except (Corrupt, OSError):
        return None


def _agree(found: LinesSeen | None, seen: LinesSeen) -> bool:
    """Say whether lines are those that a tick saw; how many came besides is told at the end."""
    return found is not None and (found.boot, found.seq, found.digest) == (
        seen.boot,
        seen.seq,
        seen.digest,
    )


def _after(last: Tick) -> Tick:
    return Tick(n=last.n + 1, mono=last.mono, ts=last.ts, interval_s=last.interval_s)


def boots_of(state: WatchState) -> dict[int, dict[str, BootRecord]]:
    """Return what came of every boot of every rank."""
    return {
        rank: {
            boot: BootRecord(
                lines=lines.count,
                digest=lines.digest(),
                top=lines.top,
                gaps=lines.gaps(),
                obeyed=boot not in record.refused,
            )
            for boot, lines in record.every_boot()
        }
        for rank, record in sorted(state.view.lines.items())
    }
