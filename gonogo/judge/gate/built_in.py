"""Did the run complete, was it what was ordered, and was all of it seen? The built-in criteria.

They stand before a plan's own in every gate and are required. Missing evidence never passes: each
criterion names what it would have needed. A row of `BUILT_IN` is a list of checks; the worst thing
that any of them says is what the criterion says, the first of equals. A waiver excuses what was
not told (`UNTOLD`), nothing that was seen: neither a failure nor a contradiction.
"""

from collections.abc import Callable, Iterator, Mapping

from gonogo.contract.criterion import GateSeverity
from gonogo.contract.decision import CriterionOutcome, CriterionResult
from gonogo.contract.doubt import Effect
from gonogo.contract.facts import BootFacts, Facts, Missing
from gonogo.contract.outcome import OutcomeCode
from gonogo.contract.plan import NEVER_WAIVED
from gonogo.contract.records import CheckOutcome
from gonogo.contract.rules import Rules
from gonogo.judge.gate.answers import (
    FAIL,
    INCONCLUSIVE,
    PASS,
    UNTOLD,
    Said,
    Unequal,
    Word,
    differences,
    halts,
    ranks_completed,
    told,
    unequal,
)
from gonogo.judge.words import sentence

Check = Callable[[Facts, Rules], Iterator[Said]]

DRIFT = "identity_drift"
"""Id of the condition that an allowed drift of the code identity makes."""

IDENTITY = "identity"
COVERAGE = "coverage"
IN_WEIGHTS = frozenset({DRIFT, IDENTITY, COVERAGE})
"""Ids of what stays in the weights of who goes on from a run's checkpoint, and is nobody else's."""

UNKNOWN_ORDER = "nobody recorded what was ordered"
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
        yield INCONCLUSIVE, None, "nobody said how many steps a whole run has"
    else:
        yield ranks_completed(facts, rules, rules.steps)
    if ended is not None:
        yield from _exit_belongs(facts, rules)
        yield from _rank_exits(facts, rules)


def _exit_belongs(facts: Facts, rules: Rules) -> Iterator[Said]:
    """exit.json is this run's, of this attempt, under this very order."""
    ended, order = facts.exit, facts.files.get(ORDER)
    assert ended is not None  # the caller asked
    if (ended.run, ended.attempt) != (rules.run, rules.attempt):
        whose = f"run {ended.run}, attempt {ended.attempt}" if ended.run else "no run"
        yield INCONCLUSIVE, ended.run, f"exit.json names {whose}, not this one"
    if order is None or ended.order_sha256 != order.sha256:
        yield INCONCLUSIVE, ended.order_sha256, "exit.json was not written under this order.json"


def _rank_exits(facts: Facts, rules: Rules) -> Iterator[Said]:
    """Every rank's own exit record is there and says 0, and exit.json says the same.

    What a command started owes none, but where it is there it counts.
    """
    said = facts.exit.ranks if facts.exit is not None else {}
    owed = [str(rank) for rank in rules.exits()]
    others = (facts.rank_exits.keys() | said.keys()) - set(owed)
    owed += sorted(others & set(map(str, rules.ranks())))
    for rank in owed:
        for row, where in (
            (facts.rank_exits.get(rank), "its record"),
            (said.get(rank), "exit.json"),
        ):
            if row is None:
                yield INCONCLUSIVE, None, f"rank {rank}: its exit is not in {where}"
            elif not row.known:
                yield INCONCLUSIVE, None, f"nobody saw how rank {rank} ended ({where})"
            elif not row.clean:
                seen = {"code": row.code, "signal": row.signal}
                yield FAIL, seen, f"rank {rank} did not exit with 0 ({where})"


def identity(facts: Facts, rules: Rules) -> Iterator[Said]:
    """Every process that ended a step was what was ordered, and every record is this run's."""
    if not rules.known:
        yield INCONCLUSIVE, None, UNKNOWN_ORDER
        return
    mismatches = [row for row in _differences(facts, rules) if row.name not in rules.allow_drift]
    if mismatches:
        text = "; ".join(told(row) for row in mismatches[:3])
        yield FAIL, {row.name: row.found for row in mismatches}, text
    yield from _order_holds(facts, rules)
    for rank in rules.ranks():
        yield from _rank_identity(facts, rules, rank)
    yield from _watched_order(facts, rules)
    count = len(rules.identity.said())
    if not count:
        yield UNTOLD, None, "the order does not say what must run"
    yield PASS, None, f"{count} fields are equal on every rank and to the order"


