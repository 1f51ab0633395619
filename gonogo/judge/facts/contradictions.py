"""Records of a run that contradict each other, or steps that changed nothing: never a GO.

Each rule compares two witnesses: processes with each other, lines with the order and the ticks,
device samples with ticks, records of how the run ended with each other. A contradiction does not
say which witness is wrong.
The rules of learning look at the whole training. What stops in the middle of a run is the watch's
part (`frozen`, `non_finite`).
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from statistics import fmean, variance
from typing import Any

from gonogo.contract.canonical import added, rounded
from gonogo.contract.facts import ProcessExit
from gonogo.contract.finding import Doubt, DoubtKind
from gonogo.contract.heartbeat import Identity, Msg
from gonogo.contract.order import Rules
from gonogo.contract.outcome import OutcomeCode
from gonogo.contract.records import ExitRecord, RankExit, parse_rank
from gonogo.judge.facts.record import RunRecord
from gonogo.rundir import heartbeat_rank
from gonogo.timeline.columns import UNTOLD
from gonogo.timeline.rank_steps import RankSteps

UNFALLEN_STEPS = 200
"""With fewer steps, the loss of a model that learns may not have fallen by more than its noise."""
UNFALLEN_SHARE = 5
NOISE_X = 2.0
"""Standard errors by which a loss must have fallen."""
SCALING_STEPS = 8
"""A loss scale begins at 2^16 and halves, so the first updates may be skipped."""
ALIKE_STEPS = 20
"""No model has the bit-equal loss at so many steps."""
ALIKE_EVALUATIONS = 4
"""So many evaluations, `ALIKE_STEPS` apart, are bit-equal only if no weight moved."""
APART_RATIO = 1e-3
"""Averaged gradients differ less between ranks, in whatever order each rank adds them up."""
DDP, FSDP = "DDP", "FSDP"
"""Backends whose ranks take the same step; under FSDP a rank may report its shard's norm."""
DECIMALS, HALF_BITS = 6, 11
"""Numbers are often printed with six decimals. A half-precision number has 11 significant bits."""

Training = Mapping[int, RankSteps]


def find_nothing_learned(ranks: Training, rules: Rules) -> Iterator[Doubt]:
    """Yield why the steps of a training changed nothing."""
    yield from _nothing_updated(ranks, rules)
    yield from _same_loss(ranks, rules)
    yield from _apart(ranks, rules)


def find_unclear_learning(ranks: Training) -> Iterator[Doubt]:
    """Yield that no rank's loss fell. The loss of an agent, or of adversaries, need not fall."""
    longest = max((row.samples("loss") for row in ranks.values()), key=len, default={})
    losses = [loss for _, loss in sorted(longest.items()) if math.isfinite(loss)]
    if len(losses) < UNFALLEN_STEPS:
        return
    part = len(losses) // UNFALLEN_SHARE
    scale = max(map(abs, losses)) or 1.0  # the squares of a diverged loss overflow
    first, last = ([loss / scale for loss in row] for row in (losses[:part], losses[-part:]))
    before, after = fmean(first), fmean(last)
    noise = math.sqrt((variance(first, before) + variance(last, after)) / part)
    if after >= before - NOISE_X * noise:
        yield Doubt(
            kind=DoubtKind.LEARNING_UNCLEAR,
            name="loss",
            expected=rounded(before * scale),
            found=rounded(after * scale),
        )


def _nothing_updated(ranks: Training, rules: Rules) -> Iterator[Doubt]:
    """Yield what shows that most steps updated nothing; one rank excuses all ranks."""
    scaled = SCALING_STEPS * (rules.identity.dtype in (None, "fp16"))
    rows = [row for row in ranks.values() if row.identity() not in (None, Identity())]
    rates, norms = (
        [
            (len(told), sum(not 0.0 < value < math.inf for value in told))
            for told in (row.samples(name).values() for row in rows)
        ]
        for name in ("lr", "grad_norm")
    )
    for name, counts, least, found in (
        ("the update", list(map(_updates, ranks.values())), scaled + 1, "skipped"),
        ("the learning rate", rates, ALIKE_STEPS, 0.0),
        ("the gradient norm", norms, ALIKE_STEPS, 0.0),
    ):
        told = [(steps, idle) for steps, idle in counts if steps]
        enough = max((steps for steps, _ in told), default=0) >= least
        if enough and all(_is_most(idle, steps) for steps, idle in told):
            yield _nothing(name, min(idle for _, idle in told), found)


