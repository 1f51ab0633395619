"""Will a deadline soon accuse nobody, or end a run that nobody hears? Then there is time to ask.

Not every deadline has a stage of suspicion, and what the dumps of a round tell of who has not come
counts from the tick that brings it: a halt does not wait for it. So the fold is asked what it would
find in FORESIGHT_S if every rank that speaks went on to say that it stands where it does. That is a
question: nothing is found, recorded or ended by it.

Where nobody is heard only stacks tell that a run stands, and those of a while ago tell nothing: the
fold is asked what it would find if each rank stood where it was read last, and then they are read
again. Where suspicions before had taken their share of evidence, none were read in this silence:
then they are read twice, the first time long enough before.
"""

from copy import copy
from dataclasses import replace

from gonogo.contract.finding import Finding
from gonogo.contract.outcome import Detector
from gonogo.contract.tick import StackProbe, Tick
from gonogo.supervise.watcher.response import ends_run
from gonogo.watch import WatchState, look
from gonogo.watch.processes import SAME_STACKS_AFTER_S, Stack

FORESIGHT_S = 8.0
"""More than a round takes: ranks have three seconds to answer, stacks five to be read."""
FORESIGHT_TWICE_S = 20.0
"""The same for two rounds, one after the other: the second is none before `RECENT_ROUND_S`."""
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

    Where nobody is heard, one that names a rank, too, and sooner where no stacks were read since.

    Args:
        state: after `tick`; it stays as it is.
        tick: the last one.
    """
    view = state.view
    if tick.n % EVERY_TICKS or not view.active():
        return None
    now = view.clock.at(tick.mono)
    unheard = not view.fresh(view.streams.values(), now)
    if not unheard and state.run.order.world_size < 2:
        return None
    ahead_s = FORESIGHT_TWICE_S if unheard and _unread(state) else FORESIGHT_S
    mono, ts = tick.mono + ahead_s, tick.ts + ahead_s
    later = Tick(n=tick.n + 1, mono=mono, ts=ts, interval_s=tick.interval_s)
    then = _standing_until(state, now + ahead_s) if unheard else _heard_until(state, now, ahead_s)
    if unheard:
        return next((row for row in look(then, later) if _may_decide(row, ahead_s)), None)
    return next((row for row in look(then, later) if _names_nobody(row)), None)


def _heard_until(state: WatchState, now: float, ahead_s: float) -> WatchState:
    """Return a state like this one in which the ranks that speak now do so for `ahead_s` more."""
    view, mono = state.view, now + ahead_s
    streams = dict(view.streams)
    for stream in view.fresh(view.streams.values(), now):
        told = streams[stream.rank] = copy(stream)
        told.compute_s, told.heard_mono = stream.computed_s(mono), mono
    return replace(state, view=replace(view, streams=streams))


def _unread(state: WatchState) -> list[int]:
    """Return the ranks whose stacks were not read since they were heard last."""
    stacks = state.view.processes.stacks
    return [
        stream.rank
        for stream in state.view.active()
        if stream.rank not in stacks or stacks[stream.rank][-1].mono < stream.heard_mono
    ]


def _standing_until(state: WatchState, mono: float) -> WatchState:
    """Return a state like this one in which each rank stood until `mono` where it was read last.

    One that was not read in this silence stood in one place.
    """
    view = state.view
    last = {rank: readings[-1] for rank, readings in view.processes.stacks.items()}
    for rank in _unread(state):
        probe = StackProbe(rank=rank, digest="")
        last[rank] = Stack(mono=mono - SAME_STACKS_AFTER_S, probe=probe)
    stacks = {rank: (row, replace(row, mono=mono)) for rank, row in last.items()}
    processes = replace(view.processes, stacks=stacks)
    return replace(state, view=replace(view, processes=processes))


def _is_deadline(finding: Finding) -> bool:
    return ends_run(finding) and finding.detector in _DEADLINES


def _may_decide(finding: Finding, ahead_s: float) -> bool:
    """Whether stacks may decide on a deadline: only before it is over."""
    if not _is_deadline(finding) or finding.value is None or finding.threshold is None:
        return False
    return finding.value - ahead_s <= finding.threshold


def _names_nobody(finding: Finding) -> bool:
    """Whether a deadline that is near would name no rank."""
    if not _is_deadline(finding) or finding.value is None or finding.threshold is None:
        return False
    return finding.rank is None and finding.value - FORESIGHT_S >= LEAST_SHARE * finding.threshold
