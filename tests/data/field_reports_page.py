"""The page docs/explanation/field-reports.md: the runs of the field reports, judged.

    python -m tests.data.field_reports_page > docs/explanation/field-reports.md

A test compares the page with what judging says now, so neither can change alone.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from gonogo.judge.follow_up.forecast import seconds_at_speed
from gonogo.judge.directory import judge_directory
from gonogo.planning.source import bundled_plan
from gonogo.judge.facts.record import load_run
from tests.data.field_reports import FIELD_REPORTS, PHASE, PLAN, FieldReport

Json = Mapping[str, Any]

PRODUCTION_STEPS = 50_000
MOST = 3
"""So many reasons are shown."""

HEAD = f"""# The field reports, judged

Five reports on training a 125M model led to gonogo. `tests/data/field_reports.py` writes what a run of their figures would have left, in the predecessor's form. gonogo judges these directories:

```sh
gonogo judge DIR --plan {PLAN} --phase {PHASE}
```

`python -m tests.data.field_reports_page > docs/explanation/field-reports.md` makes this page, and a test compares it with the code. The speed is measured: the ordered tokens of a step over the time between two lines. No claim of a report counts.
"""

TABLE = """
|report|it concluded|its figures|verdict of gonogo|what decides|50 000 steps at this pace|
|-|-|-|-|-|-|
"""

NOTES = """
- 38 tokens/s with 107.8 s between steps are the ordered 4096 tokens a step. The speed is real, and below the floor of 39 tokens/s: NO_GO.
- 847 tokens/s with 0.3 s between steps are 256 tokens a step. What ran was not the order: NO_GO by `identity`.
- No directory can be GO. The lines carry no identity and no numbering, nobody watched, and rank 1 wrote nothing.

## What was assumed

"""


def judge_report(report: FieldReport, parent: Path) -> tuple[Json, float | None]:
    """Return the decision on a report's directory, and its median seconds a step."""
    folder, now = report.save(parent)
    times = load_run(folder, now=now).ranks[0].steps.step_times().values()
    document = judge_directory(folder, bundled_plan(PLAN), PHASE, now=now)
    return document, statistics.median(times) if times else None


def page() -> str:
    """Return docs/explanation/field-reports.md."""
    with tempfile.TemporaryDirectory() as parent:
        judged = [(report, *judge_report(report, Path(parent))) for report in FIELD_REPORTS]
    rows = [_row(report, document, step_s) for report, document, step_s in judged]
    assumed = (f"- `{report.name}`: {report.assumed}.\n" for report in FIELD_REPORTS)
    return "".join([HEAD, TABLE, *rows, NOTES, *assumed])


def _row(report: FieldReport, document: Json, step_s: float | None) -> str:
    verdict = f"**{document['verdict']}**"
    if document["diagnosis"]:
        verdict += f", `{document['diagnosis']}`"
    cells = (
        f"{report.report} (`{report.name}`)",
        report.concluded,
        report.figures,
        verdict,
        "<br>".join(islice(_deciding(document), MOST)),
        _pace(step_s),
    )
    return f"|{'|'.join(cells)}|\n"


def _pace(step_s: float | None) -> str:
    if step_s is None:
        return "unknown"
    seconds = seconds_at_speed(steps=PRODUCTION_STEPS, tokens_per_step=1, tok_s=1.0 / step_s)
    return f"{seconds / 86_400:.1f} days" if seconds > 86_400 else f"{seconds / 3600:.1f} h"


def _deciding(document: Json) -> Iterator[str]:
    """Yield what a verdict rests on: what fails, else what is required and inconclusive."""
    for finding in document["findings"]:
        if finding["severity"] == "halt":
            yield f"`{finding['detector']}`: {finding['text']}"
    required = [row for row in document["criteria"] if row["severity"] == "required"]
    failed = [row for row in required if row["outcome"] == "fail"]
    for row in failed or [row for row in required if row["outcome"] == "inconclusive"]:
        yield f"`{row['id']}`: {row['evidence']}{_numbers(row)}"


def _numbers(row: Json) -> str:
    limits = row["threshold"] or {}
    if not limits or row["observed"] is None:
        return ""
    said = ", ".join(f"{name} {value:g}" for name, value in limits.items())
    return f" ({row['observed']:g}; {said})"


if __name__ == "__main__":
    sys.stdout.write(page())