def _differences(facts: Facts, rules: Rules) -> Iterator[Unequal]:
    """Yield what differs: of the last process of each rank, and of every one that ended a step."""
    yield from differences(facts, rules)
    rows = (
        (rank, boot.identity.said())
        for rank, boots in facts.boots.items()
        for boot in boots[:-1]
        if boot.ended_steps and boot.identity is not None
    )
    yield from unequal(rows, rules)


def _order_holds(facts: Facts, rules: Rules) -> Iterator[Said]:
    """The order agrees with itself: its configuration has its digest, and its ranks its number."""
    wanted = rules.identity.config_digest
    if wanted is not None and facts.config_digest != wanted:
        text = "the order's configuration is not the one whose digest it tells"
        yield FAIL, facts.config_digest, text
    size = rules.identity.world_size
    if size is not None and size != rules.world_size:
        yield FAIL, size, f"the order asks for {rules.world_size} ranks, its identity for {size}"


def _rank_identity(facts: Facts, rules: Rules, rank: int) -> Iterator[Said]:
    counted = _counted(facts, rank)
    if not counted:
        yield UNTOLD, None, f"rank {rank} never said what it is"
    for boot in counted:
        yield from _boot_identity(boot, rules, rank)


def _counted(facts: Facts, rank: int) -> list[BootFacts]:
    """Return the processes of a rank whose identity counts: the last, and all that ended a step."""
    boots = facts.boots.get(str(rank), [])
    return [boot for boot in boots[:-1] if boot.ended_steps] + boots[-1:]


def _boot_identity(boot: BootFacts, rules: Rules, rank: int) -> Iterator[Said]:
    """One process said what it is, and for which run it was started."""
    if boot.identity is None:
        yield UNTOLD, None, f"rank {rank} never said what it is"
        return
    expected = rules.identity.said()
    unsaid = sorted(expected.keys() - boot.identity.said().keys() - set(rules.allow_drift))
    if unsaid:
        yield UNTOLD, None, f"rank {rank} did not say {', '.join(unsaid)}"
    for name, mine, its in (("run", rules.run, boot.run), ("attempt", rules.attempt, boot.attempt)):
        if not rules.run:
            yield INCONCLUSIVE, its, "nobody recorded for which run this was ordered"
        elif its is None:
            yield UNTOLD, None, f"rank {rank} did not say for which {name} it was started"
        elif its != mine:
            yield FAIL, its, f"rank {rank} was started for {name} {its}, not for {mine}"


def _watched_order(facts: Facts, rules: Rules) -> Iterator[Said]:
    """Every watcher says that it watches this run, under this very order."""
    order = facts.files.get(ORDER)
    for start in facts.watch.starts if facts.watch is not None else []:
        if (start.run, start.attempt) != (rules.run, rules.attempt):
            text = f"the watcher watched run {start.run}, attempt {start.attempt}"
            yield INCONCLUSIVE, start.run, text
        if order is None or start.order_sha256 != order.sha256:
            yield INCONCLUSIVE, start.order_sha256, "the watcher watched under another order.json"


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
        yield UNTOLD, None, "nobody said how many steps are owed"
    elif not rules.owed_steps():
        yield INCONCLUSIVE, None, "no step was owed, so none could be seen"
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
    yield from _absent(row.missing, rank, UNTOLD)
    yield from _absent(row.without_loss, rank, INCONCLUSIVE if row.with_loss else UNTOLD)


def _absent(missing: Missing | None, rank: int, word: Word) -> Iterator[Said]:
    if missing is None:
        yield INCONCLUSIVE, None, f"rank {rank}: nobody counted its lines"
    elif missing.count:
        named = ", ".join(missing.first)
        yield word, missing.count, f"rank {rank} never said {named}"


def preflight(facts: Facts, rules: Rules) -> Iterator[Said]:
    """Every check that the order names was made before the launch, passed, and is recorded."""
    found = facts.preflight
    if found is None:
        yield UNTOLD, None, "no preflight is recorded"
        return
    first = 0 not in found.unchecked
    if first and (found.failed or not found.passed):
        yield FAIL, found.failed, f"failed: {', '.join(found.failed) or 'not said which'}"
    if not rules.preflight:
        yield UNTOLD, None, "the order does not say which checks are owed"
    if first:
        yield from _checks(found.passed, found.outcomes, rules, "")
    for node in found.unchecked:
        yield UNTOLD, node, f"node {node}: no preflight is recorded"
    for name, row in found.nodes.items():
        failed = [check for check, said in row.outcomes.items() if said is CheckOutcome.FAIL]
        if failed or not row.passed:
            yield FAIL, failed, f"node {name}: failed: {', '.join(failed) or 'not said which'}"
        yield from _checks(row.passed, row.outcomes, rules, f"node {name}: ")
    yield PASS, None, f"{found.checks} checks passed"


