"""How an experiment stands: what is decided, what is asked, why it is not GO, how long it takes.

The measurements of a forecast come from one rank of each run.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby
from operator import attrgetter

from sqlalchemy.orm import Session

from gonogo.contract.api import Forecast, OverrideView
from gonogo.contract.decision import PASSING, Cause, Condition, Decision, DecisionKind, Verdict
from gonogo.contract.errors import Rejected
from gonogo.contract.facts import Facts
from gonogo.contract.lifecycle import ExperimentState, PhaseState, RunState
from gonogo.contract.order import RunReason
from gonogo.contract.outcome import OutcomeClass, OutcomeCode
from gonogo.contract.records import ExitRecord
from gonogo.goodput.account import RankAccount
from gonogo.judge.follow_up.explanation import TORCHRUN_LOG, cause_of, describe_cause
from gonogo.judge.follow_up.forecast import (
    Ahead,
    Measured,
    build_forecast,
    measure,
)
from gonogo.judge.follow_up.summary import Said, overrides_of
from gonogo.judge.gate.conditions import all_met, approval_condition, has_expired
from gonogo.judge.gate.verdict import Judgement
from gonogo.ledger.recorded import parse_decision
from gonogo.rundir import TAIL_BYTES
from service.db.columns import Awaited, AwaitedKind, StopKind
from service.db.schema import DecisionRow, ExperimentRow, PhaseRow, ProgressRow, RunRow
from service.evidence.files import load_log
from service.evidence.series import load_account
from service.queries.experiments import load_documents, load_outlines
from service.queries.runs import load_findings

GOING_ON = frozenset({RunReason.RESUME.value, RunReason.TAKEOVER.value})
"""Reasons of attempts that resume where the one before them stopped."""
NO_CHECKPOINT = ", from its beginning: no durable checkpoint is known"
ANSWERS = (RunReason.CONFIRM, RunReason.REMEDY)
"""Reasons of runs that answer a failure, perhaps under a patch."""


def open_approval(experiment: ExperimentRow) -> Condition | None:
    """Return the approval that an experiment waits for, as the open condition that it is."""
    awaited = experiment.awaiting
    if awaited is None or awaited.kind is not AwaitedKind.APPROVAL or not awaited.following:
        return None
    return approval_condition(awaited.phase, awaited.following)


def clock_of(awaited: Awaited, now: float) -> tuple[float | None, float]:
    """Return for how many seconds an approval is awaited, and for how many it was at `now`."""
    waited_s = max(0.0, round(now - (awaited.asked_at or 0.0), 3))
    return awaited.expires_s, waited_s


def is_expired(experiment: ExperimentRow, now: float) -> bool:
    """Say whether the awaited approval can be given no more at `now`, Unix seconds."""
    if open_approval(experiment) is None or experiment.awaiting is None:
        return False
    return has_expired(*clock_of(experiment.awaiting, now))


def expires_at(experiment: ExperimentRow) -> float | None:
    """Return when the awaited approval expires, Unix seconds; None: never, or none is awaited."""
    awaited = experiment.awaiting
    if awaited is None or open_approval(experiment) is None or awaited.expires_s is None:
        return None
    return (awaited.asked_at or 0.0) + awaited.expires_s


def is_owed(run: RunRow) -> bool:
    """Say whether a run has ended and cannot be judged, since nobody sends the rest of it."""
    ended = run.state == RunState.ENDED and not run.judged and not run.given_up
    return ended and run.lost


def went_to_its_end(run: RunRow) -> bool:
    """Say whether a run went to its last step: nothing is left to continue after it."""
    return run.outcome is not None and run.outcome.code is OutcomeCode.COMPLETED


def last_tried(runs: Sequence[RunRow]) -> RunRow | None:
    """Return the last of these runs that began and has ended, if there is one.

    One that was ended in the queue has left nothing, and says nothing of those before it.
    """
    return next((run for run in reversed(runs) if run.outcome and run.started_at is not None), None)


def last_judged(runs: Sequence[RunRow]) -> RunRow | None:
    """Return the last tried run, or the failure that it confirms if it did not pass."""
    last = last_tried(runs)
    if last is None or last.reason != RunReason.CONFIRM or last.verdict in PASSING:
        return last
    before = [row for row in runs if row.phase == last.phase and row.reason != RunReason.CONFIRM]
    return last_tried(before) or last


def begins_anew(runs: Sequence[RunRow]) -> bool:
    """Say whether a phase with these runs starts from the beginning in a continuing experiment.

    Its last run reached its end, or the last run without a patch did. A plan without the patch does
    not continue from checkpoints of a remedy or a variant.
    """
    planned = [run for run in runs if run.reason not in ANSWERS or not run.change]
    return any(last and went_to_its_end(last) for last in map(last_tried, (runs, planned)))


def has_not_passed(run: RunRow) -> bool:
    """Say whether a run went to its last step, was judged, and did not pass with all of its gate.

    A resume from its checkpoint would show the last steps alone, and the gate is for all steps.
    """
    return went_to_its_end(run) and run.judged and run.verdict is not Verdict.GO


def verbs_of(
    experiment: ExperimentRow,
    phases: Sequence[PhaseRow],
    runs: Sequence[RunRow],
    now: float | None = None,
) -> tuple[str, ...]:
    """Return what can be asked of an experiment; without `now`, an approval is never too late."""
    state = experiment.state
    run = next((row for row in reversed(runs) if row.state != RunState.ENDED), None)
    held = run is not None and run.state != RunState.QUEUED
    with_worker = ("takeover",) if held or any(map(is_owed, runs)) else ()
    if state in (ExperimentState.QUEUED, ExperimentState.RUNNING):
        return ("halt", "cancel", *with_worker)
    if state == ExperimentState.STOPPING:
        stop = experiment.stop
        halts = stop is not None and stop.kind is StopKind.HALT
        again = (stop.kind.value,) if held and stop is not None and not stop.again else ()
        return (*again, *(("cancel",) if halts else ()), *with_worker)
    if state == ExperimentState.FINISHED:
        return ("override",)
    if experiment.awaiting is not None and experiment.awaiting.kind is AwaitedKind.APPROVAL:
        late = now is not None and is_expired(experiment, now)
        return (*(() if late else ("promote",)), "override", "cancel")
    is_open = any(phase.state == PhaseState.ACTIVE for phase in phases)
    if is_open and runs and has_not_passed(runs[-1]):
        return ("rerun", "override", "cancel")
    return (*(("rerun", "resume") if is_open else ()), "override", "cancel")


_TRAINS = (RunState.RUNNING, RunState.HALTING)


@dataclass(slots=True, kw_only=True)
class Decided:
    """What the decisions of one experiment come to."""

    overrides: list[OverrideView] = field(default_factory=list)
    judged: list[DecisionRow] = field(default_factory=list)
    """The last automatic decision of each phase, in their order."""
    last: str | None = None


def load_decided(session: Session, experiments: Sequence[str]) -> dict[str, Decided]:
    """Return what the decisions of each experiment come to."""
    rows = load_outlines(session, experiments)
    by_hand = load_documents(session, [row.id for row in rows if row.kind != DecisionKind.AUTO])
    wholes = {name: parse_decision(text).decision for name, text in by_hand.items()}
    found: dict[str, Decided] = {name: Decided() for name in experiments}
    for name, together in groupby(rows, key=attrgetter("experiment")):
        one, own = found[name], list(together)
        one.overrides = overrides_of(
            wholes.get(row.id)
            or Said(id=row.id, kind=row.kind, phase=row.phase, verdict=row.verdict)
            for row in own
        )
        one.judged = _judged(own)
        one.last = own[-1].id
    return found


def decision_about(decisions: Sequence[Decision], run: str) -> Decision | None:
    """Return the last decision about a run that looked at criteria, if there is one."""
    return next((row for row in reversed(decisions) if row.run == run and row.criteria), None)


def _judged(rows: Sequence[DecisionRow]) -> list[DecisionRow]:
    last: dict[str, DecisionRow] = {}
    for row in rows:
        if row.kind == DecisionKind.AUTO and row.phase is not None:
            last.pop(row.phase, None)
            last[row.phase] = row
    return list(last.values())


def standing_cause(
    decided: Decided, runs: Sequence[RunRow], conditions: Sequence[Condition]
) -> Cause | None:
    """Return what the evidence says against an experiment, with its phase; None: nothing.

    That is the cause of the last phase whose decision is not GO and that left something unmet, or
    the failure of a newer run. While a phase trains, its earlier attempts do not count.
    """
    tried = runs[-1].phase if runs and runs[-1].state in _TRAINS else None
    judged = [row for row in decided.judged if row.phase != tried]
    left: dict[str, list[Condition]] = {}
    for condition in conditions:
        left.setdefault(condition.id.partition(":")[0], []).append(condition)
    bad = [row for row in judged if row.cause and not all_met(left.get(row.phase or "", ()))]
    latest = max((row.at for row in judged), default=float("-inf"))
    ended = [run for run in runs if run.outcome and (run.ended_at or 0.0) > latest]
    if ended and ended[-1].phase == runs[-1].phase != tried:
        outcome = ended[-1].outcome
        if outcome is not None and outcome.klass is not OutcomeClass.SUCCESS:
            return Cause(text=f"{ended[-1].phase}: {cause_of([], outcome, [])}")
    if not bad or bad[-1].cause is None:
        return None
    return bad[-1].cause.model_copy(update={"text": f"{bad[-1].phase}: {bad[-1].cause.text}"})


def load_cause(session: Session, run: RunRow, judgement: Judgement, facts: Facts) -> Cause | None:
    """Return why the verdict on an ended run is not GO; None for a GO."""
    order = run.order or {}

    def read_tail(name: str) -> str:
        rank = None if name == TORCHRUN_LOG else int(name.removeprefix("rank").removesuffix(".log"))
        text = load_log(session, run.id, rank, 100_000, 0).text  # TAIL_BYTES is the bound
        return text.encode()[-TAIL_BYTES:].decode(errors="replace")

    return describe_cause(
        judgement.verdict,
        load_findings(session, run.id),
        run.outcome,
        judgement.criteria,
        diagnosis=judgement.diagnosis,
        exits=ExitRecord.model_validate(run.exit).ranks if run.exit else {},
        read_tail=read_tail,
        ranks_per_log=int(order["world_size"]) // int(order.get("nodes") or 1)
        if order.get("command")
        else 0,
    )


_WINDOW = 64
_RUNS = 3
_LONGEST_START_S = 7_200.0
CLAIMED_LABEL = "claimed_seconds"
"""Label that says what somebody promised, shown beside the forecast (R18)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Living:
    """The active run, or one that has ended and is not judged yet."""

    row: RunRow
    step: int
    heard_at: float | None
    """Time of its newest line, in Unix seconds of its host."""
    told: RankAccount | None
    """What its lowest rank has reported; None: nothing was heard."""
    measured: Measured | None


