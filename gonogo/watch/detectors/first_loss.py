"""D26: the first loss is not that of an untrained model.

An untrained model's loss is near ln(vocab) (byte model: 5.545). Resumed runs are excluded.
"""

import math
from dataclasses import dataclass

from gonogo.contract.finding import Severity
from gonogo.contract.heartbeat import Msg
from gonogo.contract.near import Near
from gonogo.contract.outcome import Detector as Name
from gonogo.watch.detector import Detector, Seen
from gonogo.watch.view import Beat, Run, View, found


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstSeen:
    """Whether the first loss was reported."""

    seen: bool = False


def expected_loss(run: Run) -> float | None:
    """Return ln(vocab), or None when the run resumes or its vocabulary is not known."""
    vocab = run.order.identity.vocab
    return math.log(vocab) if vocab and run.order.resume_from is None else None


class FirstLoss(Detector[FirstSeen]):
    """D26 (module docstring)."""

    name = Name.FIRST_LOSS
    sentence = "Warns when the loss of step 1 differs from ln(vocabulary) by more than `tolerance`."
    State = FirstSeen
    lines = frozenset({Msg.PROGRESS})

    def observe_line(self, own: FirstSeen, event: Beat, view: View) -> Seen[FirstSeen]:
        """Observe the line that carries the loss of step 1."""
        line, expected = event.line, expected_loss(view.run)
        if own.seen or expected is None or line.step != 1 or line.loss is None:
            return own, []
        tolerance = self.settings.tolerance
        if not math.isfinite(line.loss) or abs(line.loss - expected) <= tolerance:
            return FirstSeen(seen=True), []
        return FirstSeen(seen=True), [
            found(
                view,
                self.name,
                Severity.WARN,
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

    def armed(self, own: FirstSeen, view: View) -> bool:
        """Return whether the first loss is still to come."""
        return not own.seen and expected_loss(view.run) is not None

    def near(self, own: FirstSeen, view: View, mono: float) -> Near:
        """Return why the detector is blind: it looks at one loss only."""
        if expected_loss(view.run) is None:
            return Near(blind="the run resumes, or its vocabulary is not known")
        return Near(blind="the first loss was reported") if own.seen else Near()
