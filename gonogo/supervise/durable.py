"""How is a small file written so that a reader sees all of it or nothing? Stdlib only.

The same promise as `gonogo.rundir.save_json`, for processes that must start in
milliseconds and therefore do without pydantic.
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
    _place(_kept(path, _encoded(value)), path)


def save_bytes(path: Path, content: bytes) -> None:
    """Write a file atomically and durably, over what was there."""
    _place(_kept(path, content), path)


def _place(temporary: Path, path: Path) -> None:
    try:
        temporary.replace(path)
    except OSError:
        _remove(temporary)
        raise
    sync_folder(path.parent)


def create_json(path: Path, value: Any) -> bool:
    """Write a JSON file unless there is one; True when this call made it."""
    temporary = _kept(path, _encoded(value), syncs=False)
    try:
        return place_first(temporary, path)
    finally:
        _remove(temporary)


def load_json(path: Path) -> dict[str, Any] | None:
    """Return the object in a JSON file; None when it is missing or is not one.

    A pipe is none, and so is what is larger than any record (`MAX_RECORD_BYTES`). Half a surrogate
    pair in it, which no file takes, is a question mark.
    """
    try:
        raw = read_small(path)
        found = json.loads(raw)
        if b"\\ud" in raw.lower() or not raw.isascii():  # as an escape, or as bytes of its own
            found = json.loads(json.dumps(found, ensure_ascii=False).encode(errors="replace"))
    except (FileNotFoundError, NoPlainFile, ValueError, RecursionError):
        # a trainer may write here, too
        return None
    except OSError as error:
        if error.errno != errno.EFBIG:
            raise
        return None
    return found if isinstance(found, dict) else None


def _encoded(value: Any) -> bytes:
    text = json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False)
    return f"{text}\n".encode()


def _kept(path: Path, content: bytes, *, syncs: bool = True) -> Path:
    temporary = path.with_name(f".{path.name}.{os.urandom(6).hex()}.tmp")
    try:
        with temporary.open("wb") as stream:
            stream.write(content)
            if syncs:
                stream.flush()
                os.fsync(stream.fileno())
    except BaseException:
        _remove(temporary)
        raise
    return temporary


def _remove(temporary: Path) -> None:
    """Leave nothing of what no disk took: it is tried again and again."""
    with suppress(OSError):
        temporary.unlink()
