"""`gonogo demo`: one real experiment through every phase, on this machine.

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
from gonogo.cli.exits import Exit, exit_of_experiment, interrupt_on_signals
from gonogo.cli.output import (
    Json,
    err,
    out,
    print_json,
    print_lines,
    say,
    standing_text,
    verdict_text,
)
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
"""Settings that lead out of a fresh home, to a service, database or people in use."""


def demo(
    fault: Annotated[
        str | None,
        typer.Option(help=f"Break it: {', '.join(KINDS)}[:k=v,…]."),
    ] = None,
    webhook: Annotated[
        str | None, typer.Option(help="Deliver finding.halt alerts to this URL.")
    ] = None,
    as_json: Json = False,
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
            print_lines([f"demo: alerts go to {webhook}, signed with {made['secret']}"], err)
        body = {"plan": "demo", "name": "demo", "set": sets}
        experiment = client.post("/experiments", body, **{"Idempotency-Key": stamp})["id"]
        err.print(f"demo: {experiment} at {stack.url}", highlight=False)
        try:
            watch_experiment(client, experiment, meanwhile=lambda: stack.tend(_say))
        except KeyboardInterrupt:
            err.print("\ndemo: ending with a checkpoint")
            gonogo = _in_home(home)
            _say(f"to continue: {gonogo} up --port 0, and then: {gonogo} resume {experiment}")
            raise typer.Exit(Exit.INTERRUPTED) from None
        _await_alerts(client)
        view = client.experiment(experiment)
        result = build_result(client, view, home)
    if as_json:
        print_json(result)
    else:
        _print_result(result, view)
    raise typer.Exit(exit_of_experiment(view))


def settings_within(settings: Settings, home: Path) -> Settings:
    """Return settings of a home of its own; nothing leads out of it."""
    inherited = {k: v for k, v in settings.inherited.items() if not k.startswith(_ELSEWHERE)}
    return replace(settings, home=home, api_key=None, redis_url=None, inherited=inherited)


def _say(text: str) -> None:
    say(text, "demo: ")


def _await_alerts(client: Client) -> None:
    """Wait, within bounds, until every alert has left the outbox."""
    deadline = time.monotonic() + _ALERTS_S
    while time.monotonic() < deadline:
        if all(alert.get("state") != "pending" for alert in client.pages("/alerts")):
            return
        time.sleep(0.2)
    err.print("demo: some alerts are not delivered yet; they stay in the outbox")


def build_result(client: Client, view: ExperimentView, home: Path) -> dict[str, Any]:
    """Return what `--json` prints, and have the report drawn into the home."""
    decisions = list(client.pages(f"/experiments/{view.id}/decisions"))
    runs = [client.run(run) for phase in view.phases for run in phase.runs]
    findings = [row for run in runs for row in client.pages(f"/runs/{run.id}/findings")]
    try:
        client.call("GET", f"/experiments/{view.id}/report", timeout_s=DRAWN_S)
    except Unavailable as error:  # the verdict stands without it
        _say(f"the report is not drawn: {error}")
    last = runs[-1].outcome if runs else None
    return {
        "experiment": view.id,
        "verdict": view.verdict,
        "outcome": last.model_dump(mode="json") if last else None,
        "home": str(home),
        "report": str(home / "reports" / view.id / "report.md"),
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
    }


def _print_result(result: dict[str, Any], view: ExperimentView) -> None:
    for run in result["runs"]:
        outcome = run["outcome"]["code"] if run["outcome"] else "–"
        out.print(f"  {run['phase']:<12} {outcome:<16} {verdict_text(run['verdict'])}")
    halts = [row["text"] for row in result["findings"] if row["severity"] == "halt"]
    print_lines(f"  halted: {text}" for text in halts)
    out.print(f"\nverdict   {standing_text(view)}")
    print_lines([f"report    {result['report']}"])
    if result["decisions"]:
        command = f"{_in_home(result['home'])} replay {result['decisions'][-1]}"
        print_lines([f"check it  {command}"])


def _in_home(home: str | Path) -> str:
    """Return how `gonogo` is typed for this home."""
    return f"GONOGO_HOME={shlex.quote(str(home))} gonogo"
