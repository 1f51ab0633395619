"""A made-up run: ranks that write lines on a clock of their own, and a watcher that looks at them.

`World` is the ranks of one run; time passes in `spend`. Each rank writes what the trainer writes:
step lines, a section line when one lasts more than a second, an alive line after silence.
`watch` looks at a world every `interval_s` and folds it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gonogo.contract.canonical import wire_value
from gonogo.contract.finding import Finding, Severity
from gonogo.contract.heartbeat import Identity
from gonogo.contract.order import Order, ResumePoint
from gonogo.contract.records import Tick, WatchStart
from gonogo.contract.watch import Watch, halts_asked
from gonogo.rundir import save_json
from gonogo.watch.fold import WatchState, dump_state, fold, start
from gonogo.watch.offline_fold import tick_digest, tick_line

EPOCH = 1_760_000_000.0
T0 = 5_000.0
DEMO: dict[str, Any] = {
    "stall": {"suspect_s": 2, "halt_s": 5, "halt_x": 8, "min_steps": 3},
    "slow": {"warmup_steps": 5, "baseline_steps": 14, "halt_ratio": 3.5, "over_steps": 5},
    "alive_lost": {"suspect_s": 2, "halt_s": 5},
    "section_deadline": {"data": {"suspect_s": 5, "halt_s": 10}},
}
IDENTITY = Identity(
    config_digest="c" * 64,
    params=1_000_000,
    dim=256,
    layers=6,
    vocab=256,
    dtype="fp32",
    tokens_per_step=2048,
    world_size=2,
    nsa_env={"NSA_TB_DISABLE": "1"},
)


def order_of(
    watch: Mapping[str, Any] | None = None,
    *,
    steps: int = 40,
    world_size: int = 2,
    identity: Identity = IDENTITY,
    resume_step: int | None = None,
    **fields: Any,
) -> Order:
    """An order of `steps` steps in which every detector halts; by default the demo's watch."""
    identity = identity.model_copy(update={"world_size": world_size})
    resume = None if resume_step is None else ResumePoint(path="checkpoints/x", step=resume_step)
    return Order(
        experiment="exp_1",
        run="run_1",
        token=1,
        plan="demo",
        plan_digest="d",
        phase="smoke",
        steps=steps,
        world_size=world_size,
        profile="cpu",
        train=fields.pop("train", {}),
        identity=identity,
        resume_from=resume,
        watch=Watch.model_validate(halts_asked(DEMO if watch is None else watch)),
        **fields,
    )


@dataclass(frozen=True, slots=True)
class Said:
    """One line and when it was written."""

    mono: float
    raw: bytes


class Rank:
    """Writes the lines of one rank."""

    def __init__(self, rank: int, *, mono: float, alive_every_s: float) -> None:
        self.rank, self.mono, self.alive_every_s = rank, mono, alive_every_s
        self.boot, self.seq, self.step = f"boot{rank}", 0, 0
        self.section: str | None = "boot"
        self.section_seq = self.collective_seq = 0
        self.section_since = self.last_write = mono
        self.announced, self.in_step = True, False
        self.lines: list[Said] = []
        self.stopped = False
        self.wall_off_s = 0.0

    def say(self, msg: str, **fields: Any) -> None:
        """Write a line, unless the process is stopped."""
        if self.stopped:
            return
        self.seq += 1
        line = {
            "v": 1, "ts": EPOCH + self.mono - T0 + self.wall_off_s, "mono": self.mono,
            "pid": 100 + self.rank, "rank": self.rank, "boot": self.boot, "seq": self.seq,
            "step": self.step, "msg": msg, "section": self.section,
            "section_seq": self.section_seq, **fields,
        }  # fmt: skip
        self.last_write = self.mono
        self.lines.append(Said(self.mono, json.dumps(line).encode()))

    def enter(self, section: str | None) -> None:
        """Enter a section; outside a step both edges are written."""
        self.section, self.section_since = section, self.mono
        self.section_seq += 1
        self.announced = section is None or not self.in_step
        if not self.in_step:
            self.say("section", collective_seq=self.collective_seq)

    def spend(self, seconds: float) -> None:
        """Let time pass in the present section; the thread speaks meanwhile."""
        end = self.mono + seconds
        while True:
            due = self.last_write + self.alive_every_s
            if not self.announced:
                due = min(due, self.section_since + 1.0)
            due = max(due, self.mono)
            if due >= end or self.stopped:
                break
            self.mono = due
            age_s = round(self.mono - self.section_since, 3)
            msg = "alive"
            if not self.announced and age_s >= 1.0:
                msg, self.announced = "section", True
            self.say(msg, section_age_s=age_s, collective_seq=self.collective_seq)
        self.mono = end


