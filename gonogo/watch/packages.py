"""What do installed packages bring, and what if it does not work? One answer for all their parts.

Whatever they do wrong (an import that fails, an error, `sys.exit`, a panic of their Rust) is caught
and said: no run ends by it.
"""

import re
from collections.abc import Iterator
from importlib.metadata import entry_points
from typing import Any

ERRORS = BaseException
"""What foreign code may raise, and a watcher lives through; an interrupt goes on (`failure`)."""
_ADDRESS = re.compile("0x[0-9a-f]+")
_MOST = 200
"""Characters of an error that are told."""


def failure(error: BaseException) -> str:
    """Return an error in words that are the same on every host: one line, without an address.

    Raises:
        KeyboardInterrupt: it is one: a person's, not the package's.
    """
    if isinstance(error, KeyboardInterrupt):
        raise error
    try:
        said = str(error)
    except ERRORS:  # it is foreign, too
        said = ""
    words = _ADDRESS.sub("0x", said.partition("\n")[0])[:_MOST]
    return f"{type(error).__name__}: {words}"


def load_points(group: str) -> Iterator[tuple[str, str, Any, str | None]]:
    """Yield name, value and object of each entry point, by name; and what is wrong, if it fails.

    Args:
        group: of entry points.
    """
    for point in sorted(entry_points(group=group), key=lambda point: point.name):
        try:
            loaded, wrong = point.load(), None
        except ERRORS as error:
            loaded, wrong = None, f"cannot be loaded: {failure(error)}"
        yield point.name, point.value, loaded, wrong
