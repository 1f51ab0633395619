"""D1: is the agent or a rank gone?

The finding names the first death, the cause: the exit stamps order them, and ranks that torchrun
ended with SIGTERM, or whose own last error is that a peer was gone, are victims; where nobody is
anything else, the first of them was ended by somebody else, and is the cause. Exit 0 counts as
ended early unless the rank said `done` or reached the last step (what a program that is only read
did and did not print nobody knows: there the gate misses the steps); so that a normal end cannot
race with a tick, it is judged `settle_s` later, when what it wrote has been read (never on a late
tick). While the disk refuses a small write nobody can say how a process ended, nor what its last
steps were: the keeper tells that of the run. Deaths after a halt that acts now are no finding: they
follow from it. While one waits for a checkpoint they are.
"""

import math
import signal
from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from gonogo.contract.finding import Finding, Severity
from gonogo.contract.order import Order
from gonogo.contract.outcome import Detector as Name
from gonogo.contract.tick import Tick
from gonogo.watch.detector import WHILE_ALL_TRAIN, Detector, Seen
from gonogo.watch.processes import Process
from gonogo.watch.view import View, found

AGENT = -1
ELSEWHERE_S = 5.0
"""How long last lines may be on their way from another host when a rank of it has exited with 0."""
_SIGTERM_CODES = frozenset({128 + signal.SIGTERM, -signal.SIGTERM})


@dataclass(frozen=True, slots=True, kw_only=True)
class Death:
    """One bad end."""

    rank: int
    process: Process

    @property
    def told(self) -> bool:
        """Whether anybody told how it ended, and that was badly."""
        return self.process.signal is not None or self.process.code is not None

    @property
    def victim(self) -> bool:
        """Whether another's end took it along: torchrun asks peers to end, or they miss it."""
        return self.terminated or self.process.lost_peer

    @property
    def terminated(self) -> bool:
        """Whether it was asked to end."""
        return self.process.signal == signal.SIGTERM or self.process.code in _SIGTERM_CODES

    @property
    def certain(self) -> bool:
        """Whether nothing that is still to be read could make it harmless or a victim's."""
        failed = self.process.code not in (None, 0) or self.process.signal is not None
        return failed and not self.victim

    def order(self) -> tuple[bool, bool, float, bool, int]:
        """Return what sorts the cause before its victims."""
        at = self.process.exit_at
        by_signal = self.process.signal is not None
        return (
            self.terminated,
            self.victim,
            math.inf if at is None else at,
            not by_signal,
            self.rank,
        )

    def time_order(self) -> tuple[float, int]:
        """Return what sorts ends by when they were.

        Torchrun asks none to end before one has failed: where all are victims, somebody else asked
        the first of them, or the cause was not seen.
        """
        at = self.process.exit_at
        return (math.inf if at is None else at, self.rank)

    def seen_order(self) -> tuple[bool, bool, float, tuple[bool, bool, float, bool, int]]:
        """Return the same by when each was first seen dead, where one has no stamp to compare."""
        seen_mono = self.process.dead_mono
        return (
            self.terminated,
            self.victim,
            math.inf if seen_mono is None else seen_mono,
            self.order(),
        )


_dead = attrgetter("dead")


def _deaths(view: View) -> list[Death]:
    """Return the bad ends that may be the cause."""
    deaths = [
        Death(rank=rank, process=process)
        for rank, process in view.processes.ranks.items()
        if process.dead and not _ended_well(view, rank, process)
    ]
    agent = Death(rank=AGENT, process=view.processes.agent)
    if not agent.process.dead and _may_launch(view):
        return []
    if not agent.process.dead or _all_ended_well(view):
        return deaths
    if view.run.order.command is not None:
        return _of_command(view, deaths, agent)
    if agent.process.signal is not None and not agent.victim:
        return [agent]  # torchrun never dies by a signal because of a rank; ranks die with it
    return deaths or [agent]


def _of_command(view: View, deaths: list[Death], agent: Death) -> list[Death]:
    """Return the bad ends that may be the cause where a command has ended, which we started.

    One that is its only rank itself ends as that did. A launcher is blamed where a signal ended
    it, or where nobody saw how a rank ended.
    """
    if view.run.order.world_size == 1:
        return deaths or [Death(rank=0, process=agent.process)]
    if agent.process.signal is not None and not agent.victim:
        return [agent]
    told = [death for death in deaths if death.told and not _may_launch(view)]
    return told or [agent]


def _may_launch(view: View) -> bool:
    """Whether what was seen of a command may be no rank: it is all, and more ranks are owed."""
    order = view.run.order
    return order.command is not None and order.world_size > 1 and list(view.processes.ranks) == [0]


