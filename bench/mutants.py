"""Would a test notice? Mutants of detectors, gate and evidence checks, each run against its tests.

    make mutants                                   # goes on where it stopped, for 55 minutes
    python -m bench.mutants --only stall,slow      # modules whose name holds one of these
    python -m bench.mutants --part 1/2 & python -m bench.mutants --part 2/2   # on two cores
    python -m bench.mutants --list                 # how many there are, and what became of them

A mutant is one changed comparison, boolean operator, `not`, number or truth value of one module. It
is killed when a test of that module fails, and survives otherwise. Results are kept in
`.mutants.jsonl`, by the mutant's name and the digest of module and tests, so that a run can be
stopped at any time; a module that changed is run again. `bench/mutants.yaml` gives the reason of
each survivor that is known to make no difference; one without a reason is exit 1 at the end.

Every mutant runs in a forked child of a process that has imported the libraries, so most take a
second or two.
"""

import argparse
import ast
import copy
import gc
import hashlib
import importlib
import importlib.abc
import importlib.machinery
import io
import json
import os
import pkgutil
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType

import pytest
import yaml

import gonogo.contract

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / ".mutants.jsonl"
REASONS = ROOT / "bench" / "mutants.yaml"
FOLDERS = ("gonogo/judge/watch/detectors", "gonogo/judge/gate", "gonogo/judge/evidence")
BASELINE_S = 1800
"""Limit for a module's tests without a mutant; a mutant's own is a multiple of what they took."""
TIMEOUT_X = 5.0
KILLED, SURVIVED, TIMED_OUT = "killed", "survived", "timed out"

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
    name: str
    line: int
    index: int
    """Of the changed node, in `ast.walk` of the module's tree."""
    number: int
    """Which of the node's changes it is."""

    def tree(self) -> ast.Module:
        """Return the changed tree of the module: built when it is planted, since all are many."""
        tree = ast.parse(self.path.read_text())
        node = list(ast.walk(tree))[self.index]
        assert isinstance(node, ast.expr)  # _places yields no other
        _, changed = _changes(node)[self.number]
        return _with(tree, node, changed)