def _checks(
    passed: bool, outcomes: Mapping[str, CheckOutcome], rules: Rules, where: str
) -> Iterator[Said]:
    """Every check that is owed was made on one node, and its record agrees with itself."""
    absent = [name for name in rules.preflight if name not in outcomes]
    if absent:
        yield UNTOLD, absent, f"{where}never checked: {', '.join(absent)}"
    failed = [name for name, row in outcomes.items() if row is CheckOutcome.FAIL]
    if bool(failed) == passed:
        text = "whether it passed and what its checks say do not agree"
        yield INCONCLUSIVE, failed, f"{where}{text}"


def no_halt_finding(facts: Facts, rules: Rules) -> Iterator[Said]:
    """No detector says halt, and somebody watched to the end, as measured."""
    halted = halts(facts)
    if halted is not None:
        yield halted
    yield from _watched(facts)
    yield PASS, 0, f"no halt among {len(facts.findings)} findings"


def _watched(facts: Facts) -> Iterator[Said]:
    watch = facts.watch
    if watch is None:
        yield INCONCLUSIVE, None, "nobody watched this run"
        return
    if not watch.starts:
        yield INCONCLUSIVE, None, "no tick says which run was watched"
    yield from _doubtful(facts, Effect.WATCH)
    if not watch.chained:
        yield INCONCLUSIVE, None, "the ticks are not one chain"
    if not watch.reaches:
        yield INCONCLUSIVE, None, "the ticks do not reach every line"
    if facts.exit is not None and watch.sealed is not True:
        yield INCONCLUSIVE, None, "watch.jsonl is not the one that exit.json seals"
    if facts.exit is not None and facts.exit.sealed is not True:
        yield INCONCLUSIVE, None, "the watcher did not see this exit.json"


BUILT_IN: dict[str, Check] = {
    "completed": completed,
    IDENTITY: identity,
    COVERAGE: coverage,
    "preflight": preflight,
    "no_halt_finding": no_halt_finding,
}


def evaluate_built_in(name: str, facts: Facts, rules: Rules) -> CriterionResult:
    """Return what one built-in criterion says, whatever order.json claims to waive."""
    word, observed, evidence = _worst(BUILT_IN[name](facts, rules))
    waived = word is UNTOLD and name in rules.waive and name not in NEVER_WAIVED
    return CriterionResult(
        id=name,
        severity=GateSeverity.CONDITIONAL if waived else GateSeverity.REQUIRED,
        outcome=word.outcome,
        observed=observed,
        evidence=f"waived by name: {evidence}" if waived else evidence,
    )


def _worst(said: Iterator[Said]) -> Said:
    order = list(Word)
    return min(said, key=lambda row: order.index(row[0]))


def evaluate_drift(facts: Facts, rules: Rules) -> CriterionResult | None:
    """Return the condition that an allowed drift makes, or None without drift."""
    drifted = [row for row in _differences(facts, rules) if row.name in rules.allow_drift]
    drifted += _unsaid_drift(facts, rules)
    if not drifted:
        return None
    return CriterionResult(
        id=DRIFT,
        severity=GateSeverity.CONDITIONAL,
        outcome=CriterionOutcome.FAIL,
        observed={row.name: row.found for row in drifted},
        threshold={row.name: row.wanted for row in drifted},
        evidence="; ".join(told(row) for row in drifted[:3]),
    )


def _unsaid_drift(facts: Facts, rules: Rules) -> Iterator[Unequal]:
    """Yield what may drift, was ordered, and was not said: that it is the same, nobody knows."""
    expected = rules.identity.said()
    for rank in rules.ranks():
        for boot in _counted(facts, rank):
            said = {} if boot.identity is None else boot.identity.said()
            for name in rules.allow_drift:
                if name in expected and name not in said:
                    yield Unequal(name=name, rank=str(rank), wanted=expected[name], found=None)
