"""What a new experiment takes over from another one: phases, a checkpoint, the frozen identity.

`origin: EXPERIMENT:PHASE` does not run the earlier phases again. PHASE resumes from the last
durable checkpoint that it has there (`@STEP`: from that one; `@0`: from its start). Every earlier
phase must have passed there by its evidence, must have settled its conditions, and must be ordered
exactly as there. Code, torch and devices must be the frozen ones.
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
from gonogo.judge.follow_up.decide import asks_approval
from gonogo.judge.follow_up.reruns import keeps_checkpoints
from gonogo.judge.gate.conditions import experiment_verdict, is_approval, met_beyond
from gonogo.planning.resolve import ResolvedPlan, build_order
from service.db.schema import ExperimentRow, PhaseRow, RunRow
from service.experiments.advance import patch_of, resolved_of
from service.experiments.awaited import begins_anew
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
from service.experiments.overview import load_decided
from service.queries.experiments import load_experiment, phases_of, runs_of
from service.queries.runs import load_attempts, load_progress

_TAKEN_OVER = (PhaseState.PASSED, PhaseState.INHERITED)
_NOT_COMPARED = ("phases_after", "nodes", "cluster")
"""Fields of an order about later phases and about hosts."""
_OF_MODEL = frozenset({"params", "dim", "layers", "heads", "groups", "vocab"})
_OF_DATA = frozenset({"dataset", "seq_len", "tokens_per_step"})
_TOLD_ELSEWHERE = frozenset({"params", "loader"})
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
    """Code identity that the other experiment froze."""
    host: str | None = None
    """Host that wrote the checkpoint."""

    def view(self) -> OriginView:
        """Return the origin as the new experiment shows it."""
        step = self.point.step if self.point is not None else 0
        return OriginView(experiment=self.experiment, phase=self.phase, step=step, host=self.host)


def load_origin(session: Session, text: str, resolved: ResolvedPlan) -> Origin:
    """Return what a submission takes over.

    Checkpoints are read to their end, which takes long: do not hold a writing transaction.

    Args:
        session: for reading.
        text: `EXPERIMENT:PHASE`, `…@STEP`; the experiment's id.
        resolved: the plan that is submitted.

    Raises:
        Rejected: a wrong form, an unknown phase, or something to take over that was not shown.
        NotFound: there is no such experiment.
        Conflict: it has not finished.
    """
    name, phase, step = _parsed(text)
    source = load_experiment(session, name)
    if source.state != ExperimentState.FINISHED:
        raise Conflict(
            f"{source.id} is {source.state}; what goes on elsewhere must have ended "
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
    if point is not None and point.step:
        runs = reversed(runs_of(session, source.id, phase))
        made = next((run for run in runs if wrote(run, point)), None)
        told = {} if made is None else load_progress(session, made.id).identity or {}
        differing = _other_work(_order(resolved_of(source), phase, made), told, resolved, phase)
        if differing:
            raise _rejected(
                f"{phase} is other work than in {source.id} ({', '.join(differing)}), so its "
                f"checkpoints do not fit; {source.id}:{phase}@0 begins it anew"
            )
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
    """Yield what the other experiment has not shown about the phases to take over."""
    overrides = load_decided(session, [source.id])[source.id].overrides
    by_hand = {row.phase for row in overrides}
    for phase in before:
        again = f"begin with it: {_again(session, source, phase)}"
        row = there.get(phase)
        if row is None:
            yield f"{source.id} has no phase {phase}; submit this plan without an origin"
        elif row.state not in _TAKEN_OVER:
            yield f"{phase} is {row.verdict or row.state} in {source.id}, not passed; {again}"
        elif phase in by_hand:
            yield f"{phase} was decided by hand in {source.id}; {again}"
        own = [row for row in conditions if row.id.partition(":")[0] == phase]
        yield from (f"{text}; {again}" for text in _not_settled(own, source.id, before))


def _not_settled(
    conditions: Sequence[Condition], where: str, before: Sequence[str]
) -> Iterator[str]:
    """Yield the conditions of a phase that the phases to take over have not settled, and why."""
    beyond = met_beyond(conditions, before)
    for row in conditions:
        if row.state in (ConditionState.OPEN, ConditionState.MISSED):
            yield f"condition {row.id} is {row.state} in {where}"
        elif row in beyond:
            met = f"condition {row.id} was met in {where} by {row.evidence_from}"
            yield f"{met}, which is made anew"


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

    An approval was given if a person met it, or if the following phase ran there though the plan
    there asked for it. A waived approval is none.
    """
    names = [row.name for row in plan.phases]
    old = resolved_of(source).parsed()
    for name, following in pairwise(names[: names.index(phase) + 1]):
        last = there.get(name)
        if last is None or last.state not in _TAKEN_OVER:
            continue
        if not asks_approval(plan, name, last.verdict):
            continue
        after = there.get(following)
        ran = after is not None and after.state == PhaseState.INHERITED
        ran = ran or bool(runs_of(session, source.id, following))
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
    """Yield the phases to take over that the new plan orders differently.

    A phase that passed under a patch (a remedy, a variant) was ordered with it. A new plan may
    allow more drift.
    """
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
    """Return the order of a phase; with a `run`, under its patches."""
    change = None if run is None else patch_of(run.change, run.carried)
    order = build_order(
        resolved, phase, experiment="exp", run="run", token=0, change=change
    ).document()
    kept = {name: value for name, value in order.items() if name not in _NOT_COMPARED}
    return {**kept, "plan_digest": "", "plan": ""}  # both are about the later phases too


