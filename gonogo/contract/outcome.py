"""Why did a run end, and who ended it? The only tables of causes.

An outcome is not a verdict: it says what happened, in one code, with its class and its actor.
"""

from enum import StrEnum

from pydantic import BaseModel, ConfigDict, computed_field


class OutcomeClass(StrEnum):
    """What an outcome means for the verdict and for retries."""

    SUCCESS = "success"
    USER = "user"
    POLICY = "policy"
    INFRA = "infra"
    OPERATOR = "operator"


class Actor(StrEnum):
    """Who ended a run."""

    TRAINER = "trainer"
    WATCHDOG = "watchdog"
    OPERATOR = "operator"
    INFRA = "infra"


class OutcomeCode(StrEnum):
    """Cause of a run's end."""

    COMPLETED = "completed"
    NONZERO_EXIT = "nonzero_exit"
    OOM = "oom"
    START_FAILED = "start_failed"
    STALLED = "stalled"
    TOO_SLOW = "too_slow"
    NON_FINITE = "non_finite"
    DIVERGED = "diverged"
    CONFIG_MISMATCH = "config_mismatch"
    RESOURCE_LIMIT = "resource_limit"
    HARDWARE = "hardware"
    PREFLIGHT_FAILED = "preflight_failed"
    WATCHER_FAILED = "watcher_failed"
    KEEPER_LOST = "keeper_lost"
    WORKER_LOST = "worker_lost"
    NODE_LOST = "node_lost"
    PREEMPTED = "preempted"
    DISK_FULL = "disk_full"
    ISOLATED = "isolated"
    DEADLINE = "deadline"
    CANCELLED = "cancelled"
    HALTED = "halted"
    SUPERSEDED = "superseded"


CLASS_OF: dict[OutcomeCode, OutcomeClass] = {
    OutcomeCode.COMPLETED: OutcomeClass.SUCCESS,
    OutcomeCode.NONZERO_EXIT: OutcomeClass.USER,
    OutcomeCode.OOM: OutcomeClass.USER,
    OutcomeCode.START_FAILED: OutcomeClass.USER,
    OutcomeCode.STALLED: OutcomeClass.POLICY,
    OutcomeCode.TOO_SLOW: OutcomeClass.POLICY,
    OutcomeCode.NON_FINITE: OutcomeClass.POLICY,
    OutcomeCode.DIVERGED: OutcomeClass.POLICY,
    OutcomeCode.CONFIG_MISMATCH: OutcomeClass.POLICY,
    OutcomeCode.RESOURCE_LIMIT: OutcomeClass.POLICY,
    OutcomeCode.DEADLINE: OutcomeClass.POLICY,
    OutcomeCode.HARDWARE: OutcomeClass.INFRA,
    OutcomeCode.PREFLIGHT_FAILED: OutcomeClass.INFRA,
    OutcomeCode.WATCHER_FAILED: OutcomeClass.INFRA,
    OutcomeCode.KEEPER_LOST: OutcomeClass.INFRA,
    OutcomeCode.WORKER_LOST: OutcomeClass.INFRA,
    OutcomeCode.NODE_LOST: OutcomeClass.INFRA,
    OutcomeCode.PREEMPTED: OutcomeClass.INFRA,
    OutcomeCode.DISK_FULL: OutcomeClass.INFRA,
    OutcomeCode.ISOLATED: OutcomeClass.INFRA,
    OutcomeCode.CANCELLED: OutcomeClass.OPERATOR,
    OutcomeCode.HALTED: OutcomeClass.OPERATOR,
    OutcomeCode.SUPERSEDED: OutcomeClass.OPERATOR,
}


