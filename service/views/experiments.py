"""Experiments as REST shows them: with phases, conditions, forecast and next steps."""

import re
import shlex
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain

from gonogo.contract.api import CampaignPlace, ExperimentView, Forecast, NextStep, PhaseView
from gonogo.contract.decision import Cause, Condition, ConditionState, Verdict
from gonogo.contract.lifecycle import ExperimentState, PhaseState, RunState
from gonogo.contract.outcome import OutcomeCode
from gonogo.contract.plan import DRIFTS
from gonogo.evidence_round import where_it_stood
from gonogo.judge.follow_up.summary import phases_never_ran, summarise
from gonogo.judge.gate.conditions import is_approval
from gonogo.planning.programs import worker_settings
from gonogo.planning.resolve import is_bundled
from service.db.columns import StopKind
from service.db.schema import ConditionRow, ExperimentRow, PhaseRow, RunRow
from service.db.store import Session
from service.experiments.advance import resolved_of
from service.experiments.checkpoints import host_of, host_of_origin
from service.experiments.state import (
    GOING_ON,
    NO_CHECKPOINT,
    Decided,
    begins_anew,
    claimed_s,
    expires_at,
    is_owed,
    last_judged,
    last_tried,
    load_decided,
    load_forecast,
    open_approval,
    standing_cause,
    verbs_of,
)
from service.experiments.submission import Created
from service.experiments.workers import hosts_of, load_waits
from service.queries.experiments import (
    has_plan,
    load_condition_rows,
    load_phases,
    load_seen_runs,
)
from service.queries.runs import load_findings
from service.text import instant
from service.views.rows import view_of

MOST_STEPS = 6
_RANK_LOG = re.compile(r"rank(?P<rank>\d+)\.log")
_OWN = "PLAN"
"""Stands for a plan of a person's own."""
_THROUGH = (PhaseState.PASSED, PhaseState.INHERITED)
_UNMET = (ConditionState.OPEN, ConditionState.MISSED)
_AT_ONCE = "end it at once, without a checkpoint"


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """State of an experiment, as far as what comes next depends on it."""

    row: ExperimentRow
    phases: Sequence[PhaseRow]
    runs: Sequence[RunRow]
    conditions: Sequence[Condition]
    cause: Cause | None
    last_decision: str | None
    settings: Mapping[str, str] = field(default_factory=dict)
    """Environment of a worker that takes the queued run."""
    stack: str | None = None
    """The file of the evidence that shows where the last run hung."""
    by_hand: Collection[str | None] = ()

    def step(self, text: str, *words: str) -> NextStep:
        """Return a command about the experiment."""
        head, *rest = words
        return NextStep(command=shlex.join(["gonogo", head, self.row.id, *rest]), text=text)

    def why(self, text: str, *words: str) -> NextStep:
        """Return a command that wants a reason."""
        return self.step(text, *words, "--reason", "WHY")


def next_steps(place: Place) -> list[NextStep]:
    """Return what can be typed, the likeliest first."""
    verbs = verbs_of(place.row, place.phases, place.runs)
    if place.row.state == ExperimentState.FINISHED:
        steps = _finished(place)
    elif place.row.state == ExperimentState.AWAITING_DECISION:
        steps = _awaiting(place, verbs)
    else:
        steps = _active(place, verbs)
    return list(steps)[:MOST_STEPS]


