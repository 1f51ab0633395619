"""What does the report say, in which order? Verdict and cause first, then what it rests on.

`build_report` is pure: the same view gives the same text.
"""

from collections.abc import Sequence

from gonogo.contract.lifecycle import ExperimentState, PhaseState
from service.report.courses import Course, build_courses, discarded_text
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
from service.report.goodput import TimeBars, goodput_parts, goodput_picture
from service.report.phases import (
    course_spread,
    device_table,
    gate_parts,
    memory_table,
    phases_spread,
    profile_parts,
    unseen_of,
)
from service.report.pictures import overview_pictures, phase_pictures
from service.report.repeat import repeat_parts
from service.report.sections import (
    artifact_parts,
    configuration,
    environment,
    expected,
    phase_table,
    step_table,
    took_s,
)
from service.report.shapes import Plot
from service.report.text import NONE, anchor, block, code, duration, inline, table
from service.report.timeline import moments_of, timeline_table
from service.report.timeline_picture import Timeline, timeline_picture
from service.report.verdicts import (
    cause,
    decided_by,
    look_parts,
    next_parts,
    override_parts,
    recommendation,
)
from service.report.view import ReportView, RunReport

Picture = Plot | Timeline | TimeBars


def pictures_of(view: ReportView) -> list[Picture]:
    """Return every picture that the report of a view names."""
    found: list[Picture] = [*overview_pictures(view)]
    timeline = timeline_picture(view, moments_of(view))
    if timeline is not None:
        found.append(timeline)
    goodput = goodput_picture(view)
    if goodput is not None:
        found.append(goodput)
    for phase in view.phases:
        found += phase_pictures(view, phase).pictures
    return found


def build_report(view: ReportView) -> str:
    """Return the report of an experiment as Markdown."""
    body = [
        "## Phases",
        phase_table(view),
        *_overview(view),
        "## Timeline",
        *_timeline(view),
        "## Goodput",
        *_goodput(view),
        "## Forecast",
        _forecast(view),
    ]
    for phase in view.phases:
        body += _phase(view, phase)
    body += [
        "## Environment",
        environment(view),
        "## Configuration: ordered and run",
        configuration(view),
    ]
    if view.decisions:
        body += ["## Decisions", decision_table(view), anchor_text(view) or ""]
    body += ["## Repeat and check", *repeat_parts(view)]
    body += [f"Written {view.now} for {code(view.experiment.id)}, {view.url}"]
    parts = [*_summary(view), _contents(body), *body]
    return "\n\n".join(part for part in parts if part) + "\n"


def _contents(parts: list[str]) -> str:
    heads = [part.removeprefix("## ") for part in parts if part.startswith("## ")]
    return "Contents: " + " · ".join(f"[{head}](#{anchor(head)})" for head in heads)


def _pictures(view: ReportView, pictures: Sequence[Picture]) -> str:
    """Return pictures side by side; nothing where none are drawn."""
    if view.no_plots:
        return ""
    return "\n".join(f"![{_alt(row.words)}]({row.name}.png)" for row in pictures)


def _alt(words: str) -> str:
    return inline(words.replace("[", "(").replace("]", ")"))


