"""Checkpoints (D20): is a checkpoint overdue that the watcher could verify?

The claims of the trainer do not count: the watcher reads manifest, sizes and digests itself. A
checkpoint is due by the cadence of the order, in steps or in seconds, whichever comes first. Place
`checkpoint_due` of the table of patience says how long it may then be missing. A checkpoint that
does not hold is reported at once, and ends nothing by itself.

Unknown without a watcher that looks at checkpoints, and for a run without a cadence.

Not covered: a run that is restarted in place again and again, each time for longer than the limit.
"""

from dataclasses import dataclass

from gonogo.contract.finding import Finding, Severity
from gonogo.contract.heartbeat import Section
from gonogo.contract.observation import CheckpointSeen, checkpoints_in
from gonogo.contract.outcome import Detector as Name
from gonogo.contract.patience import Place
from gonogo.contract.tick import Tick
from gonogo.watch.detector import Detector, Seen
from gonogo.watch.state import replace
from gonogo.watch.view import Run, View

READS_BYTES_PER_S = 50e6
"""A watcher on a busy disk reads a large checkpoint at least so fast."""


@dataclass(frozen=True, kw_only=True)
class Saved:
    """When the last checkpoint was verified, and when the next one was due."""

    looks: bool = False
    """Whether the watcher looks at checkpoints."""
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
    why: str = ""
    """What is wrong with the last checkpoint that does not hold."""
    reads_bytes: int = 0
    """Size of the checkpoint that the watcher reads."""
    reading: str = ""