def check_labels(labels: dict[str, str]) -> None:
    """Refuse a claim that is no number."""
    if CLAIMED_LABEL in labels and _number(labels, CLAIMED_LABEL) is None:
        found = labels[CLAIMED_LABEL]
        raise Rejected(f"label {CLAIMED_LABEL}: found {found!r}; expected a positive number")


def claimed_s(experiment: ExperimentRow) -> float | None:
    """Return the duration that a label claims for the whole experiment; None: no label."""
    return _number(experiment.labels, CLAIMED_LABEL)


def load_forecast(
    session: Session,
    experiment: ExperimentRow,
    phases: Sequence[PhaseRow],
    runs: Sequence[RunRow],
) -> Forecast:
    """Return how long the phases that are not over take; `runs` are the oldest first."""
    claimed = claimed_s(experiment)
    if experiment.state == ExperimentState.STOPPING:  # its ranks leave: nobody makes these steps
        return Forecast(basis="it is being stopped", claimed_seconds=claimed)
    living = _load_living(session, runs)
    ahead = [
        _ahead(phase, living)
        for phase in phases
        if phase.state in (PhaseState.PENDING, PhaseState.ACTIVE)
    ]
    ended = [
        known
        for run in runs
        if run.state == RunState.ENDED
        if (known := _measured(run, load_account(session, run.id))) is not None
    ]
    measured = None if living is None else living.measured
    return build_forecast(ahead, ended[-_RUNS:], measured, claimed_seconds=claimed)


