"""D22: what runs is what was ordered.

Every rank's boot line is compared with the order (null in the order: not checked) and with the
other ranks' boot lines, and the `NSA_*` environment with `/proc/<pid>/environ`. A difference halts
before step 1, unless the plan's `allow_drift` names the field (then it warns). A field that a rank
does not report is UNKNOWN: it halts nothing, and `.GO` is never written.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from gonogo.contract.finding import Finding, Severity, Source
from gonogo.contract.heartbeat import Identity, Msg
from gonogo.contract.outcome import Detector as Name
from gonogo.contract.records import Tick
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
    """Return every difference of a rank to the order, its peers and its own environment.

    Parameters may differ from the order by the tolerance. Peers are equal in the fields that both
    report.
    """
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
        """Observe a boot line; ranks boot in any order, and may report their models later."""
        rank = beat.line.rank
        own = replace(own, by_rank={**own.by_rank, rank: beat.line.identity()})
        ranks = sorted(own.by_rank)
        return own, [row for rank in ranks for row in self._findings(own, beat.tick, view, rank)]

    def observe_tick(self, own: Identities, tick: Tick, view: View) -> Seen[Identities]:
        """Observe a tick that delivered a process's environment."""
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
