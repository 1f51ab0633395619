"""The verbs, and a person's own decisions.

The checkpoint of the next run is looked up before anything is locked, since checkpoints are read
whole. If the experiment changes meanwhile, the checkpoint is looked up again.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, Body, Response

from gonogo.contract.api import ExperimentView, Override, VerbBody
from gonogo.contract.decision import Decision
from gonogo.contract.errors import Conflict
from gonogo.contract.lifecycle import PhaseState
from gonogo.ledger.recorded import record_of
from service.context import Context
from service.db.schema import ExperimentRow
from service.db.store import Session
from service.experiments.advance import resolved_of
from service.experiments.checkpoints import load_resume_points, load_weights
from service.experiments.lifecycle import Deed, lock_experiment
from service.experiments.verbs import VERBS, Points, override
from service.http.answers import WireResponse
from service.http.auth import Operator, Service
from service.http.dependencies import (
    IdempotencyKey,
    IfMatch,
    check_if_match,
    create_once,
    etag_of,
)
from service.queries.experiments import load_experiment, phases_of, runs_of
from service.views.experiments import view_experiment

router = APIRouter(tags=["actions"])
_BEGAN = (PhaseState.ACTIVE, PhaseState.PASSED, PhaseState.FAILED)
_ROUNDS = 5
Action = Annotated[VerbBody | None, Body()]
_T = TypeVar("_T")
_Find = Callable[[Session, ExperimentRow, str | None], Points]


@dataclass(frozen=True, slots=True)
class _Found:
    """Checkpoints of the next run, and the state of the experiment when they were looked up."""

    points: Points
    state: Sequence[Any]

    def lock(self, deed: Deed, experiment: str, if_match: str | None) -> ExperimentRow:
        """Return the locked experiment, unless it has changed since."""
        row = lock_experiment(deed, experiment)
        check_if_match(row, if_match)
        if self.state != _state_of(deed.session, row):
            text = "the experiment changed while its checkpoints were read: ask again"
            raise _Changed(text, state=row.state)
        return row


class _Changed(Conflict):
    """The experiment has changed since it was looked at."""


def _state_of(session: Session, row: ExperimentRow) -> Sequence[Any]:
    """Return what of an experiment decides where its next run begins."""
    runs = [(run.id, run.state, run.judged) for run in runs_of(session, row.id)]
    return row.state, row.decision_seq, _last_phase(session, row), runs


def _last_phase(session: Session, row: ExperimentRow) -> str | None:
    began = [phase.name for phase in phases_of(session, row.id) if phase.state in _BEGAN]
    return began[-1] if began else None


def _with_points(context: Context, experiment: str, find: _Find, act: Callable[[_Found], _T]) -> _T:
    """Return what was done with checkpoints that were still the newest when it was done."""

    def look_up(session: Session) -> _Found:
        row = load_experiment(session, experiment)
        return _Found(find(session, row, _last_phase(session, row)), _state_of(session, row))

    for _ in range(_ROUNDS - 1):
        try:
            return act(context.store.read(look_up))
        except _Changed:
            continue
    return act(context.store.read(look_up))


def _find_weights(session: Session, row: ExperimentRow, phase: str | None) -> Points:
    if phase is None:
        return {}
    weights = load_weights(session, row, resolved_of(row).parsed().phase(phase).init_from)
    return {} if weights is None else {phase: weights}


_FINDS: dict[str, _Find] = {
    "halt": lambda session, row, phase: {},
    "cancel": lambda session, row, phase: {},
    "resume": load_resume_points,
    "promote": load_resume_points,
    "takeover": load_resume_points,
    "rerun": _find_weights,
}


def _do(
    deed: Deed, verb: str, experiment: str, reason: str, found: _Found, if_match: str | None
) -> tuple[bool, str, ExperimentView]:
    row = found.lock(deed, experiment, if_match)
    changed = VERBS[verb](deed, row, reason, found.points)
    deed.session.flush()
    return changed, etag_of(row), view_experiment(deed.session, row)


def _add_verb(verb: str, summary: str) -> None:
    def perform(
        context: Service,
        caller: Operator,
        experiment: str,
        response: Response,
        action: Action = None,
        if_match: IfMatch = None,
    ) -> ExperimentView:
        reason = action.reason if action else ""

        def act(found: _Found) -> tuple[bool, str, ExperimentView]:
            return context.write(caller.name, _do, verb, experiment, reason, found, if_match)

        changed, etag, view = _with_points(context, experiment, _FINDS[verb], act)
        response.status_code = 202 if changed else 200
        response.headers["ETag"] = etag
        return view

    perform.__doc__ = summary
    router.add_api_route(
        f"/experiments/{{experiment}}/{verb}",
        perform,
        methods=["POST"],
        operation_id=f"{verb}_experiment",
        status_code=202,
        response_model=ExperimentView,
        responses={200: {"model": ExperimentView, "description": "It was asked before."}},
    )


for _verb, _summary in (
    ("halt", "Stop with a checkpoint, asked again at once; then a decision is awaited."),
    ("cancel", "Stop, asked again at once, and finish without a verdict."),
    ("resume", "Continue the undecided phase from its last durable checkpoint."),
    ("promote", "Approve the next phase."),
    ("rerun", "Run the undecided phase again from its start."),
    ("takeover", "Declare the living attempt dead (you vouch for it) and start the next."),
):
    _add_verb(_verb, _summary)


@router.post(
    "/experiments/{experiment}/decisions",
    operation_id="create_decision",
    response_model=Decision,
    status_code=201,
)
def post_decision(
    context: Service,
    caller: Operator,
    experiment: str,
    wanted: Override,
    if_match: IfMatch = None,
    key: IdempotencyKey = None,
) -> Response:
    """Decide by hand: take a verdict, or (`condition`) waive a condition."""
    route = f"POST /experiments/{experiment}/decisions"

    def act(found: _Found) -> dict[str, Any]:
        about = experiment, wanted, found, if_match
        return create_once(context, caller, route, key, wanted, _decide, *about)

    document = _with_points(context, experiment, load_resume_points, act)
    recorded = record_of(document)
    location = {"Location": f"/api/v1/decisions/{recorded.id}"}
    return WireResponse(recorded.document, HTTPStatus.CREATED, location)


def _decide(
    deed: Deed, experiment: str, wanted: Override, found: _Found, if_match: str | None
) -> dict[str, Any]:
    row = found.lock(deed, experiment, if_match)
    return dict(override(deed, row, wanted, found.points).document)
