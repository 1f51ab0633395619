"""Which known failure is this? A table: name, how the facts show it, cause and remedy.

A new diagnosis is one row. The first row that recognises the facts gives the name; remedies are
configuration patches that a plan may allow the service to apply (`remedies`, `max_remedies`).
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from gonogo.contract.canonical import added
from gonogo.contract.criterion import Metric
from gonogo.contract.facts import Facts, FindingFacts
from gonogo.contract.heartbeat import COMPUTE_SECTIONS
from gonogo.contract.outcome import Detector, OutcomeCode
from gonogo.contract.rules import Rules

LOGGING_OFF = {
    "NSA_TB_DISABLE": "1",
    "NSA_DISABLE_CSV_LOGS": "1",
    "NSA_DISABLE_AUX_STATS": "1",
}
"""The environment that R15 means by TB, CSV and aux stats disabled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """A named known failure."""

    name: str
    requirement: str
    """The requirement (R) that names it, or the detector (D)."""
    recognise: Callable[[Facts, Rules], bool]
    cause: str
    remedy: str
    patch: dict[str, Any] = field(default_factory=dict)
    """`env` and `train` settings that answer it; empty when only a person can."""
    explains: frozenset[Metric] = frozenset()
    """What is measured worse because of it in a run that completes."""


def nsa_env(facts: Facts) -> dict[str, str]:
    """Return the NSA_* environment that the ranks reported."""
    for said in facts.identity.values():
        return dict(said.nsa_env or {})
    return {}


def _is_ours(facts: Facts) -> bool:
    """Say whether nsa.train ran: it alone counts the groups of its attention."""
    return any(said.groups is not None for said in facts.identity.values())


def logging_is_off(facts: Facts) -> bool:
    """Say whether the run itself reported TB, CSV and aux stats as disabled."""
    env = nsa_env(facts)
    return all(env.get(name) == value for name, value in LOGGING_OFF.items())


def _dtype(facts: Facts) -> str | None:
    return next((said.dtype for said in facts.identity.values()), None)


def _code(facts: Facts) -> OutcomeCode | None:
    return None if facts.outcome is None else facts.outcome.code


def _hang(found: FindingFacts | None, *sections: str | None) -> bool:
    """Say whether a rank hung there; one that was stopped from outside (alive_lost) did not."""
    hang = (Detector.STALL, Detector.SECTION_DEADLINE)
    return found is not None and found.detector in hang and found.section in sections


def _in_compute(facts: Facts) -> bool:
    return _hang(facts.latched(), *COMPUTE_SECTIONS)


def _at_boundary(facts: Facts) -> bool:
    """Between two steps, where the deadlines of sections look, or while it logs.

    A program that never names its computing may compute where it names nothing.
    """
    found = facts.latched()
    if facts.source == "predecessor" or found is None:
        return False
    between = found.detector == Detector.SECTION_DEADLINE and found.section is None
    return (between and _names_computing(facts)) or _hang(found, "log")


def _names_computing(facts: Facts) -> bool:
    """Say whether its ranks name their computing, as far as steps that have ended tell."""
    paces = [pace for pace in facts.pace.values() if pace.steps]
    times = [pace.sections_s.get(name) for pace in paces for name in COMPUTE_SECTIONS]
    return not times or any(times)


def _desynchronised(facts: Facts, rules: Rules) -> bool:
    """Ranks say that their collectives differ, or one stands alone in one, inside its step.

    A stall names no section where the rank behind is in a collective that no other has entered;
    a rank that never names its sections is not meant.
    """
    if "collective_mismatch" in facts.signs:
        return True
    found = facts.latched()
    if found is None or found.detector != Detector.STALL or found.section is not None:
        return False
    rank = facts.ranks.get(str(found.rank))
    return rank is not None and rank.last_section in COMPUTE_SECTIONS


def _said_at_its_end(facts: Facts, sign: str) -> bool:
    """Say whether a program that ended by itself said so: what was survived ended nothing."""
    return _code(facts) is OutcomeCode.NONZERO_EXIT and sign in facts.signs


def _was_killed(facts: Facts) -> bool:
    """Say whether the first rank that failed was killed, and not by its own keeper."""
    return _code(facts) is OutcomeCode.NONZERO_EXIT and _by_sigkill(facts)


def _by_sigkill(facts: Facts) -> bool:
    """Say whether SIGKILL ended the first rank that failed; a shell tells another's by 137."""
    ended = facts.exit
    return ended is not None and (ended.signal == 9 or ended.code == 137)


def _never_spoke(facts: Facts) -> bool:
    """Say whether the run ended because a rank had said nothing at all."""
    found = facts.latched()
    if found is None or found.detector != Detector.NO_FIRST_HEARTBEAT or found.rank is None:
        return False
    rank = facts.ranks.get(str(found.rank))
    return rank is None or rank.count == 0


def _found(facts: Facts, detector: Detector) -> bool:
    return any(row.detector == detector for row in facts.findings)


