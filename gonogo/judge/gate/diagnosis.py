"""Which known failure is this? A table: name, evidence, cause, remedy and patch.

A new diagnosis is one row. The evidence of a row is a list of alternatives. An alternative is a
line of signs that must all be present; `!` before a sign means that it must be absent. The first
row with an alternative that fits the signs of a run names the failure. A patch is a change of the
configuration that a plan may allow the service to apply (`remedies`, `max_remedies`).

| sign | present when |
|---|---|
| `code:C` | the run ended as C |
| `halt:D`, `section:S`, `step:N` | detector D halted the run, in section S (`none`), at step N |
| `hang:S` | `stall` or `section_deadline` halted the run in section S; `compute` is any of three |
| `stood:compute` | the rank that the halt names was computing |
| `mute` | the rank that the halt names wrote no line |
| `found:D` | detector D found something |
| `log:X` | a log shows X (`gonogo.signs`) |
| `dtype:D`, `env:NAME=VALUE`, `nsa` | the ranks reported a format, a setting, groups of attention |
| `killed` | SIGKILL ended the first rank that failed |
| `one_rank`, `storm`, `compute_bound` | of the order, of the history, of the time of the steps |
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from gonogo.contract.canonical import added
from gonogo.contract.facts import Facts, FindingFacts
from gonogo.contract.heartbeat import COMPUTE_SECTIONS
from gonogo.contract.outcome import Detector
from gonogo.contract.rules import Rules

HANGS = (Detector.STALL, Detector.SECTION_DEADLINE)
COMPUTE_SHARE = 0.9
"""Share of forward and backward in a step that waits for nothing else (R26)."""
_QUIET = {"NSA_TB_DISABLE": "1", "NSA_DISABLE_CSV_LOGS": "1", "NSA_DISABLE_AUX_STATS": "1"}
_BALANCED = {
    "NSA_DDP_STATIC_GRAPH": "1",
    "NSA_DDP_FIND_UNUSED": "0",
    "NSA_DDP_BUCKET_MB": "100",
}


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """A named known failure."""

    name: str
    evidence: tuple[str, ...]
    """Alternatives; each is the signs that must all be present."""
    cause: str
    remedy: str
    patch: dict[str, Any] = field(default_factory=dict)
    """`env` and `train` settings that answer it; empty when only a person can."""


DIAGNOSES: tuple[Diagnosis, ...] = (
    Diagnosis(
        Detector.RESTART_STORM,
        ("storm",),
        "each attempt failed before it passed the last durable checkpoint",
        "check what ended the attempts (host, device, checkpoint) before another start",
    ),
    Diagnosis(
        "wrong_config",
        ("code:config_mismatch",),
        "the program that ran is not the ordered one, so its numbers are not about the order",
        "start what was ordered; the finding names the field that differs. For nsa.train, CONFIG"
        " and NSA_* must agree with the order",
    ),
    Diagnosis(
        "ddp_marked_ready_twice",
        ("log:marked_ready_twice",),
        "DDP with reentrant gradient checkpointing marks a parameter ready twice",
        "use FSDP, or no gradient checkpointing under DDP",
        {"env": {"NSA_DDP_DISABLE_GC": "1"}},
    ),
    Diagnosis(
        "host_out_of_memory",
        ("code:oom killed",),
        "the kernel killed the process: the memory of the host or of its control group was used up",
        "use fewer or smaller loader workers and caches, or give the worker a larger limit",
    ),
    Diagnosis(
        "out_of_memory",
        ("code:oom", "log:out_of_memory"),
        "the step does not fit into the memory of the device or of the process",
        "use shorter sequences, more accumulation, or gradient checkpointing",
        {"train": {"model": {"gradient_checkpointing": True}}},
    ),
    Diagnosis(
        "disk_full",
        ("halt:disk", "code:nonzero_exit log:no_space"),
        "a write was refused: the disk or its quota has no space or no inode left",
        "free space on that disk (`df`, `df -i`); keep fewer checkpoints",
        {"train": {"engine": {"keep_checkpoints": 1}}},
    ),
    Diagnosis(
        "fp16_overflow",
        ("code:non_finite dtype:fp16",),
        "fp16 overflowed",
        "use bf16; use fp16 only with a gradient scaler",
        {"train": {"dtype": "bf16"}},
    ),
    Diagnosis(
        "non_finite_loss",
        ("code:non_finite",),
        "the loss or a gradient is not finite, and the format is not fp16",
        "check the losses, gradients and batches before that step, the learning rate and its"
        " warm-up. For nsa.train, try the attention backends (NSA_SDPA_NO_FLASH,"
        " NSA_SDPA_FLASH_ONLY)",
        {"env": {"NSA_SDPA_NO_FLASH": "1"}},
    ),
    Diagnosis(
        "collective_desync",
        ("log:collective_mismatch", "halt:stall section:none stood:compute"),
        "a rank entered another collective than its peers",
        "look for a branch that only some ranks take (`if rank == 0`). The dumps of the flight"
        " recorder and TORCH_DISTRIBUTED_DEBUG=DETAIL name both collectives",
        {"env": {"TORCH_DISTRIBUTED_DEBUG": "DETAIL"}},
    ),
    Diagnosis(
        "loader_stall",
        ("hang:data", "log:loader_error"),
        "the data loader stopped delivering",
        "run on synthetic data to isolate it; use a local cache; check the timeout of the loader",
    ),
    Diagnosis(
        "data_sharding",
        ("log:index_error !one_rank",),
        "an index lies beyond the data, for example because a rank slices its own batch again",
        "let each rank take whole batches of its own shard",
    ),
    Diagnosis(
        "killed",
        ("code:nonzero_exit killed",),
        "something outside of the program sent SIGKILL, and gonogo did not",
        "look for the kernel's out-of-memory killer in dmesg (then use less memory, or a larger"
        " limit). Otherwise a scheduler's limit or a person killed the process",
    ),
    Diagnosis(
        "lost_peer",
        ("code:nonzero_exit log:peer_lost", "code:nonzero_exit log:collective_timeout"),
        "a rank ended or lost its host, and its peers waited for it in vain",
        "read the log and the stack of the rank that the finding names, or that is missing. A"
        " longer timeout of the process group lets the watchdog name the rank",
    ),
    Diagnosis(
        "never_spoke",
        ("halt:no_first_heartbeat mute",),
        "a rank wrote no line: it hangs at its start, or the script never attaches",
        "its stack shows where it stands. In your own script add gonogo.trainer.attach()"
        " (docs/your-trainer.md), or run it as `command`, whose printed steps are read"
        " (docs/run.md)",
    ),
    Diagnosis(
        "aux_stats_hang",
        (
            "nsa step:1 hang:log !env:NSA_DISABLE_AUX_STATS=1",
            "nsa step:1 halt:section_deadline section:none !env:NSA_DISABLE_AUX_STATS=1",
        ),
        "the auxiliary statistics hang at the end of step 1",
        "set NSA_DISABLE_AUX_STATS=1",
        {"env": {"NSA_DISABLE_AUX_STATS": "1"}},
    ),
    Diagnosis(
        "step_boundary_hang",
        ("nsa hang:log", "nsa halt:section_deadline section:none"),
        "a rank hung between two steps, where logging happens",
        "switch TensorBoard, CSV and auxiliary statistics off; read the stack dump",
        {"env": _QUIET},
    ),
    Diagnosis(
        "sequential_prefill",
        ("hang:compute env:NSA_PREFILL_BATCHED=0", "hang:eval env:NSA_PREFILL_BATCHED=0"),
        "the sequential prefill loops over every token",
        "set NSA_PREFILL_BATCHED=1",
        {"env": {"NSA_PREFILL_BATCHED": "1"}},
    ),
    Diagnosis(
        "hang_in_compute",
        ("hang:compute",),
        "a rank stopped inside the step, and its peers wait for it",
        "read the stack dump of the rank that the finding names",
    ),
    Diagnosis(
        "slow_loader",
        ("halt:loader",),
        "the steps wait for data most of their time",
        "measure the cost by a run on synthetic data; use more workers or a local cache",
    ),
    Diagnosis(
        "imbalance",
        ("code:completed found:imbalance", "code:too_slow found:imbalance"),
        "a device is idle while others compute",
        "use a static graph, no search for unused parameters, larger buckets, and more batch or"
        " accumulation",
        {"env": _BALANCED},
    ),
    Diagnosis(
        "attention_bound",
        ("code:too_slow compute_bound",),
        "the steps spend their time in forward and backward, not in fetching data",
        "speed the attention up: batched prefill, fused kernels, shorter sequences",
    ),
)


def diagnose(facts: Facts, rules: Rules) -> str | None:
    """Return the name of the first known failure that fits the facts, or None."""
    signs = frozenset(_signs(facts, rules))
    for row in DIAGNOSES:
        for line in row.evidence:
            if all((word[0] != "!") == (word.lstrip("!") in signs) for word in line.split()):
                return row.name
    return None


def diagnosis_named(name: str) -> Diagnosis | None:
    """Return a row of the table."""
    return next((row for row in DIAGNOSES if row.name == name), None)


def _signs(facts: Facts, rules: Rules) -> Iterator[str]:
    """Yield the signs of a run; see the table at the top of the module."""
    if facts.outcome is not None:
        yield f"code:{facts.outcome.code}"
    yield from (f"log:{name}" for name in facts.signs)
    yield from (f"found:{row.detector}" for row in facts.findings)
    ended = facts.exit
    if ended is not None and (ended.signal == 9 or ended.code == 137):  # a shell reports 128 + 9
        yield "killed"
    for row in list(facts.identity.values())[:1]:
        yield f"dtype:{row.dtype}"
        yield from (f"env:{name}={value}" for name, value in (row.nsa_env or {}).items())
    if any(row.groups is not None for row in facts.identity.values()):
        yield "nsa"
    if rules.world_size == 1:
        yield "one_rank"
    if facts.history is not None and facts.history.restart_storm:
        yield "storm"
    if _is_compute_bound(facts):
        yield "compute_bound"
    halt = facts.latched()
    if halt is not None:
        yield from _signs_of_halt(halt, facts)


def _signs_of_halt(halt: FindingFacts, facts: Facts) -> Iterator[str]:
    yield from (f"halt:{halt.detector}", f"step:{halt.step}")
    section = halt.section or "none"
    yield f"section:{section}"
    if halt.detector in HANGS:
        yield f"hang:{'compute' if section in COMPUTE_SECTIONS else section}"
    rank = facts.ranks.get(str(halt.rank))
    if rank is not None and rank.last_section in COMPUTE_SECTIONS:
        yield "stood:compute"
    if halt.rank is not None and (rank is None or rank.count == 0):
        yield "mute"


def _is_compute_bound(facts: Facts) -> bool:
    """Say whether forward and backward take nearly the whole step on each rank that says so."""
    shares = []
    for pace in facts.pace.values():
        total = added([value for value in pace.sections_s.values() if value])
        compute = sum(pace.sections_s.get(name) or 0.0 for name in ("forward", "backward"))
        shares.append(compute >= COMPUTE_SHARE * total)
    return bool(shares) and all(shares)
