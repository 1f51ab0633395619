"""A scripted stand-in for the module `pynvml`: GPUs, and the errors that a driver gives.

Only the functions that are called are here, with the names, argument counts and units of
nvidia-ml-py 13 (memory in bytes, power in mW, throttle reasons as bits). A handle is the UUID.
"""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any

MB = 2**20
GB = 2**30


class NVMLError(Exception):
    """Any error of the library."""


class NVMLError_Timeout(NVMLError):
    """No event came in time."""


class NVMLError_NotSupported(NVMLError):
    """Devices of this kind have no such thing."""


class NVMLError_FunctionNotFound(NVMLError):
    """The driver is older than the call."""


class NVMLError_GpuIsLost(NVMLError):
    """It fell off the bus."""


GPU = {
    "name": "NVIDIA H200",
    "used_mb": 3072,
    "total_mb": 140 * 1024,
    "pids": [42, 7],
    "throttle": 0x4 | 0x40,
    "ecc": 2,
    "ecc_on": 1,
    "remap": (0, 1, 1, 0),
}
"""What a GPU says that the script does not change."""


def gpu(uuid: str, **changed: Any) -> dict[str, Any]:
    """A GPU of the script; `lost` lets every call about it fail."""
    return {**GPU, "uuid": uuid, "lost": False, **changed}


def healthy(uuid: str, **changed: Any) -> dict[str, Any]:
    """A GPU that is fit for a run."""
    fit = {"used_mb": 3, "pids": [], "throttle": 0x1, "ecc": 0, "remap": (0, 0, 0, 0)}
    return gpu(uuid, **{**fit, **changed})


class FakeNvml:
    """The module; `failing` are names whose calls raise, `xids` are events that wait."""

    NVMLError = NVMLError
    NVMLError_Timeout = NVMLError_Timeout
    NVMLError_NotSupported = NVMLError_NotSupported
    NVMLError_FunctionNotFound = NVMLError_FunctionNotFound
    NVML_CLOCK_SM = 1
    NVML_TEMPERATURE_GPU = 0
    NVML_MEMORY_ERROR_TYPE_UNCORRECTED = 1
    NVML_VOLATILE_ECC = 0
    nvmlEventTypeXidCriticalError = 8

    def __init__(
        self,
        failing: set[str] | None = None,
        gpus: list[dict[str, Any]] | None = None,
        error: type[NVMLError] = NVMLError,
    ) -> None:
        self.failing, self.error = failing or set(), error
        self.gpus = [gpu("GPU-0"), gpu("GPU-1")] if gpus is None else gpus
        self.xids: dict[str, list[int]] = {row["uuid"]: [] for row in self.gpus}
        self.called: Counter[str] = Counter()

    def __getattribute__(self, name: str) -> Any:
        found = object.__getattribute__(self, name)
        if name.startswith("nvml") and callable(found):
            self.called[name] += 1
            if name in self.failing:
                raise_ = self.error(f"{name}: Not Supported")

                def fail(*_: Any) -> Any:
                    raise raise_

                return fail
        return found

    def _row(self, handle: str) -> dict[str, Any]:
        for row in self.gpus:
            if row["uuid"] == handle:
                if row["lost"]:
                    raise NVMLError_GpuIsLost("GPU is lost")
                return row
        raise NVMLError("Not Found")

    def nvmlInit(self) -> None: ...

    def nvmlSystemGetDriverVersion(self) -> str:
        return "570.86.15"

    def nvmlDeviceGetCount(self) -> int:
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> str:
        if index >= len(self.gpus):
            raise NVMLError("Invalid Argument")
        return str(self._row(self.gpus[index]["uuid"])["uuid"])

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        return str(self._row(uuid)["uuid"])

    def nvmlDeviceGetUUID(self, handle: str) -> str:
        return handle

    def nvmlDeviceGetName(self, handle: str) -> str:
        return str(self._row(handle)["name"])

    def nvmlDeviceGetMemoryInfo(self, handle: str) -> Any:
        row = self._row(handle)
        if row["used_mb"] is None:
            raise NVMLError("Unknown Error")
        return SimpleNamespace(used=row["used_mb"] * MB, total=row["total_mb"] * MB)

    def nvmlDeviceGetUtilizationRates(self, handle: str) -> Any:
        return SimpleNamespace(gpu=97, memory=40)

    def nvmlDeviceGetClockInfo(self, handle: str, kind: int) -> int:
        assert kind == self.NVML_CLOCK_SM
        return 1980

    def nvmlDeviceGetPowerUsage(self, handle: str) -> int:
        return 612_500

    def nvmlDeviceGetTemperature(self, handle: str, sensor: int) -> int:
        assert sensor == self.NVML_TEMPERATURE_GPU
        return 61

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: str) -> int:
        return int(self._row(handle)["throttle"])

    def nvmlDeviceGetEccMode(self, handle: str) -> tuple[int, int]:
        on = int(self._row(handle)["ecc_on"])
        return on, on

    def nvmlDeviceGetTotalEccErrors(self, handle: str, kind: int, counter: int) -> int:
        assert (kind, counter) == (1, 0)
        if not self._row(handle)["ecc_on"]:
            raise NVMLError_NotSupported("Not Supported")
        return int(self._row(handle)["ecc"])

    def nvmlDeviceGetRemappedRows(self, handle: str) -> tuple[int, int, int, int]:
        found: tuple[int, int, int, int] = self._row(handle)["remap"]
        return found

    def nvmlEventSetCreate(self) -> dict[str, str]:
        return {}

    def nvmlDeviceRegisterEvents(self, handle: str, kinds: int, events: dict[str, str]) -> None:
        assert kinds == self.nvmlEventTypeXidCriticalError
        events["handle"] = handle

    def nvmlEventSetWait_v2(self, events: dict[str, str], timeout_ms: int) -> Any:
        assert timeout_ms == 0
        waiting = self.xids[events["handle"]]
        if not waiting:
            raise NVMLError_Timeout("Timeout")
        return SimpleNamespace(eventData=waiting.pop(0))

    def nvmlDeviceGetComputeRunningProcesses(self, handle: str) -> list[Any]:
        return [SimpleNamespace(pid=pid) for pid in self._row(handle)["pids"]]