def _summary(view: ReportView) -> list[str]:
    experiment = view.experiment
    verdict = experiment.verdict_words or _no_verdict(view)
    facts = [
        ("verdict", f"**{verdict}**"),
        (_cause_is_called(view), cause(view)),
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


def _cause_is_called(view: ReportView) -> str:
    if view.experiment.overrides:
        return "evidence"
    return "cause" if view.culprit is not None or view.experiment.verdict else "so far"


def _no_verdict(view: ReportView) -> str:
    over = view.experiment.state is ExperimentState.FINISHED
    return "no verdict" if over else "no verdict yet"


def _first_look(run: RunReport) -> list[str]:
    """Return what to look at first: finding, diagnosis, failed criteria, end of the log."""
    parts = [f"### Look here first: {run.title} {code(run.view.id)}"]
    if run.findings:
        parts.append("\n".join(finding_lines(run.findings, evidence=False)))
    diagnosis = diagnosis_text(run.decision, ours=run.ours)
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
    parts = [_pictures(view, overview_pictures(view))]
    if view.no_plots:
        parts.append(f"No pictures: {inline(view.no_plots)}.")
    courses: list[tuple[str, Course]] = [
        (phase, found[-1]) for phase in view.phases if (found := build_courses(view.runs_of(phase)))
    ]
    spread = phases_spread(view, courses)
    if spread is not None:
        parts += ["Seconds of a step, over all ranks of a phase's newest line:", spread]
    return parts


def _timeline(view: ReportView) -> list[str]:
    moments = moments_of(view)
    picture = timeline_picture(view, moments)
    parts = [_pictures(view, [picture])] if picture is not None else []
    return [*parts, timeline_table(moments) if moments else "Nothing has happened yet."]


def _goodput(view: ReportView) -> list[str]:
    picture = goodput_picture(view)
    parts = [_pictures(view, [picture])] if picture is not None else []
    return [*parts, *goodput_parts(view)]


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
        took = took_s(view.experiment)
        measured = "" if took is None else f"; it took {duration(took)}"
        parts.append(f"Claimed: {duration(now.claimed_seconds)}{measured}.")
    else:
        parts.append("Nobody claimed a duration (label `claimed_seconds`).")
    return "\n\n".join(parts)


def _really_s(view: ReportView, number: int) -> str:
    """Return how long the runs after one took, when every phase went through."""
    rest = [took_s(run.view) for run in view.runs[number + 1 :]]
    through = (PhaseState.PASSED, PhaseState.INHERITED)
    whole = all(phase.state in through for phase in view.experiment.phases)
    return duration(sum(took or 0.0 for took in rest)) if whole and rest else NONE


def _phase(view: ReportView, phase: str) -> list[str]:
    """Return a phase: its pictures over all attempts, then each attempt."""
    runs = view.runs_of(phase)
    last = runs[-1].view
    many = f", {len(runs)} attempts" if len(runs) > 1 else ""
    parts = [f"## {phase}: {last.verdict or 'no verdict'}{many}"]
    if any(run.ranks for run in runs):
        shown = phase_pictures(view, phase)
        courses = build_courses(runs)
        parts.append(_pictures(view, shown.pictures))
        parts += [text for course in courses if (text := discarded_text(course)) is not None]
        if shown.absent:
            parts.append(f"No picture, not observed: {'; '.join(map(inline, shown.absent))}.")
        spread = course_spread(courses)
        if spread is not None:
            parts += ["### Step times", "In seconds, by the rank's own clock:", spread]
    for run in runs:
        head = "###" if len(runs) == 1 else "####"
        if len(runs) > 1:
            parts.append(f"### Attempt {run.view.attempt}: {run.view.verdict or 'no verdict'}")
        parts += _run(view, run, head)
    return parts


def _run(view: ReportView, run: RunReport, head: str) -> list[str]:
    outcome = run.view.outcome
    ended = f"{outcome.code} ({outcome.klass}), by {outcome.actor}" if outcome else "not ended"
    text = f" – {inline(outcome.text)}" if outcome and outcome.text else ""
    parts = [
        f"{code(run.view.id)}, {run.view.reason}, {inline(run.view.began)}, on"
        f" {inline(run.view.host or 'no host')}."
        f" Outcome: {ended}{text}.",
    ]
    if run.decision is not None:
        parts += [f"{head} Gate", gate_table(run.decision.criteria), left_out_text(run) or ""]
        parts.append(diagnosis_text(run.decision, ours=run.ours) or "")
    parts.append(f"{head} Findings")
    parts.append("\n".join(finding_lines(run.findings)) or "None.")
    unseen = [*not_observed(run), *(unseen_of(run) if run.ranks else [])]
    parts += [f"{head} Not observed", "\n".join(f"- {inline(row)}" for row in unseen)]
    for title, found in (
        ("Where the time goes", [step_table(run)] if run.ranks else []),
        ("Memory and utilisation", [memory_table(run), device_table(run.devices)]),
        ("Gates and selection", gate_parts(run)),
        ("Hot spots", profile_parts(run)),
    ):
        shown = [part for part in found if part]
        parts += [f"{head} {title}", *shown] if shown else []
    parts += expected(view, run)
    return [*parts, f"{head} Artifacts", *artifact_parts(run)]
