"""Which causes did release 0.1 know, and what did each mean for a verdict?"""

from typing import Any

from gonogo.contract.errors import Corrupt

CLASS_OF = {
    "completed": "success",
    "nonzero_exit": "user",
    "oom": "user",
    "start_failed": "user",
    "stalled": "policy",
    "too_slow": "policy",
    "non_finite": "policy",
    "diverged": "policy",
    "config_mismatch": "policy",
    "resource_limit": "policy",
    "deadline": "policy",
    "hardware": "infra",
    "preflight_failed": "infra",
    "watcher_failed": "infra",
    "keeper_lost": "infra",
    "worker_lost": "infra",
    "isolated": "infra",
    "cancelled": "operator",
    "halted": "operator",
    "superseded": "operator",
}

_CODE_OF_DETECTOR = {
    "process_death": "nonzero_exit",
    "no_first_heartbeat": "start_failed",
    "slow": "too_slow",
    "non_finite": "non_finite",
    "hygiene": "config_mismatch",
    "identity": "config_mismatch",
}


def ended_as(code: str | None, actor: str, detector: str = "") -> dict[str, Any]:
    """Return an outcome as facts hold it; without a code, the one that a halt's detector names.

    Raises:
        Corrupt: release 0.1 knew no such cause.
    """
    named = _CODE_OF_DETECTOR.get(detector, "stalled") if code is None else code
    if named not in CLASS_OF or actor not in ("trainer", "watchdog", "operator", "infra"):
        raise Corrupt(f"an end as {named!r} by {actor!r}: release 0.1 knew no such thing")
    return {"code": named, "actor": actor, "class": CLASS_OF[named]}
