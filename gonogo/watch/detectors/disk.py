"""What a run can save: D19 room on the file system, D20 checkpoints that are overdue.

The cause is the host's (`disk_full`) when the finding's value is below its threshold, or the file
system is read-only for the watcher too. Any other refusal is a quota of the run. Room that is short
while a rank saves or evaluates does not count.

The watcher verifies checkpoints itself. One that does not hold is reported at once, and ends
nothing by itself.

Not covered: a run that is restarted in place again and again, each time for longer than the limit;
a watcher that never finishes reading a checkpoint.
"""

import math
import re
from dataclasses import dataclass

from gonogo.contract.finding import Act, Finding, Near, Severity
from gonogo.contract.heartbeat import Msg, Section
from gonogo.contract.observation import CheckpointSeen, DiskSeen, Kind, checkpoints_of, disk_of
from gonogo.contract.outcome import Detector as Name
from gonogo.contract.records import Tick
from gonogo.contract.watch import Place
from gonogo.watch.detector import Detector, Seen, replace
from gonogo.watch.view import Beat, Run, View

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


@dataclass(frozen=True, kw_only=True)
class Room:
    """What is known of the disk."""

    checkpoint_mb: float | None = None
    short_since: float | None = None
    """Watcher's clock of the first look that found less than one checkpoint's room."""


class Disk(Detector[Room]):
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


@dataclass(frozen=True, kw_only=True)
class Saved:
    """When the last checkpoint was verified, and when the next one was due."""

    since_mono: float | None = None
    """Watcher's clock of the first step's end, or of the last checkpoint that was verified."""
    step: int = 0
    counted: int = 0
    """The step after which the steps of the cadence are counted."""
    due_mono: float | None = None
    """Watcher's clock when the next checkpoint was due by its count of steps."""
    evaluated_s: float = 0.0
    """What the ranks had evaluated by `since_mono`."""
    reading: str = ""