def _imbalanced(facts: Facts, rules: Rules) -> bool:
    """A device idles beside busy ones in a run that nothing else ended."""
    ended = (OutcomeCode.COMPLETED, OutcomeCode.TOO_SLOW)
    return _code(facts) in ended and _found(facts, Detector.IMBALANCE)


def _latched_by(facts: Facts, detector: Detector) -> bool:
    found = facts.latched()
    return found is not None and found.detector == detector


def _step(facts: Facts) -> int | None:
    found = facts.latched()
    return None if found is None else found.step


def _slow_in_attention(facts: Facts, rules: Rules) -> bool:
    """Too slow, and forward plus backward take nine tenths of a step: not the loader (R26)."""
    if _code(facts) is not OutcomeCode.TOO_SLOW:
        return False
    for pace in facts.pace.values():
        sections = pace.sections_s
        known = [value for value in sections.values() if value]
        compute = (sections.get("forward") or 0) + (sections.get("backward") or 0)
        if known and compute < 0.9 * added(known):
            return False
    return bool(facts.pace)


def _storm(facts: Facts, rules: Rules) -> bool:
    """Say whether retrying was given up."""
    return facts.history is not None and facts.history.restart_storm


DIAGNOSES: tuple[Diagnosis, ...] = (
    Diagnosis(
        name=Detector.RESTART_STORM,
        requirement="D25",
        recognise=_storm,
        cause="attempt after attempt failed without getting past the last durable checkpoint",
        remedy="look at what ended them (host, device, checkpoint) before another start",
    ),
    Diagnosis(
        name="wrong_config",
        requirement="R23",
        recognise=lambda facts, rules: _code(facts) == "config_mismatch",
        cause="what ran is not what was ordered: its numbers say nothing about the order",
        remedy="start what was ordered: the finding names the field that differs (ranks, model,"
        " code); of nsa.train CONFIG and NSA_* must agree with the order",
    ),
    Diagnosis(
        name="ddp_marked_ready_twice",
        requirement="R22",
        recognise=lambda facts, rules: "marked_ready_twice" in facts.signs,
        cause="DDP together with reentrant gradient checkpointing marks a parameter ready twice",
        remedy="FSDP, or no gradient checkpointing under DDP",
        patch={"env": {"NSA_DDP_DISABLE_GC": "1"}},
    ),
    Diagnosis(
        name="host_out_of_memory",
        requirement="D1",
        recognise=lambda facts, rules: _code(facts) is OutcomeCode.OOM and _by_sigkill(facts),
        cause="the kernel killed it: the host's memory, or its control group's, was used up",
        remedy="fewer or smaller loader workers and caches, or a larger limit for the worker",
    ),
    Diagnosis(
        name="out_of_memory",
        requirement="R31",
        recognise=lambda facts, rules: _code(facts) == "oom" or "out_of_memory" in facts.signs,
        cause="the step does not fit into the memory of its device, or of its process",
        remedy="shorter sequences, more accumulation, gradient checkpointing on",
        patch={"train": {"model": {"gradient_checkpointing": True}}},
    ),
    Diagnosis(
        name="disk_full",
        requirement="D19",
        recognise=lambda facts, rules: (
            _latched_by(facts, Detector.DISK) or _said_at_its_end(facts, "no_space")
        ),
        cause="a write was refused: no space or no inode is left on the disk, or in its quota",
        remedy="room on the disk that was written to (`df`, `df -i`); fewer kept checkpoints",
        patch={"train": {"engine": {"keep_checkpoints": 1}}},
    ),
    Diagnosis(
        name="fp16_overflow",
        requirement="R28",
        recognise=lambda facts, rules: _code(facts) == "non_finite" and _dtype(facts) == "fp16",
        cause="fp16 overflowed",
        remedy="bf16; fp16 only with a gradient scaler",
        patch={"train": {"dtype": "bf16"}},
    ),
    Diagnosis(
        name="non_finite_loss",
        requirement="R32",
        recognise=lambda facts, rules: _code(facts) == "non_finite",
        cause="loss or gradient became non-finite, and nothing says that fp16 overflowed",
        remedy="look at the losses, gradients and batches just before, at the learning rate and its"
        " warm-up; of nsa.train try the attention backends apart (NSA_SDPA_NO_FLASH,"
        " NSA_SDPA_FLASH_ONLY)",
        patch={"env": {"NSA_SDPA_NO_FLASH": "1"}},
    ),
    Diagnosis(
        name="collective_desync",
        requirement="D6",
        recognise=_desynchronised,
        cause="a rank entered another collective than its peers",
        remedy="a branch that not every rank takes (`if rank == 0`); the flight recorder's dumps"
        " and TORCH_DISTRIBUTED_DEBUG=DETAIL name both collectives",
        patch={"env": {"TORCH_DISTRIBUTED_DEBUG": "DETAIL"}},
    ),
    Diagnosis(
        name="loader_stall",
        requirement="R30",
        recognise=lambda facts, rules: (
            _hang(facts.latched(), "data") or "loader_error" in facts.signs
        ),
        cause="the data loader stopped delivering",
        remedy="run on synthetic data to isolate it; a local cache; look at the loader's timeout",
    ),
    Diagnosis(
        name="data_sharding",
        requirement="R24",
        recognise=lambda facts, rules: "index_error" in facts.signs and rules.world_size != 1,
        cause="an index beyond its data: as when a rank slices its own batch a second time",
        remedy="each rank takes whole batches of its own shard",
    ),
    Diagnosis(
        name="collective_timeout",
        requirement="D6",
        recognise=lambda facts, rules: _said_at_its_end(facts, "collective_timeout"),
        cause="a collective waited in vain for a rank that did not come",
        remedy="the log and the stack of the rank that is missing; a longer timeout of the process"
        " group leaves the hang to the watchdog, which names the rank",
    ),
    Diagnosis(
        name="lost_peer",
        requirement="D1",
        recognise=lambda facts, rules: (
            _said_at_its_end(facts, "peer_lost") or (_was_killed(facts) and rules.world_size != 1)
        ),
        cause="a rank's process ended or was killed, or its host is gone: its peers lost it",
        remedy="the log and the end of the rank that the finding names; signal 9 without a word is"
        " the kernel's out-of-memory killer (dmesg), or somebody's kill",
    ),
    Diagnosis(
        name="killed",
        requirement="D1",
        recognise=lambda facts, rules: _was_killed(facts),
        cause="SIGKILL ended it from outside: no error of a program's own does, and nobody here"
        " sent it",
        remedy="the kernel's out-of-memory killer says so in dmesg (then less memory, or a larger"
        " limit); else it was a scheduler's limit or somebody's kill",
    ),
    Diagnosis(
        name="never_spoke",
        requirement="D2",
        recognise=lambda facts, rules: _never_spoke(facts),
        cause="no line came from a rank: it hangs before it begins, or it is a script that never"
        " attaches",
        remedy="its stack tells where it stands; in a script of your own add"
        " gonogo.trainer.attach() (docs/your-trainer.md), or run it as `command`, whose printed"
        " steps are read (docs/run.md)",
    ),
    Diagnosis(
        name="aux_stats_hang",
        requirement="R21",
        recognise=lambda facts, rules: (
            _at_boundary(facts)
            and _is_ours(facts)
            and _step(facts) == 1
            and nsa_env(facts).get("NSA_DISABLE_AUX_STATS") != "1"
        ),
        cause="the auxiliary statistics hang at the end of step 1",
        remedy="NSA_DISABLE_AUX_STATS=1",
        patch={"env": {"NSA_DISABLE_AUX_STATS": "1"}},
    ),
    Diagnosis(
        name="step_boundary_hang",
        requirement="R29",
        recognise=lambda facts, rules: _at_boundary(facts),
        cause="hung between two steps, where logging happens",
        remedy="TensorBoard, CSV and auxiliary statistics off; look at the stack dump",
        patch={"env": LOGGING_OFF},
    ),
    Diagnosis(
        name="sequential_prefill",
        requirement="R20",
        recognise=lambda facts, rules: (
            _hang(facts.latched(), *COMPUTE_SECTIONS, "eval")
            and nsa_env(facts).get("NSA_PREFILL_BATCHED") == "0"
        ),
        cause="the sequential prefill loops over every token",
        remedy="NSA_PREFILL_BATCHED=1",
        patch={"env": {"NSA_PREFILL_BATCHED": "1"}},
    ),
    Diagnosis(
        name="hang_in_compute",
        requirement="R15",
        recognise=lambda facts, rules: _in_compute(facts),
        cause="a rank stopped inside the step; where it has peers, they wait for it",
        remedy="look at the stack dump of the rank that the finding names",
    ),
    Diagnosis(
        name="slow_loader",
        requirement="R27",
        recognise=lambda facts, rules: _latched_by(facts, Detector.LOADER),
        cause="the steps wait for data most of their time",
        remedy="an A/B against synthetic data (`confirm` on `loader`) shows what it costs; more"
        " workers, a local cache",
    ),
    Diagnosis(
        name="imbalance",
        requirement="R25",
        recognise=_imbalanced,
        cause="a device idles while others compute",
        explains=frozenset({Metric.GPU_UTIL, Metric.GPU_UTIL_RATIO}),
        remedy="static graph, no search for unused parameters, larger buckets; more batch or"
        " accumulation",
        patch={
            "env": {
                "NSA_DDP_STATIC_GRAPH": "1",
                "NSA_DDP_FIND_UNUSED": "0",
                "NSA_DDP_BUCKET_MB": "100",
            }
        },
    ),
    Diagnosis(
        name="attention_bound",
        requirement="R26",
        recognise=_slow_in_attention,
        cause="the time goes into forward and backward, not into fetching data",
        remedy="the attention path: batched prefill, fused kernels, shorter sequences",
    ),
)


def diagnose(facts: Facts, rules: Rules) -> str | None:
    """Return the name of the first known failure that the facts show, or None."""
    return next((row.name for row in DIAGNOSES if row.recognise(facts, rules)), None)


def diagnosis_named(name: str) -> Diagnosis | None:
    """Return a row of the table."""
    return next((row for row in DIAGNOSES if row.name == name), None)
