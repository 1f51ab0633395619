"""What stands in the log of a run directory? Read from its files; no service is asked."""

from pathlib import Path
from typing import Any

from gonogo.contract.errors import Rejected, Unavailable
from gonogo.contract.ids import Kind
from gonogo.rundir import NO_SERVICE, SHIPPED_NAME, RunDir
from gonogo.supervise.durable import load_json

MAX_TEXT_BYTES = 2**20
"""Of one stretch, as the service gives it."""

_LEAST_LETTERS = 4
"""Of an id, behind `run_`, that may stand for the whole."""


def is_run_dir(text: str) -> bool:
    """Say whether a text is the path of a run directory."""
    try:
        return (Path(text) / "order.json").is_file()
    except (OSError, ValueError):
        return False


def find_run_dir(text: str, home: Path) -> Path | None:
    """Return the directory of a run that `gonogo run` made in this home; None where none fits.

    Args:
        text: its id, or the beginning of it, with or without `run_`.
        home: GONOGO_HOME.

    Raises:
        Rejected: several runs of this home begin so.
    """
    prefix = f"{Kind.RUN.value}_"
    letters = text.removeprefix(prefix).upper()
    if len(letters) < _LEAST_LETTERS or not letters.isalnum():
        return None
    found = [row for row in sorted((home / "runs").glob(f"{prefix}{letters}*")) if _is_own(row)]
    if len(found) > 1:
        rows = ", ".join(row.name for row in found[:10])
        raise Rejected(f"{text!r} may mean {len(found)} runs of this home; say which: {rows}")
    return found[0] if found else None


def _is_own(folder: Path) -> bool:
    """Say whether `gonogo run` made the directory: no service knows the run."""
    try:
        return is_run_dir(str(folder)) and NO_SERVICE in (folder / SHIPPED_NAME).read_text()
    except (OSError, ValueError):
        return False


class LocalLog:
    """The log of a run directory, in stretches that look as the service's do."""

    def __init__(self, folder: Path, rank: int | None) -> None:
        """Choose the log: a rank's, or else the program's; torchrun's where it started the ranks.

        Args:
            folder: the run directory.
            rank: whose log; None: whichever says most of the whole run.
        """
        self._dir = RunDir(folder)
        self._order = load_json(self._dir.order) or {}
        told = self._dir.torchrun_log
        whole = rank is None and not self._order.get("command") and _size_of(told) > 0
        self.path = told if whole else self._dir.rank_log(rank or 0)

    def last(self, tail: int) -> dict[str, Any]:
        """Return the last lines."""
        size = _size_of(self.path)
        page = self.after(max(0, size - MAX_TEXT_BYTES))
        lines = page["text"].splitlines(keepends=True)
        return {**page, "text": "".join(lines[-tail:])}

    def after(self, offset: int) -> dict[str, Any]:
        """Return the stretch that begins at a byte of the file.

        Raises:
            Unavailable: the file cannot be read.
        """
        raw = b""
        try:
            with self.path.open("rb") as stream:
                stream.seek(offset)
                raw = stream.read(MAX_TEXT_BYTES)
        except FileNotFoundError:
            pass
        except OSError as error:
            raise Unavailable(f"{self.path}: {error.strerror}") from error
        return {
            "run": str(self._order.get("run") or self._dir.path.name),
            "name": self.path.name,
            "text": raw.decode(errors="replace"),
            "offset": offset,
            "next_offset": offset + len(raw),
        }

    def has_ended(self) -> bool:
        """Say whether the run has ended."""
        return self._dir.exit.exists()


def _size_of(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
