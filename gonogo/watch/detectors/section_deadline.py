"""D5: does a section of the rank behind last too long?

Each section has its own clock, which entering it starts; in no section each step that advances
starts it, too, for a program may name none for days. Boot belongs to D2; forward, backward and
optimizer to D4. Being in no section, or in one with an unknown name, has a deadline too. A rank
that never names forward, backward or optimizer computes while it is in no section: there its first
step is D2's, and its later ones may take as long as D4 gives them. The first batch may take as long
as the first step, unless the plan says less: texts are tokenised, batches skipped on resume. So may
what stands in no section before the first step has ended; until the second has, what comes between
them for the first time has the early limit of D4. So it has as long as a user's program has not
named data, an evaluation and a checkpoint: the first of those may come late, and be one that
nobody names, and a loader may stall. Later it has eight times what steps usually spend there, where
that is longer (an agent's episodes, answers that are generated), and up to that early limit three
times the longest of late: some play or generate once in many steps. Where steps take long, logging
and what stands in no section have three of them, where that is longer. After the last ordered step,
being in no section, or in one of a name of its own, has the limit of a checkpoint: what is left is
to save. Who has only said that a step begins has the time of data.

Two limits do not begin anew with each section. A rank that goes through sections without ending a
step (fetching for ever, evaluating again and again) has twice what all its sections together may
take, after the last step eight times. Ranks that are done and do not exit have the limit of an
evaluation; past that of a checkpoint it is said.

Where nobody is heard, and the last line of the rank behind told that it went from one section to
another, only its stack says that it stands, and not where: it has the time of a checkpoint.
"""

import statistics

from gonogo.contract.canonical import added
from gonogo.contract.finding import Finding, Severity, Source
from gonogo.contract.heartbeat import COMPUTE_SECTIONS, NON_TRAINING_SECTIONS, Msg, Section
from gonogo.contract.outcome import Detector as Name
from gonogo.contract.tick import ProcessState, Tick
from gonogo.contract.watch import Deadline
from gonogo.contract.watch import SectionDeadline as SectionDeadlineSettings
from gonogo.contract.workload import is_ours
from gonogo.watch.detector import Detector, Seen
from gonogo.watch.detectors import stall
from gonogo.watch.detectors.no_first_heartbeat import boot_limit, first_step_limit
from gonogo.watch.detectors.rank_divergence import (
    Culprit,
    blame_who_left,
    freed_mono,
    late_text,
    name_culprit,
    went_on_mono,
)
from gonogo.watch.sections import NAMED_APART
from gonogo.watch.stream import NAMED_SECTIONS, SECTION_SAMPLES, RankStream
from gonogo.watch.view import Limit, Run, View, found

_NAMES: tuple[str | None, ...] = (
    Section.DATA, Section.CHECKPOINT, Section.EVAL, Section.LOG, None,
)  # fmt: skip
"""One section of each deadline."""
_MAY_WAIT = frozenset({Section.LOG, None})
_MAY_AWAIT = frozenset({Section.DATA, Section.CHECKPOINT})
"""Sections in which a rank may wait for a peer that saves or evaluates."""
_APART = "out_of_section"
_SHORT = frozenset({Section.LOG, _APART})
_FIRST = frozenset({Section.DATA, Section.LOG, _APART})
"""Deadlines that a start may miss: texts are tokenised, engines built, episodes played. Who asks
the device for the loss of its first step waits for all that is compiled."""
APART_X = 8.0
"""Times what steps usually spend in no section (or in one of a name of their own) that one may
stand there: some play episodes or generate answers in every step, and name only the rest. Such
times spread as steps do, which have as many (D4)."""
RECURS_X = 3.0
"""Times the longest of late that one may, up to the early limit of D4: some do so once in many
steps, of which nothing is usual."""
SHORT_X = 3.0
"""Times the median step that one may stand there, or log, where that is longer: what holds up a run
for a moment, as a host that stands still, or lines that come late, does so at any step time."""
FEW_STEPS = 2
"""Before so many have ended nobody knows how long one takes, nor what lies between two of them."""
CYCLE_X = 2.0
"""Times the sum of all limits in which a step has to end."""


