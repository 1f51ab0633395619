"""Which environment may a plan give a run? Names, and texts that a process can be given.

Listed names (`gonogo.environment_names`) are set; of our workload others are refused. Those that
decide what code runs, or whose run it is, no plan may even say.
"""

import math
import re
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_NEVER = re.compile(
    r"LD_.*|DYLD_.*|PYTHON.*|GONOGO_.*|TORCHELASTIC_.*|MASTER_(?:ADDR|PORT)|RANK|LOCAL_RANK"
    r"|GROUP_RANK|ROLE_RANK|WORLD_SIZE|LOCAL_WORLD_SIZE|ROLE_WORLD_SIZE|PATH|HOME|SHELL|IFS|ENV"
    r"|BASH_ENV|BASH_FUNC.*"
)


def _name(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise ValueError(f"{name!r} is no name of a variable")
    if _NEVER.fullmatch(name):
        raise ValueError(f"{name} decides what code runs, or whose run it is: no plan sets it")
    return name


def _text(value: Any) -> Any:
    """Return numbers as their text: `NSA_TB_DISABLE: 0` means what it looks like."""
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


EnvName = Annotated[str, AfterValidator(_name)]
EnvText = Annotated[
    str,
    BeforeValidator(_text),
    AfterValidator(_can_be_given),
    Field(max_length=32_768),
    WithJsonSchema({"type": ["string", "number"]}),
]
Env = dict[EnvName, EnvText]
