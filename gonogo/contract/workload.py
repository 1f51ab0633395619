"""Which program does a plan run, and how? Ours, or anybody's: an entry or a command.

`entry` (a module or a script) is started by torchrun, once a rank; `command` once a host, as it is
written. What a worker's host does not allow it does not start.
"""

import posixpath
import re
import shlex
from collections.abc import Collection, Sequence
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema, model_validator

from gonogo.contract.environment import Env
from gonogo.contract.wire import Labels, Submitted

OURS = "nsa.train"
"""The entry point of the workload that comes with gonogo."""


def is_ours(entry: str | None, command: Sequence[str] | None) -> bool:
    """Say whether a program is the workload that comes with gonogo, which checks a host itself."""
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
    """Return a command's words; a text is split as a shell would, but no shell ever reads it."""
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


Argv = Annotated[
    list[str],
    BeforeValidator(_words),
    Field(min_length=1, max_length=1000),
    AfterValidator(_no_shell),
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}),
]
Args = Annotated[
    list[str],
    BeforeValidator(_words),
    Field(max_length=1000),
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}),
]
Path = Annotated[str, AfterValidator(_path)]


class Workload(Submitted):
    """The program, on how many ranks, where and with what around it."""

    entry: Annotated[str, AfterValidator(_entry)] | None = OURS
    """A module or script that torchrun starts once a rank; null where there is a command."""
    args: Args = []
    """Arguments of an entry, after `--order PATH`; a command has its own. Placeholders are filled
    as in a command."""
    command: Argv | None = None
    """A program and its arguments, started once a host as they are written;
    [placeholders](../how-to/plans.md#placeholders) such as `{lr}` are filled."""
    cwd: Annotated[Path, AfterValidator(_absolute)] | None = None
    """Folder in which it is started; null = the one that holds the worker's code."""
    env: Env = {}
    """Environment of every phase. For a program of your own, placeholders are filled as in a
    command."""
    files: list[Path] = []
    """Files whose digests are code identity; nothing is uploaded."""
    world_size: WorldSize = 1
    """Number of ranks."""
    nodes: Nodes = 1
    """On how many hosts they run, the same number on each; no verdict depends on it."""
    parallel: Parallel = "single"
    """How ranks share the work."""
    labels: Labels = {}
    """What the worker must say of itself in `GONOGO_WORKER_LABELS`: all of these, each with this
    value."""

    @model_validator(mode="after")
    def _one_program(self) -> Self:
        if self.command is not None and "entry" in self.model_fields_set and self.entry is not None:
            raise ValueError("expected an entry or a command, found both")
        if self.command is None and self.entry is None:
            raise ValueError("expected an entry or a command, found neither")
        return self

    @property
    def program(self) -> str | None:
        """The entry point, where torchrun starts one."""
        return None if self.command is not None else self.entry


ANY = "any"


def is_allowed(program: str, listed: Collection[str], cwd: str | None = None) -> bool:
    """Say whether a host that lists these programs starts one, as far as their names tell.

    Links are not followed here: the host itself has the last word.

    Args:
        program: a module, a script, or the first word of a command.
        listed: of the worker's `GONOGO_WORKER_ALLOW`.
        cwd: folder that a path without a root begins in.
    """
    if program == OURS or program in listed or ANY in listed:
        return True
    base = cwd or "/"
    place = posixpath.normpath(posixpath.join(base, program))
    return any("/" in name and posixpath.normpath(name) == place for name in listed)
