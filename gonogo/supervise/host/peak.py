"""What can the devices do at most? The matrix-product peak that the preflight measured, told once.

It goes through a tick, so that what detectors make of a reported speed is the same in replay. Of a
run on several nodes it is what all of them reach together, told when each one's is there.
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
        run_dir: where the preflight records lie, when there was a preflight.
        nodes: on how many nodes the run is.
    """

    kind = "preflight_peak"
    every_s = 5.0

    def __init__(self, run_dir: RunDir, nodes: int = 1) -> None:
        self._dir, self._nodes = run_dir, nodes
        self._told = False

    def look(self, now: float) -> dict[str, Any] | None:
        """Return the peak the first time that it can be read.

        Raises:
            OSError: a file is there and cannot be read.
        """
        if self._told:
            return None
        try:
            found = [
                load_record(self._dir.preflight_of(node), Preflight) for node in range(self._nodes)
            ]
        except Corrupt:
            self._told = True  # the verdict names the file; there is no peak to learn from it
            return None
        records = [record for record in found if record is not None]
        if len(records) < self._nodes:
            return None
        self._told = True
        peaks = [record.peak_flops or 0.0 for record in records]
        if not all(math.isfinite(peak) and peak > 0 for peak in peaks):
            return None
        kinds = {record.peak_of for record in records}
        return PreflightPeak(
            flops=math.fsum(peaks), of=kinds.pop() if len(kinds) == 1 else None
        ).wire()

    def resume(self, payload: Any) -> None:
        """Say it no second time."""
        self._told = True
