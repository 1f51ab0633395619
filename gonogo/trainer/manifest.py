"""Does a checkpoint hold? Its manifest names every file with size and SHA-256, written last.

The watcher reads the files against it; a checkpoint without one is a claim that nobody verifies.
"""

import hashlib
import json
import os
from pathlib import Path

MANIFEST = "manifest.json"


def save_manifest(folder: Path, step: int) -> None:
    """Write the manifest of a whole checkpoint, in one move.

    Args:
        folder: of the checkpoint; every file in it counts, those in folders below too.
        step: whose weights they are.

    Raises:
        OSError: a file cannot be read, or the manifest not be written.
    """
    files = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.name != MANIFEST:
            with path.open("rb") as stream:
                sha256 = hashlib.file_digest(stream, "sha256").hexdigest()
            name = path.relative_to(folder).as_posix()
            files[name] = {"bytes": path.stat().st_size, "sha256": sha256}
    draft = folder / f".{MANIFEST}.{os.getpid()}"
    draft.write_text(json.dumps({"v": 1, "step": step, "files": files}), encoding="utf-8")
    draft.replace(folder / MANIFEST)
