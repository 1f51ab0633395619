"""Commands that only read: `status`, `workers`, `alerts`, `decisions`, `artifacts`, `open`."""

import sys
import webbrowser
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

import typer
from rich.markup import escape

from gonogo.cli.client import Client, client_of, connect
from gonogo.cli.completing import complete_decisions, complete_experiments, complete_runs
from gonogo.cli.describing import criteria_lines, diagnosis_lines, wait_of
from gonogo.cli.exits import Exit
from gonogo.cli.naming import resolve, resolve_run
from gonogo.cli.output import (
    Json,
    ago,
    decided_text,
    duration,
    err,
    local_time,
    out,
    print_fields,
    print_json,
    print_lines,
    print_table,
    size_text,
)
from gonogo.cli.settings import Settings, load_settings
from gonogo.contract.api import AlertView, ArtifactsView, ExperimentView, RunView, WorkerView
from gonogo.contract.decision import Decision
from gonogo.contract.errors import GonogoError, NotAllowed, NotFound, Rejected, Unavailable
from gonogo.contract.ids import Kind
from gonogo.contract.lifecycle import ExperimentState
from gonogo.judge.words import sentence

_ACTIVE = (ExperimentState.RUNNING, ExperimentState.STOPPING, ExperimentState.QUEUED)
MOST_EXPERIMENTS = 20
"""Of each state that `status` shows."""
MOST_COMMANDS = 3
DISPLAYS = ("DISPLAY", "WAYLAND_DISPLAY")
_STATE_STYLE = {
    "up": "green",
    "silent": "yellow",
    "draining": "yellow",
    "delivered": "green",
    "pending": "yellow",
    "failed": "red",
}


def _styled(state: str) -> str:
    style = _STATE_STYLE.get(state, "dim")
    return f"[{style}]{state}[/{style}]"


def load_workers(client: Client) -> list[WorkerView]:
    """Return all workers that ever claimed."""
    return [WorkerView.model_validate(row) for row in client.pages("/workers")]


def workers(as_json: Json = False) -> None:
    """List the workers: devices, free ones, runs, when they were last heard of."""
    with connect() as client:
        rows = load_workers(client)
    if as_json:
        print_json({"items": [row.wire() for row in rows]})
    elif not rows:
        out.print("no worker has claimed anything yet; start one with: gonogo worker")
    else:
        labels = [" ".join(f"{name}={value}" for name, value in r.labels.items()) for r in rows]
        print_table(
            {
                "worker": [escape(row.id) for row in rows],
                "state": [_styled(row.state) for row in rows],
                "free": [f"{len(row.free)} of {len(row.devices)}" for row in rows],
                "runs": [str(len(row.active)) for row in rows],
                "heard of": [ago(row.last_seen_at) for row in rows],
                "labels": [escape(text) for text in labels],
                "profiles": [escape(", ".join(row.profiles)) for row in rows],
                "host": [escape(row.host) for row in rows],
                "version": [escape(row.version) for row in rows],
            },
            cut=("worker",),
            optional=("heard of", "labels", "profiles", "host", "version"),
        )


def alerts(
    limit: Annotated[int, typer.Option(min=1, max=1000, help="How many.")] = 20,
    as_json: Json = False,
) -> None:
    """List alerts, newest first, with what became of their delivery."""
    with connect() as client:
        page = client.get("/alerts", limit=limit)
    rows = [AlertView.model_validate(row) for row in page["items"]]
    if as_json:
        print_json({"items": [row.wire() for row in rows]})
    elif not rows:
        out.print("nothing has called for attention")
    else:
        print_table(
            {
                "at": [ago(row.at) for row in rows],
                "type": [row.type for row in rows],
                "delivery": [_styled(row.state) for row in rows],
                "alert": [escape(row.text) for row in rows],
                "id": [row.id for row in rows],
            },
            cut=("alert",),
            optional=("type", "delivery", "id"),
        )


def decisions(
    which: Annotated[
        str,
        typer.Argument(
            help="Experiment (all its decisions) or one decision: id, beginning, name, or `last`.",
            autocompletion=complete_decisions,
        ),
    ] = "last",
    as_json: Json = False,
) -> None:
    """List the decisions of an experiment, or show one with all its criteria."""
    with connect() as client:
        kind, found = resolve(client, which, Kind.EXPERIMENT, Kind.DECISION)
        if kind is Kind.DECISION:
            documents = [client.get_patiently(f"/decisions/{found}")]
        else:
            documents = list(client.pages(f"/experiments/{found}/decisions"))
    if as_json:
        print_json(documents[0] if kind is Kind.DECISION else {"items": documents})
    elif kind is Kind.DECISION:
        _print_decision(documents[0])
    elif not documents:
        out.print(f"nothing is decided yet of {found}")
    else:
        rows = [Decision.model_validate(row) for row in documents]
        print_table(
            {
                "#": [str(row.seq) for row in rows],
                "phase": [escape(row.phase or "–") for row in rows],
                "verdict": [decided_text(row) for row in rows],
                "id": [row.id for row in rows],
                "kind": [row.kind for row in rows],
                "by": [escape(row.actor) for row in rows],
                "at": [ago(row.at) for row in rows],
                "reason": [escape(row.reason or "") for row in rows],
            },
            cut=("phase", "reason"),
            optional=("id", "kind", "by", "at", "reason"),
        )


