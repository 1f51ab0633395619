"""What a run left behind: one record, made in one pass over its directory.

No line is kept: each goes through the fold once, and from there into the steps of its rank. A small
record that exists and cannot be read is named in `unreadable`, and never ends the judging: what it
would have shown is missing, and missing evidence never passes.

Findings are folded again. A halt that only findings.jsonl has counts too, since the run was ended
for it. Every difference is named.
"""

import hashlib
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from os.path import lexists
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from gonogo.contract.canonical import canonical_bytes, mean_of
from gonogo.contract.criterion import Metric
from gonogo.contract.errors import Corrupt
from gonogo.contract.facts import ProcessExit
from gonogo.contract.finding import Doubt, DoubtKind, Finding, Severity
from gonogo.contract.observation import DeviceSample
from gonogo.contract.order import Order
from gonogo.contract.records import (
    ExitRecord,
    FileSeal,
    ModelRecord,
    NodeExit,
    Preflight,
    RankExit,
    parse_rank,
)
from gonogo.files import read_plain, read_small
from gonogo.rundir import RunDir, check_not_pruned, iter_lines, parse_record, preflight_name
from gonogo.timeline.lines import LineRecord
from gonogo.timeline.old_format import convert_directory, is_predecessor
from gonogo.timeline.rank_steps import RankSteps, read_lines, share_pauses
from gonogo.watch.detectors.hardware import DeviceRow
from gonogo.watch.offline_fold import TOLD_BYTES, WatchRecord, refold

STALE_S = 15.0
"""A sample says nothing about a step that ended so long after it."""

Sample = DeviceSample | DeviceRow
Windows = Mapping[int, Mapping[int, tuple[float, float]]]
"""Rank → step → when it began and ended, in seconds of the rank's monotonic clock."""
ByStep = dict[int, dict[int, float]]


def lay_over(
    ranks: Mapping[int, RankSteps], samples: Iterable[Sample], order: Order | None = None
) -> None:
    """Set `told_by_devices` of each rank, for the metrics of devices."""
    rows = list(samples)
    if not rows:
        return
    elsewhere = () if order is None else {rank for rank in ranks if order.node_of(rank) > 0}
    windows = {rank: steps.steps.windows() for rank, steps in ranks.items()}
    util = by_step(rows, windows, elsewhere, lambda row: row.util, mean_of)
    memory = by_step(rows, windows, elsewhere, lambda row: row.mem_used_mb, max)
    ratio = ratio_by_step(util)
    for rank, steps in ranks.items():
        steps.told_by_devices = {
            Metric.GPU_UTIL.value: util[rank],
            Metric.GPU_UTIL_RATIO.value: ratio,
            Metric.GPU_MEM_RESERVED_MB.value: memory[rank],
        }


def ratio_by_step(util: Mapping[int, Mapping[int, float]]) -> dict[int, float]:
    """Return `gpu_util_ratio`: step → lowest to highest utilisation over the ranks."""
    shared = set.intersection(*map(set, util.values())) if util else set()
    steps = {step: [row[step] for row in util.values()] for step in sorted(shared)}
    return {step: min(row) / max(row) for step, row in steps.items() if max(row) > 0}


def by_step(
    samples: Iterable[Sample],
    windows: Windows,
    elsewhere: Collection[int],
    reading: Callable[[Sample], float | None],
    of_step: Callable[[Sequence[float]], float],
) -> ByStep:
    """Return rank → step → what `of_step` makes of its readings."""
    series: dict[int, set[tuple[float, str, float]]] = {rank: set() for rank in windows}
    for sample in samples:
        clock = sample.own_mono if sample.rank in elsewhere else sample.mono
        value = reading(sample)
        if sample.rank in series and clock is not None and value is not None:
            series[sample.rank].add((clock, sample.uuid, value))
    found: ByStep = {}
    for rank, steps in windows.items():
        ordered = sorted(series[rank])
        clocks, values = [row[0] for row in ordered], [row[2] for row in ordered]
        readings = {step: _within(clocks, values, *span) for step, span in steps.items()}
        found[rank] = {step: of_step(row) for step, row in readings.items() if row}
    return found


def _within(
    clocks: Sequence[float], values: Sequence[float], start: float, end: float
) -> Sequence[float]:
    """Return the readings in a step, or the latest before its end, or none."""
    first, after = bisect_left(clocks, start), bisect_right(clocks, end)
    if first < after:
        return values[first:after]
    if after == 0 or end - clocks[after - 1] > STALE_S:
        return ()
    return values[after - 1 : after]


_M = TypeVar("_M", bound=BaseModel)

