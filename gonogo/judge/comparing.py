"""What a run directory, or a recorded decision, contributes to a comparison.

A directory is folded once and measured by the judge's own measure of the metric, whether or not its
gate looks at it. A decision contributes what its facts hold of the metric. A run counts only if no
built-in criterion fails or lacks evidence.
"""

from pathlib import Path

from pydantic import ValidationError

from gonogo.contract.errors import Corrupt, NotFound
from gonogo.contract.facts import Facts
from gonogo.contract.order import Order, Rules
from gonogo.judge.compare.question import Question
from gonogo.judge.compare.unit import NoUnit, Unit, build_unit, measure_of
from gonogo.judge.facts.facts import build_facts
from gonogo.judge.facts.measure import build_measure
from gonogo.judge.facts.record import load_run
from gonogo.judge.gate.built_in import Word, worst_check
from gonogo.judge.gate.rules import build_rules
from gonogo.ledger.recorded import RecordedDecision
from gonogo.rundir import RunDir, check_not_pruned


def unit_of_directory(name: str, path: Path, question: Question) -> Unit | NoUnit:
    """Return what a run directory contributes.

    Raises:
        NotFound: no such directory, neither lines nor an order in it, or it was pruned.
    """
    check_not_pruned(path)
    run_dir = RunDir(path)
    try:
        if not run_dir.ranks() and not run_dir.order.exists():
            raise NotFound(f"{path}: neither heartbeat_rank{{N}}.jsonl nor order.json is there")
        record = load_run(path)
    except Corrupt as error:
        return NoUnit(name=name, why=error.detail)
    except OSError as error:
        return NoUnit(name=name, why=f"{path.name} cannot be read: {error.strerror}")
    rules = build_rules(record.order)
    facts = build_facts(record, rules)
    why = unproved(facts, rules)
    if why is not None:
        return NoUnit(name=name, why=why)
    rows = question.criteria()
    measures = {str(row.metric): build_measure(row, record.ranks, rules) for row in rows}
    return build_unit(name, facts, rules, measures, question, order=record.order)


def unit_of_decision(
    name: str,
    recorded: RecordedDecision,
    question: Question,
    *,
    order: Order | None = None,
) -> Unit | NoUnit:
    """Return what a recorded decision contributes; `order` is that of its run, if known."""
    why = _unreadable(recorded)
    if why is not None:
        return NoUnit(name=name, why=why)
    facts = Facts.model_validate(recorded.document["facts"])
    rules = Rules.model_validate(recorded.document["rules"])
    why = unproved(facts, rules)
    if why is not None:
        return NoUnit(name=name, why=why)
    measures = {
        str(row.metric): measure
        for row in question.criteria()
        if (measure := measure_of(facts, rules, row)) is not None
    }
    return build_unit(name, facts, rules, measures, question, order=order)


def unproved(facts: Facts, rules: Rules) -> str | None:
    """Return why nothing proves what a run reported: a criterion fails or lacks evidence.

    What its program did not report is no reason.
    """
    for name in rules.built_in:
        row = worst_check(name, facts, rules)
        if row.word in (Word.FAIL, Word.INCONCLUSIVE):
            return f"{name}: {row.text}"
    return None


def _unreadable(recorded: RecordedDecision) -> str | None:
    """Return why a decision contributes nothing; None if it can be read."""
    broken = recorded.seals()
    if broken is not None:
        return f"{recorded.id} is not as it was recorded: {broken.path} does not fit"
    if not recorded.document.get("facts") or not recorded.document.get("rules"):
        return f"{recorded.id} is a person's decision and rests on no facts"
    try:
        Facts.model_validate(recorded.document["facts"])
        Rules.model_validate(recorded.document["rules"])
    except ValidationError as error:
        return f"{recorded.id} cannot be read: {str(error).splitlines()[0]}"
    return None
