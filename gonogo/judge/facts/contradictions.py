"""Which records of a run contradict each other? One sentence each; none of them is ever a GO.

Each rule compares two witnesses: exit records with what the watcher saw, processes with each
other, clocks with clocks, steps that count with what they say that they did. A contradiction does
not say which of them lies. Of the predecessor's lines only the reported speed has a second witness:
the distance between them.
"""

from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from typing import Any

from gonogo.contract.canonical import added
from gonogo.contract.facts import ProcessExit
from gonogo.contract.heartbeat import Msg
from gonogo.contract.order import Order, RunReason
from gonogo.contract.outcome import Detector, OutcomeCode
from gonogo.contract.records import RankExit
from gonogo.contract.rules import Rules
from gonogo.contract.tick import parse_rank
from gonogo.judge.facts.learning import find_nothing_learnt
from gonogo.judge.facts.record import RunRecord
from gonogo.judge.facts.steps import RankSteps
from gonogo.rundir import heartbeat_rank
from gonogo.timeline.columns import NEVER, NUMBERS

IMPLAUSIBLE_SPEED = Detector.IMPLAUSIBLE_SPEED
NEVER_NEGATIVE = (
    *("grad_norm", "dt_fetch_s", "toks_per_s", "gpu_mem_alloc", "gpu_mem_reserved"),
    *("host_rss_mb", "gate_entropy", "comm_mb", "flash_share"),
)
NEVER_ABOVE_ONE = ("flash_share",)
CLOCKS_DIFFER_RATIO = 0.2
CLOCKS_DIFFER_S = 5.0
"""Receipts lag by a tick or two: shorter differences say nothing."""
FOUND_FIRST_S = 60.0
"""But not by more: a watcher begins beside the ranks, and a slow disk holds it up for so long."""
TRAINED_AS = "trained as"
"""Stands behind the rank in what is said of one that was two things, which is in the weights."""
HALT = ".HALT"
"""It asks the ranks to leave; what `.kill` asks for leaves nobody time to come to an end."""
OVERLAP_S = 1.0
"""How long two processes of a rank may seem to run at once: a heartbeat thread's last breath."""
MOST = 20


def find_contradictions(record: RunRecord, rules: Rules) -> list[str]:
    """Return what contradicts what, one sentence each, at most `MOST`."""
    if record.predecessor:
        return [row.text for row in record.findings if row.detector == IMPLAUSIBLE_SPEED][:MOST]
    found: list[str] = []
    for rule in RULES:
        found.extend(rule(record, rules))
    return found[:MOST]


def _never_ordered(record: RunRecord, rules: Rules) -> Iterator[str]:
    if not rules.known:
        return
    exits = record.exit.ranks if record.exit is not None else {}
    written = {rank for rank, steps in record.ranks.items() if steps.count}
    named = {name: parse_rank(name) for name in exits}
    told = {rank for rank in named.values() if rank is not None} | record.probed.keys()
    told |= _counted(record)
    for rank in sorted((written | told | set(record.strays)) - set(rules.ranks())):
        yield f"rank {rank} was never ordered, and there is a record of it"
    for name, number in named.items():
        if number is None:
            yield f"exit.json: {name[:16]!r} is no rank"


