"""Which tests run what a mutant changes, and do they notice?

`measure` runs every test once, with the modules built so that each function says that it was
called: a test matters for a mutant when it calls the changed function. `Bench` collects the tests
once; each mutant is then put into the functions of a forked child, which runs the tests that
matter, the module's own first, until one fails. `noticed_afresh` imports everything anew, for what
runs only once: constants, tables, and functions that are called while tests are collected.
"""

import ast
import functools
import gc
import hashlib
import importlib
import importlib.abc
import importlib.machinery
import json
import os
import pkgutil
import re
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

import pytest

import gonogo.contract
from bench.mutations import ROOT, Mutant, source_of

COVER = ROOT / ".mutants-cover.json"
DOCS = ROOT / "tests" / "contract" / "test_docs.py"
"""Notices what changes a table that is printed in a document."""
SLOW_S = 1.0
"""A test that takes longer must not be needed: an exact one is asked for."""
TIMEOUT_X = 5.0
AFRESH = "afresh"
"""What `Bench.notices` says of a mutant that no function or constant shows."""
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
    judge = ROOT / "tests" / "judge"
    found = [own_tests(module)]
    folder = found[0].parent
    if ".detectors." in module:
        found += sorted(folder.parent.glob("test_*.py"))
    else:
        found += sorted(folder.glob("test_*.py"))
        for name in ("evidence", "gate", "ledger", "course", "compare", "."):
            found += sorted((judge / name).glob("test_*.py"))
    found.append(DOCS)
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
            prints = path == DOCS and bool(timed.calls) and not mutant.within
            if (touches or prints or path == own) and timed.seconds <= SLOW_S:
                far = 0 if path == own else 1 if path.parent == own.parent else 2
                rows.append((far, not touches, timed.seconds, name))
    left_s = at_most_s
    chosen = []
    for _, _, seconds, name in sorted(rows):
        if seconds <= left_s:
            left_s -= seconds
            chosen.append(name)
    return chosen


def tests_afresh(mutant: Mutant, measured: dict[Path, Measured], at_most_s: float) -> list[str]:
    """Return the tests to be run with everything imported anew, few since that takes long.

    Those of files that call what is changed while they are imported; of what is in no function,
    the module's own and those of the documents.
    """
    name = f"{mutant.module}:{mutant.scope}"
    if mutant.within:
        files = {path for path, row in measured.items() if name in row.collecting}
    else:
        files = {own_tests(mutant.module), DOCS}
    wanted = tests_for(mutant, measured, at_most_s)
    return [test for test in wanted if ROOT / test.partition("::")[0] in files]


def _touches(mutant: Mutant, calls: Names) -> bool:
    if mutant.within:
        return f"{mutant.module}:{mutant.scope}" in calls
    return any(call.startswith(f"{mutant.module}:") for call in calls)


# --- In which process, and with which modules


def import_libraries() -> None:
    """Import what tests of the judge import, but for the judge, so that no child has to."""
    for found in pkgutil.walk_packages(gonogo.contract.__path__, "gonogo.contract."):
        importlib.import_module(found.name)
    for name in ("gonogo.rundir", "hypothesis.strategies", "jsonschema", "numpy"):
        importlib.import_module(name)
    assert not [name for name in sys.modules if name.startswith("gonogo.judge")]
    gc.freeze()  # else each child's collector touches, and so copies, every page


