"""D5: does a section of the rank behind last too long?

Each section has its own clock, which entering it starts. Boot belongs to D2; forward, backward and
optimizer to D4. Being in no section, or in one with an unknown name, has a deadline too.
"""

import statistics

from gonogo.contract.finding import Finding, Severity, Source
from gonogo.contract.heartbeat import COMPUTE_SECTIONS, Section
from gonogo.contract.outcome import Detector
from gonogo.contract.tick import Tick
from gonogo.contract.watch import Deadline, SectionDeadline
from gonogo.judge.watch.rank_divergence import name_culprit
from gonogo.judge.watch.stream import RankStream
from gonogo.judge.watch.view import Event, Limit, Run, View, found


def observe(own: None, event: Event, view: View) -> tuple[None, list[Finding]]:
    """Observe a tick: how long the rank behind has been in its section."""
    if not isinstance(event, Tick):
        return own, []
    if not any(has_deadline(stream) for stream in view.streams.values()):
        return own, []
    streams = view.active()
    culprit = name_culprit(view, streams)
    if culprit is None or not has_deadline(culprit):
        return own, []
    name, deadline = deadline_of(view.run.watch.section_deadline, culprit.section)
    elapsed_s = event.mono - culprit.section_mono
    findings = []
    if deadline.suspect_s is not None and elapsed_s > deadline.suspect_s:
        source = view.run.source(f"section_deadline.{name}.suspect_s")
        suspect = Limit(seconds=deadline.suspect_s, source=source)
        findings.append(_finding(view, event, culprit, Severity.SUSPECT, elapsed_s, suspect))
    if elapsed_s > deadline.halt_s:
        halt = limit_of(view.run, culprit, name, deadline)
        if elapsed_s > halt.seconds and view.testified(streams, culprit, event.mono):
            findings.append(_finding(view, event, culprit, Severity.HALT, elapsed_s, halt))
    return own, findings


def has_deadline(stream: RankStream) -> bool:
    """Whether the rank's section is this detector's business."""
    if not stream.labelled or stream.section in COMPUTE_SECTIONS:
        return False
    return not (stream.section == Section.BOOT and stream.started_mono is None)


def deadline_of(settings: SectionDeadline, section: str | None) -> tuple[str, Deadline]:
    """Return the deadline of a section and the name of its setting."""
    table: dict[str | None, Deadline] = {
        Section.DATA: settings.data,
        Section.CHECKPOINT: settings.checkpoint,
        Section.EVAL: settings.eval,
        Section.LOG: settings.log,
    }
    if section in table:
        return str(section), table[section]
    return "out_of_section", settings.out_of_section


def limit_of(run: Run, stream: RankStream, name: str, deadline: Deadline) -> Limit:
    """Return the larger of the fixed limit and the multiple of the section's median."""
    times_s = [took_s for section, took_s in stream.section_times if section == name]
    if deadline.halt_x is not None and times_s:
        adaptive_s = deadline.halt_x * statistics.median(times_s)
        if adaptive_s > deadline.halt_s:
            return Limit(seconds=adaptive_s, source=Source.ADAPTIVE)
    return Limit(seconds=deadline.halt_s, source=run.source(f"section_deadline.{name}.halt_s"))


def _finding(
    view: View, tick: Tick, culprit: RankStream, severity: Severity, elapsed_s: float, limit: Limit
) -> Finding:
    where = f"in {culprit.section}" if culprit.section else "between sections"
    return found(
        view,
        Detector.SECTION_DEADLINE,
        severity,
        episode=f"rank{culprit.rank}/{culprit.seen.boot}/{culprit.section}"
        f"{culprit.section_seq}/step{culprit.step}",
        at=tick.ts,
        stream=culprit,
        value=elapsed_s,
        threshold=limit.seconds,
        source=limit.source,
        text=f"rank {culprit.rank} has been {where} for {elapsed_s:.1f} s"
        f" (limit {limit.seconds:.1f} s) at step {culprit.step}",
    )


def armed(view: View, own: None) -> bool:
    """Whether a rank that names its sections is running."""
    return any(stream.labelled for stream in view.active())
