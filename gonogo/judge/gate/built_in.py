"""The built-in criteria: did the run complete, was all of it seen, and did nothing halt it?

They come before the criteria of the plan in every gate, and are required. Each criterion is a list
of checks, and the worst of them is its outcome. Missing evidence never passes: a check names what
is missing. A waiver excuses what a program did not report (`UNREPORTED`). It excuses neither a
failure nor a contradiction. The criterion `identity` is in its own module.
"""

from collections.abc import Callable, Iterator
from enum import Enum
from typing import Any

from gonogo.contract.decision import CriterionOutcome
from gonogo.contract.doubt import Effect
from gonogo.contract.facts import Facts, Missing
from gonogo.contract.finding import Severity
from gonogo.contract.outcome import OutcomeCode
from gonogo.contract.records import CheckOutcome
from gonogo.contract.rules import Rules
from gonogo.judge.words import sentence


class Word(Enum):
    """What a check says, the worst first."""

    FAIL = CriterionOutcome.FAIL
    INCONCLUSIVE = "the records contradict each other, or are not enough"
    UNREPORTED = "a program may be unable to report it; all that a waiver excuses"
    PASS = CriterionOutcome.PASS

    @property
    def outcome(self) -> CriterionOutcome:
        """Outcome of the criterion whose worst word it is."""
        found = self.value
        return found if isinstance(found, CriterionOutcome) else CriterionOutcome.INCONCLUSIVE


Said = tuple[Word, Any, str]
"""Word, what was observed, and one sentence."""
Check = Callable[[Facts, Rules], Iterator[Said]]

PASS, FAIL, INCONCLUSIVE, UNREPORTED = Word.PASS, Word.FAIL, Word.INCONCLUSIVE, Word.UNREPORTED

UNKNOWN_ORDER = "no order is recorded"
ORDER = "order.json"


def completed(facts: Facts, rules: Rules) -> Iterator[Said]:
    """Exit 0 of the run, torchrun and every rank; each `done`, at the last ordered step."""
    outcome, ended = facts.outcome, facts.exit
    known = ended is not None or rules.known
    if known and outcome is not None and outcome.code is not OutcomeCode.COMPLETED:
        yield FAIL, outcome.code.value, f"ended as {outcome.code}, by {outcome.actor}"
    if ended is not None and not ended.clean:
        yield FAIL, {"code": ended.code, "signal": ended.signal}, "the exit code is not 0"
    agent = ended.agent if ended is not None else None
    if agent is not None and not agent.clean:
        text = "torchrun itself did not exit with 0"
        yield FAIL, {"code": agent.code, "signal": agent.signal}, text
    if not rules.known:
        yield INCONCLUSIVE, None, UNKNOWN_ORDER
        return
    if rules.steps is None:
        yield INCONCLUSIVE, None, "the order names no number of steps"
    else:
        yield ranks_completed(facts, rules, rules.steps)
    if ended is not None:
        yield from _exit_belongs(facts, rules)
        yield from _rank_exits(facts, rules)


def ranks_completed(facts: Facts, rules: Rules, steps: int) -> Said:
    """Return whether every rank reported its end, at the last ordered step."""
    rows = [(rank, facts.ranks.get(str(rank))) for rank in rules.ranks()]
    for rank, row in rows:
        if row is not None and row.done_step is not None and row.done_step < steps:
            return FAIL, row.done_step, f"rank {rank} ended at step {row.done_step}"
    for rank, row in rows:
        if row is None:
            return INCONCLUSIVE, None, f"rank {rank} wrote no line"
        if row.done_step is None:
            text = f"rank {rank} did not report its end; its last step is {row.last_step}"
            return INCONCLUSIVE, None, text
        if row.last_step < steps and steps >= rules.first_step:
            return INCONCLUSIVE, row.last_step, f"rank {rank}: step {steps} is missing"
    if facts.exit is None:
        return INCONCLUSIVE, steps, "every rank reported its end, but no exit is recorded"
    return PASS, steps, f"all {len(rows)} ranks reached step {steps} and exited 0"


def _exit_belongs(facts: Facts, rules: Rules) -> Iterator[Said]:
    """Check that exit.json is of this run, this attempt and this order."""
    ended, order = facts.exit, facts.files.get(ORDER)
    assert ended is not None  # the caller asked
    if (ended.run, ended.attempt) != (rules.run, rules.attempt):
        whose = f"run {ended.run}, attempt {ended.attempt}" if ended.run else "no run"
        yield INCONCLUSIVE, ended.run, f"exit.json names {whose}, not this one"
    if order is None or ended.order_sha256 != order.sha256:
        yield INCONCLUSIVE, ended.order_sha256, "exit.json was not written under this order.json"


def _rank_exits(facts: Facts, rules: Rules) -> Iterator[Said]:
    """Check that each rank has an exit record with code 0, and that exit.json agrees.

    The ranks that a command starts need no record, but an existing one counts.
    """
    said = facts.exit.ranks if facts.exit is not None else {}
    required = [str(rank) for rank in rules.exits()]
    others = (facts.rank_exits.keys() | said.keys()) - set(required)
    required += sorted(others & set(map(str, rules.ranks())))
    for rank in required:
        for row, where in (
            (facts.rank_exits.get(rank), "its record"),
            (said.get(rank), "exit.json"),
        ):
            if row is None:
                yield INCONCLUSIVE, None, f"rank {rank}: its exit is not in {where}"
            elif not row.known:
                yield INCONCLUSIVE, None, f"the end of rank {rank} was not observed ({where})"
            elif not row.clean:
                seen = {"code": row.code, "signal": row.signal}
                yield FAIL, seen, f"rank {rank} did not exit with 0 ({where})"


