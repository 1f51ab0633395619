"""What do the recorded ticks of a run show? One chain, checked tick by tick.

A watch is whole if its ticks are one chain without a gap and every line is one that a tick had
read. Each shortcoming is a doubt in `problems`. The first tick of each watcher names the run and
its order. Ticks behind those that exit.json seals may show the end, but they change nothing that
was recorded before.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field

from gonogo.contract.canonical import wire_line
from gonogo.contract.facts import ProcessExit
from gonogo.contract.finding import Doubt, DoubtKind
from gonogo.contract.observation import devices_in
from gonogo.contract.records import (
    FileSeal,
    LinesSeen,
    NodeProbe,
    NodeState,
    ProcessState,
    RankProbe,
    Tick,
    WatchStart,
    parse_rank,
)
from gonogo.timeline.lines import LineRecord
from gonogo.watch.detectors.hardware import DeviceRows

HOLE_S = 15.0
AWAY_S = 300.0
"""How long a watcher may say that it was away (its host slept, or it was restarted)."""
MOST_PROBLEMS = 20
TOLD_BYTES = 16
"""Bytes that are kept of each device sample's digest."""


def tick_line(tick: Tick) -> bytes:
    """Return the line of watch.jsonl that records a tick, with its newline."""
    return wire_line({"v": tick.v, **tick.model_dump(mode="json", exclude_defaults=True)})


def tick_digest(line: bytes) -> str:
    """Return the digest of a recorded tick, which the next one names: SHA-256 of its line.

    Args:
        line: as it was recorded, with or without its newline.
    """
    return hashlib.sha256(line.rstrip(b"\n")).hexdigest()


@dataclass(slots=True)
class Heard:
    """When ticks delivered lines of a rank, on the watcher's clock."""

    first_mono: float
    last_mono: float
    least_s: float = 0.0
    """Seconds in which its processes were surely heard, without the time between two of them."""
    boots: tuple[str, ...] = field(default=(), compare=False)
    """Its boots in the order in which the ticks name them."""
    seen: LinesSeen | None = field(default=None, compare=False)
    """What the last tick had read."""
    _surely_mono: float = field(default=0.0, compare=False)

    def hear(self, seen: LinesSeen, tick: Tick) -> None:
        """Take what a tick had read; its lines may have waited for as long as the tick was late."""
        surely_mono = tick.mono
        if self.boots and seen.boot == self.boots[-1]:
            surely_mono = max(self._surely_mono, tick.mono - tick.late_s)
            self.least_s += surely_mono - self._surely_mono
        else:
            self.boots = (*self.boots, seen.boot)
        self.last_mono, self.seen, self._surely_mono = tick.mono, seen, surely_mono


