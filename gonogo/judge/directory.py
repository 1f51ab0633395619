"""What does a run directory deserve, without any service? `gonogo judge DIR`.

Rules come from order.json; without it from a plan and a phase; with neither, nobody knows what was
ordered and nothing can pass. What the files cannot show is listed, and never counts as shown.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from gonogo.contract.doubt import Doubt, DoubtKind, Effect
from gonogo.contract.errors import Corrupt, NotFound, Rejected
from gonogo.contract.facts import Facts
from gonogo.contract.finding import Finding
from gonogo.contract.heartbeat import Identity
from gonogo.contract.ids import Kind, is_id, new_id
from gonogo.contract.order import Order
from gonogo.contract.outcome import Outcome
from gonogo.contract.plan import Plan
from gonogo.judge.course.cause import describe_cause
from gonogo.judge.facts.facts import build_facts
from gonogo.judge.facts.findings import load_findings
from gonogo.judge.facts.record import RunRecord, load_order, load_run
from gonogo.judge.gate.rules import build_rules
from gonogo.judge.gate.verdict import judge
from gonogo.judge.words import sentences
from gonogo.ledger.seal import Place, append, judged
from gonogo.ledger.sign import SigningKey
from gonogo.planning.resolve import build_order, load_train_config, resolve_plan
from gonogo.pruned import check_not_pruned, pruned_text
from gonogo.rundir import RunDir, read_tail

ACTOR = "gonogo judge"
SILENCED = ".silenced"
"""Mark of a process that said nothing; as `gonogo.trainer` leaves it, which knows no judge."""
BETWEEN_RATIO = 1.25
"""How far apart steps may end, of how long they last, before it is said."""


def judge_directory(
    path: Path,
    plan: Mapping[str, Any] | None = None,
    phase: str | None = None,
    now: float | None = None,
    key: SigningKey | None = None,
) -> dict[str, Any]:
    """Return the decision that a run directory deserves, as JSON.

    Args:
        path: the run directory, ours or the predecessor's.
        plan: as data; used only when there is no order.json.
        phase: name of the phase; needed with `plan`.
        now: Unix seconds at which an unfinished run is looked at; default: the wall clock, or the
            last line where nobody knows what was ordered.
        key: of the home that records it; None: nobody does, and it is unsigned.

    Returns:
        a Decision's fields, and `findings` and `not_observed`.

    Raises:
        NotFound: no such directory, no heartbeats in it and no order.json, or it was pruned; no
            such plan or phase.
        Rejected: a plan without a phase; a plan that is not valid; an order.json that is none.
    """
    run_dir = RunDir(path)
    check_not_pruned(path)
    if not run_dir.ranks() and not run_dir.order.exists():
        raise NotFound(f"{path}: neither heartbeat_rank{{N}}.jsonl nor order.json is there")
    order = _recorded_order(run_dir)
    if order is None and plan is not None:
        order = _order_from(plan, phase)
    wall = time.time()  # the edge: a command is run now
    if now is None and order is not None:
        now = wall
    record = load_run(path, now=now, order=order)
    order = record.order  # the one that is sealed: whoever wrote it over meanwhile changes nothing
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
    findings = _with_files(record.findings, run_dir)
    cause = describe_cause(
        judgement.verdict,
        findings,
        _outcome_of(record, judgement.outcome),
        judgement.criteria,
        diagnosis=judgement.diagnosis,
        exits=record.exit.ranks if record.exit is not None else {},
        read_tail=lambda name: read_tail(path / name),
    )
    entry = judged(judgement, rules, facts, actor=ACTOR, cause=cause)
    more = {
        "findings": [finding.wire() for finding in findings],
        "not_observed": [
            *_elsewhere(path, order),
            *sentences(_listed(facts)),
            *_not_compared(order),
            *_between_steps(facts),
            *_unread(record),
            *_silenced(path),
            *_gone(path),
        ],
    }
    return dict(append(entry, place, key, more=more).document)


def _with_files(findings: Sequence[Finding], run_dir: RunDir) -> list[Finding]:
    """Return findings with the files of evidence that findings.jsonl names and that are there.

    The fold that finds them again gathers no evidence. Which files there are decides nothing.
    """
    named = {row.key: row.evidence for row in load_findings(run_dir) or []}
    kept = {path.relative_to(run_dir.path).as_posix() for path in run_dir.evidence.glob("*/*")}
    found = {key: [name for name in names if name in kept] for key, names in named.items()}
    return [row.model_copy(update={"evidence": found.get(row.key, [])}) for row in findings]


def _outcome_of(record: RunRecord, judged: Outcome | None) -> Outcome | None:
    """Return why the run ended, in the words of exit.json where it is there and counts."""
    row = record.exit
    if row is None or judged is None or judged.code is not row.reason:
        return judged
    return Outcome(code=row.reason, actor=row.ended_by, text=row.text)


def _recorded_order(run_dir: RunDir) -> Order | None:
    """Return order.json; one that cannot be read is the caller's to mend."""
    try:
        return load_order(run_dir)
    except Corrupt as error:
        raise Rejected(f"order.json: {str(error).removeprefix('order.json: ')}") from error


