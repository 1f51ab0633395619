"""Which run directories do tests judge? Small ones, made from nothing but this file.

`python -m tests.data.make_runs` writes `tests/data/runs/` and the golden decisions of
`tests/data/decisions/`, the same every time. Ours: `healthy`, `stalled`, `non_finite`. The predecessor's: `predecessor_healthy`,
`predecessor_toy` (a toy's speed under the real model's name), `predecessor_stalled`.
"""

from __future__ import annotations

import hashlib
import json
import math
import random
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from gonogo.contract.canonical import wire_line, wire_value
from gonogo.contract.decision import MadeBy
from gonogo.contract.order import Order, ResumePoint
from gonogo.contract.records import PREFLIGHT_CHECKS, SANITY
from gonogo.contract.records import FileSeal, ProcessState, RankProbe, Tick, WatchStart
from gonogo.judge.facts.facts import build_facts
from gonogo.judge.facts.record import load_run
from gonogo.judge.gate.rules import build_rules
from gonogo.judge.gate.verdict import judge
from gonogo.ledger.seal import Place, append
from gonogo.ledger.seal import judged as judged_by
from gonogo.watch.fold import fold, start
from gonogo.watch.offline_fold import refold, tick_digest, tick_line
from gonogo.planning.resolve import build_order, resolve_plan
from gonogo.planning.source import bundled_plan
from gonogo.rundir import preflight_name, save_json
from gonogo.supervise.exit_record import count_heartbeats

HERE = Path(__file__).parent
EPOCH = 1_760_000_000.0
BOOT_MONO = 5_000.0
STEPS = 12
EXPERIMENT = "exp_01K00000000000000000000000"

CONFIG: dict[str, Any] = {
    "config": "demo",
    "model": {
        "dim": 64,
        "layers": 2,
        "heads": 4,
        "groups": 2,
        "vocab": 256,
        "seq_len": 128,
        "gradient_checkpointing": False,
    },
    "batch": {"global_seqs": 4, "accumulate": 1},
    "eval": {"every_steps": 6, "batches": 1},
    "params": 100_000,
    "data": "local_text",
    "seed": 1337,
    "dtype": "fp32",
    "parallel": "ddp",
    "steps": STEPS,
}
TOKENS = 512
MADE_BY = MadeBy(gonogo="0.1.0", sources="0" * 64)
"""Fixed, so that what is written does not change with the sources."""

Line = dict[str, Any]


def order_of(
    *, phase: str = "smoke", resume_step: int | None = None, sets: dict[str, Any] | None = None
) -> Order:
    """An order of the demo plan with a tiny configuration, `STEPS` steps a phase."""
    steps = {f"phases.{name}.steps": STEPS for name in ("smoke", "extended", "production")}
    resolved = resolve_plan(
        bundled_plan("demo"), {**steps, **(sets or {})}, load_config=lambda name: CONFIG, schema_of=lambda entry: None
    )
    resume = None
    if resume_step is not None:
        resume = ResumePoint(path=f"checkpoints/step_{resume_step:06d}", step=resume_step)
    order = build_order(
        resolved,
        phase,
        experiment=EXPERIMENT,
        run="run_01K00000000000000000000000",
        token=1,
        resume_from=resume,
        frozen={"git_sha": "0123456789abcdef0123456789abcdef01234567"},
    )
    return order.model_copy(update={"made_by": MADE_BY})


