"""Do the commands in a report do the same again?"""

from __future__ import annotations

import shlex
from dataclasses import replace

import pytest
import yaml

from gonogo.contract.api import ArtifactsView, OriginView
from gonogo.contract.decision import Condition, ConditionState
from gonogo.planning.resolve import is_bundled, resolve_plan
from gonogo.planning.source import bundled_plan
from service.report.gates import condition_table
from service.report.repeat import (
    check_lines,
    plan_text,
    repeat_parts,
    submit_lines,
)
from service.report.view import ReportView
from tests.service.report.views import EXPERIMENT, decision, report_view, run_report


def view_of(sets: dict[str, object] | None = None, **more: object) -> ReportView:
    resolved = resolve_plan(bundled_plan("demo"), sets)
    return replace(
        report_view(run_report(), **more),
        plan=resolved.plan,
        plan_digest=resolved.plan_digest(),
        fault=resolved.fault,
    )


def test_a_bundled_plan_is_submitted_by_its_name() -> None:
    view = view_of()
    assert is_bundled(view.experiment.plan, view.plan)
    text = "\n".join(repeat_parts(view))
    assert "gonogo submit demo --name" in text
    assert "```yaml" not in text


def test_a_changed_plan_comes_with_its_text_and_has_the_same_digest_again() -> None:
    view = view_of({"phases.smoke.steps": 12, "train.seed": 7})
    assert not is_bundled(view.experiment.plan, view.plan)
    text = "\n\n".join(repeat_parts(view))
    assert "gonogo submit plan.yaml" in text
    (stood,) = (part for part in text.split("```yaml\n")[1:])
    again = resolve_plan(yaml.safe_load(stood.split("\n```")[0]))
    assert again.plan_digest() == view.plan_digest
    assert again.train == resolve_plan(bundled_plan("demo"), {"train.seed": 7}).train


def test_a_plan_that_nobody_here_knows_is_written_out() -> None:
    view = view_of()
    named = view.experiment.model_copy(update={"plan": "by-hand"})
    assert "gonogo submit plan.yaml" in "\n".join(repeat_parts(replace(view, experiment=named)))


def test_the_submission_names_fault_labels_and_origin_and_nothing_leaves_its_word() -> None:
    origin = OriginView(experiment="exp_x", phase="smoke", step=20)
    view = view_of(
        {"fault": "nan:step=15"}, name="a; rm -rf /", labels={"a": "$(x)"}, origin=origin
    )
    words = shlex.split(submit_lines(view, "demo").splitlines()[-1])
    assert words == [
        "gonogo", "submit", "demo", "--name", "a; rm -rf /", "--set", "fault=nan:step=15",
        "--label", "a=$(x)", "--from", "exp_x:smoke@20",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("sha", "line"),
    [
        ("a" * 40, f"git checkout {'a' * 40}"),
        ("a" * 40 + "+" + "b" * 12, f"git checkout {'a' * 40}"),
        ("release; reboot", None),
        ("a" * 40 + "\nreboot", None),
    ],
)
def test_the_code_is_named_where_it_is_a_commit(sha: str, line: str | None) -> None:
    run = run_report()
    run = replace(run, ran={0: run.ran[0].model_copy(update={"git_sha": sha})})
    lines = submit_lines(replace(view_of(), runs=(run,)), "demo").splitlines()
    assert (lines[0] == line) is (line is not None)
    assert "reboot" not in "\n".join(lines)
    assert any("not committed, of the digest bbbbbbbbbbbb" in row for row in lines) is ("+" in sha)


def test_every_run_is_judged_where_it_lies_and_every_decision_replayed() -> None:
    view = view_of()
    assert check_lines(view) == [
        "gonogo judge /runs/x  # on gpu-7",
        "gonogo replay dec_01J00000000000000000000000",
        "gonogo verify --anchor ",
    ]
    here = ArtifactsView(run="r", host="a\nb", dir="/r u/x", reachable=False, items=[])
    odd = replace(view, runs=(run_report(artifacts=here),), decisions=())
    assert check_lines(odd) == ["gonogo judge '/r u/x'  # on a b"]
    assert EXPERIMENT.startswith("exp_")
    assert plan_text(view).startswith("v: 1") or "name: demo" in plan_text(view)


def test_what_the_plan_waives_is_told_of_no_person() -> None:
    waived = Condition(
        id="smoke:identity", text="waived by name", criterion="identity",
        state=ConditionState.WAIVED,
    )  # fmt: skip
    view = view_of(conditions=[waived])
    told = "# a person waived the condition smoke:identity"
    assert told in submit_lines(view, "demo")
    by_plan = replace(view, decisions=(decision("CONDITIONAL_GO", conditions=[waived]),))
    assert told not in submit_lines(by_plan, "demo")
    assert "a person" not in condition_table([waived])
    still = waived.model_copy(update={"state": ConditionState.OPEN})
    assert "a person" in condition_table([still])
