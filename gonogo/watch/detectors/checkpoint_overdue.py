"""D20: is the last checkpoint that the watcher verified long past?

What the trainer claims does not count: the watcher reads the manifest, sizes and digests itself. A
checkpoint is due by the order's cadence, in steps or in seconds, whichever comes first, and time
begins with the end of the first step (how long that may take is D2's), or with the last one
verified. It is overdue at `overdue_x` times that, and `grace_s`. Where a cadence counts steps, the
time is the one that those steps really took, so that evaluations and pauses between them are no
delay, and no less than so many usually take: the watcher may have read the last one for longer than
the next was due. Where it counts seconds, one can be saved at the end of a step alone: the time is
that of whole steps, and no less than the longest of the last ones took. What it takes to save one
(the median) is part of either. A checkpoint that does not hold is told at once; it ends nothing by
itself, for an earlier one may. One that the trainer deleted before the watcher had read it may have
held: nobody knows, so the time begins anew, and so does the count of steps.

Ranks that all start again in place below the last one (the next fold after `done`, a launcher's
restart of a program that does not resume) are to save what they make from there: step, steps and
time begin anew with their first step, once all have ended one. So they do where all begin another
training after one that was done: that owes no checkpoint any more. Those that go on from the last
one change nothing: a run that dies again and again before it saves would never be overdue. One rank
that starts again alone says nothing of what the others save. A checkpoint beyond all that ranks
have told since may be of before: it counts for the time, and for no step.

UNKNOWN without a watcher that looks at checkpoints (its ticks say so), and for a run whose cadence
is never. Evaluations since the last one add to each limit, once: nothing is saved meanwhile. Nor is
anything while ranks that started again in place boot and take their first step, which may compile:
that adds to each limit, too, but no more than D2 lets it take. So does what the watcher takes to
read one that is whole by its sizes, at `READS_BYTES_PER_S` and no slower: terabytes take it hours,
in which the trainer has done its part.
"""

import math
import statistics
from dataclasses import dataclass, replace

from gonogo.contract.finding import Finding, Severity
from gonogo.contract.heartbeat import Section
from gonogo.contract.observation import CheckpointSeen, checkpoints_in
from gonogo.contract.outcome import Detector as Name
from gonogo.contract.tick import Tick
from gonogo.watch.detector import Detector, Seen
from gonogo.watch.detectors.no_first_heartbeat import boot_limit, first_step_limit
from gonogo.watch.stream import RankStream
from gonogo.watch.view import Run, View, found

READS_BYTES_PER_S = 50e6
"""A watcher that reads no faster than so from a busy disk still reads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """When the last checkpoint was verified, and when the next one was due."""

    looks: bool = False
    """Whether the watcher says that it looks at checkpoints."""
    since_mono: float | None = None
    """Watcher's clock of the first step's end, or of the last checkpoint that verified."""
    step: int = 0
    """Its step."""
    evaluated_s: float = 0.0
    """What ranks had evaluated by `since_mono`."""
    starting_mono: float | None = None
    """Watcher's clock since when ranks start again in place, or `since_mono` where that is later;
    None where none does."""
    started_s: float = 0.0
    """How long starts in place have taken since `since_mono`, those that are over."""
    counted: int = 0
    """The step after which those of a cadence are counted: its own, or the one that ranks had ended
    when a checkpoint was told as gone."""
    due_mono: float | None = None
    """Watcher's clock when the next one was due by its count of steps."""
    refused: tuple[str, ...] = ()
    """Checkpoints that claimed to be whole and were not."""
    why: str = ""
    """What was wrong with the last of them."""
    warned: bool = False
    halted: bool = False
    again: int = 0
    """How often all ranks have begun again below it."""
    begun: bool = False
    """Whether `step` is where they began again, and no checkpoint's."""
    reading: str = ""
    """The checkpoint that the watcher reads."""
    reads_bytes: int = 0
    boots: tuple[str | None, ...] = ()
    """The boots of the last restart in place of which it is known where it goes on."""


