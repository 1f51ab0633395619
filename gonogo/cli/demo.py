"""What does `gonogo demo` do? One real experiment through every phase, on this machine.

It starts everything in a fresh home below `GONOGO_HOME/demo/`, submits the plan `demo`, follows it
to its verdict and leaves the home for inspection. `--fault` breaks the run on purpose.
"""

import shlex
import time
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from gonogo.cli.client import DRAWN_S, Client
from gonogo.cli.exits import Exit, exit_of_experiment
from gonogo.cli.interrupts import interrupt_on_signals
from gonogo.cli.output import err, out, print_json, standing_text, tell, verdict_text
from gonogo.cli.settings import Settings, load_settings
from gonogo.cli.stack import Stack
from gonogo.cli.watching import watch_experiment
from gonogo.contract.api import ExperimentView
from gonogo.contract.errors import Unavailable
from gonogo.contract.fault import KINDS
from gonogo.planning.resolve import checkout_root, resolve_plan
from gonogo.planning.source import bundled_plan

_ALERTS_S = 15.0
"""How long the end waits for alerts to be delivered."""
_ELSEWHERE = (
    *("GONOGO_API_KEY", "GONOGO_DATABASE_", "REDIS_URL"),
    *("GONOGO_PUBLIC_URL", "GONOGO_WEBHOOK_"),
)
"""What leads out of a fresh home: a service that works, whose runs the demo would take and end,
whose page its links and sign-in tokens would lead to, and whose people its alerts would wake."""


def demo(
    fault: Annotated[
        str | None,
        typer.Option(help=f"Break it: {', '.join(KINDS)}[:k=v,…]."),
    ] = None,
    webhook: Annotated[
        str | None, typer.Option(help="Deliver finding.halt alerts to this URL.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Run one real experiment here, through every phase, to its verdict."""
    checkout_root()
    sets = {} if fault is None else {"fault": fault}
    resolve_plan(bundled_plan("demo"), sets)
    settings = load_settings()
    stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S-%f")
    home = settings.home / "demo" / stamp
    settings = settings_within(settings, home)
    interrupt_on_signals()
    _say(f"starting in {home}")
    with (
        Stack(settings=settings, port=0, say=_say) as stack,
        Client(stack.url, settings.key()) as client,
    ):
        if webhook:
            made = client.post("/webhooks", {"url": webhook, "types": ["finding.halt"]})
            err.print(
                f"demo: alerts go to {webhook}, signed with {made['secret']}",
                markup=False,
                highlight=False,
                soft_wrap=True,
            )
        body = {"plan": "demo", "name": "demo", "set": sets}
        experiment = client.post("/experiments", body, **{"Idempotency-Key": stamp})["id"]
        err.print(f"demo: {experiment} at {stack.url}", highlight=False)
        try:
            watch_experiment(client, experiment, meanwhile=lambda: stack.tend(_say))
        except KeyboardInterrupt:
            err.print("\ndemo: ending with a checkpoint")
            gonogo = _in_home(home)
            _say(f"it can go on: {gonogo} up --port 0, and then: {gonogo} resume {experiment}")
            raise typer.Exit(Exit.INTERRUPTED) from None
        _await_alerts(client)
        result = build_result(client, experiment, home)
    view = ExperimentView.model_validate(result.pop("view"))
    if as_json:
        print_json(result)
    else:
        _print_result(result, view)
    raise typer.Exit(exit_of_experiment(view))


def settings_within(settings: Settings, home: Path) -> Settings:
    """Return settings under which nothing leads out of a home of its own."""
    inherited = {k: v for k, v in settings.inherited.items() if not k.startswith(_ELSEWHERE)}
    return replace(settings, home=home, api_key=None, redis_url=None, inherited=inherited)


def _say(text: str) -> None:
    tell(f"demo: {text}")


def _await_alerts(client: Client) -> None:
    """Wait, within bounds, until every alert has left the outbox."""
    deadline = time.monotonic() + _ALERTS_S
    while time.monotonic() < deadline:
        if all(alert.get("state") != "pending" for alert in client.pages("/alerts")):
            return
        time.sleep(0.2)
    err.print("demo: some alerts are not delivered yet; they stay in the outbox")


def build_result(client: Client, experiment: str, home: Path) -> dict[str, Any]:
    """Return what the demo reports, and have the report drawn into the home."""
    view = client.experiment(experiment)
    decisions = list(client.pages(f"/experiments/{experiment}/decisions"))
    runs = [client.run(run) for phase in view.phases for run in phase.runs]
    findings = [row for run in runs for row in client.pages(f"/runs/{run.id}/findings")]
    _draw_report(client, experiment)
    report = home / "reports" / experiment / "report.md"
    last = runs[-1].outcome if runs else None
    return {
        "experiment": experiment,
        "verdict": view.verdict,
        "outcome": last.model_dump(mode="json") if last else None,
        "home": str(home),
        "report": str(report),
        "decisions": [decision["id"] for decision in decisions],
        "findings": findings,
        "runs": [
            {
                "id": run.id,
                "phase": run.phase,
                "attempt": run.attempt,
                "dir": run.dir,
                "outcome": run.outcome.model_dump(mode="json") if run.outcome else None,
                "verdict": run.verdict,
            }
            for run in runs
        ],
        "view": view.wire(),
    }


def _draw_report(client: Client, experiment: str) -> None:
    """Have the report drawn, which takes a busy machine minutes; the verdict stands without it."""
    try:
        client.call("GET", f"/experiments/{experiment}/report", timeout_s=DRAWN_S)
    except Unavailable as error:
        _say(f"the report is not drawn: {error}")


def _print_result(result: dict[str, Any], view: ExperimentView) -> None:
    for run in result["runs"]:
        outcome = run["outcome"]["code"] if run["outcome"] else "–"
        out.print(f"  {run['phase']:<12} {outcome:<16} {verdict_text(run['verdict'])}")
    for finding in result["findings"]:
        if finding["severity"] == "halt":
            out.print(f"  halted: {finding['text']}", highlight=False, markup=False)
    out.print(f"\nverdict   {standing_text(view)}")
    out.print(f"report    {result['report']}", soft_wrap=True, highlight=False, markup=False)
    if result["decisions"]:
        command = f"{_in_home(result['home'])} replay {result['decisions'][-1]}"
        out.print(f"check it  {command}", soft_wrap=True, highlight=False, markup=False)


def _in_home(home: str | Path) -> str:
    """Return how `gonogo` is typed for this home."""
    return f"GONOGO_HOME={shlex.quote(str(home))} gonogo"


def register(app: typer.Typer) -> None:
    """Add the command of this module."""
    app.command()(demo)
