"""What can happen after a run? Attempts in, one action out: the words of `decide`."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from gonogo.contract.decision import Condition, Verdict
from gonogo.contract.facts import Facts, History
from gonogo.contract.order import RunReason
from gonogo.contract.outcome import Outcome, OutcomeCode
from gonogo.judge.gate.diagnosis import logging_is_off
from gonogo.judge.gate.verdict import Judgement


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
    """One ended run of the phase, as far as what happens next depends on it."""

    run: str
    reason: RunReason
    outcome: Outcome
    verdict: Verdict | None
    """Verdict of this run alone (`judge` without history)."""
    detector: str | None = None
    """Name of the detector that latched."""
    diagnosis: str | None = None
    answerable: bool = False
    """Whether the diagnosis explains one of the conditions that it leaves open."""
    unmet: tuple[str, ...] = ()
    """Ids of the criteria that are its open conditions."""
    undecided: tuple[str, ...] = ()
    """Ids of the required criteria whose value neither passes nor fails."""
    failed: tuple[str, ...] = ()
    """Ids of the criteria, and of the open conditions, that it has failed (`Judgement.failed`).

    Of one that ends before its phase does, those that nobody undoes (`Judgement.lasting`)."""
    explained: tuple[str, ...] = ()
    """Those of them that what ended it makes worse (`Judgement.explained`)."""
    logging_off: bool = False
    launched: bool = True
    """Whether ranks were started: not by a failed preflight, nor where nodes did not meet."""
    started_at: float | None = None
    """Unix seconds of the launch."""
    durable_step: int = 0
    """Highest step of a verified checkpoint when it ended; 0 for none."""
    began_at: int = 0
    """Step of the checkpoint that it went on from; 0: it began at step 1."""
    change: Mapping[str, Any] | None = None
    """`env` and `train` patch of a confirmation's variant or of a remedy; None when unchanged."""
    step: int | None = None
    """Step at which it ended: that of the finding which latched, else the last one seen."""
    until: int | None = None
    """Last step that was ordered, where that was not the phase's own."""
    began_with: str | None = None
    """Run of the phase whose checkpoint it went on from; None: it began anew, or with another's."""


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
    """Whether the run goes on from the last durable checkpoint."""
    resume_of: str | None = None
    """Run whose checkpoint, or whose own beginning, that is; None: the phase's last."""
    before: int | None = None
    """Only a checkpoint of an earlier step than this."""
    until: int | None = None
    """Last step of the run; None: the phase's own."""
    change: Mapping[str, Any] | None = None
    record: bool = False
    """Whether a decision about the phase is recorded now."""
    about: str | None = None
    """Run whose facts the decision holds."""
    history: History | None = None
    """What `with_history` lays beside those facts."""
    verdict: Verdict | None = None
    """Verdict of the phase that `judge` comes to with that history."""
    missed: tuple[Condition, ...] = ()
    """Conditions that guarded what would come next and were not met."""
    expires_s: float | None = None
    """How long an approval is waited for, seconds; None: for ever."""


def build_attempt(
    run: str,
    reason: RunReason,
    facts: Facts,
    judgement: Judgement,
    *,
    launched: bool = True,
    started_at: float | None = None,
    durable_step: int = 0,
    began_at: int = 0,
    change: Mapping[str, Any] | None = None,
    until: int | None = None,
    began_with: str | None = None,
) -> Attempt:
    """Return an ended run in the form that `decide` takes.

    Raises:
        ValueError: the facts hold no outcome: the run has not ended.
    """
    if judgement.outcome is None:
        raise ValueError(f"{run} has not ended")
    halt = facts.latched()
    return Attempt(
        run=run,
        reason=reason,
        outcome=judgement.outcome,
        verdict=judgement.verdict,
        detector=None if halt is None else halt.detector,
        diagnosis=judgement.diagnosis,
        answerable=judgement.answerable,
        unmet=tuple(row.criterion for row in judgement.conditions),
        undecided=tuple(judgement.undecided),
        failed=tuple(judgement.failed if until is None else judgement.lasting),
        explained=tuple(judgement.explained),
        logging_off=logging_is_off(facts),
        launched=launched and judgement.outcome.code is not OutcomeCode.PREFLIGHT_FAILED,
        started_at=started_at,
        durable_step=durable_step,
        began_at=began_at,
        change=change,
        step=_ended_at(facts),
        until=until,
        began_with=began_with,
    )


def _ended_at(facts: Facts) -> int | None:
    halt = facts.latched()
    if halt is not None and halt.step is not None:
        return halt.step
    return max((row.last_step for row in facts.ranks.values()), default=None)
