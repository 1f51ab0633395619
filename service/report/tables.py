"""Judgement as tables and lists: gates, findings, diagnosis, conditions and decisions."""

import json
from collections.abc import Iterable

from gonogo.contract.decision import (
    Condition,
    ConditionState,
    CriterionOutcome,
    CriterionResult,
    Decision,
)
from gonogo.contract.finding import Finding, Severity
from gonogo.judge.failures import explain_decision, library
from service.report.view import RunReport
from service.text import NONE, code, inline, number, observed_text, table, threshold_text

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
    """Return every decision with its digests."""
    heads = (
        "#", "decision", "about", "kind", "verdict", "by", "at", "reason", "facts", "rules", "hash",
        "signed by",
    )  # fmt: skip
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
            code(row.facts_digest[:12]),
            code(row.rule_digest[:12]),
            code(row.hash[:16]),
            code(row.key_id) if row.key_id else NONE,
        )
        for row in decisions
    )
    return table(heads, rows)
