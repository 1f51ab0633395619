"""D23: the watcher itself was late or away, or a node sends nothing.

It never ends a run: a person is paged. A watcher that stays away cannot report itself; the worker's
metric `gonogo_watcher_last_tick_timestamp_seconds` and its alert do.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from gonogo.contract.finding import Act, Severity
from gonogo.contract.outcome import Detector as Name
from gonogo.contract.tick import NodeState, Tick
from gonogo.watch.detector import Detector, Seen
from gonogo.watch.state import replace
from gonogo.watch.view import View

NODE_SILENT_S = 120.0
"""So long a node is silent before a person is paged: a follower that hangs is back by then."""


@dataclass(frozen=True, kw_only=True)
class Absences:
    """Who is not heard."""

    nodes: Mapping[int, float] = field(default_factory=dict)
    """Silent node → watcher's clock of the tick that said so."""


class WatcherAway(Detector[Absences]):
    """D23 (module docstring)."""

    name = Name.WATCHER
    sentence = (
        "Pages a person when the watcher was stopped or away, so that nobody watched meanwhile, and"
        " when a node of several has given no sign for two minutes; never ends a run."
    )
    State = Absences
    ticks = True
    probes = True

    def observe_tick(self, own: Absences, tick: Tick, view: View) -> Seen[Absences]:
        """Observe how late the watcher came, and which nodes it hears."""
        if not view.watched:
            return own, []
        if not (tick.late_s or tick.nodes or own.nodes):
            return own, []
        if tick.nodes:
            nodes = dict(own.nodes)
            for probe in tick.nodes:
                nodes.pop(probe.node, None)
                if probe.state is NodeState.SILENT:
                    nodes[probe.node] = tick.mono
            own = replace(own, nodes=nodes)
        findings, late_s, away_s = [], tick.late_s, self.settings.away_s
        if late_s > away_s:
            text = f"nobody watched for {late_s:.0f} s (limit {away_s:g} s): the watcher was"
            row = self.finding(
                tick, view, Severity.WARN, f"tick{tick.n}", f"{text} stopped or away",
                setting="away_s", value=late_s, threshold=away_s, act=Act.PAGE,
            )  # fmt: skip
            findings.append(row)
        for number, since in own.nodes.items():
            silent_s = tick.mono - since
            if silent_s < NODE_SILENT_S:
                continue
            text = f"no sign of {view.name_of(number)} for {silent_s:.0f} s: what its ranks do is"
            row = self.finding(
                tick, view, Severity.WARN, f"node{number}_since{since:.0f}",
                f"{text} unknown, and nothing is ended by that",
                value=silent_s, threshold=NODE_SILENT_S, act=Act.PAGE,
            )  # fmt: skip
            findings.append(row)
        return own, findings
