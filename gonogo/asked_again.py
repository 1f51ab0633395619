"""How is a run told that an operator asked a second time? In the words of the command.

A command says its kind, who and why, and a worker of an earlier release takes no more than that; it
ignores a command for a run that is leaving already, whatever its words.
"""

AGAIN = "asked again, to end at once"


def asked_again(reason: str) -> str:
    """Return the reason of a second command: the run is waited for no longer."""
    return f"{AGAIN}: {reason}" if reason else AGAIN


def is_asked_again(reason: str) -> bool:
    """Say whether the words of a command are those of a second one."""
    return reason == AGAIN or reason.startswith(f"{AGAIN}: ")
