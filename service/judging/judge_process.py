"""The judge's process: it turns a run directory into facts, with the code of `gonogo judge DIR`.

`python -m service.judging.judge_process FOLDER` reads the rules from stdin and prints
`{"facts": …}` or `{"error": TEXT}`. A judgement takes at most `limit_s`; a process that crashes or
hangs is ended.
"""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gonogo.contract.canonical import wire_line
from gonogo.contract.errors import GonogoError
from gonogo.contract.facts import Facts
from gonogo.contract.order import Rules
from gonogo.judge.facts.facts import build_facts
from gonogo.judge.facts.record import load_run

LIMIT_S = 900.0
COMMAND = (sys.executable, "-m", "service.judging.judge_process")
_ROOT = Path(__file__).resolve().parents[2]


class Unjudged(GonogoError):
    """The judge's process gave no facts."""

    code = "unjudged"


def answer(folder: Path, rules: bytes) -> dict[str, Any]:
    """Return what the process prints."""
    try:
        return {"facts": build_facts(load_run(folder), Rules.model_validate_json(rules)).wire()}
    except GonogoError as error:
        return {"error": f"{type(error).__name__}: {error}"}


@dataclass(slots=True, kw_only=True)
class Assessors:
    """Processes that turn run directories into facts; used from any thread."""

    limit_s: float = LIMIT_S
    command: Sequence[str] = COMMAND
    _busy: "set[subprocess.Popen[bytes]]" = field(default_factory=set)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _closed: bool = False

    def build_facts(self, folder: Path, rules: Rules) -> Facts:
        """Return the facts of a run directory."""
        found = self.ask(folder, wire_line(rules.wire()))
        if "facts" not in found:
            raise Unjudged(str(found.get("error")))
        return Facts.model_validate(found["facts"])

    def ask(self, folder: Path, rules: bytes) -> dict[str, Any]:
        """Return the answer of a process."""
        with self._lock:
            if self._closed:
                raise Unjudged("the service is closing")
            process = subprocess.Popen(
                [*self.command, str(folder)],
                cwd=_ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
            self._busy.add(process)
        with process:
            try:
                printed, _ = process.communicate(rules, self.limit_s)
                found = json.loads(printed)
            except (subprocess.TimeoutExpired, ValueError):
                found = None
            finally:
                process.kill()
        self._busy.discard(process)
        if not isinstance(found, dict):
            how = process.returncode
            raise Unjudged(f"the judge's process ended with {how} instead of an answer")
        return found

    def close(self) -> None:
        """End every process; what they were asked gets no answer."""
        with self._lock:
            self._closed = True
            for process in list(self._busy):
                process.kill()


def main(folder: str) -> None:
    """Answer one question; what others print goes to stderr."""
    printed = os.dup(1)
    os.dup2(2, 1)
    with open(printed, "wb", buffering=0) as stream:
        stream.write(wire_line(answer(Path(folder), sys.stdin.buffer.read())))


if __name__ == "__main__":
    main(sys.argv[1])
