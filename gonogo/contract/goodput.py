"""Where did the time go? Seconds by what they were spent on; together they are the wall time.

docs/how-to/report.md says what counts as what. Nothing here is a judgement: no verdict rests on it.
"""

from collections.abc import Mapping
from enum import StrEnum

from gonogo.contract.wire import Recorded


class Part(StrEnum):
    """What a second was spent on; each second belongs to one part."""

    PRODUCTIVE = "productive"
    """Steps of an attempt that reached its last step, or that goes on."""
    PRESERVED = "preserved"
    """Steps of an attempt that ended early which a checkpoint kept."""
    QUEUE = "queue"
    """Until a worker claimed it, and at its engine until the scheduler gave it hosts."""
    START = "start"
    """From then to the first step, in the first attempt of a phase."""
    RESTART = "restart"
    """The same in a later attempt, or after a process that began anew."""
    EVALUATION = "evaluation"
    CHECKPOINT = "checkpoint"
    BETWEEN_STEPS = "between_steps"
    STALL = "stall"
    """From the last progress until the watchdog found that something is wrong."""
    HALT = "halt"
    """From there, or from the last line, until the run had ended."""
    REPEATED = "repeated"
    """Steps that no checkpoint kept: they have to be done again."""
    DECISION = "decision"
    """Between two runs: judging, and waiting for a person."""
    UNKNOWN = "unknown"
    """Nobody told what was done."""


WORDS = {
    Part.PRODUCTIVE: "productive",
    Part.PRESERVED: "preserved",
    Part.QUEUE: "queue",
    Part.START: "start",
    Part.RESTART: "restart",
    Part.EVALUATION: "evaluation",
    Part.CHECKPOINT: "checkpoint",
    Part.BETWEEN_STEPS: "between steps",
    Part.STALL: "stall until found",
    Part.HALT: "halt and end",
    Part.REPEATED: "repeated steps",
    Part.DECISION: "decision",
    Part.UNKNOWN: "unknown",
}
"""What people read."""
KEPT = (Part.PRODUCTIVE, Part.PRESERVED)
UNHELD = (Part.QUEUE, Part.DECISION)
"""No device is held meanwhile."""
LOST = tuple(part for part in Part if part not in (*KEPT, Part.UNKNOWN))
UNKNOWN_SHARE = 0.01
"""Of the held seconds: where more is unknown, the ratio is the least that it can be."""


class Goodput(Recorded):
    """The time of a run, an experiment or a fleet."""

    wall_s: float
    """Seconds from the submission to the end or until now; the sum of all others. Of a fleet they
    are weighted by devices."""
    productive_s: float
    preserved_s: float
    lost_s: dict[str, float]
    """Cause → seconds."""
    unknown_s: float
    """Seconds of which nobody told what was done; they count as not productive."""
    held_s: float
    """Seconds with devices held: without queue and decision."""
    ratio: float | None
    """Effective training time: (productive + preserved) of the held seconds, 0 to 1; at least so
    much where something is unknown. Null: no device was held."""


class ExperimentGoodput(Goodput):
    """GET /experiments/{id}/goodput."""

    experiment: str
    runs: dict[str, Goodput] = {}
    """Run → its own time, in the order in which they were queued."""


class FleetGoodput(Goodput):
    """GET /goodput: seconds are weighted by the devices of each run."""

    hours: float
    """Of runs that go on or have ended within so many hours."""
    runs: int


def goodput_of(seconds: Mapping[Part, float]) -> Goodput:
    """Return seconds by part as they are shown."""
    kept = sum(seconds.get(part, 0.0) for part in KEPT)
    wall_s = sum(seconds.values())
    held_s = sum(value for part, value in seconds.items() if part not in UNHELD)
    return Goodput(
        wall_s=wall_s,
        productive_s=seconds.get(Part.PRODUCTIVE, 0.0),
        preserved_s=seconds.get(Part.PRESERVED, 0.0),
        lost_s={part.value: seconds.get(part, 0.0) for part in LOST},
        unknown_s=seconds.get(Part.UNKNOWN, 0.0),
        held_s=held_s,
        ratio=min(1.0, kept / held_s) if held_s > 0 else None,
    )


def least_words(goodput: Goodput) -> str:
    """Return `at least `, to stand before the ratio, where too much time is unknown; else nothing.

    Unknown time counts as lost: the ratio may be higher.
    """
    return "at least " if goodput.unknown_s > UNKNOWN_SHARE * goodput.held_s else ""


def seconds_of(goodput: Goodput) -> dict[Part, float]:
    """Return what is shown as seconds by part, in the order of `Part`."""
    kept = {Part.PRODUCTIVE: goodput.productive_s, Part.PRESERVED: goodput.preserved_s}
    known = {Part(name): value for name, value in goodput.lost_s.items() if name in set(Part)}
    found = {**kept, **known, Part.UNKNOWN: goodput.unknown_s}
    return {part: found.get(part, 0.0) for part in Part}
