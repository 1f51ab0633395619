"""The list of mutants that make no difference tells of mutants that there are."""

from bench.mutants import all_mutants, load_reasons


def test_every_reason_is_one_of_a_mutant_that_there_is() -> None:
    """One whose code is gone would excuse, unseen, the next that gets its name."""
    names = {mutant.name for mutant in all_mutants([])}
    assert [name for name in load_reasons() if name not in names] == []
