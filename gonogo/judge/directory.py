"""A run directory without any service: its decision, and what it contributes to a comparison.

`gonogo judge DIR`: rules come from order.json; without it from a plan and a phase; with neither,
nobody knows what was ordered and nothing can pass. What the files cannot show is listed, and never
counts as shown.

A recorded decision contributes what its facts hold of the metric. A run counts only if no built-in
criterion fails or lacks evidence.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from gonogo.contract.errors import Corrupt, NotFound, Rejected
from gonogo.contract.facts import Facts
from gonogo.contract.finding import DoubtKind, Effect, Finding
from gonogo.contract.order import Order, Rules
from gonogo.contract.outcome import Outcome
from gonogo.contract.wire import Kind, is_id, new_id
from gonogo.judge.compare.unit import NoUnit, Question, Unit, build_unit, measure_of
from gonogo.judge.facts.facts import build_facts
from gonogo.judge.facts.metrics import build_measure
from gonogo.judge.facts.record import RunFiles, RunRecord, load_run
from gonogo.judge.follow_up.explanation import describe_cause
from gonogo.judge.gate.built_in import Word, worst_check
from gonogo.judge.gate.rules import build_rules
from gonogo.judge.gate.verdict import judge
from gonogo.judge.words import sentence
from gonogo.ledger.recorded import RecordedDecision
from gonogo.ledger.seal import Place, append, judged
from gonogo.ledger.sign import SigningKey
from gonogo.planning.resolve import build_order, load_train_config, resolve_plan
from gonogo.rundir import RunDir, check_not_pruned, pruned_text, read_tail

ACTOR = "gonogo judge"
SILENCED = ".silenced"
"""Mark of a process that reported nothing; as `gonogo.trainer` leaves it, which knows no judge."""


def judge_directory(
    path: Path,
    plan: Mapping[str, Any] | None = None,
    phase: str | None = None,
    now: float | None = None,
    key: SigningKey | None = None,
) -> dict[str, Any]:
    """Return the decision that a run directory deserves, with `findings` and `not_observed`.

    Args:
        plan: as data; used, with its phase, only when there is no order.json.
        now: Unix seconds at which an unfinished run is looked at; default: the wall clock.
        key: of the home that records it; None: nobody does, and it is unsigned.

    Raises:
        NotFound: no such directory, no heartbeats in it and no order.json, or it was pruned; no
            such plan or phase.
        Rejected: a plan without a phase; a plan that is not valid; an order.json that is none.
    """
    run_dir = RunDir(path)
    check_not_pruned(path)
    if not run_dir.ranks() and not run_dir.order.exists():
        raise NotFound(f"{path}: neither heartbeat_rank{{N}}.jsonl nor order.json is there")
    planned = None
    if plan is not None and not run_dir.order.exists():
        planned = _order_from(plan, phase)
    wall = time.time()  # the edge: a command is run now
    try:
        record = load_run(path, now=wall if now is None else now, order=planned)
    except Corrupt as error:  # order.json is the caller's to mend
        raise Rejected(str(error)) from error
    order = record.order
    rules = build_rules(order)
    facts = build_facts(record, rules)
    place = Place(
        id=new_id(Kind.DECISION),
        experiment=order.experiment if order is not None else "",
        phase=order.phase if order is not None else None,
        run=order.run if order is not None else None,
        at=datetime.fromtimestamp(wall, UTC).isoformat().replace("+00:00", "Z"),
    )
    judgement = judge(facts, rules)
    findings = _with_evidence(record.findings, path)
    cause = describe_cause(
        judgement.verdict,
        findings,
        _outcome_of(record, judgement.outcome),
        judgement.criteria,
        diagnosis=judgement.diagnosis,
        exits=record.exit.ranks if record.exit is not None else {},
        read_tail=lambda name: read_tail(path / name),
        ranks_per_log=order.world_size // order.nodes if order and order.command else 0,
    )
    entry = judged(judgement, rules, facts, actor=ACTOR, cause=cause)
    more = {
        "findings": [finding.wire() for finding in findings],
        "not_observed": list(_not_shown(path, record, facts)),
    }
    return dict(append(entry, place, key, more=more).document)


def _with_evidence(findings: Sequence[Finding], path: Path) -> list[Finding]:
    """Return findings with the files of evidence that findings.jsonl names and that are there."""
    named = {row.key: row.evidence for row in RunFiles(path).rows("findings.jsonl", Finding)}
    kept = {file.relative_to(path).as_posix() for file in path.glob("evidence/*/*")}
    found = {key: [name for name in names if name in kept] for key, names in named.items()}
    return [row.model_copy(update={"evidence": found.get(row.key, [])}) for row in findings]


def _outcome_of(record: RunRecord, judged: Outcome | None) -> Outcome | None:
    """Return why the run ended, in the words of exit.json where it is there and counts."""
    row = record.exit
    if row is None or judged is None or judged.code is not row.reason:
        return judged
    return Outcome(code=row.reason, actor=row.ended_by, text=row.text)


def _not_shown(path: Path, record: RunRecord, facts: Facts) -> Iterator[str]:
    """Yield what the files do not show, and no criterion says."""
    order, name = record.order, path.resolve().name
    if order is not None and is_id(name, Kind.RUN) and order.run != name:
        held = order.run or "a run without a name"
        yield f"{name}: what lies in its directory is of {held}; nothing here is known of {name}"
    unreadable = (DoubtKind.UNREADABLE, DoubtKind.SEAL_BROKEN)
    listed = [row for row in facts.doubts if row.effect is Effect.NONE or row.kind in unreadable]
    yield from dict.fromkeys(map(sentence, listed))
    if order is not None and order.identity.config_digest is None:  # it was written by hand
        named = ", ".join(order.identity.model_dump(exclude_none=True)) or "nothing"
        yield f"identity: the order names {named}; what else ran was compared with nothing"
    for rank, count in sorted(record.unreadable_lines.items()):
        yield f"rank {rank}: {count} lines cannot be read"
    if (path / SILENCED).exists():
        yield (
            "ranks: a further process attached as a rank that another one had, and was not"
            " recorded (each rank needs its own RANK, or attach(rank=…))"
        )
    text = pruned_text(path)
    if text is not None:
        yield text


def _order_from(plan: Mapping[str, Any], phase: str | None) -> Order:
    """Return the order that a plan would have given; its ids stay empty."""
    if phase is None:
        raise Rejected("--plan needs --phase: which phase of it was this?")
    resolved = resolve_plan(plan, load_config=load_train_config)
    return build_order(resolved, phase, experiment="", run="", token=0)


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
    name: str, recorded: RecordedDecision, question: Question, *, order: Order | None = None
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
    """Return why nothing proves what a run reported: a criterion fails or lacks evidence."""
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
