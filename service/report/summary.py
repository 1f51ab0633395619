"""The first page of a report, and its tables: verdict, why, numbers, one chart, what next."""

import json
from collections.abc import Iterable
from datetime import datetime

from gonogo.contract.api import ExperimentView, RunView
from gonogo.contract.decision import (
    PASSING,
    Condition,
    ConditionState,
    CriterionOutcome,
    CriterionResult,
    Decision,
    Verdict,
)
from gonogo.contract.finding import Finding, Severity
from gonogo.contract.lifecycle import ExperimentState
from gonogo.judge.failures import explain_decision, library
from gonogo.judge.follow_up.explanation import cause_of
from service.report.view import Picture, ReportView, RunReport, overview
from service.text import (
    NONE,
    block,
    code,
    duration,
    inline,
    loss,
    number,
    observed_text,
    percent,
    table,
    threshold_text,
)


def title_of(view: ReportView) -> str:
    """Return the title: `NO_GO: name`, `no verdict yet: name`."""
    experiment = view.experiment
    over = experiment.state is ExperimentState.FINISHED
    nothing = "no verdict" if over else "no verdict yet"
    return f"{experiment.verdict_words or nothing}: {experiment.name}"


def summary_parts(view: ReportView) -> list[str]:
    """Return the first page, and below it what to look at first."""
    experiment = view.experiment
    parts = [
        f"# {inline(title_of(view))}",
        table(("", ""), _facts(view)),
        f"**Recommendation.** {recommendation(view)}",
    ]
    if experiment.next:
        lines = (f"# {row.text}\n{row.command}" for row in experiment.next)
        parts += ["**Next.**", block("\n".join(lines), "sh")]
    parts.append(_phase_table(view))
    shown = overview(view)
    if shown is not None:
        parts.append(picture_text(shown))
    parts += _override_parts(view)
    if experiment.conditions:
        parts += ["### Conditions", condition_table(experiment.conditions)]
    return parts + (_first_look(view.culprit) if view.culprit is not None else [])


def picture_text(shown: Picture) -> str:
    """Return a picture as Markdown names it."""
    words = inline(shown.chart.words.replace("[", "(").replace("]", ")"))
    return f"![{words}]({shown.name}.svg)"


