"""Which tests run what a mutant changes, and does one of them notice it?

`measure` runs all tests once under `coverage` and keeps which test runs which line. `Bench` then
collects the tests once, and puts each mutant into the functions of a forked child. What runs while
modules are imported and tests are collected needs fresh imports instead: `notices`.
"""

import ast
import copy
import functools
import gc
import hashlib
import importlib
import importlib.abc
import importlib.machinery
import json
import os
import pkgutil
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import CodeType, FunctionType, ModuleType

import pytest
from coverage import Coverage
from hypothesis import Phase, settings

import gonogo.contract

ROOT = Path(__file__).parent.parent

_COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """One change of one module. Its name stays the same when lines move."""

    path: Path
    module: str
    scope: str
    """Dotted name of the class or function; empty for the module itself."""
    within: bool
    """In the body of a function, so that the change can be put into a function that is there."""
    name: str
    line: int
    index: int
    """Index of the changed node, in `ast.walk` of the module's tree."""
    number: int
    """Which of the node's changes it is."""

    def tree(self) -> ast.Module:
        """Return the changed tree of the module: built when it is planted, since all are many."""
        tree = ast.parse(source_of(self.path))
        node = list(ast.walk(tree))[self.index]
        assert isinstance(node, ast.expr)  # _places yields no other
        _, changed = _changes(node)[self.number]
        return _with(tree, node, changed)


@functools.cache
def source_of(path: Path) -> str:
    """Return a module as it was when it was first asked for, so that it may be edited meanwhile."""
    return path.read_text()


def mutants_of(path: Path) -> Iterator[Mutant]:
    """Yield every mutant of a module."""
    module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
    tree = ast.parse(source_of(path))
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    within = {part for row in functions for line in row.body for part in ast.walk(line)}
    counts: dict[str, int] = {}
    for scope, index, node in _places(tree):
        for number, (what, _) in enumerate(_changes(node)):
            key = f"{module}:{scope}:{what}"
            counts[key] = counts.get(key, 0) + 1
            yield Mutant(
                path=path,
                module=module,
                scope=scope,
                within=node in within,
                name=f"{key}:{counts[key]}",
                line=node.lineno,
                index=index,
                number=number,
            )


def _places(tree: ast.Module) -> Iterator[tuple[str, int, ast.expr]]:
    """Yield the scope's name, the index in `ast.walk` and the node of what can be changed."""
    scopes: dict[ast.AST, str] = {}
    skipped: set[ast.AST] = set()
    for node in ast.walk(tree):
        if isinstance(node, _NAMED):
            skipped |= {part for row in node.decorator_list for part in ast.walk(row)}
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "zip":
            skipped |= {row.value for row in node.keywords}  # `strict` holds, or there is a bug
        for child in ast.iter_child_nodes(node):
            own = getattr(node, "name", None) if isinstance(node, _NAMED) else None
            scopes[child] = ".".join(filter(None, (scopes.get(node), own)))
    for index, node in enumerate(ast.walk(tree)):
        if node in skipped:
            continue
        if isinstance(node, ast.Compare | ast.BoolOp | ast.UnaryOp | ast.Constant):
            yield scopes.get(node, ""), index, node


_NAMED = (ast.FunctionDef, ast.ClassDef)


def _changes(node: ast.expr) -> list[tuple[str, ast.expr]]:
    """Return what can be changed in one node, each with its name."""
    found: list[tuple[str, ast.expr]] = []
    if isinstance(node, ast.Compare):
        for place, operator in enumerate(node.ops):
            other = copy.deepcopy(node)
            other.ops[place] = _COMPARISONS[type(operator)]()
            found.append((f"{type(operator).__name__}->{type(other.ops[place]).__name__}", other))
    elif isinstance(node, ast.BoolOp):
        swapped = copy.deepcopy(node)
        swapped.op = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        found.append((f"{type(node.op).__name__}->{type(swapped.op).__name__}", swapped))
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        found.append(("Not->", node.operand))
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
        found.append((f"{node.value}->{not node.value}", ast.Constant(not node.value)))
    elif isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        changed = node.value + 1 if isinstance(node.value, int) else node.value * 2 + 0.5
        found.append((f"{node.value}->{changed}", ast.Constant(changed)))
    return found


def _with(tree: ast.Module, target: ast.expr, changed: ast.expr) -> ast.Module:
    """Return the tree with one of its nodes replaced."""

    class Replace(ast.NodeTransformer):
        def visit(self, node: ast.AST) -> ast.AST:
            if node is target:
                return ast.copy_location(changed, node)
            return self.generic_visit(node)

    Replace().visit(tree)
    return ast.fix_missing_locations(tree)


