"""Which tests run what a mutant changes?

Every test is run once without a mutant, with the modules built so that each function says that it
was called: a test matters for a mutant when it calls the changed function. What was measured is
kept in `.mutants-cover.json`, until a file of tests or a module that it calls changes.
"""

import ast
import functools
import hashlib
import json
import re
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from bench.mutant_process import MUTATED, Built, Session, collected, forked
from bench.mutations import ROOT, Mutant

COVER = ROOT / ".mutants-cover.json"
OUTCOMES = ROOT / "tests" / "golden" / "test_outcomes.py"
"""Notices what changes the outcome of a scenario."""
DOCS = ROOT / "tests" / "contract" / "test_docs.py"
"""Notices what changes a table that is printed in a document."""
BY_CHANCE = re.compile(r"\[(chance|measured|standing)/")
"""Those of its scenarios that meet limits exactly; they notice most."""
BEGIN = ROOT / "tests" / "watch" / "test_begin.py"
"""Notices what the body of a detector's class says; it calls none of its functions."""
SLOW_S = 1.0
"""A test that takes longer must not be needed: an exact one is asked for."""
TIMEOUT_X = 5.0
SAID = "__called__"
"""Name, in a measured module, of the set to which its functions add themselves."""

Names = frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """What a test takes and calls."""

    seconds: float
    calls: Names
    """`module:scope` of every function it calls, itself or by a fixture that it uses."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What is known of one file of tests."""

    tests: dict[str, Timed]
    collecting: Names
    """What is called while the file is imported."""


def own_tests(module: str) -> Path:
    """Return the file of a module's own tests, which need not exist."""
    *folders, name = module.removeprefix("gonogo.").split(".")
    return ROOT / "tests" / Path(*folders) / f"test_{name}.py"


def tests_about(module: str) -> list[Path]:
    """Return the files of tests that may notice a mutant of a module; its own is the first."""
    watch, judge = ROOT / "tests" / "watch", ROOT / "tests" / "judge"
    found = [own_tests(module)]
    folder = found[0].parent
    if ".detectors." in module:
        found += sorted(folder.glob("test_*.py")) + sorted(folder.parent.glob("test_*.py"))
    else:
        found += sorted(folder.rglob("test_*.py")) + sorted(watch.rglob("test_*.py"))
        for name in ("facts", "gate", "course", "compare", "."):
            found += sorted((judge / name).glob("test_*.py"))
        found += sorted((ROOT / "tests" / "ledger").glob("test_*.py"))
    found += [DOCS, OUTCOMES]
    return [path for path in dict.fromkeys(found) if path.exists()]


def tests_for(mutant: Mutant, measured: dict[Path, Measured], at_most_s: float) -> list[str]:
    """Return the ids of the tests that matter for a mutant, in the order in which to run them.

    Args:
        mutant: to be noticed.
        measured: what is known of the tests.
        at_most_s: processor time of all of them.
    """
    own = own_tests(mutant.module)
    rows = []
    for path in filter(measured.__contains__, tests_about(mutant.module)):
        for name, timed in measured[path].tests.items():
            touches = _touches(mutant, timed.calls)
            shown = path == BEGIN or (path == DOCS and bool(timed.calls))
            shown = shown and not mutant.within
            if (touches or shown or path == own) and timed.seconds <= SLOW_S:
                near = path.parent == own.parent or BY_CHANCE.search(name) is not None
                far = 0 if shown else 1 if path == own else 2 if near else 3
                rows.append((far, not touches, timed.seconds, name))
    left_s = at_most_s
    chosen = []
    for _, _, seconds, name in sorted(rows):
        if seconds <= left_s:
            left_s -= seconds
            chosen.append(name)
    return chosen


def tests_afresh(mutant: Mutant, measured: dict[Path, Measured], at_most_s: float) -> list[str]:
    """Return the tests to be run with everything imported again; few, because that takes long.

    Those of files that call what is changed while they are imported; of what is in no function,
    the module's own, those of the documents and those of how a detector begins.
    """
    name = f"{mutant.module}:{mutant.scope}"
    if mutant.within:
        files = {path for path, row in measured.items() if name in row.collecting}
    else:
        files = {own_tests(mutant.module), DOCS, BEGIN}
    wanted = tests_for(mutant, measured, at_most_s)
    return [test for test in wanted if ROOT / test.partition("::")[0] in files]


