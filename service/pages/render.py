"""Renders templates: one Jinja2 environment, autoescaping and strict."""

import hashlib
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape
from markupsafe import Markup

from gonogo.contract.api import ExperimentView
from gonogo.contract.decision import Verdict
from gonogo.contract.lifecycle import ExperimentState
from gonogo.judge.failures import explain_decision
from gonogo.judge.words import sentence
from service import charts, text

HERE = Path(__file__).parent
LAMPS = {"go": "#22c55e", "warn": "#f59e0b", "bad": "#ef4444", "busy": "#3b82f6", "grey": "#94a3b8"}
"""State of the world → colour of the icon; `style.css` colours the lamp."""
STATIC = {
    "style.css": "text/css",
    "live.js": "text/javascript",
    **{f"icon-{lamp}.svg": "image/svg+xml" for lamp in LAMPS},
}
_ICON = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 32 32"><rect width="32" height="32"'
    ' rx="8" fill="#0f172a"/><circle cx="16" cy="16" r="8" fill="{}"/></svg>'
)


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
    values.setdefault("lamp", "grey")
    values["now"] = datetime.now(UTC).isoformat()
    return environment().get_template(template).render(**values)


@cache
def load_static(name: str) -> bytes:
    """Return a static file; the style sheet includes that of the charts."""
    if name.startswith("icon-"):
        return _ICON.format(LAMPS[name.removeprefix("icon-").removesuffix(".svg")]).encode()
    content = (HERE / "static" / name).read_bytes()
    return content + charts.style().encode() if name == "style.css" else content


@cache
def asset(name: str) -> str:
    """Return the address of a static file, which changes with its content."""
    return f"/static/{name}?v={hashlib.sha256(load_static(name)).hexdigest()[:12]}"


def clock(instant: str | None) -> Markup:
    """Return an RFC 3339 instant as UTC; `live.js` shows it in the reader's own time."""
    if instant is None:
        return Markup.escape(text.NONE)
    moment = datetime.fromisoformat(instant).astimezone(UTC)
    shown = f"{moment:%Y-%m-%d %H:%M:%S} UTC"
    return Markup('<time datetime="{}">{}</time>').format(f"{moment:%Y-%m-%dT%H:%M:%SZ}", shown)


def label(value: object) -> str:
    """Return the words of a state or verdict: `awaiting_decision` → `awaiting decision`."""
    return text.NONE if value is None else str(value).replace("_", " ")


def lamp_of(view: ExperimentView) -> str:
    """Return the state of an experiment as a lamp shows it, one of `LAMPS`."""
    if view.state is ExperimentState.AWAITING_DECISION:
        return "warn"
    if view.state is not ExperimentState.FINISHED:
        return "busy"
    if view.overrides or view.verdict is None:
        return "grey"
    return {Verdict.GO: "go", Verdict.NO_GO: "bad"}.get(view.verdict, "warn")


def lamp_of_all(views: Sequence[ExperimentView]) -> str:
    """Return the lamp of a list: a person is needed, work is active, or how the newest ended."""
    lamps = [lamp_of(view) for view in views]
    waits = any(view.state is ExperimentState.AWAITING_DECISION for view in views)
    if waits or "busy" in lamps:
        return "warn" if waits else "busy"
    return lamps[0] if lamps else "grey"
