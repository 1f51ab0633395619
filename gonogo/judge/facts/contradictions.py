"""Which records of a run contradict each other? None of them is ever a GO.

Each rule compares two witnesses: processes with each other, lines with the order, lines with
model.json, device samples with ticks. `ends` compares the records of how the run ended, `clocks`
the clocks, `learning` the steps with what they report. A contradiction does not say which witness
is wrong.
"""

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

from gonogo.contract.doubt import Doubt, DoubtKind
from gonogo.contract.heartbeat import Msg
from gonogo.contract.outcome import Detector
from gonogo.contract.rules import Rules
from gonogo.contract.tick import parse_rank
from gonogo.judge.facts.clocks import find_clock_differences
from gonogo.judge.facts.ends import find_end_differences
from gonogo.judge.facts.learning import find_nothing_learned
from gonogo.judge.facts.record import RunRecord
from gonogo.rundir import heartbeat_rank
from gonogo.timeline.columns import NUMBERS

Kind = DoubtKind

NEVER_NEGATIVE = (
    *("grad_norm", "dt_fetch_s", "toks_per_s", "gpu_mem_alloc", "gpu_mem_reserved"),
    *("host_rss_mb", "gate_entropy", "comm_mb", "flash_share"),
)
NEVER_ABOVE_ONE = ("flash_share",)
OVERLAP_S = 1.0
"""How long two processes of a rank may seem to run at once: a heartbeat thread's last breath."""
MOST = 20
"""Contradictions that facts hold."""


def find_contradictions(record: RunRecord, rules: Rules) -> list[Doubt]:
    """Return what contradicts what, at most `MOST`."""
    found: list[Doubt] = []
    for rule in (_speed_reports,) if record.predecessor else RULES:
        found.extend(rule(record, rules))
    return found[:MOST]


def _speed_reports(record: RunRecord, rules: Rules) -> Iterator[Doubt]:
    """Of the predecessor's lines, only the speed has a second witness: their distance."""
    for row in record.findings:
        if row.detector == Detector.IMPLAUSIBLE_SPEED:
            yield Doubt(
                kind=Kind.IMPLAUSIBLE_SPEED,
                rank=row.rank,
                expected=row.threshold,
                found=row.value,
            )


def _ranks(record: RunRecord, rules: Rules) -> Iterator[Doubt]:
    """Compare the ranks that left records with the ordered ones."""
    if not rules.known:
        return
    exits = record.exit.ranks if record.exit is not None else {}
    written = {rank for rank, steps in record.ranks.items() if steps.count}
    named = {name: parse_rank(name) for name in exits}
    ended = {rank for rank in named.values() if rank is not None} | record.probed.keys()
    ended |= _counted(record)
    for rank in sorted((written | ended | set(record.strays)) - set(rules.ranks())):
        yield Doubt(kind=Kind.RANK_NOT_ORDERED, rank=rank, name="the rank")
    for name, number in named.items():
        if number is None:
            yield Doubt(kind=Kind.RANK_NOT_ORDERED, name=f"exit.json: {name[:16]!r}")


def _counted(record: RunRecord) -> set[int]:
    """Return the ranks that wrote heartbeats by the count in exit.json.

    A file that is still as it was sealed speaks for itself.
    """
    counted = record.exit.heartbeats if record.exit is not None else None
    found = set()
    for name, written in (counted or {}).items():
        rank = heartbeat_rank(name)
        if rank is None or rank in record.kept or not written.lines:
            continue
        if written.sha256 or written.lines > record.unreadable_lines.get(rank, 0):
            found.add(rank)
    return found


def _one_process_twice(record: RunRecord, rules: Rules) -> Iterator[Doubt]:
    """Compare process ids; two hosts may give the same id, but not with the same boot."""
    owner: dict[tuple[int | str, int], int] = {}
    for rank, steps in sorted(record.ranks.items()):
        node = 0 if record.order is None else record.order.node_of(rank)
        for boot in steps.boots:
            if len(boot.pids) > 1:
                pids: list[Any] = list(boot.pids)
                yield Doubt(kind=Kind.PROCESS_SHARED, rank=rank, expected=rank, found=pids)
            for pid in boot.pids if rules.programs is None else ():  # one reader for all ranks
                places = (node, boot.boot)
                others = {owner.setdefault((place, pid), rank) for place in places} - {rank}
                for other in sorted(others):
                    yield Doubt(kind=Kind.PROCESS_SHARED, rank=rank, expected=other, found=pid)


