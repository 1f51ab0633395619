"""Which reruns does a NO_GO need before it is one (R15), and which remedy may be tried?

The first rerun is unchanged; only when it fails again are the plan's variants run, one by one.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from gonogo.contract.decision import Verdict
from gonogo.contract.facts import Confirmation, History, Remedy
from gonogo.contract.order import RunReason
from gonogo.contract.outcome import Detector
from gonogo.contract.patch import RecordedPatch
from gonogo.contract.plan import Plan
from gonogo.judge.course.action import Action, ActionKind, Attempt
from gonogo.judge.gate.diagnosis import LOGGING_OFF

HANGS = frozenset({Detector.STALL, Detector.ALIVE_LOST, Detector.SECTION_DEADLINE})


def confirmed_run(runs: Sequence[Attempt]) -> tuple[Attempt, list[Attempt]]:
    """Return the run that the phase is about, and the confirmations made of it since."""
    index = max(i for i, row in enumerate(runs) if i == 0 or row.reason is not RunReason.CONFIRM)
    return runs[index], list(runs[index + 1 :])


def next_confirmation(
    plan: Plan, phase: str, first: Attempt, done: Sequence[Attempt]
) -> Action | None:
    """Return the next rerun that a NO_GO needs before it is one, or None."""
    if plan.confirm is None or first.detector not in plan.confirm.on:
        return None
    if first.detector in HANGS and first.logging_off:
        return None  # R15: NO_GO at once
    if not done:
        return _confirm(phase, None, "rerun unchanged before NO_GO")
    unchanged = done[0]
    variants = _variants(plan, first)
    made = len(done) - 1
    if unchanged.verdict is not Verdict.NO_GO or made >= len(variants):
        return None
    return _confirm(phase, variants[made], f"reproduced: variant {made + 1} of {len(variants)}")


def _confirm(phase: str, change: Mapping[str, Any] | None, text: str) -> Action:
    return Action(
        kind=ActionKind.START_RUN,
        text=text,
        phase=phase,
        reason=RunReason.CONFIRM,
        change=change,
    )


def _variants(plan: Plan, first: Attempt) -> list[dict[str, Any]]:
    """Return the variants of a confirmation; a hang with logging on is tried with it off (R15)."""
    rows = [row.document() for row in (plan.confirm.variants if plan.confirm else [])]
    if first.detector in HANGS:
        rows.insert(0, {"env": dict(LOGGING_OFF)})
    return rows


def history_of(first: Attempt, confirmations: Sequence[Attempt]) -> History | None:
    """Return what the confirmations and the remedy of a run are as facts; None without any."""
    history: dict[str, Any] = {}
    if confirmations:
        history["confirmations"] = [
            Confirmation(
                run=row.run,
                variant=None if row.change is None else RecordedPatch.model_validate(row.change),
                verdict=row.verdict,
                code=row.outcome.code,
            )
            for row in confirmations
        ]
    remedy = remedied(first)
    if remedy is not None:
        history["remedy"] = remedy
    return History(**history) if history else None


def remedied(first: Attempt) -> Remedy | None:
    """Return the remedy under which a run was made, as a fact; None without one."""
    if first.reason is not RunReason.REMEDY or first.change is None:
        return None
    patch = {name: value for name, value in first.change.items() if name != "diagnosis"}
    return Remedy(diagnosis=first.change.get("diagnosis") or "unknown", patch=patch)


def next_remedy(plan: Plan, phase: str, failed: Attempt, runs: Sequence[Attempt]) -> Action | None:
    """Return the rerun with the plan's remedy for the diagnosis, while any is left."""
    used = sum(row.reason is RunReason.REMEDY for row in runs)
    patch = plan.remedies.get(failed.diagnosis or "")
    if patch is None or used >= plan.max_remedies or failed.reason is RunReason.REMEDY:
        return None
    return Action(
        kind=ActionKind.START_RUN,
        text=f"{failed.diagnosis}: remedy {used + 1} of {plan.max_remedies}",
        phase=phase,
        reason=RunReason.REMEDY,
        change={"diagnosis": failed.diagnosis, **patch.document()},
    )
