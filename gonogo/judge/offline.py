"""What does a run directory deserve, without any service? `gonogo judge DIR`.

Rules come from order.json; without it from a plan and a phase; with neither, nobody knows what was
ordered and nothing can pass. What the files cannot show is listed, and never counts as shown.
"""

import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from gonogo.contract.errors import NotFound, Rejected
from gonogo.contract.ids import Kind, new_id
from gonogo.contract.order import Order
from gonogo.contract.plan import Plan
from gonogo.contract.plan_source import bundled_plan
from gonogo.contract.resolve import build_order, checkout_root, load_train_config, resolve_plan
from gonogo.contract.rundir import RunDir, load_record
from gonogo.contract.yaml_text import parse_yaml
from gonogo.judge.facts import build_facts
from gonogo.judge.record import RunRecord, load_run
from gonogo.judge.rules import build_rules
from gonogo.judge.seal import build_decision
from gonogo.judge.verdict import judge
from gonogo.judge.watch import replay_run

ACTOR = "gonogo judge"


def judge_directory(
    path: Path,
    plan: str | Mapping[str, Any] | None = None,
    phase: str | None = None,
    now: float | None = None,
) -> dict[str, Any]:
    """Return the decision that a run directory deserves, as JSON.

    Args:
        path: the run directory, ours or the predecessor's.
        plan: a bundled plan's name, a path of a YAML file, or a plan as data; used only when
            there is no order.json.
        phase: name of the phase; needed with `plan`.
        now: Unix seconds at which an unfinished run is looked at; default: the wall clock, or the
            last line where nobody knows what was ordered.

    Returns:
        a Decision's fields, and `findings` and `not_observed`.

    Raises:
        NotFound: no such directory, no heartbeats in it and no order.json; no such plan or phase.
        Rejected: a plan without a phase; a plan that is not valid.
        Corrupt: a record in the directory cannot be read.
    """
    run_dir = RunDir(path)
    if not run_dir.ranks() and not run_dir.order.exists():
        raise NotFound(f"{path}: neither heartbeat_rank{{N}}.jsonl nor order.json is there")
    order = load_record(run_dir.order, Order)
    if order is None and plan is not None:
        order = _order_from(plan, phase)
    wall = time.time()  # the edge: a command is run now
    if now is None and order is not None:
        now = wall
    record = load_run(path, now=now, order=order)
    rules = build_rules(order)
    facts = build_facts(record, rules)
    decision = build_decision(
        id=new_id(Kind.DECISION),
        seq=1,
        experiment=order.experiment if order is not None else "",
        phase=order.phase if order is not None else None,
        run=order.run if order is not None else None,
        judgement=judge(facts, rules),
        rules=rules,
        facts=facts,
        at=datetime.fromtimestamp(wall, UTC).isoformat().replace("+00:00", "Z"),
        actor=ACTOR,
    )
    return {
        **decision.model_dump(mode="json"),
        "findings": [finding.wire() for finding in record.findings],
        "not_observed": _not_observed(path, record),
    }


def _not_observed(path: Path, record: RunRecord) -> list[str]:
    texts = list(record.not_observed)
    for rank, stream in record.streams.items():
        if stream.unreadable:
            texts.append(f"rank {rank}: {stream.unreadable} lines cannot be read")
    if record.predecessor:
        return texts
    if record.order is None:
        return [*texts, "order: there is no order.json, so nobody knows what was ordered"]
    if record.preflight is None:
        texts.append("preflight: nothing is recorded")
    if record.exit is None:
        texts.append("end: there is no exit.json, so nobody knows how the run ended")
    return texts + replay_run(path, order=record.order).not_observed


def _order_from(plan: str | Mapping[str, Any], phase: str | None) -> Order:
    """Return the order that a plan would have given; its ids stay empty.

    Without a checkout no configuration can be looked up: only what the plan says is checked.
    """
    if phase is None:
        raise Rejected("--plan needs --phase: which phase of it was this?")
    data = _plan_data(plan)
    load = load_train_config if _has_checkout() else lambda name: dict(data.get("train", {}))
    resolved = resolve_plan(data, load_config=load)
    parsed: Plan = resolved.parsed()
    parsed.phase(phase)
    return build_order(resolved, phase, experiment="", run="", token=0)


def _plan_data(plan: str | Mapping[str, Any]) -> Mapping[str, Any]:
    if not isinstance(plan, str):
        return plan
    file = Path(plan)
    if file.suffix in (".yaml", ".yml"):
        try:
            data = parse_yaml(file.read_text())
        except FileNotFoundError as error:
            raise NotFound(f"{plan}: no such file") from error
        if not isinstance(data, Mapping):
            raise Rejected(f"{plan}: found no mapping; expected a plan")
        return data
    return bundled_plan(plan)


def _has_checkout() -> bool:
    try:
        checkout_root()
    except NotFound:
        return False
    return True
