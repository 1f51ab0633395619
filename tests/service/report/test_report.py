"""The first page of a report, and the details below it."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import replace
from typing import Any

import pytest
import yaml

from gonogo.contract.api import Forecast, OriginView, OverrideView
from gonogo.contract.decision import Condition, ConditionState, DecisionKind, Verdict
from gonogo.contract.goodput import ExperimentGoodput, Part, goodput_of
from gonogo.contract.lifecycle import ExperimentState
from gonogo.contract.order import LeftOut
from gonogo.contract.workload import OURS
from gonogo.planning.resolve import resolve_plan
from gonogo.planning.source import bundled_plan
from service.evidence.artifacts import Excerpt
from service.report.details import (
    build_report,
    memory_table,
    repeat_parts,
    step_table,
    submit_lines,
)
from service.report.summary import slowest_section, title_of
from service.report.view import (
    RankNumbers,
    ReportView,
    RunReport,
    build_numbers,
    build_series,
    read_samples,
)
from tests.service.fake_worker import beats
from tests.service.report.views import (
    AT,
    EXPERIMENT,
    RUN,
    attempt,
    decision,
    halt_finding,
    order_of,
    rank_beats,
    report_view,
    run_report,
)


def sick(code: str = "stalled", diagnosis: str = "hang_in_compute", **more: Any) -> RunReport:
    run = run_report()
    outcome = {"code": code, "actor": "watchdog", "text": "rank 1 stands in backward"}
    return replace(
        run,
        view=run.view.model_validate({**run.view.wire(), "outcome": outcome, "verdict": "NO_GO"}),
        findings=(halt_finding(),),
        decision=decision("NO_GO", diagnosis=diagnosis),
        stack=Excerpt(name="evidence/01_stall/stacks_rank1.txt", text="main\n  spin (a.py:1)"),
        log=Excerpt(name="rank1.log", text="Traceback ``` here"),
        **more,
    )


def report_of(*runs: RunReport, **more: Any) -> str:
    return build_report(report_view(*runs, **more))


def no_go(run: RunReport, **more: Any) -> str:
    return report_of(run, verdict=Verdict.NO_GO, decisions=(run.decision,), **more)


def section(text: str, head: str) -> str:
    return text.split(f"## {head}")[1].split("\n## ")[0]


def test_the_first_page_has_verdict_cause_numbers_one_chart_and_advice() -> None:
    text = no_go(sick(), fault="hang:rank=1")
    top = text.split("\n## ")[0]
    assert top.startswith("# NO_GO: my \\| experiment")
    for part in (
        "| cause | smoke: stall (rank 1, backward): rank 1 stands in backward |",
        "gonogo (auto), `dec_01J00000000000000000000000`",
        "`hang:rank=1`",
        "**Recommendation.** Stop. Read the stack dump",
        "| smoke | stalled | **NO_GO** | 40 / 40 | 5.5000 | 3.0625 |",
    ):
        assert part in top
    assert re.findall(r"\]\((\S+)\)", top) == ["overview.svg"]


def test_finding_diagnosis_stack_and_log_of_a_sick_run_come_next() -> None:
    first = no_go(sick()).split("\n## ")[1]
    assert first.startswith(f"Look here first: smoke `{RUN}`")
    for part in ("**halt** `stall`", "**hang_in_compute**", "spin (a.py:1)", "````\nTraceback"):
        assert part in first
    assert "`throughput` | required | **FAIL** | 37.5 | ≥ 45, fails \\< 39" in first


@pytest.mark.parametrize(("entry", "patched"), [(OURS, True), ("my.trainer", False)])
def test_patches_are_shown_for_our_own_program_only(entry: str, patched: bool) -> None:
    run = sick("non_finite", "non_finite_loss")
    assert run.order is not None
    text = no_go(replace(run, order=run.order.model_copy(update={"entry": entry})))
    assert ("Patch: `" in text) is patched


@pytest.mark.parametrize(("reason", "made_good"), [("resume", True), ("confirm", False)])
def test_a_run_that_a_later_attempt_made_good_is_no_cause(reason: str, made_good: bool) -> None:
    first = attempt(1, upto=20)
    halted = {"code": "halted", "actor": "operator", "text": "lunch"}
    bad = first.view.model_validate(
        {**first.view.wire(), "outcome": halted, "verdict": "INCONCLUSIVE"}
    )
    second = attempt(2, after="run_1", step=20, reason=reason)
    text = report_of(replace(first, view=bad), second)
    assert ("| cause | 1 of 1 phases passed with GO |" in text) is made_good
    assert ("## Look here first: smoke `run_1`" in text) is not made_good


@pytest.mark.parametrize("state", [ConditionState.MET, ConditionState.OPEN])
def test_a_conditional_phase_whose_conditions_were_met_is_no_cause(state: ConditionState) -> None:
    met = state is ConditionState.MET
    left = Condition(id="smoke:pace", text="slow", criterion="pace", state=state)
    run = run_report(decision=decision("CONDITIONAL_GO"))
    view = run.view.model_copy(update={"verdict": Verdict.CONDITIONAL_GO})
    text = report_of(replace(run, view=view), conditions=[left])
    assert ("Look here first" in text) is not met
    assert f"| `smoke:pace` | **{state}** | slow |" in text.split("\n## ")[0]


@pytest.mark.parametrize("verdict", Verdict)
def test_a_verdict_by_hand_is_no_evidence(verdict: Verdict) -> None:
    override = OverrideView(
        decision="dec_1", phase="smoke", verdict=verdict, evidence=Verdict.GO,
        actor="ann", reason="seen", at=AT,
    )  # fmt: skip
    by_hand = decision(verdict).model_copy(update={"kind": DecisionKind.HUMAN, "by_hand": True})
    view = report_view(run_report(), verdict=verdict, overrides=[override], decisions=(by_hand,))
    assert title_of(view).startswith(f"{verdict} by hand: ")
    text = build_report(view)
    assert "**Recommendation.** A person decided, not the evidence." in text
    assert f"| smoke | **{verdict} by hand** | **GO** | ann | seen |" in text


@pytest.mark.parametrize(
    ("waiting_for", "said"),
    [
        (None, "Nothing is decided yet. The experiment continues."),
        ("a sign of life", "The experiment waits for a sign of life."),
    ],
)
def test_a_running_experiment_says_what_it_waits_for(waiting_for: str | None, said: str) -> None:
    text = report_of(
        state=ExperimentState.RUNNING, verdict=None, decisions=(), waiting_for=waiting_for
    )
    assert text.startswith("# no verdict yet: ")
    assert "| so far | 1 of 1 phases passed with GO |" in text
    assert said in text


def test_every_table_has_as_many_cells_in_each_row() -> None:
    run = sick()
    for found in re.findall(r"(?:^\|.*\n)+", no_go(run) + "\n", re.M):
        rows = [re.sub(r"\\\\|\\\|", "", row) for row in found.splitlines()]
        assert {row.count("|") for row in rows} == {rows[0].count("|")}, found


def test_a_run_shows_its_gate_and_what_was_not_observed() -> None:
    doubts = [
        {"kind": "metric_missing", "name": "loss", "found": "nothing records it"},
        {"kind": "record_missing", "name": "watch.jsonl"},
    ]
    order = order_of().model_copy(update={"left_out": [LeftOut(id="util", why="no devices")]})
    run = run_report(decision=decision(facts={"doubts": doubts}))
    text = report_of(replace(run, order=order, change={"env": {"A": "1"}}))
    part = section(text, "smoke")
    assert "Left out: `util`: no devices." in part
    assert 'Changed: `{"env": {"A": "1"}}`.' in part
    listed = part.split("#### Not observed\n\n")[1].split("\n\n")[0].splitlines()
    assert listed[:2] == ["- loss: nothing records it", "- watch.jsonl: it is missing"]
    assert listed[-1] == "- files of the run: they lie on gpu-7 at /runs/x"
    assert [row.split(":")[0] for row in listed[2:5]] == [
        "- device utilisation", "- device memory", "- host memory",
    ]  # fmt: skip
    assert "no rank wrote a heartbeat" in report_of(run_report(ranks=(), ran={}, decision=None))


@pytest.mark.parametrize(
    ("sections", "said"),
    [
        ({"data": 0.001}, "data 5.0 %"),
        ({"data": 0.001, "backward": 0.01}, "backward 50.0 %"),
        ({"data": 0.03, "forward": 0.01}, "data 75.0 %"),  # fetched between two steps
        ({}, None),
    ],
)
def test_a_section_is_a_share_of_the_whole_step(
    sections: dict[str, float], said: str | None
) -> None:
    series = {
        name: build_series({1: value}) for name, value in {"step_s": 0.02, **sections}.items()
    }
    run = run_report(ranks=(RankNumbers(rank=0, last_step=9, series=series),))
    assert slowest_section(run) == said
    if said is not None:
        assert f"({said.split(maxsplit=1)[1]})" in step_table(run)


@pytest.mark.parametrize(("plan", "there"), [("m7c-125m", True), ("demo", False)])
def test_the_figures_of_the_field_stand_beside_the_125m_plan(plan: str, there: bool) -> None:
    text = report_of(run_report(order_of("smoke", plan)), plan=plan)
    assert ("37–38 tok/s" in text) is there


def test_a_field_that_the_order_leaves_open_is_not_called_equal() -> None:
    run = run_report()
    assert run.order is not None
    identity = run.order.identity.model_copy(update={"git_sha": None})
    order = run.order.model_copy(update={"identity": identity})
    shas = {0: "f" * 40, 1: "e" * 40}
    ran = {rank: run.ran[0].model_copy(update={"git_sha": sha}) for rank, sha in shas.items()}
    text = report_of(replace(run, order=order, ran=ran))
    (row,) = (line for line in text.splitlines() if line.startswith("| git_sha "))
    assert "not checked" in row
    assert f"rank 0: `{'f' * 20}…`; rank 1: `{'e' * 20}…`" in row
    assert "| vocab | `256` | `256` | all |" in text


def test_the_claim_stands_beside_the_forecast_and_what_it_took() -> None:
    forecast = Forecast(seconds_p50=62 * 86_400.0, claimed_seconds=40 * 3_600.0)
    text = report_of(run_report(), forecast=forecast, state=ExperimentState.RUNNING)
    assert "From now: 62.0 days" in text
    assert "Claimed: 40.0 h." in text
    over = {"started_at": AT, "ended_at": AT.replace("T00", "T02")}
    text = report_of(run_report(), forecast=Forecast(claimed_seconds=3_600.0), **over)
    assert "Claimed: 1.0 h. It took 2.0 h." in text


def test_the_account_of_time_is_a_table() -> None:
    spent = {Part.QUEUE: 600.0, Part.START: 60.0, Part.PRODUCTIVE: 1800.0, Part.UNKNOWN: 90.0}
    found = goodput_of(spent)
    goodput = ExperimentGoodput(experiment=EXPERIMENT, runs={RUN: found}, **dict(found))
    told = section(report_of(run_report(), goodput=goodput), "Goodput")
    assert "Effective: at least 92.3 % of 42 min 30 s." in told
    assert "| productive | 30 min 0 s |\n| queue | 10 min 0 s |" in told
    assert "No account was taken." in report_of(run_report())


def test_steps_have_the_utilisation_and_the_memory_of_their_devices() -> None:
    order = order_of()
    said = {rank: rank_beats(beats(order, rank)) for rank in range(2)}
    begins = json.loads(beats(order, 0)[2])["mono"]
    lines = (
        json.dumps(
            {
                "ts": 1.0, "mono": begins + step, "uuid": f"GPU-{rank}", "rank": rank,
                "util": 50.0 + rank, "mem_used_mb": 1000.0 + step,
            }
        ).encode()
        for rank in range(2)
        for step in range(9)
    )  # fmt: skip
    ranks = build_numbers(order, said, list(read_samples(b"\n".join([b"{", *lines]))))
    assert [rank.median("util") for rank in ranks] == [50.0, 51.0]
    assert memory_table(run_report(ranks=ranks)) == (
        "| rank | device memory, peak | device utilisation, median |\n|---|---|---|\n"
        "| 0 | 1.008 GB | 50 % |\n| 1 | 1.008 GB | 51 % |"
    )
    assert memory_table(run_report()) == "", "what devices do not report is not zero"


def planned(sets: dict[str, object] | None = None, **more: Any) -> ReportView:
    resolved = resolve_plan(bundled_plan("demo"), sets)
    shown = report_view(run_report(), **more)
    digest = resolved.plan_digest()
    return replace(shown, plan=resolved.plan, plan_digest=digest, fault=resolved.fault)


def test_a_bundled_plan_is_repeated_by_its_name_and_a_changed_one_by_its_text() -> None:
    text = "\n\n".join(repeat_parts(planned()))
    assert "gonogo submit demo --name" in text
    assert "```yaml" not in text
    assert "gonogo replay dec_01J00000000000000000000000\ngonogo verify --anchor" in text
    view = planned({"phases.smoke.steps": 12, "train.seed": 7})
    text = "\n\n".join(repeat_parts(view))
    assert "gonogo submit plan.yaml" in text
    again = resolve_plan(yaml.safe_load(text.split("```yaml\n")[1].split("\n```")[0]))
    assert again.plan_digest() == view.plan_digest


def test_the_command_names_code_fault_labels_and_origin_and_nothing_leaves_its_word() -> None:
    origin = OriginView(experiment="exp_x", phase="smoke", step=20)
    view = planned(
        {"fault": "nan:step=15"}, name="a; rm -rf /", labels={"a": "$(x)"}, origin=origin
    )
    run = view.runs[0]
    ran = {0: run.ran[0].model_copy(update={"git_sha": "abcdef1+0123"})}
    checkout, changed, submit = submit_lines(replace(view, runs=(replace(run, ran=ran),)), "demo")
    assert (checkout, "0123" in changed) == ("git checkout abcdef1", True)
    assert shlex.split(submit) == [
        "gonogo", "submit", "demo", "--name", "a; rm -rf /", "--set", "fault=nan:step=15",
        "--label", "a=$(x)", "--from", "exp_x:smoke@20",
    ]  # fmt: skip
