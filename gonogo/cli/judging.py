"""`gonogo judge`, `forecast`, `replay` and `verify`; and the lines that explain a decision."""

import math
import os
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import asdict
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import typer

from gonogo.cli.client import LAST, Id, connect, pick_id
from gonogo.cli.exits import Accept, Exit, accepted, exit_of_verdict
from gonogo.cli.logs import find_run_dir
from gonogo.cli.output import (
    Json,
    decided_text,
    duration,
    local_time,
    out,
    print_fields,
    print_json,
    print_lines,
    verdict_text,
    warn,
)
from gonogo.cli.plans import placed, read_plan
from gonogo.cli.settings import load_settings
from gonogo.contract.api import ExperimentView, Forecast, RunView
from gonogo.contract.canonical import wire_value
from gonogo.contract.decision import PASSING, Cause, Decision, Verdict
from gonogo.contract.errors import GonogoError, NotFound, Rejected
from gonogo.contract.finding import Doubt, DoubtKind, Finding
from gonogo.contract.lifecycle import RunState
from gonogo.contract.outcome import OutcomeCode
from gonogo.contract.wire import Kind
from gonogo.evidence_round import describe_round, is_described, where_it_stood
from gonogo.judge.directory import judge_directory
from gonogo.judge.failures import explain_decision
from gonogo.judge.follow_up.forecast import seconds_at_speed
from gonogo.judge.words import sentence
from gonogo.ledger.recorded import RecordedDecision, load_decision
from gonogo.ledger.replay import Surroundings, replay_decision
from gonogo.ledger.sign import Trust, trusting
from gonogo.ledger.verify import Verified, check_anchors, load_folder, verify_file, verify_folder
from gonogo.rundir import RunDir
from gonogo.signing import KEY_FILE, PUBLIC_FILE, load_public_key, shown_key
from gonogo.supervise.prune import find_undecided
from gonogo.supervise.watcher.metrics_file import load_metrics

MOST_COMMANDS = 4
MOST_FILES = 130
"""Files of one round of evidence: the stacks of 128 ranks, and the collectives."""
MOST_BYTES = 2**16
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


def directory_evidence(directory: Path, findings: Iterable[dict[str, Any]] = ()) -> list[str]:
    """Return the last round of evidence in a run directory, a line for each group of ranks."""
    rounds = sorted(row for row in RunDir(directory).evidence.glob("[0-9]*_*") if row.is_dir())
    texts = {}
    with suppress(OSError):
        files = [row for row in rounds[-1].iterdir() if is_described(row.name)] if rounds else []
        for path in sorted(files)[:MOST_FILES]:
            with path.open("rb") as stream:
                texts[path.name] = stream.read(MOST_BYTES).decode(errors="replace")
    return describe_round(texts, _halt(findings).get("rank"), whole=False).splitlines()


def _halt(findings: Iterable[dict[str, Any]]) -> dict[str, Any]:
    return next((row for row in findings if row["severity"] == "halt"), {})


MOST_LINES = 8
"""Lines at the end of `gonogo run`."""


def judge(
    directory: Annotated[
        Path, typer.Argument(help="A run directory, or the id of a run of `gonogo run`.")
    ],
    plan: Annotated[
        str | None, typer.Option(help="Rules of this plan, where there is no order.json.")
    ] = None,
    phase: Annotated[str | None, typer.Option(help="Phase of that plan.")] = None,
    now: Annotated[
        str | None, typer.Option(help="Where the clock stops: Unix seconds or RFC 3339.")
    ] = None,
    accept: Accept = None,
    as_json: Json = False,
) -> None:
    """Judge a run directory: criteria, findings, and what could not be observed."""
    if not directory.is_dir():
        found = find_run_dir(str(directory), load_settings().home)
        if found is None:
            raise NotFound(f"{directory}: no such directory")
        directory = found
    if (plan is None) != (phase is None):
        raise Rejected("--plan and --phase go together")
    rules = read_plan(plan) if plan else None
    if rules is not None and (directory / "order.json").exists():
        warn("judged by its own order.json: --plan and --phase are ignored")
    clock = None if now is None else parse_time(now)
    try:
        with placed(rules) if rules is not None else nullcontext():
            data = None if rules is None else rules.data()
            document = judge_directory(directory, plan=data, phase=phase, now=clock)
    except GonogoError as error:
        if as_json:
            print_json({"verdict": None, "error": error.detail})
        raise
    if as_json:
        print_json(explained(document, directory))
    else:
        print_judged(document, directory)
    verdict = document["verdict"]
    code = exit_of_verdict(Verdict(verdict) if verdict else None)
    raise typer.Exit(accepted(code, accept))


