"""Which numbers of a script become metrics `user/<name>`, and under which names?"""

from collections.abc import Mapping
from typing import Any

MOST_NAMES = 64
"""Names of one process; a line with all of them stays below the limit of a line."""
MOST_CHARS = 120
"""Of a name."""
KNOWN = frozenset(
    (
        *("loss", "grad_norm", "lr", "toks_per_s", "dt_fetch_s", "gpu_mem_alloc"),
        *("gpu_mem_reserved", "host_rss_mb", "gate_entropy", "gate_max", "gate_collapse_frac"),
        *("comm_mb", "flash_share", "loss_scale", "skipped", "tokens", "val_loss", "user"),
        *("skipped_steps", "epoch"),
    )
)
"""Fields of a line that have a meaning of their own."""


def fits(name: str) -> bool:
    """Say whether a name can be a metric's: printable, without blanks at its ends, not too long."""
    return 0 < len(name) <= MOST_CHARS and name.isprintable() and name == name.strip()


def sort_out(numbers: Mapping[str, Any], names: set[str]) -> dict[str, Any]:
    """Return the fields of a line, the script's own numbers in its field `user`.

    Args:
        numbers: plain ones, as `gonogo.trainer.plain` returns them.
        names: of the process so far; new ones are added, `MOST_NAMES` at most.
    """
    own: dict[str, Any] = {}
    for name, value in numbers.items():
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if name in KNOWN or not fits(name) or not (number or value in _NON_FINITE):
            continue
        if name in names or len(names) < MOST_NAMES:
            names.add(name)
            own[name] = value
    if not own:
        return dict(numbers)
    return {**{name: value for name, value in numbers.items() if name not in own}, "user": own}


_NON_FINITE = ("NaN", "Infinity", "-Infinity")
