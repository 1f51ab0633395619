"""Which variant is better than the baseline? One interval, one answer and one sentence for each.

The best of the better ones wins; a tie keeps the baseline. What cannot be shown (no run that
counts, no interval, the same thing run twice) is inconclusive and never wins.
"""

from collections.abc import Iterator, Mapping, Sequence

from gonogo.contract.comparison import (
    Answer,
    Basis,
    ComparedVariant,
    Comparison,
    DifferingPath,
    PathEvidence,
    Result,
    RunLeftOut,
)
from gonogo.contract.criterion import LEARNED
from gonogo.contract.errors import Rejected
from gonogo.judge.compare.answer import (
    answer_variant,
    better_words,
    describe_baseline,
    percent,
)
from gonogo.judge.compare.interval import no_spread, of_one_seed
from gonogo.judge.compare.paths import find_paths
from gonogo.judge.compare.question import Question
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
        notes=_notes(units, rows, paths, question),
        result=result,
        winner=winner,
        kept=winner or baseline,
        more_repeats=more,
        text=_result_text(rows, result, winner, more, question),
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


def _notes(
    units: Counted,
    rows: Sequence[ComparedVariant],
    paths: Sequence[DifferingPath],
    question: Question,
) -> list[str]:
    """Return what weakens a comparison, or is easily overlooked in it.

    Args:
        units: variant → its runs that count, the baseline first.
        rows: the baseline, then every other variant with its answer.
        paths: in what they differ.
        question: what is asked.
    """
    return [*_of_runs(units, rows, question), *_of_paths(units, paths)]


def _of_runs(units: Counted, rows: Sequence[ComparedVariant], question: Question) -> Iterator[str]:
    if any(row.basis is Basis.BLOCKS for row in rows):
        yield (
            "a single run says nothing of the spread between runs: its interval is widened by"
            " 10 % either way; repeat each variant for a narrower one"
        )
    for name, mine in units.items():
        if no_spread(mine):
            yield (
                f"the runs of {name} are the same to the last digit, so they are no repeats of"
                " each other; change the seed, or compare what varies"
            )
        elif question.metric in LEARNED and of_one_seed(mine):
            yield (
                f"nothing that was ordered tells the runs of {name} apart, no seed either, so as"
                f" far as {question.metric} goes they are one run told again; order another seed"
                " for each"
            )
    windows = sorted({row.window for mine in units.values() for row in mine})
    if len(windows) > 1:
        yield f"the runs are not compared over the same steps: {', '.join(windows)}"


def _of_paths(units: Counted, paths: Sequence[DifferingPath]) -> Iterator[str]:
    baseline, *others = units
    for name in others if units[baseline] else ():
        real = [
            row.path
            for row in paths
            if row.evidence is not PathEvidence.DENIED
            and row.values.get(name) != row.values.get(baseline)
        ]
        if len(real) > 1:
            yield (
                f"{len(real)} things differ between {baseline} and {name}, so no difference can be"
                " put down to one of them"
            )
    for row in paths:
        if row.evidence is PathEvidence.DENIED:
            yield f"{row.path} was ordered differently, and the runs told the same"


def _result_text(
    rows: Sequence[ComparedVariant],
    result: Result,
    winner: str | None,
    more: int | None,
    question: Question,
) -> str:
    """Return the result of a comparison, and what to go on with.

    Args:
        rows: the baseline, then every other variant with its answer.
        result: what they come to.
        winner: who won, if anybody did.
        more: how many more repeats would likely decide.
        question: what was asked.
    """
    baseline, *others = rows
    if result is Result.WINNER and winner == baseline.name:
        named = others[0].name if len(others) == 1 else "every other variant"
        return f"{baseline.name} wins: by {question.metric} {named} is worse than the baseline"
    if result is Result.WINNER:
        (best,) = (row for row in others if row.name == winner)
        text = f"{best.name} wins: {question.metric} is {_beside(best, question)} {baseline.name}"
        also = [row.name for row in others if row.answer is Answer.BETTER and row is not best]
        if also:
            text += f"; {' and '.join(also)} beat the baseline too, and may be as good"
        return text
    if result is Result.TIE:
        return (
            f"a tie: no variant is better by more than {percent(question.margin)};"
            f" {baseline.name} stays"
        )
    return f"inconclusive: {_open_text(others, more)}; {baseline.name} stays until more is known"


def _beside(row: ComparedVariant, question: Question) -> str:
    words = better_words(row.ratio or 1.0, question.higher_is_better).partition(" (")[0]
    ends = (
        "" if row.low is None or row.high is None else f" (ratio {row.low:.3f} to {row.high:.3f})"
    )
    return f"{words}{ends} than that of"


def _open_text(others: Sequence[ComparedVariant], more: int | None) -> str:
    rows = [row for row in others if row.answer is Answer.INCONCLUSIVE]
    if len(rows) == 1:
        return rows[0].text if len(others) == 1 else f"{rows[0].name}: {rows[0].text}"
    if more is not None:
        return f"{more} more repeats of each would likely decide"
    return "; ".join(f"{row.name}: {row.text}" for row in rows)