def parse_time(text: str) -> float:
    """Return Unix seconds from Unix seconds or RFC 3339."""
    with suppress(ValueError):
        if math.isfinite(seconds := float(text)):
            return seconds
    with suppress(ValueError):
        moment = datetime.fromisoformat(text)
        if moment.tzinfo is not None:
            return moment.timestamp()
    raise Rejected(f"--now: found {text!r}; expected Unix seconds or RFC 3339 with a time zone")


def print_judged(document: dict[str, Any], directory: Path) -> None:
    """Print a decision for people: criteria, findings, evidence, what was not seen, verdict."""
    print_lines(criteria_lines(document["criteria"]))
    print_lines(
        f"  {row['severity']:<12} {row['detector']:<18} {row['text']}"
        for row in document["findings"]
    )
    evidence = directory_evidence(directory, document["findings"])
    print_lines(f"  evidence     {text}" for text in evidence)
    print_lines(f"  not observed: {text}" for text in document["not_observed"])
    if document["diagnosis"]:
        lines = diagnosis_lines(Decision.model_validate(document))
        print_lines(f"  {line}" for line in lines)
    if document.get("cause"):
        print_lines(f"  {line}" for line in cause_lines(Cause.model_validate(document["cause"])))
    if document["run"]:
        print_lines([f"run      {document['run']}"])
    _print_verdict(document, directory)


def explained(document: dict[str, Any], directory: Path) -> dict[str, Any]:
    """Return a decision with what its text adds: the diagnosis in words, and what to do next."""
    known = explain_decision(Decision.model_validate(document))
    return {
        **document,
        "means": None if known is None else known.cause,
        "remedy": None if known is None else known.remedy,
        "stood": directory_evidence(directory, document["findings"]),
        "next": _next_of(document, directory),
    }


def print_brief(document: dict[str, Any], directory: Path, advice: Sequence[str]) -> list[str]:
    """Print a decision in few lines; return the advice that fits into `MOST_LINES` beside them."""
    lines = list(_why_lines(document, directory))
    if (numbers := _numbers_text(document, directory)) is not None:
        lines.append(f"steps    {numbers}")
    unseen = len(document["not_observed"])
    if unseen:
        things = "1 thing was" if unseen == 1 else f"{unseen} things were"
        lines.append(f"unseen   {things} not observed: gonogo judge {directory} lists them")
    print_lines([*lines, f"run      {directory}"])
    _print_verdict(document, None if advice else directory)  # else the advice says what is next
    room = MOST_LINES - len(lines) - len(("run", "verdict"))
    shown, more = list(advice[:room]), len(advice) - room
    if more > 0:
        shown[-1] += f" ({more} more: --json)"
    return shown


def _why_lines(document: dict[str, Any], directory: Path) -> Iterator[str]:
    """Yield the cause and the words of the log that show it, then what is known of the failure."""
    known = bool(document["diagnosis"])
    if document.get("cause"):
        cause = Cause.model_validate(document["cause"])
        if known and cause.line is not None:
            cause = cause.model_copy(update={"text": f"{cause.text}; {log_end(cause)}"})
        lines = islice(cause_lines(cause), 1 if known else 2)
        yield from (f"{line[:7]}  {line[7:]}" for line in lines)
    if known:
        yield from diagnosis_lines(Decision.model_validate(document))
    else:
        seen = directory_evidence(directory, document["findings"])
        yield from (f"stood    {text}" for text in islice(seen, 1))


def _print_verdict(document: dict[str, Any], directory: Path | None = None) -> None:
    """Print the verdict and what to type next; nothing of the latter without a directory."""
    out.print(f"verdict  {verdict_text(document['verdict'])}")
    if directory is not None:
        print_lines([f"next     {_next_of(document, directory)}"])


def _numbers_text(document: dict[str, Any], directory: Path) -> str | None:
    facts, metrics = document["facts"], load_metrics(directory)
    last = max((row["last_step"] for row in facts["ranks"].values()), default=0)
    if not last:
        return None
    ordered, ranks = document["rules"].get("steps"), len(facts["ranks"])
    parts = [f"{last} of {ordered}" if ordered else f"{last}"]
    losses = [] if metrics is None else [row.loss for row in metrics.ranks.values()]
    parts += [f"loss {loss:.6g}" for loss in losses if loss is not None][:1]
    paces = [row.get("median_step_s") for row in facts["pace"].values()]
    parts += [f"{pace:.3g} s a step" for pace in sorted(filter(None, paces))[-1:]]
    with suppress(OSError):
        began, ended = (os.stat(directory / name).st_mtime for name in ("order.json", "exit.json"))
        parts.append(duration(ended - began))
    return ", ".join([*parts, f"{ranks} ranks" if ranks > 1 else "1 rank"])


