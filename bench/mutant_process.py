"""In which process do tests run, and with which modules?

A forked child has its own time limit and temporary folder, and sends one text. It imports changed
trees instead of the modules' files (`Built`), and runs the given job on the collected tests
(`collected`).
"""

import ast
import gc
import importlib
import importlib.abc
import importlib.machinery
import os
import pkgutil
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import Phase, settings

import gonogo.contract
from bench.mutations import ROOT

MUTATED = ("gonogo.judge.", "gonogo.timeline.", "gonogo.watch.")
"""Packages whose functions say that a test called them."""
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


def import_libraries() -> None:
    """Import what tests of the judge import, but for what is mutated, so that no child has to."""
    for found in pkgutil.walk_packages(gonogo.contract.__path__, "gonogo.contract."):
        importlib.import_module(found.name)
    for name in ("gonogo.rundir", "hypothesis.strategies", "jsonschema", "numpy"):
        importlib.import_module(name)
    assert not [name for name in sys.modules if name.startswith(MUTATED)]
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


class Session:
    """A plug-in that does something else with the collected tests than to run them all."""

    def __init__(self, action: Callable[["Session", list[pytest.Item]], str]) -> None:
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


def collected(
    files: Sequence[Path], action: Callable[[Session, list[pytest.Item]], str], *more: object
) -> str:
    """Return what `action` makes of the tests of some files, or "not collected"."""
    plugin = Session(action)
    # Without rewriting of asserts the libraries stay as the parent imported them.
    asked = ["-s", "-q", "--assert=plain", "--no-header", "--tb=no", "-m", "not long and not gpu"]
    for name in ("cacheprovider", "xdist"):
        asked += ["-p", f"no:{name}"]
    asked += ["--hypothesis-profile", PROFILE]
    asked += ["-o", "tmp_path_retention_policy=none", *map(str, files)]
    pytest.main(asked, plugins=[plugin, *more])
    return plugin.said
