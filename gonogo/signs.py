"""Recognise the texts that decide how a run is recorded to have ended. Standard library only.

The keeper decides with these signs whether a run ended for want of memory or disk space, and
whether a rank only lost a peer. `gonogo/judge/failures.yaml` names every other failure.
"""

import re

SIGNS: dict[str, re.Pattern[str]] = {
    "out_of_memory": re.compile(
        r"out of memory|OutOfMemoryError|^[\w.]*MemoryError\b|can(?:'|no)t allocate memory"
        r"|std::bad_alloc",
        re.I | re.M,
    ),
    "no_space": re.compile(
        r"No space left on device|\bENOSPC\b|Disk quota exceeded"
        r"|inline_container\.cc:\d+\] \. unexpected pos|PytorchStreamWriter failed writing",
        re.I,
    ),
    "peer_lost": re.compile(
        r"gloo/.{0,120}(?:closed|reset) by peer|remote worker (?:crashing|hanging)"
        r"|ncclRemoteError|remote process exit",
        re.I,
    ),
}

OF_VICTIMS = frozenset({"peer_lost"})
"""Signs of a rank that lost a peer: a cause only if the rank that failed first shows them."""


def signs_in(text: str) -> set[str]:
    """Return the names of the signs in a text."""
    return {name for name, words in SIGNS.items() if words.search(text)}
