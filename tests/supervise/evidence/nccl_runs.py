"""Simulate ranks that enqueue collectives ahead, and return dumps as torch writes them.

A run has tensor, data, pipeline and expert groups. Each rank has a host, which enqueues calls and
waits for the device at the end of a step, and a device with one or two lanes, which executes calls
in order. A collective ends once every member executes it and all members call the same. A tick is
10 ms. The hosts stop at most a step ahead of the devices, so many calls are pending at any moment.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from gonogo.contract.observation import Dump, Entry

WORLD = 16
TICK_NS = 10_000_000
_BEGAN_NS = 1_800_000_000_000_000_000
_TICKS_AT_MOST = 6_000
HUNG_S = 60.0
"""Time between the last change and the dump of a run that hangs."""

FAULTS = (
    "healthy",
    "kernel",
    "device",
    "sleep",
    "gil",
    "died",
    "skip",
    "extra",
    "shape",
    "dtype",
    "op",
)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is simulated."""

    seed: int
    fault: str
    tensor: int = 2
    stages: int = 4
    guilty: tuple[int, ...] = (5,)
    lanes: int = 1
    """2: gradients are reduced on a lane of their own."""
    timing: bool = False
    """Whether the recorder notes that a collective has started."""
    kept: int = 64
    """Entries of each group in a dump."""
    mute: tuple[int, ...] = ()
    """Innocent ranks without a dump."""


@dataclass(frozen=True)
class Call:
    """One instruction of a rank's program."""

    kind: str
    """`collective`, `send`, `recv`, `compute` or `sync`."""
    group: str = ""
    op: str = ""
    size: tuple[int, ...] = ()
    dtype: str = "BFloat16"
    peer: int = -1
    ticks: int = 1
    lane: int = 0


@dataclass(kw_only=True)
class Queued:
    """A call that was enqueued."""

    call: Call
    seq: int
    created: int
    started: int | None = None
    ended: int | None = None
    noted: int | None = None
    """Tick at which the recorder noted the end."""
    left: int = 0


@dataclass
class Rank:
    """One rank."""

    number: int
    program: list[Call]
    at: int = 0
    lanes: list[list[Queued]] = field(default_factory=list)
    queued: list[Queued] = field(default_factory=list)
    seqs: dict[str, int] = field(default_factory=dict)
    host_stops: bool = False
    device_stops: bool = False
    notes_stop: bool = False

    def head(self, lane: int) -> Queued | None:
        """Return the call that a lane executes."""
        return self.lanes[lane][0] if self.lanes[lane] else None


@dataclass
class Run:
    """A simulated run."""

    plan: Plan
    groups: dict[str, tuple[int, ...]]
    ranks: list[Rank]
    tick: int = 0
    changed: int = 0


def simulate(plan: Plan) -> dict[int, Dump]:
    """Return the dumps of a run after its fault, or in the midst of healthy work."""
    chance = random.Random(plan.seed)
    run = _start(plan, chance)
    strikes = chance.randint(40, 160)
    devices_stop = strikes + chance.randint(5, 60)
    ask = chance.randint(20, 160) if plan.fault == "healthy" else None
    asked = {rank: (ask or 0) + chance.randint(0, 200) for rank in range(WORLD)}
    dumps: dict[int, Dump] = {}
    while run.tick < _TICKS_AT_MOST:
        if ask is not None:
            for rank in (row for row, tick in asked.items() if tick == run.tick):
                dumps[rank] = _dump(run, rank, run.tick * TICK_NS)
            if len(dumps) == WORLD:
                return dumps
        if run.tick == strikes:
            _strike(run)
        if run.tick == devices_stop and plan.fault == "device":
            for number in plan.guilty:
                run.ranks[number].device_stops = True
        _advance(run, chance)
        run.tick += 1
        if ask is None and run.tick > devices_stop and run.tick - run.changed > 100:
            break
    now_ns = (run.tick * TICK_NS) + int(HUNG_S * 1e9)
    gone = set(plan.mute) | (set(plan.guilty) if plan.fault in ("gil", "died") else set())
    return {rank: _dump(run, rank, now_ns) for rank in range(WORLD) if rank not in gone}


