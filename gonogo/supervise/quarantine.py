"""Which devices of this home are not to be used just now, and why? Standard library only.

`GONOGO_HOME/quarantine/{uuid}.json` is `{v, device, reason, since, until, times, boot_id}`: `until`
in Unix seconds, null for a device that waits for a reboot or for a person. Whoever removes the file
lets the device back. A record that cannot be read holds: what is unknown is not free.

Guarantees: the next time within a day lasts twice as long, up to a day; a clock that was set back
makes none longer than a day.
"""

import json
import logging
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from gonogo.supervise.durable import save_json
from gonogo.supervise.processes import boot_id

FIRST_S = 600.0
LONGEST_S = 86_400.0
FORGOTTEN_S = 86_400.0
"""How long after its end a quarantine still makes the next one longer."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Quarantine:
    """Why one device is not to be used."""

    device: str
    path: Path
    reason: str
    since: float | None = None
    until: float | None = None
    """Unix seconds; None = until a reboot, or until the file is removed."""
    times: int = 1
    boot: str | None = None

    def holds(self, now: float) -> bool:
        """Say whether the device is still not to be used; `now` in Unix seconds."""
        if self.until is not None:
            return now < self.until and not self._is_beyond(now)
        return self.boot is None or self.boot == boot_id()

    def _is_beyond(self, now: float) -> bool:
        """Say whether the end is further off than it ever was: the clock was set back since."""
        if self.until is None or self.since is None:
            return False
        return self.until - now > max(LONGEST_S, self.until - self.since)

    @property
    def way_out(self) -> str:
        """Say how the device comes back."""
        if self.until is None and self.boot is not None:
            return f"back after a reboot of the host, or: rm {self.path}"
        return f"to let it back before its time: rm {self.path}"


def quarantine(
    home: Path, device: str, reason: str, *, now: float, until_reboot: bool = False
) -> Quarantine:
    """Record that a device is not to be used; what was recorded before makes it longer.

    One that waits for a reboot goes on waiting for that.

    Args:
        home: GONOGO_HOME.
        device: its UUID.
        reason: what is wrong, for people.
        now: Unix seconds.
        until_reboot: no time will mend it.

    Raises:
        OSError: the disk does not take it.
    """
    before = _load(_path(home, device))
    ended = now if before is None or before.until is None else before.until
    times = 1 if before is None or now - ended > FORGOTTEN_S else before.times + 1
    reboots = before is not None and before.until is None and before.boot == boot_id()
    lasts_s = min(LONGEST_S, FIRST_S * 2 ** min(times - 1, 16))
    made = Quarantine(
        device=device,
        path=_path(home, device),
        reason=reason,
        since=now,
        until=None if until_reboot or reboots else now + lasts_s,
        times=times,
        boot=boot_id(),
    )
    made.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    save_json(
        made.path,
        {
            "v": 1,
            "device": device,
            "reason": reason,
            "since": made.since,
            "until": made.until,
            "times": made.times,
            "boot_id": made.boot,
        },
    )
    _log.error("%s: %s", device, reason, extra={"action": "device_quarantined"})
    return made


def load_quarantines(home: Path, now: float) -> dict[str, Quarantine]:
    """Return device → why it is not to be used now; `now` in Unix seconds.

    Raises:
        OSError: nobody can say which they are: the folder is there and cannot be listed.
    """
    folder = home / "quarantine"
    try:
        names = sorted(os.listdir(folder))
    except FileNotFoundError:
        return {}
    shown = (name for name in names if name.endswith(".json") and not name.startswith("."))
    found = (_load(folder / name) for name in shown)
    return {row.device: row for row in found if row is not None and row.holds(now)}


def without_quarantined(home: Path, slots: Iterable[str], now: float) -> tuple[str, ...]:
    """Return the slots that may be used, in their order; asks for each, and lists no folder."""
    records = ((slot, _load(_path(home, slot))) for slot in slots)
    return tuple(slot for slot, row in records if row is None or not row.holds(now))


def _path(home: Path, device: str) -> Path:
    return home / "quarantine" / f"{device}.json"


def _load(path: Path) -> Quarantine | None:
    """Return one record; None when there is none. What cannot be read holds."""
    try:
        found = json.loads(path.read_bytes())
        until, since, times = found["until"], found.get("since"), found.get("times", 1)
        return Quarantine(
            device=path.stem,
            path=path,
            reason=str(found["reason"]),
            since=None if since is None else float(since),
            until=None if until is None else float(until),
            times=int(times),
            boot=None if found.get("boot_id") is None else str(found["boot_id"]),
        )
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return Quarantine(device=path.stem, path=path, reason="its record cannot be read")
