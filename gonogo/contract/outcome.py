"""Why a run ended and who ended it, and the failures that an error text shows.

An outcome is no verdict: it is the cause as one code, with its class and its actor. A plan adds
rows of failures. They travel in the order and are tried before `gonogo/judge/failures.yaml`.
"""

import re
from enum import StrEnum
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, computed_field

from gonogo.contract.wire import Submitted


class OutcomeClass(StrEnum):
    """Class of an outcome, for verdict and retries."""

    SUCCESS = "success"
    USER = "user"
    POLICY = "policy"
    INFRA = "infra"
    OPERATOR = "operator"


class Actor(StrEnum):
    """The one who ended a run."""

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


_CLASSES = {
    OutcomeClass.SUCCESS: "completed",
    OutcomeClass.USER: "nonzero_exit oom start_failed",
    OutcomeClass.POLICY: "stalled too_slow non_finite diverged config_mismatch resource_limit"
    " deadline",
    OutcomeClass.INFRA: "hardware preflight_failed watcher_failed keeper_lost worker_lost node_lost"
    " preempted disk_full isolated",
    OutcomeClass.OPERATOR: "cancelled halted superseded",
}
CLASS_OF = {OutcomeCode(code): klass for klass, codes in _CLASSES.items() for code in codes.split()}


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
"""Cause of a halt by its detector; process_death may name a better one."""

TAKEN_OVER = frozenset((OutcomeCode.SUPERSEDED, OutcomeCode.ISOLATED))
"""Ends of a run that was replaced."""
SHOWN_BY_LINES = frozenset(
    {OutcomeCode.NON_FINITE, OutcomeCode.DIVERGED, OutcomeCode.CONFIG_MISMATCH}
)
"""Causes that a run's own lines show. They stand even if the keeper or the host is lost later."""


def code_of(detector: str) -> OutcomeCode:
    """Return the cause of a halt by `detector`; of a plug-in: diverged."""
    try:
        return CODE_OF_DETECTOR.get(Detector(detector), OutcomeCode.STALLED)
    except ValueError:
        return OutcomeCode.DIVERGED


class Outcome(BaseModel):
    """Why a run ended, and who ended it."""

    model_config = ConfigDict(extra="ignore", frozen=True, serialize_by_alias=True)

    code: OutcomeCode
    actor: Actor
    text: str = ""

    @computed_field(alias="class")  # type: ignore[prop-decorator]  # pydantic's own idiom
    @property
    def klass(self) -> OutcomeClass:
        """Class of the code, from the one table."""
        return CLASS_OF[self.code]


MOST_LONG_REPEATS = 2
"""Searching 600 characters takes 0.8 s with two long repeats, 11 s with three."""

_LITERAL = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]", re.DOTALL)
_UNBOUNDED = re.compile(r"[*+]|\{\d*,(?:\d{2,})?\}")
_GROUP_REPEATED = re.compile(r"\)(?:[*+]|\{)")


def bounded_pattern(text: str) -> str:
    """Return a regular expression whose search takes bounded time, or raise ValueError."""
    try:
        re.compile(text)
    except (re.error, RecursionError, OverflowError) as error:
        raise ValueError(f"{text[:80]!r} is no regular expression: {error}") from error
    plain = _LITERAL.sub("x", text)
    if _GROUP_REPEATED.search(plain):
        raise ValueError(f"{text[:80]!r} repeats a group: the search could take too long")
    if len(_UNBOUNDED.findall(plain)) > MOST_LONG_REPEATS:
        raise ValueError(f"{text[:80]!r} has too many long repeats; at most {MOST_LONG_REPEATS}")
    return text


Pattern = Annotated[str, Field(min_length=3, max_length=400), AfterValidator(bounded_pattern)]
FailureName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{1,63}$")]


class FailureRow(Submitted):
    """A failure that gonogo recognises by the text of the error."""

    name: FailureName  # Its name: the `diagnosis` of a decision, and a key of `remedies`.
    pattern: Pattern
    """Regular expression, searched in each line of the error without regard to case. No repeated
    groups, at most two of `*` and `+`."""
    cause: Annotated[str, Field(min_length=1, max_length=400)]  # Why such a run fails.
    remedy: Annotated[str, Field(min_length=1, max_length=600)]  # What to do or to type.


class RecordedFailure(FailureRow):
    """A row of a plan, in an order."""

    model_config = ConfigDict(extra="ignore")
