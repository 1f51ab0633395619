"""Do the tests that matter notice a mutant?

`Bench` collects the tests once; each mutant is then put into the functions and constants of a
forked child, which runs the tests that matter, the module's own first, until one fails.
`noticed_afresh` imports everything again, for code that runs only once: class bodies, and functions
that are called while tests are collected.
"""

import ast
import gc
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import CodeType, FunctionType

import pytest

from bench.mutant_process import Built, Session, collected, forked
from bench.mutations import ROOT, Mutant, source_of

AFRESH = "afresh"
"""What `Bench.notices` says of a mutant that no function or constant shows."""


class Bench:
    """The collected tests, with a mutant put into the functions that are there."""

    def __init__(self, session: Session, items: Sequence[pytest.Item]) -> None:
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

    def start(session: Session, items: list[pytest.Item]) -> str:
        action(Bench(session, items))
        return ""

    if said := collected(files, start):
        raise SystemExit(said)
    return ""


def noticed_afresh(mutant: Mutant, wanted: Sequence[str], limit: float) -> str | None:
    """Return what `Bench.notices` does, with every module imported with the mutant in place.

    File by file: few import much, and the first mostly notices.
    """
    by_file: dict[str, list[str]] = {}
    for name in wanted:
        by_file.setdefault(name.partition("::")[0], []).append(name)
    for file, names in by_file.items():
        by = _noticed_in(mutant, ROOT / file, names, limit)
        if by is None or by:
            return by
    return ""


def _noticed_in(mutant: Mutant, file: Path, wanted: Sequence[str], limit: float) -> str | None:
    def planted(module: str) -> ast.Module | None:
        return mutant.tree() if module == mutant.module else None

    def run(session: Session, items: list[pytest.Item]) -> str:
        by_name = {item.nodeid: item for item in items}
        if missing := [name for name in wanted if name not in by_name]:
            return f"not collected: {missing[0]}"  # the mutant changes what a table holds
        return session.run([by_name[name] for name in wanted])

    def in_child() -> str:
        sys.meta_path.insert(0, Built(planted))
        return collected([file], run)

    return forked(in_child, limit)
