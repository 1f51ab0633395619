"""An example of a package that brings gonogo a detector with settings, and a metric for criteria."""

from collections.abc import Mapping
from dataclasses import dataclass

from pydantic import BaseModel

from gonogo.contract.finding import Severity
from gonogo.contract.order import Rules
from gonogo.judge.facts.metrics import MetricRow
from gonogo.timeline.rank_steps import RankSteps
from gonogo.watch.detector import Detector, Seen
from gonogo.timeline.step import Step
from gonogo.watch.view import View, found


class Settings(BaseModel):
    """What a plan may say under `watch.plugins.low_loss`."""

    below: float = 0.1


@dataclass(frozen=True, slots=True)
class Told:
    """Whether it has reported already."""

    told: bool = False


class LowLoss(Detector[Told]):
    """Warns once when the loss falls below a bound: too good to be true."""

    name = "low_loss"
    sentence = "Warns once when the loss falls below a bound."
    State = Told
    Settings = Settings
    steps = True

    def observe_step(self, own: Told, step: Step, view: View) -> Seen[Told]:
        """Observe the loss of a completed step."""
        loss = step.loss
        if own.told or loss is None or loss >= self.settings.below:
            return own, []
        return Told(told=True), [
            found(
                view,
                self.name,
                Severity.WARN,
                episode="low",
                at=step.tick.ts,
                step=step.step,
                value=loss,
                threshold=self.settings.below,
                text=f"the loss is {loss:.4g}, below {self.settings.below:g}",
            )
        ]


class TakesAName(LowLoss):
    """Refused: there is a detector of that name already."""

    name = "stall"


def loss_fall(steps: RankSteps, rules: Rules) -> Mapping[int, float]:
    """How far the loss has fallen since the first step, at every later one."""
    losses = steps.samples("loss")
    first = losses.get(rules.first_step)
    if first is None:
        return {}
    return {step: first - loss for step, loss in losses.items() if step > rules.first_step}


LOSS_FALL = MetricRow(
    samples=loss_fall, excused=lambda steps, rules: frozenset({rules.first_step})
)
"""In a plan: `{id: falls, metric: loss_fall, aggregate: mean, pass_above: 0.2}`."""
