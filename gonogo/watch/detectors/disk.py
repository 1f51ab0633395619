"""D19: the run's file system is full, or nearly so.

Two sources: what the watcher reads of the file system, compared with the size of the last verified
checkpoint, and `error` lines, in which the trainer reports that a write was refused. No rank is
named. If checkpoints lie on another file system, its room counts for them.

The cause is the host's (`disk_full`) when the finding's value is below its threshold, or the file
system is read-only for the watcher too. Any other refusal is a quota of the run.

Room that is short while a rank saves or evaluates does not count. Too little room halts shortly
before the next checkpoint is due; without an ordered cadence, after `PATIENCE_S`. A run warns once.
"""

import math
import re
from dataclasses import dataclass, replace

from gonogo.contract.finding import Act, Finding, Near, Severity
from gonogo.contract.heartbeat import Msg, Section
from gonogo.contract.observation import DiskSeen, Kind, checkpoints_of, disk_of
from gonogo.contract.outcome import Detector as Name
from gonogo.contract.records import Tick
from gonogo.watch.detector import Detector, Seen
from gonogo.watch.view import Beat, View

SETTLE_S = 5.0
NEXT_S, NEXT_STEPS = 60.0, 2
"""A checkpoint that is due within so long, or so many steps, is the next write."""
PATIENCE_S = 60.0
"""Room has to be short for so long when nobody knows when the next checkpoint is due."""
MB = 2**20
FULL_MB = 64.0
"""With less than this a disk is full for everybody, whatever a checkpoint takes."""
FULL_FILES = 16
"""A checkpoint takes more inodes."""
_FULL = r"Errno 28\b|\bENOSPC\b|(?i:no space left on device)|PytorchStreamWriter failed writing"
_READ_ONLY = r"Errno 30\b|\bEROFS\b|(?i:read-only file system)"
_QUOTA = r"Errno 122\b|\bEDQUOT\b|(?i:disk quota exceeded)"
_REFUSED = re.compile(f"{_FULL}|{_READ_ONLY}|{_QUOTA}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """What is known of the disk."""

    checkpoint_mb: float | None = None
    """Size of the last verified checkpoint."""
    short_since: float | None = None
    """Watcher's clock of the first look that found less than one checkpoint's room."""


class Disk(Detector[Room]):
    """D19 (module docstring)."""

    name = Name.DISK
    sentence = (
        "Warns when less than `warn_checkpoints` checkpoints (or `warn_mb`) are free; pages a "
        "person when the watcher's own small write was refused. Halts when the trainer "
        "reports a refused write, and when less than `halt_checkpoints` are free before the "
        "next checkpoint."
    )
    State = Room
    lines = frozenset({Msg.ERROR})
    ticks = True
    observes = frozenset({Kind.DISK, Kind.CHECKPOINTS})

    def observe_line(self, own: Room, beat: Beat, view: View) -> Seen[Room]:
        """Observe an error line: did the file system refuse a write?"""
        text, seen = (beat.line.text or "").strip(), view.disk()
        if not _REFUSED.search(text):
            return own, []
        left, least, room = None, None, ""
        if seen is not None and re.search(_FULL, text):
            left, least, unit, where = self._scarcest(own, seen)
            room = f"; {left:.0f} {unit} were free {where}"
        if seen is not None and re.search(_READ_ONLY, text) and (seen.read_only or seen.refused):
            left, least, room = 0.0, FULL_MB, "; nobody may write there, nor may the watcher"
        text = f"the file system refused a write at step {beat.line.step}: {text[:200]}{room}"
        return own, [
            self.finding(beat, view, Severity.HALT, "refused", text, value=left, threshold=least)
        ]

    def observe_tick(self, own: Room, tick: Tick, view: View) -> Seen[Room]:
        """Observe the room that is left, and how large a checkpoint is."""
        kept = checkpoints_of(tick.observations.get(Kind.CHECKPOINTS)) or ()
        sizes = [row.bytes for row in kept if row.verified and row.bytes]
        if sizes:
            own = replace(own, checkpoint_mb=sizes[-1] / MB)
        seen, last = disk_of(tick.observations.get(Kind.DISK)), view.run.order.last_step
        writes = any(not row.done and row.completed < last for row in view.streams.values())
        if seen is None or not writes:
            return own, []
        return self._judged(own, seen, tick, view)

    def _scarcest(self, own: Room, seen: DiskSeen) -> tuple[float, float, str, str]:
        """Return how much is left of what is scarcest, how much is needed, its unit, and where."""
        least_mb = max(FULL_MB, self.settings.halt_checkpoints * (own.checkpoint_mb or 0.0))
        here, elsewhere_mb = "where the run writes", seen.checkpoints_mb
        here_mb = least_mb if elsewhere_mb is None else FULL_MB
        rows = [(seen.free_mb, here_mb, "MB", here)]
        if elsewhere_mb is not None:
            rows.append((elsewhere_mb, least_mb, "MB", "where its checkpoints lie"))
        if seen.free_files is not None:
            rows.append((seen.free_files, FULL_FILES, "inodes", here))
        return min(rows, key=lambda row: row[0] / row[1])

    def _judged(self, own: Room, seen: DiskSeen, tick: Tick, view: View) -> Seen[Room]:
        """Compare the room with what checkpoints need."""
        settings, size_mb = self.settings, own.checkpoint_mb or 0.0
        room_mb = seen.free_mb if seen.checkpoints_mb is None else seen.checkpoints_mb
        warn_mb = max(settings.warn_mb, settings.warn_checkpoints * size_mb)
        halt_mb, findings = settings.halt_checkpoints * size_mb, list[Finding]()
        if room_mb < warn_mb or seen.free_mb < settings.warn_mb or seen.refused:
            findings.append(self._found(own, seen, tick, view, Severity.WARN, warn_mb))
        if room_mb >= halt_mb:
            return replace(own, short_since=None), findings
        pausing = (Section.CHECKPOINT, Section.EVAL)  # takes room, and may give it back
        if any(stream.section in pausing for stream in view.active()):
            return own, findings
        since = tick.mono if own.short_since is None else own.short_since
        if tick.mono - since >= _patience_s(view, tick):
            findings.append(self._found(own, seen, tick, view, Severity.HALT, halt_mb))
        return replace(own, short_since=since), findings

    def _found(
        self, own: Room, seen: DiskSeen, tick: Tick, view: View, severity: Severity, limit_mb: float
    ) -> Finding:
        halts, free_mb = severity is Severity.HALT, seen.free_mb
        where = f" of {seen.total_mb:.0f} are free where the run writes"
        if seen.checkpoints_mb is not None and seen.checkpoints_mb < limit_mb:
            free_mb, where = seen.checkpoints_mb, " are free where its checkpoints lie"
        elif seen.checkpoints_mb is not None:
            limit_mb = self.settings.warn_mb
        size = "" if own.checkpoint_mb is None else f"; a checkpoint takes {own.checkpoint_mb:.0f}"
        text = f"{free_mb:.0f} MB{where} (limit {limit_mb:.0f} MB{size})"
        page = seen.refused and not halts
        if seen.refused:
            text = f"{text}; a small write was refused, so what the run reports may be lost"
        return self.finding(
            tick, view, severity, "refused_write" if page else "room", text,
            setting="halt_checkpoints" if halts else "warn_mb", value=free_mb, threshold=limit_mb,
            act=Act.PAGE if page else None,
        )  # fmt: skip

    def near(self, own: Room, view: View, mono: float) -> Near:
        """Return how much is left of what is scarcest."""
        seen = view.disk()
        if seen is None:
            return Near(blind="the watcher has not read the file system")
        left, least, unit, _ = self._scarcest(own, seen)
        return Near(value=left, limit=least, unit=unit, below=True)


def _patience_s(view: View, tick: Tick) -> float:
    """Return for how long room has to be short; infinite while no checkpoint is about to be due."""
    cadence, step_s = view.run.order.checkpoint, view.median_step_s()
    if step_s is None or (cadence.every_steps is None and cadence.every_s is None):
        return PATIENCE_S
    ended = max((stream.completed for stream in view.active()), default=0)
    steps = view.run.order.last_step - ended
    if cadence.every_steps is not None:
        steps = min(steps, cadence.every_steps - ended % cadence.every_steps)
    next_s, saved = steps * step_s, view.observed.get(Kind.CHECKPOINTS)
    if cadence.every_s is not None and saved is not None:
        next_s = min(next_s, cadence.every_s - (tick.mono - saved.mono))
    return SETTLE_S if next_s <= max(NEXT_S, NEXT_STEPS * step_s) else math.inf
