"""Which commands start processes? `up` everything, `serve` the control plane, `worker` a host."""

import signal
import threading
from dataclasses import replace
from queue import Empty, SimpleQueue
from types import FrameType
from typing import Annotated

import typer
from rich.markup import escape

from gonogo.cli.checkout import replace_process
from gonogo.cli.client import Client
from gonogo.cli.connection import check_place
from gonogo.cli.exits import Exit
from gonogo.cli.output import out, print_json, shown_if_taken, tell
from gonogo.cli.scheduler_commands import missing_commands
from gonogo.cli.settings import load_settings
from gonogo.cli.stack import Stack
from gonogo.contract.cluster import EngineName
from gonogo.contract.errors import GonogoError, Rejected

_LOOPBACK = "127.0.0.1"
Host = Annotated[str, typer.Option(help="Address to listen on.")]
Port = Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 takes a free one.")]
CHECKPOINT_GRACE_S = 600.0
_LOOK_S = 0.2
"""How often an `up` looks after its children."""
_RUNS_OF = {
    True: "runs end with a checkpoint and can be resumed",
    False: "what the scheduler has goes on, and is found again by the next `gonogo up`",
}
"""What becomes of the runs of an `up` that stops; True: it starts them itself."""


def up(
    host: Host = _LOOPBACK,
    port: Port = 8750,
    engine: Annotated[
        EngineName | None,
        typer.Option(help="Who starts runs: this host, or a scheduler (default: GONOGO_ENGINE)."),
    ] = None,
    allow: Annotated[
        list[str] | None,
        typer.Option(
            help="Program or module that plans may start here, e.g. python; may be repeated."
        ),
    ] = None,
    allow_env: Annotated[
        list[str] | None,
        typer.Option(help="Variable that plans may set here; may be repeated."),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON line when ready.")
    ] = False,
) -> None:
    """Run everything here: embedded server, service and one worker, each restarted when it dies."""
    settings = load_settings()
    engine = engine or settings.engine
    if engine is not EngineName.LOCAL and host == _LOOPBACK:
        host = "0.0.0.0"  # the runs' hosts have to reach it
    if (missing := missing_commands(engine, settings.inherited.get("PATH"))) is not None:
        raise Rejected(missing)
    told: SimpleQueue[signal.Signals] = SimpleQueue()

    def on_signal(number: int, frame: FrameType | None) -> None:
        """Put down who asked: an Event has a lock, which we may hold where the signal finds us."""
        del frame
        told.put(signal.Signals(number))

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, on_signal)
    stack = Stack(
        settings=settings,
        host=host,
        port=port,
        engine=engine,
        allow=allow or (),
        allow_env=allow_env or (),
        say=tell,
    )
    again: signal.Signals | None = None
    with stack:
        with shown_if_taken():
            _announce(stack, as_json)
        while (first := _next(told)) is None:
            stack.tend(tell)
        tell(f"stopping: {_RUNS_OF[engine is EngineName.LOCAL]} (Ctrl-C again: now)")
        stopper = threading.Thread(target=stack.stop, args=(CHECKPOINT_GRACE_S, first), daemon=True)
        stopper.start()
        while again is None and stopper.is_alive():
            again = _next(told)
        if again is not None:
            for child in stack.children:
                child.stop(0.5)
    raise typer.Exit(Exit.OK if again is None else Exit.INTERRUPTED)


def _next(told: SimpleQueue[signal.Signals]) -> signal.Signals | None:
    """Return the next signal; None where none comes for a moment."""
    try:
        return told.get(timeout=_LOOK_S)
    except Empty:
        return None


def _announce(stack: Stack, as_json: bool) -> None:
    link = sign_in_link(stack)
    if as_json:
        print_json({"url": stack.url, "home": str(stack.home), "sign_in": link})
        return
    out.print(f"gonogo is up at {stack.url}  [dim](home {escape(str(stack.home))})[/dim]")
    out.print(f"sign in once with   {link}", soft_wrap=True)
    out.print("[dim]submit with          gonogo submit demo[/dim]")
    out.print("[dim]look around with     gonogo status[/dim]")


def sign_in_link(stack: Stack) -> str:
    """Return a one-time link that signs a browser in."""
    key = replace(stack.settings, api_key=None).key()
    with Client(stack.url, key) as client:
        try:
            return str(client.post("/sign-in-links")["url"])
        except GonogoError as error:
            return f"{stack.url} (no sign-in link: {error.detail})"


def serve(
    host: Host = "127.0.0.1",
    port: Port = 8750,
    no_conduct: Annotated[
        bool, typer.Option("--no-conduct", help="Serve requests only; another one conducts.")
    ] = False,
) -> None:
    """Run the control plane alone."""
    arguments = ["serve", "--host", host, "--port", str(port)]
    if no_conduct:
        arguments.append("--no-conduct")
    replace_process("service", *arguments, environ=load_settings().inherited)


def worker() -> None:
    """Run a worker on this GPU host, for the service of this home or of GONOGO_URL."""
    settings = load_settings()
    check_place(settings, "worker_key")  # whoever answers gets it, and says what to start
    environ = {"GONOGO_URL": settings.url, **settings.inherited}
    replace_process("worker", environ=environ)


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.command()(up)
    app.command()(serve)
    app.command()(worker)