class CheckpointOverdue(Detector[Saved]):
    """D20: is a checkpoint overdue?"""

    name = Name.CHECKPOINT_OVERDUE
    sentence = (
        "Warns, and later halts, when a checkpoint is due by the cadence and the watcher has"
        " verified none: after ten and twenty minutes, or after one and two times the cadence if"
        " that is longer. Evaluations, restarts in place and the watcher's own reading do not"
        " count. Warns of a checkpoint that does not hold. A checkpoint that was deleted before the"
        " watcher read it starts the cadence again; so does a restart below the last checkpoint."
    )
    State = Saved
    ticks = True
    probes = True

    def observe_tick(self, own: Saved, tick: Tick, view: View) -> Seen[Saved]:
        """Observe which checkpoints hold, and how long the next one has been due."""
        looked = checkpoints_in(tick) if tick.observations else None
        if looked is None and not own.looks:
            return own, []
        findings: list[Finding] = []
        own = self._restarted(own, tick, view)
        for seen in looked or ():
            own, more = self._looked(own, seen, tick, view)
            findings += more
        own = self._clocked(replace(own, looks=True), tick, view)
        if view.is_late(tick) or _is_over(view) or _is_busy(view):
            return own, findings
        return own, findings + self._judged(own, tick, view)

    def _looked(self, own: Saved, seen: CheckpointSeen, tick: Tick, view: View) -> Seen[Saved]:
        """Return what one look at a checkpoint changes."""
        if seen.reads_bytes:
            return replace(own, reading=seen.path, reads_bytes=seen.reads_bytes), []
        if seen.path == own.reading:
            own = replace(own, reading="", reads_bytes=0)
        if seen.verified:
            if seen.step is None or seen.step <= max(own.step, _first_step(self.run)):
                return own, []
            own = replace(own, step=seen.step)
            return self._anew(own, tick, view, seen.step), []
        if seen.gone:
            if own.since_mono is not None:
                own = self._anew(own, tick, view, max(own.counted, _completed(view)))
            if not seen.text:
                return own, []
        what = "could not be read" if seen.gone else "claims to be a checkpoint and does not hold"
        text, episode = f"{seen.path} {what}: {seen.text}", f"refused/{seen.path}"
        finding = self.finding(tick, view, Severity.WARN, episode, text, step=seen.step)
        return own if seen.gone else replace(own, why=text), [finding]

    def _anew(self, own: Saved, tick: Tick, view: View, counted: int) -> Saved:
        """Return the state with time and steps of the cadence counted from here."""
        return replace(
            own,
            since_mono=tick.mono,
            evaluated_s=_evaluated_s(view),
            counted=counted,
            due_mono=None,
        )

    def _restarted(self, own: Saved, tick: Tick, view: View) -> Saved:
        """Return the state after all ranks restarted in place below the last checkpoint."""
        streams = view.active()
        if own.since_mono is None or not streams:
            return own
        ended = [row.completed for row in streams if row.completed_steps]
        if len(ended) < len(streams) or max(ended) >= own.counted:
            return own
        return self._anew(replace(own, step=min(ended)), tick, view, min(ended))

    def _clocked(self, own: Saved, tick: Tick, view: View) -> Saved:
        """Return the state with its clock started, and `due` noted."""
        if own.since_mono is None:
            if not any(stream.completed_steps for stream in view.streams.values()):
                return own
            first = max(own.step, _first_step(self.run))
            own = self._anew(replace(own, step=first), tick, view, first)
        every_steps = self.run.order.checkpoint.every_steps
        if own.due_mono is None and every_steps is not None:
            due = _completed(view) >= own.counted + every_steps
            return replace(own, due_mono=tick.mono) if due else own
        return own

    def _due_mono(self, own: Saved) -> float | None:
        """Return when the next checkpoint was due, by steps or by seconds; None: not yet known."""
        every_s = self.run.order.checkpoint.every_s
        by_time = None if every_s is None or own.since_mono is None else own.since_mono + every_s
        return min((mono for mono in (own.due_mono, by_time) if mono is not None), default=None)

    def _judged(self, own: Saved, tick: Tick, view: View) -> list[Finding]:
        """Return the finding of a checkpoint that has been due for too long."""
        due_mono = self._due_mono(own)
        if due_mono is None or own.since_mono is None:
            return []
        interval_s = due_mono - own.since_mono
        started = [row.first_mono + row.first_s for row in view.streams.values()]
        due_mono = max(due_mono, min(max(started), tick.mono))
        excused_s = _evaluated_s(view) - own.evaluated_s + own.reads_bytes / READS_BYTES_PER_S
        late_s = tick.mono - due_mono - max(0.0, excused_s)
        row = self.run.patience[Place.CHECKPOINT_DUE]
        limit, suspect_s = row.limit(interval_s), row.suspect(interval_s)
        if limit is not None and late_s > limit[0]:
            severity, limit_s = Severity.HALT, limit[0]
        elif suspect_s is not None and late_s > suspect_s:
            severity, limit_s = Severity.WARN, suspect_s
        else:
            return []
        last = f"since the one of step {own.step}" if own.step else "at all"
        finding = self.finding(
            tick,
            view,
            severity,
            f"step{own.step}",
            f"a checkpoint has been due for {late_s:.0f} s (limit {limit_s:.0f} s), and none was"
            f" verified {last}" + (f"; {own.why}" if own.why else ""),
            step=_completed(view),
            value=late_s,
            threshold=limit_s,
            source=row.source,
        )
        return [finding]

    def armed(self, own: Saved, view: View) -> bool:
        """Whether the run has a cadence and a watcher that looks at checkpoints."""
        return own.looks and has_cadence(self.run) and not _is_over(view)

    def missing(self, own: Saved, view: View) -> str | None:
        """Say when nobody looked at the checkpoints, or none was verified that was due by steps."""
        if not has_cadence(self.run):
            return None
        if not own.looks:
            return "no watcher looked at the checkpoints"
        every, ended = self.run.order.checkpoint.every_steps, _completed(view)
        after = max(own.step, _first_step(self.run))
        if every is None or ended - after < every:
            return None
        return (
            f"no checkpoint after step {after} was seen to hold, though {ended} steps ended and one"
            f" was due every {every}"
        )


def has_cadence(run: Run) -> bool:
    """Whether the order asks for checkpoints at all."""
    return run.order.checkpoint.every_steps is not None or run.order.checkpoint.every_s is not None


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