def without_sections(said: Said) -> Said:
    """Return the line as a program without sections writes it."""
    line = json.loads(said.raw)
    msg = "alive" if line["msg"] == "section" else line["msg"]
    told = {name: value for name, value in line.items() if not name.startswith("section")}
    return Said(said.mono, json.dumps({**told, "msg": msg}).encode())


@dataclass(slots=True)
class World:
    """The ranks of one run, and what the watcher's probes will find."""

    order: Order
    alive_every_s: float = 0.5
    loss: Callable[[int], float | str] = lambda step: 5.5 - 0.01 * step
    ranks: list[Rank] = field(default_factory=list)
    probes: list[tuple[float, dict[str, Any]]] = field(default_factory=list)
    """Clock and the fields of a tick that carries probes."""
    suspended: list[tuple[float, float]] = field(default_factory=list)
    """Clock when ranks and watcher were suspended, and when they woke."""

    def __post_init__(self) -> None:
        self.ranks = [
            Rank(rank, mono=T0, alive_every_s=self.alive_every_s)
            for rank in range(self.order.world_size)
        ]

    @property
    def mono(self) -> float:
        """The latest rank's clock."""
        return max(rank.mono for rank in self.ranks)

    def boot(self, *, boot_s: float = 3.0, load_s: float = 0.5, **told: Any) -> World:
        """All ranks boot (with the order's identity, or what `told` says) and open their data."""
        identity = {**self.order.identity.model_dump(mode="json", exclude_none=True), **told}
        for rank in self.ranks:
            rank.mono += boot_s
            rank.step = 0 if self.order.resume_from is None else self.order.resume_from.step
            rank.say("boot", **identity, backend="DDP")
            rank.spend(0.1)
            rank.enter("data")
            rank.spend(load_s)
            rank.say("loader_ready", dt=load_s)
            rank.enter(None)
        self.alive()
        return self

    def alive(self) -> None:
        """The watcher sees every process alive, with its environment."""
        env = self.order.identity.nsa_env
        rows = [
            {"rank": r.rank, "pid": 100 + r.rank, "state": "alive", "env": env} for r in self.ranks
        ]
        self.probes.append((T0, {"agent": {"pid": 99, "state": "alive"}}))
        self.probes.append((self.mono, {"ranks": rows}))

    def probe(self, rank: int, state: str, **fields: Any) -> None:
        """From now on the watcher finds a rank's process like this."""
        row = {"rank": rank, "pid": 100 + rank, "state": state, **fields}
        self.probes.append((self.mono, {"ranks": [row]}))

    def open_step(self, *, data_s: Sequence[float] | float = 0.01) -> None:
        """Every rank opens its next step and fetches data."""
        for rank, seconds in zip(self.ranks, self._each(data_s), strict=True):
            rank.step += 1
            rank.in_step = True
            rank.enter("data")
            rank.say("step_start")
            rank.spend(seconds)

    def compute(self, *, step_s: Sequence[float] | float = 0.5) -> None:
        """Every rank computes; in backward they wait for the last, then the optimizer runs."""
        for rank, seconds in zip(self.ranks, self._each(step_s), strict=True):
            rank.enter("forward")
            rank.spend(0.3 * seconds)
            rank.enter("backward")
            rank.spend(0.6 * seconds)
            rank.collective_seq += 1
        self.meet()
        for rank, seconds in zip(self.ranks, self._each(step_s), strict=True):
            rank.enter("optimizer")
            rank.spend(0.1 * seconds)
            rank.enter("log")
            rank.collective_seq += 1
        self.meet()

    def close_step(self, **fields: Any) -> None:
        """Every rank writes its progress and the end of its step."""
        for rank in self.ranks:
            rank.say("progress", **{"loss": self.loss(rank.step), "grad_norm": 1.0, **fields})
            rank.enter(None)
            rank.say("step_end", tokens=self.order.identity.tokens_per_step)
            rank.in_step = False

    def steps(
        self, count: int, *, step_s: float = 0.5, data_s: float = 0.01, **fields: Any
    ) -> World:
        """Whole steps in lockstep."""
        for _ in range(count):
            self.open_step(data_s=data_s)
            self.compute(step_s=step_s)
            self.close_step(**fields)
        return self

    def meet(self) -> None:
        """Every rank waits for the last one."""
        end = self.mono
        for rank in self.ranks:
            rank.spend(end - rank.mono)

    def pause(self, section: str | None, seconds: float, msg: str | None = None) -> World:
        """All ranks spend time in a section between steps."""
        for rank in self.ranks:
            rank.enter(section)
            rank.spend(seconds)
            if msg is not None:
                rank.say(msg, dt=seconds)
            rank.enter(None)
        return self

    def suspend(self, seconds: float) -> World:
        """All ranks are stopped for so long wherever they stand, and the watcher with them."""
        self.meet()
        self.suspended.append((self.mono, self.mono + seconds))
        for rank in self.ranks:
            rank.mono += seconds
        return self

    def hang(self, culprit: int, section: str, seconds: float) -> World:
        """In the open step `culprit` stays in `section`; its peers wait in backward."""
        for rank in self.ranks:
            if rank.rank == culprit:
                if section != "data":
                    rank.enter(section)
            else:
                rank.enter("forward")
                rank.spend(0.1)
                rank.enter("backward")
                rank.collective_seq += 1
        end = self.mono + seconds
        for rank in self.ranks:
            rank.spend(end - rank.mono)
        return self

    def finish(self) -> World:
        """All ranks are done and exit with 0."""
        for rank in self.ranks:
            rank.say("done")
        for rank in self.ranks:
            self.probe(rank.rank, "dead", code=0, exit_at=EPOCH + self.mono - T0)
        return self

    def _each(self, value: Sequence[float] | float) -> list[float]:
        if isinstance(value, int | float):
            return [float(value)] * len(self.ranks)
        return list(value)