def _counted(record: RunRecord) -> set[int]:
    """Return the ranks that wrote heartbeats, as far as exit.json has counted what stood there.

    A file that is still as it was sealed speaks for itself. Of another one, what
    stands there now says how many of the lines may have been none.
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


def _one_process_twice(record: RunRecord, rules: Rules) -> Iterator[str]:
    """Two hosts may give the same process id, and not the same boot with it."""
    owner: dict[tuple[int | str, int], int] = {}
    for rank, steps in sorted(record.ranks.items()):
        node = 0 if record.order is None else record.order.node_of(rank)
        for boot in steps.boots:
            if len(boot.pids) > 1:
                yield f"rank {rank}: one boot has the process ids {_listed(boot.pids)}"
            places = (node, boot.boot)
            for pid in boot.pids if rules.programs is None else ():  # one reader tells of all ranks
                others = {owner.setdefault((place, pid), rank) for place in places} - {rank}
                for other in sorted(others):
                    yield f"process {pid} wrote as rank {other} and as rank {rank}"


def _interleaved(record: RunRecord, rules: Rules) -> Iterator[str]:
    for rank, steps in sorted(record.ranks.items()):
        boots = steps.boots
        for earlier, later in pairwise(boots):
            if later.began_mono < earlier.ended_mono - OVERLAP_S:
                yield f"rank {rank}: two processes wrote at the same time"


def _another_process(record: RunRecord, rules: Rules) -> Iterator[str]:
    """Steps count whoever tells of them, so whoever does was started for this run."""
    if not rules.run:
        return
    for rank, steps in sorted(record.ranks.items()):
        for boot in steps.boots:
            if not boot.steps.rows:
                continue
            said = boot.said()
            if not said:
                yield f"rank {rank}: a process that never said boot tells of steps"
            for run, attempt in dict.fromkeys((line.run, line.attempt) for line in said):
                if run not in (None, rules.run) or attempt not in (None, rules.attempt):
                    whose = f"run {run}, attempt {attempt}"
                    yield f"rank {rank}: a process of {whose} tells of steps"


def _trained_as_two(record: RunRecord, rules: Rules) -> Iterator[str]:
    """What the order leaves open the first step settles; only what may drift may change."""
    for rank, steps in sorted(record.ranks.items()):
        known: dict[str, Any] = {}
        for identity in (said for boot in steps.boots for said in boot.trained_as()):
            told = identity.model_dump(exclude_none=True, exclude=set(rules.allow_drift))
            for name, value in told.items():
                if known.setdefault(name, value) != value:
                    yield f"rank {rank} {TRAINED_AS} {name} {known[name]!r}, then as {value!r}"
                    known[name] = value


def _two_writers(record: RunRecord, rules: Rules) -> Iterator[str]:
    for rank, count in sorted(record.conflicts.items()):
        if count:
            yield f"rank {rank}: {count} lines differ from another one of the same boot and seq"


def _error_before_done(record: RunRecord, rules: Rules) -> Iterator[str]:
    for rank, steps in sorted(record.ranks.items()):
        for boot in steps.boots:
            if boot.error_seq is not None and boot.error_seq < boot.done_seq:
                yield f"rank {rank} said error before it said done"


def _done_elsewhere(record: RunRecord, rules: Rules) -> Iterator[str]:
    """Compare at which step a rank's last process was done with the last one that it has ended.

    The steps behind that are an earlier process's, and what this one goes on from holds none of
    them. One that found all its work done has ended none.
    """
    if rules.steps is None:
        return
    for rank, steps in sorted(record.ranks.items()):
        last = steps.boots[-1] if steps.boots else None
        if last is None or last.done_step is None:
            continue
        ended = max((step for step, _ in last.steps.steps_of(Msg.STEP_END)), default=None)
        if ended is not None and ended < min(last.done_step, rules.steps):
            done = f"rank {rank} said that it was done at step {last.done_step}"
            yield f"{done}, and the last step that its process ended is {ended}"


def _asked_to_end(record: RunRecord, rules: Rules) -> Iterator[str]:
    """Who is asked to leave and comes to the last step first, as each rank says, has completed."""
    if record.exit is None or record.exit.reason is not OutcomeCode.COMPLETED:
        return
    done = [record.ranks[rank].done_step for rank in rules.ranks() if rank in record.ranks]
    whole = len(done) == rules.world_size and all(step == rules.steps for step in done)
    names = {*record.marks, *record.exit.requests}
    stands = HALT in record.marks and HALT in record.exit.requests
    if whole and stands:
        names.discard(HALT)  # it was there before the end, and still is
    for name in sorted(names):
        yield f"{name} asks the run to end, and exit.json says that it completed"


def _exits(record: RunRecord, rules: Rules) -> Iterator[str]:
    """Compare exit.json with each rank's own record and with what ticks saw."""
    if record.exit is None:
        return
    agent = record.watch.agent if record.watch is not None else None
    if agent is not None and record.exit.reason is OutcomeCode.COMPLETED and not agent.clean:
        seen = _told(agent.code, agent.signal)
        yield f"torchrun ended with {seen} by the watcher, and exit.json says that it completed"
    said = record.exit.agent
    if agent is not None and said is not None and _end_of(agent) != _end_of(said):
        how, seen = _told(said.code, said.signal), _told(agent.code, agent.signal)
        yield f"torchrun ended with {how} by exit.json, with {seen} by the watcher"
    for name, row in sorted(record.exit.ranks.items()):
        rank = parse_rank(name)
        if rank is not None:
            yield from _compare_exits(rank, row, record.rank_exits, "its own record")
            yield from _compare_exits(rank, row, record.probed, "the watcher")


def _compare_exits(
    rank: int, row: RankExit, others: Mapping[int, RankExit | ProcessExit], who: str
) -> Iterator[str]:
    other = others.get(rank)
    if other is not None and _end_of(other) != _end_of(row):
        yield (
            f"rank {rank} ended with {_told(row.code, row.signal)} by exit.json,"
            f" with {_told(other.code, other.signal)} by {who}"
        )


