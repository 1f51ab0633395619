"""A recorded stand-in for the module `pynvml`: two devices, and the errors that a driver gives.

Only the dozen functions that are called are here, with the names, argument counts and units of
nvidia-ml-py 13 (memory in bytes, power in mW, throttle reasons as bits).
"""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any

GB = 2**30


class NVMLError(Exception):
    """Any error of the library."""


class NVMLError_Timeout(NVMLError):
    """No event came in time."""


class FakeNvml:
    """The module; `failing` are names whose calls raise, `xids` are events that wait."""

    NVMLError = NVMLError
    NVMLError_Timeout = NVMLError_Timeout
    NVML_CLOCK_SM = 1
    NVML_TEMPERATURE_GPU = 0
    NVML_MEMORY_ERROR_TYPE_UNCORRECTED = 1
    NVML_VOLATILE_ECC = 0
    NVML_NVLINK_MAX_LINKS = 18
    NVML_NVLINK_ERROR_DL_REPLAY = 0
    NVML_NVLINK_ERROR_DL_RECOVERY = 1
    NVML_NVLINK_ERROR_DL_CRC_FLIT = 2
    NVML_NVLINK_ERROR_DL_CRC_DATA = 3
    nvmlEventTypeXidCriticalError = 8

    def __init__(self, failing: set[str] | None = None) -> None:
        self.failing = failing or set()
        self.xids: dict[int, list[int]] = {0: [], 1: []}
        self.called: Counter[str] = Counter()

    def __getattribute__(self, name: str) -> Any:
        found = object.__getattribute__(self, name)
        if name.startswith("nvml") and callable(found):
            self.called[name] += 1
            if name in self.failing:
                raise_ = NVMLError(f"{name}: Not Supported")

                def fail(*_: Any) -> Any:
                    raise raise_

                return fail
        return found

    def nvmlInit(self) -> None: ...

    def nvmlSystemGetDriverVersion(self) -> bytes:
        return b"570.86.15"

    def nvmlDeviceGetCount(self) -> int:
        return 2

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        if index not in (0, 1):
            raise NVMLError("Invalid Argument")
        return index

    def nvmlDeviceGetUUID(self, handle: int) -> str:
        return f"GPU-{handle}"

    def nvmlDeviceGetName(self, handle: int) -> str:
        return "NVIDIA H200"

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> Any:
        return SimpleNamespace(used=3 * GB, total=140 * GB)

    def nvmlDeviceGetUtilizationRates(self, handle: int) -> Any:
        return SimpleNamespace(gpu=97, memory=40)

    def nvmlDeviceGetClockInfo(self, handle: int, kind: int) -> int:
        assert kind == self.NVML_CLOCK_SM
        return 1980

    def nvmlDeviceGetPowerUsage(self, handle: int) -> int:
        return 612_500

    def nvmlDeviceGetTemperature(self, handle: int, sensor: int) -> int:
        assert sensor == self.NVML_TEMPERATURE_GPU
        return 61

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: int) -> int:
        return 0x4 | 0x40

    def nvmlDeviceGetTotalEccErrors(self, handle: int, kind: int, counter: int) -> int:
        assert (kind, counter) == (1, 0)
        return 2

    def nvmlDeviceGetRemappedRows(self, handle: int) -> tuple[int, int, int, int]:
        return (0, 1, 1, 0)

    def nvmlDeviceGetNvLinkState(self, handle: int, link: int) -> int:
        if link >= 4:
            raise NVMLError("Invalid Argument")
        return int(link != 2)

    def nvmlDeviceGetNvLinkErrorCounter(self, handle: int, link: int, counter: int) -> int:
        return 1

    def nvmlEventSetCreate(self) -> dict[str, int]:
        return {}

    def nvmlDeviceRegisterEvents(self, handle: int, kinds: int, events: dict[str, int]) -> None:
        assert kinds == self.nvmlEventTypeXidCriticalError
        events["handle"] = handle

    def nvmlEventSetWait_v2(self, events: dict[str, int], timeout_ms: int) -> Any:
        assert timeout_ms == 0
        waiting = self.xids[events["handle"]]
        if not waiting:
            raise NVMLError_Timeout("Timeout")
        return SimpleNamespace(eventData=waiting.pop(0))

    def nvmlDeviceGetComputeRunningProcesses(self, handle: int) -> list[Any]:
        return [SimpleNamespace(pid=42), SimpleNamespace(pid=7)]
