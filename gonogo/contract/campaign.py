"""A campaign: variants of one phase, each run several times in turns, and compared.

A section `campaign` makes a plan a campaign:

    campaign:
      metric: toks_per_s
      repeats: 3
      variants:                  # the first is the baseline
        - {name: mb25, env: {NSA_DDP_BUCKET_MB: 25}}
        - {name: mb50, env: {NSA_DDP_BUCKET_MB: 50}}

A grid names values instead (`grid: {train: {lr: [1e-3, 3e-4]}}`); each combination is a variant.
"""

import json
import re
from collections.abc import Iterator, Mapping
from enum import StrEnum
from itertools import product
from math import prod
from typing import Annotated, Any, Literal, Self

from pydantic import Field, JsonValue, model_validator

from gonogo.contract.criterion import Compared, Metric, MetricName
from gonogo.contract.finding import Doubt
from gonogo.contract.wire import Name, Number, Recorded, Submitted
from gonogo.contract.workload import Patch

LEAST_REPEATS = 3  # With two repeats, three equal variants lead by 3.4 % in the median.
MOST_REPEATS = 20
USUAL_BOUND = 6
MOST_VARIANTS = 20
_UNNAMED = re.compile(r"[^a-z0-9.-]+")
_MOST_CHARS = 64


class CampaignVariant(Patch):
    """A compared variant: its changes of the phase."""

    name: Name  # Name of the variant.


class CampaignSpec(Submitted):
    """Metric, variants and repeats of a campaign."""

    variants: Annotated[list[CampaignVariant], Field(min_length=2, max_length=MOST_VARIANTS)] = []
    """What is compared; the first is the baseline."""
    grid: dict[str, JsonValue] = {}
    """Lists in place of values in `train` and `env`; each combination is a variant."""
    metric: MetricName = Metric.TOKS_PER_S  # The compared metric.
    better: Literal["higher", "lower"] | None = None  # Null: as usual for the metric.
    aggregate: Compared | None = None
    """What counts. Null: the last value of `user/…`, else the mean."""
    per_device: bool = False  # Whether the metric is divided by the number of ranks.
    margin: Annotated[float, Field(ge=0, lt=1)] = 0.02  # Ratio from which a difference matters.
    confidence: Annotated[float, Field(ge=0.5, le=0.99)] = 0.95
    """Confidence of all answers together."""
    warmup_steps: Annotated[int, Field(ge=0)] = 5  # First steps of every run that do not count.
    repeats: Annotated[int, Field(ge=LEAST_REPEATS, le=MOST_REPEATS)] = LEAST_REPEATS
    """Runs of each variant before the first look."""
    max_repeats: Annotated[int, Field(ge=LEAST_REPEATS, le=MOST_REPEATS)] | None = None
    """Most runs of each variant; null: 6, or `repeats` if more."""
    shown_by: list[MetricName] = []  # Metrics that must differ between variant and baseline.
    alike_in: dict[MetricName, Annotated[float, Field(ge=0, lt=1)]] = {}
    """Metrics that must be equal in all variants → allowed share of difference."""

    at_once: bool = False  # Whether runs start together, not in turns; for metrics such as a loss.

    @model_validator(mode="before")
    @classmethod
    def _variants_of_the_grid(cls, said: Any) -> Any:
        if not isinstance(said, Mapping) or not said.get("grid"):
            return said
        if said.get("variants"):
            raise ValueError("expected variants or a grid, found both")
        rest = {name: value for name, value in said.items() if name != "grid"}
        return {**rest, "variants": variants_of(said["grid"])}

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        problems = list(self._problems())
        if problems:
            raise ValueError("\n".join(problems))
        return self

    def _problems(self) -> Iterator[str]:
        if not self.variants:
            yield "campaign.variants: missing; expected variants, or a grid of their values"
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
        """Most looks at the runs."""
        return self.bound - self.repeats + 1