def _active(place: Place, verbs: Collection[str]) -> Iterator[NextStep]:
    lost = next((run for run in place.runs if run.lost), None)
    if lost is not None and "takeover" in verbs:
        then = "judge it by what is here" if is_owed(lost) else "start the next attempt"
        yield place.why(f"if you know that {hosts_of(lost)} is dead: {then}", "takeover")
    is_queued = any(run.state == RunState.QUEUED for run in place.runs)
    if is_queued:
        having = "" if place.row.needs is None else f" that has {place.row.needs},"
        words = [f"{name}={shlex.quote(value)}" for name, value in sorted(place.settings.items())]
        text = f"start a worker{having} on a host with free devices"
        yield NextStep(command=" ".join([*words, "gonogo worker"]), text=text)
    yield place.step("follow it", "watch")
    stop = place.row.stop.kind.value if place.row.stop is not None else None
    for verb, text in (("halt", "stop it with a checkpoint"), ("cancel", "stop it for good")):
        if verb in verbs and not (is_queued and verb == "halt"):
            yield place.why(_AT_ONCE if stop == verb else text, verb)


def _awaiting(place: Place, verbs: Collection[str]) -> Iterator[NextStep]:
    phase = place.row.awaiting.phase if place.row.awaiting is not None else None
    names = [row.name for row in place.phases]
    after = names[names.index(phase) + 1 :] if phase in names else []
    following = after[0] if after else None
    if "promote" in verbs:
        yield place.why(f"approve: continue with {following or 'its end'}", "promote")
    if "resume" in verbs:
        yield place.step(f"resume {phase} from its last checkpoint, if it saved one", "resume")
    if "rerun" in verbs:
        yield place.step(f"run {phase} again from its start", "rerun")
    for row in place.conditions:
        if row.state is ConditionState.OPEN and row.due == following and not is_approval(row):
            yield _waiver(place, [row])  # else the next phase would miss it
    if "promote" in verbs:
        yield place.why(f"refuse: {phase} is NO_GO by hand", "override", "NO_GO")
    else:
        then = "end it as GO" if following is None else f"continue with {following}"
        yield place.why(f"{then}, by hand", "override", "GO")
        yield place.why("end it as NO_GO, by hand", "override", "NO_GO")
    yield place.why("end it without a verdict", "cancel")


def _waiver(place: Place, conditions: Sequence[Condition]) -> NextStep:
    named = [word for row in conditions for word in ("--condition", row.id)]
    texts = "; ".join(dict.fromkeys(row.text for row in conditions))
    return place.why(f"accept it by hand: {texts}", "override", "CONDITIONAL_GO", *named)


def _finished(place: Place) -> Iterator[NextStep]:
    run, cause = last_judged(place.runs), place.cause
    if run is not None and cause is not None and place.stack is not None:
        command = shlex.join(["gonogo", "artifacts", run.id, place.stack])
        yield NextStep(command=command, text="where it hung")
    elif run is not None and cause is not None and cause.log is not None:
        found = _RANK_LOG.fullmatch(cause.log)
        rank = [] if found is None else ["--rank", found["rank"]]
        command = shlex.join(["gonogo", "logs", run.id, *rank])
        yield NextStep(command=command, text=f"read {cause.log}")
    yield place.step("read the report", "report")
    if place.row.campaign is not None:
        command = f"gonogo campaign show {place.row.campaign}"
        yield NextStep(command=command, text="show the result of its campaign")
    left = [row for row in place.conditions if row.state is ConditionState.OPEN]
    by_person = [row for row in left if row.evidence_from is None]
    if by_person:
        yield _waiver(place, by_person)
    yield from _again(place)
    if place.last_decision is not None:
        check = f"gonogo replay {place.last_decision}"
        yield NextStep(command=check, text="derive the last decision again from its files")


def _again(place: Place) -> Iterator[NextStep]:
    """Yield how a new experiment continues with the first phase that it cannot take over."""
    phase = _first_open(place)
    if phase is None or place.row.campaign is not None:
        return
    anew = begins_anew([run for run in place.runs if run.phase == phase])
    does, start = (f"starts {phase} again", "@0") if anew else (f"continues with {phase}", "")
    plan = _OWN
    if has_plan(place.row) and is_bundled(place.row.plan, place.row.resolved["plan"]):
        plan = place.row.plan
    command = shlex.join(["gonogo", "submit", plan, "--from", f"{place.row.id}:{phase}{start}"])
    yield NextStep(command=command, text=f"after the repair: a new experiment that {does}")
    drifts = _drifts(place)
    if drifts:
        allow = shlex.quote(f"allow_drift=[{','.join(drifts)}]")
        text = "the same, if that may differ (repaired code, another host)"
        yield NextStep(command=f"{command} --set {allow}", text=text)


