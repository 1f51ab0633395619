"""What happened, who says so, and what should be done? The three sentences on top of a report."""

from collections.abc import Sequence

from gonogo.contract.decision import (
    CriterionOutcome,
    CriterionResult,
    Decision,
    DecisionKind,
    Verdict,
)
from gonogo.contract.finding import Finding, Severity
from gonogo.contract.lifecycle import ExperimentState
from gonogo.contract.outcome import Outcome, OutcomeClass
from gonogo.judge.diagnosis import diagnosis_named
from service.report.text import NONE, code, inline
from service.report.view import ReportView, RunReport


def deciding(view: ReportView) -> Decision | None:
    """Return the newest decision with a verdict."""
    return next((row for row in reversed(view.decisions) if row.verdict is not None), None)


def cause(view: ReportView) -> str:
    """Return why the verdict is what it is, in one sentence."""
    last = deciding(view)
    if last is not None and last.kind is DecisionKind.HUMAN:
        return f"{inline(last.actor)} decided: {inline(last.reason or '')}"
    run = view.culprit
    if run is None:
        passed = sum(phase.verdict == Verdict.GO for phase in view.experiment.phases)
        return f"{passed} of {len(view.experiment.phases)} phases passed with GO"
    return f"{run.title}: {run_cause(run)}"


def run_cause(run: RunReport) -> str:
    """Return why a run is not GO, as Markdown."""
    criteria = run.decision.criteria if run.decision else []
    return inline(cause_of(run.findings, run.view.outcome, criteria))


def cause_of(
    findings: Sequence[Finding], outcome: Outcome | None, criteria: Sequence[CriterionResult]
) -> str:
    """Return why a run is not GO: its halt finding, its end, or its first bad criterion."""
    halt = next((row for row in findings if row.severity is Severity.HALT), None)
    if halt is not None:
        place = [f"rank {halt.rank}" if halt.rank is not None else "", halt.section or ""]
        where = ", ".join(part for part in place if part)
        return f"{halt.detector.value}{f' ({where})' if where else ''}: {halt.text}"
    if outcome is not None and outcome.klass is not OutcomeClass.SUCCESS:
        text = f": {outcome.text}" if outcome.text else ""
        return f"{outcome.code.value} by {outcome.actor.value}{text}"
    worst = next((row for row in criteria if row.outcome is CriterionOutcome.FAIL), None)
    worst = worst or next((row for row in criteria if row.outcome != "pass"), None)
    if worst is not None:
        return f"criterion {worst.id} {worst.outcome.value}: {worst.evidence}"
    return "it has not ended" if outcome is None else outcome.code.value


def decided_by(view: ReportView) -> str:
    """Return who decided last, and when."""
    last = deciding(view)
    if last is None:
        return NONE
    about = f"about {last.phase}" if last.phase else "about the experiment"
    return f"{inline(last.actor)} ({last.kind.value}), {code(last.id)} {about}, at {last.at}"


def recommendation(view: ReportView) -> str:
    """Return what to do now."""
    experiment = view.experiment
    name = code(experiment.id)
    if experiment.state is ExperimentState.AWAITING_DECISION:
        return (
            f"It waits for a person ({inline(experiment.waiting_for or 'a decision')}):"
            f" {code('gonogo promote')}, {code('rerun')}, {code('resume')}, {code('override')} or"
            f" {code('cancel')} {name}."
        )
    if experiment.state is not ExperimentState.FINISHED:
        return "Nothing yet: it goes on by itself."
    if experiment.verdict is None:
        return "It was cancelled and judged nothing; submit it again when it is wanted."
    return {
        Verdict.GO: "Go: every phase passed its gate with complete evidence.",
        Verdict.CONDITIONAL_GO: "Go only under the conditions below: each is met, or waived.",
        Verdict.INCONCLUSIVE: f"Not enough evidence: submit again, or {code('gonogo override')}.",
        Verdict.NO_GO: _after_no_go(view),
    }[experiment.verdict]


def _after_no_go(view: ReportView) -> str:
    run = view.culprit
    decision = run.decision if run else None
    row = diagnosis_named(decision.diagnosis) if decision and decision.diagnosis else None
    if row is None:
        return "Do not go on. The cause has no known name; look at the evidence below."
    return f"Do not go on. {inline(row.remedy).capitalize()} ({row.name}, {row.requirement})."