class Rank:
    """Writes one rank's lines on a clock of its own."""

    def __init__(self, rank: int, order: Order) -> None:
        self.rank, self.order = rank, order
        self.mono, self.seq, self.section_seq = BOOT_MONO + 0.001 * rank, 0, 0
        self.boot_id = f"boot{rank}"
        self.random = random.Random(rank)
        self.lines: list[Line] = []

    def say(self, msg: str, step: int, section: str | None, **fields: Any) -> None:
        self.seq += 1
        self.section_seq += 1
        self.lines.append({
            "v": 1, "ts": round(EPOCH + self.mono - BOOT_MONO, 6), "mono": round(self.mono, 6),
            "pid": 1000 + self.rank, "rank": self.rank, "boot": self.boot_id,
            "seq": self.seq, "step": step, "msg": msg, "section": section,
            "section_seq": self.section_seq, **fields,
        })  # fmt: skip

    def boot(self, step: int = 0) -> None:
        identity = self.order.identity.model_dump(mode="json", exclude_none=True)
        whose = {"run": self.order.run, "attempt": self.order.attempt}
        self.say("boot", step, "boot", **identity, **whose, backend="DDP")
        self.mono += 0.5
        self.say("loader_ready", step, "data", dt=0.2)

    def restart(self, step: int, *, boot: str | None = None) -> None:
        """A new process in place of this one resumes after `step`; its `seq` begins again."""
        self.boot_id, self.seq = boot or f"again{self.rank}", 0
        self.boot(step)

    def step(
        self, step: int, *, loss: float | None = None, stop_in: str | None = None,
        dt_s: float = 0.5,
    ) -> None:  # fmt: skip
        self.say("step_start", step, "data")
        if stop_in is not None:
            self.mono += 1.0
            self.say("section", step, stop_in, section_age_s=1.0, collective_seq=step)
            return
        # both ranks end a step together: they meet in its last collective
        self.mono += dt_s * (1 + 0.04 * math.sin(step)) - 0.03
        self.say(
            "progress", step, "log",
            loss=5.6 - 0.05 * step + 0.01 * math.sin(step) if loss is None else loss,
            grad_norm=1.0 + 0.1 * math.cos(step), lr=0.001, toks_per_s=TOKENS / dt_s,
            dt_fetch_s=0.004, gpu_mem_alloc=0.0, gpu_mem_reserved=0.0, host_rss_mb=300.5,
        )  # fmt: skip
        self.mono += 0.02
        sections = {"data": 0.005, "forward": 0.2, "backward": 0.25, "optimizer": 0.02}
        self.say(
            "step_end", step, "log", dt_step_s=dt_s, tokens=TOKENS,
            step_sections={**sections, "wait": 0.01},
        )  # fmt: skip
        self.mono += 0.01
        every = CONFIG["eval"]["every_steps"]
        if step % every == 0:
            self.mono += 0.1
            self.say("eval", step, "eval", val_loss=5.6 - 0.05 * step)

    def wait(self, seconds: float, step: int, section: str) -> None:
        """The heartbeat thread speaks while the trainer does not."""
        end = self.mono + seconds
        while self.mono + 0.5 < end:
            self.mono += 0.5
            self.say("alive", step, section, section_age_s=1.0, collective_seq=step)

    def done(self) -> None:
        self.say("done", self.order.steps, None)


def healthy_ranks(order: Order) -> list[Rank]:
    """Two ranks that do all that was ordered."""
    ranks = [Rank(rank, order) for rank in range(order.world_size)]
    first = 1 if order.resume_from is None else order.resume_from.step + 1
    for rank in ranks:
        rank.boot()
        for step in range(first, order.steps + 1):
            rank.step(step)
        rank.done()
    return ranks


def stalled_ranks(order: Order) -> list[Rank]:
    """Rank 1 hangs in backward of step 8; rank 0 waits for it in the collective."""
    ranks = [Rank(rank, order) for rank in range(order.world_size)]
    for rank in ranks:
        rank.boot()
        for step in range(1, 8):
            rank.step(step)
        rank.step(8, stop_in="backward")
        if rank.rank == 0:
            rank.lines[-1]["collective_seq"] = 9
        rank.wait(9.0, 8, "backward")
    return ranks


def non_finite_ranks(order: Order) -> list[Rank]:
    """The loss of step 9 is not a number."""
    ranks = [Rank(rank, order) for rank in range(order.world_size)]
    for rank in ranks:
        rank.boot()
        for step in range(1, 10):
            rank.step(step, loss=math.nan if step == 9 else None)
    return ranks


DEVICES_EVERY = 20
"""Ticks between two samples of the devices: 5 s."""


def device_row(rank: int, util: float, mono: float) -> Line:
    """A sample of a device that is well, as a tick carries it."""
    return {
        "v": 1, "ts": EPOCH + mono - BOOT_MONO, "mono": mono, "uuid": f"GPU-{rank}", "index": rank,
        "rank": rank, "util": util, "mem_used_mb": 30_000.0, "mem_total_mb": 81_920.0,
        "sm_clock_mhz": 1410.0, "power_w": 280.0, "temp_c": 60.0, "throttle": [],
        "ecc_uncorrected": 0, "remap_pending": False, "nvlink_errors": 0, "xids": [],
    }  # fmt: skip


