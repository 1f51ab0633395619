"""What a watcher reports for people and charts: `.metrics.json`, and whether the run looks sick."""

import logging
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from gonogo.contract.finding import Finding, Near, Severity
from gonogo.rundir import RunDir
from gonogo.supervise.watcher.metrics_file import METRICS_NAME, save_metrics
from gonogo.supervise.watcher.pace import Pace
from gonogo.supervise.watcher.shipping import Shipping
from gonogo.watch import WatchState, armed, near

METRICS_EVERY_S = 1.0
SUSPECT_S = 10.0
"""How long a run is shown as suspect after a suspicion that went no further."""

_log = logging.getLogger("gonogo.supervise.watcher")


class Reporter:
    """Reports on one run.

    Args:
        run_dir: where `.metrics.json` is written.
        shipping: who ships the run.
        pace: the run's pace.
    """

    def __init__(self, run_dir: RunDir, shipping: Shipping, pace: Pace) -> None:
        self._path = run_dir.path / METRICS_NAME
        self._shipping, self._pace = shipping, pace
        self._metrics_at = self._suspect_until = float("-inf")

    def note(self, finding: Finding, now: float) -> None:
        """Log a new finding."""
        _log.warning("%s: %s", finding.severity, finding.text, extra={"action": "finding"})
        if finding.severity is Severity.SUSPECT:
            self._suspect_until = now + SUSPECT_S

    def report(self, now: float, ts: float, state: WatchState, found: Iterable[Finding]) -> None:
        """Report what is due.

        Args:
            now: monotonic seconds.
            ts: Unix seconds.
            state: the fold.
            found: every finding so far.
        """
        self._shipping.suspect = now < self._suspect_until
        if now < self._metrics_at:
            return
        self._metrics_at = now + METRICS_EVERY_S
        self._shipping.near = distances = near(state, now)
        try:
            save_metrics(self._path, self._metrics(ts, state, found, distances))
        except OSError as error:
            _log.warning("metrics: %s", error, extra={"action": "metrics_unwritten"})

    def _metrics(
        self,
        ts: float,
        state: WatchState,
        found: Iterable[Finding],
        distances: Mapping[str, Near],
    ) -> dict[str, Any]:
        counts = Counter(f"{finding.detector}/{finding.severity.value}" for finding in found)
        return {
            "tick": ts,
            "backlog": self._shipping.backlog_lines,
            "ranks": {
                str(rank): {"step": row.step, "last": row.heard_ts, "loss": row.loss}
                for rank, row in sorted(state.streams.items())
            },
            "armed": {str(detector): on for detector, on in armed(state).items()},
            "near": {
                str(detector): row.model_dump(mode="json", exclude_defaults=True)
                for detector, row in distances.items()
            },
            "findings": dict(counts),
            "step_s": self._pace.times.model_dump(),
        }