class CheckpointOverdue(Detector[Saved]):
    """D20: is the last checkpoint that the watcher verified long past?"""

    name = Name.CHECKPOINT_OVERDUE
    sentence = (
        "Warns when no checkpoint has been verified by the watcher at 1.5 times the expected time"
        " and ten minutes, halts at twice that (a cadence in seconds is one of whole steps, one in"
        " steps what these took and no less than they usually take; what it usually takes to save"
        " one is expected, too); warns of a checkpoint that does not"
        " hold. One that was deleted before it was read may have held: the time begins anew, as it"
        " does where all ranks start again in place below the last one, or begin another training."
        " What ranks evaluate, and their starts in place up to the end of the first step, is no"
        " delay; nor is what it takes to read a large one."
    )
    State = Saved
    """2: where none of those held that were due by their steps, that is told as not observed;
    a start in place lengthens each limit. 3: one that is due by the clock is due at the end of a
    step, and may take as long as they do; one that is due by its steps has what these usually take,
    however long the one before was read; one that is being read has the time for that."""
    ticks = True
    probes = True

    def observe_tick(self, own: Saved, tick: Tick, view: View) -> Seen[Saved]:
        """Observe which checkpoints hold, and how long ago the last one was."""
        findings: list[Finding] = []
        looked = checkpoints_in(tick)
        if looked is None and not own.looks:
            return own, findings
        own = _after_restart(own, tick, view)
        for seen in looked or ():
            own, told = self._looked(own, seen, tick, view)
            findings += told
        if looked is not None:
            own = replace(own, looks=True)
        own = self._clocked(own, tick, view)
        own = self._started(own, tick, view)
        if view.is_late(tick) or _is_over(view) or _is_saving(view):
            return own, findings
        own, told = self._judged(own, tick, view)
        return own, findings + told

    def _looked(
        self, own: Saved, seen: CheckpointSeen, tick: Tick, view: View
    ) -> tuple[Saved, list[Finding]]:
        """Return what one look at a checkpoint changes."""
        if seen.reads_bytes:
            return replace(own, reading=seen.path, reads_bytes=seen.reads_bytes), []
        if seen.path == own.reading:
            own = replace(own, reading="", reads_bytes=0)
        if seen.verified:
            if seen.step is None or seen.step <= self._floor(own):
                return own, []  # one that was there before, looked at again by another watcher
            if own.again and seen.step > max((s.step for s in view.streams.values()), default=0):
                return replace(self._anew(own, tick, view), halted=False), []
            return replace(
                own,
                since_mono=tick.mono,
                evaluated_s=_evaluated_s(view, tick.mono),
                starting_mono=None,
                started_s=0.0,
                step=seen.step,
                counted=seen.step,
                due_mono=None,
                warned=False,
                halted=False,
                begun=False,
            ), []
        if seen.gone:
            own = self._anew(own, tick, view)
            if not seen.text:
                return own, []
            what = "could not be looked at, so whether it holds nobody knows"
        else:
            what = "claims to be a checkpoint and does not hold"
        if seen.path in own.refused:
            return own, []
        finding = found(
            view,
            self.name,
            Severity.WARN,
            episode=_episode(own, f"refused/{seen.path}"),
            at=tick.ts,
            step=seen.step,
            text=f"{seen.path} {what}: {seen.text}",
        )
        own = replace(own, refused=(*own.refused, seen.path))
        return own if seen.gone else replace(own, why=finding.text), [finding]

    def _floor(self, own: Saved) -> int:
        """Return the step up to which a checkpoint is none that was saved since."""
        return own.step if own.again else max(own.step, _first_step(self.run))

    def _anew(self, own: Saved, tick: Tick, view: View) -> Saved:
        """Return the state with time and steps counted from here; before a first step none runs."""
        if own.since_mono is None:
            return own
        counted = max(own.counted, _completed(view))
        return replace(
            own,
            since_mono=tick.mono,
            evaluated_s=_evaluated_s(view, tick.mono),
            starting_mono=None,
            started_s=0.0,
            counted=counted,
            due_mono=None,
            warned=False,
        )

    def _clocked(self, own: Saved, tick: Tick, view: View) -> Saved:
        """Return the state with its clocks begun and due noted."""
        if own.since_mono is None:
            ends = [_first_end(s) for s in view.streams.values() if s.completed_steps]
            if not ends:
                return own
            first = max(own.step, _first_step(self.run))
            own = replace(
                own,
                since_mono=min(tick.mono, *ends),
                evaluated_s=_evaluated_s(view, tick.mono),
                step=first,
                counted=first,
            )
        every_steps = self.run.order.checkpoint.every_steps
        if own.due_mono is None and every_steps is not None:
            due = _completed(view) >= own.counted + every_steps
            return replace(own, due_mono=tick.mono) if due else own
        return own

    def _started(self, own: Saved, tick: Tick, view: View) -> Saved:
        """Return the state with the start in place that began, goes on or is over now."""
        if own.since_mono is None:
            return own
        starts = [stream.first_mono for stream in _starting(view)]
        if not starts:
            if own.starting_mono is None:
                return own
            started_s = own.started_s + self._starting_s(own, tick, view)
            return replace(own, starting_mono=None, started_s=started_s)
        if own.starting_mono is not None:
            return own
        return replace(own, starting_mono=max(own.since_mono, min(starts)))

    def _starting_s(self, own: Saved, tick: Tick, view: View) -> float:
        """Return for how long ranks have been starting in place, as far as D2 lets them."""
        if own.since_mono is None or own.starting_mono is None:
            return 0.0
        most_s = boot_limit(view).seconds + first_step_limit(self.run).seconds
        since_mono = max(own.since_mono, own.starting_mono)
        return min(most_s, max(0.0, tick.mono - since_mono))

    def _soonest_s(self, own: Saved) -> float | None:
        """Return the least time after the last one at which the next is expected; None: none is."""
        if own.since_mono is None:
            return None
        by_steps = None if own.due_mono is None else own.due_mono - own.since_mono
        known = [s for s in (by_steps, self.run.order.checkpoint.every_s) if s is not None]
        return min(known, default=None)

    def _expected_s(self, own: Saved, view: View) -> float:
        """Return how long after the last one the next checkpoint is expected, where one is."""
        every_s = self.run.order.checkpoint.every_s
        by_time = math.inf if every_s is None else _at_an_end_s(every_s, view)
        by_steps = math.inf
        if own.since_mono is not None and own.due_mono is not None:
            by_steps = max(own.due_mono - own.since_mono, self._steps_s(view))
        return min(by_steps, by_time) + _saves_s(view)

    def _steps_s(self, view: View) -> float:
        """Return what the steps of a cadence usually take."""
        return (self.run.order.checkpoint.every_steps or 0) * (view.median_step_s() or 0.0)

    def _judged(self, own: Saved, tick: Tick, view: View) -> tuple[Saved, list[Finding]]:
        """Return what there is to say once a checkpoint is due."""
        soonest_s, settings = self._soonest_s(own), self.settings
        if own.since_mono is None or soonest_s is None or own.halted:
            return own, []
        passed_s = tick.mono - own.since_mono
        least_x = min(1.0, settings.halt_x)
        if passed_s <= least_x * (settings.overdue_x * soonest_s + settings.grace_s):
            return own, []  # what adds to that is dear to ask for at each tick
        else_s = max(0.0, _evaluated_s(view, tick.mono) - own.evaluated_s)
        else_s += own.started_s + self._starting_s(own, tick, view)
        else_s += own.reads_bytes / READS_BYTES_PER_S
        least_s = settings.overdue_x * self._expected_s(own, view) + settings.grace_s
        findings: list[Finding] = []
        limit_s = least_s + else_s
        if passed_s > limit_s and not own.warned:
            own = replace(own, warned=True)
            findings.append(self._finding(own, tick, view, Severity.WARN, limit_s))
        halt_s = settings.halt_x * least_s + else_s
        if passed_s > halt_s:
            own = replace(own, halted=True)
            findings.append(self._finding(own, tick, view, Severity.HALT, halt_s))
        return own, findings

    def _finding(
        self, own: Saved, tick: Tick, view: View, severity: Severity, limit_s: float
    ) -> Finding:
        passed_s = tick.mono - (own.since_mono or tick.mono)
        setting = "halt_x" if severity is Severity.HALT else "overdue_x"
        last = f"since that of step {own.step}" if own.step else "at all"
        if own.begun:
            last = "since all ranks began again"
        return found(
            view,
            self.name,
            severity,
            episode=_episode(own, f"step{own.step}"),
            at=tick.ts,
            step=_completed(view),
            value=passed_s,
            threshold=limit_s,
            source=self.run.source(f"checkpoint_overdue.{setting}"),
            text=f"no checkpoint {last} has held for {passed_s:.0f} s (limit {limit_s:.0f} s)"
            + (f"; {own.why}" if own.why else ""),
        )

    def armed(self, own: Saved, view: View) -> bool:
        """Whether the run has a cadence and a watcher that looks at checkpoints."""
        return own.looks and has_cadence(self.run) and not _is_over(view)

    def missing(self, own: Saved, view: View) -> str | None:
        """Say when nobody looked at a run's checkpoints, or none held that was due by its steps.

        Such a run may end within the grace, or have told of checkpoints that were gone.
        """
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