def mutants_of(path: Path) -> Iterator[Mutant]:
    """Yield every mutant of a module."""
    module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
    tree = ast.parse(path.read_text())
    counts: dict[str, int] = {}
    for scope, index, node in _places(tree):
        for number, (what, _) in enumerate(_changes(node)):
            key = f"{module}:{scope}:{what}"
            counts[key] = counts.get(key, 0) + 1
            yield Mutant(
                path=path,
                module=module,
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


class _Planted(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Gives the import system the mutant instead of the module's file."""

    def __init__(self, mutant: Mutant) -> None:
        self._mutant = mutant

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != self._mutant.module:
            return None
        origin = str(ROOT / (name.replace(".", "/") + ".py"))
        return importlib.machinery.ModuleSpec(name, self, origin=origin)

    def exec_module(self, module: ModuleType) -> None:
        exec(compile(self._mutant.tree(), module.__spec__.origin or "", "exec"), module.__dict__)  # type: ignore[union-attr]  # made above


def tests_of(module: str) -> list[Path]:
    """Return the tests that must notice a mutant, the quickest first: the module's own."""
    parts = module.removeprefix("gonogo.").split(".")
    folder = ROOT / "tests" / Path(*parts[:-1])
    found = [folder / f"test_{parts[-1]}.py"]
    if "detectors" in parts:
        found.append(folder.parent / "test_fold.py")
    else:
        found += sorted(folder.glob("test_*.py"))
        found.append(ROOT / "tests" / "judge" / "test_forgery.py")
    return [path for path in dict.fromkeys(found) if path.exists()]


def digest_of(module: str) -> str:
    """Return the digest of a module and its tests, for which a result holds."""
    files = [ROOT / (module.replace(".", "/") + ".py"), *tests_of(module)]
    return hashlib.sha256(b"\0".join(path.read_bytes() for path in files)).hexdigest()[:16]


def run_mutant(mutant: Mutant, limits: dict[Path, float]) -> str:
    """Return what became of a mutant.

    Args:
        mutant: to be planted.
        limits: tests → seconds after which a mutant that loops is given up; filled as they run.

    Raises:
        SystemExit: its tests could not be run at all.
    """
    for path in tests_of(mutant.module):
        if path not in limits:
            limits[path] = TIMEOUT_X * _baseline_s(path)
        code = _forked(partial(_plant_and_test, mutant, path), limits[path])
        if code is None:
            return TIMED_OUT
        if code not in (0, 1, 2):  # passed, failed, not importable
            raise SystemExit(f"{mutant.name}: pytest ended with {code}")
        if code:
            return KILLED
    return SURVIVED


def _forked(action: Callable[[], int], limit_s: float) -> int | None:
    """Return the exit code of `action` in a forked child; None when it took too long."""
    child = os.fork()
    if child == 0:
        code = 70
        try:
            code = action()
        finally:
            os._exit(code)
    give_up = time.monotonic() + limit_s
    while time.monotonic() < give_up:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.02)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None


def _plant_and_test(mutant: Mutant, tests: Path) -> int:
    sys.meta_path.insert(0, _Planted(mutant))
    return _tests_in_child(tests)


def _tests_in_child(tests: Path) -> int:
    quiet = ["-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--no-header", "--tb=no"]
    quiet.append("--assert=plain")  # no rewriting: libraries stay as the parent imported them
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        return int(pytest.main([*quiet, str(tests)]))


def load_results() -> dict[str, tuple[str, str]]:
    """Return name → digest for which it holds, and what became of the mutant."""
    if not RESULTS.exists():
        return {}
    rows = (json.loads(line) for line in RESULTS.read_text().splitlines())
    return {row["name"]: (row["digest"], row["result"]) for row in rows}


def all_mutants(only: Sequence[str]) -> list[Mutant]:
    """Return the mutants of every module, or of those whose name holds one of `only`."""
    paths = [path for folder in FOLDERS for path in sorted((ROOT / folder).glob("*.py"))]
    chosen = [path for path in paths if not only or any(part in path.stem for part in only)]
    return [mutant for path in chosen for mutant in mutants_of(path)]


def _import_libraries() -> None:
    """Import what tests of the judge import, but for the judge, so that no child has to."""
    for found in pkgutil.walk_packages(gonogo.contract.__path__, "gonogo.contract."):
        importlib.import_module(found.name)
    for name in ("gonogo.rundir", "hypothesis.strategies", "jsonschema", "numpy"):
        importlib.import_module(name)
    assert not [name for name in sys.modules if name.startswith("gonogo.judge")]
    gc.freeze()  # else each child's collector touches, and so copies, every page


def main() -> int:
    """Run what has not been run; list the survivors."""
    parser = argparse.ArgumentParser(prog="bench.mutants")
    parser.add_argument("--minutes", type=float, default=55.0)
    parser.add_argument("--only", default="")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--part", default="1/1", help="K/N: every Nth mutant, from the Kth")
    asked = parser.parse_args()
    mutants = all_mutants([part for part in asked.only.split(",") if part])
    digests = {module: digest_of(module) for module in {mutant.module for mutant in mutants}}
    known = load_results()
    left = [m for m in mutants if known.get(m.name, ("", ""))[0] != digests[m.module]]
    if not asked.list:
        part, parts = map(int, asked.part.split("/"))
        _run(left[part - 1 :: parts], digests, time.monotonic() + 60 * asked.minutes)
    return _tell(mutants, digests)


def _run(left: Sequence[Mutant], digests: dict[str, str], until: float) -> None:
    print(f"{len(left)} mutants to run", flush=True)
    began = time.monotonic()
    limits: dict[Path, float] = {}
    _import_libraries()
    for number, mutant in enumerate(left, start=1):
        if time.monotonic() >= until:
            print("time is up; the same command goes on from here")
            return
        row = {"name": mutant.name, "digest": digests[mutant.module]}
        result = run_mutant(mutant, limits)
        with RESULTS.open("a") as stream:
            stream.write(json.dumps({**row, "result": result}) + "\n")
        rest_s = (time.monotonic() - began) / number * (len(left) - number)
        left_min = rest_s / 60
        print(f"{number}/{len(left)} {result:9} {mutant.name} ({left_min:.0f} min)", flush=True)


def _baseline_s(tests: Path) -> float:
    """Return how long a file of tests takes without any mutant, at least 10 s.

    Raises:
        SystemExit: they fail.
    """
    began = time.monotonic()
    if _forked(partial(_tests_in_child, tests), BASELINE_S) != 0:
        raise SystemExit(f"{tests}: fails without any mutant")
    return max(10.0, time.monotonic() - began)


def _tell(mutants: Sequence[Mutant], digests: dict[str, str]) -> int:
    known = load_results()
    reasons = yaml.safe_load(REASONS.read_text()) or {} if REASONS.exists() else {}
    done = [m for m in mutants if known.get(m.name, ("", ""))[0] == digests[m.module]]
    survivors = [m for m in done if known[m.name][1] == SURVIVED]
    print(f"{len(mutants)} mutants, {len(done)} run, {len(survivors)} survived")
    unexplained = [mutant for mutant in survivors if mutant.name not in reasons]
    for mutant in survivors:
        print(f"  {mutant.name} (line {mutant.line}): {reasons.get(mutant.name, 'NO REASON')}")
    return 1 if unexplained else 0


if __name__ == "__main__":
    sys.exit(main())