@dataclass(slots=True)
class Watched:
    """What a watcher found and recorded."""

    state: WatchState
    findings: list[Finding]
    ticks: list[Tick]
    """Those that are recorded."""
    files: dict[int, bytearray]

    def of(self, severity: Severity) -> list[Finding]:
        """Return the findings of one severity."""
        return [finding for finding in self.findings if finding.severity is severity]

    @property
    def halts(self) -> list[Finding]:
        """Return the findings that halt."""
        return self.of(Severity.HALT)

    def halted(self) -> list[tuple[str, int | None, str | None]]:
        """Return detector, rank and section of what halts."""
        return [(finding.detector, finding.rank, finding.section) for finding in self.halts]

    def named(self, severity: Severity) -> set[str]:
        """Return the detectors that found something of one severity."""
        return {finding.detector for finding in self.of(severity)}

    def save(self, folder: Path) -> Path:
        """Write the run directory that a watcher would have left."""
        folder.mkdir(parents=True, exist_ok=True)
        save_json(folder / "order.json", self.state.run.order.document())
        (folder / "watch.jsonl").write_bytes(b"".join(map(tick_line, self.ticks)))
        for rank, data in self.files.items():
            (folder / f"heartbeat_rank{rank}.jsonl").write_bytes(data)
        return folder


