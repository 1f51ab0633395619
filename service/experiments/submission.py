"""Submissions: a frozen plan, its phases, and the first queued run."""

import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gonogo.contract.api import CampaignPlace, Submission
from gonogo.contract.errors import Problem, Rejected, hint
from gonogo.contract.lifecycle import ExperimentState, PhaseEvent, PhaseState
from gonogo.contract.order import Order
from gonogo.contract.wire import Kind, new_id
from gonogo.planning.ordering import merged, values_of
from gonogo.planning.programs import needs
from gonogo.planning.resolve import ResolvedPlan, build_order, resolve_plan, warnings_of
from gonogo.planning.source import bundled_plan, refuse
from service.db.schema import ExperimentRow, PhaseRow, RunRow
from service.db.store import Session
from service.experiments.advance import resolved_of, start_phase
from service.experiments.lifecycle import Deed, lock_experiment, move_phase, record_event
from service.experiments.origins import Origin
from service.experiments.state import check_labels
from service.queries.experiments import load_experiment


def resolve_submission(submission: Submission) -> ResolvedPlan:
    """Return the plan that a submission freezes; it is read and resolved here, once."""
    check_texts(submission.name, submission.labels)
    check_labels(submission.labels)
    plan = bundled_plan(submission.plan) if isinstance(submission.plan, str) else submission.plan
    return resolve_plan(plan or {}, submission.set)


def with_plan(session: Session, submission: Submission) -> Submission:
    """Return a submission with its plan, by default that of the experiment that it continues."""
    if submission.plan is not None or submission.origin is None:
        return submission
    source = load_experiment(session, submission.origin.partition(":")[0])
    resolved = resolved_of(source)
    refuse(_new_keys(resolved, submission.set), "set ")
    return submission.model_copy(update={"plan": resolved.plan})


def _new_keys(resolved: ResolvedPlan, sets: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield the set keys of `train` that a plan lacks: of a program of its own nobody else asks."""
    plan = resolved.parsed()
    if plan.ours:
        return
    for path in sets:
        name, in_phase, key = path.removeprefix("phases.").partition(".train.")
        phase = next((row for row in plan.phases if row.name == name), None)
        if not in_phase or phase is None:
            continue
        known = values_of(merged(plan.train, phase.train), phase.steps)
        if key not in known:
            keys = sorted(set(known) - {"steps"})
            yield Problem(path=path, message=f"the plan has no train.{key}; {hint(key, keys)}")


def build_orders(resolved: ResolvedPlan) -> list[Order]:
    """Return the order of every phase, as its first run would get it."""
    return [
        build_order(resolved, phase.name, experiment="exp_dry_run", run="run_dry_run", token=0)
        for phase in resolved.parsed().phases
    ]


def check_texts(name: str | None, labels: Mapping[str, str]) -> None:
    """Refuse what a terminal would obey, or a database cannot store, in a text of one line."""
    texts = {"name": name or ""}
    for label, value in labels.items():
        texts[f"labels.{label}"] = label + value
    for path, text in texts.items():
        found = next((letter for letter in text if unicodedata.category(letter) == "Cc"), None)
        if found is not None:
            message = f"a control character (U+{ord(found):04X})"
            problem = Problem(path=path, message=message)
            raise Rejected(f"{path}: {message}", problems=(problem,))


def build_dry_run(
    resolved: ResolvedPlan, waits: Sequence[str] = (), origin: Origin | None = None
) -> dict[str, Any]:
    """Return what would run: the resolved plan and the order of every phase."""
    inherited = origin.verdicts if origin is not None else {}
    return {
        "dry_run": True,
        "plan": resolved.plan,
        "plan_digest": resolved.plan_digest(),
        "train": resolved.train,
        "fault": resolved.fault,
        "warnings": [*warnings_of(resolved.parsed()), *waits],
        "origin": origin.view().wire() if origin is not None else None,
        "orders": [
            order.document() for order in build_orders(resolved) if order.phase not in inherited
        ],
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Created:
    """An experiment that has just been stored."""

    experiment: ExperimentRow
    phases: list[PhaseRow]
    run: RunRow


def create_experiment(
    deed: Deed,
    submission: Submission,
    resolved: ResolvedPlan,
    origin: Origin | None = None,
    place: CampaignPlace | None = None,
) -> Created:
    """Store an experiment and queue the first run of its first phase, or of its origin's."""
    plan = resolved.parsed()
    experiment = ExperimentRow(
        id=new_id(Kind.EXPERIMENT),
        name=submission.name or plan.name,
        plan=plan.name,
        resolved=resolved.wire(),
        labels=dict(submission.labels),
        state=ExperimentState.QUEUED,
        created_by=deed.actor,
        created_at=deed.now,
        event_seq=0,
        decision_seq=0,
        token=0,
        needs=needs(plan),
        frozen=dict(origin.frozen) if origin is not None else {},
        origin=origin.view() if origin is not None else None,
        campaign=place.campaign if place is not None else None,
        variant=place.variant if place is not None else None,
        repeat=place.repeat if place is not None else None,
    )
    phases = [
        PhaseRow(
            experiment=experiment.id,
            name=phase.name,
            position=position,
            steps=phase.steps,
            state=PhaseState.PENDING,
            init_from=phase.init_from,
        )
        for position, phase in enumerate(plan.phases)
    ]
    deed.session.add(experiment)
    deed.session.flush()  # rows that refer to it come after
    deed.session.add_all(phases)
    record_event(deed, experiment, "experiment.state", state=experiment.state, plan=plan.name)
    inherited = origin.verdicts if origin is not None else {}
    for phase in phases[: len(inherited)]:
        phase.verdict = inherited[phase.name]
        move_phase(deed, experiment, phase, PhaseEvent.INHERIT)
    point = origin.point if origin is not None else None
    run = start_phase(deed, experiment, phases[len(inherited)], point)
    if origin is not None:
        source = lock_experiment(deed, origin.experiment)
        record_event(deed, source, "experiment.continued", phase=origin.phase, by=experiment.id)
    return Created(experiment=experiment, phases=phases, run=run)
