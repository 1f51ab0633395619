"""Encode values and lines: plain JSON, digests, own numbers, heartbeat lines.

The rules are those of all of gonogo, repeated here for the standard library alone. Numbers that are
not finite are the strings "NaN", "Infinity", "-Infinity". A digest is SHA-256 of the RFC 8785 form.
"""

import hashlib
import json
import math
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

VERSION = 1
MOST_NAMES = 64
"""Own numbers of one process; a line with all of them stays below the limit of a line."""
MOST_CHARS = 120
KNOWN = frozenset(
    (
        *("loss", "grad_norm", "lr", "toks_per_s", "dt_fetch_s", "gpu_mem_alloc"),
        *("gpu_mem_reserved", "host_rss_mb", "gate_entropy", "gate_max", "gate_collapse_frac"),
        *("comm_mb", "flash_share", "loss_scale", "skipped", "tokens", "val_loss", "user"),
        *("skipped_steps", "epoch"),
    )
)
"""Fields of a line with a meaning of their own."""
_NON_FINITE = ("NaN", "Infinity", "-Infinity")


def plain(value: Any) -> Any:
    """Return a value as a line can hold it; tensors and NumPy scalars become numbers.

    Example: `plain(torch.tensor(0.5))` is `0.5`, `plain(float("inf"))` is `"Infinity"`.

    Raises:
        TypeError, ValueError: neither a word nor a single number.
    """
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, str):
        return value if value.isascii() else value.encode(errors="replace").decode()
    if isinstance(value, float):
        return value if math.isfinite(value) else _name(value)
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if callable(item := getattr(value, "item", None)):
        told = item()
        if type(told) is not type(value):  # of a long double it is the same again
            return plain(told)
    try:
        return plain(float(value))
    except TypeError:
        told = f"{value!r:.200} ({type(value).__name__})"
        raise TypeError(f"{told} is neither a word nor a number: give str() of it") from None


def digest(config: Mapping[str, Any]) -> str:
    """Return the lower-case hex SHA-256 of the RFC 8785 form of a configuration.

    Raises:
        TypeError: a value that JSON cannot hold.
    """
    return hashlib.sha256(_canonical(plain(config)).encode()).hexdigest()


def _name(value: float) -> str:
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _canonical(value: Any) -> str:
    if isinstance(value, dict):
        names = sorted(value, key=lambda name: name.encode("utf-16-be"))
        return f"{{{','.join(f'{_text(name)}:{_canonical(value[name])}' for name in names)}}}"
    if isinstance(value, list):
        return f"[{','.join(map(_canonical, value))}]"
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, float):
        return _number(value)
    return json.dumps(value)


def _text(value: str) -> str:
    return json.dumps(value, ensure_ascii=False)


def _number(value: float) -> str:
    """Return a finite float as ECMAScript prints it (RFC 8785, 3.2.2.3)."""
    if value == 0:
        return "0"
    text = repr(value)
    if "e" not in text:
        return text.removesuffix(".0")
    sign = "-" if value < 0 else ""
    mantissa, _, exponent = text.lstrip("-").partition("e")
    whole, _, fraction = mantissa.partition(".")
    digits = (whole + fraction).rstrip("0")
    point = int(exponent) + len(whole)
    if 0 < point <= 21:
        return f"{sign}{digits:0<{point}}"
    if -6 < point <= 0:
        return f"{sign}0.{'0' * -point}{digits}"
    rest = f".{digits[1:]}" if len(digits) > 1 else ""
    return f"{sign}{digits[0]}{rest}e{point - 1:+d}"


def fits(name: str) -> bool:
    """Whether a name can be that of a metric `user/<name>`."""
    return 0 < len(name) <= MOST_CHARS and name.isprintable() and name == name.strip()


def sort_out(numbers: Mapping[str, Any], names: set[str]) -> dict[str, Any]:
    """Return the fields of a line, own numbers in its field `user`; adds their names to `names`."""
    own: dict[str, Any] = {}
    for name, value in numbers.items():
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if name in KNOWN or not fits(name) or not (number or value in _NON_FINITE):
            continue
        if name in names or len(names) < MOST_NAMES:
            names.add(name)
            own[name] = value
    if not own:
        return dict(numbers)
    return {**{name: value for name, value in numbers.items() if name not in own}, "user": own}


def build_line(
    msg: str,
    fields: Mapping[str, Any],
    *,
    pid: int,
    rank: int,
    boot: str,
    seq: int,
    step: int,
    section: str | None = None,
    section_seq: int = 0,
    failures: int = 0,
    at: float | None = None,
) -> bytes:
    """Return a line as it stands in a heartbeat file.

    Args:
        failures: lines that the disk refused so far.
        at: when it happened, by the monotonic clock; default: now.

    Raises:
        TypeError, ValueError: a field is neither a text nor a number.
    """
    mono = time.monotonic()
    at = mono if at is None else at
    now = time.time() - mono + at
    line = {
        "v": VERSION,
        "ts": now,
        "iso": datetime.fromtimestamp(now, UTC).isoformat(timespec="milliseconds"),
        "mono": at,
        "pid": pid,
        "rank": rank,
        "boot": boot,
        "seq": seq,
        "step": step,
        "msg": msg,
        "section": section,
        "section_seq": section_seq,
        **plain(fields),
    }
    if failures:
        line["write_failures"] = failures
    return json.dumps(line, separators=(",", ":"), allow_nan=False).encode() + b"\n"
