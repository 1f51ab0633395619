"""Advice at the end of `gonogo run`."""

from __future__ import annotations

from typing import Any

import pytest

from gonogo.cli.running import advise_run
from gonogo.contract.order import Order
from gonogo.contract.watch import Watch
from gonogo.planning.resolve import build_command_order


def order_of(steps: int | None = 30, command: tuple[str, ...] = ("x",), **more: Any) -> Order:
    arguments: dict[str, Any] = {"world_size": 1, "waive": (), **more}
    return build_command_order(
        list(command), experiment="e", run="r", cwd="/", steps=steps, watch=Watch(), preflight=[],
        **arguments,
    )  # fmt: skip


def rank(last: int = 30, done: int | None = None) -> dict[str, Any]:
    return {"last_step": last, "done_step": done}


def advice(
    *open_: str,
    order: Order | None = None,
    heard: tuple[int, ...] = (0,),
    read: bool = True,
    planned: bool = False,
    ranks: tuple[dict[str, Any], ...] = (),
    ended: dict[str, Any] | None = None,
    failed: bool = False,
    stopped: bool = False,
) -> list[str]:
    facts = {"ranks": {str(n): row for n, row in enumerate(ranks)}, "exit": ended, "outcome": None}
    document = {
        "facts": facts,
        "criteria": [{"id": name, "outcome": "inconclusive"} for name in open_],
        "verdict": "NO_GO" if failed else "INCONCLUSIVE",
    }
    how = {"read": read, "planned": planned, "stopped": stopped}
    return [*advise_run(order or order_of(), document, heard=heard, **how)]


@pytest.mark.parametrize(
    ("found", "texts"),
    [
        (advice("completed", heard=()), ["give a --pattern"]),
        (advice("identity", order=order_of(world_size=2)), ["--world-size", "cannot report"]),
        (advice("completed", order=order_of(None)), ["--steps N"]),
        (advice("completed", ranks=(rank(29),)), ["a whole run (step 29 of 30): print a number"]),
        (advice("identity", "coverage"), ["success: --accept conditional"]),
        (
            advice("identity", "coverage", planned=True),
            ["go without: --waive identity --waive coverage"],
        ),
        (
            advice("identity", "coverage", order=order_of(waive=("coverage",))),
            ["cannot report identity: attach"],
        ),
        (advice("identity", read=False), []),
        (advice(), []),
        (advice("completed", ranks=(rank(),), read=False), ["with gonogo.trainer.attach()"]),
        (advice(heard=(0, 1)), ["2 ranks were heard and 1 ordered: say --world-size 2"]),
        (advice(heard=(0, 1), planned=True), ["correct workload.world_size in the plan"]),
        (advice("completed", heard=(), stopped=True), []),
    ],
)
def test_what_is_missing_is_named_with_the_option_that_gives_it(
    found: list[str], texts: list[str]
) -> None:
    assert len(found) == len(texts), found
    for text, part in zip(found, texts, strict=True):
        assert part in text


@pytest.mark.parametrize(
    ("steps", "counts", "code", "planned", "text"),
    [
        (
            400,
            (320,),
            0,
            False,
            "320 steps were counted: say --steps 320 before the -- if that is a whole run",
        ),
        (None, (320,), 0, False, "320 steps were counted: say --steps 320 before the -- if"),
        (400, (320,), 0, True, "320 steps were counted: correct the steps of the plan to 320 if"),
        (400, (1,), 0, False, "1 steps were counted: say --steps 1 before"),
        (320, (320,), 0, False, None),
        (400, (320, 319), 0, False, None),  # its ranks do not agree
        (400, (320,), 1, False, None),
        (400, (), 0, False, None),
    ],
)
def test_another_number_of_steps_is_named(
    steps: int | None, counts: tuple[int, ...], code: int, planned: bool, text: str | None
) -> None:
    order = order_of(steps)
    ranks = tuple(rank(row, row) for row in counts)
    ended = {"agent": {"code": code}, "ranks": {}}
    how = {"read": False, "planned": planned, "failed": True}
    found = advice(order=order, ranks=ranks, ended=ended, heard=(), **how)  # type: ignore[arg-type]
    assert len(found) == (text is not None)
    assert all((text or "") in row for row in found)
