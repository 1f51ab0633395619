"""One JSON line of one rank (docs/reference/heartbeats.md).

Unknown fields are ignored and unknown messages are kept, so a newer trainer ends no run.
"""

import json
from enum import StrEnum
from typing import Annotated, Any

from pydantic import Field, ValidationError

from gonogo.contract.errors import Corrupt
from gonogo.contract.wire import Number, Recorded

MAX_LINE_BYTES = 65_536

Finite = Annotated[float, Field(allow_inf_nan=False)]
Count = Annotated[int, Field(ge=0, lt=2**53)]


class Msg(StrEnum):
    """Messages of the protocol; others only show that the rank lives."""

    BOOT = "boot"
    LOADER_READY = "loader_ready"
    LOADER_ERROR = "loader_error"
    STEP_START = "step_start"
    SECTION = "section"
    PROGRESS = "progress"
    STEP_END = "step_end"
    CHECKPOINT = "checkpoint"
    EVAL = "eval"
    METRICS = "metrics"
    ALIVE = "alive"
    HALT_SEEN = "halt_seen"
    DONE = "done"
    ERROR = "error"
    STACKDUMP = "stackdump"
    UNOBSERVED = "unobserved"  # The observer failed; the program continues.


class Section(StrEnum):
    """What a rank is doing."""

    BOOT = "boot"
    DATA = "data"
    FORWARD = "forward"
    BACKWARD = "backward"
    OPTIMIZER = "optimizer"
    LOG = "log"
    CHECKPOINT = "checkpoint"
    EVAL = "eval"


COMPUTE_SECTIONS = frozenset({Section.FORWARD, Section.BACKWARD, Section.OPTIMIZER})
NON_TRAINING_SECTIONS = frozenset({Section.CHECKPOINT, Section.EVAL})


class Identity(Recorded):
    """What runs; null in an order: not checked."""

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
    torch: str | None = None
    device: str | None = None
    driver: str | None = None


class StepSections(Recorded):
    """Seconds of one step by section."""

    data: float = 0.0
    forward: float = 0.0
    backward: float = 0.0
    optimizer: float = 0.0
    wait: float = 0.0


class Heartbeat(Identity):
    """One line of one rank; only `boot` lines have identity fields."""

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

    run: str | None = None  # On boot lines: the run (GONOGO_RUN).
    attempt: Count | None = None
    backend: str | None = None
    dt: Number | None = None
    loss: Number | None = None
    grad_norm: Number | None = None
    lr: Number | None = None
    toks_per_s: Number | None = None
    dt_fetch_s: Number | None = None
    gpu_mem_alloc: Number | None = None
    gpu_mem_reserved: Number | None = None
    host_rss_mb: Number | None = None
    gate_entropy: Number | None = None
    gate_max: Number | None = None
    gate_collapse_frac: Number | None = None
    comm_mb: Number | None = None  # MB (2^20 bytes) of gradients in the step's collectives.
    flash_share: Number | None = None  # Share of dense attention calls in a flash kernel, 0 to 1.
    loss_scale: Number | None = None
    skipped: bool | None = None
    dt_step_s: Number | None = None
    tokens: Count | None = None
    step_sections: StepSections | None = None
    path: str | None = None
    val_loss: Number | None = None
    user: dict[str, Number] | None = None  # The program's own numbers by name.
    section_age_s: Number | None = None
    collective_seq: Count | None = None
    type: str | None = None
    text: str | None = None

    def identity(self) -> Identity:
        """Return the identity on a boot line."""
        return Identity(**{name: getattr(self, name) for name in Identity.model_fields})


def parse_object(raw: bytes) -> dict[str, Any]:
    """Return the JSON object on one line, or raise `Corrupt`."""
    if len(raw) > MAX_LINE_BYTES:
        raise Corrupt(f"a line of {len(raw)} bytes; the limit is {MAX_LINE_BYTES}")
    try:
        found = json.loads(raw.decode())
        if b"\\ud" in raw.lower():
            json.dumps(found, ensure_ascii=False).encode()  # half a surrogate pair has no bytes
    except (ValueError, RecursionError) as error:
        raise Corrupt(f"not a JSON line: {error}") from error
    if not isinstance(found, dict):
        raise Corrupt(f"expected a JSON object, found a {type(found).__name__}")
    return found


def parse_heartbeat(raw: bytes) -> Heartbeat:
    """Return the heartbeat on one line, or raise `Corrupt`."""
    try:
        if len(raw) > MAX_LINE_BYTES:
            raise Corrupt(f"a line of {len(raw)} bytes; the limit is {MAX_LINE_BYTES}")
        return Heartbeat.model_validate_json(raw)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        path = ".".join(str(part) for part in first["loc"])
        raise Corrupt(f"not a heartbeat: {path}: {first['msg']}") from error
