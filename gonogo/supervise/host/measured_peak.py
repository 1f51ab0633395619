"""Report the matrix-product peak that the preflight measured, once: the sum over all nodes."""

import math
from typing import Any

from gonogo.contract.errors import Corrupt
from gonogo.contract.observation import PreflightPeak
from gonogo.contract.records import Preflight
from gonogo.rundir import RunDir, load_record


class MeasuredPeak:
    """The source `preflight_peak`.

    Args:
        run_dir: of the preflight records.
    """

    kind = "preflight_peak"
    every_s = 5.0

    def __init__(self, run_dir: RunDir, nodes: int = 1) -> None:
        self._dir, self._nodes = run_dir, nodes
        self._is_done = False

    def look(self, now: float) -> dict[str, Any] | None:
        """Return the peak as soon as every node's is there.

        Raises:
            OSError: a file exists and cannot be read.
        """
        if self._is_done:
            return None
        try:
            found = [
                load_record(self._dir.preflight_of(node), Preflight) for node in range(self._nodes)
            ]
        except Corrupt:
            self._is_done = True
            return None
        records = [record for record in found if record is not None]
        if len(records) < self._nodes:
            return None
        self._is_done = True
        peaks = [record.peak_flops or 0.0 for record in records]
        if not all(math.isfinite(peak) and peak > 0 for peak in peaks):
            return None
        kinds = {record.peak_of for record in records}
        return PreflightPeak(
            flops=math.fsum(peaks), of=kinds.pop() if len(kinds) == 1 else None
        ).wire()

    def resume(self, payload: Any) -> None:
        """Report it no second time."""
        self._is_done = True
