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


def mute_in(section: str, order_watch: dict[str, object] | None = None) -> World:
    """Rank 0 tells that it is in a section, and falls silent there."""
    world = World(order_of(order_watch), alive_every_s=0.5).boot().steps(8)
    world.open_step()
    for name in ("forward", "backward", "optimizer"):
        world.ranks[0].enter(name)
        if name == section:
            break
    world.ranks[0].spend(1.2)
    world.ranks[0].stopped = True
    world.ranks[1].enter("forward")
    return world


def test_a_silent_rank_halts_when_its_peers_live() -> None:
    world = mute_in("forward", {"alive_lost": {"suspect_s": 2, "halt_s": 5}})
    world.ranks[1].spend(20.0)
    (finding,) = watch(world).halts
    assert (finding.detector, finding.rank) == ("alive_lost", 0)
    assert "peers" in finding.text


def test_defaults_suspect_at_half_a_minute_and_halt_at_one() -> None:
    world = mute_in("forward", {})
    world.ranks[1].spend(90.0)
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


def silent_between_steps(section: str, seconds: float, *, state: str | None = None) -> World:
    """Rank 0 cannot speak in a section between steps, while rank 1 goes on speaking."""
    world = World(order_of({}, steps=100), alive_every_s=5.0).boot().steps(40)
    first, other = world.ranks
    for rank in world.ranks:
        rank.enter(section)
    if state is not None:
        world.probe(0, state)
    first.mono += seconds
    other.spend(seconds)
    for rank in world.ranks:
        rank.say(section, dt=seconds)
        rank.enter(None)
    return world.steps(3)


@pytest.mark.parametrize(
    ("section", "seconds"), [("data", 290.0), ("checkpoint", 480.0), ("eval", 1200.0)]
)
def test_silence_that_a_section_allows_halts_nobody(section: str, seconds: float) -> None:
    found = watch(silent_between_steps(section, seconds), interval_s=1.0)
    assert found.halts == []
    assert "alive_lost" in found.named(Severity.SUSPECT)


@pytest.mark.parametrize(
    ("section", "seconds"), [("data", 310.0), ("checkpoint", 620.0), ("eval", 1820.0)]
)
def test_silence_beyond_the_deadline_of_its_section_halts(section: str, seconds: float) -> None:
    (halt, *_) = watch(silent_between_steps(section, seconds), interval_s=1.0).halts
    assert halt.detector in ("alive_lost", "section_deadline")
    assert (halt.rank, halt.section) == (0, section)
    assert halt.value == pytest.approx(seconds - 10.0, abs=15.0)


@pytest.mark.parametrize("state", ["stopped", "uninterruptible"])
def test_a_held_rank_has_a_minute_whatever_its_section(state: str) -> None:
    found = watch(silent_between_steps("checkpoint", 300.0, state=state), interval_s=1.0)
    (halt,) = found.halts
    assert (halt.detector, halt.rank, halt.section) == ("alive_lost", 0, "checkpoint")
    assert 60.0 < (halt.value or 0) <= 62.0


def silent_first_step(seconds: float) -> World:
    """Rank 0 compiles its first step and cannot speak; rank 1 is done and waits."""
    world = World(order_of({}, steps=100), alive_every_s=5.0).boot()
    world.open_step()
    for rank in world.ranks:
        rank.enter("forward")
        rank.spend(2.0)
    world.ranks[0].mono += seconds
    world.ranks[1].enter("backward")
    world.ranks[1].spend(seconds)
    for rank in world.ranks:
        rank.enter("log")
    world.close_step()
    return world.steps(3)


def test_a_rank_that_compiles_in_silence_has_the_deadline_of_the_first_step() -> None:
    assert watch(silent_first_step(600.0), interval_s=1.0).halts == []
    (halt, *_) = watch(silent_first_step(1000.0), interval_s=1.0).halts
    assert halt.detector in ("alive_lost", "no_first_heartbeat")
    assert halt.rank == 0


@pytest.mark.parametrize(("waits_s", "halts"), [(8.0, False), (400.0, True)])
def test_a_rank_whose_peer_was_restarted_first_has_the_time_of_a_start(
    waits_s: float, halts: bool
) -> None:
    world = World(order_of({"alive_lost": {"suspect_s": 2, "halt_s": 5}})).boot().steps(20)
    first, second = world.ranks
    first.mono += 7.0  # both are gone for seven seconds
    second.mono += 7.0 + waits_s
    first.boot, first.seq, first.step = "again", 0, 10
    first.say("boot", **world.order.identity.model_dump(exclude_none=True))
    first.spend(waits_s)
    second.boot, second.seq, second.step = "again too", 0, 10
    second.say("boot", **world.order.identity.model_dump(exclude_none=True))
    found = watch(world, stop_at_halt=False)
    assert ("alive_lost" in {finding.detector for finding in found.halts}) is halts
