"""Records of a run that contradict each other. A run with a contradiction is never a GO.

Each rule compares two witnesses: processes with each other, lines with the order and the ticks,
device samples with ticks, records of how the run ended with each other. A contradiction does not
say which witness is wrong.
"""

import math
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

from gonogo.contract.canonical import added
from gonogo.contract.facts import ProcessExit
from gonogo.contract.finding import Doubt, DoubtKind
from gonogo.contract.heartbeat import Msg
from gonogo.contract.order import Rules
from gonogo.contract.outcome import OutcomeCode
from gonogo.contract.records import ExitRecord, RankExit, parse_rank
from gonogo.judge.facts.learning import find_nothing_learned
from gonogo.judge.facts.record import RunRecord
from gonogo.rundir import heartbeat_rank
from gonogo.timeline.columns import UNTOLD

Kind = DoubtKind

TOP = {"flash_share": 1.0} | dict.fromkeys(
    (
        *("grad_norm", "dt_fetch_s", "toks_per_s", "gpu_mem_alloc", "gpu_mem_reserved"),
        *("host_rss_mb", "gate_entropy", "comm_mb"),
    ),
    math.inf,
)
"""Numbers that are never negative → the largest value that they can have."""
OVERLAP_S = 1.0
"""How long two processes of a rank may seem to run at once: a heartbeat thread ends late."""
FOUND_FIRST_S = 60.0
"""A program that is only read starts before its watcher, by no more than this."""
CLOCKS_DIFFER_RATIO, CLOCKS_DIFFER_S = 0.2, 5.0
"""Lines are received a tick or two late, so shorter differences mean nothing."""
HALT = ".HALT"
"""It asks the ranks to leave, and gives them time for their last step; `.kill` gives none."""
MOST = 20
"""Contradictions that facts hold."""


def find_contradictions(record: RunRecord, rules: Rules) -> list[Doubt]:
    """Return what contradicts what, at most `MOST`; the predecessor's lines have no witness."""
    found: list[Doubt] = []
    for rule in () if record.predecessor else RULES:
        found.extend(rule(record, rules))
    return found[:MOST]


def _not_ordered(record: RunRecord, rules: Rules) -> Iterator[Doubt]:
    """Compare the ranks that left records, and their steps, with the order."""
    if not rules.known:
        return
    exits = {} if record.exit is None else record.exit.ranks
    counted = {} if record.exit is None else record.exit.heartbeats or {}
    seen = {
        *(rank for rank, steps in record.ranks.items() if steps.count),
        *(heartbeat_rank(name) for name, row in counted.items() if row.lines),
        *map(parse_rank, exits),
        *record.probed,
        *record.strays,
    }
    for rank in sorted(rank for rank in seen - {*rules.ranks()} if rank is not None):
        yield Doubt(
            kind=Kind.NOT_ORDERED,
            rank=rank,
            name="rank",
            found=rank,
            expected=f"{rules.world_size} ranks",
        )
    for rank, steps in sorted(record.ranks.items()) if rules.steps is not None else ():
        owed = rules.owed_steps()
        ended = {step for step, _ in steps.steps.steps_of(Msg.STEP_END) if step not in owed}
        beyond = ended | {step for step in steps.evaluations if step > rules.last_step}
        if beyond:
            first, last = min(beyond), f"{rules.last_step} steps"
            yield Doubt(
                kind=Kind.NOT_ORDERED,
                rank=rank,
                step=first,
                name="step",
                found=first,
                expected=last,
            )
    said = record.order.train.get("steps") if record.order is not None else None
    if said is not None and said != rules.steps:
        name = "order.json: train.steps"
        yield Doubt(kind=Kind.NOT_ORDERED, name=name, found=said, expected=rules.steps)


def _two_writers(record: RunRecord, rules: Rules) -> Iterator[Doubt]:
    """Compare the processes of ranks: one process a rank at a time, and none for two ranks.

    Two hosts may give the same process id. One reader writes the lines of all ranks of a program
    that is only read.
    """
    owner: dict[tuple[int, int], int] = {}
    for rank, steps in sorted(record.ranks.items()):
        node = 0 if record.order is None else record.order.node_of(rank)
        for boot in steps.boots:
            if len(boot.pids) > 1:
                found: list[Any] = list(boot.pids)
                name = "one boot with several process ids"
                yield Doubt(kind=Kind.TWO_WRITERS, rank=rank, name=name, found=found)
            for pid in boot.pids if rules.programs is None else ():
                other = owner.setdefault((node, pid), rank)
                if other != rank:
                    name = f"a process of rank {other}"
                    yield Doubt(kind=Kind.TWO_WRITERS, rank=rank, name=name, found=pid)
        for earlier, later in pairwise(steps.boots):
            if later.began_mono < earlier.ended_mono - OVERLAP_S:
                both: list[Any] = [*earlier.pids, *later.pids]
                yield Doubt(kind=Kind.TWO_WRITERS, rank=rank, name="at once", found=both)
    for rank, row in sorted(record.lines.items()):
        if row.conflicts:
            name = "lines with one number differ"
            yield Doubt(kind=Kind.TWO_WRITERS, rank=rank, name=name, found=row.conflicts)


