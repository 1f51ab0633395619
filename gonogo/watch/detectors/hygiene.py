"""Is the observation itself sound? D18 hygiene looks at the lines, D23 watcher at the watcher."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gonogo.contract.finding import Act, Finding, Severity
from gonogo.contract.heartbeat import Msg
from gonogo.contract.outcome import Detector as Name
from gonogo.contract.records import NodeState, Tick
from gonogo.timeline.lines import Arrival
from gonogo.watch.detector import Detector, Seen, replace
from gonogo.watch.view import Beat, View

HOLE_LINES = 64
UNREADABLE_AFTER_S = 2.0
UNREADABLE_LINES = 3
"""A rank that writes so many lines that are no heartbeats, or nothing else, is named: a warning,
once they have been counted for `UNREADABLE_AFTER_S`."""
OFF_TICKS = 20
"""A wall clock is off if all lines of so many ticks running are off. The last line of a block that
waited to be read is fresh."""
NODE_SILENT_S = 120.0
"""So long a node is silent before a person is paged: a follower that hangs is back by then."""


@dataclass(frozen=True, kw_only=True)
class Skews:
    """Ranks whose wall clock is off."""

    ticks: dict[str, tuple[int, int]] = field(default_factory=dict)
    """`rank/boot` → ticks running whose lines were off, and the number of the last one."""


class Hygiene(Detector[Skews]):
    """D18: the lines themselves are sound.

    Lost, unreadable, repeated and outdated lines are counted and reported once (info). A wall clock
    that is off, and stays so, warns. A step that runs backwards without a restart halts, because
    two processes write one stream. A line counts as lost when `HOLE_LINES` further lines came, or
    the rank is done.
    """

    name = Name.HYGIENE
    sentence = (
        "Counts lost, unreadable and outdated lines, warns of clocks that stay wrong. Halts "
        "when a step runs backwards without a restart or two different lines claim the "
        "same place: then two processes write one stream."
    )
    lines = frozenset({Msg.BOOT, Msg.STEP_START, Msg.ALIVE, Msg.SECTION})
    State = Skews
    ticks = True

    def observe_line(self, own: Skews, beat: Beat, view: View) -> Seen[Skews]:
        """Observe a line's wall clock, once the watcher's is in time.

        It is off by receipt (a line that waited to be read is old, not wrong) and by the monotonic
        clock that processes of one host share. Only together the two prove it.
        """
        line, tick, limit_s = beat.line, beat.tick, self.settings.skew_s
        skew_s = line.ts - tick.ts
        if abs(skew_s) <= limit_s and not own.ticks:
            return own, []
        if not view.watched or tick.late_s > limit_s or beat.arrival is Arrival.LATE:
            return own, []
        name, ahead_s = f"{line.rank}/{line.boot}", (line.ts - line.mono) - (tick.ts - tick.mono)
        count, last_n = own.ticks.get(name, (0, -1))
        if min(abs(skew_s), abs(ahead_s + view.clock.apart_s(line.rank))) <= limit_s:
            count, skew_s = 0, 0.0
        else:
            count += tick.n != last_n
        own = replace(own, ticks={**own.ticks, name: (count, tick.n)})
        if count < OFF_TICKS:
            return own, []
        text = f"wall clock is off by {skew_s:.1f} s (limit {limit_s:g} s)"
        warning = self._found(
            tick, view, Severity.WARN, line.rank, f"{line.boot}/skew", text, skew_s, limit_s,
            step=line.step, source=self.run.source("hygiene.skew_s"),
        )  # fmt: skip
        return own, [warning]

    def observe_tick(self, own: Skews, tick: Tick, view: View) -> Seen[Skews]:
        """Observe what was counted so far."""
        found, halt, info = list[Finding](), Severity.HALT, Severity.INFO
        for rank, record in view.lines.items():
            stream, boot = view.streams.get(rank), record.boot
            if record.conflicts:
                text = "two different lines have the same boot and seq: two processes write"
                text, count = f"{text} heartbeats", record.conflicts
                found.append(self._found(tick, view, halt, rank, "two_writers", text, count))
            if record.stale:
                text, episode = f"{record.stale} line(s) of an earlier boot", "of_an_earlier_boot"
                found.append(
                    self._found(tick, view, info, rank, f"{boot}/{episode}", text, record.stale)
                )
            lines = record.boots.get(boot or "")
            if lines is not None and lines.ahead:
                is_done = stream is not None and stream.done
                lost = lines.gaps(None if is_done else lines.top - HOLE_LINES)
                text, episode = f"{lost} line(s) lost", f"{boot}/lost"
                if lost:
                    found.append(self._found(tick, view, info, rank, episode, text, lost))
            if stream is not None and stream.backwards is not None:
                now, then = stream.step, stream.backwards
                text, episode = (
                    f"went back from step {now} to {then} without a restart",
                    "backwards",
                )
                found.append(
                    self._found(
                        tick, view, halt, rank, f"{boot}/{episode}", text, then, now, stream=stream
                    )
                )
        for rank, row in view.unreadable.items():
            many = row.count >= UNREADABLE_LINES or rank not in view.streams
            text, severity = f"{row.count} line(s) unreadable", info
            if many and tick.mono - row.since_mono >= UNREADABLE_AFTER_S:
                text, severity = f"{text}; the first begins {row.first!r}", Severity.WARN
            found.append(self._found(tick, view, severity, rank, "unreadable", text, row.count))
        return own, found

    def _found(
        self, tick: Tick, view: View, severity: Severity, rank: int, episode: str, text: str,
        value: float, limit: float = 0.0, **fields: Any,
    ) -> Finding:  # fmt: skip
        return self.finding(
            tick, view, severity, f"rank{rank}/{episode}", f"rank {rank}: {text}",
            rank=rank, value=value, threshold=limit, **fields,
        )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Absences:
    """Nodes that are not heard."""

    nodes: Mapping[int, float] = field(default_factory=dict)
    """Silent node → watcher's clock of the tick that reported it."""


class WatcherAway(Detector[Absences]):
    """D23: the watcher itself was late or away, or a node sends nothing.

    It never ends a run: a person is paged. A watcher that stays away cannot report itself; the
    worker's metric `gonogo_watcher_last_tick_timestamp_seconds` and its alert do.
    """

    name = Name.WATCHER
    sentence = (
        "Pages a person when nobody watched for a while, or when a node has given no sign for "
        "two minutes; never ends a run."
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
        rows, late_s, away_s = [], tick.late_s, self.settings.away_s
        if late_s > away_s:
            text = f"nobody watched for {late_s:.0f} s (limit {away_s:g} s): the watcher was"
            rows.append((f"tick{tick.n}", f"{text} stopped or away", late_s, away_s, "away_s"))
        for number, since in own.nodes.items():
            silent_s = tick.mono - since
            if silent_s >= NODE_SILENT_S:
                text = f"no sign of {view.name_of(number)} for {silent_s:.0f} s: what its ranks do"
                text = f"{text} is unknown, and nothing is ended by that"
                rows.append((f"node{number}_since{since:.0f}", text, silent_s, NODE_SILENT_S, ""))
        return own, [
            self.finding(
                tick, view, Severity.WARN, episode, text,
                setting=setting, value=value, threshold=limit, act=Act.PAGE,
            )
            for episode, text, value, limit, setting in rows
        ]  # fmt: skip
