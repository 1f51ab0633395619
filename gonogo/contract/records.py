"""Which records do processes leave in a run directory? Small JSON files, one model each."""

from enum import StrEnum
from typing import Any

from pydantic import Field

from gonogo.contract.heartbeat import Identity
from gonogo.contract.outcome import Actor, OutcomeCode
from gonogo.contract.wire import Recorded


class RankExit(Recorded):
    """exit_rank{N}.json, by the rank wrapper (or the keeper, when the wrapper died too)."""

    v: int = 1
    code: int | None = None
    signal: int | None = None
    at: float


class ExitRecord(Recorded):
    """exit.json, written last: how the run ended. `reason` is an outcome code.

    `text` may name more: the latched finding's text, or the operator and his reason.
    """

    v: int = 1
    code: int | None = None
    signal: int | None = None
    ended_at: float
    ended_by: Actor
    reason: OutcomeCode
    text: str = ""
    ranks: dict[str, RankExit] = Field(default_factory=dict)


class CheckOutcome(StrEnum):
    """Outcome of one preflight check."""

    PASS = "pass"
    WARN = "warn"
    FAIL = "fail"


class Check(Recorded):
    """One preflight check."""

    id: str
    outcome: CheckOutcome
    text: str


class Preflight(Recorded):
    """preflight/preflight.json."""

    v: int = 1
    passed: bool
    checks: list[Check] = Field(default_factory=list)
    peak_flops: float | None = None
    devices: list[dict[str, Any]] = Field(default_factory=list)


class ModelRecord(Identity):
    """model.json: the identity as counted on the live model."""

    v: int = 1


class ManifestFile(Recorded):
    """One file of a checkpoint."""

    bytes: int
    sha256: str


class Manifest(Recorded):
    """manifest.json of a checkpoint, written last."""

    v: int = 1
    step: int
    files: dict[str, ManifestFile]
