"""The reasons of surviving mutants: those of code that is gone are listed and dropped."""

from pathlib import Path

import pytest

from bench import mutants
from bench.mutant_tests import MUTATED
from bench.mutants import all_mutants, gone, prune


def test_modules_that_were_renamed_are_no_error() -> None:
    assert len(all_mutants([])) > 1000


def test_a_reason_of_code_that_is_gone_is_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would excuse, unseen, the next mutant that gets its name."""
    (known, *_) = rows = all_mutants(["verdict"])
    reasons = tmp_path / "mutants.yaml"
    reasons.write_text(f"# a comment\n{known.name}: no difference\nnowhere:x:1->2:1: gone\n")
    monkeypatch.setattr(mutants, "REASONS", reasons)
    assert gone(rows, mutants.load_reasons()) == ["nowhere:x:1->2:1"]
    prune(gone(rows, mutants.load_reasons()))
    assert reasons.read_text() == f"# a comment\n{known.name}: no difference\n"


def test_what_is_mutated_is_not_imported_before_the_fork() -> None:
    modules = {row.module for row in all_mutants([])}
    assert [module for module in modules if not module.startswith(MUTATED)] == []
