"""How does the report show judgement? Gate tables, conditions, findings, and how to replay them."""

import json
from collections.abc import Iterable, Mapping
from typing import Any

from gonogo.contract.criterion import Metric
from gonogo.contract.decision import (
    Condition,
    ConditionState,
    CriterionOutcome,
    CriterionResult,
    Decision,
)
from gonogo.contract.doubt import Doubt, Effect
from gonogo.contract.finding import Finding, Severity
from gonogo.judge.failures import explain_decision, library
from gonogo.judge.words import sentence
from service.report.text import NONE, code, inline, number, table
from service.report.view import ReportView, RunReport

SIGNS = {
    CriterionOutcome.PASS: "pass",
    CriterionOutcome.FAIL: "**FAIL**",
    CriterionOutcome.INCONCLUSIVE: "**inconclusive**",
    CriterionOutcome.ERROR: "**error**",
}
_BOUNDS = {"pass_above": "≥", "pass_below": "≤", "fail_above": "fails >", "fail_below": "fails <"}


def observed_text(value: Any) -> str:
    """Return what a criterion saw, in a few words."""
    if value is None:
        return NONE
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return number(value, 6)
    if isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False)


def threshold_text(value: Any) -> str:
    """Return a threshold as signs: `≥ 45, fails < 39`."""
    if not isinstance(value, Mapping):
        return observed_text(value)
    known = [
        f"{_BOUNDS[name]} {observed_text(bound)}"
        for name, bound in value.items()
        if name in _BOUNDS and bound is not None
    ]
    return ", ".join(known) or NONE


def gate_table(criteria: Iterable[CriterionResult]) -> str:
    """Return the gate: every criterion with what it saw and where that stands."""
    heads = (
        "criterion", "severity", "outcome", "observed", "threshold", "steps", "samples", "evidence",
    )  # fmt: skip
    rows = (
        (
            code(row.id),
            row.severity.value,
            SIGNS[row.outcome],
            inline(observed_text(row.observed)),
            inline(threshold_text(row.threshold)),
            row.window or NONE,
            NONE if row.samples is None else str(row.samples),
            inline(row.evidence),
        )
        for row in criteria
    )
    return table(heads, rows)


def left_out_text(run: RunReport) -> str | None:
    """Say which criteria were left out when the order was made, and why."""
    if run.order is None or not run.order.left_out:
        return None
    rows = "; ".join(f"{code(row.id)}: {inline(row.why)}" for row in run.order.left_out)
    return f"Left out: {rows}."


def not_observed(run: RunReport) -> list[str]:
    """Return what nothing was seen of, one sentence each (missing evidence is never a pass)."""
    doubts = _listed_doubts(run.decision)
    found = list(dict.fromkeys(map(sentence, doubts)))
    if not run.ranks:
        return ["no rank wrote a heartbeat", *found]
    util = any(row.name == Metric.GPU_UTIL for row in doubts)
    if run.first("median_util") is None and not util:
        found.append("device utilisation: no device line falls into a step")
    if not run.worst("peak_reserved_mb") and run.first("peak_used_mb") is None:
        found.append("device memory: no rank reports any, and no device says what is in use")
    if run.first("peak_rss_mb") is None:
        found.append("host memory: no rank reports any")
    if run.first("last_val_loss") is None:
        found.append("validation loss: no evaluation was due or reported")
    if not any(rank.sections_s for rank in run.ranks):
        found.append("sections of a step: not reported")
    if run.artifacts.dir is not None and not run.artifacts.reachable:
        found.append(f"files of the run: they lie on {run.artifacts.host} at {run.artifacts.dir}")
    return found


def _listed_doubts(decision: Decision | None) -> list[Doubt]:
    """Return what was not observed by the decision's facts."""
    said = decision.facts.get("doubts") if decision is not None else None
    rows = map(Doubt.model_validate, said) if isinstance(said, list) else ()
    return [row for row in rows if row.effect is Effect.NONE]


def finding_lines(findings: Iterable[Finding], *, evidence: bool = True) -> list[str]:
    """Return the findings, the one that halted first, with or without their files."""
    rows = sorted(findings, key=lambda row: (row.severity is not Severity.HALT, row.at))
    return [_finding_line(row, evidence=evidence) for row in rows]


def _finding_line(row: Finding, *, evidence: bool) -> str:
    place = [f"rank {row.rank}" if row.rank is not None else "", row.section or ""]
    place += [f"step {row.step}" if row.step is not None else ""]
    where = ", ".join(part for part in place if part)
    parts = [f"- **{row.severity.value}** {code(row.detector)}"]
    parts.append(f" ({where}): {inline(row.text)}" if where else f": {inline(row.text)}")
    if row.value is not None and row.threshold is not None:
        bound = f"{number(row.value)} against {number(row.threshold)}, {row.source.value}"
        parts.append(f" ({bound})")
    if evidence and row.evidence:
        parts.append(f". Evidence: {', '.join(code(path) for path in row.evidence)}")
    return "".join(parts)


def condition_table(conditions: Iterable[Condition]) -> str:
    """Return the conditions of a CONDITIONAL_GO and what became of them."""
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


def diagnosis_text(decision: Decision | None, *, ours: bool) -> str | None:
    """Return the named failure with its cause and remedy.

    Args:
        decision: about the run.
        ours: whether nsa.train ran, whose settings the patches are.
    """
    if decision is None or decision.diagnosis is None:
        return None
    row, known = explain_decision(decision), library().get(decision.diagnosis)
    if row is None:
        return f"Diagnosis: {code(decision.diagnosis)}."
    patch = f" Patch: {code(json.dumps(known.patch))}." if known and known.patch and ours else ""
    return f"Diagnosis: **{row.name}**: {inline(row.cause)}. Remedy: {inline(row.remedy)}.{patch}"


def decision_table(view: ReportView) -> str:
    """Return every decision with its digests."""
    rows = (
        (
            str(row.seq),
            code(row.id),
            row.phase or "experiment",
            row.kind.value,
            _decided(row),
            inline(row.actor),
            row.at,
            _reason(row),
            code(row.facts_digest[:12]),
            code(row.rule_digest[:12]),
            code(row.hash[:16]),
            code(row.key_id) if row.key_id else NONE,
        )
        for row in view.decisions
    )
    heads = (
        "#", "decision", "about", "kind", "verdict", "by", "at", "reason", "facts", "rules", "hash",
        "signed by",
    )  # fmt: skip
    return table(heads, rows)


def _decided(row: Decision) -> str:
    """Return the verdict of a decision; a person's is one by hand."""
    if row.verdict is None:
        return NONE
    return f"**{row.verdict}{' by hand' if row.by_hand else ''}**"


def _reason(row: Decision) -> str:
    """Return why, and of a waiver which conditions it waives."""
    told = inline(row.reason or "")
    return f"{told} (waived: {', '.join(map(code, row.waives))})" if row.waives else told


def anchor_text(view: ReportView) -> str | None:
    """Say what the chain of decisions ends in, so that nobody can take its end away unseen."""
    if not view.decisions:
        return None
    head = view.decisions[-1]
    return (
        f"The chain ends in decision {head.seq} with the hash {code(head.hash)}."
        f" {code(f'gonogo verify --anchor {head.hash[:16]}')} shows whether it is still there."
    )
