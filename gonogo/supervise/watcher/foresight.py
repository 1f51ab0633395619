"""Will a deadline soon accuse nobody? Then there is time to ask the ranks.

Not every deadline has a stage of suspicion, and what the dumps of a round tell of who has not come
counts from the tick that brings it: a halt does not wait for it. So the fold is asked what it would
find in FORESIGHT_S if every rank that speaks went on to say that it stands where it does. That is a
question: nothing is found, recorded or ended by it.
"""

from copy import copy
from dataclasses import replace

from gonogo.contract.finding import Finding
from gonogo.contract.outcome import Detector
from gonogo.contract.tick import Tick
from gonogo.supervise.watcher.response import ends_run
from gonogo.watch import WatchState, look

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

    Args:
        state: after `tick`; it stays as it is.
        tick: the last one.
    """
    view = state.view
    if tick.n % EVERY_TICKS or state.run.order.world_size < 2 or not view.active():
        return None
    mono, ts = tick.mono + FORESIGHT_S, tick.ts + FORESIGHT_S
    later = Tick(n=tick.n + 1, mono=mono, ts=ts, interval_s=tick.interval_s)
    then = _heard_until(state, view.clock.at(tick.mono), FORESIGHT_S)
    return next((row for row in look(then, later) if _names_nobody(row)), None)


def _heard_until(state: WatchState, now: float, ahead_s: float) -> WatchState:
    """Return a state like this one in which the ranks that speak now do so for `ahead_s` more."""
    view, mono = state.view, now + ahead_s
    streams = dict(view.streams)
    for stream in view.fresh(view.streams.values(), now):
        told = streams[stream.rank] = copy(stream)
        told.compute_s, told.heard_mono = stream.computed_s(mono), mono
    return replace(state, view=replace(view, streams=streams))


def _names_nobody(finding: Finding) -> bool:
    """Whether a deadline that is near would name no rank."""
    is_deadline = ends_run(finding) and finding.detector in _DEADLINES
    if not is_deadline or finding.value is None or finding.threshold is None:
        return False
    return finding.rank is None and finding.value - FORESIGHT_S >= LEAST_SHARE * finding.threshold