SEALED = ("order.json", "exit.json", "preflight/preflight.json", "model.json", "env.json")

UNWATCHED = frozenset({"env.json", "exit.json"})
"""Files that no tick has to seal: env.json is for people, and whether the watcher saw exit.json is
a fact of its own. Any other record that no tick sealed was added later."""

_CHUNK = 2**20
_ESSENCE = attrgetter("key", "detector", "severity", "rank", "section", "step")
"""Fields of a finding in which findings.jsonl and the fold must agree."""


class RunFiles:
    """The files of a run directory. A small file is read once: what is parsed is what is sealed.

    A file that cannot be read is named in `unreadable`, and counts as missing.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.unreadable: list[Doubt] = []
        self._small: dict[str, bytes | None] = {}

    def add_unreadable(self, name: str, why: str | None) -> None:
        """Name a file that exists and cannot be read."""
        self.unreadable.append(Doubt(kind=DoubtKind.UNREADABLE, name=name, found=why))

    def read(self, name: str) -> bytes | None:
        """Return the bytes of a small file; None if it is missing or cannot be read."""
        if name not in self._small:
            self._small[name] = None
            try:
                self._small[name] = read_small(self.folder / name)
            except FileNotFoundError:
                pass
            except OSError as error:
                self.add_unreadable(name, error.strerror)
        return self._small[name]

    def record(self, name: str, model: type[_M]) -> _M | None:
        """Return the record in a small file; None if it is missing or cannot be read."""
        raw = self.read(name)
        try:
            return None if raw is None else parse_record(name, raw, model)
        except Corrupt as error:
            self.add_unreadable(name, str(error).removeprefix(f"{name}: "))
            return None

    def seals(self, names: Iterable[str]) -> dict[str, FileSeal]:
        """Return name → seal of the small files that are there."""
        found = ((name, self.read(name)) for name in names)
        return {
            name: FileSeal(bytes=len(raw), sha256=hashlib.sha256(raw).hexdigest())
            for name, raw in found
            if raw is not None
        }

    def is_readable(self, name: str) -> bool:
        """Say whether a growing file can be read to its end; name a file that cannot."""
        path = self.folder / name
        if not lexists(path):
            return False
        try:
            with read_plain(path) as stream:
                while stream.read(_CHUNK):
                    pass
        except OSError as error:
            self.add_unreadable(name, error.strerror)
            return False
        return True

    def rows(self, name: str, model: type[_M]) -> Iterator[_M]:
        """Yield the records of a file with one JSON record a line; count the other lines."""
        lines = iter_lines(self.folder / name) if self.is_readable(name) else ()
        bad = 0
        for raw in filter(bytes.strip, lines):
            try:
                row = model.model_validate_json(raw)
            except ValidationError:
                bad += 1
            else:
                yield row
        if bad:
            self.add_unreadable(name, f"{bad} lines")

    def begins_with(self, name: str, seal: FileSeal) -> bool:
        """Say whether a file's first bytes are the sealed ones; more may follow."""
        sealed, left = hashlib.sha256(), seal.bytes
        try:
            with read_plain(self.folder / name) as stream:
                while left and (chunk := stream.read(min(left, _CHUNK))):
                    sealed.update(chunk)
                    left -= len(chunk)
        except OSError:
            return False
        return not left and sealed.hexdigest() == seal.sha256

    def check_seal(self, name: str, seal: FileSeal | None) -> None:
        """Name a growing file that does not begin with the bytes that exit.json seals."""
        if seal is not None and seal.bytes and not self.begins_with(name, seal):
            self.unreadable.append(Doubt(kind=DoubtKind.SEAL_BROKEN, name=name))


def load_parts(files: RunFiles, exit_record: ExitRecord | None) -> dict[int, NodeExit]:
    """Return node → how its part ended, of those that exit.json seals; name what does not fit."""
    sealed = exit_record.nodes if exit_record is not None else None
    found = {}
    for number, seals in sorted((sealed or {}).items()):
        node = parse_rank(number)
        if node is None:
            files.add_unreadable("exit.json", f"{number[:16]!r} is no node")
            continue
        name = f"exit_node{node}.json"
        part = files.record(name, NodeExit)
        if part is not None:
            found[node] = part
        if files.seals([name]).get(name) != seals.exit:
            files.unreadable.append(Doubt(kind=DoubtKind.SEAL_BROKEN, name=name))
        files.check_seal(f"watch_node{node}.jsonl", seals.watch)
    return found