def _end_of(row: RankExit | ProcessExit) -> tuple[int | None, int | None]:
    return row.code, row.signal


def _told(code: int | None, signal: int | None) -> str:
    return f"signal {signal}" if signal else f"code {code}"


def _unheard(record: RunRecord, rules: Rules) -> Iterator[str]:
    """Compare how a run of several nodes ended with what its nodes said of their own ends."""
    if record.exit is not None and record.exit.reason is OutcomeCode.COMPLETED:
        for node in record.exit.unheard:
            yield f"node {node} never said how it ended, and exit.json says that the run completed"


def _parts(record: RunRecord, rules: Rules) -> Iterator[str]:
    """Compare exit.json with how each node said that its part ended."""
    told = record.exit.nodes if record.exit is not None else None
    if record.exit is None or told is None or record.order is None:
        return
    for node in range(record.order.nodes):
        if str(node) not in told and node not in record.exit.unheard:
            yield f"exit.json says nothing of how node {node} ended"
    for node, part in sorted(record.parts.items()):
        who = f"exit_node{node}.json"
        if (part.node, part.run) != (node, record.exit.run):
            yield f"{who} is of node {part.node} of run {part.run}"
        failed = part.agent is not None and _end_of(part.agent) != (0, None)
        if record.exit.reason is OutcomeCode.COMPLETED and (failed or part.refused is not None):
            yield f"node {node} ended badly by {who}, and exit.json says that the run completed"
        named = {parse_rank(name): row for name, row in part.ranks.items()}
        others = {rank: row for rank, row in named.items() if rank is not None}
        for name, row in sorted(record.exit.ranks.items()):
            rank = parse_rank(name)
            if rank is not None:
                yield from _compare_exits(rank, row, others, who)


def _steps_not_owed(record: RunRecord, rules: Rules) -> Iterator[str]:
    if not rules.known:
        return
    for rank, steps in sorted(record.ranks.items()) if rules.steps is not None else ():
        table = steps.steps
        beyond = [
            step
            for step in table.rows
            if step not in rules.owed_steps() and table.said(Msg.STEP_END, step)
        ]
        if beyond:
            yield f"rank {rank} ended step {min(beyond)}, which was not ordered"
        told = {step for boot in steps.boots for step in boot.evals if step > rules.last_step}
        if told:  # no window of a criterion reaches it
            yield f"rank {rank} tells an evaluation of step {min(told)}, which was not ordered"
    said = record.order.train.get("steps") if record.order is not None else None
    if said is not None and said != rules.steps and not _only_answers(record.order, rules):
        yield f"the order asks for {rules.steps} steps, its training configuration for {said}"


def _only_answers(order: Order | None, rules: Rules) -> bool:
    """Say whether a run ends early by its order: a rerun that has no gate of its phase to pass."""
    if order is None or order.reason not in (RunReason.CONFIRM, RunReason.REMEDY) or rules.gate:
        return False
    said = order.train.get("steps")
    return type(said) is int and rules.steps is not None and rules.steps < said


def _negative(record: RunRecord, rules: Rules) -> Iterator[str]:
    for rank, steps in sorted(record.ranks.items()):
        table = steps.steps
        for name in NEVER_NEGATIVE:
            column = table.numbers[NUMBERS.index(name)]
            count = sum(1 for value in column if value < 0)
            if count:
                yield f"rank {rank}: {name} is negative at {count} steps"


def _no_share(record: RunRecord, rules: Rules) -> Iterator[str]:
    """A share above 1 is one of another unit, say percent, and reaches whatever a gate asks."""
    for rank, steps in sorted(record.ranks.items()):
        for name in NEVER_ABOVE_ONE:
            count = sum(1 for value in steps.samples(name).values() if value > 1)
            if count:
                yield f"rank {rank}: {name} is above 1 at {count} steps"


def _negative_evaluations(record: RunRecord, rules: Rules) -> Iterator[str]:
    for rank, steps in sorted(record.ranks.items()):
        least = (span[0] for boot in steps.boots for span in boot.eval_s_spans.values())
        count = sum(1 for seconds in least if seconds < 0)
        if count:
            yield f"rank {rank}: the seconds (dt) of {count} evaluations are negative"


def _nothing_learnt(record: RunRecord, rules: Rules) -> Iterator[str]:
    return find_nothing_learnt(record.ranks, rules)