def _another_process(record: RunRecord, rules: Rules) -> Iterator[Doubt]:
    """Compare the run that each process with steps was started for with this one."""
    mine = f"run {rules.run}, attempt {rules.attempt}"
    for rank, steps in sorted(record.ranks.items()) if rules.run else ():
        for boot in (boot for boot in steps.boots if boot.steps.rows):
            named = dict.fromkeys((line.run, line.attempt) for line in boot.boot_lines)
            others = [
                f"run {run}, attempt {attempt}"
                for run, attempt in named
                if run not in (None, rules.run) or attempt not in (None, rules.attempt)
            ]
            for other in others if named else ["no run"]:
                yield Doubt(kind=Kind.OTHER_RUN, rank=rank, expected=mine, found=other)


def _two_identities(record: RunRecord, rules: Rules) -> Iterator[Doubt]:
    """Compare the identities that a rank reported while it trained."""
    for rank, steps in sorted(record.ranks.items()):
        known: dict[str, Any] = {}
        for identity in (said for boot in steps.boots for said in boot.trained_as()):
            told = identity.model_dump(
                mode="json", exclude_none=True, exclude=set(rules.allow_drift)
            )
            for name, value in told.items():
                if known.setdefault(name, value) != value:
                    kind, before = Kind.IDENTITY_CHANGED, known[name]
                    yield Doubt(kind=kind, rank=rank, name=name, expected=before, found=value)
                    known[name] = value


def _numbers(record: RunRecord, rules: Rules) -> Iterator[Doubt]:
    """Compare numbers with the range that they can have."""
    for rank, steps in sorted(record.ranks.items()):
        counts = {
            name: sum(value > top or UNTOLD != value < 0 for value in steps.steps.numbers(name))
            for name, top in TOP.items()
        }
        counts["dt"] = sum(1 for line in steps.evaluations.values() if (line.dt or 0.0) < 0)
        for name, count in counts.items():
            if count:
                yield Doubt(kind=Kind.IMPOSSIBLE_NUMBER, rank=rank, name=name, found=count)


def _clocks(record: RunRecord, rules: Rules) -> Iterator[Doubt]:
    """Compare how long a rank ran by its own clock with how long it was observed.

    A slow clock makes the rank look fast. A rank that ran longer was not watched all the time;
    its start, until the first step, may be unobserved.
    """
    observed = record.watch.heard if record.watch is not None else {}
    for rank, steps in sorted(record.ranks.items()):
        heard = observed.get(rank)
        if heard is None:
            continue
        own_s = added(boot.ended_mono - boot.began_mono for boot in steps.boots)
        heard_s = heard.last_mono - heard.first_mono
        first = next(iter(steps.boots), None)
        start_s = 0.0 if first is None else first.stepped_mono - first.began_mono
        start_s = start_s if math.isfinite(start_s) else 0.0
        # a program that is only read does not wait for its watcher
        if not any(boot.ended_steps for boot in steps.boots):
            start_s = max(start_s, FOUND_FIRST_S)
        for apart_s, seen_s in (
            (heard.least_s - own_s, heard.least_s),
            (own_s - start_s - heard_s, heard_s),
        ):
            if apart_s > max(CLOCKS_DIFFER_S, CLOCKS_DIFFER_RATIO * max(own_s, seen_s)):
                expected, found = round(heard_s), round(own_s)
                yield Doubt(kind=Kind.CLOCKS_DIFFER, rank=rank, expected=expected, found=found)


def _devices(record: RunRecord, rules: Rules) -> Iterator[Doubt]:
    """Compare devices.jsonl with the ticks' samples, and a first sample with the preflight.

    The detector `hardware` finds later errors of a device.
    """
    if record.devices_gone:
        found = record.devices_gone
        yield Doubt(kind=Kind.DEVICES_DIFFER, name="devices.jsonl", found=found)
    if record.watch is None or record.order is None:
        return
    for (rank, uuid), errors in sorted(record.watch.device_errors.items()):
        node = record.order.node_of(rank)
        made = record.preflights.get(node) if node else record.preflight
        checked = made is not None and "devices" in {row.id for row in made.checks} - made.failed()
        if errors and checked:
            yield Doubt(kind=Kind.DEVICES_DIFFER, rank=rank, name=uuid, found=errors)


