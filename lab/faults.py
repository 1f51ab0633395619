"""What does a sick run do from its onset on? It hangs in a step, or never exits."""

from typing import TYPE_CHECKING

from gonogo.contract.tick import ProcessState
from lab.ranks import Probe
from lab.sick import Sickness

if TYPE_CHECKING:
    from lab.training import Training

ANNOUNCED_S = 1.5
"""After which a rank has told the section in which it falls silent."""


def hang(run: "Training", sick: Sickness, probe: Probe) -> None:
    """In a step that opens, a rank stays in a section for ever, and its peers wait for it."""
    order = ("data", "forward", "backward", "optimizer", "log")
    last = order.index(sick.section or "backward")
    for rank in run.ranks:
        culprit = rank.rank == sick.rank
        run.open_step(rank, run.step)
        wait_in = max(last, order.index("backward")) if not culprit else last
        wait_in = order.index("log") if not culprit and sick.section == "optimizer" else wait_in
        for name in order[1 : wait_in + 1]:
            rank.section_seq += 1
            rank.enter(name)
            rank.spend(0.1 * run.step_s)
        rank.collective_seq += (wait_in >= 2) + (wait_in >= 4) - culprit * (last in (2, 4))
        if culprit and sick.silent:
            rank.spend(ANNOUNCED_S)
            rank.mute = True
        if culprit and sick.state is not None:
            probe(rank.now + 1.0, rank.rank, ProcessState(sick.state), code=sick.code)
    if sick.together:
        for rank in run.ranks:
            rank.spend(ANNOUNCED_S)
            rank.mute = True
    run.onset = run.known_until


def linger(run: "Training", sick: Sickness, probe: Probe) -> None:
    """All ranks are done at the last ordered step; one never exits."""
    for rank in run.ranks:
        rank.step = run.order.last_step
        rank.say("done")
        if rank.rank != sick.rank:
            probe(rank.now + 1.0, rank.rank, ProcessState.DEAD, code=0)
            rank.mute = True