def _elsewhere(path: Path, order: Order | None) -> Iterator[str]:
    """Yield that a directory which is named as a run holds another one's."""
    name = path.resolve().name
    if order is not None and is_id(name, Kind.RUN) and order.run != name:
        held = order.run or "a run without a name"
        yield f"{name}: what lies in its directory is of {held}; nothing here is known of {name}"


def _not_compared(order: Order | None) -> Iterator[str]:
    """Yield what an order by hand leaves open of what must run; one of ours names all of it."""
    if order is None:
        return
    said = order.identity.model_dump(exclude_none=True)
    if order.identity.config_digest is None:
        named = ", ".join(said) or "nothing"
        yield f"identity: the order names {named}; what else ran was compared with nothing"
    model = order.train.get("model")
    known = {**order.train, **(model if isinstance(model, Mapping) else {})}
    known["nsa_env"] = any(name.startswith("NSA_") for name in order.env)
    left_open = [name for name in Identity.model_fields if known.get(name) and name not in said]
    if left_open:
        yield f"identity: {', '.join(left_open)}: configured, and not among what the order compares"


def _between_steps(facts: Facts) -> Iterator[str]:
    """Yield how far apart steps end, where that is clearly more than they last.

    Of the rank where it is most; evaluations and checkpoints may lie between two steps by right.
    """
    apart = [
        (pace.block_p50_s / pace.median_step_s, pace.block_p50_s, pace.median_step_s, rank)
        for rank, pace in facts.pace.items()
        if pace.block_p50_s and pace.median_step_s
    ]
    ratio, every_s, step_s, rank = max(apart, default=(0.0, 0.0, 0.0, ""))
    if ratio > BETWEEN_RATIO:
        yield (
            f"speed: the steps of rank {rank} last {step_s:.3g} s and end {every_s:.3g} s apart;"
            " what lies between two steps is in its speed and in no step time"
        )


def _listed(facts: Facts) -> list[Doubt]:
    """Return the doubts that the criteria do not show: the listed ones, and unreadable records."""
    kinds = (DoubtKind.UNREADABLE, DoubtKind.SEAL_BROKEN)
    return [row for row in facts.doubts if row.effect is Effect.NONE or row.kind in kinds]


def _unread(record: RunRecord) -> Iterator[str]:
    """Yield how many lines of heartbeat files cannot be read; they are no facts."""
    for rank, count in sorted(record.unreadable_lines.items()):
        yield f"rank {rank}: {count} lines cannot be read"


def _silenced(path: Path) -> Iterator[str]:
    """Yield that a process said nothing because another one had its rank: nobody saw what it did.

    A mark is no record: who takes it away hides this sentence, and changes no verdict.
    """
    if (path / SILENCED).exists():
        yield (
            "ranks: a further process attached as a rank that another one had, and said nothing;"
            " what it did nobody saw (each rank needs its own RANK, or attach(rank=…))"
        )


def _gone(path: Path) -> Iterator[str]:
    """Yield what was pruned of it, checkpoints, which no verdict rests on."""
    text = pruned_text(path)
    if text is not None:
        yield text


def _order_from(plan: Mapping[str, Any], phase: str | None) -> Order:
    """Return the order that a plan would have given; its ids stay empty."""
    if phase is None:
        raise Rejected("--plan needs --phase: which phase of it was this?")
    resolved = resolve_plan(plan, load_config=load_train_config)
    parsed: Plan = resolved.parsed()
    parsed.phase(phase)
    return build_order(resolved, phase, experiment="", run="", token=0)
