"""Runs a module's `main` where only Python, PyTorch, Triton, numpy and PyYAML can be imported.

    python bare_machine.py MODULE… [-- MAIN ARGUMENTS…]

What PyTorch itself requires comes with it and stays importable; every other package is hidden as
if it were not installed. Prints the modules it imported, then runs `main` of the last one if `--`
is given. A program of its own, started by test_bare_machine.py.
"""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Iterator, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from importlib.metadata import PackageNotFoundError, distribution, packages_distributions
from typing import Any

HERE = ("torch", "triton", "numpy", "PyYAML")
OURS = ("nsa", "bench")


def _with_requirements(names: Sequence[str], known: set[str]) -> Iterator[str]:
    for name in names:
        plain = re.split(r"[^A-Za-z0-9._-]", name, maxsplit=1)[0].lower().replace("_", "-")
        if plain in known:
            continue
        try:
            requirements = distribution(plain).requires or ()
        except PackageNotFoundError:
            continue
        known.add(plain)
        yield plain
        wanted = [line for line in requirements if "extra ==" not in line]
        yield from _with_requirements(wanted, known)


_PRESENT = set(_with_requirements(HERE, set()))
HIDDEN = frozenset(
    module
    for module, owners in packages_distributions().items()
    if not _PRESENT & {owner.lower().replace("_", "-") for owner in owners}
) - set(OURS)


class _Bare(PathFinder):
    """Finds what such a machine has, and nothing else: as if the rest were not installed."""

    @classmethod
    def find_spec(cls, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """None for what is hidden."""
        hidden = name.partition(".")[0] in HIDDEN
        return None if hidden else super().find_spec(name, path, target)


if __name__ == "__main__":
    assert {"pydantic", "rfc8785", "pyarrow", "httpx"} <= HIDDEN, "nothing is hidden"
    sys.meta_path = [_Bare if finder is PathFinder else finder for finder in sys.meta_path]
    modules, _, arguments = " ".join(sys.argv[1:]).partition(" -- ")
    for name in modules.split():
        module = importlib.import_module(name)
    print("imported", modules)
    if arguments:
        sys.exit(module.main(arguments.split()))
