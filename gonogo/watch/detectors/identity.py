"""D22: what runs is what was ordered.

Every rank's boot line is compared with the order (null in the order: not checked) and with the
other ranks' boot lines, and the `NSA_*` environment with `/proc/<pid>/environ`. A difference halts
before step 1, unless the plan's `allow_drift` names the field (then it warns). A field that a rank
does not report is UNKNOWN: it halts nothing, and `.GO` is never written.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from gonogo.contract.finding import Finding, Severity, Source
from gonogo.contract.heartbeat import Identity, Msg
from gonogo.contract.outcome import Detector as Name
from gonogo.contract.tick import Tick
from gonogo.watch.detector import RANKS, Detector, Seen
from gonogo.watch.view import Beat, Run, View, found

FIELDS = tuple(sorted(Identity.model_fields, key=lambda name: name == "config_digest"))
"""The digest last: what differs is told by its own name first."""

DIGEST_LENGTH = 64
MAX_TEXT = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class Identities:
    """What each rank's boot line told."""

    by_rank: Mapping[int, Identity] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mismatch:
    """One field of one rank that is not as it should be."""

    rank: int
    name: str
    said: Any
    expected: Any
    by: str


def equals_order(own: Identities, view: View) -> bool | None:
    """Return True when all ranks told all and all is equal, False on a difference, else None."""
    order = view.run.order
    allowed = set(order.allow_drift)
    unknown = len(own.by_rank) < order.world_size
    for rank in own.by_rank:
        if any(d.name not in allowed for d in _differences(own, view, rank)):
            return False
        unknown = unknown or bool(untold(view.run, own.by_rank[rank]))
        env_checked = order.identity.nsa_env is not None
        unknown = unknown or (env_checked and view.processes.of(rank).env is None)
    return None if unknown else True


def untold(run: Run, told: Identity) -> list[str]:
    """Return the fields that the order checks and the rank does not tell."""
    return [
        name
        for name in FIELDS
        if getattr(run.order.identity, name) is not None and getattr(told, name) is None
    ]


def same(run: Run, name: str, said: Any, expected: Any) -> bool:
    """Whether two values of a field are equal; parameters may differ by the tolerance."""
    if said is None or expected is None:
        return True
    if name == "params":
        tolerance: float = run.watch.identity.params_tolerance_ratio
        return bool(abs(said - expected) <= tolerance * abs(expected))
    return bool(said == expected)


def _differences(own: Identities, view: View, rank: int) -> list[Mismatch]:
    """Return every difference of a rank to the order, its peers and its own environment."""
    run, told = view.run, own.by_rank.get(rank)
    found_env = _nsa_only(view.processes.of(rank).env)
    rows: list[Mismatch] = []
    if told is not None:
        rows += _against(run, rank, told, run.order.identity, "the order")
        rows = rows or _against_peers(own, rank, told)
    expected_env = run.order.identity.nsa_env
    if found_env is not None and expected_env is not None and found_env != expected_env:
        rows.append(
            Mismatch(
                rank=rank,
                name="nsa_env",
                said=found_env,
                expected=expected_env,
                by="the order (read from the process)",
            )
        )
    return rows


def _against(run: Run, rank: int, told: Identity, other: Identity, by: str) -> list[Mismatch]:
    rows = []
    for name in FIELDS:
        said, expected = getattr(told, name), getattr(other, name)
        if not same(run, name, said, expected):
            rows.append(Mismatch(rank=rank, name=name, said=said, expected=expected, by=by))
    return rows


def _against_peers(own: Identities, rank: int, told: Identity) -> list[Mismatch]:
    """Return what a rank says otherwise than the lowest rank below it that says it at all.

    One that has yet to tell its model says nothing of it: the others may come to that first.
    """
    if told == own.by_rank[min(own.by_rank)]:
        return []
    peers = [(peer, own.by_rank[peer]) for peer in sorted(own.by_rank) if peer < rank]
    rows: list[Mismatch] = []
    for name in FIELDS:
        said = getattr(told, name)
        tell = ((peer, getattr(other, name)) for peer, other in peers)
        peer, expected = next(((p, value) for p, value in tell if value is not None), (rank, said))
        if said is not None and said != expected:
            by = f"rank {peer}"
            rows.append(Mismatch(rank=rank, name=name, said=said, expected=expected, by=by))
    return rows


def _nsa_only(env: Mapping[str, str] | None) -> dict[str, str] | None:
    if env is None:
        return None
    return {name: value for name, value in env.items() if name.startswith("NSA_")}


def _findings(own: Identities, tick: Tick, view: View, rank: int) -> list[Finding]:
    """Return one finding for the differences that halt, one for each that is allowed or untold."""
    allowed = set(view.run.order.allow_drift)
    rows = _differences(own, view, rank)
    halting = [row for row in rows if row.name not in allowed]
    findings = [
        _finding(view, tick, rank, Severity.WARN, f"drift/{row.name}", f"{_text(row)} (allowed)")
        for row in rows
        if row.name in allowed
    ]
    told = own.by_rank.get(rank)
    if told is not None and (names := untold(view.run, told)):
        text = f"rank {rank} does not tell {', '.join(names)}; that is not observed"
        findings.append(_finding(view, tick, rank, Severity.WARN, "untold", text))
    if halting:
        text = "; ".join(_text(row) for row in halting)
        findings.append(_finding(view, tick, rank, Severity.HALT, "", text))
    return findings


def _text(row: Mismatch) -> str:
    said, expected = _short(row.said), _short(row.expected)
    return f"rank {row.rank} runs {row.name} {said}, {row.by} says {expected}"


def _short(value: Any) -> str:
    is_digest = isinstance(value, str) and len(value) == DIGEST_LENGTH
    return f"{value[:12]}…" if is_digest else str(value)[:MAX_TEXT]


def _finding(
    view: View, tick: Tick, rank: int, severity: Severity, episode: str, text: str
) -> Finding:
    stream = view.streams.get(rank)
    return found(
        view,
        Name.IDENTITY,
        severity,
        episode="differs" if severity is Severity.HALT else f"rank{rank}/{episode}",
        at=tick.ts,
        rank=None if severity is Severity.HALT else rank,
        step=None if stream is None else stream.step,
        source=Source.PLAN if severity is Severity.HALT else Source.DEFAULT,
        text=text,
    )


class IdentityEqual(Detector[Identities]):
    """D22 (module docstring)."""

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
        """Observe a boot line; ranks boot in any order, and may tell their models later."""
        rank, known = beat.line.rank, own.by_rank
        own = replace(own, by_rank={**known, rank: beat.line.identity()})
        findings = _findings(own, beat.tick, view, rank)
        for later in sorted(known):
            if later > rank:
                findings += _findings(own, beat.tick, view, later)
        return own, findings

    def observe_tick(self, own: Identities, tick: Tick, view: View) -> Seen[Identities]:
        """Observe a tick that brought a process's environment."""
        findings = []
        for probe in tick.ranks:
            if probe.env is not None:
                findings += _findings(own, tick, view, probe.rank)
        return own, findings

    def armed(self, own: Identities, view: View) -> bool:
        """Whether a rank has yet to be compared with an order that checks anything."""
        checked = any(getattr(view.run.order.identity, name) is not None for name in FIELDS)
        return checked or view.run.order.world_size > 1
