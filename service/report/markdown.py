"""What does the report say, in which order? Verdict and cause first, then what it rests on.

`build_report` is pure: the same view gives the same text.
"""

from gonogo.contract.lifecycle import ExperimentState, PhaseState
from service.report.gates import (
    anchor_text,
    condition_table,
    decision_table,
    diagnosis_text,
    finding_lines,
    gate_table,
    left_out_text,
    not_observed,
)
from service.report.sections import (
    artifact_lines,
    configuration,
    environment,
    expected,
    phase_table,
    step_table,
    took_s,
)
from service.report.text import NONE, block, code, duration, inline, table
from service.report.verdicts import (
    cause,
    decided_by,
    look_parts,
    next_parts,
    override_parts,
    recommendation,
)
from service.report.view import ReportView, RunReport


def build_report(view: ReportView) -> str:
    """Return the report of an experiment as Markdown."""
    parts = [
        *_summary(view),
        "## Phases",
        phase_table(view),
        *_overview(view),
        "## Forecast",
        _forecast(view),
        "## Environment",
        environment(view),
        "## Configuration: ordered and run",
        configuration(view),
    ]
    for run in view.runs:
        parts += _run(view, run)
    if view.decisions:
        parts += ["## Decisions", decision_table(view), *_anchor(view), *_replay(view)]
    parts += [f"Written {view.now} for {code(view.experiment.id)}, {view.url}"]
    return "\n\n".join(part for part in parts if part) + "\n"


def _summary(view: ReportView) -> list[str]:
    experiment = view.experiment
    verdict = experiment.verdict_words or _no_verdict(view)
    facts = [
        ("verdict", f"**{verdict}**"),
        ("evidence" if experiment.overrides else "cause", cause(view)),
        ("decided by", decided_by(view)),
        ("state", experiment.state.value),
        ("plan", f"{code(experiment.plan)} {code(view.plan_digest[:12])}"),
        ("submitted by", f"{inline(view.created_by)} at {experiment.created_at}"),
        ("ended", experiment.ended_at or NONE),
    ]
    if view.fault:
        facts.append(("fault on purpose", code(view.fault)))
    if experiment.waiting_for:
        facts.append(("waits for", inline(experiment.waiting_for)))
    if experiment.waiting_until:
        facts.append(("until", experiment.waiting_until))
    parts = [
        f"# {verdict}: {inline(experiment.name)}",
        table(("", ""), facts),
        f"**Recommendation.** {recommendation(view)}",
        *next_parts(view),
        *override_parts(view),
    ]
    bad = view.culprit
    if bad is not None:
        parts += _first_look(bad)
    if experiment.conditions:
        parts += ["### Conditions", condition_table(experiment.conditions)]
    return parts


def _no_verdict(view: ReportView) -> str:
    over = view.experiment.state is ExperimentState.FINISHED
    return "no verdict" if over else "no verdict yet"


def _first_look(run: RunReport) -> list[str]:
    """Return what to look at first: finding, diagnosis, failed criteria, end of the log."""
    parts = [f"### Look here first: {run.title} {code(run.view.id)}"]
    if run.findings:
        parts.append("\n".join(finding_lines(run.findings, evidence=False)))
    diagnosis = diagnosis_text(run.decision)
    if diagnosis is not None:
        parts.append(diagnosis)
    if run.decision is not None:
        parts += look_parts(run.decision.cause)
        bad = [row for row in run.decision.criteria if row.outcome != "pass"]
        if bad:
            parts.append(gate_table(bad))
    if run.stack is not None:
        parts += [f"Where it stood ({code(run.stack.name)}):", block(run.stack.text)]
    if run.log is not None:
        parts += [f"The end of {code(run.log.name)}:", block(run.log.text)]
    return parts


def _overview(view: ReportView) -> list[str]:
    if view.overview is not None:
        return [f"![Loss and throughput over all phases]({view.overview})"]
    return [f"No pictures: {inline(view.no_plots)}."] if view.no_plots else []


def _forecast(view: ReportView) -> str:
    """Return measured pace, what follows from it, and what was promised (R18)."""
    rows = []
    for number, run in enumerate(view.runs):
        after = run.forecast_after
        rows.append(
            (
                run.title,
                duration(run.worst("median_step_s")),
                duration(after.seconds_p50) if after else NONE,
                duration(after.seconds_p90) if after else NONE,
                _really_s(view, number) if after else NONE,
                inline(after.basis) if after else "nothing comes after it",
            )
        )
    heads = ("measured in", "median step", "the rest, median", "slow (p90)", "really", "basis")
    parts = [table(heads, rows)] if rows else []
    now = view.experiment.forecast
    if view.experiment.state is not ExperimentState.FINISHED:
        parts.append(
            f"From now: {duration(now.seconds_p50)} (p90 {duration(now.seconds_p90)}),"
            f" {inline(now.basis)}."
        )
    if now.claimed_seconds is not None:
        parts.append(f"Claimed: {duration(now.claimed_seconds)}.")
    else:
        parts.append("Nobody claimed a duration (label `claimed_seconds`).")
    return "\n\n".join(parts)


def _really_s(view: ReportView, number: int) -> str:
    """Return how long the runs after one took, when every phase went through."""
    rest = [took_s(run) for run in view.runs[number + 1 :]]
    through = (PhaseState.PASSED, PhaseState.INHERITED)
    whole = all(phase.state in through for phase in view.experiment.phases)
    return duration(sum(took or 0.0 for took in rest)) if whole and rest else NONE


def _run(view: ReportView, run: RunReport) -> list[str]:
    outcome = run.view.outcome
    ended = f"{outcome.code} ({outcome.klass}), by {outcome.actor}" if outcome else "not ended"
    text = f" – {inline(outcome.text)}" if outcome and outcome.text else ""
    parts = [
        f"## {run.title}: {run.view.verdict or 'no verdict'}",
        f"{code(run.view.id)}, {run.view.reason}, on {inline(run.view.host or 'no host')}."
        f" Outcome: {ended}{text}.",
    ]
    if run.plot is not None:
        parts.append(f"![Loss, throughput, memory and sections of {run.title}]({run.plot})")
    if run.ranks:
        parts += ["### Where the time goes", step_table(run)]
    if run.decision is not None:
        parts += ["### Gate", gate_table(run.decision.criteria), left_out_text(run) or ""]
        parts.append(diagnosis_text(run.decision) or "")
    parts.append("### Findings")
    parts.append("\n".join(finding_lines(run.findings)) or "None.")
    parts.append("Not observed: " + "; ".join(inline(row) for row in not_observed(run)) + ".")
    parts += expected(view, run)
    parts += ["### Artifacts", artifact_lines(run)]
    return parts


def _anchor(view: ReportView) -> list[str]:
    text = anchor_text(view)
    return [] if text is None else [text]


def _replay(view: ReportView) -> list[str]:
    commands = "\n".join(f"gonogo replay {decision.id}" for decision in view.decisions)
    return [
        "### Check it yourself",
        "Replaying needs no service: it reads the decision's own file and the run directory, and"
        " exits 1 at the first difference.",
        block(commands, "sh"),
    ]
