"""How did release 0.1 read a heartbeat? Canonical: parsed, de-duplicated, sorted by boot and seq.

Fields that a heartbeat has gained since are unknown here, as they were then: they are in no digest.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field, ValidationError

from gonogo.contract.errors import Corrupt
from gonogo.contract.heartbeat import parse_object
from gonogo.contract.wire import Recorded

Count = Annotated[int, Field(ge=0, lt=2**53)]
Finite = Annotated[float, Field(allow_inf_nan=False)]


class Identity(Recorded):
    """What runs."""

    config_digest: str | None = None
    params: Count | None = None
    dim: Count | None = None
    layers: Count | None = None
    heads: Count | None = None
    groups: Count | None = None
    seq_len: Count | None = None
    vocab: Count | None = None
    dtype: str | None = None
    tokens_per_step: Count | None = None
    world_size: Count | None = None
    dataset: str | None = None
    parallel: str | None = None
    git_sha: str | None = None
    nsa_env: dict[str, str] | None = None


class StepSections(Recorded):
    """Seconds of one step by section."""

    data: float = 0.0
    forward: float = 0.0
    backward: float = 0.0
    optimizer: float = 0.0
    wait: float = 0.0


class Beat(Identity):
    """One line of one rank."""

    v: Count = 1
    ts: Finite
    iso: str | None = None
    mono: Finite
    pid: Count
    rank: Count
    boot: str
    seq: Count
    step: Count
    msg: str
    section: str | None = None
    section_seq: Count = 0
    backend: str | None = None
    dt: float | None = None
    loss: float | None = None
    grad_norm: float | None = None
    lr: float | None = None
    toks_per_s: float | None = None
    dt_fetch_s: float | None = None
    gpu_mem_alloc: float | None = None
    gpu_mem_reserved: float | None = None
    host_rss_mb: float | None = None
    gate_entropy: float | None = None
    gate_max: float | None = None
    gate_collapse_frac: float | None = None
    loss_scale: float | None = None
    skipped: bool | None = None
    dt_step_s: float | None = None
    tokens: Count | None = None
    step_sections: StepSections | None = None
    path: str | None = None
    val_loss: float | None = None
    section_age_s: float | None = None
    collective_seq: Count | None = None
    type: str | None = None
    text: str | None = None

    def identity(self) -> Identity:
        """Return the identity that a boot line reports."""
        return Identity(**{name: getattr(self, name) for name in Identity.model_fields})


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """One rank's canonical heartbeats."""

    beats: tuple[Beat, ...]

    def in_time(self) -> list[Beat]:
        """Return the beats in the order in which they were said: boots by their first stamp."""
        began: dict[str, float] = {}
        for beat in self.beats:
            began[beat.boot] = min(beat.ts, began.get(beat.boot, beat.ts))
        return sorted(self.beats, key=lambda beat: (began[beat.boot], beat.boot, beat.seq))


def read_stream(rank: int, lines: Iterable[bytes]) -> Stream:
    """Return the canonical heartbeats of one rank; what is not one of them is passed over."""
    kept: dict[tuple[str, int], Beat] = {}
    for raw in lines:
        try:
            beat = Beat.model_validate(parse_object(raw))
        except (Corrupt, ValidationError):
            continue
        if beat.rank == rank:
            kept.setdefault((beat.boot, beat.seq), beat)
    return Stream(beats=tuple(kept[key] for key in sorted(kept)))
