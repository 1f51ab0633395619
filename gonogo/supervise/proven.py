"""Which devices of this home have held up under load since this boot? Standard library only.

`GONOGO_HOME/proven/{uuid}.json` is `{v, device, together, boot_id, at, text}`, written by the
longer node check of the devices `together`. It holds for a day, until the host boots anew, and
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

_log = logging.getLogger(__name__)


def prove(home: Path, devices: Sequence[str], text: str, *, now: float) -> None:
    """Record that devices held up, all together.

    Args:
        home: GONOGO_HOME.
        devices: their UUIDs.
        text: what was measured, for people.
        now: Unix seconds.

    Raises:
        OSError: the disk does not take it.
    """
    said = {"together": list(devices), "boot_id": boot_id(), "at": now, "text": text}
    for device in devices:
        path = _path(home, device)
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        save_json(path, {"v": 1, "device": device, **said})


def disprove(home: Path, device: str, reason: str) -> None:
    """Have a device checked again before its next run; `reason` is logged."""
    try:
        _path(home, device).unlink(missing_ok=True)
        _log.info("%s: to be checked again: %s", device, reason, extra={"action": "unproven"})
    except OSError as error:
        _log.error("%s: stays proven: %s", device, error, extra={"action": "stays_proven"})


def load_proof(home: Path, devices: Sequence[str], now: float) -> str | None:
    """Return what was measured of devices together, where that still holds of each.

    Args:
        home: GONOGO_HOME.
        devices: their UUIDs.
        now: Unix seconds.
    """
    texts = [_load(home, device, frozenset(devices), now) for device in devices]
    return None if None in texts else next(iter(texts), None)


def _load(home: Path, device: str, together: frozenset[str], now: float) -> str | None:
    try:
        found = json.loads(_path(home, device).read_bytes())
        at, text, boot = float(found["at"]), str(found["text"]), found["boot_id"]
        holds = boot == boot_id() and 0 <= now - at < HOLDS_S
        return text if holds and together <= set(found["together"]) else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _path(home: Path, device: str) -> Path:
    return home / "proven" / f"{device}.json"
