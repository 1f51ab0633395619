"""Which devices of this home have held up under load since this boot? Standard library only.

`GONOGO_HOME/proven/{uuid}.json` is `{v, device, together, boot_id, at, outcome, text}`, written by
the longer node check of the devices `together`. It holds for a day, until the host boots anew, and
until a run on the device fails or sees an Xid: then it is taken away, and the next preflight checks
the device again.
"""

import json
import logging
from collections.abc import Sequence
from pathlib import Path

from gonogo.supervise.durable import save_json
from gonogo.supervise.processes import boot_id

HOLDS_S = 86_400.0
_HELD = frozenset({"pass", "warn"})

_log = logging.getLogger(__name__)


def prove(home: Path, devices: Sequence[str], outcome: str, text: str, *, now: float) -> None:
    """Record that devices held up, all together.

    Args:
        home: GONOGO_HOME.
        devices: their UUIDs.
        outcome: `pass` or `warn`; who was warned once is warned as long as it holds.
        text: what was measured, for people.
        now: Unix seconds.

    Raises:
        OSError: the disk does not take it.
    """
    said = {"together": list(devices), "boot_id": boot_id(), "at": now}
    said |= {"outcome": outcome, "text": text}
    for device in devices:
        path = _path(home, device)
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        save_json(path, {"v": 1, "device": device, **said})


def disprove(home: Path, device: str, reason: str) -> None:
    """Have a device checked again before its next run; `reason` is logged.

    Raises:
        OSError: the disk does not take it.
    """
    _path(home, device).unlink(missing_ok=True)
    _log.info("%s: to be checked again: %s", device, reason, extra={"action": "unproven"})


def load_proof(home: Path, devices: Sequence[str], now: float) -> tuple[str, str] | None:
    """Return outcome and text of what was measured of devices together, where that still holds.

    Args:
        home: GONOGO_HOME.
        devices: their UUIDs.
        now: Unix seconds.
    """
    rows = [_load(home, device, frozenset(devices), now) for device in devices]
    known = [row for row in rows if row is not None]
    if not known or len(known) < len(rows):
        return None
    return next((row for row in known if row[0] != "pass"), known[0])


def _load(home: Path, device: str, together: frozenset[str], now: float) -> tuple[str, str] | None:
    try:
        found = json.loads(_path(home, device).read_bytes())
        at, boot = float(found["at"]), found["boot_id"]
        said = str(found["outcome"]), str(found["text"])
        holds = said[0] in _HELD and boot == boot_id() and 0 <= now - at < HOLDS_S
        return said if holds and together <= set(found["together"]) else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _path(home: Path, device: str) -> Path:
    return home / "proven" / f"{device}.json"
