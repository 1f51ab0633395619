"""D8: tokens a second, recomputed, against the floor and the run's own baseline."""

from collections.abc import Sequence
from typing import Any

import pytest

from gonogo.contract.finding import Severity
from gonogo.contract.observation import HostCpu
from gonogo.contract.outcome import Detector
from gonogo.watch.detectors.slow import Sample, _window, starved_s
from gonogo.watch.fold import armed
from gonogo.watch.offline_fold import not_observed
from tests.watch.streams import (
    Said,
    Watched,
    World,
    order_of,
    watch,
)


def run_of(watch_settings: dict[str, Any] | None = None, **fields: Any) -> World:
    order = order_of(watch_settings, steps=5000, world_size=1, **fields)
    return World(order, alive_every_s=5).boot()


def test_checkpoint_and_eval_are_no_step_time() -> None:
    world = run_of().steps(19)
    for _ in range(8):
        world.pause("checkpoint", 4.0).pause("eval", 3.0).steps(1)
    assert watch(world).halts == []


def test_half_speed_warns_then_halts_on_time() -> None:
    world = run_of({}).steps(230, step_s=2.0).steps(500, step_s=4.0)
    found = watch(world, interval_s=1.0)
    (warn,) = found.of(Severity.WARN)
    (halt,) = found.halts
    assert (warn.detector, warn.threshold) == ("slow", 1.33)
    assert (halt.detector, halt.threshold) == ("slow", 1.67)
    slowed = 300.0 < halt.at - (warn.at - 300.0) <= 700.0
    assert slowed


def told(world: World, count: int, *, step_s: float, tokens: int) -> World:
    """Steps whose ends report so many tokens."""
    for _ in range(count):
        world.open_step()
        world.compute(step_s=step_s)
        for rank in world.ranks:
            rank.say("progress", loss=5.0 - 0.001 * rank.step)
            rank.enter(None)
            rank.say("step_end", tokens=tokens)
            rank.in_step = False
    return world


@pytest.mark.parametrize("floor", [None, 1900.0])
def test_steps_of_more_tokens_may_take_as_much_longer(floor: float | None) -> None:
    world = told(run_of({"slow": {"floor_tok_s": floor}}), 300, step_s=1.0, tokens=1024)
    told(world, 400, step_s=2.0, tokens=2048)
    told(world, 300, step_s=4.0, tokens=4096)
    assert watch(world, interval_s=2.0).findings == []
    told(world, 200, step_s=9.0, tokens=4096)
    assert watch(world, interval_s=2.0).named(Severity.HALT) == {"slow"}


def in_blocks(blocks: Sequence[tuple[int, float]]) -> World:
    """A program that is only read, and whose lines come in blocks: so many, after so many seconds.

    Its reader says that it lives, and spreads a block over the time since it last did.
    """
    order = order_of({}, world_size=1, steps=100_000)
    world = World(order.model_copy(update={"patterns": ["x"], "command": ["x"]}))
    (rank,) = world.ranks
    rank.section, rank.section_seq = None, 0
    for number, (lines, seconds) in enumerate(blocks):
        end, alive_s = rank.mono + seconds, (0.5, 4.5, 2.0)[number % 3]
        while rank.mono + 5.0 < end - alive_s:
            rank.mono += 5.0
            rank.say("alive")
        began = rank.mono = end - alive_s
        rank.say("alive")
        for line in range(1, lines + 1):
            rank.mono = began + alive_s * line / lines
            rank.step += 1
            rank.say("progress", loss=5.0 - 0.0001 * rank.step)
            rank.lines[-1] = Said(end, rank.lines[-1].raw)
    return world


def test_lines_that_come_in_blocks_are_timed_by_the_block() -> None:
    block = (60, 600.0)
    seen = watch(in_blocks([block] * 20), interval_s=10.0)
    assert (seen.halts, seen.named(Severity.WARN)) == ([], set())
    slower = watch(in_blocks([block] * 12 + [(60, 1_500.0)] * 6), interval_s=10.0)
    assert slower.named(Severity.HALT) == {"slow"}


def restarted(world: World) -> World:
    """Every rank restarts in place."""
    for rank in world.ranks:
        rank.spend(5.0)
        rank.boot, rank.seq, rank.section, rank.section_seq = "again", 0, "boot", 0
        rank.in_step = False
        rank.say("boot", **world.order.identity.model_dump(mode="json", exclude_none=True))
        rank.enter(None)
    return world


@pytest.mark.parametrize(("step_s", "found"), [(1.0, set()), (5.0, {"slow"})])
def test_a_restart_in_place_keeps_the_baseline(step_s: float, found: set[str]) -> None:
    world = restarted(run_of({}).steps(300, step_s=1.0))
    world.steps(20, step_s=20.0).steps(280, step_s=step_s)
    seen = watch(world, interval_s=2.0)
    assert seen.named(Severity.HALT) == found
    assert all((halt.step or 0) > 300 + 20 + 100 for halt in seen.halts)


