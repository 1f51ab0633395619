"""Who asks a driver that may hang? A process of its own, which can be given up."""

import subprocess
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from gonogo.supervise.release import own_module

_M = TypeVar("_M", bound=BaseModel)


def ask_apart(
    answer: type[_M], module: str, *arguments: str, limit_s: float, said: bytes = b""
) -> _M:
    """Return what `python -m MODULE` prints, or an answer whose `error` says why it does not.

    Args:
        answer: model of what it prints; has a field `error`.
        module, arguments: what is run.
        limit_s: how long it may take.
        said: what it reads.
    """
    try:
        done = subprocess.run(
            [*own_module(module), *arguments],
            input=said,
            capture_output=True,
            timeout=limit_s,
            check=False,
        )
        return answer.model_validate_json(done.stdout)
    except subprocess.TimeoutExpired:
        error = f"the driver did not answer within {limit_s:g} s"
    except (OSError, ValidationError) as reason:
        error = f"nobody could ask the driver: {reason}"
    return answer.model_validate({"error": error})
