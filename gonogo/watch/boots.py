"""In which order did the processes of one rank come? By clocks that cannot be set.

The watcher's ticks name the process that each rank was obeyed in, in the order of its own clock.
Processes that no tick names (one came and went within a tick) are placed among them by their first
stamp on the monotonic clock, which processes that follow each other on a host share. A wall clock
that is set back while the run goes on moves nothing.
"""

from collections.abc import Iterable, Mapping


def boots_in_order(began_mono: Mapping[str, float], named: Iterable[str] = ()) -> list[str]:
    """Return the boots of a rank, the first one first.

    Args:
        began_mono: boot → its first stamp, in seconds of the rank's monotonic clock.
        named: boots as the ticks name them, each as often as they do.
    """
    known = [boot for boot in dict.fromkeys(named) if boot in began_mono]
    told = frozenset(known)
    others = sorted(
        (boot for boot in began_mono if boot not in told),
        key=lambda boot: (began_mono[boot], boot),
    )
    found: list[str] = []
    place = 0
    for boot in known:
        while place < len(others) and began_mono[others[place]] < began_mono[boot]:
            found.append(others[place])
            place += 1
        found.append(boot)
    return found + others[place:]