def test_every_step_below_the_hard_floor_halts_at_the_fifth() -> None:
    settings = {"slow": {"floor_tok_s": 2048.0}}
    world = run_of(settings).steps(30, step_s=0.9).steps(6, step_s=6.1)
    (halt,) = watch(world).halts
    assert (halt.detector, halt.step, halt.rank) == ("slow", 35, None)
    assert halt.value == pytest.approx(2048 / 6.11, rel=0.01)


def test_tokens_are_the_ordered_ones_not_the_reported() -> None:
    settings = {"slow": {"floor_tok_s": 2048.0}}
    world = run_of(settings)
    for _ in range(40):
        world.open_step()
        world.compute(step_s=2.2)
        for rank in world.ranks:
            rank.say("progress", loss=5.0, toks_per_s=1e6)
            rank.enter(None)
            rank.say("step_end", tokens=10**6)
            rank.in_step = False
    assert watch(world).named(Severity.HALT) == {"slow"}


def test_it_is_armed_by_its_baseline() -> None:
    assert not armed(watch(run_of().steps(10)).state)[Detector.SLOW]
    assert armed(watch(run_of().steps(20)).state)[Detector.SLOW]


WARN, HALT = Severity.WARN, Severity.HALT


def host(busy_s: float, waited: Sequence[float] = (0.6, 0.6), **fields: Any) -> dict[str, Any]:
    """What the watcher saw of the processors over `busy_s` seconds."""
    return {
        "over_s": busy_s,
        "cores": 2,
        "pressure": 0.99,
        "waited": {str(rank): share for rank, share in enumerate(waited)},
        "others_cores": 1.4,
        **fields,
    }


def slowed(*looks: dict[str, Any] | None, own_x: float = 6.0, steps: int = 30) -> Watched:
    """A demo whose steps of 0.6 s take `own_x` times as long from step 25 on.

    There is a look every 2 s; of several, one after the other.
    """
    world = run_of().steps(24, step_s=0.6)
    began = world.mono
    world.steps(steps, step_s=0.6 * own_x)
    for n in range(int((world.mono - began) / 2.0)):
        if (seen := looks[n % len(looks)]) is not None:
            world.probes.append((began + 2.0 * n, {"observations": {"host_cpu": seen}}))
    return watch(world)


def test_a_starved_host_is_no_slow_run() -> None:
    seen = slowed(host(2.0, (0.75, 0.71)))
    assert seen.halts == []
    (warn,) = [row for row in seen.of(Severity.WARN) if row.detector == "slow"]
    assert "the host is busy: 1.4 of 2 cores used by others, 7" in warn.text
    texts = map(str, not_observed(seen.state))
    assert any("Slow steps were not judged: the host is busy" in text for text in texts)


@pytest.mark.parametrize(
    "seen",
    [
        None,
        host(2.0, (0.75, 0.05)),
        host(2.0, (0.3, 0.3)),
        host(2.0, (0.75, 0.75), others_cores=0.2),
        host(2.0, (0.75, 0.75), others_cores=None),
        host(2.0, (), pressure=0.2),
        host(2.0, (), pressure=None),
    ],
    ids=["quiet", "one rank", "little", "by itself", "unknown", "pressure low", "no pressure"],
)
def test_a_slow_run_is_halted_where_others_do_not_explain_it(seen: dict[str, Any] | None) -> None:
    (halt,) = slowed(seen).halts
    assert halt.detector == "slow"


@pytest.mark.parametrize(
    ("told", "seconds"),
    [
        ({"waited": {"0": 0.5, "1": 0.75}, "others_cores": 1.0}, 2.0),
        ({"waited": {"0": 0.5, "1": 0.75}, "others_cores": 0.99}, 0.0),
        ({"waited": {"0": 0.5}}, 0.0),
        ({"pressure": 0.25, "others_cores": 4.0}, 1.0),
        ({"others_cores": 4.0}, 0.0),
    ],
)
def test_the_rank_that_waited_least_says_how_long_all_starved(
    told: dict[str, Any], seconds: float
) -> None:
    assert starved_s(HostCpu(over_s=4.0, cores=4, **told)) == seconds


@pytest.mark.parametrize(("step_s", "few", "count"), [(30.0, 4, 0), (30.25, 4, 6), (60.0, 0, 0)])
def test_a_window_may_be_shorter_where_steps_are_long(step_s: float, few: int, count: int) -> None:
    samples = [Sample(step_s=step_s, steps=1, mono=0.0, waited_s=0.0)] * 6
    assert len(_window(samples, 64, few=few)) == count
    assert len(_window(samples, 4, few=few)) == 4
