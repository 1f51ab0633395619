"""The commands that a verdict or a waiting state calls for, the likeliest first.

Every command can be typed as it stands, but for a person's own words (`WHY`). Only what the
experiment's state allows is named (`awaited.verbs_of`).
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
from gonogo.judge.follow_up.decide import asks_approval
from gonogo.judge.gate.added_criteria import CARRIED, REMEDIED, REPRODUCED
from gonogo.judge.gate.conditions import is_approval, met_beyond
from gonogo.planning.resolve import ResolvedPlan, is_bundled
from service.db.schema import ExperimentRow, RunRow
from service.experiments.awaited import begins_anew, is_owed, last_judged, last_tried, verbs_of
from service.experiments.workers import hosts_of
from service.queries.experiments import AnyPhase, has_plan

MOST_STEPS = 6
_RANK_LOG = re.compile(r"rank(?P<rank>\d+)\.log")
_OWN = "PLAN"
"""Stands for a plan of a person's own."""
_THROUGH = (PhaseState.PASSED, PhaseState.INHERITED)
_UNMET = (ConditionState.OPEN, ConditionState.MISSED)
_UNREAD = (
    "no line of it was read as a step: have it print `step 3 loss 2.5` or what a bundled pattern"
    " fits (docs/how-to/run.md), or attach it (docs/how-to/attach.md), before it runs again;"
    " one that is attached found nothing left to do, as from a checkpoint of its own"
)
_AT_ONCE = "requested again: end it at once, and wait for no checkpoint"


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """State of an experiment, as far as what comes next depends on it."""

    row: ExperimentRow
    phases: Sequence[AnyPhase]
    runs: Sequence[RunRow]
    conditions: Sequence[Condition]
    cause: Cause | None
    last_decision: str | None
    taker: str | None = None
    """The worker that takes its queued run once it has free devices."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """Environment with which a worker takes the queued run, where none is known that does."""
    stood: str | None = None
    """The file of the evidence that says most of where the last run hung."""
    by_hand: Collection[str | None] = ()
    """Phases that a person decided, as it stands."""
    mute: Collection[str] = ()
    """Runs of programs of their own that ended well and reported no step."""

    @property
    def phase(self) -> str | None:
        """The phase that was judged, while a person is awaited."""
        return self.row.awaiting.phase if self.row.awaiting is not None else None

    @property
    def following(self) -> str | None:
        """The phase that comes after it."""
        names = [row.name for row in self.phases]
        after = names[names.index(self.phase) + 1 :] if self.phase in names else []
        return after[0] if after else None

    @property
    def verbs(self) -> Sequence[str]:
        """What can be requested now."""
        return verbs_of(self.row, self.phases, self.runs)

    @property
    def is_queued(self) -> bool:
        """Whether a run waits for a worker."""
        return any(run.state == RunState.QUEUED for run in self.runs)

    def step(self, text: str, *words: str) -> NextStep:
        """Return a command about the experiment."""
        head, *rest = words
        return NextStep(command=shlex.join(["gonogo", head, self.row.id, *rest]), text=text)

    def why(self, text: str, *words: str) -> NextStep:
        """Return a command that wants a reason."""
        return self.step(text, *words, "--reason", "WHY")


def next_steps(place: Place) -> list[NextStep]:
    """Return what can be typed, the likeliest first."""
    state = place.row.state
    if state == ExperimentState.FINISHED:
        steps = _finished(place)
    elif state == ExperimentState.AWAITING_DECISION:
        steps = _awaiting(place)
    else:
        steps = _under_way(place)
    return list(steps)[:MOST_STEPS]


def _under_way(place: Place) -> Iterator[NextStep]:
    """Yield what can be done while the experiment continues, or waits for a worker."""
    lost = next((run for run in place.runs if run.lost), None)
    if lost is not None and "takeover" in place.verbs:
        text = (
            "does not come back: judge it by what is here"
            if is_owed(lost)
            else "is dead: start the next attempt from its checkpoint"
        )
        yield place.why(f"if you know that {hosts_of(lost)} {text}", "takeover")
    if place.is_queued and place.taker is not None:
        text = f"what holds the devices of {place.taker}, which takes it"
        yield NextStep(command="gonogo workers", text=text)
    elif place.is_queued:
        allowing = "" if place.row.needs is None else f" that has {place.row.needs},"
        words = [f"{name}={shlex.quote(value)}" for name, value in sorted(place.settings.items())]
        text = f"start a worker{allowing} on a host with free devices"
        yield NextStep(command=" ".join([*words, "gonogo worker"]), text=text)
    yield place.step("follow it", "watch")
    stopping = place.row.stop.kind.value if place.row.stop is not None else None
    if "halt" in place.verbs and not place.is_queued:
        yield place.why(_AT_ONCE if stopping == "halt" else "stop it with a checkpoint", "halt")
    if "cancel" in place.verbs:
        yield place.why(_AT_ONCE if stopping == "cancel" else "stop it for good", "cancel")


def _awaiting(place: Place) -> Iterator[NextStep]:
    """Yield the answers to what a person is asked."""
    unread = next((run.id for run in reversed(place.runs) if run.id in place.mute), None)
    if unread is not None:
        command = shlex.join(["gonogo", "logs", unread, "--rank", "0"])
        yield NextStep(command=command, text=_UNREAD)
    if "promote" in place.verbs:
        yield place.why(f"approve: go on with {place.following or 'its end'}", "promote")
    if "resume" in place.verbs:
        text = (
            f"go on with {place.phase} from its last checkpoint, or its start where it saved none"
        )
        yield place.step(text, "resume")
    if "rerun" in place.verbs:
        yield place.step(f"run {place.phase} again from its start", "rerun")
    for row in place.conditions:
        if row.state is ConditionState.OPEN and row.due == place.following and not is_approval(row):
            yield _waiver(place, row)  # else going on would miss it
    if "promote" in place.verbs:
        yield place.why(f"refuse: {place.phase} is NO_GO by hand", "override", "NO_GO")
    else:
        ended = "end it as GO" if place.following is None else f"go on with {place.following}"
        yield place.why(f"{ended}, by hand", "override", "GO")
        yield place.why("end it as NO_GO, by hand", "override", "NO_GO")
    yield place.why("end it without a verdict", "cancel")


def _waiver(place: Place, *conditions: Condition) -> NextStep:
    """Return the command that waives conditions with the same text."""
    named = [word for row in conditions for word in ("--condition", row.id)]
    text = f"accept it by hand: {conditions[0].text}"
    return place.why(text, "override", "CONDITIONAL_GO", *named)


def _finished(place: Place) -> Iterator[NextStep]:
    """Yield where to look, and what only a person can settle."""
    if place.cause is not None:
        yield from _evidence(place, place.cause)
    yield place.step("read the whole of it", "report")
    if place.row.campaign is not None:
        command = f"gonogo campaign show {place.row.campaign}"
        yield NextStep(command=command, text="what its campaign has come to")
    alike: dict[str, list[Condition]] = {}
    for row in place.conditions:
        if row.state is ConditionState.OPEN and row.evidence_from is None:
            alike.setdefault(row.text, []).append(row)  # a remedy that is carried on: one a phase
    for rows in alike.values():
        yield _waiver(place, *rows)
    begins = _begins(place)
    if begins is not None:
        yield from _again(place, begins)
    if place.last_decision is not None:
        check = f"gonogo replay {place.last_decision}"
        yield NextStep(command=check, text="derive the last decision again from its files")


def _evidence(place: Place, cause: Cause) -> Iterator[NextStep]:
    """Yield what says most: of a hang where it stood, of anything else a log."""
    run = last_judged(place.runs)
    if run is not None and place.stood is not None:
        command = shlex.join(["gonogo", "artifacts", run.id, place.stood])
        yield NextStep(command=command, text="where it stood")
    elif run is not None and cause.log is not None:
        of_rank = _RANK_LOG.fullmatch(cause.log)
        rank = [] if of_rank is None else ["--rank", of_rank["rank"]]
        command = shlex.join(["gonogo", "logs", run.id, *rank])
        yield NextStep(command=command, text=f"read {cause.log}")


def _again(place: Place, phase: str) -> Iterator[NextStep]:
    """Yield how a new experiment continues with a phase."""
    anew = begins_anew([run for run in place.runs if run.phase == phase])
    goes, start = (f"begins {phase} anew", "@0") if anew else (f"goes on with {phase}", "")
    again = shlex.join(["gonogo", "submit", _plan_of(place.row), "--from"])
    command = f"{again} {place.row.id}:{phase}{start}"
    yield NextStep(command=command, text=f"once the cause is mended: a new experiment that {goes}")
    drifts = _drifts(place)
    if drifts:
        allow = shlex.quote(f"allow_drift=[{','.join(drifts)}]")
        text = "the same, where that differs as it should (code that was mended, another host)"
        yield NextStep(command=f"{command} --set {allow}", text=text)


def _plan_of(row: ExperimentRow) -> str:
    """Return the plan that is submitted again; one that `--set` changed is a person's own."""
    if not has_plan(row):  # lists read no plans, which are large
        return _OWN
    return row.plan if is_bundled(row.plan, row.resolved["plan"]) else _OWN


