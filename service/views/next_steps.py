"""What can be typed now? The commands that a verdict or a waiting state calls for, likeliest first.

Every command is one that `gonogo` has, complete but for a person's own words (`WHY`). Only what
the experiment's state allows is named (`awaited.verbs_of`).
"""

import re
import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from gonogo.contract.api import NextStep
from gonogo.contract.decision import Cause, Condition, ConditionState
from gonogo.contract.lifecycle import ExperimentState, PhaseState, RunState
from gonogo.contract.outcome import OutcomeCode
from gonogo.contract.plan import DRIFTS
from gonogo.judge.course.decide import asks_approval
from gonogo.judge.gate.added import CARRIED, REMEDIED, REPRODUCED
from gonogo.judge.gate.conditions import is_approval, met_beyond
from gonogo.planning.resolve import ResolvedPlan, is_bundled
from service.db.schema import ExperimentRow, RunRow
from service.experiments.standing import begins_anew, is_owed, last_judged, last_tried, verbs_of
from service.experiments.workers import hosts_of
from service.queries.experiments import AnyPhase, has_plan

MOST_STEPS = 6
_RANK_LOG = re.compile(r"rank(?P<rank>\d+)\.log")
_OWN = "PLAN"
"""What stands for a plan of a person's own."""
_THROUGH = (PhaseState.PASSED, PhaseState.INHERITED)
_UNMET = (ConditionState.OPEN, ConditionState.MISSED)
_UNREAD = (
    "no line of it was read as a step: have it print `step 3 loss 2.5` or what a bundled pattern"
    " fits (docs/how-to/run.md), or attach it (docs/how-to/attach.md), before it runs again; one"
    " that is attached found nothing left to do, as from a checkpoint of its own: take that away"
)
_AT_ONCE = "asked again: end it at once, and wait for no checkpoint"


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where an experiment stands, as far as what comes next depends on it."""

    experiment: str
    state: ExperimentState
    verbs: Sequence[str]
    stopping: str | None
    """How an operator stops it, while that is under way."""
    phase: str | None
    """The phase that was judged, while a person is awaited."""
    following: str | None
    """The phase that comes after it."""
    runs: Sequence[RunRow]
    conditions: Sequence[Condition]
    cause: Cause | None
    last_decision: str | None
    plan: str
    """Name of its plan, where it is the bundled one of that name; else a person's own word."""
    begins: str | None
    """Where another experiment goes on with it: its first phase that cannot be taken over as it
    stands; None of a campaign's run, and where every phase can."""
    campaign: str | None
    """Of a run of a campaign: which."""
    needs: str | None
    """What a worker must hold and allow for its runs, where that is not what every worker does."""
    taker: str | None = None
    """The worker that takes its queued run once it has free devices, where it asks for much."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """With which a worker takes it, by their names in its environment."""
    stood: str | None = None
    """Of one whose last run hung: the file of its evidence that says most of where it stood."""
    unread: str | None = None
    """Its last run, where that left well and no step was read of what it printed."""
    drifts: Sequence[str] = ()
    """What `allow_drift` must name before it could go on, where it ended since that differed."""


def place_of(
    experiment: ExperimentRow,
    phases: Sequence[AnyPhase],
    runs: Sequence[RunRow],
    conditions: Sequence[Condition],
    cause: Cause | None,
    last_decision: str | None,
    taker: str | None = None,
    settings: Mapping[str, str] | None = None,
    stood: str | None = None,
    by_hand: Collection[str | None] = (),
    mute: Collection[str] = (),
) -> Place:
    """Return where an experiment stands, from its rows.

    Args:
        experiment: its row.
        phases: of it, in their order.
        runs: of it, in theirs.
        conditions: of its decisions.
        cause: why it stands where it stands, if that is not GO.
        last_decision: id of the newest one.
        taker: the worker that takes its queued run, where that is known.
        settings: with which a worker takes it, where none is known that does.
        stood: the file of its last run's evidence that says where it hung.
        by_hand: phases that a person decided, as it stands.
        mute: runs of programs of their own that left well and told no step.
    """
    phase = experiment.awaiting.phase if experiment.awaiting is not None else None
    names = [row.name for row in phases]
    after = names[names.index(phase) + 1 :] if phase in names else []
    queued = any(run.state == RunState.QUEUED for run in runs)
    return Place(
        experiment=experiment.id,
        state=experiment.state,
        verbs=verbs_of(experiment, phases, runs),
        stopping=experiment.stop.kind if experiment.stop is not None else None,
        phase=phase,
        following=after[0] if after else None,
        runs=runs,
        conditions=conditions,
        cause=cause,
        last_decision=last_decision,
        plan=_plan_of(experiment),
        begins=_begins(experiment, phases, runs, conditions, by_hand),
        campaign=experiment.campaign,
        needs=experiment.needs if queued else None,
        taker=taker,
        settings=settings or {},
        stood=stood,
        unread=next((run.id for run in reversed(runs) if run.id in mute), None),
        drifts=_drifts(experiment, runs, cause),
    )


def _drifts(
    experiment: ExperimentRow, runs: Sequence[RunRow], cause: Cause | None
) -> Sequence[str]:
    """Return what its plan lets differ, and what its last run ended for, where one may allow it."""
    last = last_tried(runs)
    ended = None if last is None else last.outcome
    if cause is None or ended is None or ended.code is not OutcomeCode.CONFIG_MISMATCH:
        return []
    differed = [name for name in DRIFTS if f" runs {name} " in cause.text]
    if not differed or not has_plan(experiment):
        return differed
    allowed = experiment.resolved["plan"].get("allow_drift", [])
    return [name for name in DRIFTS if name in differed or name in allowed]


def _plan_of(experiment: ExperimentRow) -> str:
    """Return what is submitted again: a plan that was changed by `--set` is not the bundled one.

    A list reads no plans, which are large: there, too, it is a person's to name.
    """
    if experiment.state != ExperimentState.FINISHED or not has_plan(experiment):
        return _OWN
    bundled = is_bundled(experiment.plan, experiment.resolved["plan"])
    return experiment.plan if bundled else _OWN


def _begins(
    experiment: ExperimentRow,
    phases: Sequence[AnyPhase],
    runs: Sequence[RunRow],
    conditions: Sequence[Condition],
    by_hand: Collection[str | None],
) -> str | None:
    """Return the first phase that another experiment cannot take over as it stands.

    One whose condition a run of that phase, or of a later one, has met goes no further than that.
    """
    first = _first_not_shown(experiment, phases, runs, conditions, by_hand)
    names = [row.name for row in phases]
    while first is not None:
        beyond = {
            row.id.partition(":")[0] for row in met_beyond(conditions, names[: names.index(first)])
        }
        if not beyond:
            break
        first = min(beyond, key=names.index)
    return first


def _first_not_shown(
    experiment: ExperimentRow,
    phases: Sequence[AnyPhase],
    runs: Sequence[RunRow],
    conditions: Sequence[Condition],
    by_hand: Collection[str | None],
) -> str | None:
    """Return the first phase that did not pass, or one before it that cannot be taken over.

    That is one whose word is not that of its evidence alone, as `service.experiments.origins` asks
    of what it takes over. A list reads no plans, and does not know whether an approval was owed.
    """
    finished = experiment.state == ExperimentState.FINISHED
    unpassed = next((row for row in phases if row.state not in _THROUGH), None)
    if experiment.campaign is not None or not finished or unpassed is None:
        return None
    before = list(phases[: phases.index(unpassed)])
    unmet = {
        row.id.partition(":")[0] for row in conditions if row.state in _UNMET or _of_patch(row)
    }
    for row in before:
        if row.name in by_hand or row.name in unmet:
            return row.name
    if not before or not has_plan(experiment) or any(run.phase == unpassed.name for run in runs):
        return unpassed.name  # one that began had its approval, or needed none
    last = before[-1]
    plan = ResolvedPlan.model_validate(experiment.resolved).parsed()
    given = any(
        is_approval(row) and row.due == unpassed.name and row.state is ConditionState.MET
        for row in conditions
    )
    owed = asks_approval(plan, last.name, last.verdict) and not given
    return last.name if owed else unpassed.name


def _of_patch(row: Condition) -> bool:
    """Say whether a condition tells that its phase passed otherwise than the plan has it.

    Whoever accepted that has not changed the plan, which orders it as before.
    """
    return row.criterion in (REPRODUCED, REMEDIED, CARRIED)


def next_steps(place: Place) -> list[NextStep]:
    """Return what can be typed, the likeliest first."""
    if place.state is ExperimentState.FINISHED:
        steps = _finished(place)
    elif place.state is ExperimentState.AWAITING_DECISION:
        steps = _awaiting(place)
    else:
        steps = _under_way(place)
    return list(steps)[:MOST_STEPS]


def _step(place: Place, text: str, *words: str) -> NextStep:
    head, *rest = words
    line = shlex.join(["gonogo", head, place.experiment, *rest])
    return NextStep(command=line, text=text)


def _why(place: Place, text: str, *words: str) -> NextStep:
    return _step(place, text, *words, "--reason", "WHY")


def _under_way(place: Place) -> Iterator[NextStep]:
    """Yield what can be done while it goes on, or waits for a worker."""
    lost = next((run for run in place.runs if run.lost), None)
    if lost is not None and "takeover" in place.verbs:
        text = (
            "does not come back: judge it by what is here"
            if is_owed(lost)
            else "is dead: start the next attempt from its checkpoint"
        )
        yield _why(place, f"if you know that {hosts_of(lost)} {text}", "takeover")
    queued = any(run.state == RunState.QUEUED for run in place.runs)
    if queued:
        if place.taker is not None:
            text = f"what holds the devices of {place.taker}, which takes it"
            yield NextStep(command="gonogo workers", text=text)
        else:
            yield _worker(place)
    yield _step(place, "follow it", "watch")
    if "halt" in place.verbs and not queued:
        text = _AT_ONCE if place.stopping == "halt" else "stop it with a checkpoint"
        yield _why(place, text, "halt")
    if "cancel" in place.verbs:
        text = _AT_ONCE if place.stopping == "cancel" else "stop it for good"
        yield _why(place, text, "cancel")


def _worker(place: Place) -> NextStep:
    """Return how a worker is started that takes the queued run."""
    allowing = "" if place.needs is None else f" that has {place.needs},"
    text = f"start a worker{allowing} on a host with free devices"
    words = [f"{name}={shlex.quote(value)}" for name, value in sorted(place.settings.items())]
    return NextStep(command=" ".join([*words, "gonogo worker"]), text=text)


def _awaiting(place: Place) -> Iterator[NextStep]:
    """Yield the answers to what is asked of a person."""
    following = place.following or "its end"
    if place.unread is not None:
        command = shlex.join(["gonogo", "logs", place.unread, "--rank", "0"])
        yield NextStep(command=command, text=_UNREAD)
    if "promote" in place.verbs:
        yield _why(place, f"approve: go on with {following}", "promote")
    if "resume" in place.verbs:
        text = (
            f"go on with {place.phase} from its last checkpoint, or its start where it saved none"
        )
        yield _step(place, text, "resume")
    if "rerun" in place.verbs:
        yield _step(place, f"run {place.phase} again from its start", "rerun")
    for row in place.conditions:
        if row.state is ConditionState.OPEN and row.due == place.following and not is_approval(row):
            yield _waiver(place, row)  # else going on would miss it
    if "promote" in place.verbs:
        yield _why(place, f"refuse: {place.phase} is NO_GO by hand", "override", "NO_GO")
    else:
        ended = "end it as GO" if place.following is None else f"go on with {following}"
        yield _why(place, f"{ended}, by hand", "override", "GO")
        yield _why(place, "end it as NO_GO, by hand", "override", "NO_GO")
    yield _why(place, "end it without a verdict", "cancel")


def _waiver(place: Place, *conditions: Condition) -> NextStep:
    """Return how conditions are waived that say the same."""
    named = [word for row in conditions for word in ("--condition", row.id)]
    words = ("override", "CONDITIONAL_GO", *named)
    return _why(place, f"accept it by hand: {conditions[0].text}", *words)


def _finished(place: Place) -> Iterator[NextStep]:
    """Yield where to look, and what only a person can settle."""
    if place.cause is not None:
        yield from _evidence(place, place.cause)
    yield _step(place, "read the whole of it", "report")
    if place.campaign is not None:
        command = f"gonogo campaign show {place.campaign}"
        yield NextStep(command=command, text="what its campaign has come to")
    alike: dict[str, list[Condition]] = {}
    for row in place.conditions:
        if row.state is ConditionState.OPEN and row.evidence_from is None:
            alike.setdefault(row.text, []).append(row)  # a remedy that is carried on: one a phase
    for rows in alike.values():
        yield _waiver(place, *rows)
    if place.begins is not None:
        again = shlex.join(["gonogo", "submit", place.plan, "--from"])
        anew = begins_anew([run for run in place.runs if run.phase == place.begins])
        goes, start = ("begins {} anew", "@0") if anew else ("goes on with {}", "")
        text = f"once the cause is mended: a new experiment that {goes.format(place.begins)}"
        command = f"{again} {place.experiment}:{place.begins}{start}"
        yield NextStep(command=command, text=text)
        if place.drifts:
            allow = shlex.quote(f"allow_drift=[{','.join(place.drifts)}]")
            text = "the same, where that differs as it should (code that was mended, another host)"
            yield NextStep(command=f"{command} --set {allow}", text=text)
    if place.last_decision is not None:
        check = f"gonogo replay {place.last_decision}"
        yield NextStep(command=check, text="derive the last decision again from its files")


def _evidence(place: Place, cause: Cause) -> Iterator[NextStep]:
    """Yield what says most: of a hang where it stood, of anything else a log."""
    run = last_judged(place.runs)
    if run is not None and place.stood is not None:
        command = shlex.join(["gonogo", "artifacts", run.id, place.stood])
        yield NextStep(command=command, text="where it stood")
        return
    if cause.log is None or run is None:
        return
    of_rank = _RANK_LOG.fullmatch(cause.log)
    rank = [] if of_rank is None else ["--rank", of_rank["rank"]]
    command = shlex.join(["gonogo", "logs", run.id, *rank])
    yield NextStep(command=command, text=f"read {cause.log}")
