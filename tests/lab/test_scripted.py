"""Runs of scripts that attached our library: reported as the library does, and not halted."""

import random
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import gonogo.trainer
from gonogo.contract.heartbeat import Heartbeat
from lab.noise import STANDARD, Pause, Script, Who
from lab.run import Part, simulate_part
from lab.scripted import Scripted
from tests.trainer.runs import lines_of, write_order
from tests.watch.streams import order_of

STEPS = 6
SCRIPT = Script(
    saves=Pause(every=2, seconds=0.01, who=Who.FIRST_AWAITED),
    evaluates=Pause(every=3, seconds=0.01, who=Who.FIRST),
    names_data=True,
)
QUIET = replace(
    STANDARD,
    pause_rate=0.0,
    stall_rate=0.0,
    disk_rate=0.0,
    load_rate=0.0,
    standstill_rate=0.0,
    clock_step_rate=0.0,
    restart_rate=0.0,
    last_alone_share=0.0,
    fetch_share=0.001,
)


def simulated() -> list[Heartbeat]:
    """Return what rank 0 of two writes in a simulated run."""
    run = Scripted(
        order_of({}, steps=STEPS, train={"engine": {"compile": False}}),
        noise=QUIET,
        dice=random.Random(1),
        step_s=0.01,
        sick=None,
        now=0.0,
        script=SCRIPT,
    )
    run.boot(nobody_looks)
    while run.step < STEPS:
        run.advance(nobody_looks)
    run.finish(nobody_looks)
    return [line for _, line in run.ranks[0].lines]


def nobody_looks(*seen: Any, **fields: Any) -> None:
    """Processes are not asked for here."""


def attached(folder: Path) -> list[Heartbeat]:
    """Return what the library writes for rank 0 of two, of a loop that calls it as the script."""
    write_order(folder, steps=STEPS, world_size=2, heartbeat={"alive_every_s": 3600})
    with gonogo.trainer.attach(folder, agree=lambda no: no, rank=0, world_size=2) as beat:
        for step in range(1, STEPS + 1):
            with beat.section("data"):
                pass
            beat.enter(None)
            beat.step(loss=2.0, tokens=8)
            assert not beat.should_halt()
            if step % SCRIPT.evaluates.every == 0:
                beat.enter("eval")
                beat.eval(2.0)
                beat.enter(None)
            if step % SCRIPT.saves.every == 0:
                beat.enter("checkpoint")
                beat.checkpoint("/elsewhere")
                beat.enter(None)
            beat.enter(None)
    return lines_of(folder)


def shape(lines: Iterable[Heartbeat]) -> list[tuple[Any, ...]]:
    """What lines say of the rank's place, but for those that only time brings about."""
    return [
        (x.msg, x.step, x.section, x.section_seq, x.collective_seq)
        for x in lines
        if x.msg != "alive" and x.section_age_s is None
    ]


def test_a_simulated_script_is_told_as_the_library_tells_it(tmp_path: Path) -> None:
    made_up, real = simulated(), attached(tmp_path / "run")
    assert shape(made_up) == shape(real)
    assert [line.seq for line in made_up] == list(range(1, len(made_up) + 1))
    for line, told in zip(by_kind(made_up), by_kind(real), strict=True):
        assert line.msg == told.msg
        named = {"tokens", "dt_step_s", "dt_fetch_s", "step_sections"}
        assert said(line) & named == said(told) & named


def by_kind(lines: Iterable[Heartbeat]) -> list[Heartbeat]:
    """The lines that report steps."""
    return [line for line in lines if line.msg in ("progress", "step_end")]


def said(line: Heartbeat) -> set[str]:
    return {name for name, value in line if value is not None}


@pytest.mark.parametrize("number", range(2))
def test_scripts_are_not_halted(number: int) -> None:
    noise = replace(STANDARD, attached_share=1.0, restart_rate=1.0, habit_share=0.3)
    part = Part(seed=f"script/{number}", step_s=25.0, ranks=4, hours=0.7, noise=noise)
    assert simulate_part(part).halts == ()
