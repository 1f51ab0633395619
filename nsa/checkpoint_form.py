"""Is what `state.json` of a checkpoint says of the right form, and of one piece?

The manifest tells that nothing has changed since. This tells of what was written wrongly, or
changed and sealed anew: the first field that cannot be, by name, before anything is built on it.
"""

import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from nsa.canonical import canonical_bytes
from nsa.errors import BadConfig


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 0


def _is_mapping(value: Any) -> bool:
    return isinstance(value, dict)


def _are_marks(value: Any) -> bool:
    return isinstance(value, list) and all(
        isinstance(row, list) and all(map(_is_count, row)) for row in value
    )


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


_FIELDS: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "step": (_is_count, "a whole number"),
    "next_sequence": (_is_count, "a whole number"),
    "config_digest": (_is_text, "a text"),
    "world_size": (lambda value: _is_count(value) and value > 0, "a whole number from 1"),
    "corpus": (_is_text, "a text"),
    "marks": (_are_marks, "rows of whole numbers"),
    "loss_scale": (_is_mapping, "an object"),
    "config": (_is_mapping, "an object"),
    "shapes": (_is_mapping, "an object"),
}
_LATER = frozenset(("corpus", "marks", "loss_scale", "config", "shapes"))
"""What the first checkpoints do not say."""


def check_state(place: Path, state: Any, step: Any) -> None:
    """Refuse a state that no run can have written.

    Args:
        place: the checkpoint, for messages.
        state: what `state.json` holds.
        step: what the manifest says.

    Raises:
        BadConfig: the first field that cannot be.
    """
    if not isinstance(state, dict):
        raise BadConfig(f"checkpoint {place}: state.json holds no object")
    for name, (fits, words) in _FIELDS.items():
        if name not in state and name not in _LATER:
            raise BadConfig(f"checkpoint {place}: state.json lacks {name}")
        if name in state and not fits(state[name]):
            raise BadConfig(
                f"checkpoint {place}: {name} in state.json must be {words}, not {state[name]!r}"
            )
    if state["step"] != step:
        raise BadConfig(
            f"checkpoint {place} is of step {step!r} by its manifest, {state['step']} by state.json"
        )
    config = state.get("config")
    if config and hashlib.sha256(canonical_bytes(config)).hexdigest() != state["config_digest"]:
        raise BadConfig(f"checkpoint {place}: config_digest is not that of its config")
