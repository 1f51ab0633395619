"""The program of a plan, its environment, and patches of both.

`entry` (a module or a script) is started by torchrun, once a rank. `command` is started once a
host. A host starts only what it allows.

A patch is laid over a plan: mappings key by key, other values whole. A null variable is removed.

A plan may set listed variables (`gonogo.environment_names`). It may never set those that decide
what code runs, or whose run it is.
"""

import math
import posixpath
import re
import shlex
from collections.abc import Collection, Sequence
from enum import StrEnum
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Field,
    JsonValue,
    WithJsonSchema,
    model_validator,
)

from gonogo.contract.wire import Labels, Submitted

ExtraName = Literal[
    "reservation", "nodelist", "exclude", "mem", "mem-per-gpu", "cpus-per-task", "gpus-per-node",
    "licenses", "nice", "comment", "switches", "exclusive", "prefer", "wckey",
]  # fmt: skip
"""Directives of sbatch that a plan may add."""

_DURATION = re.compile(r"\d+|(\d+-)?\d{1,2}(:\d{2}){0,2}|\d+:\d{2}(:\d{2})?")
_WORD = re.compile(r"[\w.,:=@\[\]()*&|/+-]{1,256}")


def _text(value: Any) -> Any:
    return "true" if value is True else str(value) if type(value) is int else value


def _word(value: str) -> str:
    if _WORD.fullmatch(value) is None or value.startswith("-"):
        raise ValueError(f"found {value!r}; expected one word as sbatch takes it")
    return value


def _duration(value: str) -> str:
    if _DURATION.fullmatch(value) is None:
        raise ValueError(f"found {value!r}; expected minutes, or [days-]hours:minutes:seconds")
    return value


Word = Annotated[
    str,
    BeforeValidator(_text),
    AfterValidator(_word),
    WithJsonSchema({"type": ["string", "integer", "boolean"]}),
]
Duration = Annotated[str, BeforeValidator(_text), AfterValidator(_duration)]


class EngineName(StrEnum):
    """What starts the keepers of a run."""

    LOCAL = "local"
    SLURM = "slurm"
    JOBSET = "jobset"


class SlurmCluster(Submitted):
    """What sbatch is asked for; null: Slurm's own default."""

    partition: Word | None = None  # The partition.
    account: Word | None = None  # The account that is charged.
    qos: Word | None = None  # The quality of service.
    time_limit: Duration | None = None
    """Minutes, or `[days-]hours:minutes:seconds`, in quotes. The run ends earlier with a
    checkpoint."""
    gres: Word | None = None  # Devices of each node, such as `gpu:8`.
    constraint: Word | None = None  # Features that the nodes must have.
    extra: dict[ExtraName, Word | None] = {}
    """Further directives, without their dashes: `reservation`, `nodelist`, `exclude`, `mem`,
    `mem-per-gpu`, `cpus-per-task`, `gpus-per-node`, `licenses`, `nice`, `comment`, `switches`,
    `exclusive` (`true`: whole nodes), `prefer`, `wckey`; `null` leaves one to Slurm."""


class ClusterRequest(Submitted):
    """What each scheduler is asked for."""

    slurm: SlurmCluster | None = None  # What sbatch is asked for.


_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_NEVER = re.compile(
    r"LD_.*|DYLD_.*|PYTHON.*|GONOGO_.*|TORCHELASTIC_.*|MASTER_(?:ADDR|PORT)|RANK|LOCAL_RANK"
    r"|GROUP_RANK|ROLE_RANK|WORLD_SIZE|LOCAL_WORLD_SIZE|ROLE_WORLD_SIZE|PATH|HOME|SHELL|IFS|ENV"
    r"|BASH_ENV|BASH_FUNC.*"
)


def _variable(name: str) -> str:
    if not _VARIABLE.fullmatch(name):
        raise ValueError(f"{name!r} is no name of a variable")
    if _NEVER.fullmatch(name):
        raise ValueError(f"{name} decides what code runs, or whose run it is: no plan sets it")
    return name


def _variable_text(value: Any) -> Any:
    """Return a number as text."""
    if isinstance(value, bool):
        raise ValueError(f'expected a text or a number, such as "{int(value)}"')
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError("expected a text or a finite number")
    return str(value) if isinstance(value, int | float) else value


def _can_be_given(text: str) -> str:
    try:
        held = b"\0" in text.encode()
    except UnicodeEncodeError:
        held = True
    if held:
        raise ValueError("holds characters that no process can be given")
    return text


EnvName = Annotated[str, AfterValidator(_variable)]
EnvText = Annotated[
    str,
    BeforeValidator(_variable_text),
    AfterValidator(_can_be_given),
    Field(max_length=32_768),
    WithJsonSchema({"type": ["string", "number"]}),
]
Env = dict[EnvName, EnvText]

OURS = "nsa.train"


def is_ours(entry: str | None, command: Sequence[str] | None) -> bool:
    """Say whether a program is the workload that comes with gonogo."""
    return command is None and entry == OURS


