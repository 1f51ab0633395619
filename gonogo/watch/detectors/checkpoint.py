"""Checkpoints (D20): is a checkpoint overdue that the watcher could verify?

The claims of the trainer do not count: the watcher reads manifest, sizes and digests itself. A
checkpoint is due by the cadence of the order, in steps or in seconds, whichever comes first. Place
`checkpoint_due` of the table of patience says how long it may then be missing. A checkpoint that
does not hold is reported at once, and ends nothing by itself.

Not covered: a run that is restarted in place again and again, each time for longer than the limit;
a watcher that never finishes reading a checkpoint.
"""

from dataclasses import dataclass

from gonogo.contract.finding import Finding, Near, Severity
from gonogo.contract.heartbeat import Section
from gonogo.contract.observation import CheckpointSeen, Kind, checkpoints_of
from gonogo.contract.outcome import Detector as Name
from gonogo.contract.records import Tick
from gonogo.contract.watch import Place
from gonogo.watch.detector import Detector, Seen, replace
from gonogo.watch.view import Run, View


@dataclass(frozen=True, kw_only=True)
class Saved:
    """When the last checkpoint was verified, and when the next one was due."""

    since_mono: float | None = None
    """Watcher's clock of the first step's end, or of the last checkpoint that was verified."""
    step: int = 0
    """Its step."""
    counted: int = 0
    """The step after which the steps of the cadence are counted."""
    due_mono: float | None = None
    """Watcher's clock when the next checkpoint was due by its count of steps."""
    evaluated_s: float = 0.0
    """What the ranks had evaluated by `since_mono`."""
    reading: str = ""
    """The checkpoint that the watcher reads."""


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
        """Observe which checkpoints hold, and how long the next one has been due."""
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
        """Return for how long a checkpoint has been due, and after how long it was; in seconds.

        The first is negative while none is due. None: nobody knows when the next one is due.
        """
        since_mono, every_s = own.since_mono, self.run.order.checkpoint.every_s
        dues = [] if own.due_mono is None else [own.due_mono]
        dues += [] if since_mono is None or every_s is None else [since_mono + every_s]
        if since_mono is None or not dues:
            return None
        late_s = mono - min(dues) - (_evaluated_s(view) - own.evaluated_s)
        return late_s, min(dues) - since_mono

    def measure(self, own: Saved, view: View, mono: float) -> Near:
        """Return for how long a checkpoint has been due."""
        late = self._late(own, mono, view)
        if late is None:
            return Near()
        limit = self.run.patience[Place.CHECKPOINT_DUE].limit(late[1])
        return Near.in_time(late[0], None if limit is None else limit.seconds)

    def armed(self, own: Saved, view: View) -> bool:
        """Whether the run has a cadence and a watcher that looks at checkpoints."""
        return Kind.CHECKPOINTS in view.observed and self._has_cadence() and not _is_over(view)

    def _has_cadence(self) -> bool:
        cadence = self.run.order.checkpoint
        return cadence.every_steps is not None or cadence.every_s is not None

    def missing(self, own: Saved, view: View) -> str | None:
        """Say when nobody looked at the checkpoints, or none was verified that was due by steps."""
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