def has_deadline(stream: RankStream) -> bool:
    """Whether the rank's section is this detector's business."""
    if not stream.labelled or stream.section in COMPUTE_SECTIONS:
        return False
    if _may_compute(stream) and not stream.completed_steps:
        return False
    return not (stream.section == Section.BOOT and stream.started_mono is None)


def _may_compute(stream: RankStream) -> bool:
    """Whether a rank in no section may compute: it has never named forward, backward, optimizer."""
    return stream.section is None and not stream.computes and stream.started_mono is not None


def deadline_of(settings: SectionDeadlineSettings, section: str | None) -> tuple[str, Deadline]:
    """Return the deadline of a section and the name of its setting."""
    table: dict[str | None, Deadline] = {
        Section.DATA: settings.data,
        Section.CHECKPOINT: settings.checkpoint,
        Section.EVAL: settings.eval,
        Section.LOG: settings.log,
    }
    if section in table:
        return str(section), table[section]
    return _APART, settings.out_of_section


def section_of(run: Run, stream: RankStream) -> str | None:
    """Return the section whose deadline counts: after the last ordered step, a checkpoint's.

    Who has said nothing since a step began may fetch its batch: a thread tells where the rank is,
    and a loader may hold the interpreter for as long as it fetches.
    """
    if stream.section is None and stream.msg == Msg.STEP_START:
        return Section.DATA
    ended = run.order.steps is not None and stream.completed >= run.order.last_step
    unnamed = stream.section not in NAMED_SECTIONS
    return Section.CHECKPOINT if ended and unnamed else stream.section


def since(stream: RankStream) -> float:
    """Return when the rank came where it stands; in no section, a step that advances is a move."""
    if stream.section is not None:
        return stream.section_mono
    return max(stream.section_mono, stream.advanced_mono)


def _may_pause_unnamed(view: View, stream: RankStream) -> bool:
    """Whether what stands in no section, or in one of a name of its own, may be new, and no hang.

    Who has named data, an evaluation and a checkpoint names them, and our own trainer names all. A
    plan that says how long a step may take says it of those in it, too.
    """
    if stream.completed_steps < FEW_STEPS:
        return True
    if is_ours(view.run.order.entry, view.run.order.command):
        return False
    named = {name for row in view.streams.values() for name in row.named}
    return not named >= NAMED_APART and view.run.source("stall.halt_s") is Source.DEFAULT


def _early_s(view: View, stream: RankStream, name: str) -> float:
    """Return how long what may be new there may take, 0.0 where nothing is."""
    new = name == Section.LOG and stream.completed_steps < FEW_STEPS
    new = new or (name == _APART and _may_pause_unnamed(view, stream))
    return view.run.watch.stall.early_s if new else 0.0


def _recurring_s(view: View, stream: RankStream) -> float:
    """Return how long a user's program may stand there as it does now and then.

    A plan that says how long a step may take says it of what comes between them, too.
    """
    run = view.run
    names = (f"section_deadline.{_APART}.halt_s", "stall.halt_s")
    planned = any(run.source(name) is not Source.DEFAULT for name in names)
    if planned or is_ours(run.order.entry, run.order.command):
        return 0.0
    return min(run.watch.stall.early_s, RECURS_X * max(stream.apart_times, default=0.0))


def _usual_s(view: View, stream: RankStream, name: str, deadline: Deadline) -> float:
    """Return the multiple of what usually is spent there that one may, 0.0 where there is none.

    Of a checkpoint that is written beside later steps its line says what it took, on the rank that
    writes it; whoever waits for one, at the end or before the next, waits for all of that.
    """
    times_s = [took_s for section, took_s in stream.section_times if section == name]
    saved_s = [took_s for row in view.streams.values() for took_s in row.saved_s]
    if name == Section.CHECKPOINT and saved_s:
        times_s = [max(statistics.median(saved_s), statistics.median(times_s or saved_s))]
    halt_x = deadline.halt_x
    if name == _APART:
        times_s = list(stream.apart_times[-SECTION_SAMPLES:])
        halt_x = halt_x or APART_X
    return halt_x * statistics.median(times_s) if halt_x is not None and times_s else 0.0


