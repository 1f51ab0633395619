"""Which code judges here: the digest of our judging sources, and the plug-ins of other packages.

Whatever a plug-in does wrong (an import that fails, an error, `sys.exit`, a panic of its Rust) is
caught and reported: no run ends by it.
"""

import hashlib
import re
from collections.abc import Iterator
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import gonogo
from gonogo.contract.made_by import MadeBy

JUDGING = ("contract", "timeline", "watch", "judge", "ledger")
"""Folders of gonogo on which a verdict depends."""
KINDS = (".py", ".yaml")
PLUGINS = ("gonogo.detectors", "gonogo.criteria")
"""Groups of entry points."""

ERRORS = BaseException
"""What foreign code may raise, and a watcher survives; `failure` raises an interrupt again."""
_ADDRESS = re.compile("0x[0-9a-f]+")
_MOST = 200
"""Characters of an error that are kept."""


def failure(error: BaseException) -> str:
    """Return an error in words that are the same on every host: one line, without an address.

    Raises:
        KeyboardInterrupt: it is one: a person's, not the package's.
    """
    if isinstance(error, KeyboardInterrupt):
        raise error
    try:
        said = str(error)
    except ERRORS:  # it is foreign, too
        said = ""
    words = _ADDRESS.sub("0x", said.partition("\n")[0])[:_MOST]
    return f"{type(error).__name__}: {words}"


def load_points(group: str) -> Iterator[tuple[str, str, Any, str | None]]:
    """Yield name, value and object of each entry point, by name; and what is wrong, if it fails.

    Args:
        group: of entry points.
    """
    for point in sorted(entry_points(group=group), key=lambda point: point.name):
        try:
            loaded, wrong = point.load(), None
        except ERRORS as error:
            loaded, wrong = None, f"cannot be loaded: {failure(error)}"
        yield point.name, point.value, loaded, wrong


@cache
def made_by() -> MadeBy:
    """Return which code judges here; computed once in a process."""
    return MadeBy(gonogo=gonogo.__version__, sources=_digest(), packages=_packages())


def _digest() -> str:
    root = Path(gonogo.__file__).parent
    files = sorted(
        path.relative_to(root).as_posix()
        for name in JUDGING
        for path in (root / name).rglob("*")
        if path.suffix in KINDS
    )
    found = hashlib.sha256()
    for name in files:
        found.update(f"{name}\n".encode() + hashlib.sha256((root / name).read_bytes()).digest())
    return found.hexdigest()


def _packages() -> dict[str, str]:
    points = (point for group in PLUGINS for point in entry_points(group=group))
    packages = {point.dist for point in points if point.dist is not None}
    return dict(sorted((package.name, package.version) for package in packages))