def _next_of(document: dict[str, Any], directory: Path) -> str:
    """Return what to type next, with what it shows."""
    place = shlex.quote(str(directory))
    cause = document.get("cause") or {}
    findings = [Finding.model_validate(row) for row in document["findings"]]
    ended = document["facts"].get("outcome")
    code = None if ended is None else OutcomeCode(ended["code"])
    if (stood := where_it_stood(findings, cause.get("rank"), code)) is not None:
        return f"cat {place}/{stood}  # where it stood"
    if (log := cause.get("log")) is not None:
        return f"tail -n 50 {place}/{log}  # its last lines"
    ranks = document["facts"]["ranks"].values()
    tokens, loss = (any(row.get(name) for row in ranks) for name in ("tokens", "with_loss"))
    if document["verdict"] in PASSING and (tokens or loss):
        metric = "" if tokens else " --metric loss"
        return f"gonogo compare OTHER {place}{metric}  # is it better than another run?"
    return f"gonogo judge {place} --json  # every criterion with its measure"


def forecast(
    experiment: Id = LAST,
    steps: Annotated[int | None, typer.Option(min=1, help="Steps to go; with --tok-s.")] = None,
    tokens_per_step: Annotated[int, typer.Option(min=1, help="Tokens of one step.")] = 4096,
    tok_s: Annotated[float | None, typer.Option(min=1e-9, help="Tokens per second.")] = None,
    as_json: Json = False,
) -> None:
    """Say how long the rest of an experiment takes, from what was measured."""
    if steps is not None and tok_s is not None:
        seconds = seconds_at_speed(steps=steps, tokens_per_step=tokens_per_step, tok_s=tok_s)
        basis = f"{steps} steps of {tokens_per_step} tokens at {tok_s:g} tokens/s"
        found = Forecast(seconds_p50=seconds, seconds_p90=seconds, basis=basis)
    elif steps is not None or tok_s is not None:
        raise Rejected("--steps and --tok-s go together")
    else:
        with connect() as client:
            found = client.experiment(experiment).forecast
    if as_json:
        print_json(found.wire())
        return
    print_fields(
        {
            "half of such runs take": duration(found.seconds_p50),
            "nine in ten take": duration(found.seconds_p90),
            "claimed": duration(found.claimed_seconds),
            "basis": found.basis,
        }
    )


Keys = Annotated[
    list[Path] | None,
    typer.Option("--key", help="Public key to trust (signing.pub of a home); may be repeated."),
]


def find_decision(name: str, home: Path) -> Path:
    """Return the file of a decision: a path, its id in the home or its demos, or `last`."""
    path = Path(name)
    if path.is_file():
        return path
    places = [home / "decisions", *home.glob("demo/*/decisions")]
    files = [file for place in places for file in place.glob("dec_*.json")]
    newest = max(files, key=lambda file: file.stem, default=None)
    found = newest if name == LAST else pick_id(name, Kind.DECISION, files)
    if found is None:
        where = f"{home}/decisions or below demo/"
        raise NotFound(f"{name}: no such file, and no such decision in {where}")
    return found


def trusted(keys: Sequence[Path] | None, *homes: Path) -> Trust:
    """Return the named keys, else the key of the first home that has one."""
    if keys:
        return trusting(load_public_key(path) for path in keys)
    for home in homes:
        key = shown_key(home)
        if key is not None:
            return trusting([key])
    return Trust()


def home_of(file: Path) -> Path:
    """Return the home in which a decision is named, wherever a link on the way would lead."""
    return Path(os.path.abspath(file)).parent.parent


