"""Commands that start processes: `up`, `serve`, `worker`, `simulate`, `demo`."""

import os
import shlex
import signal
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from queue import Empty, SimpleQueue
from types import FrameType
from typing import Annotated, Any

import typer

from gonogo.cli.client import Client
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
from gonogo.cli.stack import Stack, application_argv, application_env, missing_commands
from gonogo.cli.watching import watch_experiment
from gonogo.contract.api import ExperimentView
from gonogo.contract.errors import NotFound, Rejected, Unavailable
from gonogo.contract.plan import KINDS
from gonogo.contract.workload import EngineName
from gonogo.planning.resolve import checkout_root, resolve_plan
from gonogo.planning.source import bundled_plan

_LOOPBACK = "127.0.0.1"
Host = Annotated[str, typer.Option(help="Address to listen on.")]
Port = Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 takes a free one.")]
CHECKPOINT_GRACE_S = 600.0
_LOOK_S = 0.2
"""How often `up` checks its processes."""


def up(
    host: Host = _LOOPBACK,
    port: Port = 8750,
    engine: Annotated[
        EngineName | None,
        typer.Option(help="What starts runs: this host, or a scheduler (default: GONOGO_ENGINE)."),
    ] = None,
    allow: Annotated[
        list[str] | None,
        typer.Option(help="Program or module that plans may start, e.g. python; repeatable."),
    ] = None,
    allow_env: Annotated[
        list[str] | None, typer.Option(help="Variable that plans may set here; repeatable.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Run everything here: queue server, service and one worker, each restarted when it dies."""
    settings = load_settings()
    engine = engine or settings.engine
    local = engine is EngineName.LOCAL
    if not local and host == _LOOPBACK:
        host = "0.0.0.0"  # the runs' hosts must reach it
    if (missing := missing_commands(engine, settings.inherited.get("PATH"))) is not None:
        raise Rejected(missing)
    signals: SimpleQueue[signal.Signals] = SimpleQueue()  # safe in a signal handler

    def on_signal(number: int, frame: FrameType | None) -> None:
        del frame
        signals.put(signal.Signals(number))

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, on_signal)
    stack = Stack(
        settings=settings,
        host=host,
        port=port,
        engine=engine,
        allow=allow or (),
        allow_env=allow_env or (),
    )
    again: signal.Signals | None = None
    with stack:
        _announce(stack, as_json)
        while (first := _next(signals)) is None:
            stack.tend(say)
        runs = "runs of the scheduler continue, and the next `gonogo up` finds them"
        if local:
            runs = "runs end with a checkpoint and can be resumed"
        say(f"stopping: {runs} (Ctrl-C again: now)")
        stopper = threading.Thread(target=stack.stop, args=(CHECKPOINT_GRACE_S, first), daemon=True)
        stopper.start()
        while again is None and stopper.is_alive():
            again = _next(signals)
        for child in stack.children if again is not None else ():
            child.stop(0.5)
    raise typer.Exit(Exit.OK if again is None else Exit.INTERRUPTED)


def _next(signals: SimpleQueue[signal.Signals]) -> signal.Signals | None:
    try:
        return signals.get(timeout=_LOOK_S)
    except Empty:
        return None


def _announce(stack: Stack, as_json: bool) -> None:
    """Print the address, with a one-time link that signs a browser in."""
    key = replace(stack.settings, api_key=None).key()
    with Client(stack.url, key) as client:
        link = str(client.post("/sign-in-links")["url"])
    if as_json:
        print_json({"url": stack.url, "home": str(stack.home), "sign_in": link})
        return
    print_lines(
        [
            f"gonogo is up at {stack.url}  (home {stack.home})",
            f"sign in once with   {link}",
            "submit with         gonogo submit demo",
            "look around with    gonogo status",
        ]
    )


def serve(
    host: Host = _LOOPBACK,
    port: Port = 8750,
    no_conduct: Annotated[
        bool, typer.Option("--no-conduct", help="Serve requests only; another process conducts.")
    ] = False,
) -> None:
    """Run the control plane alone."""
    more = ["--no-conduct"] if no_conduct else []
    arguments = ["serve", "--host", host, "--port", str(port), *more]
    _become(load_settings().inherited, "service", *arguments)


def worker() -> None:
    """Run a worker on this GPU host, for the service of this home or of GONOGO_URL."""
    settings = load_settings()
    _become({"GONOGO_URL": settings.url, **settings.inherited}, "worker")


def _become(environ: Mapping[str, str], module: str, *arguments: str) -> None:
    """Replace this process by an application, in the checkout's folder."""
    env = application_env(environ)
    os.chdir(checkout_root())
    os.execve(sys.executable, application_argv(module, *arguments), env)


def simulate(context: typer.Context) -> None:
    """Simulate runs and count false halts, misses and latencies; exit 1 on any halt or miss."""
    if not (checkout_root() / "lab").is_dir():
        raise NotFound("gonogo simulate needs a checkout: the simulator is not installed here")
    env = application_env(load_settings().inherited)
    os.execve(sys.executable, application_argv("lab", *context.args), env)


_SHOWN_OF_RUNS = ("id", "phase", "attempt", "dir", "outcome", "verdict")
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
            client.meanwhile = lambda: stack.tend(_say)
            watch_experiment(client, experiment)
        except KeyboardInterrupt:
            err.print("\ndemo: ending with a checkpoint")
            gonogo = _in_home(home)
            _say(f"to continue: {gonogo} up --port 0, and then: {gonogo} resume {experiment}")
            raise typer.Exit(Exit.INTERRUPTED) from None
        _await_alerts(client)
        view = client.experiment(experiment)
        result = build_result(client, view, home)
    print_json(result) if as_json else _print_result(result, view)
    raise typer.Exit(exit_of_experiment(view))


def settings_within(settings: Settings, home: Path) -> Settings:
    """Return settings of a home of its own; nothing leads out of it."""
    inherited = {k: v for k, v in settings.inherited.items() if not k.startswith(_ELSEWHERE)}
    return replace(settings, home=home, api_key=None, redis_url=None, inherited=inherited)


def _say(text: str) -> None:
    say(text, "demo: ")


def _await_alerts(client: Client) -> None:
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
        client.call("GET", f"/experiments/{view.id}/report")
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
        "runs": [{name: run.wire()[name] for name in _SHOWN_OF_RUNS} for run in runs],
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
    return f"GONOGO_HOME={shlex.quote(str(home))} gonogo"