def _after_restart(own: Saved, tick: Tick, view: View) -> Saved:
    """Return the state after a restart in place: begun anew where all ranks begin below it.

    A boot's first lines may say step 0 of a process that goes on from a checkpoint: where it began
    is known once each rank has ended a step. One that died or said `done` is waited for no longer.
    """
    if not any(map(_is_restarted, view.streams.values())):
        return own
    streams = view.active()
    if not streams or not _is_restarted(streams[0]):
        return own
    known = set(own.boots)
    if not all(_is_restarted(s) and s.completed_steps and s.boot not in known for s in streams):
        return own
    own = replace(own, boots=tuple(stream.boot for stream in streams))
    first = min(stream.completed - stream.completed_steps for stream in streams)
    another = all(stream.another for stream in streams)
    if first > own.counted or (first == own.counted and not another):
        return own
    starts = [stream.started_mono for stream in streams if stream.started_mono is not None]
    return replace(
        own,
        since_mono=min(starts, default=tick.mono),
        evaluated_s=_evaluated_s(view, tick.mono),
        started_s=0.0,
        step=min(first, own.step),
        counted=first,
        due_mono=None,
        refused=(),
        why="",
        warned=False,
        halted=False,
        again=own.again + 1,
        begun=another or own.begun or first < own.step,
    )