COVER = ROOT / ".mutants-cover.json"
TESTS = ("watch", "judge", "timeline", "ledger", "golden")
"""Folders of tests that may notice."""
FIRST = ("tests/laws/test_references.py::test_a_generated", "tests/watch/test_begin.py")
"""They notice changed tables of the documents, and the bodies of detectors' classes."""
MUTATED = ("gonogo.judge.", "gonogo.timeline.", "gonogo.watch.")
SLOW_S = 4.0
"""A test that takes longer under coverage must not be needed: an exact one is asked for."""
PROFILE = "first_failure"
"""One failing case is enough: the smallest one is not needed."""
settings.register_profile(
    PROFILE,
    derandomize=True,
    deadline=None,
    database=None,
    phases=(Phase.explicit, Phase.generate),
    report_multiple_bugs=False,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What is known of all tests."""

    seconds: dict[str, float]
    """Test → its processor time."""
    lines: dict[str, dict[str, list[str]]]
    """File of a module → line → tests that run it; "": it runs while tests are collected."""

    def is_early(self, mutant: Mutant) -> bool:
        """Return whether the changed line runs while modules are imported or tests collected."""
        of_module = self.lines.get(str(mutant.path.relative_to(ROOT)), {})
        return not mutant.within or "" in of_module.get(str(mutant.line), ())

    def tests_for(self, mutant: Mutant, at_most_s: float) -> list[str]:
        """Return the tests that matter for a mutant, the module's own and quick ones first."""
        own = own_tests(mutant.module)
        folder = own.rpartition("/")[0]
        of_module = self.lines.get(str(mutant.path.relative_to(ROOT)), {})
        wanted = set(of_module.get(str(mutant.line), ()))
        if not mutant.within:
            wanted |= {test for tests in of_module.values() for test in tests}
        chosen, left_s = [], at_most_s
        for name, seconds in sorted(
            self.seconds.items(),
            key=lambda row: (
                not row[0].startswith(own),
                mutant.within or not row[0].startswith(FIRST),
                not row[0].startswith(folder),
                row[1],
            ),
        ):
            matters = name in wanted or name.startswith(own)
            matters |= not mutant.within and name.startswith(FIRST)
            if matters and seconds <= min(SLOW_S, left_s):
                left_s -= seconds
                chosen.append(name)
        return chosen


def own_tests(module: str) -> str:
    """Return the file of a module's own tests, which need not exist."""
    *folders, name = module.removeprefix("gonogo.").split(".")
    return "/".join(["tests", *folders, f"test_{name}.py"])


def test_files() -> list[str]:
    """Return the files of tests that may notice a mutant."""
    found = [path for name in TESTS for path in sorted((ROOT / "tests" / name).rglob("test_*.py"))]
    names = [str(path.relative_to(ROOT)) for path in found]
    return list(dict.fromkeys([*names, *(name.partition("::")[0] for name in FIRST)]))


def measure() -> Measured:
    """Return what every test takes and runs; kept until sources or tests change."""
    sources = [path for name in ("gonogo", "tests") for path in sorted((ROOT / name).rglob("*.py"))]
    digest = hashlib.sha256(b"\0".join(path.read_bytes() for path in sources)).hexdigest()
    known = json.loads(COVER.read_text()) if COVER.exists() else {}
    if known.get("digest") != digest:
        print("measuring which test runs which line (minutes)", flush=True)
        if failed := forked(_measured, None):
            raise SystemExit(f"without any mutant: {failed}")
        known = {"digest": digest, **json.loads(COVER.read_text())}
        COVER.write_text(json.dumps(known))
    return Measured(seconds=known["seconds"], lines=known["lines"])


def _measured() -> str | None:
    cover = Coverage(data_file=None, source=[str(ROOT / "gonogo")], check_preimported=False)
    seconds: dict[str, float] = {}

    class Context:
        @pytest.hookimpl(wrapper=True)
        def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
            cover.switch_context(item.nodeid)
            began = time.process_time()
            yield
            seconds[item.nodeid] = time.process_time() - began

    cover.start()
    failed = collected(test_files(), _Session.run, Context())
    cover.stop()
    data = cover.get_data()
    lines = {
        str(Path(file).relative_to(ROOT)): {
            line: sorted(tests) for line, tests in data.contexts_by_lineno(file).items()
        }
        for file in data.measured_files()
    }
    COVER.write_text(json.dumps({"seconds": seconds, "lines": lines}))
    return failed


class Bench:
    """The collected tests, with a mutant put into the functions that are there."""

    def __init__(self, session: "_Session", items: Sequence[pytest.Item]) -> None:
        self._session = session
        self._items = {item.nodeid: item for item in items}
        self._functions: dict[tuple[str, str, int], list[FunctionType]] = {}
        gc.unfreeze()  # what is frozen is not among the objects
        for found in gc.get_objects():
            if isinstance(found, FunctionType):
                self._functions.setdefault(_place(found.__code__), []).append(found)
        gc.freeze()

    def notices(self, mutant: Mutant, wanted: Sequence[str], limit_s: float) -> str | None:
        """Return what `notices` does."""

        def in_child() -> str:
            for part in _codes(compile(mutant.tree(), str(mutant.path), "exec")):
                for function in self._functions.get(_place(part), []):
                    function.__code__ = part
            return self._session.run([self._items[name] for name in wanted])

        return forked(in_child, limit_s)


def _codes(code: CodeType) -> Iterator[CodeType]:
    for part in code.co_consts:
        if isinstance(part, CodeType):
            yield part
            yield from _codes(part)


def _place(code: CodeType) -> tuple[str, str, int]:
    return code.co_filename, code.co_qualname, code.co_firstlineno


def with_bench(action: Callable[[Bench], None]) -> None:
    """Call `action` with the collected tests, in a forked child."""

    def start(session: "_Session", items: Sequence[pytest.Item]) -> str:
        action(Bench(session, items))
        return ""

    if failed := forked(lambda: collected(test_files(), start), None):
        raise SystemExit(failed)


def notices(mutant: Mutant, wanted: Sequence[str], limit_s: float) -> str | None:
    """Return the id of the test that fails, "" when none does; None: it took too long."""

    def in_child(names: Sequence[str]) -> str:
        sys.meta_path.insert(0, _Planted(mutant))
        files = list(dict.fromkeys(name.partition("::")[0] for name in names))
        return collected(
            files, lambda session, items: session.run([row for row in items if row.nodeid in names])
        )

    own = [name for name in wanted if name.startswith(own_tests(mutant.module))]
    others = [name for name in wanted if name not in own]
    found: str | None = ""
    for names in filter(None, (own, others)):
        found = forked(partial(in_child, names), limit_s)
        if found != "":
            break
    return found


class _Planted(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Gives the import system a mutant instead of the module's file."""

    def __init__(self, mutant: Mutant) -> None:
        self._mutant = mutant

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != self._mutant.module:
            return None
        return importlib.machinery.ModuleSpec(name, self, origin=str(self._mutant.path))

    def exec_module(self, module: ModuleType) -> None:
        module.__file__ = str(self._mutant.path)
        exec(compile(self._mutant.tree(), module.__file__, "exec"), module.__dict__)


def import_libraries() -> None:
    """Import what tests of the judge import, but for what is mutated, so that no child has to."""
    for found in pkgutil.walk_packages(gonogo.contract.__path__, "gonogo.contract."):
        importlib.import_module(found.name)
    for name in (
        "fastapi.testclient",
        "gonogo.rundir",
        "hypothesis.strategies",
        "jsonschema",
        "numpy",
        "typer.testing",
    ):
        importlib.import_module(name)
    assert not [name for name in sys.modules if name.startswith(MUTATED)]
    gc.freeze()  # else each child's collector touches, and so copies, every page


def forked(action: Callable[[], str | None], limit_s: float | None) -> str | None:
    """Return what `action` says in a forked child; None when it took too long.

    Args:
        action: its output goes nowhere; it has a temporary folder of its own.
        limit_s: of processor time, and twenty times that by the clock. None: no limit, and what
            the child prints is shown.

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
            os.write(writer, b"+" + (action() or "").encode())
        except BaseException:
            traceback.print_exc(file=shown)
            raise
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as stream:
        told = stream.read().decode()
    _, status = os.waitpid(child, 0)
    shutil.rmtree(place, ignore_errors=True)
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) in (signal.SIGXCPU, signal.SIGALRM):
        return None
    if not told:
        raise SystemExit(f"a child ended without a word: status {status}")
    return told[1:]


class _Session:
    """A plug-in that does something else with the collected tests than to run them all."""

    def __init__(self, action: "_Action") -> None:
        self._action, self._failed = action, ""
        self.result = "not collected"

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        if not session.testsfailed:
            self.result = self._action(self, session.items)
        return True

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._failed = report.nodeid

    def run(self, items: Sequence[pytest.Item]) -> str:
        """Run tests until one fails; return its id, or ""."""
        for item, following in zip(items, [*items[1:], None], strict=False):
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            if self._failed:
                return self._failed
        return ""


_Action = Callable[[_Session, Sequence[pytest.Item]], str]


def collected(files: Sequence[str], action: _Action, *more: object) -> str:
    """Return what `action` makes of the tests of files, or why there are none."""
    plugin = _Session(action)
    # Without rewriting of asserts the libraries stay as the parent imported them.
    asked = ["-s", "-q", "--assert=plain", "--no-header", "--tb=no", "-m", "not long and not gpu"]
    asked += ["-p", "no:cacheprovider", "--hypothesis-profile", PROFILE, "--rootdir", str(ROOT)]
    asked += ["-o", "tmp_path_retention_policy=none", *(str(ROOT / name) for name in files)]
    pytest.main(asked, plugins=[plugin, *more])
    return plugin.result
