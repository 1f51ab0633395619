"""Which operations took the time? What the trainer's profiler left: `profile.json`, or its table.

Another trainer may leave any text as `profile.txt`; it is shown as it is.
"""

from dataclasses import dataclass, field

from pydantic import Field, ValidationError

from gonogo.contract.wire import Recorded

TABLE, TEXT = "profile.json", "profile.txt"
MAX_TEXT_LINES = 40
MAX_LINE_CHARS = 1_000


class HotSpot(Recorded):
    """One operation, with the time spent in itself."""

    name: str
    calls: int = 0
    self_cpu_s: float = 0.0
    self_device_s: float = 0.0
    share: float = 0.0
    """Of all that was recorded, from 0 to 1."""


class ProfileTable(Recorded):
    """profile.json, as the trainer writes it."""

    steps: list[int] = Field(default_factory=list)
    sections: dict[str, float] = Field(default_factory=dict)
    hot_spots: list[HotSpot] = Field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """What there is of a profile: its table, else its text."""

    table: ProfileTable | None = None
    text: str = field(default="")


def read_profile(table: bytes | None, text: bytes | None) -> Profile | None:
    """Return the profile of a run; None where it left none.

    Args:
        table: bytes of profile.json; None where there is none.
        text: bytes of profile.txt; None where there is none.
    """
    if table is not None:
        try:
            return Profile(table=ProfileTable.model_validate_json(table))
        except ValidationError:
            pass
    if text is None or not text.strip():
        return None
    lines = text.decode(errors="replace").splitlines()
    cut = ["…"] if len(lines) > MAX_TEXT_LINES else []
    shown = (line[:MAX_LINE_CHARS] for line in lines[:MAX_TEXT_LINES])
    return Profile(text="\n".join([*shown, *cut]))
