"""What does an error say in one line, and is the device of any use to this process after it?"""

from __future__ import annotations

_FATAL = (
    "CUDA error",
    "illegal memory access",
    "illegal instruction",
    "misaligned address",
    "unspecified launch failure",
    "device-side assert",
)


def first_line(error: BaseException) -> str:
    """Its kind and what it says, in one line."""
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"[:300]


def is_fatal(error: BaseException) -> bool:
    """Whether a CUDA context is of no use after this: every later call would fail as well."""
    return any(word in str(error) for word in _FATAL)