def coverage(facts: Facts, rules: Rules) -> Iterator[Said]:
    """Every line of every rank and step is there, once, and no record contradicts another."""
    if not rules.known:
        yield INCONCLUSIVE, None, UNKNOWN_ORDER
        return
    if facts.source == "predecessor":
        yield from _doubtful(facts, Effect.COVERAGE)
        yield INCONCLUSIVE, None, "the lines have no seq, so a lost one leaves no trace"
        return
    if rules.steps is None:
        yield UNREPORTED, None, "the order names no number of steps"
    elif not rules.owed_steps():
        yield INCONCLUSIVE, None, "no step was required, so none was seen"
    for rank in rules.ranks():
        yield from _rank_coverage(facts, rank)
    yield from _doubtful(facts, Effect.COVERAGE)
    yield PASS, None, "every line of every rank and step is there"


def _doubtful(facts: Facts, effect: Effect) -> Iterator[Said]:
    """Every doubt of this effect: the records do not prove what they say."""
    doubts = facts.doubts_of(effect)
    for doubt in doubts:
        yield INCONCLUSIVE, len(doubts), sentence(doubt)


def _rank_coverage(facts: Facts, rank: int) -> Iterator[Said]:
    row = facts.ranks.get(str(rank))
    if row is None or row.count == 0:
        yield INCONCLUSIVE, None, f"rank {rank} wrote no line"
        return
    if row.gaps:
        yield INCONCLUSIVE, row.gaps, f"rank {rank}: {row.gaps} lines are missing"
    yield from _absent(row.missing, rank, UNREPORTED)
    yield from _absent(row.without_loss, rank, INCONCLUSIVE if row.with_loss else UNREPORTED)


def _absent(missing: Missing | None, rank: int, word: Word) -> Iterator[Said]:
    if missing is None:
        yield INCONCLUSIVE, None, f"rank {rank}: its lines were not counted"
    elif missing.count:
        named = ", ".join(missing.first)
        yield word, missing.count, f"rank {rank} did not report {named}"


def preflight(facts: Facts, rules: Rules) -> Iterator[Said]:
    """Every check that the order names was made on every node before the launch, and passed."""
    found = facts.preflight
    if found is None:
        yield UNREPORTED, None, "no preflight is recorded"
        return
    if not rules.preflight:
        yield UNREPORTED, None, "the order does not say which checks are required"
    nodes = {} if 0 in found.unchecked else {"": (found.passed, found.outcomes)}
    nodes |= {f"node {name}: ": (row.passed, row.outcomes) for name, row in found.nodes.items()}
    for where, (passed, outcomes) in nodes.items():
        failed = [name for name, row in outcomes.items() if row is CheckOutcome.FAIL]
        if failed or not passed:
            yield FAIL, failed, f"{where}failed: {', '.join(failed) or 'not said which'}"
        absent = [name for name in rules.preflight if name not in outcomes]
        if absent:
            yield UNREPORTED, absent, f"{where}never checked: {', '.join(absent)}"
    for node in found.unchecked:
        yield UNREPORTED, node, f"node {node}: no preflight is recorded"
    yield PASS, None, f"{found.checks} checks passed"


def no_halt_finding(facts: Facts, rules: Rules) -> Iterator[Said]:
    """No detector says halt, and somebody watched to the end, as measured."""
    halted = halts(facts)
    if halted is not None:
        yield halted
    yield from _watched(facts)
    yield PASS, 0, f"no halt among {len(facts.findings)} findings"


def halts(facts: Facts) -> Said | None:
    """Return what the halt findings say, or None without one."""
    rows = [row for row in facts.findings if row.severity is Severity.HALT]
    if not rows:
        return None
    first = rows[0]
    where = "" if first.rank is None else f" on rank {first.rank}"
    section = "" if first.section is None else f" in {first.section}"
    return FAIL, len(rows), f"{first.detector}{where}{section}"


def _watched(facts: Facts) -> Iterator[Said]:
    watch = facts.watch
    if watch is None:
        yield INCONCLUSIVE, None, "no watcher recorded this run"
        return
    if not watch.starts:
        yield INCONCLUSIVE, None, "no tick names the run that was watched"
    yield from _doubtful(facts, Effect.WATCH)
    if not watch.chained:
        yield INCONCLUSIVE, None, "the ticks are not one chain"
    if not watch.reaches:
        yield INCONCLUSIVE, None, "the ticks do not reach every line"
    if facts.exit is not None and watch.sealed is not True:
        yield INCONCLUSIVE, None, "watch.jsonl is not the one that exit.json seals"
    if facts.exit is not None and facts.exit.sealed is not True:
        yield INCONCLUSIVE, None, "the watcher did not see this exit.json"
