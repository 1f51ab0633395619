"""How does the watcher remember? watch.jsonl and findings.jsonl, and the fold of both.

Guarantees: a tick stands in watch.jsonl before its findings stand in findings.jsonl, and those
before anything is done about them. A watcher that starts folds all recorded ticks again; findings
that this brings and that are not recorded yet are recorded then. A torn last line is cut off.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from gonogo.contract.canonical import wire_line
from gonogo.contract.errors import Corrupt
from gonogo.contract.finding import Finding
from gonogo.contract.order import Order
from gonogo.contract.rundir import RunDir, load_all_lines
from gonogo.contract.tick import Tick
from gonogo.judge.watch import WatchState, fold, start
from worker.tails import Tails

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """What a watcher knows when it starts: nothing, or what one before it recorded."""

    state: WatchState
    tails: Tails
    ticks: int
    """Number of the next tick."""
    mono: float | None
    """Clock of the last recorded tick."""
    findings: list[Finding]
    """All findings, in the order in which they were found."""
    unrecorded: list[Finding]
    """Those among them that no one has recorded yet."""


class Journal:
    """Appends to the two files of one run directory; each line is one write."""

    def __init__(self, run_dir: RunDir) -> None:
        self._dir = run_dir

    def recover(
        self, order: Order, on_lines: Callable[[list[bytes]], None] = lambda _: None
    ) -> Memory:
        """Cut torn lines off and fold what is recorded.

        Args:
            order: the run's order.
            on_lines: also given every heartbeat line that is read again.

        Raises:
            Corrupt: a recorded tick cannot be read.
        """
        for path in (self._dir.watch, self._dir.findings):
            _cut_torn_line(path)
        known = {finding.key: finding for finding in self._load_findings()}
        state, tails = start(order), Tails(run_dir=self._dir, world_size=order.world_size)
        number, mono = 0, None
        folded: dict[str, Finding] = {}
        for line in load_all_lines(self._dir.watch):
            tick = _parse_tick(line)
            upto = {int(rank): end for rank, end in tick.upto.items()}
            beats = tails.read_up_to(upto)
            for lines in beats.values():
                on_lines(lines)
            state, found = fold(state, tick, beats)
            for finding in found:
                folded.setdefault(finding.key, finding)
            number, mono = tick.n + 1, tick.mono
        return Memory(
            state=state,
            tails=tails,
            ticks=number,
            mono=mono,
            findings=[known.get(key, finding) for key, finding in folded.items()],
            unrecorded=[finding for key, finding in folded.items() if key not in known],
        )

    def add_tick(self, tick: Tick) -> None:
        """Record a tick."""
        _append(
            self._dir.watch, {"v": tick.v, **tick.model_dump(mode="json", exclude_defaults=True)}
        )

    def add_finding(self, finding: Finding) -> None:
        """Record a finding."""
        _append(self._dir.findings, finding.wire())

    def _load_findings(self) -> list[Finding]:
        found: list[Finding] = []
        for line in load_all_lines(self._dir.findings):
            try:
                found.append(Finding.model_validate_json(line))
            except ValidationError as error:
                _log.error("findings.jsonl: %s", error)
        return found


def _parse_tick(line: bytes) -> Tick:
    try:
        return Tick.model_validate_json(line)
    except ValidationError as error:
        raise Corrupt(f"watch.jsonl: {error}") from error


def _append(path: Path, record: dict[str, Any]) -> None:
    with path.open("ab", buffering=0) as stream:
        stream.write(wire_line(record))


def _cut_torn_line(path: Path) -> None:
    """Cut what a watcher that was killed while writing left after the last newline."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return
    whole = data.rfind(b"\n") + 1
    if whole != len(data):
        with path.open("rb+") as stream:
            stream.truncate(whole)