def ticks_of(
    order: Order, ranks: list[Rank], seals: dict[str, FileSeal], util: Mapping[int, float]
) -> Iterator[Tick]:
    """What a watcher with a quarter of a second between ticks records."""
    texts = {rank.rank: [wire_line(line) for line in rank.lines] for rank in ranks}
    stamps = {rank.rank: [line["mono"] for line in rank.lines] for rank in ranks}
    end = max(stamp[-1] for stamp in stamps.values()) + 0.5
    upto = {rank.rank: 0 for rank in ranks}
    taken = {rank.rank: 0 for rank in ranks}
    state, previous = start(order), None
    number, mono = 0, BOOT_MONO
    while mono < end:
        number += 1
        mono = BOOT_MONO + number * 0.25
        beats: dict[int, list[bytes]] = {}
        for rank, times in stamps.items():
            while taken[rank] < len(times) and times[taken[rank]] <= mono:
                beats.setdefault(rank, []).append(texts[rank][taken[rank]])
                upto[rank] += len(texts[rank][taken[rank]])
                taken[rank] += 1
        devices = []
        if number % DEVICES_EVERY == 1:
            devices = [device_row(rank, busy, mono - 0.1) for rank, busy in util.items()]
        if not beats and not devices:
            continue
        probes = [
            RankProbe(rank=rank.rank, pid=1000 + rank.rank, state=ProcessState.ALIVE)
            for rank in ranks
        ]
        tick = Tick(
            n=number, mono=mono, ts=EPOCH + mono - BOOT_MONO, interval_s=0.25,
            upto={str(rank): size for rank, size in upto.items()},
            ranks=probes if number % 8 == 1 else [], go=mono > BOOT_MONO + 0.5,
            observations={"devices": devices} if devices else {},
        )  # fmt: skip
        state, _ = fold(state, tick, beats)
        tick = tick.model_copy(
            update={
                "lines": state.view.lines_seen(beats),
                "prev": previous,
                "start": None if previous else WatchStart(
                    run=order.run, attempt=order.attempt, version="0.2.0",
                    order_sha256=seals["order.json"].sha256,
                ),
                "files": {} if previous else seals,
            }
        )  # fmt: skip
        previous = tick_digest(tick_line(tick))
        yield tick


def seal_of(path: Path) -> FileSeal:
    """Size and SHA-256 of a file."""
    raw = path.read_bytes()
    return FileSeal(bytes=len(raw), sha256=hashlib.sha256(raw).hexdigest())


def preflight_of() -> Line:
    """Every check, passed; `store` was one of earlier versions."""
    checks = [
        {"id": name, "outcome": "pass", "text": f"{name} is well"}
        for name in (*PREFLIGHT_CHECKS, "store", SANITY)
    ]
    return {"v": 1, "passed": True, "checks": checks}


