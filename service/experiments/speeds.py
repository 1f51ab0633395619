"""The best speed of the same work on the same devices, for the detector of implausible speed.

Code, PyTorch and driver may differ. Nothing is kept for CPUs, which other programs share.
"""

from sqlalchemy.orm import Session

from gonogo.contract.canonical import digest
from gonogo.contract.facts import Facts
from gonogo.contract.finding import Effect, Severity
from gonogo.contract.order import Order
from gonogo.contract.outcome import Detector, OutcomeCode
from gonogo.contract.plan import hardware_profiles
from gonogo.planning.resolve import FROZEN
from service.db.schema import RunRow, SpeedRow

_PROGRAM = {"entry", "command", "cwd", "files", "env", "args", "nodes", "profile", "train"}


def load_best_step_s(session: Session, order: Order) -> float | None:
    """Return the median step of the fastest run of this work, in seconds; None = not known."""
    row = session.get(SpeedRow, _work_of(order))
    return None if row is None else row.step_s


def note_speed(session: Session, run: RunRow, facts: Facts) -> None:
    """Keep the speed of a run that completed unsuspected on devices, if it is the best so far."""
    if run.order is None or facts.outcome is None or facts.doubts_of(Effect.COVERAGE):
        return
    order = Order.model_validate(run.order)
    profile = hardware_profiles().get(order.profile)
    doubtful = any(
        row.severity is Severity.HALT or row.detector == Detector.IMPLAUSIBLE_SPEED
        for row in facts.findings
    )
    if facts.outcome.code is not OutcomeCode.COMPLETED or doubtful:
        return
    least = order.watch.implausible_speed.over_steps
    paces = [row.median_step_s for row in facts.pace.values() if row.steps >= least]
    timed = [step_s for step_s in paces if step_s]
    if profile is None or not profile.has_devices or len(timed) != order.world_size:
        return
    known = session.get(SpeedRow, _work_of(order), with_for_update=True)
    if known is None or max(timed) < known.step_s:
        session.merge(SpeedRow(work=_work_of(order), step_s=max(timed), run=run.id))


def _work_of(order: Order) -> str:
    identity = order.identity.model_dump(mode="json", exclude=set(FROZEN))
    return digest({"identity": identity, **order.model_dump(mode="json", include=_PROGRAM)})
