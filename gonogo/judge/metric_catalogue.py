"""What may a criterion look at? The page docs/metric-reference.md, from the metrics themselves.

    python -m gonogo.judge.metric_catalogue > docs/metric-reference.md

What stands around them is `metric_catalogue.md` beside this file. A test compares the page with the
code.
"""

import sys
from collections.abc import Iterable
from pathlib import Path

from gonogo.contract.criterion import DEVICE_METRICS, Aggregate
from gonogo.judge.facts.measure import FULL_COVERAGE, PARTIAL_SHARE
from gonogo.judge.facts.metrics import METRICS, MetricRow, Owed

_FRAME = Path(__file__).with_suffix(".md")

OWED = {
    Owed.EVERY_STEP: "every step",
    Owed.EVERY_EVAL: "every evaluation",
    Owed.ONCE: "once",
}
AGGREGATES = {
    Aggregate.MIN: "The smallest sample.",
    Aggregate.MAX: "The largest sample.",
    Aggregate.MEAN: "The mean of the samples.",
    Aggregate.MEDIAN: "The median; the default.",
    Aggregate.P95: "The value that 95 % of the samples do not exceed, interpolated.",
    Aggregate.LAST: "The sample of the last step.",
    Aggregate.COUNT: "How many samples there are.",
    Aggregate.SLOPE: "Least-squares slope over the steps: by how much it rises a step; two samples"
    " at least.",
    Aggregate.ALL_FINITE: "Passes when no sample is NaN or infinite; takes no threshold.",
}


def page() -> str:
    """Return docs/metric-reference.md."""
    metrics = _table(
        ("metric", "unit", "what it is", "owed", "aggregate", "only with devices"),
        (_cells(name, row) for name, row in METRICS.items()),
    )
    aggregates = _table(
        ("aggregate", "what it is", "needed"),
        ((f"`{name}`", text, _needed(name)) for name, text in AGGREGATES.items()),
    )
    text = _FRAME.read_text().replace("<!-- metrics -->\n", metrics)
    return text.replace("<!-- aggregates -->\n", aggregates)


def _cells(name: str, row: MetricRow) -> tuple[str, ...]:
    own = "its own" if row.statistic is not None else ""
    devices = "yes" if name in DEVICE_METRICS else ""
    return f"`{name}`", row.unit, row.meaning, OWED[row.owed], own, devices


def _needed(aggregate: Aggregate) -> str:
    return f"{1.0 if aggregate in FULL_COVERAGE else PARTIAL_SHARE:.0%}"


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    columns = list(head)
    lines = [columns, ["---"] * len(columns), *map(list, rows)]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


if __name__ == "__main__":
    sys.stdout.write(page())
