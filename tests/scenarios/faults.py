"""Plain streams of two ranks: healthy ones, and one for each way in which a run fails."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from gonogo.contract.canonical import wire_line
from gonogo.watch.registry import detector_names
from tests.scenarios.scenario import Scenario, stream
from tests.watch.streams import Said, World, order_of

PROGRAMS = {"ours": {}, "attached": {"entry": "train.py"}}
"""Fields of the order that say whose program runs."""
SECTIONS = ("data", "forward", "backward", "optimizer", "log")


def world_of(steps: int = 400, watch: dict[str, Any] | None = None, **fields: Any) -> World:
    """Return booted ranks under all detectors and the default settings."""
    order = order_of(watch or {}, steps=steps, detectors=detector_names(), **fields)
    return World(order, alive_every_s=5.0).boot()


def scenarios() -> Iterator[Scenario]:
    """Yield the streams; those of places for each kind of program."""
    for program, fields in PROGRAMS.items():
        for name, make in PLACES.items():
            yield stream(f"faults/{program}/{name}", _made(make, fields), interval_s=1.0)
    for name, make in NUMBERS.items():
        yield stream(f"faults/{name}", make, interval_s=2.0)


def _made(make: Callable[..., World], fields: dict[str, Any]) -> Callable[[], World]:
    return lambda: make(**fields)


def healthy(**fields: Any) -> World:
    """Forty steps and a normal end."""
    return world_of(40, **fields).steps(40, step_s=1.0).pause("checkpoint", 5.0).finish()


def paused(section: str | None, seconds: float) -> Callable[..., World]:
    """All ranks spend time in a section between steps, then train on."""
    return lambda **fields: (
        world_of(**fields).steps(40, step_s=1.0).pause(section, seconds).steps(5, step_s=1.0)
    )


def hung(
    culprit: int, section: str, seconds: float = 400.0, *, after: int = 40
) -> Callable[..., World]:
    """One rank stays in a section of a step, and its peer waits in backward."""

    def make(**fields: Any) -> World:
        world = world_of(**fields).steps(after, step_s=1.0)
        world.open_step()
        return world.hang(culprit, section, seconds)

    return make


def silent(*ranks: int, state: str | None = None, **told: Any) -> Callable[..., World]:
    """Ranks write nothing any more; their processes are found in a state."""

    def make(**fields: Any) -> World:
        world = world_of(**fields).steps(40, step_s=1.0)
        world.open_step()
        for rank in world.ranks:
            rank.enter("backward")
            rank.spend(2.0)
        for number in ranks:
            world.ranks[number].stopped = True
            if state is not None:
                world.probe(number, state, **told)
        for rank in world.ranks:
            rank.spend(200.0)
        return world

    return make


def starts(boot_s: float, load_s: float) -> Callable[..., World]:
    """The first line or the loader comes late."""

    def make(**fields: Any) -> World:
        order = order_of({}, detectors=detector_names(), **fields)
        return World(order, alive_every_s=5.0).boot(boot_s=boot_s, load_s=load_s).steps(5)

    return make


def never_starts(**fields: Any) -> World:
    """No line at all for an hour, from processes that live."""
    world = World(order_of({}, detectors=detector_names(), **fields), alive_every_s=5.0)
    world.alive()
    for rank in world.ranks:
        rank.mono += 3600.0
    return world


def first_step(step_s: float) -> Callable[..., World]:
    """The first step takes long."""
    return lambda **fields: world_of(**fields).steps(1, step_s=step_s).steps(5, step_s=1.0)


def numbers(after: int, count: int, **told: Any) -> Callable[..., World]:
    """Progress lines hold these fields from some step on."""
    return lambda **fields: (
        world_of(2000, **fields).steps(after, step_s=1.0).steps(count, step_s=1.0, **told)
    )


def losses(loss: Callable[[int], float | str], count: int = 400) -> Callable[..., World]:
    """The loss follows a curve."""

    def make(**fields: Any) -> World:
        world = World(
            order_of({}, steps=2000, detectors=detector_names(), **fields),
            alive_every_s=5.0,
            loss=loss,
        )
        return world.boot().steps(count, step_s=1.0)

    return make


def slower(factor: float, count: int = 700) -> Callable[..., World]:
    """Steps take longer from step 260 on."""
    return lambda **fields: (
        world_of(5000, **fields).steps(260, step_s=1.0).steps(count, step_s=factor)
    )


def one_slower(factor: float) -> Callable[..., World]:
    """Rank 1 computes longer than rank 0 from step 260 on."""

    def make(**fields: Any) -> World:
        world = world_of(5000, **fields).steps(260, step_s=1.0)
        for _ in range(300):
            world.open_step()
            world.compute(step_s=[1.0, factor])
            world.close_step()
        return world

    return make


def loader(seconds: float, count: int) -> Callable[..., World]:
    """Every fetch takes so long."""
    return lambda **fields: (
        world_of(5000, **fields).steps(100, step_s=1.0).steps(count, data_s=seconds)
    )


def ends_early(**fields: Any) -> World:
    """All ranks are done at step 40 of 400."""
    return world_of(400, **fields).steps(40, step_s=1.0).finish()


def dies(code: int | None, signal: int | None = None) -> Callable[..., World]:
    """The process of rank 1 ends within a step."""
    return silent(1, state="dead", code=code, signal=signal)


def lingers(**fields: Any) -> World:
    """All ranks are done after the last step, and rank 1 does not exit."""
    world = world_of(40, **fields).steps(40, step_s=1.0)
    for rank in world.ranks:
        rank.say("done")
    world.probe(0, "dead", code=0)
    world.ranks[0].stopped = True
    world.ranks[1].spend(4000.0)
    world.ranks[0].mono = world.ranks[1].mono
    return world


def other_identity(**told: Any) -> Callable[..., World]:
    """The boot lines name another program than the order."""

    def make(**fields: Any) -> World:
        world = World(order_of({}, detectors=detector_names(), **fields), alive_every_s=5.0)
        return world.boot(**told).steps(5)

    return make


def restarted(**fields: Any) -> World:
    """Every rank restarts in place at step 20, and trains on."""
    world = world_of(**fields).steps(30, step_s=1.0)
    for rank in world.ranks:
        rank.boot, rank.seq, rank.step = f"again{rank.rank}", 0, 20
        rank.say("boot", **world.order.identity.model_dump(mode="json", exclude_none=True))
        rank.enter(None)
    return world.steps(60, step_s=1.0)


def suspended(seconds: float) -> Callable[..., World]:
    """The machine sleeps within a step."""

    def make(**fields: Any) -> World:
        world = world_of(**fields).steps(40, step_s=1.0)
        world.open_step()
        return _closed(world.suspend(seconds)).steps(20, step_s=1.0)

    return make


def _closed(world: World) -> World:
    world.compute(step_s=1.0)
    world.close_step()
    return world


def garbage(**fields: Any) -> World:
    """Every tenth line is torn, and every fifteenth is foreign."""
    world = world_of(**fields).steps(60, step_s=1.0)
    for rank in world.ranks:
        lines: list[Said] = []
        for number, said in enumerate(rank.lines):
            lines.append(said)
            if number % 10 == 0:
                lines.append(Said(said.mono, said.raw[: len(said.raw) // 2]))
            if number % 15 == 0:
                lines.append(Said(said.mono, wire_line({"v": 1, "msg": "hello"}).rstrip(b"\n")))
        rank.lines = lines
    return world


def doubled(**fields: Any) -> World:
    """Every fifth line comes twice, and pairs of lines change places."""
    world = world_of(**fields).steps(60, step_s=1.0)
    for rank in world.ranks:
        lines = [row for n, said in enumerate(rank.lines) for row in [said] * (1 + (n % 5 == 0))]
        for place in range(1, len(lines) - 1, 9):
            first, second = lines[place], lines[place + 1]
            lines[place] = Said(first.mono, second.raw)
            lines[place + 1] = Said(second.mono, first.raw)
        rank.lines = lines
    return world


def two_writers(**fields: Any) -> World:
    """A second process writes lines of the same boot."""
    world = world_of(**fields).steps(40, step_s=1.0)
    rank = world.ranks[1]
    rank.step, rank.seq = 10, rank.seq - 20
    return world.steps(5, step_s=1.0)


def wall_off(seconds: float) -> Callable[..., World]:
    """The wall clock of rank 1 is wrong."""

    def make(**fields: Any) -> World:
        world = world_of(**fields)
        world.ranks[1].wall_off_s = seconds
        return world.steps(60, step_s=1.0)

    return make


PLACES: dict[str, Callable[..., World]] = {
    "healthy": healthy,
    "slow but steady": lambda **fields: world_of(**fields).steps(30, step_s=60.0),
    "ends early": ends_early,
    "restarted in place": restarted,
    "never starts": never_starts,
    "lingers after the last step": lingers,
    "torn and foreign lines": garbage,
    "doubled and swapped lines": doubled,
    "two writers": two_writers,
    "wall clock an hour behind": wall_off(-3600.0),
    "wall clock an hour ahead": wall_off(3600.0),
    "boot of 100 s": starts(100.0, 1.0),
    "boot of 2000 s": starts(2000.0, 1.0),
    "loading for 250 s": starts(3.0, 250.0),
    "loading for 2000 s": starts(3.0, 2000.0),
    "first step of 800 s": first_step(800.0),
    "first step of 2500 s": first_step(2500.0),
    "suspended for 300 s": suspended(300.0),
    "suspended for 2 h": suspended(7200.0),
    **{f"rank {rank} hangs in {name}": hung(rank, name) for rank in (0, 1) for name in SECTIONS},
    **{f"hangs in {name} of step 3": hung(1, name, 1000.0, after=2) for name in SECTIONS[:3]},
    "hangs in forward for 50 s": hung(1, "forward", 50.0),
    "checkpoint of 500 s": paused("checkpoint", 500.0),
    "checkpoint of 700 s": paused("checkpoint", 700.0),
    "evaluation of 1700 s": paused("eval", 1700.0),
    "evaluation of 2000 s": paused("eval", 2000.0),
    "data for 290 s": paused("data", 290.0),
    "data for 320 s": paused("data", 320.0),
    "no section for 50 s": paused(None, 50.0),
    "no section for 400 s": paused(None, 400.0),
    "unknown section for 400 s": paused("sampling", 400.0),
    "rank 1 falls silent": silent(1),
    "both ranks fall silent": silent(0, 1),
    "rank 1 is stopped": silent(1, state="stopped"),
    "both ranks are stopped": silent(0, 1, state="stopped"),
    "rank 1 in D state": silent(1, state="uninterruptible"),
    "rank 1 exits with 1": dies(1),
    "rank 1 exits with 0": dies(0),
    "rank 1 is killed": dies(None, 9),
}
"""Where and how long ranks stay: each kind of program has limits of its own."""
NUMBERS: dict[str, Callable[..., World]] = {
    "loss NaN": numbers(40, 5, loss="NaN"),
    "gradient infinite": numbers(40, 5, grad_norm="Infinity"),
    "skipped steps": numbers(40, 2, grad_norm=None),
    "frozen loss": numbers(60, 60, loss=4.25),
    "zero gradients": numbers(60, 20, grad_norm=0.0),
    "gradient spikes": numbers(200, 8, grad_norm=50.0),
    "loss falls": losses(lambda step: 2.0 + 3.5 * 0.99**step),
    "loss diverges": losses(
        lambda step: 3.0 + 0.001 * (step % 7) + max(0.0, 0.02 * (step - 250)), 500
    ),
    "loss starts at 9": losses(lambda step: 9.0 - 0.01 * step, 100),
    "a spike that recovers": losses(lambda step: 7.0 if 250 <= step < 256 else 5.5 - 0.005 * step),
    "twice as slow": slower(2.0),
    "half slower": slower(1.5),
    "a fifth slower": slower(1.2),
    "one rank half slower": one_slower(1.6),
    "slow loader": loader(0.5, 400),
    "another model": other_identity(params=254_499),
    "another configuration": other_identity(config_digest="d" * 64),
    "another number of ranks": other_identity(world_size=4),
}
