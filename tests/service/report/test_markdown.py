"""Does the report say the verdict and its cause first, and everything that they rest on?"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from gonogo.contract.api import Forecast, OverrideView
from gonogo.contract.decision import Condition, Verdict
from gonogo.contract.heartbeat import Identity
from gonogo.contract.lifecycle import ExperimentState
from gonogo.contract.order import LeftOut, ResumePoint
from gonogo.contract.workload import OURS
from service.report.evidence import Excerpt
from service.report.markdown import build_report
from service.report.sections import slowest_section, step_table
from service.report.view import RankNumbers
from service.report.writing import _title
from tests.service.report.views import (
    EXPERIMENT,
    RUN,
    attempt,
    decision,
    halt_finding,
    order_of,
    report_view,
    run_report,
)


def hung() -> str:
    run = run_report()
    outcome = {"code": "stalled", "actor": "watchdog", "text": "rank 1 stands in backward"}
    run = replace(
        run,
        view=run.view.model_validate({**run.view.wire(), "outcome": outcome, "verdict": "NO_GO"}),
        findings=(halt_finding(),),
        decision=decision("NO_GO", diagnosis="hang_in_compute"),
        stack=Excerpt(name="evidence/01_stall/stacks_rank1.txt", text="main\n  spin (a.py:1)"),
        log=Excerpt(name="rank1.log", text="Traceback ``` here"),
    )
    return build_report(
        report_view(
            run,
            verdict=Verdict.NO_GO,
            fault="hang:rank=1",
            decisions=(decision("NO_GO", diagnosis="hang_in_compute"),),
        )
    )


def test_the_verdict_and_its_cause_stand_in_the_first_lines() -> None:
    top = hung()[:600]
    assert top.startswith("# NO_GO: my \\| experiment")
    assert "stall (rank 1, backward): rank 1 stands in backward" in top
    assert "gonogo (auto), `dec_01J00000000000000000000000`" in top
    assert "`hang:rank=1`" in hung()


def test_a_sick_run_shows_finding_diagnosis_stack_and_log_before_the_phases() -> None:
    text = hung()
    first_look, rest = text.split("## Phases")
    for part in ("**halt** `stall`", "hang_in_compute", "spin (a.py:1)", "Traceback"):
        assert part in first_look
    assert "evidence/01_stall/stacks_rank1.txt" in rest
    assert "read the stack dump" in first_look.lower()


def test_a_remedy_is_told_as_it_is_typed_and_patches_only_of_our_own_program() -> None:
    assert "NSA_SDPA_NO_FLASH" in recommended(OURS)
    assert "Patch: `" in recommended(OURS)
    assert "Patch: " not in recommended("my.trainer")


def recommended(entry: str) -> str:
    run = run_report()
    assert run.order is not None
    outcome = {"code": "non_finite", "actor": "watchdog", "text": "loss is nan"}
    run = replace(
        run,
        view=run.view.model_validate({**run.view.wire(), "outcome": outcome, "verdict": "NO_GO"}),
        order=run.order.model_copy(update={"entry": entry}),
        findings=(halt_finding(),),
        decision=decision("NO_GO", diagnosis="non_finite_loss"),
    )
    text = build_report(report_view(run, verdict=Verdict.NO_GO, decisions=(run.decision,)))
    assert "**Recommendation.** Do not go on. Check the losses" in text
    assert "nsa_sdpa" not in text
    return text


@pytest.mark.parametrize(("reason", "made_good"), [("resume", True), ("confirm", False)])
def test_a_halt_that_a_later_attempt_made_good_is_no_cause(reason: str, made_good: bool) -> None:
    halted = {"code": "halted", "actor": "operator", "text": "lunch"}
    first = attempt(1, upto=20)
    bad = first.view.model_validate(
        {**first.view.wire(), "outcome": halted, "verdict": "INCONCLUSIVE"}
    )
    second = attempt(2, after="run_1", step=20, reason=reason)
    text = build_report(report_view(replace(first, view=bad), second))
    assert ("| cause | 1 of 1 phases passed with GO |" in text) is made_good
    assert ("### Look here first: smoke `run_1`" in text) is not made_good


def test_a_confirmation_that_failed_is_no_cause_but_the_run_that_it_was_made_of() -> None:
    """It had no decision: the report of a NO_GO named it, as completed, and showed nothing."""
    first = attempt(1, upto=20)
    sick = {"code": "non_finite", "actor": "watchdog", "text": "loss is nan"}
    bad = first.view.model_validate({**first.view.wire(), "outcome": sick, "verdict": "NO_GO"})
    second = attempt(2, after="run_1", step=20, reason="confirm")
    worse = second.view.model_copy(update={"verdict": Verdict.NO_GO})
    runs = replace(first, view=bad, findings=(halt_finding(),)), replace(second, view=worse)
    view = report_view(*runs, verdict=Verdict.NO_GO)
    text = build_report(view)
    assert "### Look here first: smoke `run_1`" in text
    assert view.culprit is runs[0]


def test_the_numbers_are_those_of_the_heartbeats() -> None:
    text = build_report(report_view(run_report()))
    # fake_worker: loss 5.5 − 2.5·(step − 1)/40, steps of 0.2 s, backward 0.1 s of 0.171 s
    row = next(line for line in text.splitlines() if line.startswith("| smoke | fresh | completed"))
    assert row.endswith(f"| `{RUN}` |")
    for cell in ("40 / 40", "5.5000", "3.0625", "0.2 s", "backward 50.0 %", "6 min 12 s"):
        assert f"| {cell} |" in row
    assert "| 10240 |" in row


def test_the_gate_shows_what_was_observed_beside_its_threshold() -> None:
    text = build_report(report_view(run_report()))
    row = next(line for line in text.splitlines() if line.startswith("| `throughput`"))
    assert "| 37.5 | ≥ 45, fails \\< 39 | 21..300 | 280 |" in row


def test_what_ran_is_held_against_what_was_ordered() -> None:
    run = run_report()
    toy = run.ran[1].model_copy(update={"dim": 128, "params": 254_499})
    text = build_report(report_view(replace(run, ran={0: run.ran[0], 1: toy})))
    dim = next(line for line in text.splitlines() if line.startswith("| dim "))
    assert "rank 1: `128`" in dim
    assert "**DIFFERS**" in dim
    params = next(line for line in text.splitlines() if line.startswith("| params "))
    assert "254499" in params
    assert "**DIFFERS**" in params
    assert "| seq_len | `512` | `512` | `512` | equal |" in text


def test_what_no_rank_told_is_not_held_to_differ() -> None:
    run = run_report()
    mute = run.ran[1].model_copy(update={"dim": None, "params": None})
    other = run.ran[0].model_copy(update={"dim": 1, "params": 1})
    differs = "**DIFFERS**, where told"
    for ran, dim, params in (
        ({0: mute, 1: mute}, "not told", "not told"),
        ({0: run.ran[0], 1: mute}, "equal, where told", "equal within 2 %, where told"),
        ({0: other, 1: mute}, differs, differs),
        (run.ran, "equal", "equal within 2 %"),
    ):
        lines = build_report(report_view(replace(run, ran=ran))).splitlines()
        found = {row.split(" | ")[0]: row for row in lines}
        assert found["| dim"].endswith(f"| {dim} |")
        assert found["| params"].endswith(f"| {params} |")


def test_what_was_not_observed_is_said() -> None:
    text = build_report(report_view(run_report()))
    assert "device memory: no rank reports any" in text
    assert "device utilisation" in text
    assert "they lie on gpu-7 at /runs/x" in text


def test_what_the_decision_did_not_observe_stands_in_the_report() -> None:
    doubts = [
        {"kind": "metric_missing", "name": "loss", "found": "nothing records it"},
        {"kind": "record_missing", "name": "watch.jsonl"},
    ]
    texts = ["loss: nothing records it", "watch.jsonl: it is missing"]
    text = build_report(report_view(run_report(decision=decision(facts={"doubts": doubts}))))
    listed = text.split("### Not observed\n\n")[1].split("\n\n")[0].splitlines()
    assert listed[:2] == [f"- {said}" for said in texts]
    assert any(row.startswith("- device memory: ") for row in listed)
    assert any(row.startswith("- device utilisation: ") for row in listed)


def test_a_run_without_heartbeats_says_so() -> None:
    text = build_report(report_view(run_report(ranks=(), ran={}, counted=None, decision=None)))
    assert "no rank wrote a heartbeat" in text


def test_left_out_criteria_are_listed_with_their_reason() -> None:
    order = order_of().model_copy(update={"left_out": [LeftOut(id="util", why="no devices")]})
    text = build_report(report_view(replace(run_report(), order=order)))
    assert "Left out: `util`: no devices." in text


@pytest.mark.parametrize(
    ("said", "advice"),
    [
        ("GO", "go on at that person's word alone"),
        ("CONDITIONAL_GO", "go on at that person's word alone"),
        ("NO_GO", "do not go on"),
        ("INCONCLUSIVE", "nothing follows from it"),
    ],
)
def test_a_word_by_hand_is_recommended_as_what_it_says(said: str, advice: str) -> None:
    word = OverrideView(
        decision="dec_1", phase="smoke", verdict=Verdict(said), evidence=Verdict.GO,
        actor="ann", reason="seen", at="2026-01-01T00:00:00.000+00:00",
    )  # fmt: skip
    view = report_view(run_report(), verdict=Verdict(said), overrides=[word])
    assert _title(view).startswith(f"{said} by hand: "), "of the page, too"
    text = build_report(view)
    assert f"**Recommendation.** A person decided, not the evidence; {advice}." in text


def test_conditions_stand_in_the_summary() -> None:
    condition = Condition(
        id="smoke:throughput", text="throughput ≥ 50", criterion="throughput",
        evidence_from="extended", due="production",
    )  # fmt: skip
    view = report_view(run_report(), verdict=Verdict.CONDITIONAL_GO, conditions=[condition])
    summary = build_report(view).split("## Phases")[0]
    assert "| `smoke:throughput` | **open** | throughput ≥ 50 | extended | production |" in summary


def test_a_claim_stands_beside_the_forecast() -> None:
    forecast = Forecast(seconds_p50=62 * 86_400.0, claimed_seconds=40 * 3_600.0)
    text = build_report(report_view(run_report(), forecast=forecast, state=ExperimentState.RUNNING))
    assert "From now: 62.0 days" in text
    assert "Claimed: 40.0 h." in text


def test_a_claim_stands_beside_what_was_measured_when_it_is_over() -> None:
    began = "2026-01-01T00:00:00.000+00:00"
    over = {"started_at": began, "ended_at": began.replace("T00", "T02")}
    text = build_report(
        report_view(run_report(), forecast=Forecast(claimed_seconds=3_600.0), **over)
    )
    assert "Claimed: 1.0 h; it took 2.0 h." in text


@pytest.mark.parametrize(("plan", "there"), [("m7c-125m", True), ("demo", False)])
def test_the_fields_figures_stand_beside_the_125m_plan_only(plan: str, there: bool) -> None:
    text = build_report(report_view(run_report(order_of("smoke", plan)), plan=plan))
    assert ("37–38 tok/s" in text) is there
    assert ("62 days" in text) is there


def test_every_decision_comes_with_its_replay() -> None:
    assert "gonogo replay dec_01J00000000000000000000000" in build_report(report_view(run_report()))


def test_the_same_view_gives_the_same_text() -> None:
    assert build_report(report_view(run_report())) == build_report(report_view(run_report()))


def test_every_table_has_as_many_cells_in_each_row() -> None:
    for table in re.findall(r"(?:^\|.*\n)+", hung() + "\n", re.M):
        rows = [re.sub(r"\\\\|\\\|", "", row) for row in table.splitlines()]
        assert {row.count("|") for row in rows} == {rows[0].count("|")}, table


def test_an_experiment_without_a_run_has_a_report() -> None:
    text = build_report(
        report_view(
            state=ExperimentState.QUEUED,
            verdict=None,
            decisions=(),
            no_plots="no run has two steps yet",
        )
    )
    assert text.startswith("# no verdict yet: ")
    assert "| smoke | fresh | passed | – | 0 / 40 |" in text
    assert EXPERIMENT in text


def test_an_unchecked_identity_field_is_not_called_equal() -> None:
    run = run_report()
    order = run.order
    assert order is not None
    order = order.model_copy(
        update={"identity": Identity(**{**order.identity.model_dump(), "git_sha": None})}
    )
    said = run.ran[0].model_copy(update={"git_sha": "f" * 40})
    text = build_report(report_view(replace(run, order=order, ran={0: said, 1: said})))
    sha = next(line for line in text.splitlines() if line.startswith("| git_sha "))
    assert "not checked" in sha
    assert not sha.rstrip(" |").endswith("equal")


@pytest.mark.parametrize(
    ("begun", "said"),
    [
        ({}, "fresh"),
        (
            {"init_from": "sanity", "resume_from": ResumePoint(path="/r/run_0/s", step=0)},
            "with the weights of sanity",
        ),
        (
            {"init_from": "sanity", "resume_from": ResumePoint(path="/r/run_1/s", step=20)},
            "continues after step 20",
        ),
    ],
    ids=["fresh", "weights", "resumed"],
)
def test_the_report_says_what_every_run_began_with(begun: dict[str, Any], said: str) -> None:
    run = run_report()
    run = replace(run, view=run.view.model_copy(update=begun))
    text = build_report(report_view(run))
    assert f"| smoke | {said} | completed |" in text
    assert f"first, {run.view.began}, on gpu-7" in text


def test_what_waits_is_not_said_to_go_on_by_itself() -> None:
    going = report_view(state=ExperimentState.RUNNING, verdict=None, decisions=())
    assert "Nothing yet: it goes on by itself." in build_report(going)
    waits = "a sign of life of run run_1 on host gpu-7 (or a takeover)"
    lost = report_view(state=ExperimentState.RUNNING, verdict=None, decisions=(), waiting_for=waits)
    text = build_report(lost)
    assert f"it waits for {waits}." in text
    assert "by itself" not in text


def test_what_has_no_verdict_yet_has_come_so_far_for_no_cause() -> None:
    going = report_view(state=ExperimentState.RUNNING, verdict=None, decisions=())
    assert "| so far | 1 of 1 phases passed with GO |" in build_report(going)
    assert "| cause | 1 of 1 phases passed with GO |" in build_report(report_view(run_report()))


@pytest.mark.parametrize(
    ("sections_s", "said"),
    [
        ({"data": 0.001}, "data 5.0 %"),  # what else the step does is not named
        ({"data": 0.001, "backward": 0.01, "wait": None}, "backward 50.0 %"),
        ({"data": 0.03, "forward": 0.01}, "data 75.0 %"),  # fetched between two steps
        ({}, None),
    ],
)
def test_a_section_is_told_as_a_share_of_the_whole_step(
    sections_s: dict[str, float | None], said: str | None
) -> None:
    rank = RankNumbers(rank=0, final_step=9, median_step_s=0.02, sections_s=sections_s)
    run = replace(run_report(), ranks=(rank,))
    assert slowest_section(run) == said
    if said is not None:
        assert f"({said.split(maxsplit=1)[1]})" in step_table(run)