def save_run(
    folder: Path,
    order: Order,
    ranks: list[Rank],
    exit_record: Line,
    util: Mapping[int, float] | None = None,
) -> None:
    """Write a whole run directory, as worker and watcher do; its findings are those of the watch.

    `util` is rank → how busy its device is, percent; without it there are no devices.
    """
    folder.mkdir(parents=True)
    save_json(folder / "order.json", order.document())
    for rank in ranks:
        lines = b"".join(wire_line(line) for line in rank.lines)
        (folder / f"heartbeat_rank{rank.rank}.jsonl").write_bytes(lines)
    preflights = [preflight_name(node) for node in range(order.nodes)]
    for name in preflights:
        save_json(folder / name, preflight_of())
    identity = order.identity.model_dump(mode="json", exclude_none=True)
    save_json(folder / "model.json", {"v": 1, **identity})
    save_json(folder / "env.json", {"python": "3.11.9", "host": "test"})
    early = ("order.json", *preflights, "model.json")
    seals = {name: seal_of(folder / name) for name in early}
    ticks = list(ticks_of(order, ranks, seals, util or {}))
    watch = folder / "watch.jsonl"
    watch.write_bytes(b"".join(map(tick_line, ticks)))
    rows = [row for tick in ticks for row in tick.observations.get("devices", [])]
    if rows:
        (folder / "devices.jsonl").write_bytes(b"".join(map(wire_line, rows)))
    for rank, row in exit_record["ranks"].items():
        save_json(folder / f"exit_rank{rank}.json", row)
    parts = save_parts(folder, order, exit_record) if order.nodes > 1 else {}
    whose = {"run": order.run, "attempt": order.attempt, "order_sha256": seals["order.json"].sha256}
    sealed = {**exit_record, **whose, **parts, "watch": seal_of(watch).model_dump(mode="json")}
    sealed["heartbeats"] = count_heartbeats(folder)
    save_json(folder / "exit.json", sealed)
    last = ticks[-1]
    seen = Tick(
        n=last.n + 2, mono=last.mono + 0.5, ts=last.ts + 0.5, interval_s=0.25, go=True,
        upto=last.upto, prev=tick_digest(tick_line(last)),
        ranks=[
            RankProbe(
                rank=int(rank), pid=1000 + int(rank), state=ProcessState.DEAD, code=row["code"],
                signal=row["signal"], exit_at=row["at"],
            )
            for rank, row in exit_record["ranks"].items()
        ],
        files={
            file.name: seal_of(file)
            for file in (folder / "exit.json", *sorted(folder.glob("exit_rank*.json")))
        },
    )  # fmt: skip
    with watch.open("ab") as stream:
        stream.write(tick_line(seen))
    findings = [wire_line(finding.wire()) for finding in refold(folder).findings]
    (folder / "findings.jsonl").write_bytes(b"".join(findings))


def save_parts(folder: Path, order: Order, exit_record: Line) -> Line:
    """Write what each node's keeper and follower leave; what exit.json says of it."""
    seals = {}
    for node in range(order.nodes):
        ranks = {
            rank: row for rank, row in exit_record["ranks"].items() if order.node_of(int(rank)) == node
        }
        ended = max(row["at"] for row in ranks.values())
        whose = {"v": 1, "node": node, "host": f"host{node}"}
        part = {
            **whose, "boot_id": "boot", "run": order.run, "token": order.token, "ended_at": ended,
            "agent": {"v": 1, "code": 0, "signal": None, "at": ended}, "ranks": ranks, "left": [],
            "oom_at": None, "refused": None,
        }  # fmt: skip
        save_json(folder / f"exit_node{node}.json", part)
        rows = [
            {"rank": int(rank), "pid": 1000 + int(rank), "state": state}
            for state in ("alive", "dead") for rank in ranks
        ]  # fmt: skip
        lines = [
            {**whose, "token": order.token, "n": n, "mono": 5.0 + n, "ts": EPOCH + n, "ranks": [row]}
            for n, row in enumerate(rows)
        ]
        watch = folder / f"watch_node{node}.jsonl"
        watch.write_bytes(b"".join(map(wire_line, lines)))
        files = {"exit": folder / f"exit_node{node}.json", "watch": watch}
        seals[str(node)] = {
            name: seal_of(path).model_dump(mode="json") for name, path in files.items()
        }
    return {"nodes": seals, "unheard": []}


def exit_of(ranks: list[Rank], **fields: Any) -> Line:
    """An exit record at the last line's time."""
    at = max(rank.lines[-1]["ts"] for rank in ranks) + 0.2
    signal = fields.pop("rank_signal", None)
    row = {"v": 1, "code": None if signal else 0, "signal": signal, "at": at}
    rows = {str(rank.rank): row for rank in ranks}
    base = {"v": 1, "code": 0, "signal": None, "ended_at": at, "ended_by": "trainer"}
    return {**base, "reason": "completed", "text": "", "ranks": rows, **fields}


def make_healthy(folder: Path) -> None:
    """GO."""
    order = order_of()
    ranks = healthy_ranks(order)
    save_run(folder, order, ranks, exit_of(ranks))


def make_stalled(folder: Path) -> None:
    """NO_GO: stalled, rank 1, backward."""
    order = order_of()
    ranks = stalled_ranks(order)
    fields = {"code": 1, "ended_by": "watchdog", "reason": "stalled", "rank_signal": 9}
    save_run(folder, order, ranks, exit_of(ranks, **fields))