def read_devices(files: RunFiles, digests: bytes) -> tuple[str | None, int]:
    """Return the digest of the samples in devices.jsonl, and how many of the ticks' are not there.

    The digest is None without samples. The sampler outlives the last tick, so the file may hold
    more samples than the ticks.

    Args:
        digests: digests of the samples that ticks carry, `TOLD_BYTES` of each.
    """
    seen = {row.digest() for row in files.rows("devices.jsonl", DeviceSample)}
    held = {digest[:TOLD_BYTES] for digest in seen}
    carried = {digests[at : at + TOLD_BYTES] for at in range(0, len(digests), TOLD_BYTES)}
    sealed = hashlib.sha256(b"".join(sorted(seen))).hexdigest() if seen else None
    return sealed, len(carried - held)


def compare_findings(
    folded: Iterable[Finding], recorded: Iterable[Finding]
) -> tuple[tuple[Finding, ...], tuple[Doubt, ...]]:
    """Return the findings that count, and how findings.jsonl (`recorded`) differs from the fold."""
    found = {_ESSENCE(row): row for row in folded}
    told = {_ESSENCE(row): row for row in recorded}
    added = [row for essence, row in told.items() if essence not in found]
    gone = [row for essence, row in found.items() if essence not in told]
    halts = [row for row in added if row.severity is Severity.HALT]
    differences = [
        *(_difference(row, expected=row.severity.value) for row in gone),
        *(_difference(row, found=row.severity.value) for row in added),
    ]
    return (*found.values(), *halts), tuple(differences)


def _difference(row: Finding, expected: str | None = None, found: str | None = None) -> Doubt:
    return Doubt(
        kind=DoubtKind.FINDING_DIFFERS,
        rank=row.rank,
        step=row.step,
        name=row.detector,
        expected=expected,
        found=found,
    )


MARKS = (".HALT", ".kill")
"""Files by which somebody asked the run to end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """Everything that facts are made of."""

    order: Order | None
    ranks: Mapping[int, RankSteps]
    lines: Mapping[int, LineRecord] = field(default_factory=dict)
    """Rank → its lines as such: count, digests and conflicts."""
    exit: ExitRecord | None = None
    rank_exits: Mapping[int, RankExit] = field(default_factory=dict)
    probed: Mapping[int, ProcessExit] = field(default_factory=dict)
    """Rank → how a tick saw it end."""
    parts: Mapping[int, NodeExit] = field(default_factory=dict)
    """Node → how its part ended, where exit.json seals it."""
    preflight: Preflight | None = None
    preflights: Mapping[int, Preflight] = field(default_factory=dict)
    """Node behind the first → what was checked there, of those whose record a tick seals."""
    findings: tuple[Finding, ...] = ()
    """Those of the fold, and halts that only the file knows."""
    unrecorded: tuple[Doubt, ...] = ()
    watch: WatchRecord | None = None
    watch_sealed: bool | None = None
    """Whether watch.jsonl begins as exit.json says; None where exit.json does not say."""
    files: Mapping[str, FileSeal] = field(default_factory=dict)
    devices: str | None = None
    devices_gone: int = 0
    """Device samples that ticks carry and devices.jsonl does not hold."""
    marks: tuple[str, ...] = ()
    strays: tuple[int, ...] = ()
    """Ranks without a line whose exit is recorded."""
    predecessor: bool = False
    unreadable: tuple[Doubt, ...] = ()
    unreadable_lines: Mapping[int, int] = field(default_factory=dict)
    not_observed: tuple[Doubt, ...] = ()


def load_run(path: Path, *, now: float | None = None, order: Order | None = None) -> RunRecord:
    """Return the record of a run directory, ours or the predecessor's.

    Args:
        now: Unix seconds at which an unfinished run is looked at; None stops the clock at the
            last line.
        order: what was ordered, for a directory without order.json.

    Raises:
        Corrupt: order.json is there and cannot be read: nobody knows what was ordered.
        NotFound: it was pruned, or was while it was read.
    """
    check_not_pruned(path)
    try:
        return _load_run(path, now, order)
    finally:  # the record of it stands before anything goes
        check_not_pruned(path)


def _load_run(path: Path, now: float | None, order: Order | None) -> RunRecord:
    run_dir, files = RunDir(path), RunFiles(path)
    order = _load_order(files) or order
    ranks = [rank for rank in run_dir.ranks() if files.is_readable(run_dir.heartbeat(rank).name)]
    if is_predecessor(iter_lines(run_dir.heartbeat(rank)) for rank in ranks):
        return _load_predecessor(run_dir, ranks, order, now)
    owed = range(order.world_size) if order is not None else ()
    ending = {rank: f"exit_rank{rank}.json" for rank in sorted({*ranks, *owed})}
    exits = {rank: files.record(name, RankExit) for rank, name in ending.items()}
    ended = files.record("exit.json", ExitRecord)
    files.record("model.json", ModelRecord)  # a torn one is named
    record = RunRecord(
        order=order,
        ranks={},
        exit=ended,
        rank_exits={rank: row for rank, row in exits.items() if row is not None},
        preflight=files.record(preflight_name(0), Preflight),
    )
    folded: list[Finding] = []
    if order is None:
        record = with_lines(record, {rank: iter_lines(run_dir.heartbeat(rank)) for rank in ranks})
    else:
        files.is_readable("watch.jsonl")
        record, folded = _fold_run(run_dir, ranks, order, record, now)
    findings, differences = compare_findings(folded, files.rows("findings.jsonl", Finding))
    watch, watch_sealed = record.watch, None
    if ended is not None:
        files.check_seal("findings.jsonl", ended.findings)
        watch_sealed = (
            None if ended.watch is None else files.begins_with("watch.jsonl", ended.watch)
        )
    watched = {} if watch is None else watch.files
    others = {node: preflight_name(node) for node in (range(1, order.nodes) if order else ())}
    checked = {node: name for node, name in others.items() if name in watched}
    preflights = {node: files.record(name, Preflight) for node, name in checked.items()}
    devices, gone = read_devices(files, b"" if watch is None else bytes(watch.devices))
    return replace(
        record,
        findings=findings,
        unrecorded=differences,
        preflights={node: row for node, row in preflights.items() if row is not None},
        parts=load_parts(files, ended),
        watch_sealed=watch_sealed,
        files=files.seals([*SEALED, *ending.values(), *checked.values()]),
        devices=devices,
        devices_gone=gone,
        marks=tuple(name for name in MARKS if lexists(path / name)),
        strays=tuple(rank for rank in run_dir.ended_ranks() if rank not in ranks),
        unreadable=tuple({row.model_dump_json(): row for row in files.unreadable}.values()),
    )


def _load_predecessor(
    run_dir: RunDir, ranks: Iterable[int], order: Order | None, now: float | None
) -> RunRecord:
    """Return the record of the predecessor's lines, which show less; see `predecessor`."""
    tokens = order.identity.tokens_per_step if order is not None else None
    with TemporaryDirectory() as folder:
        convert_directory(run_dir, ranks, Path(folder), tokens)
        record = _load_run(Path(folder), now, order)
    return replace(record, predecessor=True, unrecorded=())


