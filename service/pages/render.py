"""How does a template become a page? One Jinja2 environment: autoescaping, strict, few filters."""

import hashlib
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape
from markupsafe import Markup

from gonogo.judge.failures import explain_decision
from gonogo.judge.words import sentence
from service.report import text

HERE = Path(__file__).parent
STATIC = {
    "style.css": "text/css",
    "live.js": "text/javascript",
    "icon.svg": "image/svg+xml",
}
"""Files of `static/` and their types; nothing else is served."""


@cache
def environment() -> Environment:
    """Return the environment of all templates."""
    found = Environment(
        loader=PackageLoader("service.pages"),
        autoescape=select_autoescape(default=True),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.filters.update(
        number=text.number,
        loss=text.loss,
        duration=text.duration,
        clock=clock,
        label=label,
        explained=explain_decision,
        sentence=sentence,
    )
    found.globals["asset"] = asset
    return found


def render(template: str, **values: Any) -> str:
    """Return a page."""
    values.setdefault("who", None)
    values.setdefault("refresh_s", None)
    return environment().get_template(template).render(**values)


@cache
def load_static(name: str) -> bytes:
    """Return a static file."""
    return (HERE / "static" / name).read_bytes()


@cache
def asset(name: str) -> str:
    """Return the address of a static file, which changes with its content."""
    return f"/static/{name}?v={hashlib.sha256(load_static(name)).hexdigest()[:12]}"


def clock(instant: str | None) -> Markup:
    """Return an RFC 3339 instant as people read it: `2026-11-20 09:01:39 UTC`.

    Where scripts run, `live.js` shows it in the reader's own time.
    """
    if instant is None:
        return Markup.escape(text.NONE)
    moment = datetime.fromisoformat(instant).astimezone(UTC)
    shown = f"{moment:%Y-%m-%d %H:%M:%S} UTC"
    return Markup('<time datetime="{}">{}</time>').format(f"{moment:%Y-%m-%dT%H:%M:%SZ}", shown)


def label(value: object) -> str:
    """Return a state's or verdict's words: `awaiting_decision` → `awaiting decision`."""
    return text.NONE if value is None else str(value).replace("_", " ")
