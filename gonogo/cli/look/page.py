"""Where is the page of an experiment? `gonogo open` prints its address, or opens it."""

import webbrowser
from typing import Annotated
from urllib.parse import quote

import typer

from gonogo.cli.client import Client
from gonogo.cli.connection import client_of
from gonogo.cli.output import err, out, print_json
from gonogo.cli.reach.completing import complete_experiments
from gonogo.cli.reach.naming import resolve
from gonogo.cli.settings import load_settings
from gonogo.contract.errors import NotAllowed
from gonogo.contract.ids import Kind

DISPLAYS = ("DISPLAY", "WAYLAND_DISPLAY")


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
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Open a page in the browser, or print its address where there is none."""
    settings = load_settings()
    with client_of(settings) as client:
        path = "/"
        if experiment is not None:
            path = f"/experiments/{resolve(client, experiment, Kind.EXPERIMENT)[1]}"
        else:
            client.get("/experiments", limit=1)
        link = sign_in_link(client, path)
    url = f"{settings.url}{path}"
    desk = any(settings.inherited.get(name) for name in DISPLAYS)
    opened = desk and not only_print and not as_json and webbrowser.open(link or url)
    if as_json:
        print_json({"url": url, "sign_in": link, "opened": opened})
        return
    out.print(url, soft_wrap=True, highlight=False)
    if not opened and link is not None:
        err.print(f"sign in once with {link}", soft_wrap=True, highlight=False)


def sign_in_link(client: Client, path: str) -> str | None:
    """Return a one-time link that signs a browser in and leads to a page; None when not allowed."""
    try:
        link = str(client.post("/sign-in-links")["url"])
    except NotAllowed:
        return None
    return f"{link}&next={quote(path)}"


def register(app: typer.Typer) -> None:
    """Add the command of this module."""
    app.command("open")(open_page)
