"""Compare the records of how a run ended: lines, exit.json, each rank's record, nodes, ticks."""

from collections.abc import Iterator, Mapping

from gonogo.contract.doubt import Doubt, DoubtKind
from gonogo.contract.facts import ProcessExit
from gonogo.contract.outcome import OutcomeCode
from gonogo.contract.records import ExitRecord, RankExit
from gonogo.contract.rules import Rules
from gonogo.contract.tick import parse_rank
from gonogo.judge.facts.record import RunRecord

HALT = ".HALT"
"""It asks the ranks to leave, and gives them time for their last step; `.kill` gives none."""


def find_end_differences(record: RunRecord, rules: Rules) -> Iterator[Doubt]:
    """Yield the records of the run's end that contradict each other."""
    yield from _done(record, rules)
    ended = record.exit
    if ended is None:
        return
    if ended.reason is OutcomeCode.COMPLETED:
        yield from _not_completed(record, ended, rules)
    agent = record.watch.agent if record.watch is not None else None
    if agent is not None and ended.agent is not None:
        yield from _compare("torchrun, by the watcher", agent, ended.agent)
    ranks = _by_rank(ended.ranks)
    for rank, row in ranks.items():
        yield from _compare("its own record", record.rank_exits.get(rank), row, rank)
        yield from _compare("the watcher", record.probed.get(rank), row, rank)
    if ended.nodes is not None and record.order is not None:
        yield from _nodes(record, ended, ranks, record.order.nodes)


def _done(record: RunRecord, rules: Rules) -> Iterator[Doubt]:
    """Compare `done` with the last step that the last process ended, and with its errors."""
    for rank, steps in sorted(record.ranks.items()):
        for boot in steps.boots:
            done = boot.done
            if done is None:
                continue
            if boot.error_seq is not None and boot.error_seq < done.seq:
                yield _differs("done", "an error", done.step, rank)
            ends = rules.steps is not None and boot is steps.last_boot and boot.ended_steps
            if ends and boot.last_step < min(done.step, rules.steps or 0):
                yield _differs("done", f"step {boot.last_step}", f"step {done.step}", rank)


def _not_completed(record: RunRecord, ended: ExitRecord, rules: Rules) -> Iterator[Doubt]:
    """Yield what says that a run did not complete although exit.json says so.

    A run that was asked to leave and made its last step first has completed.
    """
    names = {*record.marks, *ended.requests}
    done = [record.ranks[rank].done_step for rank in rules.ranks() if rank in record.ranks]
    whole = len(done) == rules.world_size and all(step == rules.steps for step in done)
    if whole and HALT in record.marks and HALT in ended.requests:
        names.discard(HALT)
    for name in sorted(names):
        yield _differs(name, "a request to end", "completed")
    agent = record.watch.agent if record.watch is not None else None
    if agent is not None and not agent.clean:
        yield _differs("torchrun, by the watcher", _told(agent), "completed")
    for node in ended.unheard:
        yield _differs(f"node {node}", "no record", "completed")
    for node, part in sorted(record.parts.items()):
        failed = part.agent is not None and _end_of(part.agent) != (0, None)
        if failed or part.refused is not None:
            yield _differs(f"node {node}", "a failure", "completed")


def _nodes(
    record: RunRecord, ended: ExitRecord, ranks: Mapping[int, RankExit], nodes: int
) -> Iterator[Doubt]:
    """Compare exit.json with what each node recorded of its part."""
    for node in range(nodes):
        if str(node) not in (ended.nodes or {}) and node not in ended.unheard:
            yield _differs(f"node {node}", "no record", "a run of more nodes")
    for node, part in sorted(record.parts.items()):
        who = f"exit_node{node}.json"
        if (part.node, part.run) != (node, ended.run):
            yield _differs(who, f"node {part.node} of run {part.run}", f"run {ended.run}")
        others = _by_rank(part.ranks)
        for rank, row in ranks.items():
            yield from _compare(who, others.get(rank), row, rank)


def _by_rank(rows: Mapping[str, RankExit]) -> dict[int, RankExit]:
    named = {parse_rank(name): row for name, row in sorted(rows.items())}
    return {rank: row for rank, row in named.items() if rank is not None}


def _compare(
    who: str,
    other: RankExit | ProcessExit | None,
    row: RankExit | ProcessExit,
    rank: int | None = None,
) -> Iterator[Doubt]:
    if other is not None and _end_of(other) != _end_of(row):
        yield _differs(who, _told(other), _told(row), rank)


def _differs(who: str, found: str, expected: str | int, rank: int | None = None) -> Doubt:
    kind = DoubtKind.EXIT_DIFFERS
    return Doubt(kind=kind, rank=rank, name=who, expected=expected, found=found)


def _end_of(row: RankExit | ProcessExit) -> tuple[int | None, int | None]:
    return row.code, row.signal


def _told(row: RankExit | ProcessExit) -> str:
    return f"signal {row.signal}" if row.signal else f"code {row.code}"
