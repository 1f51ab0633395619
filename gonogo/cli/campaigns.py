"""`gonogo compare`, and `gonogo campaign`, which runs what it compares (docs/how-to/compare.md)."""

import os
import re
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from gonogo.cli.client import Client, connect, resolve, resolve_run
from gonogo.cli.exits import Exit
from gonogo.cli.experiments import DryRun, Key, Reason, Sets
from gonogo.cli.logs import find_run_dir
from gonogo.cli.output import (
    Json,
    Labels,
    Limit,
    ago,
    duration,
    err,
    out,
    print_fields,
    print_json,
    print_lines,
    print_list,
    print_made,
    print_table,
    verdict_text,
)
from gonogo.cli.plans import parse_grid, parse_pairs, parse_sets, read_plan, submit_plan
from gonogo.cli.settings import Settings, load_settings
from gonogo.cli.watching import following
from gonogo.contract.api import CampaignState, CampaignView
from gonogo.contract.campaign import ComparedVariant, Comparison, DifferingPath, Result
from gonogo.contract.criterion import Compared
from gonogo.contract.decision import DecisionKind
from gonogo.contract.errors import NotFound, Rejected, Unavailable
from gonogo.contract.wire import Kind
from gonogo.judge.compare.compare import compare as compare_units
from gonogo.judge.compare.unit import CONFIDENCE, MARGIN, WARMUP_STEPS, NoUnit, Question, Unit, ask
from gonogo.judge.directory import unit_of_decision, unit_of_directory
from gonogo.judge.words import sentence
from gonogo.ledger.recorded import record_of

HOW = (
    "Runs are the units: repeat each variant, best in turns (A1 B1 A2 B2 …); one run each can only"
    " show what is beyond 10 %. The exit code is 0 whatever the answer is. Error rates:"
    " docs/how-to/compare.md."
)
_NAMED = re.compile(r"([A-Za-z0-9][\w.-]{0,63})=(.+)")


