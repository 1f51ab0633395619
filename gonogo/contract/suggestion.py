"""What did the writer mean? One hint for every word that is not known."""

from collections.abc import Iterable
from difflib import get_close_matches

_FEW = 4


def near(word: str, known: Iterable[str]) -> list[str]:
    """Return the known words that an unknown one may have been meant for.

    Words that begin as the unknown one come before those that look like it: `a100` means one of
    `a100-pcie-gen3` and `a100-pcie-gen4`, not `h100`.
    """
    words = sorted(known)
    begun = [row for row in words if word and row.startswith(word)]
    return begun[:3] or get_close_matches(word, words, n=1)


def hint(word: str, known: Iterable[str]) -> str:
    """Return `did you mean X?` where known words are near, else all of them."""
    words = sorted(known)
    meant = near(word, words)
    if meant:
        return f"did you mean {' or '.join(meant)}?"
    return f"expected one of {', '.join(words)}" if words else "expected nothing here"


def choices(word: str, known: Iterable[str]) -> str:
    """Return what a value may be: all of it where that is few, else as `hint`."""
    words = sorted(known)
    return f"expected one of {', '.join(words)}" if len(words) <= _FEW else hint(word, words)