def _touches(mutant: Mutant, calls: Names) -> bool:
    if mutant.within:
        return f"{mutant.module}:{mutant.scope}" in calls
    return any(call.startswith(f"{mutant.module}:") for call in calls)


def limit_s(wanted: Sequence[str], measured: dict[Path, Measured]) -> float:
    """Return after how much processor time a mutant that loops is given up."""
    seconds = {name: row.seconds for file in measured.values() for name, row in file.tests.items()}
    return 10.0 + TIMEOUT_X * sum(seconds[name] for name in wanted)


class _Calls:
    """A plug-in that keeps what tests and fixtures call, and how long tests take."""

    def __init__(self) -> None:
        self.called: set[str] = set()
        self.collecting: Names = frozenset()
        self.tests: dict[str, tuple[float, set[str]]] = {}
        self._by_fixture: dict[str, set[str]] = {}

    def pytest_collection_finish(self) -> None:
        self.collecting = frozenset(self.called)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self.called.clear()
        began = time.process_time()
        said = yield
        calls = set(self.called)
        for name in getattr(item, "fixturenames", ()):
            calls |= self._by_fixture.get(name, set())
        self.tests[item.nodeid] = (time.process_time() - began, calls)
        return said

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: "pytest.FixtureDef[object]") -> Iterator[None]:
        """A fixture that several tests share is called by the first alone."""
        before = set(self.called)
        self.called.clear()
        try:
            return (yield)
        finally:
            if fixturedef.scope != "function":
                self._by_fixture.setdefault(fixturedef.argname, set()).update(self.called)
            self.called |= before


def measure(files: Sequence[Path]) -> dict[Path, Measured]:
    """Return what the tests of each file take and call, without any mutant.

    Raises:
        SystemExit: a test fails.
    """
    known = json.loads(COVER.read_text()) if COVER.exists() else {}
    for number, path in enumerate(files, start=1):
        name = str(path.relative_to(ROOT))
        row = known.get(name)
        if row is not None and row["digest"] == _digest(path, row):
            continue
        print(f"measuring {number}/{len(files)} {name}", flush=True)
        said = json.loads(forked(functools.partial(_measured, path), 1800) or '"too slow"')
        if isinstance(said, str):
            raise SystemExit(f"{name}: {said} without any mutant")
        known[name] = {"digest": _digest(path, said), **said}
        COVER.write_text(json.dumps(known))
    found = {}
    for path in files:
        row = known[str(path.relative_to(ROOT))]
        tests = {
            name: Timed(seconds=seconds, calls=frozenset(calls))
            for name, (seconds, calls) in row["tests"].items()
        }
        found[path] = Measured(tests=tests, collecting=frozenset(row["collecting"]))
    return found


def _digest(path: Path, row: dict[str, Any]) -> str:
    """Return the digest of a file of tests and of the modules that it calls."""
    calls = {*row["collecting"], *(call for _, calls in row["tests"].values() for call in calls)}
    modules = sorted({call.partition(":")[0] for call in calls})
    files = [path, *(ROOT / (module.replace(".", "/") + ".py") for module in modules)]
    return hashlib.sha256(
        b"\0".join(file.read_bytes() for file in files if file.exists())
    ).hexdigest()


def _measured(path: Path) -> str:
    calls = _Calls()
    sys.meta_path.insert(0, Built(_saying, **{SAID: calls.called}))
    failed = collected([path], Session.run, calls)
    if failed:
        return json.dumps(failed)
    tests = {name: (seconds, sorted(rows)) for name, (seconds, rows) in calls.tests.items()}
    return json.dumps({"tests": tests, "collecting": sorted(calls.collecting)})


def _saying(module: str) -> ast.Module | None:
    """Return a module of those that are mutated, in which each function says that it was called."""
    if not module.startswith(MUTATED):
        return None
    tree = ast.parse((ROOT / (module.replace(".", "/") + ".py")).read_text())

    def visit(node: ast.AST, scope: tuple[str, ...]) -> None:
        for child in ast.iter_child_nodes(node):
            named = isinstance(child, ast.FunctionDef | ast.ClassDef)
            inner = (*scope, child.name) if named else scope  # type: ignore[attr-defined]
            visit(child, inner)
            if isinstance(child, ast.FunctionDef):
                name = f"{module}:{'.'.join(inner)}"
                said = ast.parse(f"{SAID}.add({name!r})").body[0]
                after = 1 if ast.get_docstring(child) is not None else 0
                child.body.insert(after, said)

    visit(tree, ())
    return ast.fix_missing_locations(tree)
