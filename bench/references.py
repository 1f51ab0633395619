"""The pages docs/detectors.md, metric-reference.md, doubts.md and failures.md, made from the code.

    python -m bench.references detectors > docs/detectors.md
    python -m bench.references metrics > docs/reference/metrics.md
    python -m bench.references doubts > docs/doubts.md
    python -m bench.references failures > docs/reference/failures.md

The text around the tables is in `pages/` beside this file. A test compares pages and code.
"""

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from pydantic import BaseModel

from gonogo import contract
from gonogo.contract.criterion import DEVICE_METRICS, Aggregate
from gonogo.contract.doubt import EFFECTS, IN_WEIGHTS, DoubtKind, Effect
from gonogo.contract.patience import MEANING, SETTING, TABLE, Cell, ProgramKind
from gonogo.contract.watch import Action, CanHalt, IdentityCheck, Watch
from gonogo.contract.yaml_text import parse_yaml
from gonogo.judge.facts.measure import FULL_COVERAGE, PARTIAL_SHARE
from gonogo.judge.facts.metrics import METRICS, MetricRow, Owed
from gonogo.judge.failures import library
from gonogo.judge.words import WORDS
from gonogo.watch.registry import REGISTRY, Kind

_FRAMES = Path(__file__).parent / "pages"
_PLANS = Path(contract.__file__).parent / "plans"
OWED = {
    Owed.EVERY_STEP: "every step",
    Owed.EVERY_EVAL: "every evaluation",
    Owed.ONCE: "once",
    Owed.AS_TOLD: "those reported",
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
_DOUBTS = """# Doubts: why records do not prove what they say

A doubt is a typed row: `kind`, and where known `rank`, `step`, `name`, `expected` and `found`. It
stands in the facts of a run, in a decision (`weakened`: what weakens its order), in a comparison
(`notes`), or in what `gonogo replay` and `gonogo verify` could not check. Commands and pages print
doubts as sentences. A doubt that is listed changes no verdict by itself; a criterion that needs
what is missing is INCONCLUSIVE. `make made` generates this page.

| kind | meaning | effect on the verdict | what to do |
|---|---|---|---|"""


def detectors() -> str:
    """Return docs/detectors.md."""
    frame = (_FRAMES / "detectors.md").read_text()
    frame = frame.replace("<!-- patience -->\n", _patience())
    return frame.replace("<!-- detectors -->\n", _detectors())


def _patience() -> str:
    """Return the table of patience."""
    head = "| place | " + " | ".join(ProgramKind) + " | where a rank is | setting |\n"
    rows = (
        f"| `{place}` | {' | '.join(_cell(row[kind]) for kind in ProgramKind)} | {MEANING[place]}"
        f" | {f'`{SETTING[place]}`' if place in SETTING else ''} |"
        for place, row in TABLE.items()
    )
    return f"{head}|---|---|---|---|---|---|---|\n" + "\n".join(rows) + "\n"


def _cell(cell: Cell) -> str:
    """Return a cell of the table: seconds and multiple."""
    seconds = "none" if cell.seconds is None else f"{cell.seconds:g} s"
    return seconds if cell.multiple is None else f"{seconds}, {cell.multiple:g} × {cell.of}"


def _detectors() -> str:
    """Return the table of detectors."""
    head = "| | detector | what it sees | limits (defaults) | action | halts in |\n"
    rows = (_row(number, row) for number, row in enumerate(REGISTRY, start=1))
    return f"{head}|---|---|---|---|---|---|\n" + "".join(rows)


def _row(number: int, row: Kind) -> str:
    settings = getattr(Watch(), str(row.name), None)
    rows = _limits(settings, "") if isinstance(settings, BaseModel) else ()
    limits = ", ".join(f"`{name}` {value}" for name, value in rows)
    halts = isinstance(settings, IdentityCheck) or (
        isinstance(settings, CanHalt) and settings.action is Action.HALT
    )
    action, where = (Action.HALT, "all plans") if halts else (Action.WARN, _asked(row.name))
    return f"| D{number} | `{row.name}` | {row.sentence} | {limits} | {action} | {where} |\n"


def _limits(settings: BaseModel, prefix: str) -> Iterator[tuple[str, str]]:
    """Yield the settings of a detector and their defaults, but its action."""
    for name in type(settings).model_fields:
        value = getattr(settings, name)
        if isinstance(value, BaseModel):
            yield from _limits(value, f"{prefix}{name}.")
        elif name != "action":
            yield f"{prefix}{name}", "none" if value is None else f"{value:g}"


def _asked(detector: str) -> str:
    """Return which bundled plans ask for the detector's halt."""
    plans = {path.stem: parse_yaml(path.read_text()) for path in sorted(_PLANS.glob("*.yaml"))}
    asked = [
        name
        for name, plan in plans.items()
        if plan.get("watch", {}).get(detector, {}).get("action") == Action.HALT
    ]
    return "all bundled plans" if len(asked) == len(plans) else ", ".join(asked)


def metrics() -> str:
    """Return docs/reference/metrics.md."""
    rows = _table(
        ("metric", "unit", "what it is", "owed", "aggregate", "only with devices"),
        (_cells(name, row) for name, row in METRICS.items()),
    )
    aggregates = _table(
        ("aggregate", "what it is", "needed"),
        ((f"`{name}`", text, _needed(name)) for name, text in AGGREGATES.items()),
    )
    text = (_FRAMES / "metrics.md").read_text().replace("<!-- metrics -->\n", rows)
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


def doubts() -> str:
    """Return docs/doubts.md."""
    rows = [
        f"| `{kind}` | {words.meaning} | {_effect(kind)} | {words.advice} |"
        for kind, words in WORDS.items()
    ]
    return "\n".join([_DOUBTS, *rows, ""])


def _effect(kind: DoubtKind) -> str:
    effect = EFFECTS[kind]
    if effect is Effect.NONE:
        return "listed"
    if effect is Effect.WEAK:
        return f"CONDITIONAL_GO at best (`{effect}`)"
    carried = "; inherited by runs that resume" if kind in IN_WEIGHTS else ""
    return f"INCONCLUSIVE (`{effect}`){carried}"


def failures() -> str:
    """Return docs/reference/failures.md."""
    rows = (
        (
            f"`{row.name}`",
            _cell_text(row.cause),
            _cell_text(row.told(ours=True)),
            row.klass.value,
            "yes" if row.retry else "no",
        )
        for row in library().values()
    )
    text = (_FRAMES / "failures.md").read_text()
    head = ("failure", "cause", "remedy", "class", "retry")
    return text.replace("<!-- failures -->\n", _table(head, rows))


def _cell_text(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


PAGES = {"detectors": detectors, "metrics": metrics, "doubts": doubts, "failures": failures}

if __name__ == "__main__":
    sys.stdout.write(PAGES[sys.argv[1]]())
