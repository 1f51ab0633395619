"""How is a comparison said in one sentence?"""

from collections.abc import Sequence

from gonogo.contract.comparison import Answer, ComparedVariant, Result
from gonogo.judge.compare.question import Question


def percent(share: float) -> str:
    """Return a share as people say it: `2 %`, `0.5 %`."""
    return f"{100.0 * share:.3g} %"


def better_words(ratio: float, higher_is_better: bool) -> str:
    """Return how a variant looks beside the baseline: `4.2 % higher (better)`."""
    off = abs(ratio - 1.0)
    if off < 0.00005:
        return "equal"
    way = "higher" if ratio > 1.0 else "lower"
    good = (ratio > 1.0) is higher_is_better
    return f"{100.0 * off:.3g} % {way} ({'better' if good else 'worse'})"


def result_text(
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
