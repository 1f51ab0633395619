"""Which variant is better than the baseline? One interval, one answer and one sentence for each.

The best of the better ones wins; a tie keeps the baseline. What cannot be shown (no run that
counts, no interval, the same thing run twice) is inconclusive and never wins.
"""

from collections.abc import Mapping, Sequence

from gonogo.contract.comparison import (
    Answer,
    ComparedVariant,
    Comparison,
    DifferingPath,
    Result,
    RunLeftOut,
)
from gonogo.contract.errors import Rejected
from gonogo.judge.compare.answer import answer_variant, describe_baseline
from gonogo.judge.compare.notes import find_notes
from gonogo.judge.compare.paths import find_paths
from gonogo.judge.compare.question import Question
from gonogo.judge.compare.sentences import result_text
from gonogo.judge.compare.unit import NoUnit, Unit

Variants = Mapping[str, Sequence[Unit | NoUnit]]
Counted = Mapping[str, Sequence[Unit]]


def compare(variants: Variants, question: Question) -> Comparison:
    """Return what comparing variants comes to.

    Args:
        variants: variant → its runs; the first is the baseline.
        question: what is asked of them.

    Raises:
        Rejected: fewer than two variants, or one of which no run is named.
    """
    if len(variants) < 2:
        raise Rejected("nothing to compare: expected a baseline and at least one more variant")
    for name, asked in variants.items():
        if not asked:
            raise Rejected(f"{name}: no run is named")
    units, left_out = _sorted_out(variants)
    baseline, *others = variants
    # Bonferroni: all intervals together hold with the confidence that was asked for
    level = 1.0 - (1.0 - question.confidence) / len(others)
    rows = [describe_baseline(baseline, units[baseline])]
    for name in others:
        mine = _paths({baseline: units[baseline], name: units[name]})
        rows.append(answer_variant(name, units[baseline], units[name], mine, question, level))
    result, winner = _result(rows, question)
    more = _more(rows) if result is Result.INCONCLUSIVE else None
    paths = _paths(units)
    return Comparison(
        metric=question.metric,
        higher_is_better=question.higher_is_better,
        margin=question.margin,
        confidence=question.confidence,
        warmup_steps=question.warmup_steps,
        baseline=baseline,
        variants=rows,
        paths=paths,
        left_out=left_out,
        notes=find_notes(units, rows, paths, question),
        result=result,
        winner=winner,
        kept=winner or baseline,
        more_repeats=more,
        text=result_text(rows, result, winner, more, question),
    )


def _sorted_out(variants: Variants) -> tuple[Counted, list[RunLeftOut]]:
    """Return the runs that count, each once, and those that do not."""
    seen: dict[str, str] = {}
    units: dict[str, list[Unit]] = {name: [] for name in variants}
    left_out = []
    for name, rows in variants.items():
        for row in rows:
            if isinstance(row, NoUnit):
                left_out.append(RunLeftOut(variant=name, name=row.name, why=row.why))
            elif row.run in seen:
                why = f"it is the same run as {seen[row.run]}"
                left_out.append(RunLeftOut(variant=name, name=row.name, why=why))
            else:
                seen[row.run] = row.name
                units[name].append(row)
    return units, left_out


def _paths(units: Counted) -> list[DifferingPath]:
    """Return in what the variants that have runs differ."""
    return find_paths({name: [row.ran for row in rows] for name, rows in units.items() if rows})


def _result(rows: Sequence[ComparedVariant], question: Question) -> tuple[Result, str | None]:
    """Return the result, and who won."""
    better = [row for row in rows if row.answer is Answer.BETTER]
    if better:
        sign = 1.0 if question.higher_is_better else -1.0
        best = max(better, key=lambda row: sign * (row.ratio or 0.0))
        return Result.WINNER, best.name
    answers = {row.answer for row in rows[1:]}
    if Answer.INCONCLUSIVE in answers:
        return Result.INCONCLUSIVE, None
    if Answer.TIE in answers:
        return Result.TIE, None
    return Result.WINNER, rows[0].name


def _more(rows: Sequence[ComparedVariant]) -> int | None:
    """Return how many repeats would likely decide all that is open."""
    asked = [row.more_repeats for row in rows if row.answer is Answer.INCONCLUSIVE]
    known = [count for count in asked if count is not None]
    return max(known) if known and len(known) == len(asked) else None
