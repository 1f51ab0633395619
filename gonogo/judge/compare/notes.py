"""What else is there to know before believing a comparison? One sentence each."""

from collections.abc import Iterator, Mapping, Sequence

from gonogo.contract.comparison import Basis, ComparedVariant, DifferingPath, PathEvidence
from gonogo.contract.criterion import LEARNED
from gonogo.judge.compare.interval import no_spread, of_one_seed, pairs_of
from gonogo.judge.compare.paths import uneven_paths
from gonogo.judge.compare.question import Question
from gonogo.judge.compare.unit import Unit

Counted = Mapping[str, Sequence[Unit]]


def find_notes(
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
    return [*_of_runs(units, rows, question), *_of_paths(units, paths), *_of_pairs(units)]


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
        for row in mine if question.metric in LEARNED else ():
            yield from (f"{row.name}: {text}" for text in row.made_twice)
        uneven = uneven_paths([row.ran for row in mine])
        if uneven:
            yield f"the runs of {name} differ among themselves: {', '.join(uneven)}"
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


def _of_pairs(units: Counted) -> Iterator[str]:
    baseline, *others = units
    for name in others:
        pairs = pairs_of(units[baseline], units[name])
        alone = len(units[baseline]) + len(units[name]) - 2 * len(pairs)
        if pairs and alone:
            yield f"runs of {baseline} and {name} without a partner of their repeat: {alone}"