class Detector(StrEnum):
    """Detectors by name, D1 to D26 in order."""

    PROCESS_DEATH = "process_death"
    NO_FIRST_HEARTBEAT = "no_first_heartbeat"
    ALIVE_LOST = "alive_lost"
    STALL = "stall"
    SECTION_DEADLINE = "section_deadline"
    RANK_DIVERGENCE = "rank_divergence"
    STRAGGLER = "straggler"
    SLOW = "slow"
    FROZEN = "frozen"
    NON_FINITE = "non_finite"
    DIVERGENCE = "divergence"
    GRADIENTS = "gradients"
    GATE_COLLAPSE = "gate_collapse"
    IMBALANCE = "imbalance"
    MEMORY_LEAK = "memory_leak"
    MEMORY_LIMIT = "memory_limit"
    LOADER = "loader"
    HYGIENE = "hygiene"
    DISK = "disk"
    CHECKPOINT_OVERDUE = "checkpoint_overdue"
    IMPLAUSIBLE_SPEED = "implausible_speed"
    IDENTITY = "identity"
    WATCHER = "watcher"
    HARDWARE = "hardware"
    RESTART_STORM = "restart_storm"
    FIRST_LOSS = "first_loss"


CODE_OF_DETECTOR: dict[Detector, OutcomeCode] = {
    Detector.PROCESS_DEATH: OutcomeCode.NONZERO_EXIT,
    Detector.NO_FIRST_HEARTBEAT: OutcomeCode.START_FAILED,
    Detector.ALIVE_LOST: OutcomeCode.STALLED,
    Detector.STALL: OutcomeCode.STALLED,
    Detector.SECTION_DEADLINE: OutcomeCode.STALLED,
    Detector.SLOW: OutcomeCode.TOO_SLOW,
    Detector.LOADER: OutcomeCode.TOO_SLOW,
    Detector.NON_FINITE: OutcomeCode.NON_FINITE,
    Detector.FROZEN: OutcomeCode.DIVERGED,
    Detector.DIVERGENCE: OutcomeCode.DIVERGED,
    Detector.GRADIENTS: OutcomeCode.DIVERGED,
    Detector.GATE_COLLAPSE: OutcomeCode.DIVERGED,
    Detector.HYGIENE: OutcomeCode.CONFIG_MISMATCH,
    Detector.IMPLAUSIBLE_SPEED: OutcomeCode.CONFIG_MISMATCH,
    Detector.IDENTITY: OutcomeCode.CONFIG_MISMATCH,
    Detector.MEMORY_LEAK: OutcomeCode.RESOURCE_LIMIT,
    Detector.MEMORY_LIMIT: OutcomeCode.RESOURCE_LIMIT,
    Detector.DISK: OutcomeCode.RESOURCE_LIMIT,
    Detector.CHECKPOINT_OVERDUE: OutcomeCode.RESOURCE_LIMIT,
    Detector.HARDWARE: OutcomeCode.HARDWARE,
    Detector.WATCHER: OutcomeCode.WATCHER_FAILED,
}
"""Cause of a halt by the detector whose halt finding latched (D1 names what the rank did)."""

TAKEN_OVER = frozenset((OutcomeCode.SUPERSEDED, OutcomeCode.ISOLATED))
"""Ends of a run that was called dead, and in whose place another was begun."""
SHOWN_BY_LINES = frozenset(
    {OutcomeCode.NON_FINITE, OutcomeCode.DIVERGED, OutcomeCode.CONFIG_MISMATCH}
)
"""Causes that a run's own lines show. Once the watchdog has halted a run by one of them it has
failed, whatever becomes of its keeper or its host before the end is written. (A host that goes down
kills ranks, and lets others wait: of those causes nobody knows which was first.)"""


def code_of(detector: str) -> OutcomeCode:
    """Return the cause that a halt of `detector` names; a plug-in's halt is a policy's."""
    try:
        return CODE_OF_DETECTOR.get(Detector(detector), OutcomeCode.STALLED)
    except ValueError:
        return OutcomeCode.DIVERGED


class Outcome(BaseModel):
    """Why a run ended: code, class and the actor who ended it."""

    model_config = ConfigDict(extra="ignore", frozen=True, serialize_by_alias=True)

    code: OutcomeCode
    actor: Actor
    text: str = ""

    @computed_field(alias="class")  # type: ignore[prop-decorator]  # pydantic's own idiom
    @property
    def klass(self) -> OutcomeClass:
        """Class of the code, from the one table."""
        return CLASS_OF[self.code]