def make_non_finite(folder: Path) -> None:
    """NO_GO: non_finite."""
    order = order_of()
    ranks = non_finite_ranks(order)
    fields = {"code": 1, "ended_by": "watchdog", "reason": "non_finite", "rank_signal": 9}
    save_run(folder, order, ranks, exit_of(ranks, **fields))


# ---- the predecessor's lines (docs of its trainer; figures of the field reports) ----------------


def predecessor_line(second: float, step: int, msg: str, **fields: Any) -> Line:
    stamp = EPOCH + second
    return {
        "ts": stamp, "iso": f"t+{second:.0f}s", "pid": 4242, "rank": 0, "step": step, "msg": msg,
        "gpu_mem_alloc": 298, "gpu_mem_reserved": 610, **fields,
    }  # fmt: skip


def predecessor_lines(
    *, steps: int, step_s: float, tok_s: float, log_every: int, until: int | None = None
) -> list[Line]:
    """Rank 0 only, a progress line every `log_every` steps."""
    lines = [
        predecessor_line(0.0, 0, "boot"),
        predecessor_line(11.3, 0, "fineweb_loader_ready", dt_fetch_s=11.3),
    ]
    for step in range(log_every, (until or steps) + 1, log_every):
        second = 11.3 + step * step_s
        loss = 5.6877 * math.exp(-step / 400)
        lines.append(
            predecessor_line(
                second,
                step,
                "progress",
                loss=loss,
                toks_per_s=tok_s,
                dt_fetch_s=0.0005,
                grad_norm=0.0,
            )  # fmt: skip
        )
        lines.append(predecessor_line(second + 0.2, step, "step_end"))
    return lines


def save_lines(folder: Path, lines: list[Line]) -> None:
    folder.mkdir(parents=True)
    text = "".join(json.dumps(wire_value(line)) + "\n" for line in lines)
    (folder / "heartbeat_rank0.jsonl").write_text(text)


def make_predecessor_healthy(folder: Path) -> None:
    """300 steps at 107 s; nothing that could prove a GO."""
    save_lines(folder, predecessor_lines(steps=300, step_s=107.8, tok_s=38.0, log_every=20))


def make_predecessor_toy(folder: Path) -> None:
    """The 847 tokens/s of a 254 499-parameter toy (R70)."""
    save_lines(folder, predecessor_lines(steps=300, step_s=0.3, tok_s=847.0, log_every=20))


def make_predecessor_stalled(folder: Path) -> None:
    """Hung after step 160."""
    lines = predecessor_lines(steps=300, step_s=107.8, tok_s=38.0, log_every=20, until=160)
    for beat in range(1, 40):
        lines.append(predecessor_line(11.3 + 160 * 107.8 + 600.0 * beat, 160, "beat"))
    save_lines(folder, lines)


RUNS: dict[str, Callable[[Path], None]] = {
    "healthy": make_healthy,
    "stalled": make_stalled,
    "non_finite": make_non_finite,
    "predecessor_healthy": make_predecessor_healthy,
    "predecessor_toy": make_predecessor_toy,
    "predecessor_stalled": make_predecessor_stalled,
}

OURS = ("healthy", "stalled", "non_finite")

WHOLE_GATE = [
    {"id": "steps", "metric": "steps_completed", "aggregate": "last", "pass_above": 1.0}
]
"""A gate that every whole run passes."""

GOLDEN = OURS


def save_golden(name: str, runs: Path, into: Path) -> None:
    """Write the decision about one run directory."""
    record = load_run(runs / name)
    rules = build_rules(record.order)
    facts = build_facts(record, rules)
    place = Place(
        id=f"dec_01K0000000000000000000000{GOLDEN.index(name)}", experiment=EXPERIMENT,
        phase=rules.phase, run="run_01K00000000000000000000000", at="2025-10-09T09:00:00Z",
    )  # fmt: skip
    entry = replace(judged_by(judge(facts, rules), rules, facts), made_by=MADE_BY)
    recorded = append(entry, place, None)
    save_json(into / f"{name}.json", recorded.document)


def main() -> None:
    """Write the runs and the golden decisions."""
    for name, make in RUNS.items():
        folder = HERE / "runs" / name
        shutil.rmtree(folder, ignore_errors=True)
        make(folder)
    for name in GOLDEN:
        save_golden(name, HERE / "runs", HERE / "decisions")


if __name__ == "__main__":
    main()