def limit_of(
    view: View, stream: RankStream, name: str, deadline: Deadline, m: float | None
) -> Limit:
    """Return the larger of the fixed limit and the multiple of the section's or step's median."""
    run = view.run
    source = run.source(f"section_deadline.{name}.halt_s")
    if name in _FIRST and not stream.completed_steps and source is Source.DEFAULT:
        first_s = first_step_limit(run).seconds  # it may be in it: some tell only a step's end
        return Limit(seconds=max(first_s, deadline.halt_s), source=source)
    if source is Source.DEFAULT:
        early_s = _early_s(view, stream, name)
        deadline = deadline.model_copy(update={"halt_s": max(early_s, deadline.halt_s)})
    if name == _APART and (recurring_s := _recurring_s(view, stream)) > deadline.halt_s:
        deadline = deadline.model_copy(update={"halt_s": recurring_s})
        source = Source.ADAPTIVE
    if _may_compute(stream):
        computing = stall.limits(run, stream, m, view.longest_step_s())[1]
        if computing.seconds > deadline.halt_s:
            return computing
    ours, steps_s = source in (Source.DEFAULT, Source.ADAPTIVE), SHORT_X * (m or 0.0)
    if name in _SHORT and ours and steps_s > deadline.halt_s:
        deadline = deadline.model_copy(update={"halt_s": steps_s})
        source = Source.ADAPTIVE
    adaptive_s = _usual_s(view, stream, name, deadline)
    if adaptive_s > deadline.halt_s:
        return Limit(seconds=adaptive_s, source=Source.ADAPTIVE)
    return Limit(seconds=deadline.halt_s, source=source)


def _finding(
    view: View, tick: Tick, culprit: Culprit, severity: Severity, elapsed_s: float, limit: Limit
) -> Finding:
    stream = culprit.stream
    where = f"in {stream.section}" if stream.section else "between sections"
    finding = found(
        view,
        Name.SECTION_DEADLINE,
        severity,
        episode=f"rank{stream.rank}/{stream.boot}/{stream.section}"
        f"{stream.section_seq}/step{stream.step}",
        at=tick.ts,
        stream=stream,
        named=culprit.named,
        value=elapsed_s,
        threshold=limit.seconds,
        source=limit.source,
        text=f"{culprit} has been {where} for {elapsed_s:.1f} s"
        f" (limit {limit.seconds:.1f} s) at step {stream.step}{late_text(view, stream)}",
    )
    return blame_who_left(view, finding) if stream.section in _MAY_WAIT else finding


def _of_peers(view: View, stream: RankStream, streams: list[RankStream]) -> list[Limit]:
    """Return the limits of peers that save or evaluate at this step.

    Some scripts name data whatever lies between two steps: who is there may wait for them. Who
    saves may: all ranks meet in it, and one may evaluate alone before.
    """
    settings, m = view.run.watch.section_deadline, view.median_step_s()
    return [
        limit_of(view, row, *deadline_of(settings, row.section), m)
        for row in streams
        if row.step == stream.step and row.section in NON_TRAINING_SECTIONS
    ]


def _of_unheard(view: View, stream: RankStream) -> Limit:
    """Return the limit of a rank that was heard on its way, and nobody since: it may save."""
    name, deadline = deadline_of(view.run.watch.section_deadline, Section.CHECKPOINT)
    return limit_of(view, stream, name, deadline, view.median_step_s())


def limit_of_cycle(view: View, stream: RankStream, m: float | None) -> Limit:
    """Return how long a rank may go without ending a step, in whatever sections."""
    run = view.run
    settings = run.watch.section_deadline
    each = [limit_of(view, stream, *deadline_of(settings, name), m).seconds for name in _NAMES]
    each.append(stall.limits(run, stream, m, view.longest_step_s())[1].seconds)
    if not stream.completed_steps:
        start = run.watch.no_first_heartbeat
        each += [boot_limit(view).seconds, start.first_step_s, start.first_step_compile_s]
    ended = run.order.steps is not None and stream.completed >= run.order.last_step
    times = stall.AFTER_LAST_X if ended else CYCLE_X
    return Limit(seconds=times * added(each), source=Source.ADAPTIVE)


