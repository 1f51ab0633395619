"""Which conditions hang on an experiment, and what became of them?

A CONDITIONAL_GO makes one condition of each conditional criterion that did not pass. The run of
`evidence_from` can meet it; `due` is the phase that it guards. In the last phase it has neither:
only a person can waive it. State changes are decisions of kind `condition`.

An approval is a condition too. It is open while it is awaited, met by a person's word, and missed
once nobody gave it within `approve_expires_s`: silence is no consent.
"""

from collections.abc import Collection, Iterable, Mapping

from gonogo.contract.criterion import BUILT_IN_CRITERIA, Criterion, GateSeverity
from gonogo.contract.decision import (
    Condition,
    ConditionState,
    CriterionOutcome,
    CriterionResult,
    Decision,
    Verdict,
    worst,
)
from gonogo.contract.order import OpenCondition, Rules
from gonogo.judge.gate.criteria import is_unseen

END = "end"
APPROVAL = "approval"
"""What stands for the criterion of an approval."""

ON_MISS = {
    "no_go": Verdict.NO_GO,
    "conditional_go": Verdict.CONDITIONAL_GO,
    "inconclusive": Verdict.INCONCLUSIVE,
}


def build_conditions(results: Iterable[CriterionResult], rules: Rules) -> list[Condition]:
    """Return the conditions of a CONDITIONAL_GO, one per conditional criterion that did not pass.

    Defaults: the evidence comes from the next phase, and is due before the one after (`end` when
    there is none); in the last phase there is neither. What the order waives by name is settled.
    """
    gate = {row.id: row for row in rules.gate}
    found = []
    for row in results:
        if row.severity is not GateSeverity.CONDITIONAL or row.outcome is CriterionOutcome.PASS:
            continue
        waived = row.id in rules.waive and (row.id in BUILT_IN_CRITERIA or is_unseen(row))
        condition = Condition(
            id=f"{rules.phase}:{row.id}",
            text=row.evidence,
            criterion=row.id,
            state=ConditionState.WAIVED if waived else ConditionState.OPEN,
            **_terms(gate.get(row.id), rules),
        )
        found.append(condition)
    return found


def _terms(criterion: Criterion | None, rules: Rules) -> dict[str, str | None]:
    """Return where a condition can be met, what it guards, and what missing it means."""
    later = [phase.name for phase in rules.phases_after]
    if criterion is None:
        return {}  # the judge's own: nothing to measure again, so only a person can waive it
    if not later:
        return {"on_miss": criterion.on_miss}  # nothing left to measure it in
    evidence_from = criterion.evidence_from or later[0]
    after = later[later.index(evidence_from) + 1 :] if evidence_from in later else []
    return {
        "evidence_from": evidence_from,
        "due": criterion.due or (after[0] if after else END),
        "on_miss": criterion.on_miss,
    }


def conditions_of(decisions: Iterable[Decision]) -> list[OpenCondition]:
    """Return every condition of an experiment in its present state, from its decisions in order.

    A later decision about the same phase (a rerun) replaces the conditions of the earlier one.
    """
    found: dict[str, OpenCondition] = {}
    for decision in decisions:
        if decision.kind == "condition":
            for condition in decision.conditions:
                if condition.id in found or is_approval(condition):
                    known = found.get(condition.id)
                    criterion = None if known is None else known.criterion
                    found[condition.id] = OpenCondition(condition=condition, criterion=criterion)
            continue
        if decision.kind == "auto":
            prefix = f"{decision.phase}:"
            found = {name: row for name, row in found.items() if not name.startswith(prefix)}
        for condition in decision.conditions:
            criterion = _criterion_of(condition, decision)
            found[condition.id] = OpenCondition(condition=condition, criterion=criterion)
    return list(found.values())


def _criterion_of(condition: Condition, decision: Decision) -> Criterion | None:
    """Return what can settle a condition, by the decision that made it; None: only a person."""
    gate = {row["id"]: row for row in decision.rules.get("gate", [])}
    row = gate.get(condition.criterion)
    return None if row is None else Criterion.model_validate(row)


def open_for(rows: Iterable[OpenCondition], phase: str) -> list[OpenCondition]:
    """Return the open conditions that a run of `phase` can meet: what its rules must hold."""
    return [
        row
        for row in rows
        if row.condition.state is ConditionState.OPEN
        and row.condition.evidence_from == phase
        and row.criterion is not None
    ]


def missed(rows: Iterable[OpenCondition], due: str) -> list[Condition]:
    """Return the open conditions that guard `due` (a phase about to start, or `end`), missed."""
    return [
        in_state(row.condition, ConditionState.MISSED)
        for row in rows
        if row.condition.state is ConditionState.OPEN and row.condition.due == due
    ]


def in_state(condition: Condition, state: ConditionState) -> Condition:
    """Return a condition in another state."""
    return condition.model_copy(update={"state": state})


def all_met(own: Iterable[Condition]) -> bool:
    """Say whether all that a phase left open was met; an approval settles none of it."""
    measured = [row for row in own if not is_approval(row)]
    return bool(measured) and all(row.state is ConditionState.MET for row in measured)


def met_beyond(rows: Iterable[Condition], taken: Collection[str]) -> list[Condition]:
    """Return the conditions of these phases that were met by a run of none of them."""
    return [
        row
        for row in rows
        if row.state is ConditionState.MET
        and row.id.partition(":")[0] in taken
        and row.evidence_from is not None
        and row.evidence_from not in taken
    ]


def experiment_verdict(
    phases: Mapping[str, Verdict | None], conditions: Iterable[Condition]
) -> Verdict | None:
    """Return the verdict across phases: NO_GO > INCONCLUSIVE > CONDITIONAL_GO > GO.

    A phase's CONDITIONAL_GO counts as GO once all its conditions are met. A missed condition counts
    as its `on_miss` says; a waived one leaves the CONDITIONAL_GO as it is.
    """
    by_phase: dict[str, list[Condition]] = {}
    for condition in conditions:
        by_phase.setdefault(condition.id.partition(":")[0], []).append(condition)
    said: set[Verdict] = set()
    for phase, verdict in phases.items():
        if verdict is None:
            continue
        own = by_phase.get(phase, [])
        met = verdict is Verdict.CONDITIONAL_GO and all_met(own)
        said.add(Verdict.GO if met else verdict)
        said |= {ON_MISS[row.on_miss] for row in own if row.state is ConditionState.MISSED}
    return worst(said)


def is_approval(condition: Condition) -> bool:
    """Say whether a condition is a person's approval."""
    return condition.criterion == APPROVAL and "/" in condition.id


def approval_condition(phase: str, following: str) -> Condition:
    """Return the open condition that a person approves `following` after `phase`."""
    return Condition(
        id=f"{phase}:{APPROVAL}/{following}",
        text=f"a person approves {following} after {phase}",
        criterion=APPROVAL,
        due=following,
        on_miss="inconclusive",
    )


def has_expired(expires_s: float | None, waited_s: float) -> bool:
    """Say whether an approval can be given no more; None: it can be given for ever."""
    return expires_s is not None and waited_s >= expires_s
