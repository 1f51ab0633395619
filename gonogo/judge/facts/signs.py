"""Which known words did the trainer say when it failed? Names only; the text stays in the lines.

Its own `error` and `loader_error` lines say them, on whichever rank. What the first rank that
failed printed the keeper has read: exit.json names the signs at the end of its log.
"""

from gonogo.contract.heartbeat import Heartbeat, Msg
from gonogo.contract.records import ExitRecord
from gonogo.signs import OF_VICTIMS, SIGNS, signs_in


def signs_of(beat: Heartbeat) -> set[str]:
    """Return the names of the signs in one `error` or `loader_error` line."""
    found = signs_in(f"{beat.type or ''}: {beat.text or ''}") - OF_VICTIMS
    return found | {"loader_error"} if beat.msg == Msg.LOADER_ERROR else found


def signs_at_end(record: ExitRecord | None) -> set[str]:
    """Return the signs that the keeper found in that log, as far as they are known today."""
    return set() if record is None else set(record.signs) & SIGNS.keys()