def _print_decision(document: dict[str, Any]) -> None:
    row = Decision.model_validate(document)
    print_fields(
        {
            "decision": row.id,
            "verdict": decided_text(row),
            "experiment": row.experiment,
            "phase": row.phase,
            "run": row.run,
            "by": f"{escape(row.actor)} ({row.kind})",
            "at": local_time(row.at),
            "reason": escape(row.reason) if row.reason else None,
        }
    )
    if row.waives:
        print_lines([f"  waived       {', '.join(row.waives)}"])
    if row.diagnosis is not None:
        print_lines(f"  {line}" for line in diagnosis_lines(row))
    print_lines(criteria_lines(document["criteria"]))
    print_lines(f"  weakened     {sentence(doubt)}" for doubt in row.weakened)
    out.print(f"[dim]check it with:[/dim] gonogo replay {row.id}")


def artifacts(
    run: Annotated[
        str,
        typer.Argument(
            help="Run or experiment (its newest run): id, beginning, name, or `last`.",
            autocompletion=complete_runs,
        ),
    ] = "last",
    file: Annotated[str | None, typer.Argument(help="File to print, as the list names it.")] = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Write the file here.")
    ] = None,
    as_json: Json = False,
) -> None:
    """List the files of a run, or print one of them."""
    if (output is not None or as_json) and (file is None) != as_json:
        raise Rejected("-o goes with a FILE, --json with the list")
    with connect() as client:
        found = resolve_run(client, run)
        if found is None:
            raise NotFound(f"{run} has no run yet")
        if file is not None:
            answer = client.call("GET", f"/runs/{found}/artifacts/{quote(file)}")
            _save(answer.content, output)
            return
        view = ArtifactsView.model_validate(client.get(f"/runs/{found}/artifacts"))
    if as_json:
        print_json(view.wire())
        return
    if view.items:
        print_table(
            {
                "file": [escape(row.path) for row in view.items],
                "size": [size_text(row.bytes) for row in view.items],
                "": ["cut short" if row.truncated else "" for row in view.items],
            },
            cut=("file",),
            optional=("",),
        )
    else:
        out.print("no file of this run can be had here")
    if view.dir is not None:
        where = "in" if view.reachable else f"the rest lies on {view.host} in"
        print_lines([f"{where} {view.dir}"], err)


def _save(content: bytes, output: Path | None) -> None:
    if output is None:
        sys.stdout.buffer.write(content)
        sys.stdout.buffer.flush()
        return
    try:
        output.write_bytes(content)
    except OSError as error:
        raise Rejected(f"-o {output}: {error.strerror or error}") from error
    print_lines([f"{output}: {size_text(len(content))}"], err)


