"""Describe experiments, runs, decisions and evidence in lines of text."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

from gonogo.cli.client import Client
from gonogo.cli.output import duration, local_time
from gonogo.contract.api import ExperimentView, RunView
from gonogo.contract.decision import Cause, Decision
from gonogo.contract.errors import GonogoError
from gonogo.contract.finding import Near, nearest
from gonogo.contract.goodput import KEPT, WORDS, Goodput, least_words, seconds_of
from gonogo.contract.lifecycle import RunState
from gonogo.evidence_round import is_described, summarise_round
from gonogo.judge.failures import explain_decision
from gonogo.rundir import RunDir

MOST_COMMANDS = 4
MOST_FILES = 130
"""Files of one round of evidence: the stacks of 128 ranks, and the collectives."""
MOST_BYTES = 2**16
MOST_DETECTORS = 3
LEAST_SHARE = 0.1
"""A detector is shown from this share of its limit on."""
_WAITS = {
    RunState.QUEUED: "in the queue",
    RunState.CLAIMED: "{worker} prepares the run directory",
    RunState.PREFLIGHT: "{worker} checks the host and its devices",
    RunState.STARTING: "it imports and builds the model; it starts when every rank is there",
}


def experiment_lines(view: ExperimentView) -> Iterator[str]:
    """Yield the summary of an experiment, its cause, and the commands to type next."""
    if view.summary:
        yield view.summary
    if view.cause is not None:
        yield from cause_lines(view.cause)
    if view.waiting_until is not None:
        yield f"until  {local_time(view.waiting_until)}"
    width = max((len(row.command) for row in view.next[:MOST_COMMANDS]), default=0)
    for number, row in enumerate(view.next[:MOST_COMMANDS]):
        yield f"{'      ' if number else 'next  '} {row.command:<{width}}  # {row.text}"


def cause_lines(cause: Cause) -> Iterator[str]:
    """Yield why a verdict is not GO, and for an unknown failure where to look."""
    yield f"why    {'unknown failure: ' if cause.unknown else ''}{cause.text}"
    if cause.line is not None:
        yield f"       {log_end(cause)}"
    for number, place in enumerate(cause.look, 1):
        yield f"       {'look at' if number == 1 else '       '} {number}. {place}"


def log_end(cause: Cause) -> str:
    """Return the last line of the log that explains most."""
    return f"{cause.log} ends: {cause.line}"


def diagnosis_lines(decision: Decision) -> Iterator[str]:
    """Yield the known failure of a decision, its cause and its remedy."""
    known = explain_decision(decision)
    yield f"diagnosis    {decision.diagnosis}" + ("" if known is None else f": {known.cause}")
    if known is not None:
        yield f"remedy       {known.remedy}"


def criteria_lines(criteria: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """Yield the criteria of a decision with their outcomes."""
    for row in criteria:
        yield f"  {row['outcome']:<12} {row['id']:<18} {row['evidence']}"


def wait_of(run: RunView, now: datetime) -> str | None:
    """Return what a run waits for before its first step, and how long; else None."""
    text = _WAITS.get(run.state)
    if text is None:
        return None
    age_s = (now - datetime.fromisoformat(run.created_at)).total_seconds()
    words = text.format(worker=run.worker or "a worker")
    return f"{words} ({duration(max(0.0, age_s))} since it was queued)"


def near_line(rows: Mapping[str, Near]) -> str | None:
    """Return the detectors nearest to their limits: `nearest: stall 12 of 60 s`; else None."""
    shown = [row for row in nearest(rows, MOST_DETECTORS) if (row[1].share or 0.0) >= LEAST_SHARE]
    return f"nearest: {', '.join(_near_words(*row) for row in shown)}" if shown else None


def _near_words(name: str, row: Near) -> str:
    unit = f" {row.unit}" if row.unit else ""
    joined = "above" if row.below else "of"
    left = "" if row.time_left_s is None else f" ({duration(row.time_left_s)} left)"
    return f"{name} {row.value:.4g} {joined} {row.limit:.4g}{unit}{left}"


def goodput_line(goodput: Goodput) -> str:
    """Return `81 % effective; queue 41 s, start 12 s, checkpoint 3 s`."""
    spent = [(seconds, part) for part, seconds in seconds_of(goodput).items() if part not in KEPT]
    longest = sorted(spent, reverse=True)[:3]
    rest = [f"{WORDS[part]} {duration(seconds)}" for seconds, part in longest if seconds > 0]
    share = "nothing ran yet"
    if goodput.ratio is not None:
        share = f"{least_words(goodput)}{goodput.ratio:.1%} effective"
    return "; ".join([share, ", ".join(rest)] if rest else [share])


def directory_evidence(directory: Path, findings: Iterable[dict[str, Any]]) -> list[str]:
    """Return the last round of evidence in a run directory, a line for each group of ranks."""
    rounds = sorted(row for row in RunDir(directory).evidence.glob("[0-9]*_*") if row.is_dir())
    texts = {}
    with suppress(OSError):
        files = [row for row in rounds[-1].iterdir() if is_described(row.name)] if rounds else []
        for path in sorted(files)[:MOST_FILES]:
            with path.open("rb") as stream:
                texts[path.name] = stream.read(MOST_BYTES).decode(errors="replace")
    return summarise_round(texts, _halt(findings).get("rank"))


def run_evidence(client: Client, run: str) -> list[str]:
    """Return the evidence of a run's halt, as far as the control plane has it."""
    halt = _halt(client.pages(f"/runs/{run}/findings"))
    texts = {}
    for path in [path for path in halt.get("evidence", ()) if is_described(path)][:MOST_FILES]:
        with suppress(GonogoError):  # it lies on another host, or was not kept
            answer = client.call("GET", f"/runs/{run}/artifacts/{path}")
            texts[path] = answer.content[:MOST_BYTES].decode(errors="replace")
    return summarise_round(texts, halt.get("rank"))


def _halt(findings: Iterable[dict[str, Any]]) -> dict[str, Any]:
    return next((row for row in findings if row["severity"] == "halt"), {})
