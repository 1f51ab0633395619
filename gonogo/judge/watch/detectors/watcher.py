"""D23: was the watcher itself late, or away?

While it was away nothing was watched: deadlines are armed anew, and a person is told. It never ends
a run. That a watcher is gone and stays away nobody can read from its own ticks: for that the
worker's dead-man metric `gonogo_watcher_last_tick_timestamp_seconds` is there, and its alert.
"""

from gonogo.contract.finding import Act, Severity
from gonogo.contract.outcome import Detector as Name
from gonogo.contract.tick import Tick
from gonogo.judge.watch.detector import Detector, Seen
from gonogo.judge.watch.view import View, found


class WatcherAway(Detector[None]):
    """D23: was the watcher itself late, or away?"""

    name = Name.WATCHER
    sentence = (
        "Tells a person when the watcher was stopped or away, so that nobody watched meanwhile;"
        " never ends a run."
    )
    ticks = True
    probes = True

    def observe_tick(self, own: None, tick: Tick, view: View) -> Seen[None]:
        """Observe how late the watcher came."""
        away_s = self.settings.away_s
        if not view.watched or tick.late_s <= away_s:
            return own, []
        finding = found(
            view,
            self.name,
            Severity.WARN,
            episode=f"tick{tick.n}",
            at=tick.ts,
            value=tick.late_s,
            threshold=away_s,
            source=self.run.source("watcher.away_s"),
            act=Act.PAGE,
            text=f"nobody watched for {tick.late_s:.0f} s (limit {away_s:g} s): the watcher was"
            " stopped or away",
        )
        return own, [finding]