def _linked(seen: Watched, tick: Tick, beats: Mapping[int, object]) -> Tick:
    """Return a tick as it is recorded: with its lines' digests, and the tick before it."""
    last = seen.ticks[-1] if seen.ticks else None
    return tick.model_copy(
        update={
            "lines": seen.state.view.lines_seen(beats),
            "prev": tick_digest(tick_line(last)) if last else None,
            "start": None if last else _first(seen.state.run.order),
        }
    )


def _first(order: Order) -> WatchStart:
    """Return what a watcher's first tick says of the run it looks at."""
    raw = json.dumps(wire_value(order.document()), indent=1, ensure_ascii=False) + "\n"
    sha256 = hashlib.sha256(raw.encode()).hexdigest()
    return WatchStart(run=order.run, attempt=order.attempt, order_sha256=sha256)


Ticking = Callable[[float], Iterable[tuple[float, float]]]


def every(interval_s: float, suspended: Iterable[tuple[float, float]] = ()) -> Ticking:
    """Return ticks at an interval, late only where they were suspended: (clock, late_s)."""

    def ticks(end: float) -> Iterable[tuple[float, float]]:
        count = int((end - T0) / interval_s) + 2
        last = T0 - interval_s
        for mono in (T0 + number * interval_s for number in range(count)):
            if not any(stopped < mono < woke for stopped, woke in suspended):
                yield mono, max(0.0, mono - last - interval_s)
                last = mono

    return ticks


def watch(
    world: World,
    *,
    interval_s: float = 0.25,
    ticking: Ticking | None = None,
    shuffle: Callable[[list[bytes]], list[bytes]] = lambda lines: lines,
    stop_at_halt: bool = True,
    check_law: bool = False,
    after: Callable[[WatchState, float], None] = lambda state, mono: None,
) -> Watched:
    """Look at a world until its last line, and fold what is seen; record as a watcher does.

    `after` is called after each look, with its clock.
    """
    lines = {rank.rank: rank.lines for rank in world.ranks}
    taken = dict.fromkeys(lines, 0)
    files = {rank: bytearray() for rank in lines}
    probes = sorted(world.probes, key=lambda row: row[0])
    seen = Watched(state=start(world.order), findings=[], ticks=[], files=files)
    looked, ticks = 0, ticking or every(interval_s, world.suspended)
    for number, (mono, late_s) in enumerate(ticks(world.mono + 1.0)):
        beats: dict[int, list[bytes]] = {}
        for rank, said in lines.items():
            first = taken[rank]
            while taken[rank] < len(said) and said[taken[rank]].mono <= mono:
                taken[rank] += 1
            if taken[rank] > first:
                beats[rank] = shuffle([line.raw for line in said[first : taken[rank]]])
                files[rank] += b"".join(raw + b"\n" for raw in beats[rank])
        fields: dict[str, Any] = {}
        while looked < len(probes) and probes[looked][0] <= mono:
            for name, rows in probes[looked][1].items():
                fields[name] = fields.get(name, []) + rows if isinstance(rows, list) else rows
            looked += 1
        row = {"n": number, "mono": mono, "ts": EPOCH + mono - T0, "interval_s": interval_s}
        upto = {str(rank): len(files[rank]) for rank in beats}
        tick = Tick.model_validate({**row, "late_s": late_s, "upto": upto, **fields})
        before = dump_state(seen.state) if check_law else None
        seen.state, findings = fold(seen.state, tick, beats)
        seen.findings += findings
        after(seen.state, mono)
        if beats or fields or findings or late_s:
            seen.ticks.append(_linked(seen, tick, beats))
        elif check_law:
            assert dump_state(seen.state) == before
        if stop_at_halt and seen.halts:
            break
    return seen
