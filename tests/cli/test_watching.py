"""What a person sees while an experiment runs, from given states."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from io import StringIO

import pytest
from rich.console import Console

from gonogo.cli import watching
from gonogo.cli.client import Client
from gonogo.cli.watching import Glance, plain_line, render, watch_experiment
from gonogo.contract.api import ExperimentView, Forecast, NextStep, OverrideView, PhaseView, RunView
from gonogo.contract.decision import Cause, Verdict
from gonogo.contract.lifecycle import ExperimentState, PhaseState, RunState
from gonogo.contract.order import RunReason

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def glance(
    state: ExperimentState = ExperimentState.RUNNING,
    run_state: RunState = RunState.RUNNING,
    waiting_for: str | None = None,
) -> Glance:
    view = ExperimentView(
        id="exp_1",
        name="demo",
        plan="demo",
        state=state,
        phases=[
            PhaseView(name="sanity", state=PhaseState.PASSED, steps=1),
            PhaseView(name="smoke", state=PhaseState.ACTIVE, steps=40, runs=["run_1"]),
            PhaseView(name="extended", state=PhaseState.PENDING, steps=60),
        ],
        forecast=Forecast(seconds_p50=90.0, basis="measured"),
        created_at=NOW.isoformat(),
        waiting_for=waiting_for,
    )
    run = RunView(
        id="run_1",
        experiment="exp_1",
        phase="smoke",
        attempt=1,
        reason=RunReason.FIRST,
        state=run_state,
        step=17,
        steps=40,
        loss=5.25,
        toks_per_s=3210.0,
        last_heartbeat_at=(NOW - timedelta(seconds=1.5)).isoformat(),
        created_at=NOW.isoformat(),
    )
    return Glance(experiment=view, run=run, now=NOW)


def rendered(seen: Glance) -> str:
    console = Console(width=120, force_terminal=False)
    with console.capture() as captured:
        console.print(render(seen))
    return captured.get()


def test_a_line_holds_step_loss_speed_eta_and_last_heartbeat() -> None:
    line = plain_line(glance())
    for text in ("step 17/40", "loss 5.2500", "3,210 tok/s", "1 min 30 s left", "1.5 s ago"):
        assert text in line


def test_for_how_long_no_step_has_come_is_told_of_a_run_that_owes_one() -> None:
    stands = replace(glance(), stands_s=134.0)
    assert "no step for 2 min 14 s" in plain_line(stands)
    assert "no step for 2 min 14 s" in rendered(stands)
    assert "no step" not in plain_line(replace(glance(), stands_s=9.0))
    assert "no step" not in plain_line(replace(glance(run_state=RunState.ENDED), stands_s=134.0))
    assert stands.run is not None
    last = stands.run.model_copy(update={"step": stands.run.steps})
    assert "no step" not in plain_line(replace(stands, run=last))


def test_a_later_attempt_is_named_with_its_reason() -> None:
    first = glance()
    assert first.run is not None
    again = replace(first, run=first.run.model_copy(update={"attempt": 2, "reason": "rerun"}))
    assert "smoke running" in plain_line(first)
    for text in (plain_line(again), rendered(again)):
        assert "smoke #2 (rerun)" in text


def test_the_block_of_a_terminal_holds_the_same() -> None:
    shown = rendered(glance(waiting_for="an approval"))
    for text in ("smoke", "step 17/40", "waiting for an approval", "1 min 30 s left"):
        assert text in shown


def test_what_a_person_must_do_and_did_is_shown_while_watching() -> None:
    shown = glance(ExperimentState.AWAITING_DECISION, waiting_for="an approval")
    word = OverrideView(
        decision="dec_1", phase="sanity", verdict=Verdict.GO, actor="ann", reason="known", at="-"
    )
    step = NextStep(command="gonogo promote exp_1 --reason WHY", text="approve")
    cause = Cause(text="smoke: criterion fast fail", log="rank0.log", line="[bold]boom")
    more = {"overrides": [word], "next": [step], "cause": cause, "verdict": Verdict.GO}
    view = shown.experiment.model_copy(update=more)
    shown = replace(shown, experiment=view)
    line = plain_line(shown)
    assert "decided by hand: sanity" in line
    assert line.endswith("waiting for an approval | type: gonogo promote exp_1 --reason WHY")
    for text in ("GO by hand", "sanity", "gonogo promote exp_1 --reason WHY", "[bold]boom"):
        assert text in rendered(shown)


def test_watching_ends_when_finished_or_when_a_person_must_decide() -> None:
    assert glance(ExperimentState.FINISHED).done
    assert glance(ExperimentState.AWAITING_DECISION, RunState.ENDED).done
    assert not glance(ExperimentState.AWAITING_DECISION, RunState.HALTING).done
    assert not glance(ExperimentState.STOPPING).done


@pytest.mark.parametrize(
    ("state", "says"),
    [
        (RunState.QUEUED, "in the queue (20 s since it was queued)"),
        (RunState.CLAIMED, "w1 prepares the run directory"),
        (RunState.PREFLIGHT, "w1 checks the host and its devices"),
        (RunState.STARTING, "it imports and builds the model; it starts when every rank is there"),
    ],
)
def test_a_phase_that_starts_says_what_it_waits_for(state: RunState, says: str) -> None:
    seen = glance(run_state=state)
    assert seen.run is not None
    run = seen.run.model_copy(update={"step": 0, "worker": "w1"})
    seen = replace(seen, run=run, now=NOW + timedelta(seconds=20))
    for text in (rendered(seen), plain_line(seen)):
        assert f"{state}: " in text
        assert says in text
        assert "step 0" not in text


@pytest.mark.parametrize(("term", "block"), [("dumb", False), ("xterm", True)])
def test_a_terminal_that_cannot_redraw_gets_lines(
    monkeypatch: pytest.MonkeyPatch, term: str, block: bool
) -> None:
    screen = StringIO()
    console = Console(file=screen, force_terminal=True, _environ={"TERM": term})
    monkeypatch.setattr(watching, "err", console)
    failed = Cause(text="disk: 0.1 GB free", log="rank0.log", line="OSError: full")
    retried = glance()
    view = retried.experiment.model_copy(update={"cause": failed})
    ends = glance(ExperimentState.FINISHED, RunState.ENDED)
    glances = [replace(retried, experiment=view), ends]
    monkeypatch.setattr(watching, "glances_of", lambda *_: iter(glances))
    printed: list[str] = []
    monkeypatch.setattr(watching, "print_lines", lambda rows, _: printed.extend(rows))
    assert watch_experiment(Client("http://s", None), "exp_1") == ends.experiment
    assert bool(printed) is not block
    assert block or printed[0].startswith("why: disk: 0.1 GB free")
