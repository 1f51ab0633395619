"""How values are written: units, digits, moments, and text that is safe in Markdown."""

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from gonogo.contract.goodput import Goodput, least_words

NONE = "–"
_LOOSE_UNDERSCORE = re.compile(r"(?<![0-9A-Za-z])_|_(?![0-9A-Za-z])")
_BACKTICKS = re.compile("`+")
MOST_CHARS = 10_000
_BOUNDS = {"pass_above": "≥", "pass_below": "≤", "fail_above": "fails >", "fail_below": "fails <"}
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


def ratio_words(goodput: Goodput) -> str:
    """Return the effective training time: `93.1 %`, `at least 92 %` where time is unknown."""
    if goodput.ratio is None:
        return NONE
    return f"{least_words(goodput)}{percent(goodput.ratio, 1.0)}"


def observed_text(value: Any) -> str:
    """Return what a criterion saw."""
    if value is None:
        return NONE
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return number(value, 6)
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def threshold_text(value: Any) -> str:
    """Return a threshold as signs: `≥ 45, fails < 39`."""
    if not isinstance(value, Mapping):
        return observed_text(value)
    known = [
        f"{_BOUNDS[name]} {observed_text(bound)}"
        for name, bound in value.items()
        if name in _BOUNDS and bound is not None
    ]
    return ", ".join(known) or NONE


def duration(seconds: float | None) -> str:
    """Return a span of time: `41 s`, `6 min 12 s`, `9.2 h`, `62 days`."""
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


def block(text: str, language: str = "") -> str:
    """Return a code block whose fence the text cannot close."""
    longest = max(map(len, _BACKTICKS.findall(text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{text.rstrip()}\n{fence}"


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table (cells are already safe)."""
    lines = [f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])


_FIRST = datetime(1, 1, 3, tzinfo=UTC).timestamp()
_LAST = datetime(9999, 12, 30, tzinfo=UTC).timestamp()


def instant(seconds: float | None) -> str | None:
    """Return Unix seconds as RFC 3339 in UTC."""
    return None if seconds is None else stamp(seconds)


def stamp(seconds: float) -> str:
    """Return Unix seconds that are there as RFC 3339 in UTC."""
    known = min(_LAST, max(_FIRST, seconds))  # NaN is the first day
    return datetime.fromtimestamp(known, UTC).isoformat(timespec="milliseconds")
