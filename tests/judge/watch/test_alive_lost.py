"""D3: silence of one rank, and of all."""

import pytest

from gonogo.contract.finding import Severity
from gonogo.contract.outcome import Detector
from gonogo.judge.watch import armed, start
from tests.judge.watch.streams import EPOCH, T0, World, order_of, watch


def frozen(order_watch: dict[str, object] | None = None, *, ranks: tuple[int, ...] = (0,)) -> World:
    world = World(order_of(order_watch), alive_every_s=0.5).boot().steps(8)
    world.open_step()
    for rank in ranks:
        world.ranks[rank].stopped = True
    return world


@pytest.mark.parametrize("state", ["stopped", "uninterruptible"])
def test_a_held_rank_halts_at_the_limit(state: str) -> None:
    world = frozen()
    world.probe(0, state)
    at = world.mono
    world.hang(0, "data", 20.0)
    found = watch(world)
    assert found.halted() == [("alive_lost", 0, "data")]
    (halt,) = found.halts
    assert 5.0 < halt.at - (EPOCH + at - T0) <= 7.0
    assert halt.since is not None
    assert halt.at - halt.since <= 7.0
    assert "alive_lost" in found.named(Severity.SUSPECT)


def test_a_silent_rank_halts_when_its_peers_live() -> None:
    world = frozen()
    world.hang(0, "data", 20.0)
    (finding,) = watch(world).halts
    assert (finding.detector, finding.rank) == ("alive_lost", 0)
    assert "peers" in finding.text


def test_defaults_suspect_at_half_a_minute_and_halt_at_one() -> None:
    world = frozen({})
    world.hang(0, "data", 90.0)
    found = watch(world, interval_s=1.0)
    (halt,) = found.halts
    (suspect,) = [f for f in found.of(Severity.SUSPECT) if f.detector == "alive_lost"]
    assert 30.0 < (suspect.value or 0) <= 31.5
    assert 60.0 < (halt.value or 0) <= 61.5


def test_all_ranks_silent_at_once_is_unknown() -> None:
    world = frozen(ranks=(0, 1))
    for rank in world.ranks:
        rank.mono += 600.0
    found = watch(world)
    assert found.halts == []
    assert found.named(Severity.SUSPECT) == {"alive_lost", "section_deadline"}


def test_all_ranks_silent_halts_when_a_probe_shows_one_stopped() -> None:
    world = frozen(ranks=(0, 1))
    world.ranks[0].mono += 8.0
    world.probe(1, "stopped")
    world.ranks[0].mono += 2.0
    assert watch(world).halted()[0] == ("alive_lost", 1, "data")


def test_a_rank_that_speaks_again_is_forgiven_and_may_be_suspected_again() -> None:
    world = World(order_of()).boot().steps(8)
    for _ in range(2):
        world.ranks[0].mono += 3.0
        world.ranks[1].spend(3.0)
        world.meet()
        world.steps(4)
    found = watch(world)
    assert found.halts == []
    suspects = [f for f in found.of(Severity.SUSPECT) if f.detector == "alive_lost"]
    assert len(suspects) == len({f.key for f in suspects}) == 2


def test_a_rank_that_is_done_may_be_silent() -> None:
    world = World(order_of(steps=8)).boot().steps(8)
    world.ranks[0].say("done")
    world.ranks[0].stopped = True
    world.ranks[1].spend(8.0)
    assert watch(world).halts == []


def test_one_rank_alone_needs_a_probe() -> None:
    world = World(order_of(world_size=1)).boot().steps(8)
    world.open_step()
    world.ranks[0].stopped = True
    world.ranks[0].mono += 60.0
    assert watch(world).halts == []
    world.probe(0, "stopped")
    world.ranks[0].mono += 2.0
    assert watch(world).halted()[0] == ("alive_lost", 0, "data")


def test_a_rank_that_obeys_a_halt_may_be_silent() -> None:
    world = World(order_of()).boot().steps(8)
    world.ranks[0].say("halt_seen")
    world.ranks[0].stopped = True
    world.ranks[1].spend(8.0)
    assert watch(world).named(Severity.HALT) == set()


def test_a_rank_that_names_no_sections_promises_no_alive_lines() -> None:
    world = World(order_of()).boot().steps(8)
    for rank in world.ranks:
        rank.section, rank.section_seq = None, 0
        rank.boot, rank.seq = f"plain{rank.rank}", 0
        rank.say("boot", **world.order.identity.model_dump(exclude_none=True))
    world.ranks[0].mono += 8.0
    world.ranks[1].stopped = False
    for _ in range(16):
        world.ranks[1].mono += 0.5
        world.ranks[1].say("beat")
    assert "alive_lost" not in watch(world).named(Severity.HALT) | watch(world).named(
        Severity.SUSPECT
    )


def test_it_is_armed_by_a_rank_that_speaks() -> None:
    speaking = watch(World(order_of()).boot()).state
    assert armed(speaking)[Detector.ALIVE_LOST]
    assert not armed(start(order_of()))[Detector.ALIVE_LOST]
    assert not armed(watch(World(order_of(steps=3)).boot().steps(3).finish()).state)[
        Detector.ALIVE_LOST
    ]
