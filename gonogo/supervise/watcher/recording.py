"""What of a watch is written down, and when? Ticks, findings, a snapshot now and then, its end.

A record that cannot be written (a full disk) is counted and told once, and ends no watch.
"""

import logging
from collections.abc import Callable, Mapping
from functools import partial

from gonogo.contract.finding import Finding
from gonogo.contract.order import Order
from gonogo.contract.tick import Tick
from gonogo.rundir import RunDir
from gonogo.supervise.watcher.journal import Journal, Memory
from gonogo.supervise.watcher.looking import Progress
from gonogo.supervise.watcher.pace import Pace
from gonogo.supervise.watcher.snapshots import Bookmark, Snapshots
from gonogo.watch import WatchState

QUIET_S = 5.0
"""Longest time without a recorded tick: whether a run was watched shows in the ticks."""
WATCHED_NAME = ".watched"
"""Says that the last tick is written: nothing is added to watch.jsonl any more."""

_log = logging.getLogger("gonogo.supervise.watcher")


class Recording:
    """The records of one run.

    Args:
        run_dir: the run's directory.
        pace: the run's pace, which a snapshot holds too.
    """

    def __init__(self, run_dir: RunDir, pace: Pace) -> None:
        self._dir, self._pace = run_dir, pace
        self._journal, self._snapshots = Journal(run_dir), Snapshots(run_dir)
        self._recorded_at = float("-inf")
        self._unreadable = 0
        self.found: dict[str, Finding] = {}
        """Every finding by its key."""
        self.failures = 0
        """Records that could not be written."""

    @property
    def waits(self) -> bool:
        """Whether anything is not written yet."""
        return self._journal.waits

    def recover(self, order: Order) -> Memory:
        """Return what is recorded, after recording the findings that nobody had recorded yet."""
        memory = self._journal.recover(order, self._pace.take, self._pace.resume)
        self._unreadable = memory.unreadable
        self.found.update({finding.key: finding for finding in memory.findings})
        for finding in memory.unrecorded:
            self._keep(partial(self._journal.add_finding, finding))
        return memory

    def owes(self, tick: Tick) -> bool:
        """Say whether a tick brought anything, or must show that somebody looked."""
        seen = tick.ranks or tick.agent or tick.stacks or tick.nodes
        brought = tick.upto or seen or tick.observations
        said = tick.late_s or tick.files or tick.start is not None
        return bool(brought or said) or tick.mono - self._recorded_at >= QUIET_S

    def add_tick(self, tick: Tick, state: WatchState, beats: Mapping[int, object]) -> bool:
        """Record a tick with how far each rank's lines have been read; False when that failed."""
        seen = tick.model_copy(update={"lines": state.view.lines_seen(beats)})
        if not self._keep(partial(self._journal.add_tick, seen)):
            return False
        self._recorded_at = tick.mono
        return True

    def add_finding(self, finding: Finding) -> None:
        """Record a finding."""
        self.found[finding.key] = finding
        self._keep(partial(self._journal.add_finding, finding))

    def put_down(
        self, now: float, lines: int, state: WatchState, progress: Callable[[], Progress | None]
    ) -> None:
        """Write a snapshot when it is time for one.

        Args:
            now: monotonic seconds.
            lines: how many heartbeats came since the last call.
            state: the fold.
            progress: returns how far it has come; None while this watcher has recorded nothing.
        """
        last = self._journal.last
        if not self._snapshots.is_due(now, lines) or last is None or (come := progress()) is None:
            return
        if self.waits:  # it names lines that are not in the file
            return
        place = Bookmark(
            watch_bytes=self._journal.bytes,
            last=last,
            number=come.number,
            mono=self._recorded_at,
            offsets=come.offsets,
            findings=list(self.found.values()),
            files=come.files,
            pace=self._pace.document(),
            unreadable=self._unreadable,
        )
        self._snapshots.start(state, place, now)

    def close(self) -> None:
        """Write that nothing will be added any more."""
        self._snapshots.join()
        self._keep(self._journal.write_kept)
        self._keep((self._dir.path / WATCHED_NAME).touch)

    def _keep(self, write: Callable[[], object]) -> bool:
        """Write a record; a disk that refuses is told once and ends no watch."""
        try:
            write()
        except OSError as error:
            self.failures += 1
            if self.failures == 1:
                _log.error("unrecorded: %s", error, extra={"action": "unrecorded"})
            return False
        return True