def replay(
    decision: Annotated[
        str,
        typer.Argument(help="Decision: id, beginning of it, its file, or `last`."),
    ],
    facts_only: Annotated[
        bool, typer.Option("--facts-only", help="From the recorded facts; no run directory.")
    ] = False,
    key: Keys = None,
    as_json: Json = False,
) -> None:
    """Judge again from the recorded evidence; exit 1 names the first difference."""
    path = find_decision(decision, load_settings().home)
    recorded = load_decision(path)
    around = look_around(recorded, Path(os.path.abspath(path)), trusted(key, home_of(path)))
    result = replay_decision(recorded, around, facts_only=facts_only)
    if as_json:
        fields = asdict(result) | {"not_verified": [*map(sentence, result.not_verified)]}
        print_json({"id": recorded.id, **wire_value(fields)})
    elif result.equal:
        verdict = decided_text(recorded.decision)
        out.print(f"{recorded.id}: {verdict} again; {result.text}")
    else:
        print_lines([f"{recorded.id}: {result.text}"])
    if not as_json:
        _print_not_verified(result.not_verified)
    raise typer.Exit(Exit.OK if result.equal else Exit.UNEXPECTED)


def look_around(recorded: RecordedDecision, path: Path, trust: Trust) -> Surroundings:
    """Return what lies around a decision's file; a home with a key signs all its decisions."""
    decision = recorded.decision
    runs = path.parent.parent / "runs"
    rows, problems = load_folder(path.parent)
    own = [row for row in rows.values() if row.decision.experiment == decision.experiment]
    siblings = [row for row in own if row.id != recorded.id]
    home = path.parent.parent
    signs = any(map(os.path.lexists, (home / PUBLIC_FILE, home / KEY_FILE)))
    signs = signs or any(row.signed for row in siblings)
    return Surroundings(
        run_dir=runs / decision.run if decision.run is not None else None,
        siblings=siblings,
        trust=trust if trust or signs else None,
        unreadable=tuple(
            Doubt(kind=DoubtKind.UNREADABLE, name=Path(row.path).name, found=row.text)
            for row in problems
            if trust or row.decision
        ),
    )


def verify(
    place: Annotated[
        Path | None,
        typer.Argument(help="A home, a folder of decisions or one decision; default: the home."),
    ] = None,
    key: Keys = None,
    anchor: Annotated[
        list[str] | None,
        typer.Option(help="Hash of a decision that stands outside, as in an alert; repeatable."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Check every recorded decision: digests, signatures, chain; exit 1 on any problem."""
    home = load_settings().home
    found = verify_place(place or home, key, home)
    found = check_anchors(found, anchor or [], place or home)
    if as_json:
        print_json(
            {
                "decisions": found.decisions,
                "ok": found.ok,
                "problems": [
                    {"decision": row.decision, "path": row.path, "text": row.text}
                    for row in found.problems
                ],
                "not_verified": [*map(sentence, found.not_verified)],
            }
        )
    else:
        print_lines(f"{row.decision or row.path}: {row.text}" for row in found.problems)
        _print_not_verified(found.not_verified)
        problems = len(found.problems)
        words = "nothing is wrong" if found.ok else f"{problems} problem{'s' * (problems != 1)}"
        out.print(f"{found.decisions} decisions: {words}")
    raise typer.Exit(Exit.OK if found.ok else Exit.UNEXPECTED)


def verify_place(place: Path, keys: Sequence[Path] | None, home: Path) -> Verified:
    """Return what is wrong with a home (and the demos in it), a folder, or one decision."""
    if place.is_file():
        return verify_file(place, trusted(keys, home_of(place), home))
    if not place.is_dir():
        raise NotFound(f"{place}: no such home, folder or decision")
    homes = [row for row in (place, *sorted(place.glob("demo/*"))) if (row / "decisions").is_dir()]
    is_home = (place / PUBLIC_FILE).exists() or (place / KEY_FILE).exists()
    if not homes and not is_home:
        if not list(place.glob("*.json")):
            raise NotFound(f"{place}: no decision is there, and it is no home")
        return verify_folder(place, trusted(keys, Path(os.path.abspath(place)).parent, home))
    parts = [verify_folder(row / "decisions", trusted(keys, row)) for row in homes]
    bare = is_home and not any((place / "decisions").glob("dec_*.json"))
    missing = [Doubt(kind=DoubtKind.NO_DECISION, name=str(place))] if bare else []
    runs = [*find_undecided(place)]
    undecided = [Doubt(kind=DoubtKind.RUN_UNDECIDED, found=runs)] if runs else []
    return Verified(
        decisions=sum(row.decisions for row in parts),
        problems=[problem for row in parts for problem in row.problems],
        not_verified=[
            *missing,
            *(doubt for row in parts for doubt in row.not_verified),
            *undecided,
        ],
        hashes=tuple(hash_ for row in parts for hash_ in row.hashes),
    )


def _print_not_verified(doubts: Iterable[Doubt]) -> None:
    print_lines(f"  not verified: {sentence(doubt)}" for doubt in doubts)
