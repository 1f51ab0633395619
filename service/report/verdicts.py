"""What happened, who says so, and what should be done? The three sentences on top of a report."""

from gonogo.contract.decision import PASSING, Cause, Decision, Verdict
from gonogo.contract.lifecycle import ExperimentState
from gonogo.judge.course.cause import cause_of
from gonogo.judge.failures import explain_decision
from service.report.text import NONE, block, code, inline, table
from service.report.view import ReportView, RunReport


def deciding(view: ReportView) -> Decision | None:
    """Return the newest decision with a verdict."""
    return next((row for row in reversed(view.decisions) if row.verdict is not None), None)


def cause(view: ReportView) -> str:
    """Return what the evidence says, in one sentence, whatever a person said."""
    run = view.culprit
    if run is None:
        phases = view.experiment.phases
        by_hand = {row.phase for row in view.experiment.overrides}
        shown = [row for row in phases if row.name not in by_hand]
        passed = sum(row.verdict == Verdict.GO or view.is_met(row.name) for row in shown)
        return f"{passed} of {len(phases)} phases passed with GO"
    return f"{run.title}: {run_cause(run)}"


def run_cause(run: RunReport) -> str:
    """Return why a run is not GO, as Markdown, with the last line of the log that says most."""
    criteria = run.decision.criteria if run.decision else []
    text = inline(cause_of(run.findings, run.view.outcome, criteria))
    said = run.decision.cause if run.decision else None
    return f"{text}; {log_line(said)}" if said is not None and said.line else text


def log_line(said: Cause) -> str:
    """Return the quoted line of a log, as Markdown."""
    return f"last line of {code(said.log)}: {inline(said.line)}"


def decided_by(view: ReportView) -> str:
    """Return who decided last, and when."""
    last = deciding(view)
    if last is None:
        return NONE
    about = f"about {last.phase}" if last.phase else "about the experiment"
    return f"{inline(last.actor)} ({last.kind.value}), {code(last.id)} {about}, at {last.at}"


def override_parts(view: ReportView) -> list[str]:
    """Return what a person decided and still stands, beside what the evidence says."""
    experiment = view.experiment
    if not experiment.overrides:
        return []
    rows = (
        (
            code(row.condition) if row.condition else row.phase,
            f"**{row.verdict} by hand**",
            f"**{row.evidence}**" if row.evidence else "nothing was judged",
            inline(row.actor),
            inline(row.reason),
            row.at,
            code(row.decision),
        )
        for row in experiment.overrides
    )
    heads = ("about", "a person says", "the evidence says", "who", "why", "at", "decision")
    parts = ["### Decided by hand", table(heads, rows)]
    if experiment.never_ran:
        parts.append(f"Never ran: {', '.join(experiment.never_ran)}.")
    return parts


def recommendation(view: ReportView) -> str:
    """Return what to do now; it claims no evidence that is not there."""
    experiment = view.experiment
    if experiment.state is ExperimentState.AWAITING_DECISION:
        return f"It waits for a person ({inline(experiment.waiting_for or 'a decision')})."
    if experiment.state is not ExperimentState.FINISHED:
        if experiment.waiting_for:
            return f"Nothing is decided yet, and it waits for {inline(experiment.waiting_for)}."
        return "Nothing yet: it goes on by itself."
    if experiment.overrides and not _by_evidence(view):
        said = inline(experiment.summary or "")
        return f"A person decided, not the evidence; {_at_a_word(experiment.verdict)}. {said}"
    summary = inline(experiment.summary or "")
    if experiment.verdict is None:
        return f"{summary} Submit it again when it is wanted."
    return {
        Verdict.GO: f"Go. {summary}",
        Verdict.CONDITIONAL_GO: f"Go only under the conditions below. {summary}",
        Verdict.INCONCLUSIVE: f"Not enough evidence. {summary}",
        Verdict.NO_GO: f"{_after_no_go(view)} {summary}",
    }[experiment.verdict]


def _by_evidence(view: ReportView) -> bool:
    """Say whether evidence refused in the end what a person's word had let go on."""
    experiment = view.experiment
    last = deciding(view)
    refused = experiment.verdict in (Verdict.NO_GO, Verdict.INCONCLUSIVE)
    return refused and last is not None and not last.by_hand and last.verdict == experiment.verdict


def _at_a_word(verdict: Verdict | None) -> str:
    """Return what follows from a verdict by hand."""
    if verdict in PASSING:
        return "go on at that person's word alone"
    return "do not go on" if verdict is Verdict.NO_GO else "nothing follows from it"


def _after_no_go(view: ReportView) -> str:
    run = view.culprit
    decision = run.decision if run else None
    row = None if decision is None else explain_decision(decision)
    if row is not None:
        remedy = inline(f"{row.remedy[0].upper()}{row.remedy[1:]}")
        return f"Do not go on. {remedy} ({row.name})."
    if decision is not None and decision.cause is not None and decision.cause.look:
        unknown = "The failure is unknown; look" if decision.cause.unknown else "Look"
        return f"Do not go on. {unknown} at the evidence in the order below."
    return "Do not go on. Look at the evidence below."


def look_parts(said: Cause | None) -> list[str]:
    """Return where to look at a failure that no diagnosis fits, in order."""
    if said is None or not said.look:
        return []
    unknown = "**Unknown failure**: no known one fits its facts. " if said.unknown else ""
    places = "\n".join(f"{number}. {inline(place)}" for number, place in enumerate(said.look, 1))
    return [f"{unknown}Look, in this order:", places]


def next_parts(view: ReportView) -> list[str]:
    """Return the commands to type next."""
    rows = view.experiment.next
    if not rows:
        return []
    width = max(len(row.command) for row in rows)
    lines = (f"{row.command:<{width}}  # {row.text}" for row in rows)
    return ["**Next.**", block("\n".join(lines), "sh")]
