"""Will a deadline soon accuse nobody, or end a run that nobody hears? Then there is time to ask.

Not every deadline has a stage of suspicion, and what the dumps of a round tell of who has not come
counts from the tick that brings it: a halt does not wait for it. So the fold is asked what it would
find in FORESIGHT_S if every rank that speaks went on to say that it stands where it does. That is a
question: nothing is found, recorded or ended by it.

Where nobody is heard only stacks tell that a run stands, and those of a while ago tell nothing: the
fold is asked what it would find if each rank stood where it was read last, and then they are read
again.
"""

from copy import copy
from dataclasses import replace

from gonogo.contract.finding import Finding
from gonogo.contract.outcome import Detector
from gonogo.contract.tick import Tick
from gonogo.judge.watch import WatchState, look
from gonogo.judge.watch.processes import Stack
from gonogo.supervise.watcher.response import ends_run

FORESIGHT_S = 8.0
"""More than a round takes: ranks have three seconds to answer, stacks five to be read."""
EVERY_TICKS = 4
LEAST_SHARE = 0.5
"""Of its limit that must have passed: a limit of seconds is always near."""
_DEADLINES = frozenset(
    {
        Detector.NO_FIRST_HEARTBEAT,
        Detector.ALIVE_LOST,
        Detector.STALL,
        Detector.SECTION_DEADLINE,
    }
)


def halt_ahead(state: WatchState, tick: Tick) -> Finding | None:
    """Return the deadline that would end the run within FORESIGHT_S and name no rank, if any.

    Where nobody is heard, one that names a rank, too.

    Args:
        state: after `tick`; it stays as it is.
        tick: the last one.
    """
    view = state.view
    if tick.n % EVERY_TICKS or not view.active():
        return None
    unheard = not view.fresh(view.streams.values(), tick.mono)
    if not unheard and state.run.order.world_size < 2:
        return None
    mono, ts = tick.mono + FORESIGHT_S, tick.ts + FORESIGHT_S
    later = Tick(n=tick.n + 1, mono=mono, ts=ts, interval_s=tick.interval_s)
    then = _standing_until(state, mono) if unheard else _heard_until(state, tick.mono, mono)
    return next((row for row in look(then, later) if _is_meant(row, unheard=unheard)), None)


def _heard_until(state: WatchState, now: float, mono: float) -> WatchState:
    """Return a state like this one in which the ranks that speak now have done so until `mono`."""
    view = state.view
    streams = dict(view.streams)
    for stream in view.fresh(view.streams.values(), now):
        told = streams[stream.rank] = copy(stream)
        told.compute_s, told.heard_mono = stream.computed_s(mono), mono
    return replace(state, view=replace(view, streams=streams))


def _standing_until(state: WatchState, mono: float) -> WatchState:
    """Return a state like this one in which each rank stood until `mono` where it was read last."""
    view = state.view
    stacks = {
        rank: (readings[-1], Stack(mono=mono, probe=readings[-1].probe))
        for rank, readings in view.processes.stacks.items()
    }
    processes = replace(view.processes, stacks=stacks)
    return replace(state, view=replace(view, processes=processes))


def _is_meant(finding: Finding, *, unheard: bool) -> bool:
    """Whether a round is taken for a deadline: where nobody is heard, only before it is over."""
    if not ends_run(finding) or finding.detector not in _DEADLINES:
        return False
    if finding.value is None or finding.threshold is None:
        return False
    value = finding.value - FORESIGHT_S
    if unheard:
        return value <= finding.threshold
    return finding.rank is None and value >= LEAST_SHARE * finding.threshold
