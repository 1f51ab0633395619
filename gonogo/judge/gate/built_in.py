"""The built-in criteria: did the ordered run complete, was all of it seen, did nothing halt it?

They come before the criteria of the plan in every gate, and are required. Each criterion is a list
of checks, and the worst of them is its outcome. Missing evidence never passes: a check names what
is missing. A waiver excuses what a program did not report (`UNREPORTED`). It excuses neither a
failure nor a contradiction. A field of the identity that the plan lets differ (`allow_drift`) makes
a condition of its own, `identity_drift`.
"""

from collections.abc import Callable, Iterator
from enum import StrEnum
from typing import Any, NamedTuple

from gonogo.contract.canonical import canonical_bytes
from gonogo.contract.criterion import GateSeverity
from gonogo.contract.decision import CriterionOutcome, CriterionResult
from gonogo.contract.facts import BootFacts, Facts
from gonogo.contract.finding import Effect, Severity
from gonogo.contract.order import Rules
from gonogo.contract.outcome import OutcomeCode
from gonogo.contract.plan import NEVER_WAIVED
from gonogo.contract.records import CheckOutcome
from gonogo.contract.watch import ProgramKind
from gonogo.judge.words import sentence

DRIFT = "identity_drift"
IDENTITY = "identity"
COVERAGE = "coverage"
IN_WEIGHTS = frozenset({DRIFT, IDENTITY, COVERAGE})
"""What stays in the weights of a run's checkpoint, and counts only for runs that resume from it."""
UNKNOWN_ORDER = "no order is recorded"
ORDER = "order.json"
MOST_TOLD = 3


class Word(StrEnum):
    """What a check says, the worst first."""

    FAIL = "fail"
    INCONCLUSIVE = "inconclusive"
    """The records contradict each other, or are not enough."""
    UNREPORTED = "unreported"
    """A program may be unable to report it; all that a waiver excuses."""
    PASS = "pass"
    DRIFTED = "drifted"
    """An identity differs as the plan allows: the condition says so."""


PASS, FAIL, INCONCLUSIVE, UNREPORTED = Word.PASS, Word.FAIL, Word.INCONCLUSIVE, Word.UNREPORTED
_ORDER = list(Word)
_OUTCOME = {PASS: CriterionOutcome.PASS, FAIL: CriterionOutcome.FAIL}


class Checked(NamedTuple):
    """What one check says."""

    word: Word
    observed: Any
    text: str
    field: str | None = None
    wanted: Any = None


Check = Callable[[Facts, Rules], Iterator[Checked]]


def evaluate_built_in(name: str, facts: Facts, rules: Rules) -> CriterionResult:
    """Return what a built-in criterion says.

    A waiver excuses nothing but what a program did not report. Without a plan, a program that is
    known by its printed lines alone needs no waiver for its identity and coverage.
    """
    worst, why = worst_check(name, facts, rules), ""
    printed = rules.program_kind is ProgramKind.PRINTED and rules.plan == ""
    read = printed and not any(row.said() for row in facts.identity.values())
    if worst.word is UNREPORTED and name in rules.waive and name not in NEVER_WAIVED:
        why = "waived by name: "
    elif worst.word is UNREPORTED and name in IN_WEIGHTS and read:
        why = "the program is only read: "
    return CriterionResult(
        id=name,
        severity=GateSeverity.CONDITIONAL if why else GateSeverity.REQUIRED,
        outcome=_OUTCOME.get(worst.word, CriterionOutcome.INCONCLUSIVE),
        observed={worst.field: worst.observed} if worst.field else worst.observed,
        evidence=f"{why}{worst.text}",
    )


def worst_check(name: str, facts: Facts, rules: Rules) -> Checked:
    """Return the check of a built-in criterion that says the worst, the first of equals."""
    return min(BUILT_IN[name](facts, rules), key=lambda row: _ORDER.index(row.word))


def evaluate_drift(facts: Facts, rules: Rules) -> CriterionResult | None:
    """Return the condition that an allowed drift makes, or None without drift."""
    rows = [row for row in identity(facts, rules) if row.word is Word.DRIFTED]
    if not rows:
        return None
    return CriterionResult(
        id=DRIFT,
        severity=GateSeverity.CONDITIONAL,
        outcome=CriterionOutcome.FAIL,
        observed={row.field: row.observed for row in rows},
        threshold={row.field: row.wanted for row in rows},
        evidence="; ".join(row.text for row in rows[:MOST_TOLD]),
    )


