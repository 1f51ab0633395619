"""What can the predecessor's heartbeat files still tell? Less than ours, and this says what not.

Its lines (`ts iso pid rank step msg …`, rank 0 only, a progress line every `log_every` steps) have
no `mono`, `boot` or `seq`, no sections and no identity. They are read into our `Heartbeat` with
`ts` standing for `mono`, the process id for the boot and the line's number for `seq`; the numbers
are real, whatever rests on sections, probes or gap-free numbering is not, and is listed. Speed is
what the distance between its lines says, and a report that differs from it is a warning.
"""

import statistics
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from pydantic import ValidationError

from gonogo.contract.doubt import Doubt, DoubtKind
from gonogo.contract.errors import Corrupt
from gonogo.contract.finding import Finding, Severity, Source
from gonogo.contract.heartbeat import Heartbeat, Msg, parse_object
from gonogo.contract.order import Order
from gonogo.contract.outcome import Detector
from gonogo.contract.records import ExitRecord
from gonogo.contract.watch import Watch
from gonogo.judge.facts.spacing import (
    Spacing,
    advancing,
    find_spacing,
    observe_speed,
    predecessor_doubt,
    unseen_speed,
)

MESSAGES = {
    "beat": Msg.ALIVE,
    "heartbeat": Msg.ALIVE,
    "fineweb_loader_ready": Msg.LOADER_READY,
    "fineweb_loader_error": Msg.LOADER_ERROR,
    "loader_timeout": Msg.LOADER_ERROR,
}
"""Its messages under our names; the others keep theirs (R73: only steps are progress)."""

_MIN_INTERVALS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """What was read, and what could not be."""

    beats: dict[int, tuple[Heartbeat, ...]]
    unreadable: dict[int, int]
    findings: tuple[Finding, ...]
    not_observed: tuple[Doubt, ...]
    spacings: dict[int, Spacing]
    """Rank → the distances between its progress lines, where there are two."""


def is_predecessor(streams: Iterable[Iterable[bytes]]) -> bool:
    """Say whether the lines are the predecessor's: readable ones, none with `boot` and `seq`."""
    seen = False
    for lines in streams:
        for raw in lines:
            row = _row(raw)
            if row is None or not {"ts", "step", "msg"} <= row.keys():
                continue
            if "seq" in row or "boot" in row:
                return False
            seen = True
    return seen


def read_predecessor(
    lines: Mapping[int, list[bytes]],
    order: Order | None,
    exit_record: ExitRecord | None,
    now: float | None,
) -> Read:
    """Return the predecessor's lines as heartbeats, its silence as a finding, and the blind spots.

    Args:
        lines: rank → raw lines.
        order: what was ordered, where anyone wrote it down.
        exit_record: how the run ended, where anyone wrote it down.
        now: Unix seconds at which the directory is looked at; None = at its last line.
    """
    beats: dict[int, tuple[Heartbeat, ...]] = {}
    unreadable: dict[int, int] = {}
    for rank, raw_lines in lines.items():
        beats[rank], unreadable[rank] = _read_rank(rank, raw_lines)
    spacings = {
        rank: spacing
        for rank, stream in beats.items()
        if (spacing := find_spacing(stream)) is not None
    }
    findings = [*_observe_numbers(beats), *observe_speed(beats, spacings, order)]
    if exit_record is None and now is not None:
        findings += _observe_silence(beats, order, now)
    return Read(
        beats=beats,
        unreadable=unreadable,
        findings=tuple(findings),
        not_observed=(
            *_blind_spots(beats, order, exit_record),
            *unseen_speed(spacings, order),
        ),
        spacings=spacings,
    )


def _row(raw: bytes) -> dict[str, Any] | None:
    try:
        return parse_object(raw)
    except Corrupt:
        return None


def _read_rank(rank: int, lines: list[bytes]) -> tuple[tuple[Heartbeat, ...], int]:
    beats: list[Heartbeat] = []
    unreadable = 0
    mono = float("-inf")
    for number, raw in enumerate(lines, start=1):
        row = _row(raw)
        try:
            beat = Heartbeat.model_validate(_as_ours(row or {}, rank, number))
        except ValidationError:
            unreadable += 1
            continue
        mono = max(mono, beat.ts)
        beats.append(beat.model_copy(update={"mono": mono}))
    return tuple(beats), unreadable