def _starting(view: View) -> list[RankStream]:
    """Return the ranks that have started again in place and ended no step since.

    Not one without which the others go on: it may be no trainer at all.
    """
    if not any(map(_is_restarted, view.streams.values())):
        return []
    streams = view.active()
    most = max((stream.completed for stream in streams), default=0)
    return [
        stream
        for stream in streams
        if _is_restarted(stream)
        and not stream.completed_steps
        and most <= max(stream.top_step, stream.completed) + 1
    ]


def _is_restarted(stream: RankStream) -> bool:
    """Whether a rank has started again in place: this is not its first boot."""
    return stream.another or stream.top_step > 0 or stream.idle_boots > 0


def _episode(own: Saved, name: str) -> str:
    """Return the name of an episode; what begins again has episodes of its own."""
    return f"again{own.again}/{name}" if own.again else name


def _first_end(stream: RankStream) -> float:
    """Return the watcher's clock when a rank's first step ended."""
    started_mono = stream.advanced_mono if stream.started_mono is None else stream.started_mono
    return started_mono + stream.first_s


def _first_step(run: Run) -> int:
    """Return the step that the run goes on after."""
    return 0 if run.order.resume_from is None else run.order.resume_from.step


def _completed(view: View) -> int:
    """Return the highest step that every rank has ended.

    One that has ended none since it started again counts for none: it may be no trainer at all.
    """
    ranks = view.streams.values()
    ended = (s.completed for s in ranks if s.completed_steps or not _is_restarted(s))
    return min(ended, default=0)


def _at_an_end_s(every_s: float, view: View) -> float:
    """Return after how long a step ends, once `every_s` have passed: nothing is saved within one.

    Before a second step has told how long they take, the first tells that.
    """
    first_s = max((stream.first_s for stream in view.streams.values()), default=0.0)
    step_s = view.median_step_s() or first_s
    longest_s = max((max(s.pace.times_s, default=step_s) for s in view.streams.values()), default=0)
    return max(longest_s, every_s + (-every_s % step_s if step_s else 0.0))


def _saves_s(view: View) -> float:
    """Return what it usually takes to save a checkpoint, on the rank that takes longest."""
    return max((_usual_s(stream) for stream in view.streams.values()), default=0.0)


def _usual_s(stream: RankStream) -> float:
    times_s = [took_s for name, took_s in stream.section_times if name == Section.CHECKPOINT]
    waited_s = statistics.median(times_s) if times_s else 0.0
    return max(waited_s, statistics.median(stream.saved_s) if stream.saved_s else 0.0)


def _is_over(view: View) -> bool:
    """Whether nothing is left to save: every rank has ended its last step."""
    last = view.run.order.last_step
    ranks = view.streams.values()
    return bool(ranks) and all(s.done or s.completed >= last for s in ranks)


def _is_saving(view: View) -> bool:
    """Whether a rank stands in a checkpoint: how long that may take is D5's."""
    return any(s.section == Section.CHECKPOINT for s in view.streams.values())


def _evaluated_s(view: View, mono: float) -> float:
    """Return seconds spent in evaluations, by the rank that spent most: none comes there.

    One that lasts counts up to now: nobody can save meanwhile.
    """
    return max((_of(stream, mono) for stream in view.streams.values()), default=0.0)


def _of(stream: RankStream, mono: float) -> float:
    if stream.section != Section.EVAL:
        return stream.evaluated_s
    return stream.evaluated_s + max(0.0, mono - stream.section_mono)
