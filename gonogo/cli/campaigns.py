"""`gonogo campaign`: submit campaigns, show them, cancel them (docs/how-to/compare.md)."""

import time
from typing import Annotated

import typer
from rich.markup import escape

from gonogo.cli.client import Client, connect, resolve
from gonogo.cli.comparing import print_comparison
from gonogo.cli.exits import Exit
from gonogo.cli.experiments import DryRun, Key, Reason, Sets
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
from gonogo.cli.plan_arguments import (
    parse_grid,
    parse_pairs,
    parse_sets,
    read_plan,
    submit_plan,
)
from gonogo.cli.watching import following
from gonogo.contract.api import CampaignState, CampaignView
from gonogo.contract.campaign import CampaignSpec, Result
from gonogo.contract.wire import Kind

POLL_S = 1.0
Id = Annotated[
    str,
    typer.Argument(help="Campaign: id, beginning of it, name, or `last`."),
]


def submit(
    plan: Annotated[
        str,
        typer.Argument(help="Bundled campaign's name, or a YAML file with a `campaign`."),
    ],
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
    if as_json:
        print_json(final.wire())
    else:
        _print_campaign(final)
    raise typer.Exit(exit_of_campaign(final))


def show(campaign: Id, as_json: Json = False) -> None:
    """Show a campaign: its runs, how far it is, and what it came to."""
    with connect() as client:
        view = _load(client, campaign)
    if as_json:
        print_json(view.wire())
    else:
        _print_campaign(view)


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
        line = _progress(view)
        if not quiet and line != said:
            print_lines([line])
            said = line
        if view.state is not CampaignState.RUNNING:
            return view
        time.sleep(POLL_S)


def _progress(view: CampaignView) -> str:
    words = [f"{view.done} of {view.planned} runs"]
    if view.waiting_for:
        words.append(f"waits for {view.waiting_for}")
    return ", ".join(words)


def _print_campaign(view: CampaignView) -> None:
    eta = None if view.eta_s is None else f", about {duration(view.eta_s)} to go"
    print_fields(
        {
            "campaign": f"{view.id} [bold]{escape(view.name)}[/bold]",
            "plan": view.plan,
            "state": f"{view.state}  {view.done} of {view.planned} runs{eta or ''}",
            "compares": f"{_compared(view.spec)} of "
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


def _compared(spec: CampaignSpec) -> str:
    return f"{spec.metric}{' per device' if spec.per_device else ''}"


group = typer.Typer(name="campaign", help="Run variants in turns and compare them.")
group.command()(submit)
group.command()(show)
group.command("list")(list_)
group.command()(cancel)