def _first_open(place: Place) -> str | None:
    """Return the first phase that did not pass by its evidence alone; None: all did."""
    names = [row.name for row in place.phases]
    unpassed = next((row.name for row in place.phases if row.state not in _THROUGH), None)
    if unpassed is None:
        return None
    unsettled = {row.id.partition(":")[0] for row in place.conditions if row.state in _UNMET}
    before = names[: names.index(unpassed)]
    return next((name for name in before if name in unsettled | {*place.by_hand}), unpassed)


def _drifts(place: Place) -> list[str]:
    last = last_tried(place.runs)
    outcome = None if last is None else last.outcome
    if place.cause is None or outcome is None or outcome.code is not OutcomeCode.CONFIG_MISMATCH:
        return []
    differed: list[str] = [name for name in DRIFTS if f" runs {name} " in place.cause.text]
    allowed = place.row.resolved["plan"].get("allow_drift", []) if has_plan(place.row) else []
    return [name for name in DRIFTS if name in differed or name in allowed] if differed else []


def view_experiment(session: Session, row: ExperimentRow) -> ExperimentView:
    """Return an experiment with its phases, conditions and forecast."""
    return view_experiments(session, [row], whole=True)[0]


def view_new(session: Session, new: Created) -> ExperimentView:
    """Return an experiment as it has just been created, without asking the database again."""
    return _view_one(session, new.experiment, new.phases, [new.run], [], Decided(), whole=True)


def view_experiments(
    session: Session, rows: Iterable[ExperimentRow], *, whole: bool = False
) -> list[ExperimentView]:
    """Return experiments; `whole`: with a forecast of each, else of those that a worker is at."""
    rows = list(rows)
    ids = [row.id for row in rows]
    phases = load_phases(session, ids)
    runs = load_seen_runs(session, ids)
    conditions = load_condition_rows(session, ids)
    decided = load_decided(session, ids)
    waits = load_waits(session, chain.from_iterable(runs.values()))
    return [
        _view_one(
            session,
            row,
            phases.get(row.id, []),
            runs.get(row.id, []),
            conditions.get(row.id, []),
            decided[row.id],
            whole=whole,
            waits=waits,
        )
        for row in rows
    ]


def _view_one(
    session: Session,
    row: ExperimentRow,
    phases: Sequence[PhaseRow],
    runs: list[RunRow],
    conditions: list[ConditionRow],
    decided: Decided,
    *,
    whole: bool,
    waits: Mapping[str, str] | None = None,
) -> ExperimentView:
    over = row.state == ExperimentState.FINISHED
    shown = [
        view_of(PhaseView, phase, runs=[run.id for run in runs if run.phase == phase.name])
        for phase in phases
    ]
    taken = {run.phase for run in runs if run.claimed_at is not None}
    never_ran = phases_never_ran(shown, taken) if over else []
    asked = open_approval(row)
    hanging = [*map(view_condition, conditions), *([asked] if asked else [])]
    passed = row.verdict is Verdict.GO and not decided.overrides
    cause = None if passed else standing_cause(decided, runs, hanging)
    cancelled = row.stop is not None and row.stop.kind is StopKind.CANCEL
    plan = resolved_of(row).parsed() if whole and row.needs is not None and not over else None
    return view_of(
        ExperimentView,
        row,
        campaign=place_in_campaign(row),
        phases=shown,
        conditions=hanging,
        forecast=_forecast(session, row, phases, runs, whole=whole),
        submitted_by=row.created_by,
        waiting_for=_waiting_for(row, runs, waits or {}),
        waiting_until=instant(expires_at(row)),
        overrides=decided.overrides,
        never_ran=never_ran,
        cause=cause,
        summary=summarise(
            row.verdict,
            shown,
            decided.overrides,
            finished=over,
            never_ran=never_ran,
            origin=row.origin,
            cancelled_by=row.stop.told() if row.stop is not None and cancelled else None,
        ),
        next=next_steps(
            Place(
                row=row,
                phases=phases,
                runs=runs,
                conditions=hanging,
                cause=cause,
                last_decision=decided.last,
                settings=worker_settings(plan) if plan is not None else {},
                stack=_stack(session, runs, cause) if whole and over else None,
                by_hand={override.phase for override in decided.overrides},
            )
        ),
    )


