"""Judge's processes: children that turn run directories into facts, kept while they work well.

An answer comes within `limit_s` or not at all. A child that crashes or hangs is ended, and the next
question gets another one. A child is replaced after `KEPT_ANSWERS`.
"""

import json
import logging
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
from gonogo.contract.rules import Rules

LIMIT_S = 900.0
"""For the facts of one run."""
KEPT_ANSWERS = 50
COMMAND = (sys.executable, "-m", "service.judging.assessing")
_ROOT = Path(__file__).resolve().parents[2]
_END_S = 5.0

_log = logging.getLogger(__name__)


class Unjudged(GonogoError):
    """The judge's process gave no facts."""

    code = "unjudged"


@dataclass(slots=True)
class _Child:
    process: "subprocess.Popen[bytes]"
    answers: int = 0


@dataclass(slots=True, kw_only=True)
class Assessors:
    """Children that turn run directories into facts; used from any thread."""

    limit_s: float = LIMIT_S
    command: Sequence[str] = COMMAND
    _idle: list[_Child] = field(default_factory=list)
    _busy: list[_Child] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _closed: bool = False

    def build_facts(self, folder: Path, rules: Rules) -> Facts:
        """Return the facts of a run directory.

        Raises:
            Unjudged: the child crashed, took too long, or could not read the directory.
        """
        child = self._take()
        line = self._ask(child, wire_line({"folder": str(folder), "rules": rules.wire()}))
        answer = _parse(line)
        self._put_back(child, well=answer is not None)
        if answer is None:
            how = child.process.returncode
            raise Unjudged(f"the judge's process ended with {how} instead of an answer")
        if "facts" not in answer:
            raise Unjudged(str(answer.get("error")))
        return Facts.model_validate(answer["facts"])

    def close(self) -> None:
        """End every child; pending questions get no answer."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
            for child in self._busy:
                child.process.kill()
        for child in idle:
            _end(child)

    def _ask(self, child: _Child, question: bytes) -> bytes:
        """Return the child's answer; nothing when it is ended before there is one."""
        process = child.process
        assert process.stdin is not None
        assert process.stdout is not None
        timer = threading.Timer(self.limit_s, process.kill)
        timer.start()
        try:
            process.stdin.write(question)
            process.stdin.flush()
            return process.stdout.readline()
        except OSError as error:
            _log.warning("no question: %s", error, extra={"action": "judge_lost"})
            return b""
        finally:
            timer.cancel()

    def _take(self) -> _Child:
        with self._lock:
            if self._closed:
                raise Unjudged("the service is closing")
            while self._idle:
                child = self._idle.pop()
                if child.process.poll() is None:
                    break
                _end(child)
            else:
                child = _Child(
                    subprocess.Popen(
                        list(self.command), cwd=_ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
                    )
                )
            self._busy.append(child)
            return child

    def _put_back(self, child: _Child, *, well: bool) -> None:
        child.answers += 1
        with self._lock:
            self._busy.remove(child)
            keep = well and not self._closed and child.answers < KEPT_ANSWERS
            if keep:
                self._idle.append(child)
        if not keep:
            _end(child)


def _parse(line: bytes) -> dict[str, Any] | None:
    try:
        found = json.loads(line)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def _end(child: _Child) -> None:
    """Close a child's pipes and end it."""
    process = child.process
    for pipe in (process.stdin, process.stdout):
        try:
            if pipe is not None:
                pipe.close()
        except OSError as error:
            _log.debug("pipe: %s", error)
    try:
        process.wait(_END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
