"""The run directory as a rank reads it."""

import hashlib
import json
import os
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ALIVE_EVERY_S = 5.0
HALTED_CODE = 3
NO_GO_CODE = 4
GO_LIMIT_S = 120.0
"""How long `.GO` is waited for once every rank has written a line."""
RANKS_LIMIT_S = 2400.0
"""How long the other ranks are waited for; the watcher has a shorter limit."""
NOT_LET_BEGIN = "no .GO within"
UNTOLD = "which this script does not report"
"""Texts by which the supervisor knows why a rank ended before its first step."""
_GO_POLL_S = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class RunDir:
    """A run directory, as a rank sees it."""

    path: Path
    order: Mapping[str, Any] = field(default_factory=dict)
    """order.json; empty where there is none: then nobody gives a `.GO`."""

    @property
    def steps(self) -> int | None:
        """The last ordered step; None if unknown."""
        return _whole(self.order.get("steps"))

    @property
    def nodes(self) -> int:
        """Number of hosts."""
        return _whole(self.order.get("nodes")) or 1

    @property
    def alive_every_s(self) -> float:
        """Silence after which `alive` is due."""
        return _positive((self.order.get("heartbeat") or {}).get("alive_every_s")) or ALIVE_EVERY_S

    @property
    def save_every_steps(self) -> int | None:
        """Steps between checkpoints, where the order says."""
        return _whole((self.order.get("checkpoint") or {}).get("every_steps"))

    @property
    def save_every_s(self) -> float | None:
        """Seconds between checkpoints, where the order says."""
        return _positive((self.order.get("checkpoint") or {}).get("every_s"))

    @property
    def resumed_step(self) -> int:
        """The step to resume after; 0 for a fresh start."""
        return int((self.order.get("resume_from") or {}).get("step") or 0)

    @property
    def resume_from(self) -> Path | None:
        """The ordered checkpoint; a relative path lies in the run directory."""
        path = (self.order.get("resume_from") or {}).get("path")
        return self.path / path if path else None

    @property
    def checked(self) -> list[str]:
        """The fields of the identity that the order checks."""
        identity = self.order.get("identity") or {}
        return [name for name, value in identity.items() if value is not None]

    def says(self, word: str) -> bool:
        """Whether `.GO` or `.HALT` exists; no if the disk does not answer."""
        return os.path.lexists(self.path / f".{word}")

    def all_have_spoken(self) -> bool:
        """Whether every ordered rank has begun to write; no if the disk does not answer."""
        ranks = range(_whole(self.order.get("world_size")) or 1)
        try:
            return all(self.heartbeat(rank).exists() for rank in ranks)
        except OSError:
            return False

    def heartbeat(self, rank: int) -> Path:
        """The heartbeat file of a rank."""
        return self.path / f"heartbeat_rank{rank}.jsonl"

    def checkpoint(self, step: int) -> Path:
        """Folder for the checkpoint of a step; the watcher verifies checkpoints there."""
        return self.path / "checkpoints" / f"step_{step:06d}"

    def shown(self, path: Path) -> str:
        """Return a path as lines report it: relative inside of the run directory."""
        whole = path.absolute()
        return str(whole.relative_to(self.path) if whole.is_relative_to(self.path) else whole)


def load_run_dir(path: Path) -> RunDir:
    """Return a run directory with its order.

    Raises:
        ValueError: order.json cannot be read, or is no JSON object.
    """
    path = path.absolute()
    try:
        order = json.loads((path / "order.json").read_bytes())
    except FileNotFoundError:
        return RunDir(path=path)
    except (OSError, ValueError) as error:
        raise ValueError(f"{path / 'order.json'}: {error}") from error
    if not isinstance(order, dict):
        raise ValueError(f"{path / 'order.json'}: expected a JSON object")
    return RunDir(path=path, order=order)


def _positive(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and value > 0 else None


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and value > 0 else None


def await_go(run_dir: RunDir, identity: Mapping[str, Any]) -> int | None:
    """Wait until the run may begin; return the exit code if it may not."""
    untold = [name for name in run_dir.checked if identity.get(name) is None]
    why = f"the order checks {', '.join(untold)}, {UNTOLD} (attach(identity={{…}}))"
    if untold:
        print(f"gonogo: {why}; it will not be let begin", file=sys.stderr)
    give_up, alone = time.monotonic() + RANKS_LIMIT_S, True
    while not run_dir.says("GO"):
        if run_dir.says("HALT") and not run_dir.says("GO"):
            return HALTED_CODE
        if alone and run_dir.all_have_spoken():
            give_up, alone = time.monotonic() + GO_LIMIT_S, False
        if time.monotonic() > give_up:
            late = f"gonogo: {NOT_LET_BEGIN} {GO_LIMIT_S:.0f} s"
            print(f"{late}: {why}" if untold else late, file=sys.stderr)
            return NO_GO_CODE
        time.sleep(_GO_POLL_S)
    return None


MANIFEST = "manifest.json"


def owes_manifest(run_dir: RunDir, folder: Path) -> bool:
    """Whether a checkpoint in `checkpoints/` still needs a manifest."""
    ours = folder.absolute().parent == run_dir.path / "checkpoints"
    return ours and folder.is_dir() and not (folder / MANIFEST).exists()


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