def open_page(
    experiment: Annotated[
        str | None,
        typer.Argument(
            help="Experiment: id, beginning, name, or `last`; default: the list of all.",
            autocompletion=complete_experiments,
        ),
    ] = None,
    only_print: Annotated[
        bool, typer.Option("--print", help="Print the address; open nothing.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Open a page in the browser, or print its address when there is none."""
    settings = load_settings()
    with client_of(settings) as client:
        path = "/"
        if experiment is not None:
            path = f"/experiments/{resolve(client, experiment, Kind.EXPERIMENT)[1]}"
        else:
            client.get("/experiments", limit=1)
        try:
            link = f"{client.post('/sign-in-links')['url']}&next={quote(path)}"
        except NotAllowed:
            link = None
    url = f"{settings.url}{path}"
    desk = any(settings.inherited.get(name) for name in DISPLAYS)
    opened = desk and not only_print and not as_json and webbrowser.open(link or url)
    if as_json:
        print_json({"url": url, "sign_in": link, "opened": opened})
        return
    out.print(url, soft_wrap=True, highlight=False)
    if not opened and link is not None:
        err.print(f"sign in once with {link}", soft_wrap=True, highlight=False)


def status(as_json: Json = False) -> None:
    """Show whether the service is up, what is active and what waits for you; exit 5: not up."""
    found, runs = load_status(load_settings())
    if as_json:
        print_json(found | {name: [row.wire() for row in found[name]] for name in _LISTS})
    else:
        _print_status(found, runs)
    raise typer.Exit(Exit.OK if found["ready"] else Exit.UNREACHABLE)


_LISTS = ("workers", "going_on", "waiting")


def load_status(settings: Settings) -> tuple[dict[str, Any], dict[str, RunView]]:
    """Return what `--json` prints, with views, and experiment → its newest run.

    Raises:
        NotAllowed: the service does not know the key.
    """
    found: dict[str, Any] = {
        "up": False,
        "ready": False,
        "url": settings.url,
        "source": settings.service.source,
        "problem": None,
        "version": None,
        "home": str(settings.home),
        **{name: [] for name in _LISTS},
    }
    runs: dict[str, RunView] = {}
    try:
        with client_of(settings) as client:
            found["version"] = client.get(f"{settings.url}/healthz").get("version")
            found["up"] = True
            client.get(f"{settings.url}/readyz")
            active = _experiments(client, *_ACTIVE)
            waiting = _experiments(client, ExperimentState.AWAITING_DECISION)
            found |= {"workers": load_workers(client), "going_on": active, "waiting": waiting}
            for view in active:
                if ids := [run for phase in view.phases for run in phase.runs]:
                    runs[view.id] = client.run(max(ids))
            found["ready"] = True
    except NotAllowed:
        raise
    except Unavailable as error:
        found |= {"problem": error.detail, **{name: [] for name in _LISTS}}
    except GonogoError as error:
        found |= {"up": False, "problem": error.detail}
    return found, runs


def _experiments(client: Client, *states: ExperimentState) -> list[ExperimentView]:
    pages = [
        client.get("/experiments", state=each.value, limit=MOST_EXPERIMENTS) for each in states
    ]
    return [ExperimentView.model_validate(row) for page in pages for row in page["items"]]


def _print_status(found: dict[str, Any], runs: dict[str, RunView]) -> None:
    word = "[bold red]not up[/bold red]"
    if found["ready"]:
        word = "[green]up[/green]"
    elif found["up"]:
        word = "[yellow]up, but not ready[/yellow]"
    fields = {"service": f"{word}  {found['url']}", "home": escape(found["home"])}
    if found["problem"] is not None:
        fields["why"] = escape(found["problem"])
    if not found["ready"]:
        print_fields(fields)
        return
    print_fields({**fields, "workers": _workers_text(found["workers"])})
    out.print("\n[bold]active[/bold]" if found["going_on"] else "\nnothing is active")
    for view in found["going_on"]:
        out.print(f"  {view.id}  {escape(view.name)}", highlight=False)
        out.print(f"      {escape(_progress_text(view, runs.get(view.id)))}", highlight=False)
    out.print("\n[bold]waits for you[/bold]" if found["waiting"] else "\nnothing waits for you")
    for view in found["waiting"]:
        out.print(f"  {view.id}  {escape(view.name)}", highlight=False)
        out.print(f"      [yellow]{escape(view.waiting_for or 'a decision')}[/yellow]")
        rows = view.next[:MOST_COMMANDS]
        wide = max((len(row.command) for row in rows), default=0)
        for row in rows:
            line = f"      {escape(row.command.ljust(wide))}  [dim]# {escape(row.text)}[/dim]"
            out.print(line, soft_wrap=True)


def _workers_text(rows: list[WorkerView]) -> str:
    living = [row for row in rows if row.state != "silent"]
    silent = len(rows) - len(living)
    if not living:
        quiet = f", {silent} silent" if silent else ""
        return f"[yellow]none is up{quiet}[/yellow]: start one with `gonogo worker`"
    free = sum(len(row.free) for row in living)
    devices = sum(len(row.devices) for row in living)
    text = f"{len(living)} {_styled('up')}, {free} of {devices} devices free"
    return f"{text}, {silent} {_styled('silent')}" if silent else text


def _progress_text(view: ExperimentView, run: RunView | None) -> str:
    """Return the progress of an experiment on one line."""
    parts = [str(view.state)]
    wait = wait_of(run, datetime.now(UTC)) if run is not None else None
    if run is not None and wait is not None:
        parts = [f"{run.phase}: {wait}"]
    elif run is not None:
        parts = [f"{run.phase} {run.step}/{run.steps}"]
        if run.loss is not None:
            parts.append(f"loss {run.loss:.4f}")
        parts += [flag.upper() for flag in ("suspect", "lost") if getattr(run, flag)]
    if view.forecast.seconds_p50 is not None:
        parts.append(f"about {duration(view.forecast.seconds_p50)} left")
    if view.waiting_for:
        parts.append(f"waits for {view.waiting_for}")
    return " · ".join(parts)


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.command()(status)
    app.command()(workers)
    app.command()(alerts)
    app.command()(decisions)
    app.command()(artifacts)
    app.command("open")(open_page)
