"""Which code judges here: a digest over the judging sources, and the plug-ins beside them."""

import hashlib
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path

import gonogo
from gonogo.contract.made_by import MadeBy

JUDGING = ("contract", "timeline", "watch", "judge", "ledger")
"""Folders of gonogo on which a verdict depends."""
KINDS = (".py", ".yaml")
PLUGINS = ("gonogo.detectors", "gonogo.criteria")
"""Groups of entry points."""


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
