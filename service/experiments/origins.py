"""What a new experiment takes over from another one: phases, a checkpoint, the frozen identity.

PHASE of `origin: EXPERIMENT:PHASE` resumes from the last durable checkpoint that it has there
(`@STEP`: from that one; `@0`: from its start). Every earlier phase must have passed there by its
evidence, with no open condition, ordered exactly as now. The frozen identity comes along.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from sqlalchemy.orm import Session

from gonogo.contract.api import OriginView
from gonogo.contract.decision import Condition, ConditionState, Verdict
from gonogo.contract.errors import Conflict, Problem, Rejected, hint
from gonogo.contract.lifecycle import ExperimentState, PhaseState
from gonogo.contract.order import ResumePoint
from gonogo.contract.plan import Plan
from gonogo.judge.follow_up.decide import asks_approval, keeps_checkpoints
from gonogo.judge.gate.conditions import experiment_verdict, is_approval, met_beyond
from gonogo.planning.resolve import ResolvedPlan, build_order
from service.db.schema import ExperimentRow, PhaseRow, RunRow
from service.experiments.advance import patch_of, resolved_of
from service.experiments.checkpoints import (
    durable_checkpoints,
    host_of,
    host_of_origin,
    is_durable,
    load_resume_points,
    load_weights,
    wrote,
)
from service.experiments.decisions import load_conditions
from service.experiments.state import begins_anew, load_decided
from service.queries.experiments import load_experiment, phases_of, runs_of
from service.queries.runs import load_attempts, load_progress

_TAKEN_OVER = (PhaseState.PASSED, PhaseState.INHERITED)
_NOT_COMPARED = ("phases_after", "nodes", "cluster", "plan", "plan_digest")
"""Fields of an order about later phases and about hosts."""
_OF_MODEL = ("params", "dim", "layers", "heads", "groups", "vocab")
_OF_DATA = ("dataset", "seq_len", "tokens_per_step")
_TOLD_ELSEWHERE = ("params", "loader")
"""Sections of `train` that are part of the identity, or that never change a checkpoint."""
_FORM = "expected EXPERIMENT:PHASE, EXPERIMENT:PHASE@STEP or EXPERIMENT:PHASE@0 (from its start)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """What is taken over, and from which experiment."""

    experiment: str
    phase: str
    point: ResumePoint | None
    """Checkpoint from which the phase resumes; None: it starts from the beginning."""
    verdicts: Mapping[str, Verdict | None]
    """Phase that is not run again → its verdict there."""
    frozen: Mapping[str, Any]
    host: str | None = None

    def view(self) -> OriginView:
        """Return the origin as the new experiment shows it."""
        step = self.point.step if self.point is not None else 0
        return OriginView(experiment=self.experiment, phase=self.phase, step=step, host=self.host)


def load_origin(session: Session, text: str, resolved: ResolvedPlan) -> Origin:
    """Return what a submission takes over.

    Checkpoints are read to their end, which takes long: do not hold a writing transaction.
    """
    name, phase, step = _parsed(text)
    source = load_experiment(session, name)
    if source.state != ExperimentState.FINISHED:
        raise Conflict(
            f"{source.id} is {source.state}; what continues elsewhere must have ended "
            f"(gonogo cancel {source.id})",
            state=source.state,
            allowed=("cancel",),
        )
    plan = resolved.parsed()
    names = [row.name for row in plan.phases]
    there = {row.name: row for row in phases_of(session, source.id)}
    for known, whose in ((names, "the plan"), (there, source.id)):
        if phase not in known:
            raise _rejected(f"{whose} has no phase {phase!r}; {hint(phase, known)}")
    before = names[: names.index(phase)]
    conditions = [row.condition for row in load_conditions(session, source.id)]
    problems = [
        *_not_shown(session, source, before, there, conditions),
        *_not_approved(session, source, plan, phase, there, conditions),
        *_ordered_otherwise(session, source, resolved, before),
    ]
    if problems:
        raise _rejected(*problems)
    point = _point(session, source, phase, step, resolved)
    host = point and (host_of(point, runs_of(session, source.id)) or host_of_origin(source))
    return Origin(
        experiment=source.id,
        phase=phase,
        point=point,
        verdicts={row: experiment_verdict({row: there[row].verdict}, conditions) for row in before},
        frozen=dict(source.frozen),
        host=host.name if host else None,
    )


def _parsed(text: str) -> tuple[str, str, int | None]:
    name, colon, rest = text.partition(":")
    phase, at, step = rest.partition("@")
    if not (name and colon and phase) or (at and not step.isdecimal()):
        raise _rejected(f"found {text!r}; {_FORM}")
    return name, phase, int(step) if at else None


def _rejected(*texts: str) -> Rejected:
    problems = tuple(Problem(path="origin", message=text) for text in texts)
    return Rejected(f"origin: {'; '.join(texts)}", problems=problems)


def _not_shown(
    session: Session,
    source: ExperimentRow,
    before: Sequence[str],
    there: Mapping[str, PhaseRow],
    conditions: Sequence[Condition],
) -> Iterator[str]:
    by_hand = {row.phase for row in load_decided(session, [source.id])[source.id].overrides}
    beyond = met_beyond(conditions, before)
    for phase in before:
        again = f"begin with it: {_again(session, source, phase)}"
        row = there.get(phase)
        if row is None:
            yield f"{source.id} has no phase {phase}; submit this plan without an origin"
        elif row.state not in _TAKEN_OVER:
            yield f"{phase} is {row.verdict or row.state} in {source.id}, not passed; {again}"
        elif phase in by_hand:
            yield f"{phase} was decided by hand in {source.id}; {again}"
        for condition in conditions:
            if condition.id.partition(":")[0] != phase:
                continue
            if condition.state in (ConditionState.OPEN, ConditionState.MISSED):
                yield f"condition {condition.id} is {condition.state} in {source.id}; {again}"
            elif condition in beyond:
                met = f"condition {condition.id} was met in {source.id} by"
                yield f"{met} {condition.evidence_from}, which runs again; {again}"


def _again(session: Session, source: ExperimentRow, phase: str) -> str:
    """Return the origin that runs a phase again; from its start if it reached its end."""
    anew = begins_anew(runs_of(session, source.id, phase))
    return f"{source.id}:{phase}" + ("@0" if anew else "")


def _not_approved(
    session: Session,
    source: ExperimentRow,
    plan: Plan,
    phase: str,
    there: Mapping[str, PhaseRow],
    conditions: Sequence[Condition],
) -> Iterator[str]:
    """Yield the phases up to the resumed one whose approval nobody gave there.

    It was given if a person met it, or if the following phase ran there though the plan asked.
    """
    names = [row.name for row in plan.phases]
    old = resolved_of(source).parsed()
    for name, following in pairwise(names[: names.index(phase) + 1]):
        last, after = there.get(name), there.get(following)
        if last is None or last.state not in _TAKEN_OVER:
            continue
        if not asks_approval(plan, name, last.verdict):
            continue
        inherited = after is not None and after.state == PhaseState.INHERITED
        ran = inherited or bool(runs_of(session, source.id, following))
        met = any(
            is_approval(row) and row.due == following and row.state is ConditionState.MET
            for row in conditions
        )
        if not met and not (ran and asks_approval(old, name, last.verdict)):
            yield (
                f"{following} waits for an approval after {name}, and nobody gave it in"
                f" {source.id}; begin with it: {_again(session, source, name)}"
            )


def _ordered_otherwise(
    session: Session, source: ExperimentRow, new: ResolvedPlan, before: Iterable[str]
) -> Iterator[str]:
    """Yield the phases to take over that the new plan orders differently, but for more drift."""
    old = resolved_of(source).parsed()
    known = {row.name for row in old.phases}
    may_drift = set(old.allow_drift) <= set(new.parsed().allow_drift)
    for phase in before:
        if phase not in known:
            continue
        passed = [row.run for row in load_attempts(session, source.id, phase) if row.passed]
        run = session.get_one(RunRow, passed[-1]) if passed else None
        fields = _differing(_order(resolved_of(source), phase, run), _order(new, phase))
        told = ", ".join(row for row in fields if row != "allow_drift" or not may_drift)
        if told:
            yield f"{phase} is ordered otherwise than there ({told}); begin with it: {phase}"


def _order(resolved: ResolvedPlan, phase: str, run: RunRow | None = None) -> dict[str, Any]:
    change = None if run is None else patch_of(run.change, run.carried)
    order = build_order(
        resolved, phase, experiment="exp", run="run", token=0, change=change
    ).document()
    return {name: value for name, value in order.items() if name not in _NOT_COMPARED}


def _differing(one: Any, other: Any, path: str = "") -> list[str]:
    if isinstance(one, dict) and isinstance(other, dict):
        return [
            row
            for name in sorted({*one, *other})
            for row in _differing(one.get(name), other.get(name), f"{path}.{name}".lstrip("."))
        ]
    return [] if one == other else [path]


def _made_as_ordered(old: ResolvedPlan, new: ResolvedPlan, phase: str) -> Callable[[RunRow], bool]:
    """Return a function that says whether a run, with its patch, was made as the new plan says."""

    def is_so(run: RunRow) -> bool:
        if not run.change and not run.carried:
            return True
        plain, made, wanted = _order(old, phase), _order(old, phase, run), _order(new, phase)
        patched = [name for name in made if plain.get(name) != made[name] and name != "identity"]
        return all(made[name] == wanted.get(name) for name in patched)

    return is_so


def _other_work(
    old: ResolvedPlan, made: RunRow | None, told: Mapping[str, Any], new: ResolvedPlan, phase: str
) -> list[str]:
    """Return what differs in a phase's work, as far as a checkpoint holds it.

    These are the first weights and the size of the model. For our trainer, all that it refuses to
    resume with; for another program, its data and tokens a step. What a run reported counts where
    nothing was ordered.
    """
    one, other, plan = _order(old, phase, made), _order(new, phase), new.parsed()
    found = [] if one["init_from"] == other["init_from"] else ["init_from"]
    was, wanted = one["identity"], other["identity"]
    found += [name for name in _OF_MODEL if was[name] != wanted[name]]
    if plan.ours:
        for path in _differing(one["train"], other["train"]):
            section, _, key = path.partition(".")
            patch = {section: {key: None} if key else None}
            if path not in _TOLD_ELSEWHERE and not keeps_checkpoints(plan, {"train": patch}):
                found.append(path)
        return found
    for name in _OF_DATA:
        known = told.get(name) if was[name] is None and wanted[name] is not None else was[name]
        if known != wanted[name]:
            found.append(name)
    return found


def _point(
    session: Session, source: ExperimentRow, phase: str, step: int | None, resolved: ResolvedPlan
) -> ResumePoint | None:
    """Return the checkpoint from which a phase resumes."""
    wanted, old = resolved.parsed().phase(phase), resolved_of(source)
    if step == 0:
        return load_weights(session, source, wanted.init_from)
    made_by = _made_as_ordered(old, resolved, phase)
    found: ResumePoint | None
    if step is None:
        points = load_resume_points(session, source, phase, unpassed=True, made_by=made_by)
        found = points.get(phase)
    else:
        found = _durable_at(
            session, source, filter(made_by, runs_of(session, source.id, phase)), step
        )
        if found is None:
            raise _rejected(
                f"no durable checkpoint of {phase} at step {step} "
                "(without those of a remedy or a variant that the plan does not say)"
            )
    if found is None or not found.step:
        return found
    anew = f"{source.id}:{phase}@0 begins it anew"
    if found.step >= wanted.steps:
        raise _rejected(f"{phase} ends at step {wanted.steps}; {found.step} are done; {anew}")
    runs = reversed(runs_of(session, source.id, phase))
    made = next((run for run in runs if wrote(run, found)), None)
    told = {} if made is None else load_progress(session, made.id).identity or {}
    differing = ", ".join(_other_work(old, made, told, resolved, phase))
    if differing:
        raise _rejected(
            f"{phase} is other work than in {source.id} ({differing}), so its checkpoints do not"
            f" fit; {anew}"
        )
    return found


def _durable_at(
    session: Session, source: ExperimentRow, runs: Iterable[RunRow], step: int
) -> ResumePoint | None:
    """Return the durable checkpoint of a step: one of these runs, or one that they began from."""
    attempts = runs_of(session, source.id)
    for run in reversed(list(runs)):
        found = next(durable_checkpoints(session, run, step + 1, since=step), None)
        began = run.resume_from
        if found is None and began is not None and began.step == step:
            found = began if is_durable(began, attempts, host_of_origin(source)) else None
        if found is not None:
            return found
    return None
