"""Where does a training configuration come from? From `nsa/configs`, or the copy that ships."""

import os
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

import gonogo
from gonogo.contract.canonical import plain_copy
from gonogo.contract.errors import NotFound, Problem, hint
from gonogo.contract.yaml_text import parse_yaml


def checkout_root() -> Path:
    """Return the checkout (or image) that holds the applications.

    Raises:
        NotFound: gonogo is installed alone.
    """
    root = Path(gonogo.__file__).resolve().parent.parent
    if not (root / "nsa" / "configs").is_dir():
        raise NotFound("this needs a checkout or the image; an installed gonogo is the core alone")
    return root


def load_train_config(name: str) -> dict[str, Any]:
    """Return the training configuration called `name` (nsa/configs/NAME.yaml), yours to change.

    An installed gonogo has copies of all, so that it judges as a checkout does. A file is read
    again when it has changed.

    Raises:
        NotFound: there is none.
    """
    folder = _folder()
    known = {entry.name.removesuffix(".yaml"): entry for entry in _entries(folder)}
    if name not in known:
        message = f"found {name!r}; {hint(name, known)}"
        problem = Problem(path="train.config", message=message)
        raise NotFound(f"train.config: {message}", problems=(problem,))
    entry = known[name]
    if not isinstance(entry, Path):
        found: dict[str, Any] = parse_yaml(entry.read_text())
        return found
    found = plain_copy(_read(entry, entry.stat().st_mtime_ns))
    return found


def configurations_stamp() -> tuple[tuple[str, int], ...]:
    """Return what changes whenever a training configuration does: each file and its time."""
    folder = _folder()
    if not isinstance(folder, Path):
        return ()
    with os.scandir(folder) as entries:
        return tuple(sorted((entry.name, entry.stat().st_mtime_ns) for entry in entries))


def _folder() -> Traversable:
    try:
        return checkout_root() / "nsa" / "configs"
    except NotFound:
        return resources.files("gonogo.planning").joinpath("configs")


def _entries(folder: Traversable) -> list[Traversable]:
    return [entry for entry in folder.iterdir() if entry.name.endswith(".yaml")]


@cache
def _read(entry: Path, changed: int) -> dict[str, Any]:
    del changed  # the time is a part of the cache's key
    found: dict[str, Any] = parse_yaml(entry.read_text())
    return found