def _start(plan: Plan, chance: random.Random) -> Run:
    stage_size = WORLD // plan.stages
    groups: dict[str, tuple[int, ...]] = {"world": tuple(range(WORLD))}
    for first in range(0, WORLD, plan.tensor):
        groups[f"tensor{first}"] = tuple(range(first, first + plan.tensor))
    for stage in range(plan.stages):
        ranks = range(stage * stage_size, (stage + 1) * stage_size)
        groups[f"expert{stage}"] = tuple(ranks)
        for place in range(plan.tensor):
            groups[f"data{stage}_{place}"] = tuple(ranks[place :: plan.tensor])
    for place in range(stage_size):
        groups[f"pipeline{place}"] = tuple(range(place, WORLD, stage_size))
    counts = chance.randint(2, 4), chance.randint(1, 3)
    ranks_ = []
    for number in range(WORLD):
        program = list(_program(plan, groups, number, *counts))
        ranks_.append(Rank(number, program, lanes=[[] for _ in range(plan.lanes)]))
    run = Run(plan, groups, ranks_)
    _spoil(run, chance)
    return run


def _program(
    plan: Plan, groups: dict[str, tuple[int, ...]], rank: int, batches: int, layers: int
) -> Iterator[Call]:
    """Yield six steps of a pipeline that runs all forward passes, then all backward passes."""
    size = WORLD // plan.stages
    stage, place = rank // size, rank % size
    tensor = f"tensor{rank - rank % plan.tensor}"
    last = plan.stages - 1
    pipe = f"pipeline{place}"

    def layer() -> Iterator[Call]:
        yield Call("compute", ticks=1 + rank % 2)
        yield Call("collective", tensor, "_all_gather_base", (1024, 8))
        yield Call("collective", f"expert{stage}", "all_to_all", (512 + rank, 8))
        yield Call("collective", tensor, "_reduce_scatter_base", (2048, 8))

    for _ in range(6):
        for way in (1, -1):
            first, end = (0, last) if way == 1 else (last, 0)
            for _ in range(batches):
                if stage != first:
                    yield Call("recv", pipe, size=(64, 8), peer=rank - way * size)
                for _ in range(layers):
                    yield from layer()
                if stage != end:
                    yield Call("send", pipe, size=(64, 8), peer=rank + way * size)
        group = f"data{stage}_{rank % plan.tensor}"
        lane = plan.lanes - 1
        yield Call("collective", group, "all_reduce", (4096,), "Float", lane=lane)
        yield Call("collective", group, "all_reduce", (128,), "Float", lane=lane)
        yield Call("sync")
        yield Call("collective", "world", "all_reduce", (1,), "Float")
        yield Call("sync")


