"""What was ordered, may the run begin, must it end? Read where a supervisor leaves it."""

import errno
import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ALIVE_EVERY_S = 5.0
LIMIT_S = 60.0
_POLL_S = 0.2
_PASSES = frozenset({
    errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.EIO, errno.ESTALE,
})  # fmt: skip
"""Errors that say nothing of a file, but of the disk or the host just now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunDir:
    """A run directory, as a rank sees it."""

    path: Path
    order: Mapping[str, Any] = field(default_factory=dict)
    """order.json; empty where there is none: then nobody gives a `.GO`."""

    @property
    def steps(self) -> int | None:
        """How many steps were ordered; None where nobody says."""
        return _whole(self.order.get("steps"))

    @property
    def nodes(self) -> int:
        """On how many hosts the run's ranks are."""
        return _whole(self.order.get("nodes")) or 1

    @property
    def alive_every_s(self) -> float:
        """Silence after which a sign of life is due."""
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
        """The step to go on after; 0 for a run that starts afresh."""
        return int((self.order.get("resume_from") or {}).get("step") or 0)

    @property
    def resume_from(self) -> Path | None:
        """The checkpoint to start from, if one was ordered; a relative path lies in here."""
        path = (self.order.get("resume_from") or {}).get("path")
        return self.path / path if path else None

    @property
    def checked(self) -> list[str]:
        """The fields of the identity that the order checks."""
        identity = self.order.get("identity") or {}
        return [name for name, value in identity.items() if value is not None]

    def says(self, word: str) -> bool:
        """Whether `.GO` or `.HALT` is there, whatever it is; a silent disk says no."""
        return os.path.lexists(self.path / f".{word}")

    def all_have_spoken(self) -> bool:
        """Whether every ordered rank has begun to write; a disk that does not answer says no."""
        ranks = range(_whole(self.order.get("world_size")) or 1)
        try:
            return all(self.heartbeat(rank).exists() for rank in ranks)
        except OSError:
            return False

    def heartbeat(self, rank: int) -> Path:
        """The heartbeat file of a rank."""
        return self.path / f"heartbeat_rank{rank}.jsonl"

    def checkpoint(self, step: int) -> Path:
        """Where a checkpoint of a step belongs, so that the watcher verifies it."""
        return self.path / "checkpoints" / f"step_{step:06d}"

    def shown(self, path: Path) -> str:
        """Return a path as lines tell it: inside of the run directory without the directory."""
        whole = path.absolute()
        return str(whole.relative_to(self.path) if whole.is_relative_to(self.path) else whole)


def load_run_dir(path: Path) -> RunDir:
    """Return a run directory with its order, as soon as the disk lets it be read.

    Raises:
        ValueError: order.json is there and holds no JSON object, or has not been readable for
            LIMIT_S.
    """
    path = path.absolute()
    try:
        order = json.loads(_read_at_length(path / "order.json"))
    except FileNotFoundError:
        return RunDir(path=path)
    except (OSError, ValueError) as error:
        raise ValueError(f"{path / 'order.json'}: {error}") from error
    if not isinstance(order, dict):
        raise ValueError(f"{path / 'order.json'}: expected a JSON object")
    return RunDir(path=path, order=order)


def _read_at_length(path: Path) -> bytes:
    """Return a file's bytes; a disk that refuses says nothing of the run, which has not begun.

    Raises:
        OSError: it is no such error, or the disk has refused for LIMIT_S.
    """
    give_up = time.monotonic() + LIMIT_S
    while True:
        try:
            return path.read_bytes()
        except OSError as error:
            if error.errno not in _PASSES or time.monotonic() >= give_up:
                raise
        time.sleep(_POLL_S)


def _positive(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and value > 0 else None


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and value > 0 else None
