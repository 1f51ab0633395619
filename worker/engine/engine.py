"""What does every engine do? Start an attempt's keepers, say what became of them, stop them.

An engine schedules; it never judges. It starts `python -m worker.once RUN` on every node of an
order, which becomes the keeper there. `find` says what the engine knows *now*: that nothing of the
attempt is left (`Ended`, with the proof in words) only where it really knows that. A job that a
scheduler calls failed while one of its nodes does not answer is `Unknown`: the cut-off node may
train on. What a keeper wrote about its own end lies in the run directory, and is not asked here.
"""

from dataclasses import dataclass, field
from typing import Protocol

from gonogo.contract.order import Order


@dataclass(frozen=True, slots=True, kw_only=True)
class Handle:
    """One attempt, as its engine knows it."""

    engine: str
    name: str
    """What the engine calls it, such as a job's number."""
    run: str
    token: int
    where: str = field(default="", compare=False)
    """Where the engine has it, if it can be asked in several places; empty: that was not told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """The attempt is there, or waits its turn; `text` says for what."""

    text: str
    waits: bool = False
    stands: bool = False
    """It began, and its scheduler has stopped its processes, to let them go on another time."""
    again: bool = False
    """It began before, and waits to be started a second time, which nobody of ours asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """Nothing of the attempt is left on any node."""

    proof: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Unknown:
    """The engine cannot say: it does not answer, or cannot know itself."""

    text: str


Found = Running | Ended | Unknown


class Engine(Protocol):
    """Starts attempts somewhere."""

    def submit(self, order: Order, token: int) -> Handle:
        """Have an attempt started; asked again for the same token it starts no second one.

        Raises:
            Rejected: the engine does not take such an order.
            Unavailable: it does not answer; nothing is known to have been started.
        """

    def find(self, handle: Handle) -> Found:
        """Return what has become of an attempt."""

    def stop(self, handle: Handle) -> None:
        """Have an attempt ended; that it is asked proves nothing, `find` tells.

        Raises:
            Unavailable: the engine does not answer.
        """