def _two_writers(record: RunRecord, rules: Rules) -> Iterator[Doubt]:
    """Compare when the processes of a rank wrote, and the lines of one place."""
    for rank, steps in sorted(record.ranks.items()):
        for earlier, later in pairwise(steps.boots):
            if later.began_mono < earlier.ended_mono - OVERLAP_S:
                yield Doubt(kind=Kind.TWO_WRITERS, rank=rank)
    for rank, count in sorted(record.conflicts.items()):
        if count:
            yield Doubt(kind=Kind.TWO_WRITERS, rank=rank, found=count)


def _another_process(record: RunRecord, rules: Rules) -> Iterator[Doubt]:
    """Compare the run that each reporting process was started for with this one."""
    if not rules.run:
        return
    mine = f"run {rules.run}, attempt {rules.attempt}"
    for rank, steps in sorted(record.ranks.items()):
        for boot in steps.boots:
            if not boot.steps.rows:
                continue
            said = boot.said()
            if not said:
                yield Doubt(kind=Kind.OTHER_RUN, rank=rank, expected=mine, found="no run")
            for run, attempt in dict.fromkeys((line.run, line.attempt) for line in said):
                if run not in (None, rules.run) or attempt not in (None, rules.attempt):
                    its = f"run {run}, attempt {attempt}"
                    yield Doubt(kind=Kind.OTHER_RUN, rank=rank, expected=mine, found=its)


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
                    yield Doubt(
                        kind=Kind.IDENTITY_CHANGED,
                        rank=rank,
                        name=name,
                        expected=known[name],
                        found=value,
                    )
                    known[name] = value


def _steps(record: RunRecord, rules: Rules) -> Iterator[Doubt]:
    """Compare the steps and evaluations with the ordered ones."""
    if not rules.known:
        return
    for rank, steps in sorted(record.ranks.items()) if rules.steps is not None else ():
        owed, table = rules.owed_steps(), steps.steps
        beyond = [
            step for step in table.rows if step not in owed and table.said(Msg.STEP_END, step)
        ]
        if beyond:
            step = min(beyond)
            yield Doubt(kind=Kind.STEP_NOT_ORDERED, rank=rank, step=step, name="ended")
        evals = {step for boot in steps.boots for step in boot.evals if step > rules.last_step}
        if evals:
            step = min(evals)
            yield Doubt(kind=Kind.STEP_NOT_ORDERED, rank=rank, step=step, name="evaluated")
    said = record.order.train.get("steps") if record.order is not None else None
    if said is not None and said != rules.steps:
        expected = rules.steps
        yield Doubt(kind=Kind.ORDER_INCONSISTENT, name="steps", expected=expected, found=said)


def _numbers(record: RunRecord, rules: Rules) -> Iterator[Doubt]:
    """Compare numbers with the range that they can have."""
    for rank, steps in sorted(record.ranks.items()):
        counts = {
            name: sum(1 for value in steps.steps.numbers[NUMBERS.index(name)] if value < 0)
            for name in NEVER_NEGATIVE
        }
        for name in NEVER_ABOVE_ONE:
            counts[name] += sum(1 for value in steps.samples(name).values() if value > 1)
        least = (span[0] for boot in steps.boots for span in boot.eval_s_spans.values())
        counts["dt"] = sum(1 for seconds in least if seconds < 0)
        for name, count in counts.items():
            if count:
                yield Doubt(kind=Kind.IMPOSSIBLE_NUMBER, rank=rank, name=name, found=count)


def _learning(record: RunRecord, rules: Rules) -> Iterator[Doubt]:
    return find_nothing_learned(record.ranks, rules)


def _model(record: RunRecord, rules: Rules) -> Iterator[Doubt]:
    """Compare model.json with what the ranks report."""
    if record.model is None:
        return
    counted = record.model.model_dump(mode="json", exclude={"v"}, exclude_none=True)
    for rank, steps in sorted(record.ranks.items()):
        identity = steps.identity()
        said = {} if identity is None else identity.model_dump(mode="json", exclude_none=True)
        for name, value in counted.items():
            if name in said and said[name] != value:
                yield Doubt(
                    kind=Kind.MODEL_DIFFERS,
                    rank=rank,
                    name=name,
                    expected=value,
                    found=said[name],
                )


def _devices(record: RunRecord, rules: Rules) -> Iterator[Doubt]:
    """Compare devices.jsonl with the ticks' samples, and a first sample with the preflight.

    Later errors of a device are found by the detector `hardware`.
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


RULES: tuple[Callable[[RunRecord, Rules], Iterator[Doubt]], ...] = (
    _ranks,
    _one_process_twice,
    _two_writers,
    _another_process,
    _two_identities,
    find_end_differences,
    _steps,
    _numbers,
    _learning,
    find_clock_differences,
    _model,
    _devices,
)
"""Each compares two witnesses; a new one is one row."""