def _updates(steps: RankSteps) -> tuple[int, int]:
    """Return how many steps were reported, and how many skipped their update or lost their loss."""
    told = {step for step, _ in steps.steps.steps_of(Msg.PROGRESS)}
    lost = {step for step, loss in steps.samples("loss").items() if not math.isfinite(loss)}
    return len(told), len(told & (steps.steps.skipped() | lost))


def _is_most(count: int, steps: int) -> bool:
    """Say whether so many of a training's steps speak for it: all of a few, most of many."""
    return count == steps or (steps >= ALIKE_STEPS and 2 * count > steps)


def _same_loss(ranks: Training, rules: Rules) -> Iterator[Doubt]:
    """Yield that the loss, or the validation loss, of every rank is bit-equal."""
    norms = {norm for row in ranks.values() for norm in row.samples("grad_norm").values()}
    losses = [row.samples("loss") for row in ranks.values()] if len(norms) <= 1 else []
    said = rules.watch.get("frozen.loss_steps")
    alike = max(ALIKE_STEPS, said.value if said and isinstance(said.value, int) else 0)
    for name, rows, fewest, span in (
        ("the loss", losses, alike, 0),
        ("the validation loss", [row.evals for row in ranks.values()], ALIKE_EVALUATIONS, alike),
    ):
        told = [row for row in rows if row]
        if not told or min(map(len, told)) < fewest or max(map(_span, told)) < span:
            continue
        values = [value for row in told for value in row.values()]
        empty = span and rules.identity.vocab and not any(values)  # the mean over an empty set
        if empty or _is_one(values):
            yield _nothing(name, min(map(len, told)), values[0])


def _span(row: Mapping[int, float]) -> int:
    return max(row) - min(row)


def _is_one(values: Sequence[float]) -> bool:
    """Say whether numbers are one, which is neither rounded nor of half precision, nor zero."""
    one = values[0]
    if not math.isfinite(one) or any(value != one for value in values):
        return False
    unrounded = round(one, DECIMALS) != one and float(f"{one:.{DECIMALS - 1}e}") != one
    return unrounded and not math.ldexp(math.frexp(one)[0], HALF_BITS).is_integer()


def _nothing(name: str, steps: int, found: str | float) -> Doubt:
    return Doubt(kind=DoubtKind.NOTHING_LEARNED, name=name, expected=steps, found=found)


def _apart(ranks: Training, rules: Rules) -> Iterator[Doubt]:
    """Yield the ranks that share no gradient, or report another norm of averaged gradients."""
    kind, alone = DoubtKind.RANKS_APART, len(rules.ranks()) < 2
    for rank, row in sorted(ranks.items()) if not alone else ():
        sent = row.samples("comm_mb").values() if row.backend in (DDP, FSDP) else ()
        if sent and not any(sent):
            yield Doubt(kind=kind, rank=rank, name="comm_mb", expected=rank, found=len(sent))
    told = {rank: row for rank, row in sorted(ranks.items()) if row.backend == DDP}
    first, *others = told or [0]
    for rank in others:
        one, other = (told[row].samples("grad_norm") for row in (first, rank))
        pairs = [(one[step], other[step]) for step in one.keys() & other.keys()]
        known = [(a, b) for a, b in pairs if math.isfinite(a) and math.isfinite(b)]
        count = sum(abs(a - b) > APART_RATIO * max(abs(a), abs(b)) for a, b in known)
        if len(known) >= ALIKE_STEPS and _is_most(count, len(known)):
            yield Doubt(kind=kind, rank=rank, name="grad_norm", expected=first, found=count)
            return


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

    A slow clock makes the rank look fast. Its start, until the first step, may be unobserved.
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
