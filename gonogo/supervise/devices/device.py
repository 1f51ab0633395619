"""A device, and the devices that a script describes.

A script is the file of GONOGO_DEVICES_SCRIPT, or a fault (`xid`, `imbalance`). A sample holds from
its moment (`at_s` after the start of the run, or `at_step`) until the next one of its device. One
without a moment holds before the run, too, so the preflight sees it. Before its first sample a
device is idle for the preflight and unknown for the run. Xids are reported once.
"""

from collections.abc import Callable
from pathlib import Path

from pydantic import ValidationError

from gonogo.contract.observation import (
    DeviceReadings,
    DevicesScript,
    ScriptedDevice,
    ScriptedSample,
)
from gonogo.contract.plan import values_of
from gonogo.contract.wire import Recorded
from gonogo.rundir import RunDir, read_tail
from gonogo.timeline.lines import read_line

TAIL_BYTES = 16_384
"""Bytes read from the end of each heartbeat file, to find the step that a run has reached."""
BEFORE_THE_RUN = float("-inf")
"""`elapsed_s` before the run has begun."""
_HEALTHY = DeviceReadings(
    util=96.0,
    mem_used_mb=20_000.0,
    sm_clock_mhz=1410.0,
    power_w=280.0,
    temp_c=58.0,
    throttle=[],
    ecc_uncorrected=0,
    remap_pending=False,
    nvlink_errors=0,
    xids=[],
)
_IDLE = _HEALTHY.model_copy(
    update={
        **{"util": 0.0, "mem_used_mb": 0.0},
        **dict.fromkeys(("sm_clock_mhz", "power_w", "temp_c")),
    }
)


class DeviceUnreadable(Exception):
    """The device, its driver or its library does not answer."""


class Device(Recorded):
    """One device of this host."""

    uuid: str
    index: int
    """Place in the driver's order, for display."""
    name: str
    mem_total_mb: float | None = None


class DeviceHealth(Recorded):
    """What is asked of a device before and after a run; null = unknown."""

    processes: list[int] | None = None
    """Pids of the processes that compute on it."""
    remap_failed: bool | None = None
    """Whether a row could not be remapped."""
    ecc_on: bool | None = None
    """Whether its memory corrects and counts errors."""


def load_script(path: Path) -> DevicesScript:
    """Return the script in a file; raises DeviceUnreadable where there is none."""
    try:
        return DevicesScript.model_validate_json(path.read_bytes())
    except OSError as error:
        raise DeviceUnreadable(f"GONOGO_DEVICES_SCRIPT: {error}") from error
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise DeviceUnreadable(f"GONOGO_DEVICES_SCRIPT: {where}: {first['msg']}") from error


def build_fault_script(spec: str, world_size: int) -> DevicesScript | None:
    """Return the script of a fault of devices (`xid`, `imbalance`); None for every other fault.

    Every rank has a healthy device. From its step on, the fault's rank has one that shows it.
    """
    kind, values = values_of(spec)
    shown: dict[str, object]
    if kind == "xid":
        step, shown = int(values["step"]), {"xids": [int(values["code"])]}
    elif kind == "imbalance":
        step, shown = int(values["from"]), {"util": float(values["util"])}
    else:
        return None
    uuids = [f"GPU-scripted-{rank}" for rank in range(world_size)]
    healthy = _HEALTHY.model_dump()
    fault = {**healthy, **shown, "uuid": f"GPU-scripted-{values['rank']}", "at_step": step}
    return DevicesScript(
        devices=[ScriptedDevice(uuid=uuid, index=rank) for rank, uuid in enumerate(uuids)],
        samples=[
            *(ScriptedSample(uuid=uuid, at_s=0.0, **healthy) for uuid in uuids),
            ScriptedSample.model_validate(fault),
        ],
    )


class Scripted:
    """The devices of a script; `elapsed_s` and `step` return how far the run is."""

    def __init__(
        self, script: DevicesScript, elapsed_s: Callable[[], float], step: Callable[[], int]
    ) -> None:
        self._script, self._elapsed_s, self._step = script, elapsed_s, step
        self._by_step = any(row.at_step is not None for row in script.samples)
        self._waiting = sorted(script.samples, key=_moment)
        self._begun: dict[str, ScriptedSample] = {}
        self._new_xids: dict[str, list[int]] = {}

    def devices(self) -> list[Device]:
        """Return the script's devices, in its order."""
        rows = self._script.devices
        return [Device.model_validate(row.model_dump()) for row in rows]

    def driver(self) -> str | None:
        """Return what stands for a driver's version."""
        return "scripted"

    def read(self, device: Device) -> DeviceReadings:
        """Return the readings of the sample that holds now."""
        elapsed_s = self._elapsed_s()
        before_the_run = elapsed_s == BEFORE_THE_RUN
        step = self._step() if self._by_step and not before_the_run else -1
        for row in list(self._waiting):
            at_s, at_step = _moment(row)
            if at_s > elapsed_s or at_step > step:
                continue
            self._waiting.remove(row)
            self._begun[row.uuid] = row
            self._new_xids.setdefault(row.uuid, []).extend(row.xids or ())
        held = self._begun.get(device.uuid)
        found = held or (_IDLE if before_the_run else DeviceReadings())
        xids = self._new_xids.pop(device.uuid, []) or (None if found.xids is None else [])
        readings = {name: getattr(found, name) for name in DeviceReadings.model_fields}
        total_mb = device.mem_total_mb if found.mem_total_mb is None else found.mem_total_mb
        return DeviceReadings(**{**readings, "xids": xids, "mem_total_mb": total_mb})

    def health(self, device: Device) -> DeviceHealth:
        """Return a healthy device: a script cannot say otherwise."""
        return DeviceHealth(processes=[], remap_failed=False, ecc_on=True)


def _moment(row: ScriptedSample) -> tuple[float, int]:
    """Return after how many seconds and in which step a sample begins."""
    return (
        BEFORE_THE_RUN if row.at_s is None else row.at_s,
        -1 if row.at_step is None else row.at_step,
    )


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