def _load_order(files: RunFiles) -> Order | None:
    """Return the order, the first file that is read; None when there is none."""
    order = files.record("order.json", Order)
    if order is not None:
        canonical_bytes(order.document())
    for doubt in files.unreadable:
        raise Corrupt(f"{doubt.name}: {doubt.found}")
    return order


def _fold_run(
    run_dir: RunDir, ranks: Iterable[int], order: Order, record: RunRecord, now: float | None
) -> tuple[RunRecord, list[Finding]]:
    """Return the record with what one pass over ticks and lines shows, and the findings."""
    steps = {rank: RankSteps() for rank in ranks}
    folded = refold(
        run_dir.path,
        order=order,
        now=now,
        sink=lambda rank, beat, arrival: steps[rank].take(beat),
        read_exit=lambda: record.exit,
    )
    state, watch = folded.state, folded.watch
    heard = watch.heard if watch is not None else {}
    for rank, row in steps.items():
        row.order_by(heard[rank].boots if rank in heard else ())
    record = replace(
        record,
        lines=dict(sorted(state.view.lines.items())),
        probed=watch.probes if watch is not None else {},
        unreadable_lines={rank: row.count for rank, row in state.view.unreadable.items()},
        not_observed=tuple(folded.not_observed),
    )
    return with_steps(record, steps, watch), folded.findings


def with_lines(record: RunRecord, lines: Mapping[int, Iterable[bytes | str]]) -> RunRecord:
    """Return the record with lines that are read without a fold."""
    read = {rank: read_lines(rank, lines[rank]) for rank in sorted(lines)}
    record = replace(
        record,
        lines={rank: row.record for rank, row in read.items()},
        unreadable_lines={rank: row.unreadable for rank, row in read.items() if row.unreadable},
    )
    return with_steps(record, {rank: row.steps for rank, row in read.items()}, None)


def with_steps(
    record: RunRecord, steps: Mapping[int, RankSteps], watch: WatchRecord | None
) -> RunRecord:
    """Return the record with the steps of each rank, and what the ticks amount to."""
    share_pauses(steps)
    if watch is not None:
        lay_over(steps, watch.device_rows, record.order)
    return replace(record, ranks=steps, watch=watch)
