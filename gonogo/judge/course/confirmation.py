"""Which reruns does a NO_GO need before it is one (R15)?

The first rerun is unchanged; only when it fails again are variants run, one by one, each with one
change. A rerun answers within a bounded number of steps (`reruns`); where it passes, the phase goes
on to its last step as it was rerun, and only what that comes to passes the phase.
"""

from collections.abc import Collection, Iterable, Sequence
from typing import Any

from gonogo.contract.criterion import BUILT_IN_CRITERIA, Criterion
from gonogo.contract.decision import PASSING, Verdict
from gonogo.contract.facts import Confirmation, FailedBefore, History, Undecided
from gonogo.contract.order import RunReason
from gonogo.contract.outcome import Detector, OutcomeCode
from gonogo.contract.patch import RecordedPatch
from gonogo.contract.plan import Plan
from gonogo.judge.course.action import Action, Attempt
from gonogo.judge.course.remedies import remedied
from gonogo.judge.course.reruns import HANGS, go_on, rerun
from gonogo.judge.gate.built_in import DRIFT, IN_WEIGHTS
from gonogo.judge.gate.diagnosis import LOGGING_OFF
from gonogo.judge.gate.history import is_isolating

SYNTHETIC: dict[str, Any] = {"train": {"data": "synthetic"}}
"""The A/B of a loader that is slow (R27): nothing else changes."""

_OF_WHAT_IS_LEARNED = frozenset({OutcomeCode.DIVERGED, OutcomeCode.NON_FINITE})
"""Failures that are worse measures of what a run learns, and that is in the weights it leaves."""


def confirmed_run(runs: Sequence[Attempt]) -> tuple[Attempt, list[Attempt]]:
    """Return the run that the phase is about, and the confirmations made of it since.

    A NO_GO is answered by a remedy alone: a run that a person starts after it, or that takes over
    from its confirmation, is one more rerun of it, and makes nobody forget it. So is one without
    the patch that a person starts after a remedy which answered nothing.
    """
    failed: int | None = None
    at = 0
    for index, row in enumerate(runs):
        if row.reason is RunReason.REMEDY:
            at = index
        elif row.reason is not RunReason.CONFIRM:
            at = index if failed is None else failed
        if index == at and row.verdict is Verdict.NO_GO:
            failed = index
    since = [row for row in runs[at + 1 :] if row.reason is not RunReason.REMEDY]
    return runs[at], since


def completion_of(confirmations: Iterable[Attempt]) -> Attempt | None:
    """Return the run in which a phase went on to its last step after a rerun had answered."""
    answered: list[Any] = []
    found = None
    for row in confirmations:
        if row.until is None and row.change in answered:
            found = row
        if row.until is not None and row.verdict in PASSING:
            answered.append(row.change)
    return found


def outdone(runs: Iterable[Attempt]) -> set[str]:
    """Return the confirmations that did not pass where another one passed the phase.

    What they left, the variant that was tried last perhaps, is not what the phase has come to.
    """
    made = [row for row in runs if row.reason is RunReason.CONFIRM]
    passed = any(row.verdict in PASSING and row.until is None for row in made)
    return {row.run for row in made if row.verdict not in PASSING} if passed else set()


def next_confirmation(
    plan: Plan,
    phase: str,
    first: Attempt,
    done: Sequence[Attempt],
    awaited: Sequence[Criterion],
) -> Action | None:
    """Return the next rerun that a NO_GO needs before it is one, or None.

    Args:
        plan: the experiment's plan.
        phase: which phase.
        first: the run that failed.
        done: its reruns so far.
        awaited: as in `earlier_beginnings`.
    """
    if plan.confirm is None or first.detector not in plan.confirm.on:
        return None
    if first.detector in HANGS and first.logging_off:
        return None  # R15: NO_GO at once
    if first.reason is RunReason.REMEDY:
        return None  # a patch that fails as well needs no second opinion
    unchanged = [row for row in done if row.change is None]
    if not unchanged:
        text = "rerun unchanged before NO_GO"
        return rerun(plan, phase, first, RunReason.CONFIRM, None, text)
    last = unchanged[-1]
    if last.verdict in PASSING and last.until is not None:
        return go_on(plan, phase, last, "it did not come again: the phase goes on", awaited)
    if last.verdict is not Verdict.NO_GO:
        return None
    made = [row for row in done if row.change is not None]
    return _next_variant(plan, phase, first, made, awaited)


def _next_variant(
    plan: Plan,
    phase: str,
    first: Attempt,
    made: Sequence[Attempt],
    awaited: Sequence[Criterion],
) -> Action | None:
    """Return the next variant; after the last of them, the phase under the first that passed."""
    variants = _variants(plan, phase, first)
    told = [row.change for row in made]
    for number, change in enumerate(variants, 1):
        if change not in told:
            text = f"reproduced: variant {number} of {len(variants)}"
            return rerun(plan, phase, first, RunReason.CONFIRM, change, text)
    if completion_of(made) is not None:
        return None
    for row in made:
        if row.verdict in PASSING and row.until is not None and not is_isolating(row.change):
            text = "it passes under a variant: the phase goes on with it"
            return go_on(plan, phase, row, text, awaited)
    return None


