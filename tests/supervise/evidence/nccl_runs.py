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
HUNG_NS = 60_000_000_000
"""Time between the last change and the dump of a run that hangs."""
FAULTS = (
    *("healthy", "kernel", "device", "sleep", "gil", "died"),
    *("skip", "extra", "shape", "dtype", "op"),
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
    """One instruction of a rank's program: collective, send, recv, compute or sync."""

    kind: str
    group: str = ""
    op: str = ""
    size: tuple[int, ...] = ()
    dtype: str = "BFloat16"
    peer: int = -1
    ticks: int = 1
    lane: int = 0


@dataclass(kw_only=True)
class Queued:
    """A call that was enqueued; `noted` is the tick at which the recorder noted its end."""

    call: Call
    seq: int
    created: int
    started: bool = False
    noted: int | None = None
    left: int = 0


@dataclass
class Rank:
    """One rank."""

    number: int
    program: list[Call]
    lanes: list[list[Queued]]
    at: int = 0
    queued: list[Queued] = field(default_factory=list)
    seqs: dict[str, int] = field(default_factory=dict)
    host_stops: bool = False
    device_stops: bool = False
    notes_stop: bool = False


class Run:
    """A simulated run."""

    def __init__(self, plan: Plan) -> None:
        self.plan, self.chance = plan, random.Random(plan.seed)
        self.tick = self.changed = 0
        size = self.size = WORLD // plan.stages
        self.groups: dict[str, tuple[int, ...]] = {"world": tuple(range(WORLD))}
        for first in range(0, WORLD, plan.tensor):
            self.groups[f"tensor{first}"] = tuple(range(first, first + plan.tensor))
        for stage in range(plan.stages):
            ranks = range(stage * size, (stage + 1) * size)
            self.groups[f"expert{stage}"] = tuple(ranks)
            for place in range(plan.tensor):
                self.groups[f"data{stage}_{place}"] = tuple(ranks[place :: plan.tensor])
        for place in range(size):
            self.groups[f"pipeline{place}"] = tuple(range(place, WORLD, size))
        counts = self.chance.randint(2, 4), self.chance.randint(1, 3)
        self.ranks = [
            Rank(number, list(self._program(number, *counts)), [[] for _ in range(plan.lanes)])
            for number in range(WORLD)
        ]
        if plan.fault in ("skip", "extra", "shape", "dtype", "op"):
            self._spoil(self.ranks[plan.guilty[0]].program)

    def _program(self, rank: int, batches: int, layers: int) -> Iterator[Call]:
        """Yield six steps of a pipeline that runs all forward passes, then all backward passes."""
        plan, size = self.plan, self.size
        stage, pipe = rank // size, f"pipeline{rank % size}"
        tensor, last = f"tensor{rank - rank % plan.tensor}", plan.stages - 1
        layer = (
            Call("compute", ticks=1 + rank % 2),
            Call("collective", tensor, "_all_gather_base", (1024, 8)),
            Call("collective", f"expert{stage}", "all_to_all", (512 + rank, 8)),
            Call("collective", tensor, "_reduce_scatter_base", (2048, 8)),
        )
        data = Call("collective", f"data{stage}_{rank % plan.tensor}", "all_reduce", (4096,))
        data = replace(data, dtype="Float", lane=plan.lanes - 1)
        for _ in range(6):
            for way in (1, -1):
                first, end = (0, last) if way == 1 else (last, 0)
                for _ in range(batches):
                    if stage != first:
                        yield Call("recv", pipe, size=(64, 8), peer=rank - way * size)
                    for _ in range(layers):
                        yield from layer
                    if stage != end:
                        yield Call("send", pipe, size=(64, 8), peer=rank + way * size)
            yield from (data, replace(data, size=(128,)), Call("sync"))
            yield Call("collective", "world", "all_reduce", (1,), "Float")
            yield Call("sync")

    def _spoil(self, program: list[Call]) -> None:
        """Change the program of the guilty rank where its calls are at fault."""
        fault = self.plan.fault
        found = [at for at, call in enumerate(program) if len(self.groups.get(call.group, ())) > 1]
        found = [at for at in found if program[at].kind == "collective"]
        found = found[len(found) // 8 : len(found) // 2]
        if fault == "shape":
            found = [at for at in found if program[at].op != "all_to_all"]
        at = self.chance.choice(found)
        call = program[at]
        if fault == "skip":
            del program[at]
        elif fault == "extra":
            program.insert(at, call)
        elif fault == "shape":
            program[at] = replace(call, size=(7, *call.size[1:]))
        else:
            program[at] = replace(call, **{"dtype": "Half"} if fault == "dtype" else {"op": "x"})

    def strike(self) -> None:
        fault = self.plan.fault
        for rank in (self.ranks[number] for number in self.plan.guilty):
            rank.host_stops = fault in ("sleep", "gil", "died")
            rank.device_stops = fault in ("died", "kernel")
            rank.notes_stop = fault == "device"

    def advance(self) -> None:
        """Let a tick pass."""
        for rank in self.ranks:
            for _ in range(3):
                if self.chance.random() < 0.7:
                    self._enqueue(rank)
        working = [rank for rank in self.ranks if not rank.device_stops]
        for head in (lane[0] for rank in working for lane in rank.lanes if lane):
            self.changed = self.changed if head.started else self.tick
            head.started = True
        for rank in working:
            for head in [lane[0] for lane in rank.lanes if lane and lane[0].started]:
                self._execute(rank, head)
        self.tick += 1

    def _enqueue(self, rank: Rank) -> None:
        if rank.host_stops or rank.at >= len(rank.program):
            return
        call = rank.program[rank.at]
        if call.kind == "sync":
            rank.at += not any(rank.lanes) and not rank.notes_stop
            return
        rank.at += 1
        seq = 0
        if call.kind == "collective":
            seq = rank.seqs[call.group] = rank.seqs.get(call.group, 0) + 1
        queued = Queued(call=call, seq=seq, created=self.tick, left=call.ticks)
        rank.queued.append(queued)
        rank.lanes[call.lane].append(queued)
        self.changed = self.tick

    def _execute(self, rank: Rank, head: Queued) -> None:
        partners = self._partners(rank, head)
        head.left -= bool(partners)
        if not partners or head.left > 0:
            return
        for of, queued in partners:
            of.lanes[queued.call.lane].remove(queued)
            queued.noted = None if of.notes_stop else self.tick
        self.changed = self.tick

    def _partners(self, rank: Rank, head: Queued) -> list[tuple[Rank, Queued]]:
        """Return the ranks that execute a call together; empty while it cannot continue."""
        call = head.call
        members = self.groups[call.group] if call.kind == "collective" else (rank.number, call.peer)
        if call.kind == "compute":
            members = (rank.number,)
        found: list[tuple[Rank, Queued]] = []
        for other in (self.ranks[number] for number in members):
            heads = [lane[0] for lane in other.lanes if lane and lane[0].started]
            fits = [
                row for row in heads if row is head or (other is not rank and _fit(rank, head, row))
            ]
            if not fits or other.device_stops:
                return []
            found.append((other, fits[0]))
        return found

    def dump(self, number: int, now_ns: int) -> Dump:
        """Return the dump of one rank, cut as the trainer cuts it."""
        rank, entries, kept = self.ranks[number], list[Entry](), dict[str, int]()
        for queued in reversed([row for row in rank.queued if row.call.kind != "compute"]):
            group = queued.call.group
            kept[group] = kept.get(group, 0) + 1
            if kept[group] <= self.plan.kept:
                entries.append(self._entry(rank, queued))
        groups = {name: list(ranks) for name, ranks in self.groups.items() if number in ranks}
        ts = (_BEGAN_NS + now_ns) / 1e9
        return Dump(rank=number, ts=ts, groups=groups, entries=entries[::-1])

    def _entry(self, rank: Rank, queued: Queued) -> Entry:
        call, ranks, name = queued.call, self.groups[queued.call.group], queued.call.op
        if call.kind != "collective":
            sign = "->" if call.kind == "send" else "<-"
            name = f"{call.kind} {ranks.index(rank.number)}{sign}{ranks.index(call.peer)}"
        noted = queued.noted
        pending = "started" if self.plan.timing and queued.started else "scheduled"
        return Entry(
            collective_seq_id=queued.seq,
            process_group=[call.group, call.group.rstrip("0123456789_").upper()],
            profiling_name=f"nccl:{name}",
            input_sizes=[list(call.size)],
            input_dtypes=[call.dtype],
            is_p2p=call.kind != "collective",
            retired=noted is not None,
            state=pending if noted is None else "completed",
            time_created_ns=_BEGAN_NS + queued.created * TICK_NS,
            time_discovered_completed_ns=None if noted is None else _BEGAN_NS + noted * TICK_NS,
        )


def _fit(rank: Rank, head: Queued, row: Queued) -> bool:
    """Whether the calls of two ranks belong together."""
    call, other = head.call, row.call
    if call.kind != "collective":
        return {call.kind, other.kind} == {"send", "recv"} and other.peer == rank.number
    same = (other.kind, other.group, other.op, other.dtype, row.seq)
    sizes = call.op == "all_to_all" or other.size == call.size
    return sizes and same == (call.kind, call.group, call.op, call.dtype, head.seq)


def simulate(plan: Plan) -> dict[int, Dump]:
    """Return the dumps of a run after its fault, or in the midst of healthy work."""
    run = Run(plan)
    strikes = run.chance.randint(40, 160)
    devices_stop = strikes + run.chance.randint(5, 60)
    if plan.fault == "healthy":
        ask = run.chance.randint(20, 160)
        asked = sorted((ask + run.chance.randint(0, 200), rank) for rank in range(WORLD))
        dumps = {}
        for tick, rank in asked:
            while run.tick < tick:
                run.advance()
            dumps[rank] = run.dump(rank, tick * TICK_NS)
        return dumps
    while run.tick < _TICKS_AT_MOST and run.tick - run.changed <= 100:
        if run.tick == strikes:
            run.strike()
        if run.tick == devices_stop and plan.fault == "device":
            for number in plan.guilty:
                run.ranks[number].device_stops = True
        run.advance()
        if run.tick <= devices_stop:
            run.changed = run.tick
    gone = set(plan.mute) | (set(plan.guilty) if plan.fault in ("gil", "died") else set())
    now_ns = run.tick * TICK_NS + HUNG_NS
    return {rank: run.dump(rank, now_ns) for rank in range(WORLD) if rank not in gone}