def completed(facts: Facts, rules: Rules) -> Iterator[Checked]:
    """Exit 0 of the run, torchrun and every rank; each `done`, at the last ordered step."""
    outcome, ended = facts.outcome, facts.exit
    known = ended is not None or rules.known
    if known and outcome is not None and outcome.code is not OutcomeCode.COMPLETED:
        yield Checked(FAIL, outcome.code.value, f"ended as {outcome.code}, by {outcome.actor}")
    if ended is not None:
        for row, whose in ((ended, "the run"), (ended.agent, "torchrun itself")):
            if row is not None and not row.clean:
                seen = {"code": row.code, "signal": row.signal}
                yield Checked(FAIL, seen, f"{whose} did not exit with 0")
    if not rules.known:
        yield Checked(INCONCLUSIVE, None, UNKNOWN_ORDER)
        return
    if rules.steps is None:
        yield Checked(INCONCLUSIVE, None, "the order names no number of steps")
    else:
        yield from _ranks_completed(facts, rules, rules.steps)
    if ended is not None:
        order = facts.files.get(ORDER)
        if (ended.run, ended.attempt) != (rules.run, rules.attempt):
            whose = f"run {ended.run}, attempt {ended.attempt}" if ended.run else "no run"
            yield Checked(INCONCLUSIVE, ended.run, f"exit.json names {whose}, not this one")
        if order is None or ended.order_sha256 != order.sha256:
            text = "exit.json was not written under this order.json"
            yield Checked(INCONCLUSIVE, ended.order_sha256, text)
        yield from _rank_exits(facts, rules)


def _ranks_completed(facts: Facts, rules: Rules, steps: int) -> Iterator[Checked]:
    """Check that every rank reported its end, at the last ordered step."""
    for rank in rules.ranks():
        row = facts.ranks.get(str(rank))
        if row is None:
            yield Checked(INCONCLUSIVE, None, f"rank {rank} wrote no line")
        elif row.done_step is None:
            text = f"rank {rank} did not report its end; its last step is {row.last_step}"
            yield Checked(INCONCLUSIVE, None, text)
        elif row.done_step < steps:
            yield Checked(FAIL, row.done_step, f"rank {rank} ended at step {row.done_step}")
        elif row.last_step < steps and steps >= rules.first_step:
            yield Checked(INCONCLUSIVE, row.last_step, f"rank {rank}: step {steps} is missing")
    if facts.exit is None:
        text = "every rank reported its end, but no exit is recorded"
        yield Checked(INCONCLUSIVE, steps, text)
    count = len(rules.ranks())
    yield Checked(PASS, steps, f"all {count} ranks reached step {steps} and exited 0")


def _rank_exits(facts: Facts, rules: Rules) -> Iterator[Checked]:
    """Check that each rank has an exit record with code 0, and that exit.json agrees.

    The ranks that a command starts need no record, but an existing one counts.
    """
    said = facts.exit.ranks if facts.exit is not None else {}
    programs = rules.ranks() if rules.programs is None else range(rules.programs)
    required = [str(rank) for rank in programs]
    others = (facts.rank_exits.keys() | said.keys()) - set(required)
    required += sorted(others & set(map(str, rules.ranks())))
    for rank in required:
        for row, where in (
            (facts.rank_exits.get(rank), "its record"),
            (said.get(rank), "exit.json"),
        ):
            if row is None:
                yield Checked(INCONCLUSIVE, None, f"rank {rank}: its exit is not in {where}")
            elif row.code is None and row.signal is None:
                text = f"the end of rank {rank} was not observed ({where})"
                yield Checked(INCONCLUSIVE, None, text)
            elif not row.clean:
                seen = {"code": row.code, "signal": row.signal}
                yield Checked(FAIL, seen, f"rank {rank} did not exit with 0 ({where})")


