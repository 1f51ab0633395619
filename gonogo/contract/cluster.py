"""What does a plan ask of a cluster's scheduler? `cluster: {slurm: {…}}`; no rule depends on it."""

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from gonogo.contract.wire import Submitted

ExtraName = Literal[
    "reservation", "nodelist", "exclude", "mem", "mem-per-gpu", "cpus-per-task", "gpus-per-node",
    "licenses", "nice", "comment", "switches", "exclusive", "prefer", "wckey",
]  # fmt: skip
"""Directives of sbatch that a plan may add; what decides who starts what is ours."""

_DURATION = re.compile(r"\d+|(\d+-)?\d{1,2}(:\d{2}){0,2}|\d+:\d{2}(:\d{2})?")
_WORD = re.compile(r"[\w.,:=@\[\]()*&|/+-]{1,256}")


def _word(value: str) -> str:
    if _WORD.fullmatch(value) is None or value.startswith("-"):
        raise ValueError(f"found {value!r}; expected one word as sbatch takes it")
    return value


def _duration(value: str) -> str:
    if _DURATION.fullmatch(value) is None:
        raise ValueError(f"found {value!r}; expected minutes, or [days-]hours:minutes:seconds")
    return value


Word = Annotated[str, AfterValidator(_word)]


class SlurmCluster(Submitted):
    """What sbatch is asked for."""

    partition: Word | None = None
    account: Word | None = None
    qos: Word | None = None
    time_limit: Annotated[str, AfterValidator(_duration)] | None = None
    """Minutes, or `[days-]hours:minutes:seconds`; before it the run leaves with a checkpoint."""
    gres: Word | None = None
    """Devices of each node, such as `gpu:8`."""
    constraint: Word | None = None
    extra: dict[ExtraName, Word] = Field(default_factory=dict)
    """Further directives, without their dashes."""