@dataclass(slots=True, kw_only=True)
class WatchRecord:
    """What watch.jsonl shows."""

    ticks: int = 0
    starts: list[WatchStart] = field(default_factory=list)
    chained: bool = True
    """Whether every tick names the digest of the one before."""
    digest: str = hashlib.sha256(b"").hexdigest()
    """Digest of the last tick, and through the chain of all ticks."""
    agrees: bool = True
    """Whether the digests of lines in every tick are those of the files."""
    reaches: bool = True
    """Whether the ticks had read every line."""
    files: dict[str, FileSeal] = field(default_factory=dict)
    """Files as the watcher saw them complete."""
    probes: dict[int, ProcessExit] = field(default_factory=dict)
    """Rank → how a tick saw it end."""
    looked: set[int] = field(default_factory=set)
    """Ranks whose process state was known to a tick."""
    agent: ProcessExit | None = None
    """How a tick saw torchrun end."""
    silent_s: dict[int, float] = field(default_factory=dict)
    """Node → seconds in which nothing came from it."""
    heard: dict[int, Heard] = field(default_factory=dict)
    """Rank → when ticks delivered lines of it."""
    problems: list[Doubt] = field(default_factory=list)
    device_rows: DeviceRows = field(default_factory=DeviceRows)
    devices: bytearray = field(default_factory=bytearray)
    """Digests of the device samples that ticks carry, `TOLD_BYTES` of each."""
    device_errors: dict[tuple[int, str], int] = field(default_factory=dict)
    """Rank and its device → uncorrectable memory errors in the first sample that counts them."""
    last: Tick | None = None
    _silent_since: dict[int, float] = field(default_factory=dict)
    """Node → clock of the tick that called it silent, while it is."""

    def add_problem(self, kind: DoubtKind, **fields: object) -> None:
        """Keep a shortcoming; of more than `MOST_PROBLEMS` the first ones."""
        if len(self.problems) < MOST_PROBLEMS:
            self.problems.append(Doubt.model_validate({"kind": kind, **fields}))

    def _broken(self, what: str, number: int, rank: int | None = None) -> None:
        self.add_problem(DoubtKind.WATCH_BROKEN, rank=rank, name=what, found=number)

    def miss(self, number: int) -> None:
        """Count a line that is no tick."""
        self.chained = False
        self._broken("it is no tick", number)

    def take(self, tick: Tick, line: bytes, number: int, *, beyond: bool) -> None:
        """Check a tick against the one before it, and keep what it records.

        Args:
            line: that records it.
            beyond: whether it follows those that exit.json seals.
        """
        if tick.prev != (self.digest if self.last is not None else None):
            self.chained = False
            self._broken("it does not follow from the one before it", number)
        passed_s = tick.mono - (tick.mono if self.last is None else self.last.mono)
        gap_s = passed_s - (0.0 if self.last is None else tick.late_s)
        if passed_s > AWAY_S or gap_s > HOLE_S:
            absent_s = round(passed_s if passed_s > AWAY_S else gap_s)
            self.add_problem(DoubtKind.WATCH_GAP, name=str(number), found=absent_s)
        if passed_s < 0.0:
            self.chained = False
            self._broken("its clock runs backwards", number)
        if tick.start is not None:
            self.starts.append(tick.start)
        self._take_seals(tick, number, beyond=beyond)
        self._take_devices(tick, number)
        for probe in tick.ranks:
            self._take_probe(probe, number, beyond=beyond)
        for node in tick.nodes:
            self._take_node(node, tick.mono)
        agent = tick.agent
        if agent is not None and (agent.code is not None or agent.signal is not None):
            self.agent = ProcessExit(code=agent.code, signal=agent.signal)
        self.ticks += 1
        self.digest, self.last = tick_digest(line), tick

    def _take_seals(self, tick: Tick, number: int, *, beyond: bool) -> None:
        """Keep the seals of a tick; a rank that restarts writes files again, until the end."""
        ended = beyond or "exit.json" in self.files
        for name, seal in tick.files.items():
            if ended and self.files.get(name, seal) != seal:
                self._broken(f"it seals {name} again, with other bytes", number)
            self.files[name] = seal

    def _take_devices(self, tick: Tick, number: int) -> None:
        """Keep the device samples of a tick; none may be from long before the last tick."""
        samples, last = devices_in(tick), self.last
        if last is not None and any(row.mono < last.mono - HOLE_S for row in samples):
            self._broken("its device samples are older than the tick before it", number)
        self.device_rows.take(samples)
        for sample in samples:
            self.devices += sample.digest()[:TOLD_BYTES]
            if sample.rank is not None and sample.ecc_uncorrected is not None:
                self.device_errors.setdefault((sample.rank, sample.uuid), sample.ecc_uncorrected)

    def _take_probe(self, probe: RankProbe, number: int, *, beyond: bool) -> None:
        """Keep how a rank was seen to end; after the end of the run this changes no more."""
        if probe.state is not ProcessState.UNKNOWN:
            self.looked.add(probe.rank)
        if probe.code is None and probe.signal is None:
            return
        end = ProcessExit(code=probe.code, signal=probe.signal)
        if beyond and self.probes.get(probe.rank, end) != end:
            self._broken("it gives the rank another exit", number, rank=probe.rank)
        self.probes[probe.rank] = end

    def _take_node(self, probe: NodeProbe, mono: float) -> None:
        """Keep for how long nothing came from a node, whose processes nobody observed then."""
        if probe.state is NodeState.SILENT:
            self._silent_since.setdefault(probe.node, mono)
            return
        since = self._silent_since.pop(probe.node, None)
        if since is not None:
            self.silent_s[probe.node] = self.silent_s.get(probe.node, 0.0) + mono - since

    def compare(self, tick: Tick, number: int, lines: Mapping[int, LineRecord]) -> None:
        """Compare what a tick had read with the lines up to there.

        Args:
            tick: the next one.
            number: of its line.
            lines: rank → the lines of the files that the ticks have delivered so far.
        """
        for name, seen in tick.lines.items():
            rank = parse_rank(name)
            record = None if rank is None else lines.get(rank)
            if record is None or not record.is_at(seen):
                if self.agrees:
                    kind = DoubtKind.LINES_CHANGED
                    self.add_problem(kind, rank=rank, name="some", found=number)
                self.agrees = False
            if rank is not None:
                self.heard.setdefault(rank, Heard(tick.mono, tick.mono)).hear(seen, tick)

    def close(self, lines: Mapping[int, LineRecord]) -> None:
        """End the record: a node that is silent now was so up to the last tick.

        Args:
            lines: rank → all lines of its file.
        """
        if self.last is None:
            self.add_problem(DoubtKind.WATCH_BROKEN, name="the file holds no tick", found=1)
        for node in list(self._silent_since):
            mono = 0.0 if self.last is None else self.last.mono
            self._take_node(NodeProbe(node=node, state=NodeState.HEARD), mono)
        last = {rank: row.seen for rank, row in self.heard.items()}
        self.reaches = all(
            (seen := last.get(rank)) is not None and row.is_at(seen) for rank, row in lines.items()
        )
