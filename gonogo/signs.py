"""What did a program say when it failed? Known words by name; standard library only.

A sign is a name, and the words by which an error line or the end of a log shows it: those of the
operating system, of Python and of torch, as they really stand there. A new sign is one row. What a
sign means is the judge's business (`gonogo.judge.gate.diagnosis`).
"""

import re

SIGNS: dict[str, re.Pattern[str]] = {
    "marked_ready_twice": re.compile(r"mark(ed)? (a )?variable ready only once|ready twice", re.I),
    "out_of_memory": re.compile(
        r"out of memory|OutOfMemoryError|^[\w.]*MemoryError\b|can(?:'|no)t allocate memory"
        r"|std::bad_alloc",
        re.I | re.M,
    ),
    "index_error": re.compile(r"\bIndexError\b|index .{0,200}? out of (range|bounds)", re.I),
    "no_space": re.compile(
        r"No space left on device|\bENOSPC\b|Disk quota exceeded"
        r"|inline_container\.cc:\d+\] \. unexpected pos|PytorchStreamWriter failed writing",
        re.I,
    ),
    "collective_timeout": re.compile(
        r"collective operation timeout|Watchdog caught|failed to pass monitoredBarrier"
        r"|Timed out waiting \d+ ?ms for (?:recv|send) operation",
        re.I,
    ),
    "collective_mismatch": re.compile(
        r"Detected mismatch between collectives|distributed collective mismatch", re.I
    ),
    "peer_lost": re.compile(
        r"gloo/.{0,120}(?:closed|reset) by peer|remote worker (?:crashing|hanging)"
        r"|ncclRemoteError|remote process exit",
        re.I,
    ),
}

UNMISTAKABLE = frozenset(SIGNS) - {"index_error"}
"""Signs that stand for themselves at the end of a log; an IndexError there may be anybody's."""
OF_VICTIMS = frozenset({"peer_lost"})
"""What ranks say that another one took along: a cause only where the first to fail says it."""


def signs_in(text: str) -> set[str]:
    """Return the names of the signs in what a program said."""
    return {name for name, words in SIGNS.items() if words.search(text)}
