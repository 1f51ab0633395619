"""Plans and schemas: what can be submitted, and in which form."""

from typing import Annotated, Any

from fastapi import APIRouter, Body
from pydantic import BaseModel

from gonogo.contract.api import Submission
from gonogo.contract.errors import NotFound
from gonogo.contract.schemas import SCHEMAS, schema
from gonogo.planning.resolve import warnings_of
from gonogo.planning.source import (
    bundled_campaign_names,
    bundled_plan,
    bundled_plan_names,
    parse_plan,
    schema_documents,
)
from service.experiments.submission import resolve_submission
from service.experiments.workers import load_warnings
from service.http.auth import Service, Viewer
from service.http.dependencies import Page, Reading

router = APIRouter(tags=["plans"])


class PlanView(BaseModel):
    """A plan that ships with gonogo."""

    name: str
    profile: str
    world_size: int
    phases: list[dict[str, Any]]
    digest: str


class ValidationView(BaseModel):
    """A plan that is valid."""

    valid: bool = True
    plan: dict[str, Any]
    digest: str
    train: dict[str, Any]
    warnings: list[str]
    """What is accepted and may still come to nothing."""


@router.get("/plans", operation_id="list_plans")
def list_plans(_: Viewer) -> Page[PlanView]:
    """List the bundled plans."""
    plans = [
        parse_plan(bundled_plan(name))
        for name in (*bundled_plan_names(), *bundled_campaign_names())
    ]
    return Page[PlanView](
        items=[
            PlanView(
                name=plan.name,
                profile=plan.profile,
                world_size=plan.workload.world_size,
                phases=[
                    {"name": phase.name, "steps": phase.steps, "init_from": phase.init_from}
                    for phase in plan.phases
                ],
                digest=plan.digest(),
            )
            for plan in plans
        ]
    )


@router.get("/plans/{name}", operation_id="show_plan")
def show_plan(_: Viewer, name: str) -> dict[str, Any]:
    """Show a bundled plan as it can be submitted."""
    return bundled_plan(name)


@router.post("/plans/validate", operation_id="validate_plan")
def validate_plan(
    session: Reading,
    context: Service,
    _: Viewer,
    submission: Annotated[Submission, Body(examples=[{"plan": "demo"}])],
) -> ValidationView:
    """Check a plan (a bundled one's name, or the plan itself) with its overrides."""
    resolved = resolve_submission(submission)
    plan = resolved.parsed()
    waits = load_warnings(session, plan, context.now())
    return ValidationView(
        plan=resolved.plan,
        digest=resolved.plan_digest(),
        train=resolved.train,
        warnings=[*warnings_of(plan), *waits],
    )


@router.get("/schemas/{name}", operation_id="show_schema", tags=["schemas"])
def show_schema(_: Viewer, name: str) -> dict[str, Any]:
    """Return the JSON Schema of a document, or of what a workload takes (`nsa.train`)."""
    of_workloads = schema_documents()
    if name in of_workloads:
        return of_workloads[name]
    if name not in SCHEMAS:
        known = ", ".join([*SCHEMAS, *of_workloads])
        raise NotFound(f"there is no schema {name!r}; there are {known}")
    return schema(name)