def _stack(session: Session, runs: list[RunRow], cause: Cause | None) -> str | None:
    run = last_judged(runs)
    if run is None or cause is None:
        return None
    code = None if run.outcome is None else run.outcome.code
    return where_it_stood(load_findings(session, run.id), cause.rank, code)


def place_in_campaign(row: ExperimentRow) -> CampaignPlace | None:
    """Return which run of a campaign an experiment is, if any."""
    if row.campaign is None or row.variant is None or row.repeat is None:
        return None
    return CampaignPlace(campaign=row.campaign, variant=row.variant, repeat=row.repeat)


def view_condition(row: ConditionRow) -> Condition:
    """Return a condition in its present state."""
    return Condition.model_validate({**row.document, "state": row.state})


_OVER = Forecast(basis="nothing is left")
_UNASKED = Forecast(basis="shown for one experiment only")


def _forecast(
    session: Session,
    row: ExperimentRow,
    phases: Sequence[PhaseRow],
    runs: list[RunRow],
    *,
    whole: bool,
) -> Forecast:
    if row.state == ExperimentState.FINISHED:
        return _OVER.model_copy(update={"claimed_seconds": claimed_s(row)})
    is_active = any(run.state not in (RunState.QUEUED, RunState.ENDED) for run in runs)
    if not (whole or is_active):
        return _UNASKED
    return load_forecast(session, row, phases, runs)


def _where(row: ExperimentRow, queued: RunRow, runs: list[RunRow]) -> str:
    if queued.resume_from is None:
        return NO_CHECKPOINT if queued.reason in GOING_ON else ""
    host = host_of(queued.resume_from, runs) or host_of_origin(row)
    step = queued.resume_from.step
    return "" if host is None else f", which resumes from step {step} on {host.name}"


def _devices_of(queued: RunRow) -> str:
    if not queued.gpus:
        return "free devices"
    of = f" of profile {queued.profile}" if queued.profile else ""
    return f"{queued.gpus} free GPU{'s' * (queued.gpus != 1)}{of}"


def _waiting_for(row: ExperimentRow, runs: list[RunRow], waits: Mapping[str, str]) -> str | None:
    if row.awaiting:
        return row.awaiting.text
    queued = next((run for run in runs if run.state == RunState.QUEUED), None)
    if queued is not None:
        who = f"a worker with {_devices_of(queued)}"
        if row.needs is not None:
            who = f"a worker that has {row.needs}, and with free devices"
        return f"{who}, for phase {queued.phase}{_where(row, queued, runs)}"
    lost = next((run for run in runs if run.lost), None)
    if lost is not None and is_owed(lost):
        return (
            f"the rest of run {lost.id}, which ended on {hosts_of(lost)} (or a takeover: it is "
            "judged by what is here)"
        )
    if lost is not None:
        scheduler = f"; {waits[lost.id]}" if lost.id in waits else ""
        return f"a sign of life of run {lost.id} on {hosts_of(lost)} (or a takeover){scheduler}"
    waiting = next((run for run in runs if run.id in waits), None)
    if waiting is not None:
        return f"{waits[waiting.id]}, for phase {waiting.phase}"
    return None
