"""What do devices say that are made up? A script (GONOGO_DEVICES_SCRIPT) read as if they were real.

A sample holds from its moment (`at_s` after the start of the run, or `at_step`) until that of the
next one of its device; one without a moment holds from the beginning, before the run, so that the
preflight sees it. A field that a sample lacks is unknown while it holds. Before its
first sample a device is idle to the preflight and unknown to the run. Xids are told once.
"""

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from gonogo.contract.device import DevicesScript, ScriptedSample
from gonogo.rundir import RunDir, read_tail
from gonogo.supervise.devices.protocol import Device, DeviceUnreadable
from gonogo.timeline.lines import read_line

TAIL_BYTES = 16_384
"""Of each heartbeat file, for the step that a run has reached."""

BEFORE_THE_RUN = float("-inf")
"""`elapsed_s` of a look that is made before the run began."""

_IDLE = ScriptedSample(
    uuid="",
    util=0.0,
    mem_used_mb=0.0,
    throttle=[],
    ecc_uncorrected=0,
    remap_pending=False,
    nvlink_errors=0,
    xids=[],
)
_UNKNOWN = ScriptedSample(uuid="")
_T = TypeVar("_T")


def load_script(path: Path) -> DevicesScript:
    """Return the script in a file.

    Raises:
        DeviceUnreadable: it cannot be read, or is no such script.
    """
    try:
        return DevicesScript.model_validate_json(path.read_bytes())
    except OSError as error:
        raise DeviceUnreadable(f"GONOGO_DEVICES_SCRIPT: {error}") from error
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise DeviceUnreadable(f"GONOGO_DEVICES_SCRIPT: {where}: {first['msg']}") from error


class Scripted:
    """The device calls of a script.

    Args:
        script: what the devices say.
        elapsed_s: returns the seconds since the run began; `BEFORE_THE_RUN` before that.
        step: returns the step that the run has reached; asked only where the script names steps.
    """

    def __init__(
        self, script: DevicesScript, elapsed_s: Callable[[], float], step: Callable[[], int]
    ) -> None:
        self._script, self._elapsed_s, self._step = script, elapsed_s, step
        self._by_step = any(row.at_step is not None for row in script.samples)
        self._waiting = sorted(script.samples, key=_moment)
        self._begun: dict[str, ScriptedSample] = {}
        self._untold: dict[str, list[int]] = {}
        self.silent = 0

    def devices(self) -> list[Device]:
        """Return the script's devices, in its order."""
        rows = self._script.devices
        return [
            Device(uuid=row.uuid, index=row.index, name=row.name, mem_total_mb=row.mem_total_mb)
            for row in rows
        ]

    def driver(self) -> str:
        """Return what stands for a driver's version."""
        return "scripted"

    def util(self, device: Device) -> float:
        """Return the scripted utilisation, in percent."""
        return _known(self._now(device).util, "util")

    def memory_mb(self, device: Device) -> tuple[float, float]:
        """Return memory in use and in all, in MB."""
        row = self._now(device)
        total_mb = device.mem_total_mb if row.mem_total_mb is None else row.mem_total_mb
        return _known(row.mem_used_mb, "mem_used_mb"), _known(total_mb, "mem_total_mb")

    def sm_clock_mhz(self, device: Device) -> float:
        """Return the scripted clock, in MHz."""
        return _known(self._now(device).sm_clock_mhz, "sm_clock_mhz")

    def power_w(self, device: Device) -> float:
        """Return the scripted power, in W."""
        return _known(self._now(device).power_w, "power_w")

    def temp_c(self, device: Device) -> float:
        """Return the scripted temperature, in °C."""
        return _known(self._now(device).temp_c, "temp_c")

    def throttle(self, device: Device) -> list[str]:
        """Return the scripted reasons why the clock is held down."""
        return _known(self._now(device).throttle, "throttle")

    def ecc_uncorrected(self, device: Device) -> int:
        """Return the scripted uncorrectable errors."""
        return _known(self._now(device).ecc_uncorrected, "ecc_uncorrected")

    def remap_pending(self, device: Device) -> bool:
        """Say whether the script lets a row wait to be remapped."""
        return _known(self._now(device).remap_pending, "remap_pending")

    def remap_failed(self, device: Device) -> bool:
        """Say no: a script has no word for it."""
        return False

    def ecc_on(self, device: Device) -> bool:
        """Say yes."""
        return True

    def has_mps(self, device: Device) -> bool:
        """Say no."""
        return False

    def nvlink_errors(self, device: Device) -> int:
        """Return the scripted link errors."""
        return _known(self._now(device).nvlink_errors, "nvlink_errors")

    def xids(self, device: Device) -> list[int]:
        """Return the Xids of the samples that began to hold since the last call."""
        row = self._now(device)
        untold = self._untold.pop(device.uuid, [])
        return untold or _known(None if row.xids is None else [], "xids")

    def processes(self, device: Device) -> list[int]:
        """Return nothing: no process can compute on a scripted device."""
        return []

    def _now(self, device: Device) -> ScriptedSample:
        """Return the sample that holds now."""
        elapsed_s = self._elapsed_s()
        before_the_run = elapsed_s == BEFORE_THE_RUN
        step = self._step() if self._by_step and not before_the_run else -1
        begun = [row for row in self._waiting if _has_begun(row, elapsed_s, step)]
        if begun:
            self._waiting = [row for row in self._waiting if row not in begun]
        for row in begun:
            self._begun[row.uuid] = row
            self._untold.setdefault(row.uuid, []).extend(row.xids or ())
        return self._begun.get(device.uuid, _IDLE if before_the_run else _UNKNOWN)


def _known(value: _T | None, name: str) -> _T:
    """Return a value that is there.

    Raises:
        DeviceUnreadable: it is not.
    """
    if value is None:
        raise DeviceUnreadable(f"the script does not say {name}")
    return value


def _moment(row: ScriptedSample) -> tuple[float, int]:
    """Return a sample's place among those that begin at once."""
    return (
        BEFORE_THE_RUN if row.at_s is None else row.at_s,
        -1 if row.at_step is None else row.at_step,
    )


def _has_begun(row: ScriptedSample, elapsed_s: float, step: int) -> bool:
    """Say whether a sample's moment has come; with two moments, both."""
    timely = row.at_s is None or row.at_s <= elapsed_s
    return timely and (row.at_step is None or row.at_step <= step)


def reached_step(run_dir: RunDir) -> int:
    """Return the highest step in the last lines of any rank; 0 before the first."""
    try:
        return max((_newest_step(run_dir, rank) for rank in run_dir.ranks()), default=0)
    except OSError:
        return 0


def _newest_step(run_dir: RunDir, rank: int) -> int:
    whole = read_tail(run_dir.heartbeat(rank), TAIL_BYTES).rpartition("\n")[0]
    lines = (read_line(line.encode(errors="replace"), rank) for line in whole.splitlines())
    return max((line.beat.step for line in lines if line is not None), default=0)
