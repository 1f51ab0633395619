"""What does gonogo say of the field reports' runs? The page docs/explanation/field-reports.md, by judging them.

    python -m tests.data.field_reports_page > docs/explanation/field-reports.md

A test compares the page with what judging says now, so neither can change alone.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from gonogo.judge.course.forecast import seconds_at_speed
from gonogo.judge.directory import judge_directory
from gonogo.planning.source import bundled_plan
from gonogo.judge.facts.record import load_run
from tests.data.field_reports import FIELD_REPORTS, PHASE, PLAN, FieldReport

Json = Mapping[str, Any]

PRODUCTION_STEPS = 50_000

HEAD = f"""# The field reports, judged

Five reports on training a 125M model led to gonogo. They are known by their figures: what a run of those figures would have left is written by `tests/data/field_reports.py` as a directory of the predecessor's heartbeat lines (rank 0 only, at step 1 and every 20th), and judged:

```sh
gonogo judge DIR --plan {PLAN} --phase {PHASE}
```

This page is what came out: `python -m tests.data.field_reports_page > docs/explanation/field-reports.md` makes it, and a test holds it against the code. The directories are syntheses, and what they assume is said below.

Speed is never what a report claims: it is the ordered tokens of a step over the time between two progress lines. A claim that differs from that by more than a tenth says how many tokens a step really had.
"""

TABLE = """
| report | it concluded | its figures | verdict of gonogo | what decides | 50 000 steps at this pace |
|---|---|---|---|---|---|
"""

NOTES = """
The two kinds of speed are told apart without any identity in the lines. 38 tokens/s with 107.8 s between steps are the 4096 tokens a step that were ordered, so the speed stands, and it is below the floor of 39 tokens/s: NO_GO, whatever the other rank would have said. 847 tokens/s with 0.3 s between steps are 256 tokens a step: what ran was not the order: NO_GO by `identity`.

None of these directories can be GO. The lines carry no identity and no numbering, nobody watched, and rank 1 wrote nothing; a required criterion that certainly fails is NO_GO all the same.
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
    parts = [HEAD, TABLE, *rows, NOTES, "\n## What was not observed\n\n"]
    common = set.intersection(*(set(document["not_observed"]) for _, document, _ in judged))
    shared = [text for text in judged[0][1]["not_observed"] if text in common]
    parts += ["Of every one of them:\n\n", _bullets(shared)]
    for report, document, _ in judged:
        own = [text for text in document["not_observed"] if text not in common]
        parts.append(f"\n### {report.report}, `{report.name}`\n\nAssumed: {report.assumed}.\n")
        parts += [f"\n{_bullets(own)}"] if own else []
    return "".join(parts)


def _row(report: FieldReport, document: Json, step_s: float | None) -> str:
    verdict = f"**{document['verdict']}**"
    if document["diagnosis"]:
        verdict += f", `{document['diagnosis']}`"
    cells = (
        f"{report.report} (`{report.name}`)",
        report.concluded,
        report.figures,
        verdict,
        "<br>".join(_deciding(document)),
        _pace(step_s),
    )
    return f"| {' | '.join(cells)} |\n"


def _pace(step_s: float | None) -> str:
    if step_s is None:
        return "no two lines to tell"
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


def _bullets(texts: Iterable[str]) -> str:
    return "".join(f"- {text}\n" for text in texts)


if __name__ == "__main__":
    sys.stdout.write(page())
