"""Requests of a plan to a cluster's scheduler: `cluster: {slurm: {…}}`. No rule uses them."""

import re
from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema

from gonogo.contract.wire import Submitted

ExtraName = Literal[
    "reservation", "nodelist", "exclude", "mem", "mem-per-gpu", "cpus-per-task", "gpus-per-node",
    "licenses", "nice", "comment", "switches", "exclusive", "prefer", "wckey",
]  # fmt: skip
"""Directives of sbatch that a plan may add."""

_DURATION = re.compile(r"\d+|(\d+-)?\d{1,2}(:\d{2}){0,2}|\d+:\d{2}(:\d{2})?")
_WORD = re.compile(r"[\w.,:=@\[\]()*&|/+-]{1,256}")


def _text(value: Any) -> Any:
    return str(value) if type(value) is int else value


def _value(value: Any) -> Any:
    return "true" if value is True else _text(value)


def _word(value: str) -> str:
    if _WORD.fullmatch(value) is None or value.startswith("-"):
        raise ValueError(f"found {value!r}; expected one word as sbatch takes it")
    return value


def _not_read_as_number(value: Any) -> Any:
    if type(value) is int:
        raise ValueError(
            f"found {value}; expected quotes around it: YAML reads 1:00:00 as the number 3600"
        )
    return value


def _duration(value: str) -> str:
    if _DURATION.fullmatch(value) is None:
        raise ValueError(f"found {value!r}; expected minutes, or [days-]hours:minutes:seconds")
    return value


Word = Annotated[
    str,
    BeforeValidator(_text),
    AfterValidator(_word),
    WithJsonSchema({"type": ["string", "integer"]}),
]
Value = Annotated[
    str,
    BeforeValidator(_value),
    AfterValidator(_word),
    WithJsonSchema({"type": ["string", "integer", "boolean"]}),
]
Duration = Annotated[str, BeforeValidator(_not_read_as_number), AfterValidator(_duration)]


class EngineName(StrEnum):
    """What starts the keepers of a run."""

    LOCAL = "local"
    SLURM = "slurm"
    JOBSET = "jobset"


class SlurmCluster(Submitted):
    """What sbatch is asked for; null: Slurm's own default."""

    partition: Word | None = None
    """The partition."""
    account: Word | None = None
    """The account that is charged."""
    qos: Word | None = None
    """The quality of service."""
    time_limit: Duration | None = None
    """Minutes, or `[days-]hours:minutes:seconds`, in quotes. The run ends earlier with a
    checkpoint."""
    gres: Word | None = None
    """Devices of each node, such as `gpu:8`."""
    constraint: Word | None = None
    """Features that the nodes must have."""
    extra: dict[ExtraName, Value | None] = Field(default_factory=dict)
    """Further directives, without their dashes: `reservation`, `nodelist`, `exclude`, `mem`,
    `mem-per-gpu`, `cpus-per-task`, `gpus-per-node`, `licenses`, `nice`, `comment`, `switches`,
    `exclusive` (`true`: whole nodes), `prefer`, `wckey`; `null` leaves one to Slurm."""


class ClusterRequest(Submitted):
    """What each scheduler is asked for."""

    slurm: SlurmCluster | None = None
    """What sbatch is asked for."""