def _ripe(view: View, tick: Tick, death: Death) -> bool:
    """Whether nothing that may still be read could change what this death means."""
    process = death.process
    if not process.code and process.signal is None and _is_refused(view):
        return False
    if death.rank == AGENT:
        certain = process.signal is not None and not death.victim
    else:
        certain = death.certain
    if certain or view.is_late(tick):
        return certain
    dead_mono = tick.mono if process.dead_mono is None else process.dead_mono
    settle_s = view.run.watch.process_death.settle_s
    if process.code == 0 and view.watched:  # else all lines are there
        settle_s = settles_s(view.run.order)
    return tick.mono - dead_mono >= settle_s


def _is_refused(view: View) -> bool:
    """Whether what was written in the last minute may be missing."""
    disk = view.disk()
    return disk is not None and disk.refused


def settles_s(order: Order) -> float:
    """Return for how long an end may be judged otherwise by what is still to be read, seconds."""
    settle_s = order.watch.process_death.settle_s
    return max(settle_s, ELSEWHERE_S) if order.nodes > 1 else settle_s


def _ended_well(view: View, rank: int, process: Process) -> bool:
    """Whether a rank may have ended: it said `done`, obeyed a halt, or reached the last step."""
    stream = view.streams.get(rank)
    untold = process.code == 0 and view.reads_output()
    if stream is None:
        return untold
    if stream.halt_seen:
        return True
    steps = view.run.order.steps or 0  # where nobody says how many, who says done is done
    if stream.done:
        return stream.step >= steps
    return untold or (process.code == 0 and stream.completed >= steps)


def _all_ended_well(view: View) -> bool:
    order = view.run.order
    streams = view.streams
    if view.processes.agent.code == 0 and view.reads_output():
        return True
    return len(streams) == order.world_size and all(
        stream.halt_seen
        or stream.completed >= order.last_step
        or (stream.done and stream.step >= (order.steps or 0))
        for stream in streams.values()
    )


def _finding(view: View, tick: Tick, death: Death) -> Finding:
    process = death.process
    order = view.run.order
    who = f"rank {death.rank}"
    if order.command is not None and (death.rank == AGENT or order.world_size == 1):
        who = "the command"
    elif death.rank == AGENT:
        on = "" if process.node is None else f" ({view.name_of(process.node)})"
        who = f"the torchrun agent{on}"
    stream = view.streams.get(death.rank)
    where = "" if stream is None else f" at step {stream.step}{_of_steps(order.steps)}"
    return found(
        view,
        Name.PROCESS_DEATH,
        Severity.HALT,
        episode="agent" if death.rank == AGENT else f"rank{death.rank}",
        at=tick.ts,
        stream=stream,
        rank=None if death.rank == AGENT else death.rank,
        value=_value(process),
        text=f"{who} {_how(process)}{where}",
    )


def _of_steps(steps: int | None) -> str:
    return "" if steps is None else f" of {steps}"


def _value(process: Process) -> float | None:
    if process.signal is not None:
        return -float(process.signal)
    return None if process.code is None else float(process.code)


def _how(process: Process) -> str:
    if process.signal is not None:
        try:
            return f"was ended by {signal.Signals(process.signal).name}"
        except ValueError:
            return f"was ended by signal {process.signal}"
    if process.code is None:
        return "vanished without an exit record"
    if process.code == 0:
        return "ended early, with exit code 0"
    return f"ended with exit code {process.code}"


class ProcessDeath(Detector[None]):
    """D1: is the agent or a rank gone?"""

    name = Name.PROCESS_DEATH
    sentence = (
        "Halts within a second when a rank or the launcher is gone without having "
        "finished; exit code 0 before the last step counts as ended early, but where a "
        "program is only read, or the disk refuses what a rank writes. Names the first death, not "
        "its victims; of nothing but victims, the first."
    )
    """2: `done` before the last ordered step is an end too early; a command that is its only rank
    ends as that did; who says itself that a peer was gone is a victim. 3: while the disk refuses
    what a rank writes nobody has ended early."""
    ticks = True
    quiet_s = WHILE_ALL_TRAIN
    probes = True

    def observe_tick(self, own: None, tick: Tick, view: View) -> Seen[None]:
        """Observe a tick: exits that were probed."""
        processes = view.processes
        if view.ends or not (processes.agent.dead or any(map(_dead, processes.ranks.values()))):
            return own, []
        deaths = _deaths(view)
        ripe = [death for death in deaths if _ripe(view, tick, death)]
        if not ripe:
            return own, []
        stamped = all(death.process.exit_at is not None for death in deaths)
        order: Callable[[Death], Any] = Death.order if stamped else Death.seen_order
        if stamped and all(death.victim for death in deaths):
            order = Death.time_order
        first = min(ripe, key=order)
        if not view.is_late(tick) and min(deaths, key=order) is not first:
            return own, []  # an earlier end may be the cause: what it wrote last is being read
        return own, [_finding(view, tick, first)]

    def armed(self, own: None, view: View) -> bool:
        """Whether processes are probed at all."""
        return bool(view.processes.ranks) or view.processes.agent != Process()