def variants_of(grid: Any) -> list[dict[str, Any]]:
    """Return the variants of a grid as data; the last key changes first. Keys may be dotted."""
    axes = dict(_axes("", grid))
    for path in axes:
        if (inner := next((row for row in axes if row.startswith(f"{path}.")), None)) is not None:
            raise ValueError(f"grid.{inner}: lies inside a value, {path}")
    count = prod(map(len, axes.values()))
    if count > MOST_VARIANTS:
        raise ValueError(f"grid: found {count} combinations, expected at most {MOST_VARIANTS}")
    found: list[dict[str, Any]] = []
    for number, values in enumerate(product(*axes.values()), 1):
        variant: dict[str, Any] = {}
        for path, value in zip(axes, values, strict=True):
            node = variant
            *above, last = path.split(".")
            for step in above:
                node = node.setdefault(step, {})
            node[last] = value
        name = "_".join(map(_named, axes, values))
        fits = len(name) <= _MOST_CHARS and name not in {row["name"] for row in found}
        found.append({"name": name if fits else f"v{number}", **variant})
    return found


def _axes(path: str, value: Any) -> Iterator[tuple[str, list[Any]]]:
    if isinstance(value, Mapping) and value:
        for key, below in value.items():
            yield from _axes(f"{path}.{key}".lstrip("."), below)
    elif not isinstance(value, list) or not value:
        raise ValueError(f"grid.{path}: found {value!r}; expected a list of values")
    elif not path.startswith(("train.", "env.")):
        raise ValueError(f"grid.{path}: expected train.KEY or env.NAME")
    else:
        yield path, value


def _named(path: str, value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return _UNNAMED.sub("-", f"{path.rpartition('.')[2]}-{text}".lower()).strip("-.")


COMPARISON_V = 1


class Answer(StrEnum):
    """What the interval of a variant's ratio to the baseline shows."""

    BETTER = "better"  # The whole interval lies beyond the margin, in the good direction.
    WORSE = "worse"  # The whole interval lies beyond the margin, in the bad direction.
    TIE = "tie"  # The whole interval lies within the margin.
    INCONCLUSIVE = "inconclusive"  # Anything else, missing evidence included.


class Result(StrEnum):
    """Result of the comparison."""

    WINNER = "winner"
    TIE = "tie"
    INCONCLUSIVE = "inconclusive"


class Basis(StrEnum):
    """The units of the interval."""

    PAIRED_RUNS = "paired_runs"  # Runs, paired by their repeat; Student's t.
    RUNS = "runs"  # Unpaired runs; Welch's t.
    BLOCKS = "blocks"  # Blocks of steps of one run each, widened.


class PathEvidence(StrEnum):
    """Evidence of a difference."""

    TOLD = "told"  # The processes, on their boot lines.
    ORDERED = "ordered"  # Only the orders.
    DENIED = "denied"  # The orders differ, the processes do not: it counts as equal.


class ComparedRun(Recorded):
    """One compared run."""

    name: str
    run: str
    repeat: int | None = None
    value: Number  # Mean over the ranks of the mean, last or best value.
    window: str
    samples: int  # Steps with the metric, on the rank that has fewest.
    blocks: int


class RunLeftOut(Recorded):
    """A run that does not count."""

    variant: str
    name: str
    why: str


class ComparedVariant(Recorded):
    """One variant beside the baseline."""

    name: str
    runs: list[ComparedRun]
    value: Number | None = None
    ratio: Number | None = None  # Variant over baseline.
    low: Number | None = None
    high: Number | None = None  # Interval of the ratio; all intervals together have the confidence.
    basis: Basis | None = None
    answer: Answer | None = None
    text: str = ""


class DifferingPath(Recorded):
    """One difference of a variant from the baseline."""

    path: str
    values: dict[str, list[JsonValue]]
    evidence: PathEvidence
    ordered: bool = True  # Whether the orders differ in it.


class Comparison(Recorded):
    """`gonogo compare`."""

    v: int = COMPARISON_V
    metric: str
    higher_is_better: bool
    aggregate: Compared = Compared.MEAN
    margin: Number
    confidence: Number
    warmup_steps: int
    baseline: str
    variants: list[ComparedVariant]
    paths: list[DifferingPath] = []
    left_out: list[RunLeftOut] = []
    notes: list[Doubt] = []
    result: Result
    winner: str | None = None
    kept: str  # The winner, else the baseline.
    text: str