def _least_s(settings: SectionDeadlineSettings) -> float:
    """Return the shortest limit of any section."""
    each = [deadline_of(settings, name)[1] for name in _NAMES]
    return min(min(row.halt_s, row.suspect_s or row.halt_s) for row in each)


def _cycling(view: View, tick: Tick, culprit: Culprit, streams: list[RankStream]) -> list[Finding]:
    """Return the finding of a rank whose step has not ended for longer than all sections take."""
    stream, m = culprit.stream, view.median_step_s()
    elapsed_s = tick.mono - stream.advanced_mono
    if not stream.labelled or elapsed_s <= view.run.watch.section_deadline.eval.halt_s:
        return []
    limit = limit_of_cycle(view, stream, m)
    if elapsed_s <= limit.seconds or not view.testified(streams, stream, tick.mono):
        return []
    return [
        found(
            view,
            Name.SECTION_DEADLINE,
            Severity.HALT,
            episode=f"rank{stream.rank}/{stream.boot}/cycle/step{stream.step}",
            at=tick.ts,
            stream=stream,
            named=culprit.named,
            value=elapsed_s,
            threshold=limit.seconds,
            source=limit.source,
            text=f"{culprit} goes from section to section, and has not moved on from step"
            f" {stream.step} for {elapsed_s:.0f} s (limit {limit.seconds:.0f} s)",
        )
    ]


def _lingering(view: View, tick: Tick) -> list[Finding]:
    """Return the findings of ranks that are all done or dead, and of which one does not exit."""
    streams, processes = list(view.streams.values()), view.processes
    done = [stream for stream in streams if stream.done]
    if not done or not view.watched or len(streams) < view.run.order.world_size:
        return []
    left = [s for s in done if processes.of(s.rank).state not in _GONE_OR_UNKNOWN]
    if not left and processes.agent.state in _GONE_OR_UNKNOWN:
        return []
    settings = view.run.watch.section_deadline
    stages = (
        (Severity.WARN, "checkpoint", settings.checkpoint.halt_s),
        (Severity.HALT, "eval", settings.eval.halt_s),
    )
    elapsed_s = tick.mono - max(stream.done_mono for stream in done)
    last = left[0] if left else done[0]
    who = f"rank {last.rank}" if len(left) == 1 else "the ranks" if left else "the launcher"
    return [
        found(
            view,
            Name.SECTION_DEADLINE,
            severity,
            episode=f"{last.boot}/done",
            at=tick.ts,
            stream=last,
            named=len(left) == 1,
            value=elapsed_s,
            threshold=limit_s,
            source=view.run.source(f"section_deadline.{name}.halt_s"),
            text=f"every rank said that it was done {elapsed_s:.0f} s ago (limit {limit_s:g} s),"
            f" and {who} did not exit",
        )
        for severity, name, limit_s in stages
        if elapsed_s > limit_s
    ]


_GONE_OR_UNKNOWN = frozenset({ProcessState.DEAD, ProcessState.UNKNOWN})


