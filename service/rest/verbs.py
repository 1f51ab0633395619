"""The verbs, and a person's own decisions.

The checkpoint of the next run is looked up before anything is locked, since checkpoints are read
whole. If the experiment changes meanwhile, the checkpoint is looked up again.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
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
from service.experiments.decisions import save_soon
from service.experiments.lifecycle import Deed, lock_experiment
from service.experiments.verbs import VERBS, Points, override
from service.http.answers import LOCATION_HEADER, WireResponse
from service.http.auth import Operator, Service
from service.http.dependencies import (
    ETAG_HEADER,
    Creation,
    IdempotencyKey,
    IfMatch,
    Writing,
    check_if_match,
    etag_of,
)
from service.queries.experiments import load_experiment, phases_of, runs_of
from service.views.experiments import view_experiment

router = APIRouter(tags=["actions"])
_BEGAN = (PhaseState.ACTIVE, PhaseState.PASSED, PhaseState.FAILED)
_ROUNDS = 5
"""How often a changing experiment is looked at again."""
Said = Annotated[VerbBody | None, Body()]
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class _Beginning:
    """Place at which the next run may begin, and the experiment's state when it was looked up."""

    points: Points = field(default_factory=dict)
    stood: Sequence[Any] | None = None


class _WentOn(Conflict):
    """The experiment stands otherwise than when it was looked at."""


def _standing(session: Session, row: ExperimentRow) -> Sequence[Any]:
    """Return what of an experiment says where its next run begins."""
    runs = [(run.id, run.state, run.judged) for run in runs_of(session, row.id)]
    return row.state, row.decision_seq, _phase_at(session, row), runs


def _check_stands(deed: Deed, row: ExperimentRow, beginning: _Beginning) -> None:
    if beginning.stood not in (None, _standing(deed.session, row)):
        raise _WentOn(
            "the experiment went on while its checkpoints were read: ask again", state=row.state
        )


def _settle(find: Callable[[], _Beginning], act: Callable[[_Beginning], _T]) -> _T:
    """Return what was done with a beginning that was still one when it was done.

    Raises:
        Conflict: it never was.
    """
    for _ in range(_ROUNDS - 1):
        try:
            return act(find())
        except _WentOn:
            continue
    return act(find())


def _do(
    deed: Deed, verb: str, experiment: str, reason: str, beginning: _Beginning, if_match: str | None
) -> tuple[bool, str, ExperimentView]:
    """Do what a verb says; return whether it changed anything, and what it came to."""
    row = lock_experiment(deed, experiment)
    check_if_match(row, if_match)
    _check_stands(deed, row, beginning)
    changed = VERBS[verb](deed, row, reason, beginning.points)
    deed.session.flush()
    view = view_experiment(deed.session, row)
    return changed, etag_of(row, view), view


def _resume_points(context: Context, experiment: str) -> _Beginning:
    """Return where the next run may resume from."""
    return context.store.read(lambda session: _look_up(session, experiment, fresh=False))


def _weights(context: Context, experiment: str) -> _Beginning:
    """Return the weights with which the phase begins when it is run again from its start."""
    return context.store.read(lambda session: _look_up(session, experiment, fresh=True))


def _look_up(session: Session, experiment: str, *, fresh: bool) -> _Beginning:
    row = load_experiment(session, experiment)
    stood, phase = _standing(session, row), _phase_at(session, row)
    if not fresh:
        return _Beginning(load_resume_points(session, row, phase), stood)
    if phase is None:
        return _Beginning(stood=stood)
    weights = load_weights(session, row, resolved_of(row).parsed().phase(phase).init_from)
    return _Beginning({} if weights is None else {phase: weights}, stood)


_LOADS = {
    "resume": _resume_points,
    "promote": _resume_points,
    "takeover": _resume_points,
    "rerun": _weights,
}
"""Verbs whose checkpoint is looked up first."""


def _phase_at(session: Session, row: ExperimentRow) -> str | None:
    """Return the phase at which an experiment stands: the last one that began."""
    began = [phase.name for phase in phases_of(session, row.id) if phase.state in _BEGAN]
    return began[-1] if began else None


def _add_verb(verb: str, summary: str) -> None:
    def perform(
        context: Service,
        write: Writing,
        caller: Operator,
        experiment: str,
        response: Response,
        action: Said = None,
        if_match: IfMatch = None,
    ) -> ExperimentView:
        load = _LOADS.get(verb)
        reason = action.reason if action else ""

        def act(beginning: _Beginning) -> tuple[bool, str, ExperimentView]:
            return write(caller.actor, _do, verb, experiment, reason, beginning, if_match)

        changed, etag, view = _settle(
            lambda: load(context, experiment) if load is not None else _Beginning(), act
        )
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
        responses={
            200: {
                "model": ExperimentView,
                "description": "It was asked before; nothing changed.",
                "headers": ETAG_HEADER,
            },
            202: {"description": "It is being done.", "headers": ETAG_HEADER},
        },
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
    responses={
        201: {
            "description": "It is recorded.",
            "headers": LOCATION_HEADER,
        }
    },
)
def post_decision(
    context: Service,
    write: Writing,
    caller: Operator,
    experiment: str,
    said: Override,
    response: Response,
    if_match: IfMatch = None,
    key: IdempotencyKey = None,
) -> Response:
    """Decide by hand: take a verdict, or (`condition`) waive a condition."""
    route = f"POST /experiments/{experiment}/decisions"
    creation = Creation(caller=caller, route=route, key=key, body=said)
    document = _settle(
        lambda: _resume_points(context, experiment),
        lambda beginning: write.once(creation, _decide, experiment, said, beginning, if_match),
    )
    recorded = record_of(document)
    save_soon(context.settings.decisions, recorded)
    location = {"Location": f"/api/v1/decisions/{recorded.id}"}
    return WireResponse(recorded.document, HTTPStatus.CREATED, location)


def _decide(
    deed: Deed, experiment: str, said: Override, beginning: _Beginning, if_match: str | None
) -> dict[str, Any]:
    row = lock_experiment(deed, experiment)
    check_if_match(row, if_match)
    _check_stands(deed, row, beginning)
    return dict(override(deed, row, said, beginning.points).document)
