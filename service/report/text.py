"""How are values written in a report? One place for units, digits and Markdown's own characters."""

import math
import re
from collections.abc import Iterable, Sequence
from datetime import timedelta

NONE = "–"
_LOOSE_UNDERSCORE = re.compile(r"(?<![0-9A-Za-z])_|_(?![0-9A-Za-z])")
_BACKTICKS = re.compile("`+")
MOST_CHARS = 10_000
"""Of a text inside a line or a table cell: a trainer names things as it likes."""
_MINUTE, _HOUR, _DAY = 60.0, 3_600.0, 86_400.0


def number(value: float | None, digits: int = 4, unit: str = "") -> str:
    """Return a number with so many significant digits, `–` for none."""
    if value is None:
        return NONE
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else ("∞" if value > 0 else "-∞")
    if value == int(value) and abs(value) < 1e15:
        text = str(int(value))
    else:
        text = f"{value:.{digits}g}"
        if "e" in text and abs(value) >= 1:
            text = f"{value:.0f}"
    return f"{text} {unit}" if unit else text


def loss(value: float | None) -> str:
    """Return a loss with four decimals."""
    if value is None:
        return NONE
    return f"{value:.4f}" if math.isfinite(value) else number(value)


def percent(part: float, whole: float) -> str:
    """Return a share."""
    return f"{100 * part / whole:.1f} %" if whole > 0 else NONE


def duration(seconds: float | None) -> str:
    """Return a span of time as people say it: `41 s`, `6 min 12 s`, `9.2 h`, `62 days`."""
    if seconds is None or not math.isfinite(seconds):
        return NONE
    if seconds < 10:
        return f"{seconds:.2g} s"
    if seconds < _MINUTE:
        return f"{seconds:.0f} s"
    if seconds < _HOUR:
        span = timedelta(seconds=round(seconds))
        return f"{span.seconds // 60} min {span.seconds % 60} s"
    if seconds < 2 * _DAY:
        return f"{seconds / _HOUR:.1f} h"
    return f"{seconds / _DAY:.1f} days"


def inline(value: object) -> str:
    """Return text that is safe inside a line or a table cell."""
    text = _on_one_line(value).replace("\\", "\\\\")
    for sign in "|<>*`[]":
        text = text.replace(sign, f"\\{sign}")
    return _LOOSE_UNDERSCORE.sub(r"\\_", text)


def code(value: object) -> str:
    """Return text as code inside a line or a table cell."""
    text = _on_one_line(value).replace("|", "\\|")
    return f"`{text}`" if "`" not in text else inline(value)


def _on_one_line(value: object) -> str:
    text = str(value)
    if len(text) > MOST_CHARS:
        text = f"{text[:MOST_CHARS]}…"
    return text.replace("\r", " ").replace("\n", " ")


def anchor(head: str) -> str:
    """Return the name by which a heading is linked to, as GitHub makes it."""
    return re.sub(r"[^\w -]", "", head.lower()).replace(" ", "-")


def block(text: str, language: str = "") -> str:
    """Return a code block whose fence the text cannot close."""
    longest = max(map(len, _BACKTICKS.findall(text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{text.rstrip()}\n{fence}"


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table (cells are already safe)."""
    lines = [f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])
