"""The checkpoints of a rank: when one is due, and the manifest that makes it whole.

The watcher verifies the files of a checkpoint by its manifest, which is written last.
"""

import hashlib
import json
import os
import time
from collections.abc import Callable
from pathlib import Path

from gonogo.trainer.run_dir import RunDir

MANIFEST = "manifest.json"


class Saving:
    """When the last checkpoint of a rank was saved, and whether the next is due."""

    def __init__(self, run_dir: RunDir, *, ended: int) -> None:
        self._run = run_dir
        self._saved_at, self._saved_step = time.monotonic(), ended

    def saved(self, step: int) -> None:
        """Count the cadence from here."""
        self._saved_at, self._saved_step = time.monotonic(), step

    def began_after(self, step: int) -> None:
        """Count no checkpoint as due for the step of a loaded one."""
        self._saved_step = step

    def due(self, ended: int, ask: Callable[[Callable[[], bool]], bool]) -> bool:
        """Return whether a checkpoint is due; `ask` gets one answer for all ranks."""
        every_steps, every_s = self._run.save_every_steps, self._run.save_every_s
        if ended == self._saved_step or (every_steps is None and every_s is None):
            return False
        if ended == self._run.steps:
            return True  # the last weights are kept
        due = every_steps is not None and ended % every_steps == 0
        if due or every_s is None:
            return due
        return ask(lambda: time.monotonic() - self._saved_at >= every_s)

    def owes_manifest(self, folder: Path, *, rank: int) -> bool:
        """Whether a checkpoint needs a manifest by rank 0: it is in `checkpoints/` and has none."""
        ours = folder.absolute().parent == self._run.path / "checkpoints"
        return rank == 0 and ours and folder.is_dir() and not (folder / MANIFEST).exists()


def save_manifest(folder: Path, step: int) -> None:
    """Write the manifest of a whole checkpoint, in one move."""
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
