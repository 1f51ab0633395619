"""What does one variant deserve beside the baseline? Its interval against the margin.

The margin counts alike in both directions on the log scale (2 % faster, or 1/1.02 as fast), so that
swapping baseline and variant mirrors the answer.
"""

import math
from collections.abc import Sequence

from gonogo.contract.canonical import canonical_bytes, rounded
from gonogo.contract.comparison import (
    Answer,
    Basis,
    ComparedRun,
    ComparedVariant,
    DifferingPath,
    PathEvidence,
)
from gonogo.contract.criterion import LEARNED
from gonogo.judge.compare.interval import Interval, interval_of, more_repeats
from gonogo.judge.compare.paths import RESUMED
from gonogo.judge.compare.question import Question
from gonogo.judge.compare.unit import Unit

SAME = "the variants ran the same thing"
SHOWN_RATIO = 0.01
"""By how much what shows a difference must differ at least."""


def describe_baseline(name: str, units: Sequence[Unit]) -> ComparedVariant:
    """Return the baseline's row: its runs and their mean, and no answer."""
    return ComparedVariant(name=name, runs=_runs(units), value=_value(units), text="the baseline")


def answer_variant(
    name: str,
    baseline: Sequence[Unit],
    units: Sequence[Unit],
    paths: Sequence[DifferingPath],
    question: Question,
    level: float,
) -> ComparedVariant:
    """Return a variant's row with its answer.

    Args:
        name: of the variant.
        baseline: runs of the baseline that count.
        units: runs of the variant that count.
        paths: in what these two differ.
        question: what is asked.
        level: confidence of this one interval.
    """
    row = ComparedVariant(
        name=name, runs=_runs(units), value=_value(units), answer=Answer.INCONCLUSIVE
    )
    found = interval_of(baseline, units, level, learned=question.metric in LEARNED)
    if found is None:
        missing = "the baseline" if not baseline else name
        return row.model_copy(update={"text": f"{missing} has no run that counts"})
    row = row.model_copy(update={"ratio": rounded(_exp(found.centre))})
    if not any(_counts(path, question) for path in paths):
        return row.model_copy(update={"text": _same_text(paths, question)})
    unshown = (
        _elsewhere(baseline, units, question)
        or _unshown(baseline, units, question)
        or _unlike(baseline, units, question)
    )
    if unshown is not None:
        return row.model_copy(update={"text": unshown})
    row = row.model_copy(update=_ends(found))
    if found.reach is None:
        text = f"{_words(found, question)}; nothing shows how sure that is: repeat both"
        return row.model_copy(update={"text": text})
    answer = _answer(found.centre, found.reach, question)
    more = None
    if answer is Answer.INCONCLUSIVE:
        more = more_repeats(found, math.log1p(question.margin), level, question.most_repeats)
    text = _text(found, answer, more, question)
    return row.model_copy(update={"answer": answer, "more_repeats": more, "text": text})


def _answer(centre: float, reach: float, question: Question) -> Answer:
    margin = math.log1p(question.margin)
    good = centre if question.higher_is_better else -centre
    if good - reach > margin:
        return Answer.BETTER
    if good + reach < -margin:
        return Answer.WORSE
    return Answer.TIE if abs(good) + reach <= margin else Answer.INCONCLUSIVE


def _ends(found: Interval) -> dict[str, float | Basis | None]:
    if found.reach is None:
        return {}
    return {
        "low": rounded(_exp(found.centre - found.reach)),
        "high": rounded(_exp(found.centre + found.reach)),
        "basis": found.basis,
    }


def _exp(value: float) -> float:
    """Return e to a power; two runs that differ wildly reach beyond what a double holds."""
    return math.exp(value) if value < 700.0 else math.inf


def _counts(path: DifferingPath, question: Question) -> bool:
    """Say whether a difference makes the variant another thing than the baseline.

    From which checkpoint a run went on does not. Of a campaign only what was ordered does, where it
    differs in every run: one run on another commit is no variant.
    """
    if path.evidence is PathEvidence.DENIED or path.path == RESUMED:
        return False
    if not question.in_campaign:
        return True
    base, mine = ({canonical_bytes(value) for value in row} for row in path.values.values())
    return path.ordered and not base & mine