def _facts(view: ReportView) -> list[tuple[str, str]]:
    experiment = view.experiment
    known = view.culprit is not None or experiment.verdict
    why = "evidence" if experiment.overrides else "cause" if known else "so far"
    facts = [
        ("verdict", f"**{title_of(view).partition(':')[0]}**"),
        (why, _cause(view)),
        ("decided by", _decided_by(view)),
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
    return facts


def _cause(view: ReportView) -> str:
    run = view.culprit
    if run is None:
        phases = view.experiment.phases
        by_hand = {row.phase for row in view.experiment.overrides}
        shown = [row for row in phases if row.name not in by_hand]
        passed = sum(row.verdict == Verdict.GO or view.is_met(row.name) for row in shown)
        return f"{passed} of {len(phases)} phases passed with GO"
    criteria = run.decision.criteria if run.decision else []
    text = f"{run.title}: {inline(cause_of(run.findings, run.view.outcome, criteria))}"
    cause = run.decision.cause if run.decision else None
    if cause is None or not cause.line:
        return text
    return f"{text}; last line of {code(cause.log)}: {inline(cause.line)}"


def _last_verdict(view: ReportView) -> Decision | None:
    return next((row for row in reversed(view.decisions) if row.verdict is not None), None)


def _decided_by(view: ReportView) -> str:
    last = _last_verdict(view)
    if last is None:
        return NONE
    about = f"about {last.phase}" if last.phase else "about the experiment"
    return f"{inline(last.actor)} ({last.kind.value}), {code(last.id)} {about}, at {last.at}"


def recommendation(view: ReportView) -> str:
    """Return what to do now; it claims no evidence that is not there."""
    experiment, last = view.experiment, _last_verdict(view)
    if experiment.state is not ExperimentState.FINISHED:
        awaited = inline(experiment.waiting_for or "")
        if experiment.state is ExperimentState.AWAITING_DECISION:
            return f"A person must decide: {awaited or 'the evidence does not'}."
        then = f"The experiment waits for {awaited}" if awaited else "The experiment continues"
        return f"Nothing is decided yet. {then}."
    summary = inline(experiment.summary or "")
    by_hand = experiment.verdict in PASSING or last is None or last.by_hand
    if experiment.overrides and by_hand:
        return f"A person decided, not the evidence. {summary}"
    if experiment.verdict is None:
        return f"{summary} Submit it again if you need it."
    words = {
        Verdict.GO: "Continue.",
        Verdict.CONDITIONAL_GO: "Continue only under the conditions below.",
        Verdict.INCONCLUSIVE: "The evidence is not enough.",
    }
    return f"{words.get(experiment.verdict) or f'Stop. {_advice(view.culprit)}'} {summary}"


def _advice(run: RunReport | None) -> str:
    decision = run.decision if run else None
    row = None if decision is None else explain_decision(decision)
    if row is not None:
        return f"{inline(row.remedy[0].upper() + row.remedy[1:])} ({row.name})."
    if decision is not None and decision.cause is not None and decision.cause.unknown:
        return "The failure is unknown. Look at the evidence below."
    return "Look at the evidence below."


def _phase_table(view: ReportView) -> str:
    heads = (
        "phase", "outcome", "verdict", "steps", "first loss", "last loss", "val loss",
        "tok/s, median", "step, median", "slowest section", "peak memory", "took",
    )  # fmt: skip
    rows = [_phase_row(run) for run in view.runs]
    rows += [
        (phase.name, phase.state.value, NONE, f"0 / {phase.steps}", *[NONE] * 8)
        for phase in view.experiment.phases
        if phase.name not in view.phases
    ]
    return table(heads, rows)


def _phase_row(run: RunReport) -> tuple[str, ...]:
    outcome = run.view.outcome
    device, host = run.most("device_mb", "highest"), run.most("host_mb", "highest")
    memory = f"{host / 1000:.2f} GB host" if host is not None else NONE
    return (
        run.title,
        outcome.code.value if outcome else run.view.state.value,
        f"**{run.view.verdict}**" if run.view.verdict else NONE,
        f"{min((rank.last_step for rank in run.ranks), default=0)} / {run.view.steps}",
        loss(run.first("loss", "first")),
        loss(run.first("loss", "last")),
        loss(run.first("val_loss", "last")),
        number(run.least("tok_s", "median")),
        duration(run.most("step_s", "median")),
        slowest_section(run) or NONE,
        f"{device / 1000:.2f} GB" if device else memory,
        duration(took_s(run.view)),
    )


def slowest_section(run: RunReport) -> str | None:
    """Return the section in which the slowest rank spends most of a step, with its share."""
    timed = [rank for rank in run.ranks if "step_s" in rank.series and "data" in rank.series]
    if not timed:
        return None
    slow = max(timed, key=lambda rank: rank.median("step_s"))
    seconds = slow.section_s
    name = max(seconds, key=lambda key: seconds[key])
    return f"{name} {percent(seconds[name], slow.whole_step_s)}"


def took_s(view: RunView | ExperimentView) -> float | None:
    """Return the seconds from the start of a run or an experiment to its end."""
    if view.started_at is None or view.ended_at is None:
        return None
    start, end = map(datetime.fromisoformat, (view.started_at, view.ended_at))
    return (end - start).total_seconds()


def _override_parts(view: ReportView) -> list[str]:
    experiment = view.experiment
    if not experiment.overrides:
        return []
    rows = (
        (
            code(row.condition) if row.condition else row.phase,
            f"**{row.verdict} by hand**",
            f"**{row.evidence}**" if row.evidence else "nothing was judged",
            inline(row.actor),
            inline(row.reason),
            row.at,
            code(row.decision),
        )
        for row in experiment.overrides
    )
    heads = ("about", "a person says", "the evidence says", "who", "why", "at", "decision")
    parts = ["### Decided by hand", table(heads, rows)]
    if experiment.never_ran:
        parts.append(f"Never ran: {', '.join(experiment.never_ran)}.")
    return parts


def _first_look(run: RunReport) -> list[str]:
    parts = [f"## Look here first: {run.title} {code(run.view.id)}"]
    parts += [finding_list(run.findings), diagnosis_text(run)]
    if run.decision is not None:
        look = run.decision.cause.look if run.decision.cause is not None else []
        places = [f"{n}. {inline(place)}" for n, place in enumerate(look, 1)]
        parts += ["Look, in this order:", "\n".join(places)] if places else []
        bad = [row for row in run.decision.criteria if row.outcome != "pass"]
        parts.append(gate_table(bad) if bad else "")
    if run.stack is not None:
        parts += [f"Where the rank was ({code(run.stack.name)}):", block(run.stack.text)]
    if run.log is not None:
        parts += [f"The end of {code(run.log.name)}:", block(run.log.text)]
    return parts


_SIGNS = {
    CriterionOutcome.PASS: "pass",
    CriterionOutcome.FAIL: "**FAIL**",
    CriterionOutcome.INCONCLUSIVE: "**inconclusive**",
    CriterionOutcome.ERROR: "**error**",
}


def finding_list(findings: Iterable[Finding]) -> str:
    """Return the findings as a list, the first halt first."""
    rows = sorted(findings, key=lambda row: (row.severity is not Severity.HALT, row.at))
    return "\n".join(map(_finding_line, rows))


def _finding_line(row: Finding) -> str:
    place = [f"rank {row.rank}" if row.rank is not None else "", row.section or ""]
    place += [f"step {row.step}" if row.step is not None else ""]
    where = ", ".join(part for part in place if part)
    text = f"- **{row.severity.value}** {code(row.detector)}"
    text += f" ({where}): {inline(row.text)}" if where else f": {inline(row.text)}"
    if row.value is not None and row.threshold is not None:
        text += f" ({number(row.value)} against {number(row.threshold)}, {row.source.value})"
    if row.evidence:
        text += f". Evidence: {', '.join(code(path) for path in row.evidence)}"
    return text


def diagnosis_text(run: RunReport) -> str:
    """Return the named failure with its cause and remedy; patches are settings of nsa.train."""
    decision = run.decision
    if decision is None or decision.diagnosis is None:
        return ""
    row, known = explain_decision(decision), library().get(decision.diagnosis)
    if row is None:
        return f"Diagnosis: {code(decision.diagnosis)}."
    patch = known.patch if known is not None and run.ours else None
    then = f" Patch: {code(json.dumps(patch))}." if patch else ""
    return f"Diagnosis: **{row.name}**: {inline(row.cause)}. Remedy: {inline(row.remedy)}.{then}"


def gate_table(criteria: Iterable[CriterionResult]) -> str:
    """Return every criterion with its observation and its threshold."""
    heads = (
        "criterion", "severity", "outcome", "observed", "threshold", "steps", "samples", "evidence",
    )  # fmt: skip
    rows = (
        (
            code(row.id),
            row.severity.value,
            _SIGNS[row.outcome],
            inline(observed_text(row.observed)),
            inline(threshold_text(row.threshold)),
            row.window or NONE,
            NONE if row.samples is None else str(row.samples),
            inline(row.evidence),
        )
        for row in criteria
    )
    return table(heads, rows)


def condition_table(conditions: Iterable[Condition]) -> str:
    """Return the conditions of a CONDITIONAL_GO and their states."""
    rows = (
        (
            code(row.id),
            f"**{row.state.value}**",
            inline(row.text),
            row.evidence_from or (NONE if row.state is ConditionState.WAIVED else "a person"),
            row.due or NONE,
            row.on_miss,
        )
        for row in conditions
    )
    return table(("condition", "state", "what", "evidence from", "due before", "if missed"), rows)


def decision_table(decisions: Iterable[Decision]) -> str:
    """Return every decision with its hash and signing key."""
    heads = ("#", "decision", "about", "kind", "verdict", "by", "at", "reason", "hash", "key")
    rows = (
        (
            str(row.seq),
            code(row.id),
            row.phase or "experiment",
            row.kind.value,
            f"**{row.verdict}{' by hand' if row.by_hand else ''}**" if row.verdict else NONE,
            inline(row.actor),
            row.at,
            inline(row.reason or "")
            + (f" (waived: {', '.join(map(code, row.waives))})" if row.waives else ""),
            code(row.hash[:16]),
            code(row.key_id) if row.key_id else NONE,
        )
        for row in decisions
    )
    return table(heads, rows)
