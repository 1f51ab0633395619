"""The finished parts of a simulation, in a file to resume from.

The first line names the code; parts of other code are not used. Each other line is a part and its
tally. A torn line is simulated again.
"""

import hashlib
import json
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

import gonogo
from gonogo.contract.errors import Rejected
from lab import Part, Tally

FOLDERS = ("gonogo/contract", "gonogo/timeline", "gonogo/watch", "gonogo/trainer", "lab")
"""What a simulated run goes through; a verdict is not asked for."""
_TALLY = TypeAdapter(Tally)


class FinishedParts:
    """The parts that a file holds, and where the next ones go."""

    def __init__(self, path: Path) -> None:
        """Read the file, or begin it.

        Raises:
            Rejected: it was begun by other code, or is no such file.
        """
        self._path = path
        self._tallies: dict[Part, Tally] = {}
        code = _code_digest()
        if not path.exists():
            path.write_text(json.dumps({"code": code}) + "\n")
        first, *rest = path.read_text().split("\n")
        if first != json.dumps({"code": code}):
            raise Rejected(f"{path}: was not begun by this code; its parts would not add up")
        for line in rest:
            self._read(line)
        if rest[-1:] != [""]:
            self._append("")  # what a kill tore in two ends here

    def _read(self, line: str) -> None:
        try:
            row = json.loads(line)
            self._tallies[Part(**row["part"])] = _TALLY.validate_python(row["tally"])
        except (ValueError, KeyError, TypeError, ValidationError):
            return

    def of(self, parts: Iterable[Part]) -> list[tuple[Part, Tally]]:
        """Return those of `parts` that are done."""
        return [(part, self._tallies[part]) for part in parts if part in self._tallies]

    def add(self, part: Part, tally: Tally) -> None:
        """Keep one more part."""
        document = {"part": asdict(part), "tally": _TALLY.dump_python(tally, mode="json")}
        self._append(json.dumps(document))

    def _append(self, line: str) -> None:
        with self._path.open("a") as file:
            file.write(line + "\n")


def _code_digest() -> str:
    """Return the SHA-256 of every module that has a say in what is found."""
    found = hashlib.sha256()
    root = Path(gonogo.__file__).parent.parent
    for path in sorted(path for name in FOLDERS for path in (root / name).rglob("*.py")):
        found.update(f"{path.relative_to(root)}\0".encode() + path.read_bytes())
    return found.hexdigest()
