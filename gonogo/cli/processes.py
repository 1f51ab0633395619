"""Commands that start processes: `up`, `serve`, `worker`, `simulate`."""

import os
import signal
import sys
import threading
from collections.abc import Mapping
from dataclasses import replace
from queue import Empty, SimpleQueue
from types import FrameType
from typing import Annotated

import typer

from gonogo.cli.client import Client
from gonogo.cli.exits import Exit
from gonogo.cli.output import print_json, print_lines, say
from gonogo.cli.settings import load_settings
from gonogo.cli.stack import Stack, application_argv, application_env, missing_commands
from gonogo.contract.cluster import EngineName
from gonogo.contract.errors import NotFound, Rejected
from gonogo.planning.resolve import checkout_root

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
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON line when ready.")
    ] = False,
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