def _spoil(run: Run, chance: random.Random) -> None:
    """Change the program of the guilty rank where its calls are at fault."""
    plan = run.plan
    for number in plan.guilty[:1]:
        program = run.ranks[number].program
        found = [
            at
            for at, call in enumerate(program)
            if call.kind == "collective" and len(run.groups[call.group]) > 1
        ]
        found = found[len(found) // 8 : len(found) // 2]
        at = chance.choice(found)
        call = program[at]
        if plan.fault == "skip":
            del program[at]
        elif plan.fault == "extra":
            program.insert(at, replace(call))
        elif plan.fault == "shape":
            even = [row for row in found if program[row].op != "all_to_all"]
            at = chance.choice(even)
            program[at] = replace(program[at], size=(7, *program[at].size[1:]))
        elif plan.fault == "dtype":
            program[at] = replace(call, dtype="Half")
        elif plan.fault == "op":
            program[at] = replace(call, op="broadcast")


def _strike(run: Run) -> None:
    for number in run.plan.guilty:
        rank = run.ranks[number]
        if run.plan.fault in ("sleep", "gil"):
            rank.host_stops = True
        elif run.plan.fault == "died":
            rank.host_stops = rank.device_stops = True
        elif run.plan.fault == "kernel":
            rank.device_stops = True
        elif run.plan.fault == "device":
            rank.notes_stop = True


def _advance(run: Run, chance: random.Random) -> None:
    for rank in run.ranks:
        for _ in range(3):
            if chance.random() < 0.7:
                _enqueue(run, rank)
    for rank in run.ranks:
        if not rank.device_stops:
            _begin(run, rank)
    for rank in run.ranks:
        if not rank.device_stops:
            _execute(run, rank)


def _enqueue(run: Run, rank: Rank) -> None:
    if rank.host_stops or rank.at >= len(rank.program):
        return
    call = rank.program[rank.at]
    if call.kind == "sync":
        if all(not lane for lane in rank.lanes) and not rank.notes_stop:
            rank.at += 1
        return
    rank.at += 1
    seq = 0
    if call.kind == "collective":
        seq = rank.seqs[call.group] = rank.seqs.get(call.group, 0) + 1
    queued = Queued(call=call, seq=seq, created=run.tick, left=call.ticks)
    rank.queued.append(queued)
    rank.lanes[call.lane].append(queued)
    run.changed = run.tick


def _begin(run: Run, rank: Rank) -> None:
    for lane in range(len(rank.lanes)):
        head = rank.head(lane)
        if head is not None and head.started is None:
            head.started = run.tick
            run.changed = run.tick


def _execute(run: Run, rank: Rank) -> None:
    for lane in range(len(rank.lanes)):
        head = rank.head(lane)
        if head is None or head.started is None:
            continue
        partners = _partners(run, rank, head)
        if partners is None:
            continue
        head.left -= 1
        if head.left <= 0:
            for of, queued in partners:
                of.lanes[queued.call.lane].remove(queued)
                queued.ended = run.tick
                queued.noted = None if of.notes_stop else run.tick
            run.changed = run.tick


def _partners(run: Run, rank: Rank, head: Queued) -> list[tuple[Rank, Queued]] | None:
    """Return the ranks that execute a call together; None while it cannot continue."""
    call = head.call
    if call.kind == "compute":
        return [(rank, head)]
    members = run.groups[call.group] if call.kind == "collective" else (rank.number, call.peer)
    found: list[tuple[Rank, Queued]] = []
    for number in members:
        other = run.ranks[number]
        heads = [other.head(lane) for lane in range(len(other.lanes))]
        fits = [row for row in heads if row is not None and _fits(call, rank, head, other, row)]
        if not fits or other.device_stops:
            return None
        found.append((other, fits[0]))
    return found


def _fits(call: Call, rank: Rank, head: Queued, other: Rank, row: Queued) -> bool:
    if row.started is None:
        return False
    if other is rank:
        return row is head
    if call.kind == "collective":
        same = row.call.kind == "collective" and row.call.group == call.group
        alike = row.call.op == call.op and row.call.dtype == call.dtype
        sizes = call.op == "all_to_all" or row.call.size == call.size
        return same and row.seq == head.seq and alike and sizes
    opposite = "recv" if call.kind == "send" else "send"
    return row.call.kind == opposite and row.call.peer == rank.number


def _dump(run: Run, number: int, now_ns: int) -> Dump:
    """Return the dump of one rank, cut as the trainer cuts it."""
    rank = run.ranks[number]
    own = {name: list(ranks) for name, ranks in run.groups.items() if number in ranks}
    entries: list[Entry] = []
    kept: dict[str, int] = {}
    for queued in reversed(rank.queued):
        call = queued.call
        if call.kind == "compute":
            continue
        kept[call.group] = kept.get(call.group, 0) + 1
        if kept[call.group] <= run.plan.kept:
            entries.append(_entry(run, rank, queued))
    return Dump(
        rank=number,
        ts=(_BEGAN_NS + now_ns) / 1e9,
        groups=own,
        entries=entries[::-1],
    )


def _entry(run: Run, rank: Rank, queued: Queued) -> Entry:
    call = queued.call
    ranks = run.groups[call.group]
    message = call.kind != "collective"
    sign = "->" if call.kind == "send" else "<-"
    name = (
        f"{call.kind} {ranks.index(rank.number)}{sign}{ranks.index(call.peer)}" if message else ""
    )
    started = run.plan.timing and queued.started is not None
    state = "started" if started else "scheduled"
    noted = queued.noted is not None
    return Entry(
        collective_seq_id=queued.seq,
        process_group=[call.group, call.group.rstrip("0123456789_").upper()],
        profiling_name=f"nccl:{name or call.op}",
        input_sizes=[list(call.size)],
        input_dtypes=[call.dtype],
        is_p2p=message,
        retired=noted,
        state="completed" if noted else state,
        time_created_ns=_BEGAN_NS + queued.created * TICK_NS,
        time_discovered_completed_ns=_BEGAN_NS + queued.noted * TICK_NS
        if queued.noted is not None
        else None,
    )
