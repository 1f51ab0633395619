"""What stands in every line? Version, clocks, who speaks, and the place in the run."""

import json
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from gonogo.trainer.plain import plain

VERSION = 1


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
    ago_s: float = 0.0,
) -> bytes:
    """Return a line as it stands in a heartbeat file.

    Args:
        msg: what it says.
        fields: what this message tells besides.
        pid: process of the rank.
        rank: number of the rank.
        boot: sixteen hex digits, another for every process.
        seq: 1, 2, 3, … within the boot.
        step: step that the rank stands in.
        section: what it does.
        section_seq: how often it has moved from one section to another.
        failures: lines that the disk refused so far.
        ago_s: how long ago it was that the line tells of.

    Raises:
        TypeError, ValueError: a field that is neither a word nor a number.
    """
    now = time.time() - ago_s
    line = {
        "v": VERSION,
        "ts": now,
        "iso": datetime.fromtimestamp(now, UTC).isoformat(timespec="milliseconds"),
        "mono": time.monotonic() - ago_s,
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
