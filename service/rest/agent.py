"""The worker-facing calls: claims, telemetry, states, findings, evidence."""

from typing import Annotated

from fastapi import APIRouter, Header, Response

from gonogo.contract.worker_messages import (
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
from service.agent.claims import Bearer, claim
from service.agent.reports import take_evidence, take_findings, take_record, take_state
from service.agent.telemetry import parse_telemetry, take_telemetry, update_flags
from service.http.answers import WireResponse, model_response
from service.http.auth import Agent, Principal, Role, Service

router = APIRouter(prefix="/agent", tags=["worker-facing"])


@router.post("/claims", operation_id="create_claim", response_model=ClaimAnswer)
def post_claim(context: Service, caller: Agent, request: ClaimRequest) -> WireResponse:
    """Offer free devices; get an order with its fencing token, or nothing."""
    bound = caller.key_id if caller.role is Role.WORKER else None
    found = context.write(f"worker {request.worker}", claim, request, bound)
    told = {name: list(runs) for name in ("untold", "over") if (runs := getattr(found, name))}
    if found.claimed is None:
        return WireResponse({"order": None, **told})
    # as in order.json: a setting that nobody set stays unsaid, so that its source stays known
    order, secret = found.claimed
    return WireResponse({"order": order.document(), "secret": secret, **told})


ClaimSecret = Annotated[
    str | None,
    Header(
        alias=CLAIM_HEADER,
        max_length=200,
        description="The `secret` that the run was claimed with.",
    ),
]


def _bearer(caller: Principal, token: int, secret: str | None) -> Bearer:
    return Bearer(token=token, secret=secret, worker=caller.worker)


@router.post("/runs/{run}/telemetry", operation_id="post_telemetry", response_model=TelemetryAck)
def post_telemetry(
    context: Service, caller: Agent, run: str, telemetry: Telemetry, secret: ClaimSecret = None
) -> Response:
    """Send growing files by offset and log tails, renew the lease, get commands."""
    stretches = parse_telemetry(telemetry)
    bearer = _bearer(caller, telemetry.token, secret)
    ack, flags = context.write(f"run {run}", take_telemetry, run, telemetry, stretches, bearer)
    if flags:  # seldom, and under the experiment's lock, which no telemetry waits for
        context.write(f"run {run}", update_flags, run, telemetry)
    return model_response(ack)


@router.post("/runs/{run}/state", operation_id="post_state")
def post_state(
    context: Service, caller: Agent, run: str, report: StateReport, secret: ClaimSecret = None
) -> Accepted:
    """Report a state of the run; one that is past already changes nothing."""
    context.write(f"run {run}", take_state, run, report, _bearer(caller, report.token, secret))
    return Accepted()


@router.post("/runs/{run}/findings", operation_id="post_findings")
def post_findings(
    context: Service, caller: Agent, run: str, report: FindingsReport, secret: ClaimSecret = None
) -> Accepted:
    """Report findings; known keys change nothing."""
    taken = context.write(
        f"run {run}", take_findings, run, report, _bearer(caller, report.token, secret)
    )
    return Accepted(detail={"new": taken})


@router.post("/runs/{run}/evidence", operation_id="post_evidence")
def post_evidence(
    context: Service, caller: Agent, run: str, report: EvidenceReport, secret: ClaimSecret = None
) -> Accepted:
    """Upload one file of evidence."""
    context.write(f"run {run}", take_evidence, run, report, _bearer(caller, report.token, secret))
    return Accepted()


@router.post("/runs/{run}/records", operation_id="post_record")
def post_record(
    context: Service, caller: Agent, run: str, report: RecordReport, secret: ClaimSecret = None
) -> Accepted:
    """Upload one small record (order.json, exit.json, …) as it stands."""
    context.write(f"run {run}", take_record, run, report, _bearer(caller, report.token, secret))
    return Accepted()
