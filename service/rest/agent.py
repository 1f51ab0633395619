"""The worker-facing calls: claims, telemetry, states, findings, evidence."""

from typing import Annotated

from fastapi import APIRouter, Header, Response
from sqlalchemy.orm import Session

from gonogo.contract.agent import (
    CLAIM_HEADER,
    Accepted,
    ClaimAnswer,
    ClaimRequest,
    EvidenceReport,
    FindingsReport,
    RecordReport,
    StateReport,
    Telemetry,
    TelemetryAck,
)
from service.agent.claims import Claimed, claim
from service.agent.fence import Bearer, bind_key
from service.agent.pieces import pack_streams, take_record
from service.agent.run_states import take_evidence, take_findings, take_state
from service.agent.telemetry import Taken, parse_stretches, take_telemetry, update_flags
from service.experiments.lifecycle import Deed
from service.http.auth import Agent, Principal, Role, Service
from service.http.problems import WireResponse, model_response

router = APIRouter(prefix="/agent", tags=["worker-facing"])


@router.post("/claims", operation_id="create_claim", response_model=ClaimAnswer)
def post_claim(context: Service, caller: Agent, request: ClaimRequest) -> WireResponse:
    """Offer free devices; get an order with its fencing token, or nothing."""

    def work(session: Session) -> Claimed | None:
        if caller.role is Role.WORKER:
            bind_key(session, caller.key_id, request.worker)
        actor = f"worker {request.worker}"
        return claim(Deed(session=session, now=context.now(), actor=actor), request)

    claimed = context.store.write(work)
    if claimed is None:
        return WireResponse({"order": None})
    # as in order.json: a setting that nobody set stays unsaid, so that its source stays known
    return WireResponse({"order": claimed.order.document(), "secret": claimed.secret})


ClaimSecret = Annotated[
    str | None,
    Header(
        alias=CLAIM_HEADER,
        max_length=200,
        description="The `secret` that the run was claimed with.",
    ),
]


def _bearer(caller: Principal, token: int, secret: str | None) -> Bearer:
    """Return who brings a message; an administrator's key is bound to no worker."""
    return Bearer(token=token, secret=secret, worker=caller.worker)


@router.post("/runs/{run}/telemetry", operation_id="post_telemetry", response_model=TelemetryAck)
def post_telemetry(
    context: Service, caller: Agent, run: str, telemetry: Telemetry, secret: ClaimSecret = None
) -> Response:
    """Send growing files by offset and log tails, renew the lease, get commands."""
    stretches = parse_stretches(telemetry.ranks)
    pieces = pack_streams(telemetry.files or [])
    bearer = _bearer(caller, telemetry.token, secret)

    def work(session: Session) -> Taken:
        deed = Deed(session=session, now=context.now(), actor=f"run {run}")
        return take_telemetry(deed, run, telemetry, stretches, pieces, bearer)

    taken = context.store.write(work)
    if taken.flags:
        context.store.write(
            lambda session: update_flags(
                Deed(session=session, now=context.now(), actor=f"run {run}"), run, telemetry
            )
        )
    return model_response(taken.ack, exclude_unset=True)


@router.post("/runs/{run}/state", operation_id="post_state")
def post_state(
    context: Service, caller: Agent, run: str, report: StateReport, secret: ClaimSecret = None
) -> Accepted:
    """Report that the run's lifecycle went on; what is past already changes nothing."""
    context.store.write(
        lambda session: take_state(
            Deed(session=session, now=context.now(), actor=f"run {run}"),
            run,
            report,
            _bearer(caller, report.token, secret),
        )
    )
    return Accepted()


@router.post("/runs/{run}/findings", operation_id="post_findings")
def post_findings(
    context: Service, caller: Agent, run: str, report: FindingsReport, secret: ClaimSecret = None
) -> Accepted:
    """Report findings; known keys change nothing."""
    taken = context.store.write(
        lambda session: take_findings(
            Deed(session=session, now=context.now(), actor=f"run {run}"),
            run,
            report,
            _bearer(caller, report.token, secret),
        )
    )
    return Accepted(detail={"new": taken})


@router.post("/runs/{run}/evidence", operation_id="post_evidence")
def post_evidence(
    context: Service, caller: Agent, run: str, report: EvidenceReport, secret: ClaimSecret = None
) -> Accepted:
    """Upload one file of evidence."""
    context.store.write(
        lambda session: take_evidence(
            Deed(session=session, now=context.now(), actor=f"run {run}"),
            run,
            report,
            _bearer(caller, report.token, secret),
        )
    )
    return Accepted()


@router.post("/runs/{run}/records", operation_id="post_record")
def post_record(
    context: Service, caller: Agent, run: str, report: RecordReport, secret: ClaimSecret = None
) -> Accepted:
    """Upload one small record (order.json, exit.json, …) as it stands."""
    context.store.write(
        lambda session: take_record(
            Deed(session=session, now=context.now(), actor=f"run {run}"),
            run,
            report,
            _bearer(caller, report.token, secret),
        )
    )
    return Accepted()
