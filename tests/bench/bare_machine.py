"""Runs a module's `main` where only Python, PyTorch, Triton, numpy and PyYAML can be imported.

    python bare_machine.py MODULE… [-- MAIN ARGUMENTS…]

What PyTorch itself requires comes with it and stays importable; every other package is hidden as
if it were not installed. Prints the modules it imported, then runs `main` of the last one if `--`
is given. A program of its own, started by test_gpu.py.
"""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Iterator, Sequence
from importlib.abc import MetaPathFinder
from importlib.metadata import PackageNotFoundError, distribution, packages_distributions
from types import ModuleType

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


class _Bare(MetaPathFinder):
    """Hides what such a machine does not have."""

    def __init__(self) -> None:
        present = set(_with_requirements(HERE, set()))
        self.hidden = {
            module
            for module, owners in packages_distributions().items()
            if not present & {owner.lower().replace("_", "-") for owner in owners}
        } - set(OURS)

    def find_spec(self, name: str, path: object = None, target: ModuleType | None = None) -> None:
        if name.partition(".")[0] in self.hidden:
            raise ModuleNotFoundError(f"No module named {name!r} on a bare machine", name=name)


if __name__ == "__main__":
    finder = _Bare()
    assert {"pydantic", "rfc8785", "pyarrow", "httpx"} <= finder.hidden, "nothing is hidden"
    sys.meta_path.insert(0, finder)
    modules, _, arguments = " ".join(sys.argv[1:]).partition(" -- ")
    for name in modules.split():
        module = importlib.import_module(name)
    print("imported", modules)
    if arguments:
        sys.exit(module.main(arguments.split()))
