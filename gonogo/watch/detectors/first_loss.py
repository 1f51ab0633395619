"""D26: is the first loss that of a model that has learnt nothing?

An untrained model's loss is near ln(vocab) (byte model: 5.545; R17). A warning only; plans gate on
`loss_first`. Runs that are resumed, or begin with the weights of another, are excluded; a loss of
zero or below is no cross-entropy (a policy's, a reward's) and is told, not warned of.
"""

import math
from dataclasses import dataclass

from gonogo.contract.finding import Severity
from gonogo.contract.heartbeat import Msg
from gonogo.contract.outcome import Detector as Name
from gonogo.watch.detector import Detector, Seen
from gonogo.watch.view import Beat, Run, View, found


@dataclass(frozen=True, slots=True, kw_only=True)
class ToldOnce:
    """Whether the first loss has been told."""

    told: bool = False


def expected_loss(run: Run) -> float | None:
    """Return ln(vocab), or None when the run resumes or its vocabulary is not known."""
    if run.order.resume_from is not None:
        return None
    vocab = run.order.identity.vocab
    return math.log(vocab) if vocab else None


class FirstLoss(Detector[ToldOnce]):
    """D26: is the first loss that of a model that has learnt nothing?"""

    name = Name.FIRST_LOSS
    sentence = (
        "Warns when the loss of the first step is not that of an untrained model, which "
        "is near ln(vocabulary). One of zero or below, which is no cross-entropy, is told."
    )
    """2: a loss of zero or below does not warn."""
    State = ToldOnce
    lines = frozenset({Msg.PROGRESS})

    def observe_line(self, own: ToldOnce, event: Beat, view: View) -> Seen[ToldOnce]:
        """Observe the line that carries the loss of step 1."""
        if own.told:
            return own, []
        line = event.line
        if line.step != 1 or line.loss is None:
            return own, []
        expected = expected_loss(view.run)
        if expected is None:
            return own, []
        tolerance = view.run.watch.first_loss.tolerance
        if not math.isfinite(line.loss) or abs(line.loss - expected) <= tolerance:
            return ToldOnce(told=True), []
        return ToldOnce(told=True), [
            found(
                view,
                Name.FIRST_LOSS,
                Severity.WARN if line.loss > 0.0 else Severity.INFO,
                episode="step1",
                at=event.tick.ts,
                step=1,
                value=line.loss,
                threshold=tolerance,
                source=view.run.source("first_loss.tolerance"),
                text=f"the first loss is {line.loss:.4g}; ln(vocab) is {expected:.4g}"
                f" (tolerance {tolerance:g})",
            )
        ]

    def armed(self, own: ToldOnce, view: View) -> bool:
        """Whether the first loss is still to come."""
        return not own.told and expected_loss(view.run) is not None
