"""Records about GPUs in a home: which are quarantined, and which passed the node check. Stdlib
only.

`quarantine/{uuid}.json`: `{v, device, reason, since, until, times, boot_id}`. `until` is in Unix
seconds; null means until a reboot. Removing the file ends the quarantine. An unreadable record
counts as a quarantine. Each further quarantine within a day lasts twice as long, up to a day.

`proven/{uuid}.json`: `{v, device, together, boot_id, at, outcome, text}`, written by the node check
of the devices `together`. It is valid for a day, until a reboot, or until a run on the device
fails.
"""

import json
import logging
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from gonogo.supervise.durable import save_json
from gonogo.supervise.processes import boot_id

FIRST_S = 600.0
LONGEST_S = 86_400.0
FORGOTTEN_S = 86_400.0
"""How long after its end a quarantine still makes the next one longer."""
HOLDS_S = 86_400.0
"""How long a passed node check is valid."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Quarantine:
    """Why one device is not to be used."""

    device: str
    path: Path
    reason: str
    until: float | None = None
    """Unix seconds; None = until a reboot, or until the file is removed."""
    times: int = 1
    boot: str | None = None

    def holds(self, now: float) -> bool:
        """Return whether the device is still not to be used; `now` in Unix seconds."""
        if self.until is not None:
            return now < self.until
        return self.boot is None or self.boot == boot_id()

    @property
    def way_out(self) -> str:
        """How the device comes back, for people."""
        if self.until is None and self.boot is not None:
            return f"back after a reboot of the host, or: rm {self.path}"
        return f"to let it back before its time: rm {self.path}"


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

    Raises:
        OSError: the disk does not take it.
    """
    before = _load_quarantine(_quarantine_path(home, device))
    ended = now if before is None or before.until is None else before.until
    times = 1 if before is None or now - ended > FORGOTTEN_S else before.times + 1
    reboots = before is not None and before.until is None and before.boot == boot_id()
    lasts_s = min(LONGEST_S, FIRST_S * 2 ** min(times - 1, 16))
    made = Quarantine(
        device=device,
        path=_quarantine_path(home, device),
        reason=reason,
        until=None if until_reboot or reboots else now + lasts_s,
        times=times,
        boot=boot_id(),
    )
    made.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    record = {"device": device, "reason": reason, "since": now, "until": made.until}
    save_json(made.path, {"v": 1, **record, "times": made.times, "boot_id": made.boot})
    _log.error("%s: %s", device, reason, extra={"action": "device_quarantined"})
    return made


def load_quarantines(home: Path, now: float) -> dict[str, Quarantine]:
    """Return device → quarantine that holds now; `now` in Unix seconds.

    Raises:
        OSError: the folder exists and cannot be listed.
    """
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


def prove(home: Path, devices: Sequence[str], outcome: str, text: str, *, now: float) -> None:
    """Record that devices passed the node check together.

    Args:
        home: GONOGO_HOME.
        devices: their UUIDs.
        outcome: `pass` or `warn`.
        text: what was measured, for people.
        now: Unix seconds.

    Raises:
        OSError: the disk does not take it.
    """
    result = {"together": list(devices), "boot_id": boot_id(), "at": now}
    result |= {"outcome": outcome, "text": text}
    for device in devices:
        path = _proof_path(home, device)
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        save_json(path, {"v": 1, "device": device, **result})


def disprove(home: Path, device: str, reason: str) -> None:
    """Require a new check of a device before its next run; `reason` is logged.

    Raises:
        OSError: the disk does not take it.
    """
    _proof_path(home, device).unlink(missing_ok=True)
    _log.info("%s: to be checked again: %s", device, reason, extra={"action": "unproven"})


def load_proof(home: Path, devices: Sequence[str], now: float) -> tuple[str, str] | None:
    """Return outcome and text of the devices' common check, if it is still valid.

    Args:
        home: GONOGO_HOME.
        devices: their UUIDs.
        now: Unix seconds.
    """
    found = [_load_proof(home, device, frozenset(devices), now) for device in devices]
    valid = [row for row in found if row is not None]
    if not valid or len(valid) < len(found):
        return None
    return next((row for row in valid if row[0] != "pass"), valid[0])


def _load_proof(
    home: Path, device: str, together: frozenset[str], now: float
) -> tuple[str, str] | None:
    try:
        found = json.loads(_proof_path(home, device).read_bytes())
        outcome, text = str(found["outcome"]), str(found["text"])
        fresh = found["boot_id"] == boot_id() and 0 <= now - float(found["at"]) < HOLDS_S
        holds = outcome in ("pass", "warn") and fresh and together <= set(found["together"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return (outcome, text) if holds else None


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
            times=int(found.get("times", 1)),
            boot=None if boot is None else str(boot),
        )
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return Quarantine(device=path.stem, path=path, reason="its record cannot be read")


def _proof_path(home: Path, device: str) -> Path:
    return home / "proven" / f"{device}.json"


def _quarantine_path(home: Path, device: str) -> Path:
    return home / "quarantine" / f"{device}.json"
