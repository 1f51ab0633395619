"""A disk that takes no lines for longer than a deadline ends no run; a hang behind it is found."""

from __future__ import annotations

import pytest

from gonogo.contract.finding import Severity
from tests.watch.detectors.host import disk, tell
from tests.watch.streams import World, order_of, watch

WATCH = {"alive_lost": {"suspect_s": 2, "halt_s": 5}}


def mute(*, refused: bool, ranks: tuple[int, ...], seconds: float) -> World:
    """A run that is silent for so long, on a disk that is reported as full."""
    world = World(order_of(WATCH, steps=2000)).boot().steps(11)
    world.open_step()
    for rank in world.ranks:
        rank.enter("forward")
    if refused:
        tell(world, disk={**disk(0.0), "refused": True})
    for rank in world.ranks:
        if rank.rank in ranks:
            rank.mono += seconds
        else:
            rank.spend(seconds)
    return world


@pytest.mark.parametrize("ranks", [(0, 1), (0,)], ids=["all", "one"])
def test_silence_on_a_disk_that_takes_no_lines_is_unknown(ranks: tuple[int, ...]) -> None:
    found = watch(mute(refused=True, ranks=ranks, seconds=2000.0), interval_s=1.0)
    assert found.halts == []
    said = [f.text for f in found.of(Severity.SUSPECT) if f.detector == "alive_lost"]
    assert any("the disk takes no lines" in text for text in said)
    assert watch(mute(refused=False, ranks=ranks, seconds=2000.0), interval_s=1.0).halts


@pytest.mark.parametrize(
    ("section", "found"), [("backward", "stall"), ("data", "section_deadline")]
)
def test_a_hang_of_a_rank_that_is_heard_all_the_same_is_found(section: str, found: str) -> None:
    """A disk without inodes takes no new file, but still takes lines."""
    world = World(order_of({}, steps=2000), alive_every_s=5.0).boot().steps(60)
    tell(world, disk={**disk(0.0), "refused": True})
    world.steps(60).open_step()
    halts = watch(world.hang(1, section, 2000.0), interval_s=1.0).halted()
    assert halts == [(found, 1, section)]
