"""D19: the run's file system is full, or nearly so.

Two sources: what the watcher reads of the file system, compared with the size of the last verified
checkpoint, and `error` lines, in which the trainer reports that a write was refused. No rank is
named. If checkpoints lie on another file system, its room counts for them.

The cause is the host's (`disk_full`) when the finding's value is below its threshold, or the file
system is read-only for the watcher too. Any other refusal is a quota of the run.

Room that is short while a rank saves or evaluates does not count. Too little room halts shortly
before the next checkpoint is due; without an ordered cadence, after `PATIENCE_S`.
"""

import math
import re
from dataclasses import dataclass, replace

from gonogo.contract.finding import Act, Finding, Severity
from gonogo.contract.heartbeat import Heartbeat, Msg, Section
from gonogo.contract.near import Near
from gonogo.contract.observation import DiskSeen, Kind, checkpoints_in, disk_in
from gonogo.contract.outcome import Detector as Name
from gonogo.contract.tick import Tick
from gonogo.watch.detector import Detector, Seen
from gonogo.watch.view import Beat, View, found

SETTLE_S = 5.0
NEXT_S, NEXT_STEPS = 60.0, 2
"""A checkpoint that is due within so long, or so many steps, is the next write."""
PATIENCE_S = 60.0
"""Room has to be short for so long when nobody knows when the next checkpoint is due."""
PAGED_S = 90.0
"""A write counts as refused for a minute after it was; so long, and others were, too."""
CLEAR_RATIO = 1.25
"""A warning is over when so many times its limit are free again: not at every checkpoint."""
MB = 2**20
FULL_MB = 64.0
"""With less than this a disk is full for everybody, whatever a checkpoint takes."""
FULL_FILES = 16
"""Nor does it take a checkpoint with fewer inodes."""
_FULL = re.compile(
    r"\[?Errno 28\b|\bENOSPC\b|(?i:no space left on device)|PytorchStreamWriter failed writing"
)
_READ_ONLY = re.compile(r"\[?Errno 30\b|\bEROFS\b|(?i:read-only file system)")
_REFUSED = re.compile(
    r"\[?Errno (?:28|30|122)\b|\b(?:ENOSPC|EROFS|EDQUOT)\b|(?i:no space left on device"
    r"|read-only file system|disk quota exceeded)|PytorchStreamWriter failed writing"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """What is known of the disk."""

    checkpoint_mb: float | None = None
    """Size of the last verified checkpoint."""
    short_since: float | None = None
    """Watcher's clock of the first look that found less than one checkpoint's room."""
    warned: bool = False
    halted: bool = False
    refused: bool = False
    """Whether a write of the trainer was refused."""
    refused_since: float | None = None
    """Watcher's clock since which the watcher's small writes are refused."""
    paged: bool = False


class Disk(Detector[Room]):
    """D19 (module docstring)."""

    name = Name.DISK
    sentence = (
        "Warns when less than `warn_checkpoints` checkpoints (or `warn_mb`) are free, or when the"
        " watcher's own small write was refused. Halts when the trainer reports a refused write,"
        " and when less than `halt_checkpoints` are free before the next checkpoint is due."
    )
    State = Room
    lines = frozenset({Msg.ERROR})
    ticks = True
    observes = frozenset({Kind.DISK, Kind.CHECKPOINTS})

    def observe_line(self, own: Room, beat: Beat, view: View) -> Seen[Room]:
        """Observe an error line: did the file system refuse a write?"""
        if own.refused or not is_refusal(beat.line):
            return own, []
        text = (beat.line.text or "").strip()
        left, least, what = self._left(own, view) if _FULL.search(text) else (None, None, "")
        room = "" if left is None else f"; {left:.0f} {what}"
        if _READ_ONLY.search(text) and _is_read_only(view):
            left, least = 0.0, FULL_MB
            room = "; nobody may write there, nor may the watcher"
        finding = found(
            view,
            self.name,
            Severity.HALT,
            episode="refused",
            at=beat.tick.ts,
            step=beat.line.step,
            value=left,
            threshold=least,
            text=f"the file system refused a write at step {beat.line.step}: {text[:200]}{room}",
        )
        return replace(own, refused=True), [finding]

    def observe_tick(self, own: Room, tick: Tick, view: View) -> Seen[Room]:
        """Observe the room that is left, and how large a checkpoint is."""
        sizes = [row.bytes for row in checkpoints_in(tick) or () if row.verified and row.bytes]
        if sizes:
            own = replace(own, checkpoint_mb=sizes[-1] / MB)
        seen = disk_in(tick)
        if seen is None or not _has_to_write(view):
            return own, []
        own, pages = self._refused(own, seen, tick, view)
        own, findings = self._judged(own, seen, tick, view)
        return own, [*findings, *pages]

    def _refused(self, own: Room, seen: DiskSeen, tick: Tick, view: View) -> Seen[Room]:
        """Tell a person of a disk that has taken no small write for `PAGED_S`."""
        if not seen.refused:
            return replace(own, refused_since=None, paged=False), []
        since = tick.mono if own.refused_since is None else own.refused_since
        own, lasted_s = replace(own, refused_since=since), tick.mono - since
        if own.paged or lasted_s < PAGED_S:
            return own, []
        why = "the file system is read-only" if seen.read_only else f"{seen.free_mb:.0f} MB free"
        finding = found(
            view,
            self.name,
            Severity.WARN,
            episode=f"refused_tick{tick.n}",
            at=tick.ts,
            value=lasted_s,
            threshold=PAGED_S,
            act=Act.PAGE,
            text=f"the run's disk takes no write for {lasted_s:.0f} s ({why}): what the run says"
            " and saves meanwhile may be lost",
        )
        return replace(own, paged=True), [finding]

    def _left(self, own: Room, view: View) -> tuple[float | None, float | None, str]:
        """Return how much is left, how much is needed, and of what, where: of the scarce one."""
        seen = view.disk()
        if seen is None:
            return None, None, ""
        if seen.free_files is not None and seen.free_files < FULL_FILES:
            return seen.free_files, FULL_FILES, "inodes were free where the run writes"
        least_mb = max(FULL_MB, self.settings.halt_checkpoints * (own.checkpoint_mb or 0.0))
        if seen.checkpoints_mb is None:
            return seen.free_mb, least_mb, "MB were free where the run writes"
        if seen.free_mb < FULL_MB and seen.checkpoints_mb >= least_mb:
            return seen.free_mb, FULL_MB, "MB were free where the run writes"
        return seen.checkpoints_mb, least_mb, "MB were free where its checkpoints lie"

    def _judged(self, own: Room, seen: DiskSeen, tick: Tick, view: View) -> Seen[Room]:
        settings, findings = self.settings, []
        size_mb = own.checkpoint_mb
        warn_mb = max(settings.warn_mb, settings.warn_checkpoints * (size_mb or 0.0))
        room_mb = _for_checkpoints(seen)
        if room_mb >= warn_mb and seen.free_mb >= settings.warn_mb and not seen.refused:
            clear = room_mb >= CLEAR_RATIO * warn_mb
            return replace(own, warned=own.warned and not clear, short_since=None), []
        if not own.warned:
            own = replace(own, warned=True)
            findings.append(self._finding(own, seen, tick, view, Severity.WARN, warn_mb))
        least_mb = settings.halt_checkpoints * size_mb if size_mb is not None else None
        if least_mb is None or room_mb >= least_mb:
            return replace(own, short_since=None), findings
        if seen.saving or _is_saving(view):
            return own, findings
        since = tick.mono if own.short_since is None else own.short_since
        own = replace(own, short_since=since)
        if tick.mono - since >= _patience_s(view, tick) and not own.halted:
            own = replace(own, halted=True)
            findings.append(self._finding(own, seen, tick, view, Severity.HALT, least_mb))
        return own, findings

    def _finding(
        self,
        own: Room,
        seen: DiskSeen,
        tick: Tick,
        view: View,
        severity: Severity,
        threshold_mb: float,
    ) -> Finding:
        halts, room_mb = severity is Severity.HALT, _for_checkpoints(seen)
        free_mb, where = seen.free_mb, f" of {seen.total_mb:.0f} are free where the run writes"
        if seen.checkpoints_mb is not None and room_mb < threshold_mb:
            free_mb, where = room_mb, " are free where its checkpoints lie"
        elif seen.checkpoints_mb is not None:
            threshold_mb = self.settings.warn_mb
        setting = "halt_checkpoints" if halts else "warn_mb"
        size = "" if own.checkpoint_mb is None else f"; a checkpoint takes {own.checkpoint_mb:.0f}"
        return found(
            view,
            self.name,
            severity,
            episode=f"tick{tick.n}",
            at=tick.ts,
            value=free_mb,
            threshold=threshold_mb,
            source=self.run.source(f"disk.{setting}"),
            text=f"{free_mb:.0f} MB{where}"
            f" (limit {threshold_mb:.0f} MB{size})"
            + ("; a small write was refused" if seen.refused else ""),
        )

    def near(self, own: Room, view: View, mono: float) -> Near:
        """Return how much room is left for checkpoints."""
        seen = view.disk()
        if seen is None:
            return Near(blind="the watcher has not read the file system")
        least_mb = max(FULL_MB, self.settings.halt_checkpoints * (own.checkpoint_mb or 0.0))
        return Near(value=_for_checkpoints(seen), limit=least_mb, unit="MB", below=True)


def is_refusal(line: Heartbeat) -> bool:
    """Whether an error line says that the file system is full, read-only or over its quota."""
    return line.msg == Msg.ERROR and _REFUSED.search(line.text or "") is not None


def _is_read_only(view: View) -> bool:
    """Whether a disk is read-only, or refused the watcher's own write within the last minute."""
    seen = view.disk()
    return seen is not None and (seen.read_only or seen.refused)


def _for_checkpoints(seen: DiskSeen) -> float:
    """Return the room in megabytes where checkpoints are written."""
    return seen.free_mb if seen.checkpoints_mb is None else seen.checkpoints_mb


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


def _has_to_write(view: View) -> bool:
    """Whether a rank has steps before it."""
    last = view.run.order.last_step
    return any(not s.done and s.completed < last for s in view.streams.values())


def _is_saving(view: View) -> bool:
    """Return whether a rank saves or evaluates, which takes room and may give it back."""
    return any(s.section in (Section.CHECKPOINT, Section.EVAL) for s in view.active())
