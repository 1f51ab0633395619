"""What a run directory, or a recorded decision, contributes to a comparison.

A directory is folded once and measured by the judge's own measure of the metric, whether or not its
gate looks at it. A decision contributes what its run's directory holds, provided that this is
unchanged. Without the directory it contributes what its facts hold of the metric. A run counts
only if no built-in criterion fails or lacks evidence.
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
from gonogo.judge.facts.record import load_order, load_run
from gonogo.judge.gate.built_in import Word, worst_check
from gonogo.judge.gate.rules import build_rules
from gonogo.ledger.recorded import RecordedDecision
from gonogo.rundir import RunDir, check_not_pruned


def unit_of_directory(
    name: str, path: Path, question: Question, *, judged: Facts | None = None
) -> Unit | NoUnit:
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
    changed = None if judged is None else _changed_since(judged, facts)
    if changed is not None:
        return NoUnit(name=name, why=f"its run directory is not as it was judged: {changed}")
    why = unproved(facts, rules)
    if why is not None:
        return NoUnit(name=name, why=why)
    rows = question.criteria()
    measures = {str(row.metric): build_measure(row, record.ranks, rules) for row in rows}
    return build_unit(name, facts, rules, measures, question, order=record.order)


def unit_of_decision(
    name: str,
    recorded: RecordedDecision,
    run_dir: Path | None,
    question: Question,
    *,
    order: Order | None = None,
    doubt: str | None = None,
) -> Unit | NoUnit:
    """Return what a recorded decision contributes.

    Args:
        run_dir: directory of its run, if it is at hand.
        order: the run's order, if it is known without its directory.
        doubt: why its signature is not trusted; None if it is, or needs none.
    """
    why = _unreadable(recorded)
    if why is None and doubt is not None:
        why = f"{recorded.id} may not be as it was recorded: signature: {doubt}"
    if why is not None:
        return NoUnit(name=name, why=why)
    facts = Facts.model_validate(recorded.document["facts"])
    rules = Rules.model_validate(recorded.document["rules"])
    if run_dir is not None and _is_of(run_dir, rules):
        return unit_of_directory(name, run_dir, question, judged=facts)
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


def _changed_since(judged: Facts, found: Facts) -> str | None:
    """Return which file of a run's directory differs from the one that was judged.

    A signed decision does not vouch for what was put there later.
    """
    before, now = (
        {
            **{f"heartbeat_rank{rank}.jsonl": row.digest for rank, row in facts.ranks.items()},
            **facts.files,
            "watch.jsonl": None if facts.watch is None else facts.watch.digest,
        }
        for facts in (judged, found)
    )
    return next((name for name, digest in before.items() if now.get(name) != digest), None)


def _is_of(run_dir: Path, rules: Rules) -> bool:
    """Say whether a directory belongs to the run of a decision."""
    try:
        order = load_order(RunDir(run_dir))
    except Corrupt:
        return False
    return order is not None and (order.run, order.attempt) == (rules.run, rules.attempt)
