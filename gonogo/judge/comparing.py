"""What does a run directory, or a recorded decision, bring to a comparison?

A directory is folded once, and measured by the judge's own measure of the metric that is asked for,
whether or not its gate looks at it: nothing recorded changes by it. A decision brings what its
facts hold; where they hold no such metric, and the run's directory is at hand as it was judged,
that is measured.
Either counts only where the criteria pass that no plan waives: what did not complete, or was not
watched to its end, wins nothing.
"""

from pathlib import Path

from pydantic import ValidationError

from gonogo.contract.decision import CriterionOutcome
from gonogo.contract.errors import Corrupt, NotFound
from gonogo.contract.facts import Facts
from gonogo.contract.order import Order
from gonogo.contract.plan import NEVER_WAIVED
from gonogo.contract.rules import Rules
from gonogo.judge.compare.question import Question
from gonogo.judge.compare.unit import NoUnit, Unit, build_unit, measure_of
from gonogo.judge.facts.facts import build_facts
from gonogo.judge.facts.files import SmallFiles
from gonogo.judge.facts.measure import build_measure
from gonogo.judge.facts.record import load_order, load_run
from gonogo.judge.gate.evaluate import evaluate_built_in
from gonogo.judge.gate.rules import build_rules
from gonogo.ledger.recorded import RecordedDecision
from gonogo.pruned import check_not_pruned
from gonogo.rundir import RunDir


def unit_of_directory(
    name: str, path: Path, question: Question, *, judged: Facts | None = None
) -> Unit | NoUnit:
    """Return what a run directory brings.

    Args:
        name: as it was named by who asked.
        path: the run directory.
        question: what is asked.
        judged: the facts of the decision that it is measured for; None where it is for none.

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
    measures = {
        str(row.metric): build_measure(row, record.ranks, rules)
        for row in (question.criteria() if rules.known else ())
    }
    unit = build_unit(name, facts, rules, measures, question, order=record.order)
    return _if_proved(unit, facts, rules)


def unit_of_decision(
    name: str,
    recorded: RecordedDecision,
    run_dir: Path | None,
    question: Question,
    *,
    order: Order | None = None,
    doubt: str | None = None,
) -> Unit | NoUnit:
    """Return what a recorded decision brings.

    Args:
        name: as it was named by who asked.
        recorded: the decision.
        run_dir: directory of its run, where it is at hand; None where it is not.
        question: what is asked.
        order: the run's order, where that is known without its directory.
        doubt: why nobody vouches for it; None where it needs nobody, or somebody does.
    """
    why = _unreadable(recorded)
    if why is None and doubt is not None:
        why = f"{recorded.id} may not be as it was recorded: signature: {doubt}"
    if why is not None:
        return NoUnit(name=name, why=why)
    facts = Facts.model_validate(recorded.document["facts"])
    rules = Rules.model_validate(recorded.document["rules"])
    found = measure_of(facts, rules, question.metric, question.warmup_steps)
    here = run_dir is not None and _is_of(run_dir, rules)
    if found is None and here and run_dir is not None:
        return unit_of_directory(name, run_dir, question, judged=facts)
    if order is None and here and run_dir is not None:
        order = _judged_order(run_dir, facts)
    measures = {
        metric: row[0]
        for metric in (question.metric, *question.told)
        if (row := measure_of(facts, rules, metric, question.warmup_steps)) is not None
    }
    warmed = found[1] if found is not None else None
    unit = build_unit(name, facts, rules, measures, question, order=order, warmed_steps=warmed)
    return _if_proved(unit, facts, rules)


def _if_proved(unit: Unit | NoUnit, facts: Facts, rules: Rules) -> Unit | NoUnit:
    """Return a unit, or why nothing proves what it tells."""
    if isinstance(unit, NoUnit):
        return unit
    for criterion in NEVER_WAIVED:
        row = evaluate_built_in(criterion, facts, rules)
        if row.outcome is not CriterionOutcome.PASS:
            why = f"nothing proves what it tells: {row.evidence} ({criterion})"
            return NoUnit(name=unit.name, why=why)
    return unit


def _unreadable(recorded: RecordedDecision) -> str | None:
    """Return why a decision brings nothing, or None when it can be read."""
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


def _judged_order(run_dir: Path, facts: Facts) -> Order | None:
    """Return a directory's order; None where it is not the one that was judged by.

    Whoever edits it would have the decision's run be another one; its rules say what it ran, too.
    """
    run = RunDir(run_dir)
    files, judged = SmallFiles(run), facts.files.get(run.order.name)
    return load_order(run, files) if judged in (None, files.seal(run.order, [])) else None


def _changed_since(judged: Facts, found: Facts) -> str | None:
    """Return which file of a run's directory is another than the one that was judged.

    A decision that is signed vouches for nothing that was put there since. Of its facts only the
    digests are compared: the rest may have been measured otherwise then. What devices say, the
    ticks hold.
    """
    lines = {rank: row.digest for rank, row in found.ranks.items()}
    for rank, row in judged.ranks.items():
        if lines.get(rank) != row.digest:
            return f"heartbeat_rank{rank}.jsonl"
    for name, seal in judged.files.items():
        if found.files.get(name) != seal:
            return name
    watched = None if found.watch is None else found.watch.digest
    return "watch.jsonl" if judged.watch and judged.watch.digest != watched else None


def _is_of(run_dir: Path, rules: Rules) -> bool:
    """Say whether a directory is that of the run that was decided about."""
    try:
        order = load_order(RunDir(run_dir))
    except Corrupt:
        return False
    return order is not None and (order.run, order.attempt) == (rules.run, rules.attempt)
