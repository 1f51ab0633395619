"""Which known failure is this? A table: name, evidence, cause and remedy.

A new diagnosis is one row. The first row whose evidence fits the facts gives the name. Remedies are
configuration patches that a plan may allow the service to apply (`remedies`, `max_remedies`).
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from gonogo.contract.canonical import added
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
HANGS = (Detector.STALL, Detector.SECTION_DEADLINE)


@dataclass(frozen=True, slots=True)
class Case:
    """What the evidence of a diagnosis can ask about a run."""

    facts: Facts
    rules: Rules

    @property
    def code(self) -> OutcomeCode | None:
        """How the run ended."""
        return None if self.facts.outcome is None else self.facts.outcome.code

    @property
    def halt(self) -> FindingFacts | None:
        """The finding that ended it."""
        return self.facts.latched()

    @property
    def env(self) -> dict[str, str]:
        """The NSA_* environment that its ranks reported."""
        return next((dict(row.nsa_env or {}) for row in self.facts.identity.values()), {})

    @property
    def is_ours(self) -> bool:
        """Whether nsa.train ran: it alone counts the groups of its attention."""
        return any(row.groups is not None for row in self.facts.identity.values())

    @property
    def dtype(self) -> str | None:
        """Number format that the ranks reported."""
        return next((row.dtype for row in self.facts.identity.values()), None)

    @property
    def was_killed(self) -> bool:
        """Whether SIGKILL ended the first rank that failed; a shell reports it as 137."""
        ended = self.facts.exit
        return ended is not None and (ended.signal == 9 or ended.code == 137)

    def halted_by(self, detector: Detector) -> bool:
        """Say whether a detector ended the run."""
        return self.halt is not None and self.halt.detector == detector

    def found(self, detector: Detector) -> bool:
        """Say whether a detector found anything."""
        return any(row.detector == detector for row in self.facts.findings)

    def hung_in(self, *sections: str | None) -> bool:
        """Say whether a rank hung in one of these sections."""
        halt = self.halt
        return halt is not None and halt.detector in HANGS and halt.section in sections

    def shows(self, sign: str) -> bool:
        """Say whether a log shows a sign."""
        return sign in self.facts.signs

    def died_saying(self, sign: str) -> bool:
        """Say whether the program ended by itself and its log shows a sign."""
        return self.code is OutcomeCode.NONZERO_EXIT and self.shows(sign)

    @property
    def hung_at_boundary(self) -> bool:
        """Whether nsa.train hung between two steps, or while it logged."""
        if self.facts.source == "predecessor" or not self.is_ours:
            return False
        return self.hung_in("log") or (
            self.halted_by(Detector.SECTION_DEADLINE) and self.hung_in(None)
        )

    @property
    def desynchronised(self) -> bool:
        """Whether a rank stands alone in a collective: a stall inside a step without a section."""
        halt = self.halt
        if halt is None or halt.detector != Detector.STALL or halt.section is not None:
            return self.shows("collective_mismatch")
        rank = self.facts.ranks.get(str(halt.rank))
        alone = rank is not None and rank.last_section in COMPUTE_SECTIONS
        return alone or self.shows("collective_mismatch")

    @property
    def never_spoke(self) -> bool:
        """Whether the run ended because a rank had written nothing."""
        halt = self.halt
        if halt is None or halt.detector != Detector.NO_FIRST_HEARTBEAT or halt.rank is None:
            return False
        rank = self.facts.ranks.get(str(halt.rank))
        return rank is None or rank.count == 0

    @property
    def is_compute_bound(self) -> bool:
        """Whether forward and backward take nine tenths of a step: not the loader (R26)."""
        shares = []
        for pace in self.facts.pace.values():
            total = added([value for value in pace.sections_s.values() if value])
            compute = sum(pace.sections_s.get(name) or 0.0 for name in ("forward", "backward"))
            shares.append(compute >= 0.9 * total)
        return bool(shares) and all(shares)


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """A named known failure."""

    name: str
    requirement: str
    """The requirement (R) that names it, or the detector (D)."""
    evidence: Callable[[Case], bool]
    cause: str
    remedy: str
    patch: dict[str, Any] = field(default_factory=dict)
    """`env` and `train` settings that answer it; empty when only a person can."""


def logging_is_off(facts: Facts) -> bool:
    """Say whether the run itself reported TB, CSV and aux stats as disabled."""
    env = Case(facts, Rules(built_in=[], gate=[], conditions=[])).env
    return all(env.get(name) == value for name, value in LOGGING_OFF.items())


DIAGNOSES: tuple[Diagnosis, ...] = (
    Diagnosis(
        name=Detector.RESTART_STORM,
        requirement="D25",
        evidence=lambda case: case.facts.history is not None and case.facts.history.restart_storm,
        cause="attempt after attempt failed without getting past the last durable checkpoint",
        remedy="look at what ended them (host, device, checkpoint) before another start",
    ),
    Diagnosis(
        name="wrong_config",
        requirement="R23",
        evidence=lambda case: case.code is OutcomeCode.CONFIG_MISMATCH,
        cause="what ran is not what was ordered: its numbers say nothing about the order",
        remedy="start what was ordered: the finding names the field that differs (ranks, model,"
        " code); of nsa.train CONFIG and NSA_* must agree with the order",
    ),
    Diagnosis(
        name="ddp_marked_ready_twice",
        requirement="R22",
        evidence=lambda case: case.shows("marked_ready_twice"),
        cause="DDP together with reentrant gradient checkpointing marks a parameter ready twice",
        remedy="FSDP, or no gradient checkpointing under DDP",
        patch={"env": {"NSA_DDP_DISABLE_GC": "1"}},
    ),
    Diagnosis(
        name="host_out_of_memory",
        requirement="D1",
        evidence=lambda case: case.code is OutcomeCode.OOM and case.was_killed,
        cause="the kernel killed it: the host's memory, or its control group's, was used up",
        remedy="fewer or smaller loader workers and caches, or a larger limit for the worker",
    ),
    Diagnosis(
        name="out_of_memory",
        requirement="R31",
        evidence=lambda case: case.code is OutcomeCode.OOM or case.shows("out_of_memory"),
        cause="the step does not fit into the memory of its device, or of its process",
        remedy="shorter sequences, more accumulation, gradient checkpointing on",
        patch={"train": {"model": {"gradient_checkpointing": True}}},
    ),
    Diagnosis(
        name="disk_full",
        requirement="D19",
        evidence=lambda case: case.halted_by(Detector.DISK) or case.died_saying("no_space"),
        cause="a write was refused: no space or no inode is left on the disk, or in its quota",
        remedy="room on the disk that was written to (`df`, `df -i`); fewer kept checkpoints",
        patch={"train": {"engine": {"keep_checkpoints": 1}}},
    ),
    Diagnosis(
        name="fp16_overflow",
        requirement="R28",
        evidence=lambda case: case.code is OutcomeCode.NON_FINITE and case.dtype == "fp16",
        cause="fp16 overflowed",
        remedy="bf16; fp16 only with a gradient scaler",
        patch={"train": {"dtype": "bf16"}},
    ),
    Diagnosis(
        name="non_finite_loss",
        requirement="R32",
        evidence=lambda case: case.code is OutcomeCode.NON_FINITE,
        cause="loss or gradient became non-finite, and nothing says that fp16 overflowed",
        remedy="look at the losses, gradients and batches just before, at the learning rate and its"
        " warm-up; of nsa.train try the attention backends apart (NSA_SDPA_NO_FLASH,"
        " NSA_SDPA_FLASH_ONLY)",
        patch={"env": {"NSA_SDPA_NO_FLASH": "1"}},
    ),
    Diagnosis(
        name="collective_desync",
        requirement="D6",
        evidence=lambda case: case.desynchronised,
        cause="a rank entered another collective than its peers",
        remedy="a branch that not every rank takes (`if rank == 0`); the flight recorder's dumps"
        " and TORCH_DISTRIBUTED_DEBUG=DETAIL name both collectives",
        patch={"env": {"TORCH_DISTRIBUTED_DEBUG": "DETAIL"}},
    ),
    Diagnosis(
        name="loader_stall",
        requirement="R30",
        evidence=lambda case: case.hung_in("data") or case.shows("loader_error"),
        cause="the data loader stopped delivering",
        remedy="run on synthetic data to isolate it; a local cache; look at the loader's timeout",
    ),
    Diagnosis(
        name="data_sharding",
        requirement="R24",
        evidence=lambda case: case.shows("index_error") and case.rules.world_size != 1,
        cause="an index beyond its data: as when a rank slices its own batch a second time",
        remedy="each rank takes whole batches of its own shard",
    ),
    Diagnosis(
        name="killed",
        requirement="D1",
        evidence=lambda case: case.code is OutcomeCode.NONZERO_EXIT and case.was_killed,
        cause="SIGKILL ended it from outside: no error of a program's own does, and nobody here"
        " sent it",
        remedy="the kernel's out-of-memory killer says so in dmesg (then less memory, or a larger"
        " limit); else it was a scheduler's limit or somebody's kill",
    ),
    Diagnosis(
        name="lost_peer",
        requirement="D1",
        evidence=lambda case: (
            case.died_saying("peer_lost") or case.died_saying("collective_timeout")
        ),
        cause="a rank's process ended or its host is gone, and its peers waited for it in vain",
        remedy="the log and the stack of the rank that the finding names, or that is missing;"
        " a longer timeout of the process group leaves the hang to the watchdog, which names it",
    ),
    Diagnosis(
        name="never_spoke",
        requirement="D2",
        evidence=lambda case: case.never_spoke,
        cause="no line came from a rank: it hangs before it begins, or it is a script that never"
        " attaches",
        remedy="its stack tells where it stands; in a script of your own add"
        " gonogo.trainer.attach() (docs/your-trainer.md), or run it as `command`, whose printed"
        " steps are read (docs/run.md)",
    ),
    Diagnosis(
        name="aux_stats_hang",
        requirement="R21",
        evidence=lambda case: (
            case.hung_at_boundary
            and case.halt is not None
            and case.halt.step == 1
            and case.env.get("NSA_DISABLE_AUX_STATS") != "1"
        ),
        cause="the auxiliary statistics hang at the end of step 1",
        remedy="NSA_DISABLE_AUX_STATS=1",
        patch={"env": {"NSA_DISABLE_AUX_STATS": "1"}},
    ),
    Diagnosis(
        name="step_boundary_hang",
        requirement="R29",
        evidence=lambda case: case.hung_at_boundary,
        cause="hung between two steps, where logging happens",
        remedy="TensorBoard, CSV and auxiliary statistics off; look at the stack dump",
        patch={"env": LOGGING_OFF},
    ),
    Diagnosis(
        name="sequential_prefill",
        requirement="R20",
        evidence=lambda case: (
            case.hung_in(*COMPUTE_SECTIONS, "eval") and case.env.get("NSA_PREFILL_BATCHED") == "0"
        ),
        cause="the sequential prefill loops over every token",
        remedy="NSA_PREFILL_BATCHED=1",
        patch={"env": {"NSA_PREFILL_BATCHED": "1"}},
    ),
    Diagnosis(
        name="hang_in_compute",
        requirement="R15",
        evidence=lambda case: case.hung_in(*COMPUTE_SECTIONS),
        cause="a rank stopped inside the step; where it has peers, they wait for it",
        remedy="look at the stack dump of the rank that the finding names",
    ),
    Diagnosis(
        name="slow_loader",
        requirement="R27",
        evidence=lambda case: case.halted_by(Detector.LOADER),
        cause="the steps wait for data most of their time",
        remedy="a run on synthetic data shows what it costs; more workers, a local cache",
    ),
    Diagnosis(
        name="imbalance",
        requirement="R25",
        evidence=lambda case: (
            case.code in (OutcomeCode.COMPLETED, OutcomeCode.TOO_SLOW)
            and case.found(Detector.IMBALANCE)
        ),
        cause="a device idles while others compute",
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
        evidence=lambda case: case.code is OutcomeCode.TOO_SLOW and case.is_compute_bound,
        cause="the time goes into forward and backward, not into fetching data",
        remedy="the attention path: batched prefill, fused kernels, shorter sequences",
    ),
)


def diagnose(facts: Facts, rules: Rules) -> str | None:
    """Return the name of the first known failure that fits the facts, or None."""
    case = Case(facts, rules)
    return next((row.name for row in DIAGNOSES if row.evidence(case)), None)


def diagnosis_named(name: str) -> Diagnosis | None:
    """Return a row of the table."""
    return next((row for row in DIAGNOSES if row.name == name), None)
