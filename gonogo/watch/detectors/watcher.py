"""D23: the watcher itself was late or away, or a node sends nothing.

It never ends a run: a person is told. A watcher that stays away cannot report itself; the worker's
metric `gonogo_watcher_last_tick_timestamp_seconds` and its alert do.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from gonogo.contract.finding import Act, Finding, Severity
from gonogo.contract.outcome import Detector as Name
from gonogo.contract.tick import NodeState, Tick
from gonogo.watch.detector import Detector, Seen
from gonogo.watch.view import View, found

NODE_SILENT_S = 120.0
"""So long a node is silent before a person is told: a follower that hangs is back by then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Silence:
    """A node that gives no sign."""

    since: float
    """Watcher's clock of the tick that said so."""
    told: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Absences:
    """Who is not heard."""

    nodes: Mapping[int, Silence] = field(default_factory=dict)


class WatcherAway(Detector[Absences]):
    """D23 (module docstring)."""

    name = Name.WATCHER
    sentence = (
        "Tells a person when the watcher was stopped or away, so that nobody watched meanwhile, and"
        " when a node of several has given no sign for two minutes; never ends a run."
    )
    State = Absences
    ticks = True
    probes = True

    def observe_tick(self, own: Absences, tick: Tick, view: View) -> Seen[Absences]:
        """Observe how late the watcher came, and which nodes it hears."""
        if not view.watched:
            return own, []
        findings = self._late(tick, view) if tick.late_s else []
        if tick.nodes or own.nodes:
            own, silent = self._hear(own, tick, view)
            findings += silent
        return own, findings

    def _hear(self, own: Absences, tick: Tick, view: View) -> Seen[Absences]:
        if tick.nodes:
            nodes = dict(own.nodes)
            for probe in tick.nodes:
                nodes.pop(probe.node, None)
                if probe.state is NodeState.SILENT:
                    nodes[probe.node] = Silence(since=tick.mono)
            own = replace(own, nodes=nodes)
        findings = []
        for number, silence in own.nodes.items():
            silent_s = tick.mono - silence.since
            if silence.told or silent_s < NODE_SILENT_S:
                continue
            own = replace(own, nodes={**own.nodes, number: replace(silence, told=True)})
            finding = found(
                view,
                self.name,
                Severity.WARN,
                episode=f"node{number}_tick{tick.n}",
                at=tick.ts,
                value=silent_s,
                threshold=NODE_SILENT_S,
                act=Act.PAGE,
                text=f"no sign of {view.name_of(number)} for {silent_s:.0f} s: what its ranks do"
                " nobody knows, and nothing is ended by that",
            )
            findings.append(finding)
        return own, findings

    def _late(self, tick: Tick, view: View) -> list[Finding]:
        away_s = self.settings.away_s
        if tick.late_s <= away_s:
            return []
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
        return [finding]
