"""Small files that are written whole or not at all. Standard library only.

The same promise as `gonogo.rundir.save_json`, without pydantic.
"""

import errno
import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from gonogo.files import NoPlainFile, place_first, read_small, sync_folder


def save_json(path: Path, value: Any) -> None:
    """Write a JSON file atomically and durably, over what was there."""
    temporary = _draft(path, value, syncs=True)
    try:
        temporary.replace(path)
    except OSError:
        _remove(temporary)
        raise
    sync_folder(path.parent)


def create_json(path: Path, value: Any) -> bool:
    """Write a JSON file unless there is one; return whether this call created it."""
    temporary = _draft(path, value, syncs=False)
    try:
        return place_first(temporary, path)
    finally:
        _remove(temporary)


def load_json(path: Path) -> dict[str, Any] | None:
    """Return the object in a JSON file; None if it is missing, too large, or not an object."""
    try:
        found = json.loads(read_small(path))
    except (FileNotFoundError, NoPlainFile, ValueError, RecursionError):
        return None
    except OSError as error:
        if error.errno != errno.EFBIG:
            raise
        return None
    return found if isinstance(found, dict) else None


def _draft(path: Path, value: Any, *, syncs: bool) -> Path:
    text = json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False)
    temporary = path.with_name(f".{path.name}.{os.urandom(6).hex()}.tmp")
    try:
        with temporary.open("wb") as stream:
            stream.write(f"{text}\n".encode())
            if syncs:
                stream.flush()
                os.fsync(stream.fileno())
    except BaseException:
        _remove(temporary)
        raise
    return temporary


def _remove(temporary: Path) -> None:
    with suppress(OSError):
        temporary.unlink()
