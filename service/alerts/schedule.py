"""When is a failed delivery tried again, and when is it given up?

Guarantee: the first tries come within seconds (a receiver that restarts is told at once), later
ones at most an hour apart, and none after `GIVE_UP_S`. Jitter keeps many alerts of one outage from
coming back at the same instant.
"""

FIRST_S = 1.0
LONGEST_S = 3_600.0
GIVE_UP_S = 3 * 86_400.0
"""Seconds since the alert after which its delivery has failed."""


def retry_delay_s(attempts: int, jitter: float) -> float:
    """Return the seconds to wait after a failed try.

    Args:
        attempts: tries so far, at least 1.
        jitter: 0..1; the wait lies between a half and the whole of the exponential one.
    """
    whole = min(LONGEST_S, FIRST_S * 2.0 ** min(attempts - 1, 30))
    return whole * (0.5 + 0.5 * jitter)


def next_try_at(*, attempts: int, alerted_at: float, now: float, jitter: float) -> float | None:
    """Return when to try again in Unix seconds, or None to give up.

    Args:
        attempts: tries so far, at least 1.
        alerted_at: when the alert was made, Unix seconds.
        now: Unix seconds.
        jitter: 0..1.
    """
    due_at = now + retry_delay_s(attempts, jitter)
    return due_at if due_at - alerted_at <= GIVE_UP_S else None
