"""The best speed of the same work on the same devices, for the detector of implausible speed.

Work is the same if configuration, program, environment, ranks, hosts and hardware profile are.
Code, PyTorch and driver may differ. Nothing is kept for CPUs, which other programs share.
"""

from sqlalchemy.orm import Session

from gonogo.contract.canonical import digest
from gonogo.contract.doubt import Effect
from gonogo.contract.facts import Facts, FindingFacts
from gonogo.contract.finding import Severity
from gonogo.contract.hardware import hardware_profiles
from gonogo.contract.order import Order
from gonogo.contract.outcome import Detector, OutcomeCode
from gonogo.planning.resolve import FROZEN
from service.db.schema import RunRow, SpeedRow


def load_best_step_s(session: Session, order: Order) -> float | None:
    """Return the median step of the fastest run of this work, in seconds; None = not known."""
    row = session.get(SpeedRow, _work_of(order)) if _is_known(order) else None
    return None if row is None else row.step_s


def note_speed(session: Session, run: RunRow, facts: Facts) -> None:
    """Keep the speed of a run that came to its end unsuspected, where it is the best so far."""
    if run.order is None or facts.outcome is None or facts.doubts_of(Effect.COVERAGE):
        return
    order = Order.model_validate(run.order)
    least = order.watch.implausible_speed.over_steps
    steps_s = [row.median_step_s for row in facts.pace.values() if row.steps >= least]
    timed = [step_s for step_s in steps_s if step_s is not None]
    completed = facts.outcome.code is OutcomeCode.COMPLETED and not any(
        map(_taints, facts.findings)
    )
    if not (_is_known(order) and completed and len(timed) == order.world_size):
        return
    step_s, work = max(timed), _work_of(order)
    known = session.get(SpeedRow, work, with_for_update=True)
    if step_s > 0 and (known is None or step_s < known.step_s):
        session.merge(SpeedRow(work=work, step_s=step_s, run=run.id))


def _work_of(order: Order) -> str:
    """Return the digest of everything that an order says of the work."""
    said = order.identity.model_dump(mode="json", exclude=set(FROZEN))
    names = {"entry", "command", "cwd", "files", "env"}
    if order.args:
        names.add("args")
    program = order.model_dump(mode="json", include=names)
    place = {"nodes": order.nodes} if order.nodes > 1 else {}  # hosts apart are slower
    work = {"identity": said, "profile": order.profile, "train": order.train}
    return digest({**work, **program, **place})


def _taints(finding: FindingFacts) -> bool:
    """Say whether a finding casts doubt on a run's speed: it ended the run, or is of the speed."""
    return finding.severity is Severity.HALT or finding.detector == Detector.IMPLAUSIBLE_SPEED


def _is_known(order: Order) -> bool:
    profile = hardware_profiles().get(order.profile)
    return profile is not None and profile.has_devices
