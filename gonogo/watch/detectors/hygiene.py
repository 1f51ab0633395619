"""Is the observation sound? D18 the lines, D22 the identity of the ranks, D23 the watcher.

A difference of the identity halts before step 1, unless the plan's `allow_drift` names the field
(then it warns). A field that a rank does not report is UNKNOWN: it halts nothing, and `.GO` is
never written.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from gonogo.contract.finding import Act, Finding, Severity, Source
from gonogo.contract.heartbeat import Identity, Msg
from gonogo.contract.outcome import Detector as Name
from gonogo.contract.records import NodeState, Tick
from gonogo.timeline.lines import Arrival
from gonogo.watch.detector import RANKS, Detector, Seen, replace
from gonogo.watch.view import Beat, Run, View

FIELDS = tuple(sorted(Identity.model_fields, key=lambda name: name == "config_digest"))
"""The digest last: what differs is reported by its own name first."""

DIGEST_LENGTH = 64
MAX_TEXT = 400


@dataclass(frozen=True, kw_only=True)
class Identities:
    """What each rank's boot line reported."""

    by_rank: Mapping[int, Identity] = field(default_factory=dict)


class Mismatch(NamedTuple):
    """One field of one rank that is not as it should be."""

    rank: int
    name: str
    said: Any
    expected: Any
    by: str


def equals_order(own: Identities, view: View) -> bool | None:
    """Return whether all ranks reported all fields, and all are equal; None while unknown."""
    order, known = view.run.order, own.by_rank
    rows = [row for rank in known for row in _differences(own, view, rank)]
    if any(row.name not in order.allow_drift for row in rows):
        return False
    unknown = len(known) < order.world_size or any(untold(view.run, row) for row in known.values())
    if order.identity.nsa_env is not None:
        unknown = unknown or any(view.processes.of(rank).env is None for rank in known)
    return None if unknown else True


def untold(run: Run, told: Identity) -> list[str]:
    """Return the fields that the order checks and the rank does not report."""
    return [
        name
        for name in FIELDS
        if getattr(run.order.identity, name) is not None and getattr(told, name) is None
    ]


def _differences(own: Identities, view: View, rank: int) -> list[Mismatch]:
    """Return every difference of a rank to the order, its peers and its own environment."""
    run, told, rows = view.run, own.by_rank.get(rank), list[Mismatch]()
    lowest, ordered = min(own.by_rank, default=rank), run.order.identity
    first = own.by_rank.get(lowest)
    for name in FIELDS if told is not None else ():
        said, wanted, peer = (getattr(row, name) for row in (told, ordered, first))
        if _differ(name, said, wanted, run.watch.identity.params_tolerance_ratio):
            rows.append(Mismatch(rank, name, said, wanted, "the order"))
        elif _differ(name, said, peer):
            rows.append(Mismatch(rank, name, said, peer, f"rank {lowest}"))
    env, nsa_env = view.processes.of(rank).env, ordered.nsa_env
    seen = {name: value for name, value in (env or {}).items() if name.startswith("NSA_")}
    if env is not None and nsa_env is not None and seen != nsa_env:
        by = "the order (read from the process)"
        rows.append(Mismatch(rank, "nsa_env", seen, nsa_env, by))
    return rows


def _differ(name: str, said: Any, expected: Any, tolerance: float = 0.0) -> bool:
    """Return whether two values that are both known differ; parameters by more than a share."""
    if said is None or expected is None:
        return False
    if name == "params":
        return bool(abs(said - expected) > tolerance * abs(expected))
    return bool(said != expected)


def _text(row: Mismatch) -> str:
    said, expected = _short(row.said), _short(row.expected)
    return f"rank {row.rank} runs {row.name} {said}, {row.by} says {expected}"


def _short(value: Any) -> str:
    is_digest = isinstance(value, str) and len(value) == DIGEST_LENGTH
    return f"{value[:12]}…" if is_digest else str(value)[:MAX_TEXT]


class IdentityEqual(Detector[Identities]):
    """D22: what runs is what was ordered, by boot lines and `/proc/<pid>/environ`."""

    name = Name.IDENTITY
    sentence = (
        "Halts before the first step when a rank runs something else than was ordered, or "
        "than its peers run."
    )
    State = Identities
    lines = frozenset({Msg.BOOT})
    ticks = True
    observes = frozenset({RANKS})

    def observe_line(self, own: Identities, beat: Beat, view: View) -> Seen[Identities]:
        rank = beat.line.rank
        own = replace(own, by_rank={**own.by_rank, rank: beat.line.identity()})
        ranks = sorted(own.by_rank)
        return own, [row for rank in ranks for row in self._findings(own, beat.tick, view, rank)]

    def observe_tick(self, own: Identities, tick: Tick, view: View) -> Seen[Identities]:
        ranks = (probe.rank for probe in tick.ranks if probe.env is not None)
        return own, [row for rank in ranks for row in self._findings(own, tick, view, rank)]

    def _findings(self, own: Identities, tick: Tick, view: View, rank: int) -> list[Finding]:
        """Return one finding for the differences that halt, one for each that is allowed."""
        allowed, halting = view.run.order.allow_drift, list[str]()
        warnings: list[tuple[str, str]] = []
        for row in _differences(own, view, rank):
            if row.name in allowed:
                warnings.append((f"drift/{row.name}", f"{_text(row)} (allowed)"))
            else:
                halting.append(_text(row))
        told, stream = own.by_rank.get(rank), view.streams.get(rank)
        if told is not None and (names := untold(view.run, told)):
            text = f"rank {rank} does not report {', '.join(names)}; that is not observed"
            warnings.append(("untold", text))
        step, warn, halt = None if stream is None else stream.step, Severity.WARN, Severity.HALT
        found = [
            self.finding(tick, view, warn, f"rank{rank}/{episode}", text, rank=rank, step=step)
            for episode, text in warnings
        ]
        if halting:
            text, plan = "; ".join(halting), Source.PLAN
            found.append(self.finding(tick, view, halt, "differs", text, step=step, source=plan))
        return found


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

    A line counts as lost when `HOLE_LINES` further lines came, or the rank is done.
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