def _variants(plan: Plan, phase: str, first: Attempt) -> list[dict[str, Any]]:
    """Return the variants of a confirmation, each with what it alone changes.

    A hang of our trainer with logging on is tried with it off (R15); a slow loader against no
    loader, and against nothing else (R27).
    """
    rows = [row.document() for row in (plan.confirm.variants if plan.confirm else [])]
    if first.detector in HANGS and plan.ours:
        rows.insert(0, {"env": dict(LOGGING_OFF)})
    if first.detector == Detector.LOADER:
        loads = plan.ours and plan.phase(phase).data != SYNTHETIC["train"]["data"]
        rows = [SYNTHETIC] if loads else []
    return rows


def history_of(first: Attempt, confirmations: Sequence[Attempt]) -> History | None:
    """Return what the confirmations and the remedy of a run are as facts; None without any."""
    history: dict[str, Any] = {}
    if confirmations:
        history["confirmations"] = [_told(row) for row in confirmations]
        if any(row.until is not None for row in confirmations) and first.step is not None:
            history["failed_step"] = first.step
    remedy = remedied(first)
    if remedy is not None:
        history["remedy"] = remedy
    return History(**history) if history else None


def unsettled_by(runs: Sequence[Attempt], confirmations: Iterable[Attempt]) -> History | None:
    """Return what the rerun that passed at the phase's own last step, and those before it, left.

    The decision is about the failure that did not come again, and tells nothing else of them.
    """
    whole = [row for row in confirmations if row.until is None and not is_isolating(row.change)]
    passed = [row for row in whole if row.verdict in PASSING]
    return unsettled_before(runs, passed[-1], itself=True) if passed else None


def unsettled_before(
    runs: Sequence[Attempt], judged: Attempt, *, itself: bool = False
) -> History | None:
    """Return the runs of the same order that had decided nothing, or failed, as facts; else None.

    Run again until it passes, a value that does not pass would be GO by chance. What
    was not seen of a run is no such value, and is seen in the next one or not. Nor does an
    accident, or a halt, excuse what a run had measured by then: one that goes on from its
    checkpoint sees the steps after that alone. Of what a failure makes worse that many steps show,
    a speed of one that was too slow, the confirmations tell: that is what did not come again. Of
    what one had learned that diverged, or came to a number that is none, they tell only where its
    steps were made again: before the checkpoint that is gone on with, a gradient may have been
    beyond its bound already.
    Of whom another goes on from the checkpoint, all that he had failed counts: a rerun that ended
    before its phase does, and what was made without the patch that the judged run has.

    Args:
        runs: of the phase, those included that infrastructure or an operator ended.
        judged: the one of them that is judged.
        itself: whether what that one failed is told as well, and what its plan excuses of it.
    """
    before = [
        row
        for row in runs[: runs.index(judged) + itself]
        if row.change == judged.change and row.until is None
    ]
    behind = _behind(runs, judged, itself=itself)
    tells_itself = DRIFT in judged.failed and not itself  # its own gate says so
    stays = IN_WEIGHTS - {DRIFT} if tells_itself else IN_WEIGHTS
    found: dict[str, Any] = {}
    undecided = [
        Undecided(run=row.run, criteria=list(row.undecided)) for row in before if row.undecided
    ]
    gone_on_with = [row for row in runs if row.run in behind]
    told = [*before, *gone_on_with]
    failed = [
        FailedBefore(run=row.run, code=row.outcome.code, criteria=criteria)
        for row in runs
        if (
            criteria := [
                *_failed_of(row, row in told, row.run in behind, stays),
                *(_excused(row) if itself and row is judged else ()),
            ]
        )
    ]
    if undecided:
        found["undecided"] = undecided
    if failed:
        found["failed_before"] = failed
    return History(**found) if found else None


def _failed_of(row: Attempt, told: bool, behind: bool, stays: Collection[str]) -> list[str]:
    learned = behind and row.outcome.code in _OF_WHAT_IS_LEARNED
    seen = [name for name in row.failed if learned or name not in row.explained]
    return [name for name in seen if (behind and name in stays if name in IN_WEIGHTS else told)]


def _excused(row: Attempt) -> list[str]:
    """Return what of a run was not told and is waived by name: the one it confirms may tell it."""
    return [name for name in row.unmet if name in BUILT_IN_CRITERIA]


def _behind(runs: Sequence[Attempt], judged: Attempt, *, itself: bool) -> set[str]:
    """Return the runs from whose checkpoints the judged one goes on, and perhaps itself.

    What was trained under a drift, or of other work, is in the weights still.
    """
    known = {row.run: row for row in runs}
    behind: list[Attempt] = []
    at: Attempt | None = judged
    while at is not None and at not in behind:
        behind.append(at)
        at = known.get(at.began_with or "")
    return {row.run for row in (behind if itself else behind[1:])}


def joined(told: History | None, more: History | None) -> History | None:
    """Return what two histories of one run tell together."""
    if told is None or more is None:
        return told or more
    return told.model_copy(update={name: getattr(more, name) for name in more.model_fields_set})


def _told(row: Attempt) -> Confirmation:
    bound = {} if row.until is None else {"until": row.until}
    return Confirmation(
        run=row.run,
        variant=None if row.change is None else RecordedPatch.model_validate(row.change),
        verdict=row.verdict,
        code=row.outcome.code,
        **bound,
    )