def _drifts(place: Place) -> list[str]:
    """Return what `allow_drift` must name, where the last run ended for a difference."""
    last, cause = last_tried(place.runs), place.cause
    ended = None if last is None else last.outcome
    if cause is None or ended is None or ended.code is not OutcomeCode.CONFIG_MISMATCH:
        return []
    differed: list[str] = [name for name in DRIFTS if f" runs {name} " in cause.text]
    if not differed or not has_plan(place.row):
        return differed
    allowed = place.row.resolved["plan"].get("allow_drift", [])
    return [name for name in DRIFTS if name in differed or name in allowed]


def _begins(place: Place) -> str | None:
    """Return the first phase that another experiment cannot take over as it stands.

    That is one that did not pass, or whose verdict is not that of its evidence alone, as
    `service.experiments.origins` asks. None: every phase can be taken over.
    """
    names = [row.name for row in place.phases]
    unpassed = next((row.name for row in place.phases if row.state not in _THROUGH), None)
    if place.row.campaign is not None or unpassed is None:
        return None
    before = names[: names.index(unpassed)]
    unsettled = {
        _phase_of(row) for row in place.conditions if row.state in _UNMET or _is_of_patch(row)
    }
    unsettled.update(name for name in place.by_hand if name is not None)
    first = next((name for name in before if name in unsettled), None)
    if first is None:
        first = before[-1] if before and _owes_approval(place, before[-1], unpassed) else unpassed
    while beyond := met_beyond(place.conditions, names[: names.index(first)]):
        first = min(map(_phase_of, beyond), key=names.index)
    return first


def _phase_of(row: Condition) -> str:
    return row.id.partition(":")[0]


def _is_of_patch(row: Condition) -> bool:
    """Say whether its phase passed under a patch that the plan does not have."""
    return row.criterion in (REPRODUCED, REMEDIED, CARRIED)


def _owes_approval(place: Place, last: str, following: str) -> bool:
    """Say whether a phase that has not begun still needs an approval; lists do not know."""
    if not has_plan(place.row) or any(run.phase == following for run in place.runs):
        return False
    plan = ResolvedPlan.model_validate(place.row.resolved).parsed()
    given = any(
        is_approval(row) and row.due == following and row.state is ConditionState.MET
        for row in place.conditions
    )
    verdict = next(row.verdict for row in place.phases if row.name == last)
    return asks_approval(plan, last, verdict) and not given