def _differing(one: Any, other: Any, path: str = "") -> list[str]:
    """Return the paths at which two documents differ."""
    if isinstance(one, dict) and isinstance(other, dict):
        return [
            row
            for name in sorted({*one, *other})
            for row in _differing(one.get(name), other.get(name), f"{path}.{name}".lstrip("."))
        ]
    return [] if one == other else [path]


def _made_as_ordered(old: ResolvedPlan, new: ResolvedPlan, phase: str) -> Callable[[RunRow], bool]:
    """Return a function that says whether a run was made as the new plan orders it.

    A run under a patch (a remedy, a variant) was not, unless the new plan says the same.
    """

    def is_so(run: RunRow) -> bool:
        if not run.change and not run.carried:
            return True
        if run.dir is None:
            return False
        plain, made, wanted = _order(old, phase), _order(old, phase, run), _order(new, phase)
        changed = [row for row in _differing(plain, made) if row.partition(".")[0] != "identity"]
        other = _differing(made, wanted)
        return not any(
            f"{one}.".startswith(f"{two}.") or f"{two}.".startswith(f"{one}.")
            for one in changed
            for two in other
        )

    return is_so


def _other_work(
    one: Mapping[str, Any], told: Mapping[str, Any], new: ResolvedPlan, phase: str
) -> list[str]:
    """Return the paths in which a phase's work differs, as far as a checkpoint holds it.

    These are the first weights and the size of the model. For our trainer, all that it refuses to
    resume with; for another program, its data and tokens a step.

    Args:
        one: order of the run that wrote the checkpoint.
        told: identity that the run reported; it counts where nothing was ordered.
        new: the plan that is submitted.
        phase: the phase to resume.
    """
    other = _order(new, phase)
    plan = new.parsed()
    begun = ["init_from"] if one["init_from"] != other["init_from"] else []
    sizes = [row for row in _differing(one["identity"], other["identity"]) if row in _OF_MODEL]
    if plan.ours:
        trained = [
            row
            for row in _differing(one["train"], other["train"])
            if row not in _TOLD_ELSEWHERE and not keeps_checkpoints(plan, {"train": _patch(row)})
        ]
        return [*begun, *sizes, *trained]
    before = {name: told.get(name) for name in _OF_DATA if other["identity"][name] is not None}
    before |= {name: row for name, row in one["identity"].items() if row is not None}
    fed = [row for row in _differing(before, other["identity"]) if row in _OF_DATA]
    return [*begun, *sizes, *fed]


def _patch(path: str) -> dict[str, Any]:
    """Return a patch that changes the value at a path."""
    section, dot, key = path.partition(".")
    return {section: {key: None} if dot else None}


def _point(
    session: Session,
    source: ExperimentRow,
    phase: str,
    step: int | None,
    resolved: ResolvedPlan,
) -> ResumePoint | None:
    """Return the checkpoint from which a phase resumes.

    Raises:
        Rejected: no durable checkpoint of the asked step, or no step after it.
    """
    found: ResumePoint | None
    wanted = resolved.parsed().phase(phase)
    made_by = _made_as_ordered(resolved_of(source), resolved, phase)
    if step is None:
        points = load_resume_points(session, source, phase, unpassed=True, made_by=made_by)
        found = points.get(phase)
    elif step == 0:
        found = load_weights(session, source, wanted.init_from)
    else:
        runs = [run for run in runs_of(session, source.id, phase) if made_by(run)]
        found = _durable_at(session, source, runs, step)
        if found is None:
            own = {row.step for run in runs for row in durable_checkpoints(session, run)}
            there = ", ".join(map(str, sorted(own | _begun_from(session, source, runs).keys())))
            raise _rejected(
                f"no durable checkpoint of {phase} at step {step}; there are: {there or 'none'} "
                "(without those of a remedy or a variant that the plan does not say)"
            )
    if found is not None and found.step >= wanted.steps:
        raise _rejected(
            f"{phase} ends at step {wanted.steps}; {found.step} are done already; "
            f"{source.id}:{phase}@0 begins it anew"
        )
    return found


def _durable_at(
    session: Session, source: ExperimentRow, runs: Sequence[RunRow], step: int
) -> ResumePoint | None:
    """Return the durable checkpoint of a step, without reading others, which may be large."""
    for run in reversed(runs):
        found = next(durable_checkpoints(session, run, step + 1, since=step), None)
        if found is not None:
            return found
    return _begun_from(session, source, runs).get(step)


def _begun_from(
    session: Session, source: ExperimentRow, runs: Sequence[RunRow]
) -> dict[int, ResumePoint]:
    """Return step → durable checkpoint from which a run resumed, perhaps of another experiment."""
    attempts, taken_over = runs_of(session, source.id), host_of_origin(source)
    began = [run.resume_from for run in runs if run.resume_from and run.resume_from.step]
    return {row.step: row for row in began if is_durable(row, attempts, taken_over)}