class CheckpointOverdue(Detector[Saved]):
    """D20: is a checkpoint overdue?"""

    name = Name.CHECKPOINT_OVERDUE
    sentence = (
        "Warns, and later halts, when a checkpoint is due by the cadence and the watcher has "
        "verified none: after ten and twenty minutes, or after one and two times the cadence "
        "if that is longer. Warns of a checkpoint that does not hold."
    )
    State = Saved
    ticks = True
    after = Kind.CHECKPOINTS
    blind = "no checkpoint is ordered, or the watcher has not looked for one"
    probes = True

    def observe_tick(self, own: Saved, tick: Tick, view: View) -> Seen[Saved]:
        looked = checkpoints_of(tick.observations.get(Kind.CHECKPOINTS))
        findings: list[Finding] = []
        for seen in looked or ():
            own, more = self._looked(own, seen, tick, view)
            findings += more
        own = self._clocked(own, tick, view)
        if own.reading or view.is_late(tick) or _is_over(view) or _is_busy(view):
            return own, findings
        return own, findings + self._judged(own, tick, view)

    def _looked(self, own: Saved, seen: CheckpointSeen, tick: Tick, view: View) -> Seen[Saved]:
        """Return what one look at a checkpoint changes."""
        if seen.reads_bytes:
            return replace(own, reading=seen.path), []
        if seen.path == own.reading:
            own = replace(own, reading="")
        if seen.verified:
            if seen.step is None or seen.step <= max(own.step, _first_step(self.run)):
                return own, []
            return self._anew(replace(own, step=seen.step), tick, view, seen.step), []
        if seen.gone and own.since_mono is not None:
            own = self._anew(own, tick, view, max(own.counted, _completed(view)))
        if seen.gone and not seen.text:
            return own, []
        what = "could not be read" if seen.gone else "claims to be a checkpoint and does not hold"
        text, episode = f"{seen.path} {what}: {seen.text}", f"refused/{seen.path}"
        return own, [self.finding(tick, view, Severity.WARN, episode, text, step=seen.step)]

    def _anew(self, own: Saved, tick: Tick, view: View, counted: int) -> Saved:
        """Return the state with time and steps of the cadence counted from here."""
        evaluated_s = _evaluated_s(view)
        return replace(
            own, since_mono=tick.mono, evaluated_s=evaluated_s, counted=counted, due_mono=None
        )

    def _clocked(self, own: Saved, tick: Tick, view: View) -> Saved:
        """Return the state with its clock started, and `due_mono` noted."""
        if own.since_mono is None:
            if not any(stream.completed_steps for stream in view.streams.values()):
                return own
            first = max(own.step, _first_step(self.run))
            own = self._anew(replace(own, step=first), tick, view, first)
        every_steps = self.run.order.checkpoint.every_steps
        if every_steps is None or _completed(view) < own.counted + every_steps:
            return own if own.due_mono is None else replace(own, due_mono=None)
        return replace(own, due_mono=tick.mono) if own.due_mono is None else own

    def _judged(self, own: Saved, tick: Tick, view: View) -> list[Finding]:
        """Return the finding of a checkpoint that has been due for too long."""
        late = self._late(own, tick.mono, view)
        if late is None:
            return []
        late_s, cadence_s = late
        passed = self.run.patience[Place.CHECKPOINT_DUE].passed(late_s, cadence_s)
        if passed is None:
            return []
        severity, limit = passed
        last = f"since the one of step {own.step}" if own.step else "at all"
        text = f"a checkpoint has been due for {late_s:.0f} s (limit {limit.seconds:.0f} s)"
        finding = self.finding(
            tick,
            view,
            severity,
            f"step{own.step}",
            f"{text}, and none was verified {last}",
            step=_completed(view),
            value=late_s,
            threshold=limit.seconds,
            source=limit.source,
        )
        return [finding]

    def _late(self, own: Saved, mono: float, view: View) -> tuple[float, float] | None:
        """Return for how long a checkpoint has been due (negative: not yet), and its cadence."""
        since_mono, every_s = own.since_mono, self.run.order.checkpoint.every_s
        dues = [] if own.due_mono is None else [own.due_mono]
        dues += [] if since_mono is None or every_s is None else [since_mono + every_s]
        if since_mono is None or not dues:
            return None
        late_s = mono - min(dues) - (_evaluated_s(view) - own.evaluated_s)
        return late_s, min(dues) - since_mono

    def measure(self, own: Saved, view: View, mono: float) -> Near:
        late = self._late(own, mono, view)
        if late is None:
            return Near()
        limit = self.run.patience[Place.CHECKPOINT_DUE].limit(late[1])
        return Near.in_time(late[0], None if limit is None else limit.seconds)

    def armed(self, own: Saved, view: View) -> bool:
        return Kind.CHECKPOINTS in view.observed and self._has_cadence() and not _is_over(view)

    def _has_cadence(self) -> bool:
        cadence = self.run.order.checkpoint
        return cadence.every_steps is not None or cadence.every_s is not None

    def missing(self, own: Saved, view: View) -> str | None:
        if not self._has_cadence():
            return None
        if Kind.CHECKPOINTS not in view.observed:
            return "no watcher looked at the checkpoints"
        every, ended = self.run.order.checkpoint.every_steps, _completed(view)
        after = max(own.step, _first_step(self.run))
        if every is None or ended - after < every:
            return None
        return (
            f"no checkpoint after step {after} was seen to hold, though {ended} steps ended and one"
            f" was due every {every}"
        )


def _first_step(run: Run) -> int:
    """Return the step that the run resumes after."""
    return 0 if run.order.resume_from is None else run.order.resume_from.step


def _completed(view: View) -> int:
    """Return the highest step that every rank has ended."""
    return min((row.completed for row in view.streams.values()), default=0)


def _is_over(view: View) -> bool:
    """Whether nothing is left to save: every rank has ended its last step."""
    last, ranks = view.run.order.last_step, view.streams.values()
    return bool(ranks) and all(row.done or row.completed >= last for row in ranks)


def _is_busy(view: View) -> bool:
    """Whether a rank saves, evaluates or starts: D5 and D2 limit that."""
    streams = view.active()
    pausing = any(row.section in (Section.CHECKPOINT, Section.EVAL) for row in streams)
    return pausing or any(not row.completed_steps for row in streams)


def _evaluated_s(view: View) -> float:
    """Return the seconds of all evaluations, of the rank that evaluated longest."""
    return max((row.evaluated_s for row in view.streams.values()), default=0.0)
