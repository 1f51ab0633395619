"""Seconds of a run by what they were spent on (docs/how-to/report.md). No verdict uses them."""

from collections.abc import Mapping
from enum import StrEnum

from gonogo.contract.wire import Recorded


class Part(StrEnum):
    """What a second was spent on; each second belongs to one part."""

    PRODUCTIVE = "productive"  # Steps of an attempt that reached its last step or still runs.
    PRESERVED = "preserved"  # Steps of an ended attempt that a checkpoint kept.
    QUEUE = "queue"  # Until a worker claimed the run and the scheduler gave it hosts.
    START = "start"  # From then to the first step of a phase.
    RESTART = "restart"  # The same in a later attempt or process.
    EVALUATION = "evaluation"
    CHECKPOINT = "checkpoint"
    BETWEEN_STEPS = "between_steps"
    STALL = "stall"  # From the last progress to the finding.
    HALT = "halt"  # From the finding or the last line to the end.
    REPEATED = "repeated"  # Steps that no checkpoint kept.
    DECISION = "decision"  # Between two runs: judging, and waiting for a person.
    UNKNOWN = "unknown"


WORDS = {
    **{part: part.replace("_", " ") for part in Part},
    Part.STALL: "stall until found",
    Part.HALT: "halt and end",
    Part.REPEATED: "repeated steps",
}
KEPT = (Part.PRODUCTIVE, Part.PRESERVED)
UNHELD = (Part.QUEUE, Part.DECISION)  # No device is held meanwhile.
LOST = tuple(part for part in Part if part not in (*KEPT, Part.UNKNOWN))
UNKNOWN_SHARE = 0.01  # Above this share of the held seconds the ratio is a lower bound.


class Goodput(Recorded):
    """The time of a run or an experiment."""

    wall_s: float  # Sum of all others.
    productive_s: float
    preserved_s: float
    lost_s: dict[str, float]
    unknown_s: float
    held_s: float
    ratio: float | None  # (productive + preserved) / held, 0 to 1; null: no device was held.


class ExperimentGoodput(Goodput):
    """GET /experiments/{id}/goodput."""

    experiment: str
    runs: dict[str, Goodput] = {}


def goodput_of(seconds: Mapping[Part, float]) -> Goodput:
    """Return the goodput of seconds by part."""
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
    """Return `at least ` if too much time is unknown, else nothing."""
    return "at least " if goodput.unknown_s > UNKNOWN_SHARE * goodput.held_s else ""


def seconds_of(goodput: Goodput) -> dict[Part, float]:
    """Return seconds by part, in the order of `Part`."""
    kept = {Part.PRODUCTIVE: goodput.productive_s, Part.PRESERVED: goodput.preserved_s}
    known = {Part(name): value for name, value in goodput.lost_s.items() if name in set(Part)}
    found = {**kept, **known, Part.UNKNOWN: goodput.unknown_s}
    return {part: found.get(part, 0.0) for part in Part}