def forked(action: Callable[[], str], limit_s: float | None) -> str | None:
    """Return what `action` says in a forked child; None when it took too long.

    Args:
        action: its standard output and error go nowhere; it has a temporary folder of its own.
        limit_s: of processor time, and twenty times that by the clock, for what waits. None: no
            limit, and what the child prints is shown.

    Raises:
        SystemExit: the child ended without a word.
    """
    place = tempfile.mkdtemp(prefix="mutants-")
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            shown = os.fdopen(os.dup(2), "w", buffering=1)
            os.environ["PYTEST_DEBUG_TEMPROOT"] = place
            if limit_s is not None:
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, 1)
                os.dup2(nowhere, 2)
                used = time.process_time()
                resource.setrlimit(resource.RLIMIT_CPU, (int(used + limit_s) + 1, -1))
                signal.alarm(int(20 * limit_s) + 1)
            os.write(writer, b"+" + action().encode())
        except BaseException:
            traceback.print_exc(file=shown)
            raise
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as stream:
        said = stream.read().decode()
    _, status = os.waitpid(child, 0)
    shutil.rmtree(place, ignore_errors=True)
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) in (signal.SIGXCPU, signal.SIGALRM):
        return None
    if not said:
        raise SystemExit(f"a child ended without a word: status {status}")
    return said[1:]


class Built(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Gives the import system changed trees instead of modules' files."""

    def __init__(self, tree_of: Callable[[str], ast.Module | None], **names: object) -> None:
        self._tree_of = tree_of
        self._names = names

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        origin = ROOT / (name.replace(".", "/") + ".py")
        tree = self._tree_of(name) if origin.exists() else None
        if tree is None:
            return None
        return importlib.machinery.ModuleSpec(name, self, origin=str(origin), loader_state=tree)

    def exec_module(self, module: ModuleType) -> None:
        spec = module.__spec__
        assert spec is not None  # made above
        module.__file__ = spec.origin
        module.__dict__.update(self._names)
        exec(compile(spec.loader_state, spec.origin or "", "exec"), module.__dict__)


class _Session:
    """A plug-in that does something else with the collected tests than to run them all."""

    def __init__(self, action: Callable[["_Session", list[pytest.Item]], str]) -> None:
        self._action = action
        self.failed = ""
        """Id of the last test that failed."""
        self.said = "not collected"

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        if not session.testsfailed:
            self.said = self._action(self, session.items)
        return True

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failed = report.nodeid

    def run(self, items: Sequence[pytest.Item]) -> str:
        """Run tests until one fails, and return its id; an empty one when none does."""
        self.failed = ""
        for place, item in enumerate(items):
            following = items[place + 1] if place + 1 < len(items) else None
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            if self.failed:
                return self.failed
        return ""


def _collected(
    files: Sequence[Path], action: Callable[[_Session, list[pytest.Item]], str], *more: object
) -> str:
    """Return what `action` makes of the tests of some files, or "not collected"."""
    plugin = _Session(action)
    # Without rewriting of asserts the libraries stay as the parent imported them.
    asked = ["-s", "-q", "--assert=plain", "--no-header", "--tb=no", "-m", "not long and not gpu"]
    for name in ("cacheprovider", "xdist"):
        asked += ["-p", f"no:{name}"]
    asked += ["-o", "tmp_path_retention_policy=none", *map(str, files)]
    pytest.main(asked, plugins=[plugin, *more])
    return plugin.said


# --- What each test calls


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
    failed = _collected([path], _Session.run, calls)
    if failed:
        return json.dumps(failed)
    tests = {name: (seconds, sorted(rows)) for name, (seconds, rows) in calls.tests.items()}
    return json.dumps({"tests": tests, "collecting": sorted(calls.collecting)})


def _saying(module: str) -> ast.Module | None:
    """Return a judge's module in which each function says that it was called."""
    if not module.startswith("gonogo.judge."):
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


# --- What becomes of a mutant


def limit_s(wanted: Sequence[str], measured: dict[Path, Measured]) -> float:
    """Return after how much processor time a mutant that loops is given up."""
    seconds = {name: row.seconds for file in measured.values() for name, row in file.tests.items()}
    return 10.0 + TIMEOUT_X * sum(seconds[name] for name in wanted)


class Bench:
    """The collected tests, with a mutant put into the functions that are there."""

    def __init__(self, session: _Session, items: Sequence[pytest.Item]) -> None:
        self._session = session
        self._items = {item.nodeid: item for item in items}
        self._functions: dict[tuple[str, str, int], list[FunctionType]] = {}
        for found in gc.get_objects():
            if isinstance(found, FunctionType):
                self._functions.setdefault(_place(found.__code__), []).append(found)
        gc.freeze()

    def notices(self, mutant: Mutant, wanted: Sequence[str], limit: float) -> str | None:
        """Return the id of the test that fails, "" when none does; None: it took too long."""
        return forked(lambda: self._in_child(mutant, wanted), limit)

    def _in_child(self, mutant: Mutant, wanted: Sequence[str]) -> str:
        try:
            changed = self._put_code(mutant) if mutant.within else _put_constants(mutant)
        except Exception as error:  # noqa: BLE001  # whatever a changed module raises
            return f"not to be imported: {error!r}"
        return self._session.run([self._items[name] for name in wanted]) if changed else AFRESH

    def _put_code(self, mutant: Mutant) -> bool:
        changed = False
        for part in _codes(compile(mutant.tree(), str(mutant.path), "exec")):
            for function in self._functions.get(_place(part), []):
                if function.__code__ != part:
                    function.__code__ = part
                    changed = True
        return changed


def _put_constants(mutant: Mutant) -> bool:
    """Put changed constants and tables in the place of the old, wherever they were imported.

    What a constant looks like is compared, so that only what the mutant changes is exchanged: all
    else, as classes, stays the one that other modules know.
    """
    usual = _executed(mutant, ast.parse(source_of(mutant.path)))
    other = _executed(mutant, mutant.tree())
    names = [name for name in other if _shown(usual.get(name)) != _shown(other[name])]
    known = vars(sys.modules[mutant.module])
    for name in names:
        old = known[name]
        for module in list(sys.modules.values()):
            ours = module.__name__.partition(".")[0] in ("gonogo", "tests")
            if ours and vars(module).get(name) is old:
                setattr(module, name, other[name])
    return bool(names)


def _executed(mutant: Mutant, tree: ast.Module) -> dict[str, object]:
    names: dict[str, object] = {"__name__": mutant.module, "__file__": str(mutant.path)}
    exec(compile(tree, str(mutant.path), "exec"), names)
    return {name: value for name, value in names.items() if not name.startswith("__")}


def _shown(value: object) -> str:
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))


