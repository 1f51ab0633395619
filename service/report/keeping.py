"""Which finished experiments have no report of their last decision yet? A loop that writes them.

Whoever asks for a report gets one at once; this writes those that nobody asked for, a few seconds
after the end, one at each turn, so that it stays out of the way of what is going on.
"""

import logging
from pathlib import Path

from gonogo.contract.errors import GonogoError, Unavailable
from service.context import Context
from service.queries.experiments import load_changed
from service.report.writing import REPORT, reports_dir, write_report

SETTLE_S = 5.0
"""Seconds since the last change before a report is written unasked."""

_log = logging.getLogger(__name__)


def is_written(path: Path, changed_at: float) -> bool:
    """Say whether a report is newer than what it tells."""
    try:
        return path.stat().st_mtime >= changed_at
    except FileNotFoundError:
        return False


class Reports:
    """Writes the reports of finished experiments."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._done: dict[str, float] = {}
        """Experiment → the change that its report is known to tell (or that was tried)."""

    def run_once(self) -> None:
        """Write one report that is due, the oldest change first."""
        context = self._context
        changed = context.store.read(load_changed)
        for experiment, changed_at in sorted(changed.items(), key=lambda row: row[1]):
            if self._done.get(experiment) == changed_at:
                continue
            if context.now() - changed_at < SETTLE_S:
                return
            self._done[experiment] = changed_at
            if is_written(reports_dir(context.settings.home, experiment) / REPORT, changed_at):
                continue
            if self._write(experiment):
                return
            del self._done[experiment]  # at a later turn; the others are not to wait for that

    def _write(self, experiment: str) -> bool:
        """Write a report; False where what it tells cannot be had just now."""
        try:
            write_report(self._context, experiment)
        except GonogoError as error:
            _log.warning("no report: %s", error, extra={"action": "report_not_written"})
            return not isinstance(error, Unavailable)
        return True
