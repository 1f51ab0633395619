"""Does the timeline tell what happened, each thing once and in its order?"""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from gonogo.contract.api import EventView
from service.report.plots import draw
from service.report.timeline import MAX_ROWS, Moment, What, moments_of, timeline_table
from service.report.timeline_picture import Tone, timeline_picture
from tests.service.report.views import AT, EXPERIMENT, RUN, halt_finding, report_view, run_report

BEGAN = datetime.fromisoformat(AT).timestamp()


def event(kind: str, at_s: float, /, *, actor: str = "conductor", **data: Any) -> EventView:
    place = {name: data.pop(name) for name in ("run", "phase") if name in data}
    return EventView(
        id=f"evt_{at_s}", experiment=EXPERIMENT, seq=int(at_s), type=kind, actor=actor,
        at=datetime.fromtimestamp(BEGAN + at_s, UTC).isoformat(), data=data, **place,
    )  # fmt: skip


def lines(*events: EventView, **more: Any) -> list[tuple[str, str]]:
    view = replace(report_view(run_report(**more)), events=events)
    return [(row.what.value, row.text) for row in moments_of(view)]


def test_every_kind_of_event_is_told() -> None:
    run: dict[str, Any] = {"run": RUN, "phase": "smoke", "attempt": 1}
    told = lines(
        event("experiment.state", 0, state="queued", plan="demo", actor="ann"),
        event("experiment.state", 1, state="running", before="queued"),
        event("phase.state", 2, phase="smoke", state="active", before="pending"),
        event("phase.carried", 2.5, phase="smoke", text="the remedy of oom from sanity: {}"),
        event("run.state", 3, state="queued", reason="first", resume_from=None, **run),
        event("run.state", 4, state="claimed", before="queued", **run),
        event("run.state", 5, state="running", before="starting", **run),
        event("experiment.stop", 6, kind="halt", reason="too | hot", actor="bob"),
        event("run.state", 7, state="ended", before="halting", **run),
        event("decision.made", 8, phase="smoke", kind="auto", verdict="GO", reason="all passed"),
        event("decision.made", 9, phase="smoke", kind="human", verdict="NO_GO", reason=None),
        event("experiment.resume", 10, phase="smoke", reason=""),
        event("run.lost", 11, text="nothing was heard for 30 s", **run),
        event("experiment.state", 12, state="finished", before="running"),
    )
    assert told == [
        ("experiment", "submitted"),
        ("experiment", "begins"),
        ("phase", "begins"),
        ("remedy", "runs under the remedy of oom from sanity: {}"),
        ("run", "attempt 1 is queued (first)"),
        ("run", "attempt 1 trains"),
        ("person", "halt is asked for: too \\| hot"),
        ("run", "attempt 1 ended: completed, by trainer"),
        ("decision", "**GO** (auto): all passed"),
        ("person", "**NO_GO by hand** (human)"),
        ("person", "resume is asked for"),
        ("service", "run lost: nothing was heard for 30 s"),
        ("experiment", "finished"),
    ]


def test_a_finding_is_told_once_at_its_own_moment() -> None:
    told = lines(
        event("phase.state", 2, phase="smoke", state="active"),
        event("finding", 9, run=RUN, phase="smoke", text="rank 1 stands in backward"),
        event("phase.state", 5, phase="smoke", state="failed"),
        findings=(halt_finding(at=BEGAN + 3),),
    )
    assert told == [
        ("phase", "begins"),
        ("halt", "halt: stall, rank 1, step 12: rank 1 stands in backward"),
        ("phase", "failed"),
    ]


def test_a_remedy_says_what_it_changes_and_a_resume_where_it_goes_on() -> None:
    data: dict[str, Any] = {"run": RUN, "phase": "smoke", "state": "queued", "attempt": 2}
    change = {"env": {"NSA_TB_DISABLE": "1"}}
    (remedy,) = lines(event("run.state", 1, reason="remedy", **data), change=change)
    assert remedy == (
        "remedy",
        'attempt 2 is queued (remedy: {"env": {"NSA_TB_DISABLE": "1"}})',
    )
    point = {"path": "/x", "step": 20}
    (resume,) = lines(event("run.state", 1, reason="resume", resume_from=point, **data))
    assert resume == ("run", "attempt 2 is queued (resume after step 20)")


def test_of_very_many_lines_the_first_and_the_last_are_kept() -> None:
    rows = [Moment(at=n, what=What.RUN, text=f"t{n}", who="w") for n in range(MAX_ROWS + 50)]
    found = timeline_table(rows).splitlines()
    assert len(found) == 2 + MAX_ROWS + 1
    assert "50 more are left out here" in found[2 + MAX_ROWS // 2]
    assert found[2].startswith("| 0 s |")
    assert f"t{MAX_ROWS + 49}" in found[-1]
    assert len(timeline_table(rows[:MAX_ROWS]).splitlines()) == 2 + MAX_ROWS


def test_runs_are_bars_in_time_and_what_happened_stands_above() -> None:
    run = run_report(findings=(halt_finding(at=BEGAN + 180),))
    waited = "2026-01-01T00:02:00.000+00:00"
    run = replace(run, view=run.view.model_copy(update={"started_at": waited, "verdict": "NO_GO"}))
    view = report_view(run, ended_at=run.view.ended_at)
    found = timeline_picture(view, moments_of(view))
    assert found is not None
    assert found.x == "minutes since the submission"
    assert found.rows == ("smoke",)
    assert [(bar.start, round(bar.end, 6), bar.tone) for bar in found.bars] == [
        (0.0, 2.0, Tone.WAITS),
        (2.0, 6.2, Tone.NO_GO),
    ]
    assert [(sign.at, sign.what) for sign in found.signs] == [(3.0, What.HALT)]
    assert found.words == "Timeline of 6 min 12 s: smoke NO_GO; 1 signs"
    assert draw(found).startswith(b"\x89PNG")


def test_a_run_that_goes_on_reaches_until_now() -> None:
    run = run_report()
    view = {"ended_at": None, "verdict": None, "state": "running"}
    run = replace(run, view=run.view.model_copy(update=view))
    now = "2026-01-01T00:00:50.000+00:00"
    shown = replace(report_view(run, ended_at=None), now=now)
    found = timeline_picture(shown, [])
    assert found is not None
    assert found.x == "seconds since the submission"
    assert (found.bars[-1].end, found.bars[-1].tone) == (50.0, Tone.GOES_ON)


def test_before_a_run_begins_there_is_no_picture() -> None:
    run = run_report()
    queued = replace(run, view=run.view.model_copy(update={"started_at": None, "ended_at": None}))
    assert timeline_picture(report_view(queued), []) is None
    assert timeline_picture(report_view(), []) is None