class SectionDeadline(Detector[None]):
    """D5: does a section of the rank behind last too long?"""

    name = Name.SECTION_DEADLINE
    sentence = (
        "Halts when the rank behind has stood too long in data, checkpoint, evaluation, "
        "logging, or in no section at all; each has its own limit. In no section, or in one of "
        "a name of its own, it has the time of a start until its first step has ended, the "
        "early limit of the stall rule until its second has, and as long as a program of yours "
        "has not named data, an evaluation and a checkpoint (it may be in one), and then eight "
        "times what its steps usually spend there, or, of a program of yours and up to that "
        "early limit, three times the longest of the last 256 steps. Logging has the time "
        "of a start until the first step of a process has ended, and that early limit until its"
        " second has. In data or a checkpoint a rank has the limit of a peer that saves or"
        " evaluates at that step, where it is longer and the plan sets none. Where three median"
        " steps are longer than the"
        " limit of logging, or of being in no section, it is three steps. Where a rank has only"
        " said that a step begins it has the limit of data. In no section, a rank that never names"
        " its computing has at least the limits of the stall rule. A rank that goes from section to"
        " section without ending a step is halted after twice what all of them together may take"
        " (eight times after the last step). Where every rank is done and one does not exit: a"
        " warning after the limit of a checkpoint, a halt after that of an evaluation. Where no"
        " rank is heard, one whose last line left a section, and of which only its stack tells that"
        " it stands, has the limit of a checkpoint."
    )
    """2: no rank is named where nothing tells them apart; a limit for going round without a step,
    and for not exiting; a checkpoint takes what its line says, where that is longer, and no section
    what steps usually spend there. 3: ranks that fall silent together, as where all are started
    anew, are not told apart by who was heard a moment later; logging has the time of a start, and
    who has only said that a step begins may fetch its batch; who is in data may wait for a peer
    that saves or evaluates, and so may who saves, however long that usually takes; who was heard on
    its way, and nobody since, may save; what a user's program does in no section once in many steps
    may take up to the early limit; who waited for what a peer did in no section, or came to many
    steps late, has stood since that was there; for how long the run was suspended with its watcher
    is not usually spent in no section."""
    ticks = True
    deadline = True

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self._least_s, self._eval_s = _least_s(self.settings), self.settings.eval.halt_s

    def _may_be_over(self, streams: list[RankStream], mono: float) -> bool:
        """Whether any rank stands for longer than the shortest limit: who is behind is dear."""
        return any(
            mono - row.advanced_mono > self._eval_s
            or (mono - since(row) > self._least_s and has_deadline(row))
            for row in streams
        )

    def observe_tick(self, own: None, tick: Tick, view: View) -> Seen[None]:
        """Observe a tick: how long the rank behind has been in its section."""
        if not any(has_deadline(stream) for stream in view.streams.values()):
            return own, []
        streams = view.known(view.active(), tick.mono)
        if not streams:
            return own, _lingering(view, tick)
        if not self._may_be_over(streams, tick.mono):
            return own, []
        culprit = name_culprit(view, streams, tick.mono)
        if culprit is None:
            return own, []
        stream = culprit.stream
        if not has_deadline(stream):
            return own, _cycling(view, tick, culprit, streams)
        section = section_of(view.run, stream)
        name, deadline = deadline_of(view.run.watch.section_deadline, section)
        freed = freed_mono(view, stream, streams, tick.mono)
        went_on = went_on_mono(stream, streams)
        elapsed_s = tick.mono - max(since(stream), freed, went_on)
        findings = []
        if deadline.suspect_s is not None and elapsed_s > deadline.suspect_s:
            source = view.run.source(f"section_deadline.{name}.suspect_s")
            suspect = Limit(seconds=deadline.suspect_s, source=source)
            findings.append(_finding(view, tick, culprit, Severity.SUSPECT, elapsed_s, suspect))
        halt = limit_of(view, stream, name, deadline, view.median_step_s())
        planned = view.run.source(f"section_deadline.{name}.halt_s") is not Source.DEFAULT
        if section in _MAY_AWAIT and not planned:
            halt = max([halt, *_of_peers(view, stream, streams)], key=lambda row: row.seconds)
        if name in _SHORT and view.went_unheard(streams, stream, tick.mono):
            halt = max(halt, _of_unheard(view, stream), key=lambda row: row.seconds)
        if elapsed_s > halt.seconds and view.testified(streams, stream, tick.mono):
            findings.append(_finding(view, tick, culprit, Severity.HALT, elapsed_s, halt))
        else:
            findings += _cycling(view, tick, culprit, streams)
        return own, findings

    def armed(self, own: None, view: View) -> bool:
        """Whether a rank that names its sections is running."""
        return any(stream.labelled for stream in view.active())
