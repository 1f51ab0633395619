"""D25: do attempts fail one after the other without getting further?

Decided between attempts: `is_storm` is what `judge.course.retries` asks before it starts another
one. Retrying stops then, and the phase is NO_GO: a run that never gets past its last checkpoint is
not unlucky. Within an attempt a launcher may start its ranks anew, again and again: that is halted
once so many starts running have ended no higher step than those before them. Where these trained
for long, and a checkpoint comes seldom, bad luck looks the same: it takes twice as many then. One
that said `done` has not failed: what begins after it is another training (a fold, a seed). One that
said it and ended no step was none: a script may evaluate on one set after the other.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from gonogo.contract.finding import Severity
from gonogo.contract.heartbeat import Msg
from gonogo.contract.outcome import Detector as Name
from gonogo.contract.watch import RestartStorm as Settings
from gonogo.watch.detector import Detector, Seen
from gonogo.watch.view import Beat, View, found


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
    """2: starts that trained for longer than `within_s` each halt when there are twice as many."""
    sentence = (
        "Stops retrying, NO_GO, after three attempts without a higher durable step, or at the fifth"
        " start within half an hour; decided between attempts. Halts a run that is restarted in"
        " place, where `starts` starts running have ended no higher step than those before them;"
        " twice as many where these trained for longer than `within_s` each, on average."
    )
    lines = frozenset({Msg.BOOT})

    def observe_line(self, own: None, beat: Beat, view: View) -> Seen[None]:
        """Observe a rank that starts anew."""
        stream = view.streams[beat.line.rank]
        limit = self.settings.starts
        if stream.idle_s > stream.idle_boots * self.settings.within_s:
            limit *= 2
        if stream.idle_boots < limit:
            return own, []
        return own, [
            found(
                view,
                self.name,
                Severity.HALT,
                episode=f"in_place/step{stream.top_step}",
                at=beat.tick.ts,
                step=stream.top_step,
                value=float(stream.idle_boots),
                threshold=float(limit),
                source=self.run.source("restart_storm.starts"),
                text=f"rank {stream.rank} starts anew after {stream.idle_boots} starts that ended"
                f" no step beyond {stream.top_step} (limit {limit})",
            )
        ]

    def armed(self, own: None, view: View) -> bool:
        """Whether a rank has started anew; what is between attempts is not seen here."""
        return any(row.top_step or row.idle_boots for row in view.streams.values())


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
