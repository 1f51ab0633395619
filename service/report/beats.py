"""How are a long run's heartbeats read without filling the memory? Only the fields that are shown.

A pydantic model of every line of 50 000 steps takes more than a gigabyte and half a minute of the
service's time. A `Slim` beat has the attributes that the judge's functions read and nothing else.
Lines were validated when they came in; those that could not be read have no boot and stay out.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, cast

from sqlalchemy import select
from sqlalchemy.orm import Session

from gonogo.contract.heartbeat import Heartbeat, Msg, StepSections, parse_heartbeat
from gonogo.judge.evidence.steps import RankSteps
from service.db.schema import HeartbeatRow

_CHUNK = 5_000
_SHOWN = (
    Msg.LOADER_READY,
    Msg.STEP_START,
    Msg.PROGRESS,
    Msg.STEP_END,
    Msg.EVAL,
    Msg.DONE,
)


@dataclass(slots=True)
class Slim:
    """One heartbeat, as far as the report shows it."""

    ts: float
    mono: float
    boot: str
    seq: int
    pid: int
    step: int
    msg: str
    section: str | None
    loss: float | None
    val_loss: float | None
    skipped: bool | None
    tokens: int | None
    dt: float | None
    dt_fetch_s: float | None
    grad_norm: float | None
    toks_per_s: float | None
    comm_mb: float | None
    flash_share: float | None
    gate_entropy: float | None
    gate_max: float | None
    gate_collapse_frac: float | None
    gpu_mem_reserved: float | None
    gpu_mem_alloc: float | None
    host_rss_mb: float | None
    step_sections: StepSections | None


def read_beat(line: str) -> Heartbeat | Slim:
    """Return the beat on a line that is known to be one; a boot line whole."""
    said = json.loads(line)
    if said["msg"] == Msg.BOOT:
        return parse_heartbeat(line.encode())
    return Slim(
        ts=said["ts"],
        mono=said["mono"],
        boot=said["boot"],
        seq=said["seq"],
        pid=said["pid"],
        step=said["step"],
        msg=said["msg"],
        section=said.get("section"),
        loss=_float(said.get("loss")),
        val_loss=_float(said.get("val_loss")),
        skipped=said.get("skipped"),
        tokens=said.get("tokens"),
        dt=_float(said.get("dt")),
        dt_fetch_s=_float(said.get("dt_fetch_s")),
        grad_norm=_float(said.get("grad_norm")),
        toks_per_s=_float(said.get("toks_per_s")),
        comm_mb=_float(said.get("comm_mb")),
        flash_share=_float(said.get("flash_share")),
        gate_entropy=_float(said.get("gate_entropy")),
        gate_max=_float(said.get("gate_max")),
        gate_collapse_frac=_float(said.get("gate_collapse_frac")),
        gpu_mem_reserved=_float(said.get("gpu_mem_reserved")),
        gpu_mem_alloc=_float(said.get("gpu_mem_alloc")),
        host_rss_mb=_float(said.get("host_rss_mb")),
        step_sections=_sections(said.get("step_sections")),
    )


def _float(value: Any) -> float | None:
    """Return a heartbeat's number; non-finite ones are words on the wire."""
    return None if value is None else float(value)


def _sections(said: dict[str, Any] | None) -> StepSections | None:
    if said is None:
        return None
    row: StepSections = StepSections.model_construct(
        data=float(said.get("data", 0.0)),
        forward=float(said.get("forward", 0.0)),
        backward=float(said.get("backward", 0.0)),
        optimizer=float(said.get("optimizer", 0.0)),
        wait=float(said.get("wait", 0.0)),
    )
    return row


@dataclass(frozen=True, slots=True, kw_only=True)
class RankBeats:
    """One rank, by step, and the beats in the order in which they were said."""

    steps: RankSteps
    ready_s: float | None
    """Seconds until the first batch was there."""
    gates: Mapping[str, Mapping[int, float]]
    """Field of `GATES` → step → what the lines say of the model's gates."""


GATES = ("gate_max", "gate_collapse_frac")
"""What a progress line says of the gates besides their entropy, which `RankSteps` keeps."""


class Taking:
    """Takes one rank's beats as they come; none is kept."""

    def __init__(self) -> None:
        self._steps = RankSteps()
        self._ready: tuple[float, float] | None = None
        self._gates: dict[str, dict[str, dict[int, float]]] = {}

    def take(self, beat: Heartbeat | Slim) -> None:
        """Take one distinct beat."""
        self._steps.take(cast(Heartbeat, beat))
        if beat.msg == Msg.LOADER_READY and beat.dt is not None:
            self._ready = min(self._ready or (beat.ts, beat.dt), (beat.ts, beat.dt))
        if beat.msg == Msg.PROGRESS and beat.gate_max is not None:
            self._take_gates(beat)

    def _take_gates(self, beat: Heartbeat | Slim) -> None:
        rows = self._gates.setdefault(beat.boot, {name: {} for name in GATES})
        for name in GATES:
            value = getattr(beat, name)
            if value is not None:
                rows[name][beat.step] = value

    def taken(self) -> RankBeats:
        """Return what they came to; of a step said by two processes, the later one counts."""
        gates: dict[str, dict[int, float]] = {name: {} for name in GATES}
        for boot in self._steps.boots:
            for name, values in self._gates.get(boot.boot, {}).items():
                gates[name] |= values
        ready_s = self._ready[1] if self._ready else None
        return RankBeats(steps=self._steps, ready_s=ready_s, gates=gates)


def build_rank_beats(beats: Iterable[Heartbeat | Slim]) -> RankBeats:
    """Return one rank's steps by the judge's own functions."""
    taking = Taking()
    for beat in beats:
        taking.take(beat)
    return taking.taken()


def load_beats(session: Session, run: str) -> dict[int, RankBeats]:
    """Return rank → its beats, of a run of any length."""
    query = (
        select(HeartbeatRow.rank, HeartbeatRow.line)
        .where(HeartbeatRow.run == run, HeartbeatRow.boot != "")
        .where(HeartbeatRow.msg.in_([Msg.BOOT.value, *(msg.value for msg in _SHOWN)]))
        .execution_options(yield_per=_CHUNK)
    )
    found: dict[int, Taking] = {}
    for rank, line in session.execute(query):
        found.setdefault(rank, Taking()).take(read_beat(line))
    return {rank: found[rank].taken() for rank in sorted(found)}
