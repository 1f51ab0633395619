"""What was found, over all simulated runs? Counts, rates with their bound, misses, latencies.

Pure: tallies of parts add up, in any order, to the same report.
"""

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from gonogo.contract.outcome import Detector

BOUND_PART = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Halt:
    """A healthy run that was halted: enough to simulate it again."""

    detector: str
    seed: str
    step_s: float
    ranks: int
    hour: float
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a sick run got."""

    sick: str
    by: str
    """Detector that answered, or the one that ought to."""
    latency_s: float | None
    """From the onset; None when it was missed."""
    wrong: str | None = None
    """What was found instead of what is due."""
    seed: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """What one part, or all of them, found."""

    run_hours: float = 0.0
    steps: int = 0
    lines: int = 0
    halts: tuple[Halt, ...] = ()
    warnings: Counter[str] = field(default_factory=Counter)
    answers: tuple[Answer, ...] = ()

    @classmethod
    def of(cls, tallies: Iterable["Tally"]) -> "Tally":
        """Return the sum of tallies, in a fixed order."""
        parts = list(tallies)
        warnings: Counter[str] = Counter()
        for part in parts:
            warnings.update(part.warnings)
        return cls(
            run_hours=math.fsum(part.run_hours for part in parts),
            steps=sum(part.steps for part in parts),
            lines=sum(part.lines for part in parts),
            halts=tuple(sorted((h for p in parts for h in p.halts), key=lambda h: h.seed)),
            warnings=warnings,
            answers=tuple(sorted((a for p in parts for a in p.answers), key=lambda a: a.seed)),
        )


def upper_bound(events: int, hours: float) -> float:
    """Return the exact 95 % upper bound of a Poisson rate, in events per hour.

    It is half the chi-square quantile at 0.95 with 2·(events + 1) degrees of freedom, over the
    hours; for no event that is 3.0 / hours.
    """
    if hours <= 0:
        return math.inf
    low, high = 0.0, 10.0 + 4.0 * (events + 1)
    for _ in range(200):
        middle = (low + high) / 2
        if _at_most(events, middle) > BOUND_PART:
            low = middle
        else:
            high = middle
    return high / hours


def _at_most(events: int, mean: float) -> float:
    """Return the probability of at most so many events."""
    log_mean = math.log(mean) if mean else -math.inf
    terms = (k * log_mean - mean - math.lgamma(k + 1) if k else -mean for k in range(events + 1))
    return math.fsum(math.exp(term) for term in terms)


def quantile(values: Iterable[float], share: float) -> float | None:
    """Return the smallest value that at least `share` of them do not exceed."""
    ordered = sorted(values)
    if not ordered:
        return None
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def report_of(tally: Tally) -> dict[str, Any]:
    """Return the report as plain JSON values; rates are per 1000 run-hours."""
    hours = tally.run_hours
    halts = Counter(halt.detector for halt in tally.halts)
    names = sorted({*halts, *(answer.by for answer in tally.answers), *tally.warnings})
    count = len(tally.halts)
    warned = sum(n for name, n in tally.warnings.items() if name != Detector.WATCHER)
    bound = upper_bound(count, hours) if hours else None
    return {
        "run_hours": round(hours, 3),
        "steps": tally.steps,
        "lines": tally.lines,
        "false_halts": count,
        "per_1000h": round(1000.0 * count / hours, 4) if hours else None,
        "upper95_per_1000h": None if bound is None else round(1000.0 * bound, 4),
        "warnings_per_1000h": round(1000.0 * warned / hours, 4) if hours else None,
        "sick_runs": len(tally.answers),
        "missed": sum(answer.latency_s is None for answer in tally.answers),
        "by_detector": {name: _row(tally, name, halts[name]) for name in names},
        "misses": [
            {"sick": a.sick, "due": a.by, "found": a.wrong, "seed": a.seed}
            for a in tally.answers
            if a.latency_s is None
        ],
        "halts": [
            {
                "detector": halt.detector,
                "seed": halt.seed,
                "step_s": halt.step_s,
                "ranks": halt.ranks,
                "hour": round(halt.hour, 3),
                "text": halt.text,
            }
            for halt in tally.halts
        ],
    }


def _row(tally: Tally, name: str, false_halts: int) -> dict[str, Any]:
    answers = [answer for answer in tally.answers if answer.by == name]
    latencies = [answer.latency_s for answer in answers if answer.latency_s is not None]
    p50, p99 = quantile(latencies, 0.5), quantile(latencies, 0.99)
    return {
        "false_halts": false_halts,
        "warnings": tally.warnings[name],
        "sick": len(answers),
        "missed": len(answers) - len(latencies),
        "latency_p50_s": None if p50 is None else round(p50, 3),
        "latency_p99_s": None if p99 is None else round(p99, 3),
    }
