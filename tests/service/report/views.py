"""Report views for tests: a run that went well, and what a test changes about it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from gonogo.contract.api import ArtifactsView, ExperimentView, PhaseView, RunView
from gonogo.contract.decision import CriterionOutcome, CriterionResult, Decision, DecisionKind
from gonogo.contract.finding import Finding
from gonogo.contract.heartbeat import Identity, parse_heartbeat
from gonogo.contract.order import Order, ResumePoint
from gonogo.planning.resolve import build_order, resolve_plan
from gonogo.planning.source import bundled_plan
from gonogo.timeline.rank_steps import RankSteps
from gonogo.watch.registry import made_by
from service.report.view import RankNumbers, ReportView, RunReport, build_numbers
from tests.service.fake_worker import beats

EXPERIMENT = "exp_01J00000000000000000000000"
RUN = "run_01J00000000000000000000000"
AT = "2026-01-01T00:00:00.000+00:00"


def order_of(phase: str = "smoke", plan: str = "demo") -> Order:
    return build_order(
        resolve_plan(bundled_plan(plan)), phase, experiment=EXPERIMENT, run=RUN, attempt=1, token=1
    )


def decision(verdict: str = "GO", **more: Any) -> Decision:
    criteria = [
        CriterionResult(
            id="throughput",
            severity="required",
            outcome=CriterionOutcome.PASS if verdict == "GO" else CriterionOutcome.FAIL,
            observed=37.5,
            threshold={"pass_above": 45.0, "fail_below": 39.0},
            window="21..300",
            samples=280,
            evidence="median of toks_per_s is 37.5; ≥ 39 was asked",
        )
    ]
    return Decision(
        id="dec_01J00000000000000000000000", seq=1, experiment=EXPERIMENT, phase="smoke", run=RUN,
        kind=DecisionKind.AUTO, verdict=verdict, criteria=criteria, rule_digest="a" * 64,
        facts_digest="b" * 64, made_by=made_by(), actor="gonogo", at=AT, **more,
    )  # fmt: skip


def rank_beats(lines: Iterable[str]) -> RankSteps:
    return RankSteps(parse_heartbeat(line.encode()) for line in lines)


def numbers_of(order: Order, lines: Mapping[int, list[str]]) -> tuple[RankNumbers, ...]:
    said = {rank: rank_beats(rows) for rank, rows in lines.items()}
    return build_numbers(order, said)


def run_report(order: Order | None = None, **more: Any) -> RunReport:
    order = order or order_of()
    said = Identity.model_validate(order.identity.model_dump())
    run = RunReport(
        view=RunView(
            id=RUN, experiment=EXPERIMENT, phase=order.phase, attempt=1, reason="first",
            state="ended", outcome={"code": "completed", "actor": "trainer"}, verdict="GO",
            steps=order.steps, step=order.steps, created_at=AT, started_at=AT,
            ended_at="2026-01-01T00:06:12.000+00:00", host="gpu-7",
        ),
        order=order,
        preflight=None,
        ran={0: said, 1: said},
        ranks=numbers_of(order, {rank: beats(order, rank) for rank in range(2)}),
        findings=(),
        decision=decision(),
        artifacts=ArtifactsView(run=RUN, host="gpu-7", dir="/runs/x", reachable=False, items=[]),
    )  # fmt: skip
    return replace(run, **more)


def attempt(
    number: int, *, upto: int | None = None, after: str | None = None, step: int = 0, **more: Any
) -> RunReport:
    """An attempt of smoke, in steps of `number` tenths of a second, each with a loss of `number`.

    Args:
        number: of the attempt; its run is `run_{number}`.
        upto: the last step that it ended; None: all.
        after: run whose checkpoint it resumed from.
        step: the step of that checkpoint.
        more: fields of its view.
    """
    point = None if after is None else ResumePoint(path=f"/r/{after}/checkpoints/s", step=step)
    change = {"run": f"run_{number}", "attempt": number, "resume_from": point}
    order = order_of().model_copy(update=change)
    lines = {
        rank: [
            json.dumps({**row, **({"loss": number} if row["msg"] == "progress" else {})})
            for row in map(json.loads, beats(order, rank, upto=upto, step_s=number / 10))
        ]
        for rank in range(2)
    }
    run = run_report(order, ranks=numbers_of(order, lines))
    view = run.view.model_copy(
        update={"id": f"run_{number}", "attempt": number, "step": upto or 40, **more}
    )
    return replace(run, view=view)


def report_view(*runs: RunReport, plan: str = "demo", **more: Any) -> ReportView:
    experiment = ExperimentView(
        id=EXPERIMENT, name="my | experiment", plan=plan, state="finished", verdict="GO",
        phases=[PhaseView(name="smoke", state="passed", steps=40, verdict="GO", runs=[RUN])],
        created_at=AT, ended_at=AT,
    )  # fmt: skip
    changes = {name: more.pop(name) for name in list(more) if name in ExperimentView.model_fields}
    resolved = resolve_plan(bundled_plan(plan))
    view = ReportView(
        experiment=experiment.model_copy(update=changes), created_by="ann", plan=resolved.plan,
        plan_digest="c" * 64, train=resolved.train, fault=None, runs=runs,
        decisions=(decision(),), now=AT, url="http://127.0.0.1:8750",
    )  # fmt: skip
    return replace(view, **more)


def halt_finding(**more: Any) -> Finding:
    return Finding.model_validate(
        {
            "detector": "stall", "severity": "halt", "rank": 1, "section": "backward", "step": 12,
            "value": 18.6, "threshold": 15.0, "at": 1.0, "key": "k",
            "evidence": ["evidence/01_stall/stacks_rank1.txt"],
            "text": "rank 1 stands in backward", **more,
        }
    )  # fmt: skip