def _clocks(record: RunRecord, rules: Rules) -> Iterator[str]:
    """Compare how long a rank's own clock says that it ran with how long it was heard.

    A rank that was not heard while it started, since its watcher began later, is no contradiction,
    nor are first or last lines that a late watcher found there. What lies between two processes of
    a rank is nobody's.
    """
    watch = record.watch
    for rank, steps in sorted(record.ranks.items()):
        if watch is None or rank not in watch.heard:
            continue
        own_s = _own_seconds(steps)
        heard_s = watch.heard[rank][1] - watch.heard[rank][0]
        late_s = watch.heard_late_s.get(rank, 0.0)
        if len(steps.boots) > 1 and own_s < heard_s:
            heard_s, late_s = max(own_s, watch.heard_alone_s.get(rank, own_s)), 0.0
        least_s = heard_s - late_s
        found_mono = watch.found_mono.get(rank, 0.0)
        more_s, less_s = least_s - own_s, own_s - _unheard_seconds(steps, found_mono) - heard_s
        if _differs(more_s, own_s, least_s) or _differs(less_s, own_s, heard_s):
            own = f"rank {rank} ran for {own_s:.0f} s by its own clock"
            yield f"{own}, and was heard for {heard_s:.0f} s"


def _differs(apart_s: float, own_s: float, heard_s: float) -> bool:
    return apart_s > max(CLOCKS_DIFFER_S, CLOCKS_DIFFER_RATIO * max(own_s, heard_s))


def _unheard_seconds(steps: RankSteps, found_mono: float) -> float:
    """Return how long the rank's first process may have run before anybody heard it.

    Until its first step, as far as it had one. One that is only read waits for no watcher: beyond
    that, up to what the first tick found. It never says that a step ends, and is no GO by itself.

    Args:
        steps: of the rank.
        found_mono: its own clock on the last line that lay there then; 0 for none.
    """
    first = next(iter(steps.boots), None)
    if first is None:
        return 0.0
    stepped = first.stepped_mono <= first.ended_mono
    start_s = first.stepped_mono - first.began_mono if stepped else 0.0
    if any(seq != NEVER for seq in steps.steps.end_seq):
        return start_s
    found_s = min(found_mono, first.ended_mono) - first.began_mono
    return max(start_s, min(found_s, FOUND_FIRST_S))


def _own_seconds(steps: RankSteps) -> float:
    return added(boot.ended_mono - boot.began_mono for boot in steps.boots)


def _model(record: RunRecord, rules: Rules) -> Iterator[str]:
    """Compare model.json with what the ranks say that they are."""
    if record.model is None:
        return
    counted = {
        name: getattr(record.model, name) for name in type(record.model).model_fields if name != "v"
    }
    for rank, steps in sorted(record.ranks.items()):
        said = steps.identity()
        for name, value in counted.items():
            other = getattr(said, name, None)
            if None not in (value, other) and value != other:
                yield f"{name} is {value!r} by model.json, {other!r} by rank {rank}"


def _devices(record: RunRecord, rules: Rules) -> Iterator[str]:
    """Compare devices.jsonl with the samples that the ticks carry."""
    if record.devices_gone:
        yield f"devices.jsonl lacks {record.devices_gone} samples as the ticks carry them"


def _device_errors(record: RunRecord, rules: Rules) -> Iterator[str]:
    """Compare what a device counts when it is first heard with its preflight, which lets none pass.

    From there on D24 halts on any more: what came before, or while no sampler lived, it cannot see.
    """
    if record.watch is None or record.order is None:
        return
    for (rank, uuid), errors in sorted(record.watch.device_errors.items()):
        node = record.order.node_of(rank)
        made = record.preflights.get(node) if node else record.preflight
        checked = made is not None and "devices" in {row.id for row in made.checks} - made.failed()
        if errors and checked:
            told = f"{errors} uncorrectable memory errors"
            yield f"device {uuid} of rank {rank} begins with {told}, and its preflight told of none"


def _listed(numbers: list[int]) -> str:
    return ", ".join(map(str, numbers))


RULES: tuple[Callable[[RunRecord, Rules], Iterator[str]], ...] = (
    _never_ordered,
    _one_process_twice,
    _interleaved,
    _another_process,
    _trained_as_two,
    _two_writers,
    _error_before_done,
    _done_elsewhere,
    _asked_to_end,
    _exits,
    _unheard,
    _parts,
    _steps_not_owed,
    _negative,
    _no_share,
    _negative_evaluations,
    _nothing_learnt,
    _clocks,
    _model,
    _devices,
    _device_errors,
)
"""Each compares two witnesses; a new one is one row."""
