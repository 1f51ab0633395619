"""`gonogo.trainer` imports the standard library, itself, and one library for each adapter."""

from __future__ import annotations

import sys

import grimp
import pytest

ADAPTERS = {"gonogo.trainer.hf": {"transformers"}, "gonogo.trainer.lightning": {"lightning"}}


@pytest.fixture(scope="module")
def graph() -> grimp.ImportGraph:
    return grimp.build_graph("gonogo", include_external_packages=True, cache_dir=None)


def test_every_module_imports_the_standard_library_itself_and_no_more(
    graph: grimp.ImportGraph,
) -> None:
    modules = {"gonogo.trainer", *graph.find_descendants("gonogo.trainer")}
    assert modules >= ADAPTERS.keys()
    for module in modules:
        imported = graph.find_modules_directly_imported_by(module)
        others = {name for name in imported if not name.startswith("gonogo.trainer")}
        foreign = {name.split(".")[0] for name in others} - sys.stdlib_module_names
        assert foreign == ADAPTERS.get(module, set()), module


def test_the_library_itself_imports_no_adapter(graph: grimp.ImportGraph) -> None:
    for module in {"gonogo.trainer", *graph.find_descendants("gonogo.trainer")}:
        assert not graph.find_modules_directly_imported_by(module) & ADAPTERS.keys()
