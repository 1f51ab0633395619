"""D25: do attempts fail one after the other without getting further?

Decided between attempts, not while one runs: `is_storm` is what `judge.course.retries` asks before
it starts another one. Retrying stops then, and the phase is NO_GO: a run that never gets past its
last checkpoint is not unlucky.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from gonogo.contract.outcome import Detector as Name
from gonogo.contract.watch import RestartStorm as Settings
from gonogo.judge.watch.detector import Detector
from gonogo.judge.watch.view import View


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """One attempt that was launched and that infrastructure ended."""

    at: float | None
    """Unix seconds of its launch."""
    durable_step: int
    """Highest step of a verified checkpoint when it ended; 0 for none."""


class RestartStorm(Detector[None]):
    """D25: do attempts fail one after the other without getting further?"""

    name = Name.RESTART_STORM
    sentence = (
        "Stops retrying, NO_GO, after three attempts without a higher durable step, or at the fifth"
        " start within half an hour. Decided between attempts."
    )

    def armed(self, own: None, view: View) -> bool:
        """Never while a run goes on."""
        return False


def is_storm(starts: Sequence[Start], *, before_step: int, now: float, settings: Settings) -> bool:
    """Say whether failed attempts are a storm.

    Args:
        starts: the failed attempts since the last other end, in order.
        before_step: highest durable step before the first of them.
        now: Unix seconds.
        settings: `watch.restart_storm` of the plan.
    """
    recent = [row for row in starts if row.at is not None and now - row.at <= settings.within_s]
    if len(recent) >= settings.starts:
        return True
    if len(starts) < settings.attempts:
        return False
    steps = [row.durable_step for row in starts]
    best = max([before_step, *steps[: -settings.attempts]])
    return max(steps[-settings.attempts :]) <= best
