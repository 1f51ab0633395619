"""Processes that end: D1 process_death within an attempt, D25 restart_storm between attempts.

D1 names the cause, the first death, and not its victims: ranks that torchrun ended with SIGTERM, or
whose own last error is that a peer was gone. Exit stamps order deaths, else the moments when they
were seen. If all are victims, somebody else ended the first of them, and that rank is the cause.

Not covered: how a process ended, and its last steps, while the disk refuses a small write. The
keeper reports that of the run. A rank of a user's launcher that vanishes while the launcher runs:
no record says how it ended, so its silence is found instead.
"""

import signal
from collections.abc import Sequence
from dataclasses import dataclass

from gonogo.contract.finding import Finding, Severity
from gonogo.contract.heartbeat import Msg
from gonogo.contract.order import Order
from gonogo.contract.outcome import Detector as Name
from gonogo.contract.records import Tick
from gonogo.contract.watch import RestartStorm as StormSettings
from gonogo.watch.detector import WHILE_ALL_TRAIN, Detector, Seen
from gonogo.watch.view import Beat, Process, View

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
    def failed(self) -> bool:
        """Whether it is known that the process ended badly."""
        return self.process.signal is not None or self.process.code not in (None, 0)

    @property
    def victim(self) -> bool:
        """Whether another's end took it along: torchrun asks peers to end, or they miss it."""
        process = self.process
        terminated = process.signal == signal.SIGTERM or process.code in _SIGTERM_CODES
        return terminated or process.lost_peer

    @property
    def certain(self) -> bool:
        """Whether nothing that is still to be read could make it harmless or a victim's."""
        if self.rank == AGENT:
            return self.process.signal is not None and not self.victim
        return self.failed and not self.victim


def _cause(deaths: Sequence[Death]) -> Death:
    """Return the first death; a victim only if all are victims."""
    stamped = all(death.process.exit_at is not None for death in deaths)
    victims = all(death.victim for death in deaths)

    def order(death: Death) -> tuple[bool, float, bool, int]:
        at = death.process.exit_at if stamped else death.process.dead_mono
        first = death.process.signal is not None and not death.victim
        return death.victim and not victims, at or 0.0, not first, death.rank

    return min(deaths, key=order)


class ProcessDeath(Detector[None]):
    """D1: is the agent or a rank gone?

    Exit 0 counts as ended early unless the rank reported `done` or reached the last step. It is
    judged `settle_s` later, when what the rank wrote has been read, and never on a late tick.
    Deaths after a halt that acts now are no finding. While a halt waits for a checkpoint they are.
    """

    name = Name.PROCESS_DEATH
    sentence = (
        "Halts within a second when a rank or the launcher is gone without having finished. "
        "Exit code 0 before the last step counts as ended early, unless a program is only "
        "read. Names the first death, not its victims."
    )
    ticks = True
    quiet_s = WHILE_ALL_TRAIN
    probes = True

    def observe_tick(self, own: None, tick: Tick, view: View) -> Seen[None]:
        first = None if view.ends else _first_death(view)
        if first is None or not _ripe(view, tick, first):
            return own, []
        return own, [self._found(view, tick, first)]

    def _found(self, view: View, tick: Tick, death: Death) -> Finding:
        process, order, rank = death.process, view.run.order, death.rank
        who = f"rank {rank}"
        if order.command is not None and (rank == AGENT or order.world_size == 1):
            who = "the command"
        elif rank == AGENT:
            on = "" if process.node is None else f" ({view.name_of(process.node)})"
            who = f"the torchrun agent{on}"
        stream, value = view.streams.get(rank), process.code
        of = "" if order.steps is None else f" of {order.steps}"
        where = "" if stream is None else f" at step {stream.step}{of}"
        return self.finding(
            tick,
            view,
            Severity.HALT,
            "agent" if rank == AGENT else f"rank{rank}",
            f"{who} {_how(process)}{where}",
            stream=stream,
            rank=None if rank == AGENT else rank,
            step=None if stream is None else stream.step,
            value=value if process.signal is None else -float(process.signal),
        )

    def armed(self, own: None, view: View) -> bool:
        return bool(view.processes.ranks) or view.processes.agent != Process()


def _how(process: Process) -> str:
    if process.signal is not None:
        known = process.signal in set(signal.Signals)
        name = signal.Signals(process.signal).name if known else f"signal {process.signal}"
        return f"was ended by {name}"
    if process.code is None:
        return "vanished without an exit record"
    return f"ended with exit code {process.code}" if process.code else "ended early, with code 0"