def compare(
    variants: Annotated[
        list[str],
        typer.Argument(
            metavar="VARIANT",
            help="Variants, the baseline first. Each is a run, or its repeats A1,A2, or name=A1,A2;"
            " a run is its directory, its id, or an experiment (its newest run).",
        ),
    ],
    metric: Annotated[
        str, typer.Option(help="Metric of gates, or the program's own, such as user/acc.")
    ] = "toks_per_s",
    aggregate: Annotated[
        Compared | None,
        typer.Option(
            help="What counts of a run; default: last for user/…, else mean.",
            show_default=False,
        ),
    ] = None,
    higher: Annotated[
        bool | None, typer.Option("--higher/--lower", help="Which direction is better.")
    ] = None,
    margin: Annotated[
        float, typer.Option(help="Ratio beyond which a difference matters; 0.02 is 2 %.")
    ] = MARGIN,
    confidence: Annotated[
        float, typer.Option(help="That all intervals hold, together.")
    ] = CONFIDENCE,
    warmup: Annotated[
        int, typer.Option(help="First steps of every run that are not looked at.")
    ] = WARMUP_STEPS,
    unpaired: Annotated[
        bool,
        typer.Option("--unpaired", help="The n-th runs of the variants were not made in turns."),
    ] = False,
    per_device: Annotated[
        bool, typer.Option("--per-device", help="Divide by the number of ranks, as scaling is.")
    ] = False,
    shown_by: Annotated[
        list[str] | None, typer.Option(help="Metric that must differ from the baseline's.")
    ] = None,
    alike_in: Annotated[
        list[str] | None,
        typer.Option(metavar="METRIC=SHARE", help="Metric within this share of the baseline's."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Compare variants: winner, tie or inconclusive, and what differed."""
    question = ask(
        metric,
        higher_is_better=higher,
        aggregate=aggregate,
        margin=margin,
        confidence=confidence,
        warmup_steps=warmup,
        per_device=per_device,
        shown_by=shown_by or (),
        alike_in={m: _share(m, t) for m, t in parse_pairs(alike_in or (), "--alike-in").items()},
    )
    settings = load_settings()
    runs_of = read_variants(variants)
    counts = {len(runs) for runs in runs_of.values()}
    repeats = not unpaired and len(counts) == 1 and counts != {1}
    units = {
        name: [
            replace(load_unit(settings, question, run), repeat=place if repeats else None)
            for place, run in enumerate(runs, start=1)
        ]
        for name, runs in runs_of.items()
    }
    found = compare_units(units, question)
    print_json(found.wire()) if as_json else print_comparison(found)


def _share(metric: str, text: str) -> float:
    with suppress(ValueError):
        if 0.0 <= (share := float(text)) < 1.0:
            return share
    raise Rejected(f"--alike-in {metric}: found {text!r}; expected a share, such as 0.01")


def print_comparison(found: Comparison) -> None:
    """Print a comparison for people: table, paths, what was left out, notes, the result."""
    mean = found.aggregate is Compared.MEAN
    print_table(
        found.variants,
        {
            "variant": "name",
            found.metric if mean else f"{found.aggregate} {found.metric}": _number,
            "ratio": _ratio,
            "answer": lambda row: row.answer or "baseline",
            "runs": lambda row: str(len(row.runs)),
        },
        cut=("variant",),
        optional=("runs",),
    )
    lines = [f"differs      {_path(row, found.baseline)}" for row in found.paths]
    lines += [f"left out     {row.name} ({row.variant}): {row.why}" for row in found.left_out]
    lines += [f"note         {sentence(row)}" for row in found.notes]
    print_lines(f"  {line}" for line in lines)
    style = "bold green" if found.winner else "bold"
    out.print(f"[{style}]{escape(found.text)}[/{style}]", highlight=False, soft_wrap=True)


def _number(row: ComparedVariant) -> str:
    return "–" if row.value is None else f"{row.value:.6g}"


def _ratio(row: ComparedVariant) -> str:
    """Return the ratio with its interval: `1.052 (1.031 to 1.074)`; of the baseline 1."""
    if row.answer is None:
        return "1"
    if row.ratio is None:
        return "–"
    if row.low is None or row.high is None:
        return f"{row.ratio:.3f}"
    return f"{row.ratio:.3f} ({row.low:.3f} to {row.high:.3f})"


def _path(row: DifferingPath, baseline: str) -> str:
    """Return a path with what each variant has: `train.dtype: fp32 → bf16 (told)`."""
    values = {name: ", ".join(map(_value, found)) for name, found in row.values.items()}
    base = values.pop(baseline, "–")
    alone = len(values) == 1
    others = [text if alone else f"{name} {text}" for name, text in values.items() if text != base]
    return f"{row.path}: {base} → {', '.join(others)} ({row.evidence})"


def _value(value: object) -> str:
    text = "not set" if value is None else str(value)
    return text if len(text) <= 24 else f"{text[:23]}…"


def read_variants(arguments: Sequence[str]) -> dict[str, list[str]]:
    """Return name → runs; a single run names its variant, several have a letter by their place."""
    if len(arguments) < 2:
        raise Rejected("expected a baseline and at least one more variant: gonogo compare A B")
    parts = [_parts(text) for text in arguments]
    names = [name or (Path(runs[0]).name if len(runs) == 1 else "") for name, runs in parts]
    if len(set(names) - {""}) < sum(map(bool, names)):
        names = [name or (runs[0] if len(runs) == 1 else "") for name, runs in parts]
    names = [name or chr(ord("A") + place) for place, name in enumerate(names)]
    given = {"name": names, "run": [run for _, runs in parts for run in runs]}
    for what, texts in given.items():
        if twice := [text for text in texts if texts.count(text) > 1]:
            raise Rejected(f"the {what} {twice[0]!r} is given twice; a run counts once")
    return {name: runs for name, (_, runs) in zip(names, parts, strict=True)}


def _parts(text: str) -> tuple[str, list[str]]:
    if os.path.exists(text):
        return "", [text]
    named = _NAMED.fullmatch(text)
    name, rest = (named[1], named[2]) if named else ("", text)
    runs = [rest] if os.path.exists(rest) else [part.strip() for part in rest.split(",")]
    if not all(runs):
        raise Rejected(f"{text!r}: a run is missing; expected A, A1,A2 or name=A1,A2")
    return name, runs


def load_unit(settings: Settings, question: Question, name: str) -> Unit | NoUnit:
    """Return what a run brings to a comparison; ask the service only where a run is not here."""
    if os.path.isdir(name):
        return unit_of_directory(name, Path(name), question)
    if "/" in name:
        raise NotFound(f"{name}: no such run directory")
    is_run = name.startswith("run_")
    here = find_run_dir(name, settings.home, own=False) if is_run else None
    if here is not None:
        return unit_of_directory(name, here, question)
    try:
        with connect(settings) as client:
            run = resolve_run(client, name)
            if run is None:
                return NoUnit(name=name, why="it has no run yet")
            view = client.run(run)
            rows = client.get(f"/experiments/{view.experiment}/decisions")["items"]
    except Unavailable as error:
        raise Unavailable(f"{name}: no such directory here; {error.detail}") from error
    here = find_run_dir(run, settings.home, own=False) or Path(view.dir or "-")
    if here.is_dir():
        return unit_of_directory(name, here, question)
    judged = [row for row in rows if (row["run"], row["kind"]) == (run, DecisionKind.AUTO)]
    if not judged:
        return NoUnit(name=name, why=f"{run} is not judged yet")
    recorded = record_of(max(judged, key=lambda row: int(row["seq"])))
    return unit_of_decision(name, recorded, question)


POLL_S = 1.0
Id = Annotated[str, typer.Argument(help="Campaign: id, beginning of it, name, or `last`.")]


def submit(
    plan: Annotated[str, typer.Argument(help="Bundled campaign's name, or a YAML file.")],
    name: Annotated[str | None, typer.Option(help="Name of the campaign.")] = None,
    set_: Sets = None,
    grid: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=A,B",
            help="Values of a train.KEY or env.NAME; each combination is a variant.",
        ),
    ] = None,
    repeats: Annotated[
        int | None, typer.Option(help="Runs of each variant before the first look, 3 to 20.")
    ] = None,
    label: Labels = None,
    idempotency_key: Key = None,
    dry_run: DryRun = False,
    wait: Annotated[bool, typer.Option(help="Follow it until it ends.")] = False,
    as_json: Json = False,
) -> None:
    """Submit a campaign: its variants are run in turns, and compared."""
    argument = read_plan(plan)
    sets = parse_sets(set_ or []) | parse_grid(grid or [])
    with connect() as client:
        answer = submit_plan(
            client,
            "/campaigns",
            argument,
            sets,
            key=idempotency_key,
            name=name,
            repeats=repeats,
            labels=parse_pairs(label or [], "--label"),
            dry_run=dry_run,
        )
        if dry_run:
            print_json(answer)
            return
        address = f"{client.url}/campaigns/{answer['id']}"
        again = f"gonogo campaign show {answer['id']}"
        if not wait:
            print_made(answer, address, again, as_json=as_json)
            return
        print_lines([f"{answer['id']}  {address}"], err)
        with following(answer["id"], f"look at it with: {again}"):
            final = _follow(client, answer["id"], quiet=as_json)
    print_json(final.wire()) if as_json else _print_campaign(final)
    raise typer.Exit(exit_of_campaign(final))


def show(campaign: Id, as_json: Json = False) -> None:
    """Show a campaign: its runs, how far it is, and what it came to."""
    with connect() as client:
        view = _load(client, campaign)
    print_json(view.wire()) if as_json else _print_campaign(view)


def list_(limit: Limit = 20, as_json: Json = False) -> None:
    """List campaigns, newest first."""
    with connect() as client:
        page = client.get("/campaigns", limit=limit)
    print_list(
        page,
        [CampaignView.model_validate(item) for item in page["items"]],
        {
            "campaign": "id",
            "name": "name",
            "state": "state",
            "result": "result_words",
            "runs": lambda row: f"{row.done} of {row.planned}",
            "submitted": lambda row: ago(row.created_at),
        },
        as_json=as_json,
        empty="there is no campaign yet; begin one with: gonogo campaign submit campaign-demo",
        cut=("name", "result"),
        optional=("runs", "submitted"),
    )


def cancel(campaign: Id, reason: Reason = "", as_json: Json = False) -> None:
    """Stop a campaign and its active run."""
    with connect() as client:
        found = _load(client, campaign)
        answer = client.post(f"/campaigns/{found.id}/cancel", {"reason": reason})
    view = CampaignView.model_validate(answer)
    if as_json:
        print_json(view.wire())
    else:
        out.print(f"{view.id}: {view.state}", highlight=False)


def exit_of_campaign(view: CampaignView) -> Exit:
    """Return the exit code of one that has ended: answered, inconclusive, or cancelled."""
    if view.state is CampaignState.CANCELLED:
        return Exit.CANCELLED
    if view.comparison is None or view.comparison.result is Result.INCONCLUSIVE:
        return Exit.INCONCLUSIVE
    return Exit.OK


def _load(client: Client, text: str) -> CampaignView:
    _, found = resolve(client, text, Kind.CAMPAIGN)
    return CampaignView.model_validate(client.get(f"/campaigns/{found}"))


def _follow(client: Client, campaign: str, *, quiet: bool) -> CampaignView:
    said = ""
    while True:
        view = CampaignView.model_validate(client.get(f"/campaigns/{campaign}"))
        line = f"{view.done} of {view.planned} runs"
        line += f", waits for {view.waiting_for}" if view.waiting_for else ""
        if not quiet and line != said:
            print_lines([line])
            said = line
        if view.state is not CampaignState.RUNNING:
            return view
        time.sleep(POLL_S)


def _print_campaign(view: CampaignView) -> None:
    eta = None if view.eta_s is None else f", about {duration(view.eta_s)} to go"
    print_fields(
        {
            "campaign": f"{view.id} [bold]{escape(view.name)}[/bold]",
            "plan": view.plan,
            "state": f"{view.state}  {view.done} of {view.planned} runs{eta or ''}",
            "compares": f"{view.spec.metric}{' per device' if view.spec.per_device else ''} of "
            + ", ".join(f"{row.name} ({escape(row.text())})" for row in view.spec.variants),
            "submitted": f"{ago(view.created_at)} by {escape(view.submitted_by or '–')}",
        }
    )
    if view.members:
        print_table(
            view.members,
            {
                "variant": "variant",
                "experiment": "experiment",
                str(view.spec.metric): lambda row: "–" if row.value is None else f"{row.value:.6g}",
                "verdict": lambda row: verdict_text(row.verdict) if row.verdict else row.state,
                "repeat": "repeat",
            },
            cut=("variant",),
            optional=("verdict", "repeat"),
        )
        print_lines(
            f"  does not count  {row.variant} {row.repeat}: {row.why}"
            for row in view.members
            if row.why
        )
    if view.comparison is not None:
        print_comparison(view.comparison)
    else:
        print_lines([view.text])
        if view.waiting_for:
            print_lines([f"waits for {view.waiting_for}"])
    print_lines(f"next: {row.command}  ({row.text})" for row in view.next)


group = typer.Typer(name="campaign", help="Run variants in turns and compare them.")
group.command()(submit)
group.command()(show)
group.command("list")(list_)
group.command()(cancel)