_MODULE = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*")
_SCRIPT = re.compile(r"[^\x00-\x1f\x7f]+\.py")
_SHELL = frozenset(("|", "||", "&", "&&", ";", ">", ">>", "<", "2>", "2>&1"))

Parallel = Literal["single", "ddp", "fsdp"]
WorldSize = Annotated[int, Field(ge=1, le=1024)]
Nodes = Annotated[int, Field(ge=1, le=1024)]


def _entry(value: str) -> str:
    if _MODULE.fullmatch(value) or (_SCRIPT.fullmatch(value) and not value.startswith("-")):
        return value
    raise ValueError(f"found {value!r}; expected a module (my.trainer) or a script (train.py)")


def _words(value: Any) -> Any:
    """Return the words of a command; a text is split like in a shell."""
    if not isinstance(value, str):
        return value
    try:
        return shlex.split(value)
    except ValueError as error:
        raise ValueError(f"found {value!r}; {str(error).lower()}") from error


def _no_shell(words: list[str]) -> list[str]:
    found = next((word for word in words if word in _SHELL), None)
    if found is not None:
        raise ValueError(f"found {found!r}; no shell reads this: name a script that does it")
    if not words[0]:
        raise ValueError("found ''; expected a program")
    return words


def _path(value: str) -> str:
    if not value or "\x00" in value:
        raise ValueError(f"found {value!r}; expected a path")
    return value


def _absolute(value: str) -> str:
    if not value.startswith("/"):
        raise ValueError(f"found {value!r}; expected an absolute path")
    return value


_WORDS_SCHEMA = WithJsonSchema(
    {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}
)
Argv = Annotated[
    list[str],
    BeforeValidator(_words),
    Field(min_length=1, max_length=1000),
    AfterValidator(_no_shell),
    _WORDS_SCHEMA,
]
Args = Annotated[
    list[str],
    BeforeValidator(_words),
    Field(max_length=1000),
    _WORDS_SCHEMA,
]
Path = Annotated[str, AfterValidator(_path)]


class Workload(Submitted):
    """The program, on how many ranks, where and with what around it."""

    entry: Annotated[str, AfterValidator(_entry)] | None = OURS
    """A module or script that torchrun starts once a rank; null if there is a command."""
    args: Args = []  # Arguments of an entry, after `--order PATH`; filled as in a command.
    command: Argv | None = None
    """A program and its arguments, started once a host.
    [Placeholders](../how-to/plans.md#placeholders) such as `{lr}` are filled."""
    cwd: Annotated[Path, AfterValidator(_absolute)] | None = None
    """Folder in which it is started; null: the one that holds the worker's code."""
    env: Env = {}
    """Environment of every phase. For a program of your own, placeholders are filled as in a
    command."""
    files: list[Path] = []  # Files whose digests are code identity; nothing is uploaded.
    world_size: WorldSize = 1  # Number of ranks.
    nodes: Nodes = 1  # Hosts, with equally many ranks each; no verdict depends on it.
    parallel: Parallel = "single"  # How ranks share the work.
    labels: Labels = {}  # Labels that the worker must have (`GONOGO_WORKER_LABELS`).

    @model_validator(mode="after")
    def _one_program(self) -> Self:
        if self.command is not None and "entry" in self.model_fields_set and self.entry is not None:
            raise ValueError("expected an entry or a command, found both")
        if self.command is None and self.entry is None:
            raise ValueError("expected an entry or a command, found neither")
        return self

    @property
    def program(self) -> str | None:
        """The entry that torchrun starts, if any."""
        return None if self.command is not None else self.entry


ANY = "any"


def is_allowed(program: str, listed: Collection[str], cwd: str | None = None) -> bool:
    """Say whether a host that lists these programs may start one. Links are not followed."""
    if program == OURS or program in listed or ANY in listed:
        return True
    base = cwd or "/"
    place = posixpath.normpath(posixpath.join(base, program))
    return any("/" in name and posixpath.normpath(name) == place for name in listed)


class WorkloadPatch(Submitted):
    """What a patch may change of how the program is started."""

    world_size: WorldSize | None = None  # Number of ranks.
    parallel: Parallel | None = None  # How ranks share the work.
    command: Argv | None = None  # Another program and its arguments.


class Patch(Submitted):
    """A change of environment, training configuration and workload."""

    env: dict[EnvName, EnvText | None] = {}  # Variables that are set; null removes one.
    train: dict[str, JsonValue] = {}
    """Laid over the configuration, also `data` and `parallel`, not `steps`."""
    workload: WorkloadPatch = WorkloadPatch()  # What changes of how the program is started.

    def document(self) -> dict[str, Any]:
        """Return the JSON form without defaults."""
        return self.model_dump(mode="json", exclude_unset=True)

    def text(self) -> str:
        """Return the changes as words: `NAME=value …`."""
        workload = self.workload.model_dump(exclude_none=True)
        pairs = [*self.env.items(), *self.train.items()]
        pairs += [(f"workload.{name}", value) for name, value in workload.items()]
        return " ".join(f"{name}={value}" for name, value in pairs) or "no change"


class RecordedPatch(Patch):
    """A patch in a record; unknown fields are ignored."""

    model_config = ConfigDict(extra="ignore")