def _codes(code: CodeType) -> Iterator[CodeType]:
    for part in code.co_consts:
        if isinstance(part, CodeType):
            yield part
            yield from _codes(part)


def _place(code: CodeType) -> tuple[str, str, int]:
    return code.co_filename, code.co_qualname, code.co_firstlineno


def with_bench(files: Sequence[Path], action: Callable[[Bench], None]) -> str:
    """Say nothing, and call `action` with the collected tests of some files; fork before.

    Raises:
        SystemExit: they cannot be collected.
    """

    def start(session: _Session, items: list[pytest.Item]) -> str:
        action(Bench(session, items))
        return ""

    if said := _collected(files, start):
        raise SystemExit(said)
    return ""


def noticed_afresh(mutant: Mutant, wanted: Sequence[str], limit: float) -> str | None:
    """Return what `Bench.notices` does, with every module imported with the mutant in place."""

    def planted(module: str) -> ast.Module | None:
        return mutant.tree() if module == mutant.module else None

    def run(session: _Session, items: list[pytest.Item]) -> str:
        by_name = {item.nodeid: item for item in items}
        if missing := [name for name in wanted if name not in by_name]:
            return f"not collected: {missing[0]}"  # the mutant changes what a table holds
        return session.run([by_name[name] for name in wanted])

    def in_child() -> str:
        sys.meta_path.insert(0, Built(planted))
        files = list(dict.fromkeys(ROOT / name.partition("::")[0] for name in wanted))
        return _collected(files, run)

    return forked(in_child, limit)
