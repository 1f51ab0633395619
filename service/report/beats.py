"""How are a long run's heartbeats read without filling the memory? One by one, none is kept."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from gonogo.contract.heartbeat import Heartbeat, Msg
from gonogo.timeline.rank_steps import RankSteps
from service.db.store import Session
from service.evidence.heartbeats import load_beats, load_ranks

_SHOWN = (
    Msg.BOOT,
    Msg.LOADER_READY,
    Msg.STEP_START,
    Msg.PROGRESS,
    Msg.STEP_END,
    Msg.EVAL,
    Msg.DONE,
)


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

    def take(self, beat: Heartbeat) -> None:
        """Take one distinct beat."""
        self._steps.take(beat)
        if beat.msg == Msg.LOADER_READY and beat.dt is not None:
            self._ready = min(self._ready or (beat.ts, beat.dt), (beat.ts, beat.dt))
        if beat.msg == Msg.PROGRESS and beat.gate_max is not None:
            self._take_gates(beat)

    def _take_gates(self, beat: Heartbeat) -> None:
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


def build_rank_beats(beats: Iterable[Heartbeat]) -> RankBeats:
    """Return one rank's steps by the judge's own functions."""
    taking = Taking()
    for beat in beats:
        taking.take(beat)
    return taking.taken()


def load_run_beats(session: Session, run: str) -> dict[int, RankBeats]:
    """Return rank → its beats, of a run of any length."""
    found = {
        rank: build_rank_beats(load_beats(session, run, rank, _SHOWN))
        for rank in load_ranks(session, run)
    }
    return {rank: beats for rank, beats in found.items() if beats.steps.boots}
