"""Records of quarantined GPUs in a home. Standard library only.

`quarantine/{uuid}.json`: `{v, device, reason, since, until, boot_id}`. `until` is in Unix seconds;
null means until a reboot. Removing the file ends the quarantine. An unreadable record counts as a
quarantine.
"""

import json
import logging
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from gonogo.supervise.durable import save_json
from gonogo.supervise.processes import boot_id

LASTS_S = 600.0

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Quarantine:
    """Why one device is not to be used."""

    device: str
    path: Path
    reason: str
    until: float | None = None
    """Unix seconds; None = until a reboot, or until the file is removed."""
    boot: str | None = None

    def holds(self, now: float) -> bool:
        """Return whether the device is still not to be used; `now` in Unix seconds."""
        if self.until is not None:
            return now < self.until
        return self.boot is None or self.boot == boot_id()


def quarantine(
    home: Path, device: str, reason: str, *, now: float, until_reboot: bool = False
) -> Quarantine:
    """Record that a device is not to be used.

    Args:
        home: GONOGO_HOME.
        device: its UUID.
        reason: what is wrong, for people.
        now: Unix seconds.
        until_reboot: only a reboot can repair it.
    """
    before = _load_quarantine(_quarantine_path(home, device))
    reboots = before is not None and before.until is None and before.boot == boot_id()
    made = Quarantine(
        device=device,
        path=_quarantine_path(home, device),
        reason=reason,
        until=None if until_reboot or reboots else now + LASTS_S,
        boot=boot_id(),
    )
    made.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    record = {"device": device, "reason": reason, "since": now, "until": made.until}
    save_json(made.path, {"v": 1, **record, "boot_id": made.boot})
    _log.error("%s: %s", device, reason, extra={"action": "device_quarantined"})
    return made


def load_quarantines(home: Path, now: float) -> dict[str, Quarantine]:
    """Return device → quarantine that holds now; `now` in Unix seconds."""
    folder = home / "quarantine"
    try:
        names = sorted(os.listdir(folder))
    except FileNotFoundError:
        return {}
    shown = (name for name in names if name.endswith(".json") and not name.startswith("."))
    found = (_load_quarantine(folder / name) for name in shown)
    return {row.device: row for row in found if row is not None and row.holds(now)}


def without_quarantined(home: Path, slots: Iterable[str], now: float) -> tuple[str, ...]:
    """Return the slots that may be used, in their order."""
    records = ((slot, _load_quarantine(_quarantine_path(home, slot))) for slot in slots)
    return tuple(slot for slot, row in records if row is None or not row.holds(now))


def _load_quarantine(path: Path) -> Quarantine | None:
    """Return one record; None if there is none. An unreadable one holds."""
    try:
        found = json.loads(path.read_bytes())
        until, boot = found["until"], found.get("boot_id")
        return Quarantine(
            device=path.stem,
            path=path,
            reason=str(found["reason"]),
            until=None if until is None else float(until),
            boot=None if boot is None else str(boot),
        )
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return Quarantine(device=path.stem, path=path, reason="its record cannot be read")


def _quarantine_path(home: Path, device: str) -> Path:
    return home / "quarantine" / f"{device}.json"
