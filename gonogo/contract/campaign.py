"""What is a campaign? Variants of one phase, each run several times in turns, and compared.

A plan with a section `campaign` is one; `gonogo campaign submit` takes it:

    campaign:
      metric: toks_per_s
      repeats: 3
      variants:                  # the first is the baseline
        - {name: mb25, env: {NSA_DDP_BUCKET_MB: 25}}
        - {name: mb50, env: {NSA_DDP_BUCKET_MB: 50}}
"""

from collections.abc import Iterator
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from gonogo.contract.criterion import Compared, Metric, MetricName
from gonogo.contract.patch import Patch
from gonogo.contract.wire import Name, Submitted

LEAST_REPEATS = 3
"""Two repeats show next to nothing: three equal variants lead by 3.4 % then, in the median."""
MOST_REPEATS = 20
USUAL_BOUND = 6


class CampaignVariant(Patch):
    """One of the things that are compared: what it changes of the phase."""

    name: Name
    """What it is called."""


class CampaignSpec(Submitted):
    """What a campaign asks, of which variants."""

    variants: Annotated[list[CampaignVariant], Field(min_length=2, max_length=20)]
    """What is compared; the first is the baseline."""
    metric: MetricName = Metric.TOKS_PER_S
    """What is compared of them, as gates name it."""
    better: Literal["higher", "lower"] | None = None
    """Which is better; null: what everybody wants of the metric."""
    aggregate: Compared | None = None
    """What counts of a run: its last value, its best one or the mean over the steps; null: the
    last value of a metric `user/…`, and the mean of another."""
    per_device: bool = False
    """Whether the metric is divided by the number of ranks, as scaling is looked at."""
    margin: Annotated[float, Field(ge=0, lt=1)] = 0.02
    """Ratio beyond which a difference matters."""
    confidence: Annotated[float, Field(ge=0.5, le=0.99)] = 0.95
    """That all answers hold together, however often was looked."""
    warmup_steps: Annotated[int, Field(ge=0)] = 5
    """First steps of every run that are not looked at."""
    repeats: Annotated[int, Field(ge=LEAST_REPEATS, le=MOST_REPEATS)] = LEAST_REPEATS
    """Runs of each variant before the first look."""
    max_repeats: Annotated[int, Field(ge=LEAST_REPEATS, le=MOST_REPEATS)] | None = None
    """Most runs of each variant, where fewer decide nothing; null: 6, or `repeats` if more."""
    shown_by: list[MetricName] = []
    """Metrics that every variant must tell otherwise than the baseline: they show that it did
    what it says; where they do not, nothing was compared."""
    alike_in: dict[MetricName, Annotated[float, Field(ge=0, lt=1)]] = {}
    """Metrics that every variant must tell as the baseline does, with the share by which two runs
    of one repeat may differ: they show that it computed the same."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        problems = list(self._problems())
        if problems:
            raise ValueError("\n".join(problems))
        return self

    def _problems(self) -> Iterator[str]:
        names = [row.name for row in self.variants]
        for name in dict.fromkeys(name for name in names if names.count(name) > 1):
            yield f"campaign.variants: two variants are called {name}"
        if self.max_repeats is not None and self.max_repeats < self.repeats:
            yield (
                f"campaign.max_repeats: found {self.max_repeats}, expected at least"
                f" {self.repeats} (campaign.repeats)"
            )

    @property
    def bound(self) -> int:
        """Most runs of each variant."""
        return max(self.repeats, self.max_repeats or USUAL_BOUND)

    @property
    def looks(self) -> int:
        """Most times that the runs are looked at, each of which could err."""
        return self.bound - self.repeats + 1