def _first_death(view: View) -> Death | None:
    """Return the bad end that may be the cause of the others, if there is one."""
    order, agent = view.run.order, Death(rank=AGENT, process=view.processes.agent)
    deaths = [
        Death(rank=rank, process=process)
        for rank, process in view.processes.ranks.items()
        if process.dead and not _ended_well(view, rank, process)
    ]
    alone = order.command is not None and order.world_size == 1
    if order.command is not None and not alone:
        deaths = [row for row in deaths if row.failed or row.process.code is not None]
    if agent.process.dead and not _all_ended_well(view):
        if alone:
            agent = Death(rank=0, process=agent.process)
        if agent.certain and not alone:
            deaths = [agent]  # no signal ends a launcher because of a rank; ranks die with it
        deaths = deaths or [agent]
    if view.lines_are_refused():  # its last lines, or its exit record, may be missing
        deaths = [row for row in deaths if row.failed]
    return _cause(deaths) if deaths else None


def _ripe(view: View, tick: Tick, death: Death) -> bool:
    """Whether nothing that may still be read could change what this death means."""
    process = death.process
    if death.certain or view.is_late(tick):
        return death.certain
    dead_mono = tick.mono if process.dead_mono is None else process.dead_mono
    settle_s = view.run.watch.process_death.settle_s
    if process.code == 0 and view.watched:  # else all lines are there
        settle_s = settles_s(view.run.order)
    return tick.mono - dead_mono >= settle_s


def settles_s(order: Order) -> float:
    """Return for how long an end may be judged otherwise by what is still to be read, seconds."""
    settle_s = order.watch.process_death.settle_s
    return max(settle_s, ELSEWHERE_S) if order.nodes > 1 else settle_s


def _ended_well(view: View, rank: int, process: Process) -> bool:
    """Whether a rank may have ended: it reported `done`, obeyed a halt, or reached the last
    step."""
    stream = view.streams.get(rank)
    unknown = process.code == 0 and view.reads_output()
    if stream is None:
        return unknown
    steps = view.run.order.steps or 0  # where nobody says how many, who says done is done
    if stream.halt_seen or stream.done:
        return stream.halt_seen or stream.step >= steps
    return unknown or (process.code == 0 and stream.completed >= steps)


def _all_ended_well(view: View) -> bool:
    order, streams = view.run.order, view.streams.values()
    if view.processes.agent.code == 0 and view.reads_output():
        return True
    return len(streams) == order.world_size and all(
        stream.completed >= order.last_step or _ended_well(view, stream.rank, Process())
        for stream in streams
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """One attempt that was launched and that infrastructure ended."""

    at: float | None
    """Unix seconds of its launch."""
    durable_step: int
    """Highest step of a verified checkpoint when it ended; 0 for none."""


class RestartStorm(Detector[None]):
    """D25: do attempts fail one after the other without getting further?

    `is_storm` is what `decide` asks before it starts another attempt. Within an attempt, a launcher
    may restart its ranks; so many idle starts halt it.
    """

    name = Name.RESTART_STORM
    sentence = (
        "Stops retrying, NO_GO, after three attempts without a higher durable step, or at the "
        "fifth start within half an hour. Halts a run that is restarted in place, where "
        "`starts` starts running have ended no higher step."
    )
    lines = frozenset({Msg.BOOT})

    def observe_line(self, own: None, beat: Beat, view: View) -> Seen[None]:
        stream = view.streams[beat.line.rank]
        limit, count, step = self.settings.starts, stream.idle_boots, stream.top_step
        if count < limit:
            return own, []
        finding = self.finding(
            beat,
            view,
            Severity.HALT,
            f"in_place/step{step}",
            f"rank {stream.rank} starts anew after {count} starts that ended no step beyond {step}"
            f" (limit {limit})",
            setting="starts",
            step=step,
            value=float(count),
            threshold=float(limit),
        )
        return own, [finding]

    def armed(self, own: None, view: View) -> bool:
        return any(row.top_step or row.idle_boots for row in view.streams.values())


def is_storm(
    starts: Sequence[Start], *, before_step: int, now: float, settings: StormSettings
) -> bool:
    """Say whether failed attempts are a storm."""
    recent = [row for row in starts if row.at is not None and now - row.at <= settings.within_s]
    if len(recent) >= settings.starts:
        return True
    if len(starts) < settings.attempts:
        return False
    steps = [row.durable_step for row in starts]
    best = max([before_step, *steps[: -settings.attempts]])
    return max(steps[-settings.attempts :]) <= best