def _ends(record: RunRecord, rules: Rules) -> Iterator[Doubt]:
    """Yield the records of the run's end that contradict each other."""
    yield from _done(record, rules)
    ended = record.exit
    if ended is None:
        return
    if ended.reason is OutcomeCode.COMPLETED:
        for who, why in _not_completed(record, ended, rules):
            yield _exit_differs(who, why, "completed")
    watched = record.watch.agent if record.watch is not None else None
    yield from _compare("torchrun, by the watcher", watched, ended.agent)
    for name, row in sorted(ended.ranks.items()):
        rank = parse_rank(name)
        if rank is None:
            continue
        yield from _compare("its own record", record.rank_exits.get(rank), row, rank)
        yield from _compare("the watcher", record.probed.get(rank), row, rank)
        for node, part in sorted(record.parts.items()) if ended.nodes is not None else ():
            yield from _compare(f"exit_node{node}.json", part.ranks.get(name), row, rank)
    if ended.nodes is not None and record.order is not None:
        yield from _nodes(record, ended, record.order.nodes)


def _nodes(record: RunRecord, ended: ExitRecord, nodes: int) -> Iterator[Doubt]:
    """Yield the nodes whose part of the run exit.json does not know, or which name another run."""
    for node in range(nodes):
        if str(node) not in (ended.nodes or {}) and node not in ended.unheard:
            yield _exit_differs(f"node {node}", "no record", "a run of more nodes")
    for node, part in sorted(record.parts.items()):
        if (part.node, part.run) != (node, ended.run):
            found = f"node {part.node} of run {part.run}"
            yield _exit_differs(f"exit_node{node}.json", found, f"run {ended.run}")


def _done(record: RunRecord, rules: Rules) -> Iterator[Doubt]:
    """Compare `done` with the last step that the last process ended, and with its errors."""
    for rank, steps in sorted(record.ranks.items()):
        for boot in steps.boots:
            done = boot.done
            if done is None:
                continue
            if boot.error_seq is not None and boot.error_seq < done.seq:
                yield _exit_differs("done", "an error", done.step, rank)
            ends = rules.steps is not None and boot is steps.last_boot and boot.ended_steps
            if ends and boot.last_step < min(done.step, rules.steps or 0):
                yield _exit_differs("done", f"step {boot.last_step}", f"step {done.step}", rank)


def _not_completed(record: RunRecord, ended: ExitRecord, rules: Rules) -> Iterator[tuple[str, str]]:
    """Yield who says that a run did not complete although exit.json says so, and why.

    A run that was asked to leave and made its last step first has completed.
    """
    done = [record.ranks[rank].done_step for rank in rules.ranks() if rank in record.ranks]
    whole = len(done) == rules.world_size and all(step == rules.steps for step in done)
    for name in sorted({*record.marks, *ended.requests}):
        asked_late = name == HALT and name in record.marks and name in ended.requests
        if not (whole and asked_late):
            yield name, "a request to end"
    agent = record.watch.agent if record.watch is not None else None
    if agent is not None and not agent.clean:
        yield "torchrun, by the watcher", _told(agent)
    for node in ended.unheard:
        yield f"node {node}", "no record"
    for node, part in sorted(record.parts.items()):
        if part.refused is not None or (part.agent is not None and _told(part.agent) != CLEAN):
            yield f"node {node}", "a failure"


def _compare(
    who: str,
    other: RankExit | ProcessExit | None,
    row: RankExit | ProcessExit | None,
    rank: int | None = None,
) -> Iterator[Doubt]:
    if other is not None and row is not None and _told(other) != _told(row):
        yield _exit_differs(who, _told(other), _told(row), rank)


def _exit_differs(who: str, found: str, expected: str | int, rank: int | None = None) -> Doubt:
    return Doubt(kind=Kind.EXIT_DIFFERS, rank=rank, name=who, expected=expected, found=found)


def _told(row: RankExit | ProcessExit) -> str:
    return f"signal {row.signal}" if row.signal else f"code {row.code}"


CLEAN = _told(ProcessExit(code=0))

RULES: tuple[Callable[[RunRecord, Rules], Iterator[Doubt]], ...] = (
    _not_ordered,
    _two_writers,
    _another_process,
    _two_identities,
    _ends,
    _numbers,
    lambda record, rules: find_nothing_learned(record.ranks, rules),
    _clocks,
    _devices,
)
"""Each compares two witnesses; a new one is one row."""
