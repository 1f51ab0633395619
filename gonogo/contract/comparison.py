"""What came of comparing runs? `gonogo compare --json`, and what a campaign records.

A comparison names its question (metric, direction, margin, confidence, warm-up), every run that it
rests on, every run that it left out and why, what really differed, and one answer for each variant.
"""

from enum import StrEnum

from pydantic import Field, JsonValue

from gonogo.contract.criterion import Compared
from gonogo.contract.doubt import Doubt
from gonogo.contract.wire import Number, Recorded

COMPARISON_V = 1


class Answer(StrEnum):
    """What the interval of one variant's ratio to the baseline says."""

    BETTER = "better"
    """The whole interval lies beyond the margin, in the good direction."""
    WORSE = "worse"
    """The whole interval lies beyond the margin, in the bad direction."""
    TIE = "tie"
    """The whole interval lies within the margin."""
    INCONCLUSIVE = "inconclusive"
    """Anything else, missing evidence included."""


class Result(StrEnum):
    """What the comparison comes to."""

    WINNER = "winner"
    TIE = "tie"
    INCONCLUSIVE = "inconclusive"


class Basis(StrEnum):
    """What the interval is made of."""

    PAIRED_RUNS = "paired_runs"
    """Runs are the units, paired by their repeat; Student's t."""
    RUNS = "runs"
    """Runs are the units, unpaired; Welch's t."""
    BLOCKS = "blocks"
    """One run each: blocks of steps are the units, widened for what one run cannot show."""


class PathEvidence(StrEnum):
    """Who says that a path differs."""

    TOLD = "told"
    """The processes themselves, on their boot lines."""
    ORDERED = "ordered"
    """The orders alone; no process tells it."""
    DENIED = "denied"
    """The orders differ, and the processes told the same: it does not count as differing."""


class ComparedRun(Recorded):
    """One run that the comparison rests on."""

    name: str
    """As it was named by who asked."""
    run: str
    repeat: int | None = None
    """Number of its repeat, by which it is paired; null where it has none."""
    value: Number
    """Mean over the ranks of the steps' mean, last or best value, in the metric's unit."""
    window: str
    """Which steps were looked at, such as `6..40`."""
    samples: int
    """Steps that told the metric, of the rank that told it least often."""
    blocks: int
    """Number of block means that are kept of it."""


class RunLeftOut(Recorded):
    """A run that was asked for and is no unit."""

    variant: str
    name: str
    why: str
    """One sentence."""


class ComparedVariant(Recorded):
    """One variant beside the baseline."""

    name: str
    runs: list[ComparedRun]
    value: Number | None = None
    """Geometric mean of its runs; null where it has none."""
    ratio: Number | None = None
    """Variant over baseline; null for the baseline itself and without evidence."""
    low: Number | None = None
    high: Number | None = None
    """Interval of the ratio at the confidence asked for, which all variants share."""
    basis: Basis | None = None
    answer: Answer | None = None
    """Null for the baseline."""
    text: str = ""
    """One sentence."""


class DifferingPath(Recorded):
    """One thing in which a variant is not the baseline."""

    path: str
    """Such as `train.batch.global_seqs`, `env.NSA_USE_FLASH` or `git_sha`."""
    values: dict[str, list[JsonValue]]
    """Variant → the values that its runs have; null: not set."""
    evidence: PathEvidence
    ordered: bool = True
    """Whether the orders differ in it; else only what the processes told."""


class Comparison(Recorded):
    """`gonogo compare`."""

    v: int = COMPARISON_V
    metric: str
    higher_is_better: bool
    aggregate: Compared = Compared.MEAN
    """How the samples of a run became its value."""
    margin: Number
    """Ratio beyond which a difference matters: 0.02 is 2 %."""
    confidence: Number
    """Of all intervals together."""
    warmup_steps: int
    """First steps of every run that are not looked at."""
    baseline: str
    variants: list[ComparedVariant]
    """The baseline first."""
    paths: list[DifferingPath] = Field(default_factory=list)
    left_out: list[RunLeftOut] = Field(default_factory=list)
    notes: list[Doubt] = Field(default_factory=list)
    """What else to know before believing it."""
    result: Result
    winner: str | None = None
    kept: str
    """What to go on with: the winner, else the baseline."""
    text: str
    """The result in one sentence."""
