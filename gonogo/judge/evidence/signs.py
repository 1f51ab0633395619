"""Which known words did the trainer say when it failed? Names only; the text stays in the lines.

A new sign is one row: a name and the words by which an `error` or `loader_error` line shows it.
"""

import re

from gonogo.contract.heartbeat import Heartbeat, Msg

SIGNS: dict[str, re.Pattern[str]] = {
    "marked_ready_twice": re.compile(r"mark(ed)? (a )?variable ready only once|ready twice", re.I),
    "out_of_memory": re.compile(r"out of memory|OutOfMemoryError|\bMemoryError\b", re.I),
    "index_error": re.compile(r"\bIndexError\b|index .* out of (range|bounds)", re.I),
    "no_space": re.compile(r"No space left on device|\bENOSPC\b", re.I),
    "collective_timeout": re.compile(r"collective operation timeout|Watchdog caught", re.I),
}


def signs_in(beat: Heartbeat) -> set[str]:
    """Return the names of the signs in one `error` or `loader_error` line."""
    said = f"{beat.type or ''}: {beat.text or ''}"
    found = {name for name, words in SIGNS.items() if words.search(said)}
    return found | {"loader_error"} if beat.msg == Msg.LOADER_ERROR else found
