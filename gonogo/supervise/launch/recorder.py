"""Which names of the environment switch torch's flight recorder on? Standard library only.

Since torch 2.9 it is one name; before, another one, of which a newer torch warns in every rank's
log. Which torch a program will import is read from where it lies: the packages beside it.
"""

import os
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from gonogo.supervise.release import own_python

ENTRIES = "2000"
"""Calls that the recorder keeps of each rank."""
_SINCE = (2, 9)
_PACKAGES = (
    "lib/python3*/site-packages", "lib/python3*/dist-packages", "local/lib/python3*/dist-packages",
)  # fmt: skip
_VERSION = re.compile(r"torch-(\d+)\.(\d+)")


def recorder_names(order: Mapping[str, Any], path: str | None) -> dict[str, str]:
    """Return the names that switch the recorder on in the programs of an order, and their values.

    The older one is among them unless every torch that is found is newer: a warning too many is
    better than a hang of which nothing is recorded.

    Args:
        order: the order as data.
        path: where its programs are looked for; None: where a shell would.
    """
    found = list(_versions(order, path or os.defpath))
    names = {"TORCH_FR_BUFFER_SIZE": ENTRIES}
    if not found or min(found) < _SINCE:
        names["TORCH_NCCL_TRACE_BUFFER_SIZE"] = ENTRIES
    return names


def _versions(order: Mapping[str, Any], path: str) -> Iterator[tuple[int, int]]:
    """Yield the versions of torch beside a program, else beside the `python` that it may start."""
    command = order.get("command")
    first = str(command[0]) if command else own_python()
    if "/" in first:
        first = str(Path(order.get("cwd") or ".") / first)
    for program in (first, "python", "python3"):
        place = shutil.which(program, path=path)
        found = [] if place is None else list(_beside(Path(place)))
        if found:
            yield from found
            return


def _beside(program: Path) -> Iterator[tuple[int, int]]:
    """Yield the versions in the packages of a program's own folder; links are not followed."""
    root = program.absolute().parent.parent
    for packages in _PACKAGES:
        for folder in root.glob(f"{packages}/torch-*.dist-info"):
            if version := _VERSION.match(folder.name):
                yield int(version[1]), int(version[2])
