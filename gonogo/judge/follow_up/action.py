"""The attempts that `decide` reads, and the action that it returns."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from gonogo.contract.decision import Condition, Verdict
from gonogo.contract.facts import Facts, History
from gonogo.contract.order import RunReason
from gonogo.contract.outcome import Outcome, OutcomeClass, OutcomeCode
from gonogo.judge.gate.verdict import Judgement

SAY_NOTHING = (OutcomeClass.INFRA, OutcomeClass.OPERATOR)
"""Ends that say nothing about a phase: its host failed, or a person stopped it."""


class ActionKind(StrEnum):
    """What the service does next."""

    START_PHASE = "start_phase"
    START_RUN = "start_run"
    AWAIT_APPROVAL = "await_approval"
    AWAIT_DECISION = "await_decision"
    FINISH = "finish"
    NOTHING = "nothing"


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One ended run of a phase, as far as the next action depends on it."""

    run: str
    reason: RunReason
    outcome: Outcome
    verdict: Verdict | None
    """Verdict of this run alone (`judge` without history)."""
    detector: str | None = None
    """Detector that halted the run."""
    diagnosis: str | None = None
    failed: tuple[str, ...] = ()
    """What the run has failed (`Judgement.failed`)."""
    launched: bool = True
    """Whether ranks were started."""
    started_at: float | None = None
    """Unix seconds of the launch."""
    durable_step: int = 0
    """Highest step of a verified checkpoint when it ended; 0 for none."""
    change: Mapping[str, Any] | None = None
    """`env` and `train` patch of a variant or a remedy; None when unchanged."""
    step: int | None = None
    """Step at which it ended: that of the halt, else the last one seen."""

    @property
    def passed(self) -> bool:
        """Whether the run passes its phase."""
        return self.verdict in (Verdict.GO, Verdict.CONDITIONAL_GO)


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """What to do next, and what to record first."""

    kind: ActionKind
    text: str
    """Why, in one sentence."""
    phase: str | None = None
    """Phase to start, or whose next run to start."""
    reason: RunReason | None = None
    resume: bool = False
    """Whether the run resumes from a durable checkpoint."""
    resume_of: str | None = None
    """Run whose checkpoint that is; None: the phase's last."""
    before: int | None = None
    """Only a checkpoint of an earlier step than this."""
    change: Mapping[str, Any] | None = None
    record: bool = False
    """Whether a decision about the phase is recorded now."""
    about: str | None = None
    """Run whose facts the decision holds."""
    history: History | None = None
    """What `with_history` puts beside those facts."""
    verdict: Verdict | None = None
    """Verdict of the phase that `judge` comes to with that history."""
    missed: tuple[Condition, ...] = ()
    """Conditions that guarded the next phase and were not met."""
    expires_s: float | None = None
    """How long an approval can be given, seconds; None: for ever."""


def build_attempt(
    run: str,
    reason: RunReason,
    facts: Facts,
    judgement: Judgement,
    *,
    launched: bool = True,
    started_at: float | None = None,
    durable_step: int = 0,
    change: Mapping[str, Any] | None = None,
) -> Attempt:
    """Return an ended run in the form that `decide` takes.

    Raises:
        ValueError: the facts hold no outcome, so the run has not ended.
    """
    if judgement.outcome is None:
        raise ValueError(f"{run} has not ended")
    halt = facts.latched()
    last_step = max((row.last_step for row in facts.ranks.values()), default=None)
    return Attempt(
        run=run,
        reason=reason,
        outcome=judgement.outcome,
        verdict=judgement.verdict,
        detector=None if halt is None else halt.detector,
        diagnosis=judgement.diagnosis,
        failed=tuple(judgement.failed),
        launched=launched and judgement.outcome.code is not OutcomeCode.PREFLIGHT_FAILED,
        started_at=started_at,
        durable_step=durable_step,
        change=change,
        step=last_step if halt is None or halt.step is None else halt.step,
    )