def _as_ours(row: dict[str, Any], rank: int, number: int) -> dict[str, Any]:
    msg = row.get("msg")
    return {
        "pid": 0,
        **row,
        "mono": row.get("ts"),
        "rank": rank,
        "boot": f"pid-{row.get('pid', 0)}",
        "seq": number,
        "msg": MESSAGES.get(msg, msg) if isinstance(msg, str) else msg,
        "section": None,
    }


def _observe_numbers(beats: Mapping[int, tuple[Heartbeat, ...]]) -> list[Finding]:
    """Return D10 for the first line with a non-finite loss or gradient norm."""
    for rank, stream in beats.items():
        for beat in stream:
            for name in ("loss", "grad_norm"):
                value = getattr(beat, name)
                if value is not None and value - value != 0.0 and not beat.skipped:
                    return [
                        Finding(
                            detector=Detector.NON_FINITE,
                            severity=Severity.HALT,
                            rank=rank,
                            step=beat.step,
                            value=value,
                            at=beat.ts,
                            key=f"non_finite:{rank}:{beat.step}",
                            text=f"{name} is {value} at step {beat.step}",
                        )
                    ]
    return []


def _observe_silence(
    beats: Mapping[int, tuple[Heartbeat, ...]], order: Order | None, now: float
) -> list[Finding]:
    """Return a stall when no step advanced for the plan's multiple of the usual interval.

    The interval is that between two advancing lines (R72: it is `log_every` steps, so a fixed
    limit halts every healthy run).
    """
    watch = order.watch if order is not None else Watch()
    found = []
    for rank, stream in beats.items():
        lines = advancing(stream)
        gaps = [after.mono - before.mono for before, after in pairwise(lines)]
        if len(gaps) < _MIN_INTERVALS:
            limit, source = watch.no_first_heartbeat.first_step_s, Source.DEFAULT
        else:
            usual = watch.stall.halt_x * statistics.median(gaps)
            limit = max(watch.stall.halt_s, usual)
            source = Source.ADAPTIVE if usual >= watch.stall.halt_s else Source.DEFAULT
        last = lines[-1] if lines else (stream[0] if stream else None)
        if last is None or now - last.ts <= limit:
            continue
        if order is not None and max(beat.step for beat in stream) >= order.last_step:
            continue  # it arrived
        found.append(
            Finding(
                detector=Detector.STALL if lines else Detector.NO_FIRST_HEARTBEAT,
                severity=Severity.HALT,
                rank=rank,
                step=last.step,
                value=now - last.ts,
                threshold=limit,
                source=source,
                since=last.ts,
                at=now,
                key=f"stall:{rank}:{last.step}",
                text=f"no step after {last.step} for {now - last.ts:.0f} s (limit {limit:.0f} s);"
                " in which section is not observed",
            )
        )
    return found


def _blind_spots(
    beats: Mapping[int, tuple[Heartbeat, ...]], order: Order | None, exit_record: ExitRecord | None
) -> Iterator[Doubt]:
    said = {beat.msg for stream in beats.values() for beat in stream}
    steps = [beat.step for stream in beats.values() for beat in advancing(stream)]
    strides = [after - before for before, after in pairwise(steps)]
    yield predecessor_doubt("identity", "the lines do not record which model, data or code ran")
    yield predecessor_doubt("coverage", "the lines have no boot and no seq: a lost one is unknown")
    yield predecessor_doubt("sections", "the lines do not record what a rank was doing")
    missing = ["watch.jsonl", "preflight.json"] + ["exit.json"] * (exit_record is None)
    for name in missing:
        yield Doubt(kind=DoubtKind.RECORD_MISSING, name=name)
    if Msg.STEP_START not in said:
        yield predecessor_doubt("step_start", "step times are the distance between lines")
    if strides and statistics.median(strides) > 1:
        every = f"a line comes every {statistics.median(strides):g} steps only"
        yield predecessor_doubt("single steps", every)
    if order is None:
        yield Doubt(kind=DoubtKind.RECORD_MISSING, name="order.json")
    for rank in range(order.world_size) if order is not None else ():
        if not beats.get(rank):
            yield Doubt(kind=DoubtKind.RANK_SILENT, rank=rank)
