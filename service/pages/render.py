"""Renders templates (Jinja2, autoescaping and strict), and draws curves and where time went."""

import hashlib
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape
from markupsafe import Markup

from gonogo.contract.campaign import ComparedVariant
from gonogo.contract.criterion import OWN_PREFIX
from gonogo.contract.goodput import WORDS, Goodput, Part, seconds_of
from gonogo.judge.failures import explain_decision
from gonogo.judge.words import sentence
from service import charts, text
from service.charts import WIDTH, Chart, Line, non_finite_mark, picture, tag
from service.evidence.series import Curve
from service.text import duration, percent

HERE = Path(__file__).parent
STATIC = {"style.css": "text/css", "live.js": "text/javascript", "icon.svg": "image/svg+xml"}


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
    values["now"] = datetime.now(UTC).isoformat()
    return environment().get_template(template).render(**values)


@cache
def load_static(name: str) -> bytes:
    """Return a static file; the style sheet includes that of the charts."""
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


BAR = 18
MOST_OWN = 12
"""Charts of a program's own metrics."""


def charts_of(curves: Mapping[str, Curve]) -> list[Chart]:
    """Return the charts of a run: loss, speed, then own metrics by name."""
    own = sorted(name for name in curves if name.startswith(OWN_PREFIX))
    return [
        _chart("loss", {name: curves.get(name) for name in ("loss", "validation loss")}),
        _chart("tokens/s, as the trainer reports", {"tokens/s": curves.get("tokens/s")}, 2),
        *(_chart(name, {name: curves[name]}) for name in own[:MOST_OWN]),
    ]


def _chart(title: str, curves: dict[str, Curve | None], first: int = 0) -> Chart:
    """Return a chart; the colours begin with number `first`, a speed from zero."""
    found = {name: curve for name, curve in curves.items() if curve is not None}
    kinds = dict(zip(curves, "abc"[first:], strict=False))
    return Chart(
        title=title,
        lines=[Line(name=name, points=row.points, kind=kinds[name]) for name, row in found.items()],
        marks=[
            non_finite_mark(row.non_finite, name if len(found) > 1 else "")
            for name, row in found.items()
            if row.non_finite is not None
        ],
        zero=bool(first),
    )


def goodput_bar(goodput: Goodput) -> Markup:
    """Return one bar of parts; a sentence where no time has passed."""
    if goodput.wall_s <= 0:
        return Markup('<p class="quiet">No time has passed.</p>')
    parts, x = [], 0.0
    for part, seconds in _spent(goodput):
        wide = WIDTH * seconds / goodput.wall_s
        told = tag("title", f"{WORDS[part]}: {duration(seconds)}")
        kind = f"part-{part.value}"
        parts.append(tag("rect", told, class_=kind, x=x, y=0, width=wide, height=BAR))
        x += wide
    words = ", ".join(f"{WORDS[part]} {duration(s)}" for part, s in _spent(goodput))
    return picture(f"Where the time went: {words}", BAR, *parts)


def goodput_rows(goodput: Goodput) -> list[tuple[str, str, str, str]]:
    """Return (part, its words, its time, its share) of all parts that took any."""
    return [
        (part.value, WORDS[part], duration(seconds), percent(seconds, goodput.wall_s))
        for part, seconds in _spent(goodput)
    ]


def _spent(goodput: Goodput) -> list[tuple[Part, float]]:
    return [(part, seconds) for part, seconds in seconds_of(goodput).items() if seconds > 0]


def ratio_text(row: ComparedVariant) -> str:
    """Return a ratio with its interval: `1.052 (1.031 to 1.074)`; the baseline's is 1."""
    if row.answer is None:
        return "1"
    if row.ratio is None:
        return "no run that counts"
    if row.low is None or row.high is None:
        return f"{row.ratio:.3f}"
    return f"{row.ratio:.3f} ({row.low:.3f} to {row.high:.3f})"
