"""How does a judgement become a recorded decision? Digests, and the chain of its experiment."""

from collections.abc import Iterable, Mapping
from typing import Any

from gonogo.contract.canonical import digest
from gonogo.contract.decision import Condition, CriterionResult, Decision, DecisionKind, Verdict
from gonogo.contract.order import JUDGE_VERSION
from gonogo.judge.verdict import Judgement

SERVICE_ACTOR = "gonogo"


def build_decision(
    *,
    id: str,
    seq: int,
    experiment: str,
    phase: str | None,
    run: str | None,
    judgement: Judgement,
    rules: Mapping[str, Any],
    facts: Mapping[str, Any],
    at: str,
    prev_hash: str | None = None,
    actor: str = SERVICE_ACTOR,
    reason: str | None = None,
    supersedes: str | None = None,
) -> Decision:
    """Return the sealed decision that a judgement is.

    Args:
        id: `dec_…`.
        seq: 1, 2, … within the experiment.
        experiment, phase, run: what it is about.
        judgement: what `judge(facts, rules)` came to.
        rules, facts: exactly those it was judged by.
        at: RFC 3339 UTC.
        prev_hash: hash of the experiment's decision before this one.
        actor: who decided.
        reason: in words, where there is more to say than the criteria do.
        supersedes: id of the decision that this one replaces.
    """
    return Decision(
        id=id,
        seq=seq,
        experiment=experiment,
        phase=phase,
        run=run,
        kind=DecisionKind.AUTO,
        verdict=judgement.verdict,
        criteria=judgement.criteria,
        conditions=judgement.conditions,
        diagnosis=judgement.diagnosis,
        rules=dict(rules),
        facts=dict(facts),
        rule_digest=digest(rules),
        facts_digest=digest(facts),
        judge_version=rules["judge_version"],
        prev_hash=prev_hash,
        actor=actor,
        reason=reason,
        at=at,
        supersedes=supersedes,
    ).sealed()


def build_human_decision(
    *,
    id: str,
    seq: int,
    experiment: str,
    phase: str | None,
    run: str | None,
    verdict: Verdict,
    actor: str,
    reason: str,
    at: str,
    prev_hash: str | None = None,
    supersedes: str | None = None,
) -> Decision:
    """Return the sealed decision that a person made; it holds no facts and no rules of its own."""
    return Decision(
        id=id,
        seq=seq,
        experiment=experiment,
        phase=phase,
        run=run,
        kind=DecisionKind.HUMAN,
        verdict=verdict,
        rule_digest=digest({}),
        facts_digest=digest({}),
        judge_version=JUDGE_VERSION,
        prev_hash=prev_hash,
        actor=actor,
        reason=reason,
        at=at,
        supersedes=supersedes,
    ).sealed()


def build_condition_decision(
    *,
    id: str,
    seq: int,
    experiment: str,
    phase: str | None,
    run: str | None,
    verdict: Verdict | None,
    conditions: Iterable[Condition],
    criteria: Iterable[CriterionResult] = (),
    at: str,
    actor: str = SERVICE_ACTOR,
    reason: str | None = None,
    prev_hash: str | None = None,
) -> Decision:
    """Return the sealed decision that conditions were met, missed or waived.

    Args:
        id, seq, experiment, at, prev_hash: as in `build_decision`.
        phase: the phase whose run brought the evidence, or that was due.
        run: the run that brought the evidence; None for missed and waived ones.
        verdict: of the experiment, with the conditions in their new state.
        conditions: in their new state.
        criteria: what their criteria said, where they were evaluated.
        actor, reason: who waived, and why.
    """
    return Decision(
        id=id,
        seq=seq,
        experiment=experiment,
        phase=phase,
        run=run,
        kind=DecisionKind.CONDITION,
        verdict=verdict,
        criteria=list(criteria),
        conditions=list(conditions),
        rule_digest=digest({}),
        facts_digest=digest({}),
        judge_version=JUDGE_VERSION,
        prev_hash=prev_hash,
        actor=actor,
        reason=reason,
        at=at,
    ).sealed()