def identity(facts: Facts, rules: Rules) -> Iterator[Checked]:
    """Every process that ended a step was what was ordered, and every record is this run's.

    What the order leaves open must be the same on all ranks.
    """
    if not rules.known:
        yield Checked(INCONCLUSIVE, None, UNKNOWN_ORDER)
        return
    wanted, size = rules.identity.config_digest, rules.identity.world_size
    if wanted is not None and facts.config_digest != wanted:
        text = "the configuration of the order does not have the digest that the order names"
        yield Checked(FAIL, facts.config_digest, text)
    if size is not None and size != rules.world_size:
        text = f"the order asks for {rules.world_size} ranks, its identity for {size}"
        yield Checked(FAIL, size, text)
    count = len(rules.identity.said())
    if not count:
        yield Checked(UNREPORTED, None, "the order does not name what must run")
    for rank in rules.ranks():
        boots = facts.boots.get(str(rank), [])
        counted = [boot for boot in boots[:-1] if boot.ended_steps] + boots[-1:]
        if not counted:
            yield Checked(UNREPORTED, None, f"rank {rank} did not report its identity")
        for boot in counted:
            yield from _process_identity(boot, rules, rank)
    yield from _ranks_differ(facts, rules)
    yield from _watched_order(facts, rules)
    yield Checked(PASS, None, f"{count} fields are equal on every rank and to the order")


def _process_identity(boot: BootFacts, rules: Rules, rank: int) -> Iterator[Checked]:
    """Check that one process reported the ordered identity, and was started for this run."""
    said = {} if boot.identity is None else boot.identity.said()
    if not said:
        yield Checked(UNREPORTED, None, f"rank {rank} did not report its identity")
    for name, wanted in rules.identity.said().items():
        found = said.get(name)
        near = rules.params_tolerance_ratio * wanted if name == "params" else 0
        same = abs(found - wanted) <= near if near and found is not None else found == wanted
        if not same:
            yield _differs(name, f"rank {rank}", wanted, found, rules)
    for name, mine, its in (("run", rules.run, boot.run), ("attempt", rules.attempt, boot.attempt)):
        if not rules.run:
            yield Checked(INCONCLUSIVE, its, "the order names no run")
        elif its is None:
            text = f"rank {rank} did not report for which {name} it was started"
            yield Checked(UNREPORTED, None, text)
        elif its != mine:
            yield Checked(FAIL, its, f"rank {rank} was started for {name} {its}, not for {mine}")


def _differs(name: str, whose: str, wanted: Any, found: Any, rules: Rules) -> Checked:
    """Return that a field is not the ordered one, or was not reported."""
    word, text = FAIL, f"{name} of {whose} is {found!r}, {wanted!r} was ordered"
    if found is None:
        word, text = UNREPORTED, f"{whose} did not report {name}, {wanted!r} was ordered"
    if name in rules.allow_drift:
        word = Word.DRIFTED
    return Checked(word, found, text, name, wanted)


def _ranks_differ(facts: Facts, rules: Rules) -> Iterator[Checked]:
    """Check what the order leaves open, and the tokens of a step."""
    ordered = rules.identity
    for rank, row in facts.ranks.items():
        for found in row.tokens:
            if ordered.tokens_per_step is not None and found != ordered.tokens_per_step:
                yield _differs("tokens", f"rank {rank}", ordered.tokens_per_step, found, rules)
    fields = {rank: row.said() for rank, row in facts.identity.items()}
    exact = ordered.said().keys() - {"params"}
    for name in sorted({name for row in fields.values() for name in row} - exact):
        said = {rank: row[name] for rank, row in fields.items() if name in row}
        if len(set(map(canonical_bytes, said.values()))) > 1:
            values = ", ".join(f"{value!r} on rank {rank}" for rank, value in said.items())
            word = Word.DRIFTED if name in rules.allow_drift else FAIL
            yield Checked(word, said, f"{name} differs between the ranks: {values}", name)


def _watched_order(facts: Facts, rules: Rules) -> Iterator[Checked]:
    """Check that every watcher watched this run, under this order."""
    order = facts.files.get(ORDER)
    for start in facts.watch.starts if facts.watch is not None else []:
        if (start.run, start.attempt) != (rules.run, rules.attempt):
            text = f"the watcher watched run {start.run}, attempt {start.attempt}"
            yield Checked(INCONCLUSIVE, start.run, text)
        if order is None or start.order_sha256 != order.sha256:
            text = "the watcher watched under another order.json"
            yield Checked(INCONCLUSIVE, start.order_sha256, text)


