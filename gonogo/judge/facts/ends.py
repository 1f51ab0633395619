"""Do the records of how a run ended agree? Lines, exit.json, each rank's record, nodes, ticks."""

from collections.abc import Iterator, Mapping

from gonogo.contract.doubt import Doubt, DoubtKind
from gonogo.contract.facts import ProcessExit
from gonogo.contract.heartbeat import Msg
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
    if record.exit is None:
        return
    if record.exit.reason is OutcomeCode.COMPLETED:
        yield from _not_completed(record, record.exit, rules)
    yield from _agents(record, record.exit)
    for rank, row in _by_rank(record.exit.ranks).items():
        yield from _compare(rank, row, record.rank_exits, "its own record")
        yield from _compare(rank, row, record.probed, "the watcher")
    yield from _nodes(record, record.exit)


def _done(record: RunRecord, rules: Rules) -> Iterator[Doubt]:
    """Compare `done` with the last step that the rank's last process ended, and with `error`.

    Steps after that one are an earlier process's, which the last one does not hold.
    """
    for rank, steps in sorted(record.ranks.items()):
        for boot in steps.boots:
            if boot.error_seq is not None and boot.error_seq < boot.done_seq:
                yield Doubt(
                    kind=DoubtKind.DONE_UNPROVEN,
                    rank=rank,
                    expected=boot.done_step,
                    found="an error",
                )
        last = steps.boots[-1] if steps.boots else None
        if rules.steps is None or last is None or last.done_step is None:
            continue
        ended = max((step for step, _ in last.steps.steps_of(Msg.STEP_END)), default=None)
        if ended is not None and ended < min(last.done_step, rules.steps):
            yield Doubt(
                kind=DoubtKind.DONE_UNPROVEN, rank=rank, expected=last.done_step, found=ended
            )


def _not_completed(record: RunRecord, ended: ExitRecord, rules: Rules) -> Iterator[Doubt]:
    """Yield what says that a run did not complete of which exit.json says so.

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


def _agents(record: RunRecord, ended: ExitRecord) -> Iterator[Doubt]:
    agent = record.watch.agent if record.watch is not None else None
    said = ended.agent
    if agent is not None and said is not None and _end_of(agent) != _end_of(said):
        yield _differs("torchrun, by the watcher", _told(agent), _told(said))


def _nodes(record: RunRecord, ended: ExitRecord) -> Iterator[Doubt]:
    """Compare exit.json with what each node recorded of its part."""
    if ended.nodes is None or record.order is None:
        return
    for node in range(record.order.nodes):
        if str(node) not in ended.nodes and node not in ended.unheard:
            yield _differs(f"node {node}", "no record", "a run of more nodes")
    for node, part in sorted(record.parts.items()):
        who = f"exit_node{node}.json"
        if (part.node, part.run) != (node, ended.run):
            yield _differs(who, f"node {part.node} of run {part.run}", f"run {ended.run}")
        others = _by_rank(part.ranks)
        for rank, row in _by_rank(ended.ranks).items():
            yield from _compare(rank, row, others, who)


def _by_rank(rows: Mapping[str, RankExit]) -> dict[int, RankExit]:
    named = {parse_rank(name): row for name, row in sorted(rows.items())}
    return {rank: row for rank, row in named.items() if rank is not None}


def _compare(
    rank: int, row: RankExit, others: Mapping[int, RankExit | ProcessExit], who: str
) -> Iterator[Doubt]:
    other = others.get(rank)
    if other is not None and _end_of(other) != _end_of(row):
        yield _differs(who, _told(other), _told(row), rank)


def _differs(who: str, found: str, expected: str, rank: int | None = None) -> Doubt:
    return Doubt(kind=DoubtKind.EXIT_DIFFERS, rank=rank, name=who, expected=expected, found=found)


def _end_of(row: RankExit | ProcessExit) -> tuple[int | None, int | None]:
    return row.code, row.signal


def _told(row: RankExit | ProcessExit) -> str:
    return f"signal {row.signal}" if row.signal else f"code {row.code}"
