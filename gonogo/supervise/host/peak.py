"""What can the devices do at most? The matrix-product peak that the preflight measured, told once.

It goes through a tick, so that what detectors make of a reported speed is the same in replay.
"""

import math
from typing import Any

from gonogo.contract.errors import Corrupt
from gonogo.contract.observation import PreflightPeak
from gonogo.contract.records import Preflight
from gonogo.rundir import RunDir, load_record


class MeasuredPeak:
    """The source `preflight_peak`.

    Args:
        run_dir: where preflight/preflight.json lies, when there was a preflight.
    """

    kind = "preflight_peak"
    every_s = 5.0

    def __init__(self, run_dir: RunDir) -> None:
        self._dir = run_dir
        self._told = False

    def look(self, now: float) -> dict[str, Any] | None:
        """Return the peak the first time that it can be read.

        Raises:
            OSError: the file is there and cannot be read.
        """
        if self._told:
            return None
        try:
            record = load_record(self._dir.preflight, Preflight)
        except Corrupt:
            self._told = True  # the verdict names the file; there is no peak to learn from it
            return None
        if record is None:
            return None
        self._told = True
        peak = record.peak_flops
        if peak is None or not math.isfinite(peak) or peak <= 0:
            return None
        return PreflightPeak(flops=peak, of=record.peak_of).wire()

    def resume(self, payload: Any) -> None:
        """Say it no second time."""
        self._told = True