def coverage(facts: Facts, rules: Rules) -> Iterator[Checked]:
    """Every line of every rank and step is there, once, and no record contradicts another."""
    if not rules.known:
        yield Checked(INCONCLUSIVE, None, UNKNOWN_ORDER)
        return
    doubts = facts.doubts_of(Effect.COVERAGE)
    doubtful = [Checked(INCONCLUSIVE, len(doubts), sentence(row)) for row in doubts[:1]]
    if facts.source == "predecessor":
        yield from doubtful
        yield Checked(INCONCLUSIVE, None, "the lines have no seq, so a lost one leaves no trace")
        return
    if rules.steps is None:
        yield Checked(UNREPORTED, None, "the order names no number of steps")
    elif not rules.owed_steps():
        yield Checked(INCONCLUSIVE, None, "no step was required, so none was seen")
    for rank in rules.ranks():
        yield from _rank_coverage(facts, rules, rank)
    yield from doubtful
    yield Checked(PASS, None, "every line of every rank and step is there")


def _rank_coverage(facts: Facts, rules: Rules, rank: int) -> Iterator[Checked]:
    row = facts.ranks.get(str(rank))
    if row is None or row.count == 0:
        yield Checked(INCONCLUSIVE, None, f"rank {rank} wrote no line")
        return
    if row.gaps:
        yield Checked(INCONCLUSIVE, row.gaps, f"rank {rank}: {row.gaps} lines are missing")
    chosen = rules.plan or any(row.said() for row in facts.identity.values())
    partly = INCONCLUSIVE if row.with_loss and chosen else UNREPORTED  # only read: it prints some
    for missing, word in ((row.missing, UNREPORTED), (row.without_loss, partly)):
        if missing is None:
            yield Checked(INCONCLUSIVE, None, f"rank {rank}: its lines were not counted")
        elif missing.count:
            text = f"rank {rank} did not report {', '.join(missing.first)}"
            yield Checked(word, missing.count, text)


def preflight(facts: Facts, rules: Rules) -> Iterator[Checked]:
    """Every check that the order names was made on every node before the launch, and passed."""
    found = facts.preflight
    if found is None:
        yield Checked(UNREPORTED, None, "no preflight is recorded")
        return
    if not rules.preflight:
        yield Checked(UNREPORTED, None, "the order does not say which checks are required")
        return
    for node, row in found.nodes.items():
        where = "" if node == "0" else f"node {node}: "
        failed = [name for name, said in row.outcomes.items() if said is CheckOutcome.FAIL]
        if failed or not row.passed:
            text = f"{where}failed: {', '.join(failed) or 'not said which'}"
            yield Checked(FAIL, failed, text)
        absent = [name for name in rules.preflight if name not in row.outcomes]
        if absent:
            yield Checked(UNREPORTED, absent, f"{where}never checked: {', '.join(absent)}")
    for number in found.unchecked:
        yield Checked(UNREPORTED, number, f"node {number}: no preflight is recorded")
    first = next(iter(found.nodes.values()))
    yield Checked(PASS, None, f"{len(first.outcomes)} checks passed")


def no_halt_finding(facts: Facts, rules: Rules) -> Iterator[Checked]:
    """No detector says halt, and somebody watched to the end, as measured."""
    halts = [row for row in facts.findings if row.severity is Severity.HALT]
    for row in halts[:1]:
        where = "" if row.rank is None else f" on rank {row.rank}"
        section = "" if row.section is None else f" in {row.section}"
        yield Checked(FAIL, len(halts), f"{row.detector}{where}{section}")
    watch, ended = facts.watch, facts.exit
    if watch is None:
        yield Checked(INCONCLUSIVE, None, "no watcher recorded this run")
        return
    if not watch.starts:
        yield Checked(INCONCLUSIVE, None, "no tick names the run that was watched")
    doubts = facts.doubts_of(Effect.WATCH)
    for doubt in doubts[:1]:
        yield Checked(INCONCLUSIVE, len(doubts), sentence(doubt))
    for holds, text in (
        (watch.chained, "the ticks are not one chain"),
        (watch.reaches, "the ticks do not reach every line"),
        (ended is None or watch.sealed, "watch.jsonl is not the one that exit.json seals"),
        (ended is None or ended.sealed, "the watcher did not see this exit.json"),
    ):
        if not holds:
            yield Checked(INCONCLUSIVE, None, text)
    yield Checked(PASS, 0, f"no halt among {len(facts.findings)} findings")


BUILT_IN: dict[str, Check] = {
    "completed": completed,
    IDENTITY: identity,
    COVERAGE: coverage,
    "preflight": preflight,
    "no_halt_finding": no_halt_finding,
}
