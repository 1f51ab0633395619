"""Runs of scripts that attached our library: reported as the library does, and not halted."""

import random
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

import gonogo.trainer
from gonogo.contract.heartbeat import Heartbeat
from lab import STANDARD, Part, simulate_part
from lab.rates import NOISES
from lab.scripted import Scripted
from lab.scripts import Pause, Script, When, Who
from tests.trainer.runs import lines_of, write_order
from tests.watch.streams import order_of

STEPS = 6
SOON = Pause(every=2, seconds=0.01, who=Who.FIRST_AWAITED)
LATER = Pause(every=3, seconds=0.01, who=Who.FIRST)
SCRIPTS = {
    "plain": Script(saves=SOON, evaluates=LATER),
    "it asks nothing": Script(
        saves=SOON, evaluates=LATER, asks=False, when=When.AFTER_STEP, names_data=True
    ),
    "all is named": Script(
        saves=LATER,
        evaluates=SOON,
        names_data=True,
        names_computing=True,
        logs_every=2,
        straight=True,
        when=When.IN_STEP,
    ),
    "as the adapters": Script(
        saves=replace(SOON, who=Who.ALL),
        evaluates=replace(LATER, who=Who.ALL),
        names_data=True,
        names_computing=True,
        flows=True,
        logs_every=1,
    ),
}
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


def scripted(script: Script, seed: int = 1, **noise: Any) -> Scripted:
    """Return a simulated run of two ranks."""
    return Scripted(
        order_of({}, steps=STEPS, train={"engine": {"compile": False}}),
        noise=replace(QUIET, **noise),
        dice=random.Random(seed),
        step_s=0.01,
        sick=None,
        now=0.0,
        script=script,
    )


def simulated(script: Script) -> list[Heartbeat]:
    """Return what rank 0 of two writes in a simulated run."""
    run = scripted(script)
    run.boot(nobody_looks)
    while run.step < STEPS:
        run.advance(nobody_looks)
    run.finish(nobody_looks)
    return [line for _, line in run.ranks[0].lines]


def nobody_looks(*seen: Any, **fields: Any) -> None:
    """Processes are not asked for here."""


def attached(script: Script, folder: Path) -> list[Heartbeat]:
    """Return what the library writes for rank 0 of two, of a loop that calls it."""
    write_order(folder, steps=STEPS, world_size=2, heartbeat={"alive_every_s": 3600})
    with gonogo.trainer.attach(folder, agree=lambda no: no, rank=0, world_size=2) as beat:
        Loop(beat, script).run()
    return lines_of(folder)


@dataclass(frozen=True)
class Loop:
    """Trains as a script does, without computing anything."""

    beat: gonogo.trainer.Beat
    script: Script

    def run(self) -> None:
        if self.script.flows:
            self.beat.enter("data")
        for step in range(1, STEPS + 1):
            self.compute(step)
            self.breaks(step, When.IN_STEP)
            self.beat.step(loss=2.0, tokens=8)
            self.breaks(step, When.AFTER_STEP)
            if self.script.asks:
                assert not self.beat.should_halt()
            self.breaks(step, When.AFTER_ASKING)

    def compute(self, step: int) -> None:
        beat, script = self.beat, self.script
        with beat.section("data") if script.names_data else nullcontext():
            pass
        for section in ("forward", "backward", "optimizer") if script.names_computing else ():
            beat.enter(section)  # type: ignore[arg-type]
        if script.flows:
            self.log(step)
            with beat.waiting():
                pass
        else:
            beat.enter(None)

    def log(self, step: int) -> None:
        if self.script.logs_every and step % self.script.logs_every == 0:
            self.beat.enter("log")
            if not self.script.straight:
                self.rest(step)

    def breaks(self, step: int, when: When) -> None:
        beat, script = self.beat, self.script
        if when is not script.when:
            return
        if not script.flows:
            self.log(step)
        if step % script.evaluates.every == 0:
            beat.enter("eval")
            beat.eval(2.0)
            self.rest(step)
        if step % script.saves.every == 0:
            beat.enter("checkpoint")
            beat.checkpoint("/elsewhere")
            self.rest(step)
        self.rest(step)

    def rest(self, step: int) -> None:
        flows = self.script.flows
        self.beat.enter(None if not flows else "data" if step < STEPS else "checkpoint")


def shape(lines: Iterable[Heartbeat]) -> list[tuple[Any, ...]]:
    """What lines say of the rank's place, but for those that only time brings about."""
    return [
        (x.msg, x.step, x.section, x.section_seq, x.collective_seq)
        for x in lines
        if x.msg != "alive" and x.section_age_s is None
    ]


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_simulated_script_is_told_as_the_library_tells_it(name: str, tmp_path: Path) -> None:
    script = SCRIPTS[name]
    made_up, real = simulated(script), attached(script, tmp_path / "run")
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


def of_noise(monkeypatch: pytest.MonkeyPatch, **changes: Any) -> Callable[[Part], Any]:
    monkeypatch.setitem(NOISES, "scripts", replace(STANDARD, attached_share=1.0, **changes))
    return simulate_part


@pytest.mark.parametrize("number", range(2))
def test_scripts_are_not_halted(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    simulate = of_noise(monkeypatch, restart_rate=1.0, habit_share=0.3)
    part = Part(seed=f"script/{number}", step_s=25.0, ranks=4, hours=0.7, noise="scripts")
    assert simulate(part).halts == ()
