"""When does a rank owe a checkpoint, and what makes one whole? The cadence, and a manifest."""

import time
from collections.abc import Callable
from pathlib import Path

from gonogo.trainer.manifest import MANIFEST, save_manifest
from gonogo.trainer.run_dir import RunDir


class Saving:
    """The checkpoints of one rank: when the last was saved, and whether the next is due."""

    def __init__(self, run_dir: RunDir, *, ended: int) -> None:
        self._run = run_dir
        self._saved_at, self._saved_step = time.monotonic(), ended

    def saved(self, step: int) -> None:
        """Count the cadence from here."""
        self._saved_at, self._saved_step = time.monotonic(), step

    def began_after(self, step: int) -> None:
        """Owe nothing for a step that a checkpoint brought along."""
        self._saved_step = step

    def due(self, ended: int, ask: Callable[[Callable[[], bool]], bool]) -> bool:
        """Say whether a checkpoint of the last step is due.

        Args:
            ended: the last step that has ended.
            ask: makes one answer of the ranks' own, where the clock has a say.
        """
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
        """Say whether rank 0's checkpoint lies where the watcher looks, without a manifest yet."""
        ours = folder.absolute().parent == self._run.path / "checkpoints"
        return rank == 0 and ours and folder.is_dir() and not (folder / MANIFEST).exists()

    def seal(self, folder: Path, *, step: int) -> None:
        """Write the manifest of a checkpoint, for which every file of it is read."""
        save_manifest(folder, step)
