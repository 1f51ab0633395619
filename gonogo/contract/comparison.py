"""The comparison of runs: `gonogo compare --json`, and what a campaign records."""

from enum import StrEnum

from pydantic import Field, JsonValue

from gonogo.contract.criterion import Compared
from gonogo.contract.doubt import Doubt
from gonogo.contract.wire import Number, Recorded

COMPARISON_V = 1


class Answer(StrEnum):
    """What the interval of a variant's ratio to the baseline shows."""

    BETTER = "better"
    """The whole interval lies beyond the margin, in the good direction."""
    WORSE = "worse"
    """The whole interval lies beyond the margin, in the bad direction."""
    TIE = "tie"
    """The whole interval lies within the margin."""
    INCONCLUSIVE = "inconclusive"
    """Anything else, missing evidence included."""


class Result(StrEnum):
    """Result of the comparison."""

    WINNER = "winner"
    TIE = "tie"
    INCONCLUSIVE = "inconclusive"


class Basis(StrEnum):
    """The units of the interval."""

    PAIRED_RUNS = "paired_runs"
    """Runs, paired by their repeat; Student's t."""
    RUNS = "runs"
    """Unpaired runs; Welch's t."""
    BLOCKS = "blocks"
    """Blocks of steps of one run each, widened."""


class PathEvidence(StrEnum):
    """Evidence of a difference."""

    TOLD = "told"
    """The processes, on their boot lines."""
    ORDERED = "ordered"
    """Only the orders."""
    DENIED = "denied"
    """The orders differ, the processes do not: it counts as equal."""


class ComparedRun(Recorded):
    """One compared run."""

    name: str
    run: str
    repeat: int | None = None
    value: Number
    """Mean over the ranks of the mean, last or best value."""
    window: str
    samples: int
    """Steps with the metric, on the rank that has fewest."""
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
    ratio: Number | None = None
    """Variant over baseline."""
    low: Number | None = None
    high: Number | None = None
    """Interval of the ratio; all intervals together have the confidence."""
    basis: Basis | None = None
    answer: Answer | None = None
    text: str = ""


class DifferingPath(Recorded):
    """One difference of a variant from the baseline."""

    path: str
    values: dict[str, list[JsonValue]]
    evidence: PathEvidence
    ordered: bool = True
    """Whether the orders differ in it."""


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
    paths: list[DifferingPath] = Field(default_factory=list)
    left_out: list[RunLeftOut] = Field(default_factory=list)
    notes: list[Doubt] = Field(default_factory=list)
    result: Result
    winner: str | None = None
    kept: str
    """The winner, else the baseline."""
    text: str