def _load_living(session: Session, runs: Sequence[RunRow]) -> _Living | None:
    row = next((run for run in runs if run.state != RunState.ENDED), None)
    if row is None and runs and not runs[-1].judged:
        row = runs[-1]
    if row is None:
        return None
    queued = row.state == RunState.QUEUED  # then nothing was heard of it
    progress = None if queued else session.get(ProgressRow, row.id)
    told = None if queued else load_account(session, row.id)
    resumed = row.resume_from.step if row.resume_from else 0
    return _Living(
        row=row,
        step=max(resumed, progress.step if progress else 0),
        heard_at=progress.heartbeat_at if progress else None,
        told=told,
        measured=_measured(row, told),
    )


def _measured(run: RunRow, told: RankAccount | None) -> Measured | None:
    if told is None:
        return None
    times_s = list(told.stream.pace.times_s)[-_WINDOW:]
    first, last, mean_s, steps = told.first, told.last, 0.0, 0
    if first is not None and last is not None and told.boots == 1 and last.step > first.step:
        steps = last.step - first.step
        mean_s = (last.at_s - first.at_s) / steps
    return measure(times_s, mean_s, max(steps, len(times_s)), _start_s(run, told))


def _start_s(run: RunRow, told: RankAccount) -> float | None:
    """Return the seconds from a run's claim to its first step's end; None where clocks disagree."""
    if told.first is None or told.first_ts is None or run.claimed_at is None or run.resume_from:
        return None
    start_s = told.first_ts + told.first.at_s - run.claimed_at
    return start_s if 0 < start_s < _LONGEST_START_S else None


def _ahead(phase: PhaseRow, living: _Living | None) -> Ahead:
    if living is None or living.row.phase != phase.name:
        return Ahead(steps=phase.steps)
    left = max(0, phase.steps - living.step)
    if living.told is not None and living.told.first is not None:
        return Ahead(steps=left, begun_s=None)
    claimed, heard = living.row.claimed_at, living.heard_at
    begun_s = 0.0 if claimed is None or heard is None else max(0.0, heard - claimed)
    return Ahead(steps=left, begun_s=begun_s)


def _number(labels: dict[str, str], name: str) -> float | None:
    try:
        found = float(labels[name])
    except (KeyError, ValueError):
        return None
    return found if 0 < found < math.inf else None