def _elsewhere(baseline: Sequence[Unit], units: Sequence[Unit], question: Question) -> str | None:
    """Return which runs of a repeat were made on two hosts; None where none were."""
    if not question.in_campaign:
        return None
    hosts = {unit.repeat: unit.host for unit in baseline}
    for unit in units:
        there = hosts.get(unit.repeat)
        if None not in (there, unit.host) and there != unit.host:
            return (
                f"its run of repeat {unit.repeat} was made on host {unit.host}, the baseline's on"
                f" {there}: hosts are no variants"
            )
    return None


def _same_text(paths: Sequence[DifferingPath], question: Question) -> str:
    if not paths:
        return SAME
    names = ", ".join(row.path for row in paths if row.ordered and row.path != RESUMED)
    if question.in_campaign and not names:
        return f"{SAME}: nothing that was ordered differs"
    if not names:
        return f"{SAME}, from another checkpoint on"
    return f"{SAME}: what was ordered to differ ({names}) did not"


def _unshown(baseline: Sequence[Unit], units: Sequence[Unit], question: Question) -> str | None:
    """Return why nothing shows that the variant did something else; None where all of it does."""
    for metric in question.shown_by:
        base = [unit.shown.get(metric) for unit in baseline]
        mine = [unit.shown.get(metric) for unit in units]
        known = [[value for value in row if value is not None] for row in (base, mine)]
        if sum(map(len, known)) < len(base) + len(mine):
            return f"nothing shows that it did something else: not every run tells {metric}"
        if any(_alike(a, b) for a in known[0] for b in known[1]):
            return f"{SAME}: {metric} is {known[1][0]:.4g} as in the baseline"
    return None


def _unlike(baseline: Sequence[Unit], units: Sequence[Unit], question: Question) -> str | None:
    """Return why it may have computed something else; None where everything says the same."""
    for metric, share in question.alike_in.items():
        told = {unit.repeat: unit.shown.get(metric) for unit in baseline}
        for unit in units:
            base, mine = told.get(unit.repeat), unit.shown.get(metric)
            if base is None or mine is None:
                return f"nothing shows that it computed the same: not every run tells {metric}"
            if not _alike(base, mine, share):
                return (
                    f"it computed something else: {metric} is {mine:.6g} against {base:.6g} of"
                    f" the baseline, and may differ by {percent(share)}"
                )
    return None


def _alike(a: float, b: float, share: float = SHOWN_RATIO) -> bool:
    return abs(a - b) <= share * max(abs(a), abs(b))


def _words(found: Interval, question: Question) -> str:
    return better_words(_exp(found.centre), question.higher_is_better)


def _text(found: Interval, answer: Answer, more: int | None, question: Question) -> str:
    words, margin = _words(found, question), percent(question.margin)
    if answer is Answer.TIE:
        return f"within {margin} of the baseline"
    if answer is not Answer.INCONCLUSIVE:
        return f"{words}, and beyond {margin} for sure"
    if found.basis is Basis.BLOCKS:
        return f"{words}, which a single run cannot show; repeat both"
    if more is None:
        return f"{words}; more than {question.most_repeats} repeats would be needed to be sure"
    return f"{words}; {more} more repeat{'s' * (more != 1)} of each would likely decide"


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


def _runs(units: Sequence[Unit]) -> list[ComparedRun]:
    rows = [
        ComparedRun(
            name=unit.name,
            run=unit.run.partition("/")[0],
            repeat=unit.repeat,
            value=unit.value,
            window=unit.window,
            samples=unit.samples,
            blocks=len(unit.blocks),
        )
        for unit in units
    ]
    return sorted(rows, key=lambda row: (row.repeat or 0, row.run))


def _value(units: Sequence[Unit]) -> float | None:
    """Return the geometric mean of the runs, which the ratio is of where nothing is paired."""
    if not units:
        return None
    logs = sorted(math.log(unit.value) for unit in units)
    return rounded(math.exp(math.fsum(logs) / len(logs)))
