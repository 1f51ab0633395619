"""Advice at the end of `gonogo run`."""

from __future__ import annotations

import re
from typing import Any

import pytest

from gonogo.cli.run_advice import (
    Advice,
    advise_end,
    advise_unread,
    resumed_after,
    suggest,
)
from gonogo.contract.criterion import Criterion
from gonogo.contract.order import Order
from gonogo.contract.patterns import guessed_patterns
from gonogo.contract.watch import Watch
from gonogo.planning.resolve import build_command_order


def order_of(
    steps: int | None = 30, *patterns: str, command: tuple[str, ...] = ("x",), **more: Any
) -> Order:
    arguments: dict[str, Any] = {"world_size": 1, "waive": (), **more}
    order = build_command_order(
        list(command), experiment="e", run="r", cwd="/", steps=steps, watch=Watch(), preflight=[],
        **arguments,
    )  # fmt: skip
    chosen = list(patterns) or guessed_patterns(steps)
    return order.model_copy(update={"patterns": chosen, "patterns_guessed": not patterns})


def rank(
    last: int = 30, done: int | None = None, gaps: int = 0, ended_steps: int | None = None
) -> dict[str, Any]:
    return {"last_step": last, "done_step": done, "gaps": gaps, "ended_steps": ended_steps}


def advice(
    *open_: str,
    order: Order | None = None,
    heard: tuple[int, ...] = (0,),
    read: bool = True,
    planned: bool = False,
    printed: tuple[str, ...] = (),
    ranks: tuple[dict[str, Any], ...] = (),
    ended: dict[str, Any] | None = None,
    rows: tuple[dict[str, Any], ...] = (),
    **how: bool,  # failed, stopped
) -> list[str]:
    boots = {
        str(n): [] if row["ended_steps"] is None else [{"ended_steps": row["ended_steps"]}]
        for n, row in enumerate(ranks)
    }
    facts = {
        "ranks": {str(n): row for n, row in enumerate(ranks)},
        "boots": boots,
        "exit": ended,
        "outcome": None,
    }
    return Advice(
        order=order or order_of(),
        facts=facts,
        criteria=[*({"id": name, "outcome": "inconclusive"} for name in open_), *rows],
        heard=heard,
        planned=planned,
        read=read,
        printed=printed,
    ).all(**how)


CLEAN = {"agent": {"code": 0}, "ranks": {}}


@pytest.mark.parametrize(
    ("found", "texts"),
    [
        (advice("completed", heard=()), ["give one (--pattern"]),
        (advice("completed", heard=(), order=order_of(30, "x")), ["fits --pattern: correct it"]),
        (advice("identity", order=order_of(world_size=2)), ["--world-size", "cannot report"]),
        (advice("completed", order=order_of(None)), ["--steps N"]),
        (advice("completed", ranks=(rank(29),)), ["step 29 was the last that was read"]),
        (advice("completed", ranks=(rank(),)), []),
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
        (
            advice("coverage", ranks=(rank(done=30, ended_steps=22),), read=False),
            ["after step 8, from a checkpoint of its own, but a run must show every step"],
        ),
        (
            advice("coverage", ranks=(rank(done=30, ended_steps=0),), read=False),
            ["remove that checkpoint, or raise --steps"],
        ),
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
        (400, (1,), 0, False, "1 step was counted: say --steps 1 before"),
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


@pytest.mark.parametrize(
    ("outcome", "observed", "planned", "text"),
    [
        ("fail", {"device": {"0": "a", "1": "b"}}, False, "--allow-drift device ("),
        ("fail", {"driver": {}, "torch": {}}, True, "allow_drift: [torch, driver] ("),
        ("fail", {"params": {}}, False, None),
    ],
)
def test_fields_that_differ_between_ranks_can_be_allowed(
    outcome: str, observed: dict[str, Any], planned: bool, text: str | None
) -> None:
    row = {"id": "identity", "outcome": outcome, "observed": observed}
    found = advice(rows=(row,), planned=planned)
    assert len(found) == (text is not None)
    assert all(str(text) in each for each in found)


@pytest.mark.parametrize(
    ("done", "ended", "gaps", "lives", "after"),
    [
        (30, (10, 10), 0, 1, 20),  # a checkpoint of step 20, of the script's last run
        (30, (0, 0), 0, 1, 30),  # nothing was left to do
        (30, (30, 30), 0, 1, None),  # from the first step on
        (30, (10, 10), 1, 1, None),  # lines were lost
        (30, (10, 10), 0, 2, None),  # restarted in this run
        (30, (10, 20), 0, 1, None),  # its ranks do not agree
        (None, (10, 10), 0, 1, None),
    ],
)
def test_the_checkpoint_of_a_script_is_found_by_its_steps(
    done: int | None, ended: tuple[int, int], gaps: int, lives: int, after: int | None
) -> None:
    ranks = {str(n): {"done_step": done, "gaps": gaps} for n in range(2)}
    boots = {str(n): [{"ended_steps": row}] * lives for n, row in enumerate(ended)}
    assert resumed_after(ranks, boots) == after


@pytest.mark.parametrize(
    ("order", "lines", "said"),
    [
        (order_of(), ["hello"], "give one (--pattern"),
        (order_of(30, "it (?P<step>x)"), ["hello"], "fits --pattern: correct it"),
        (order_of(None), ["Train: 1/80 [00:01<00:09, 9it/s]"], "--steps 80 reads it"),
        (order_of(), ["Train: 1/80 [00:01<00:09, 9it/s]"] * 2, "--pattern tqdm does"),
        (
            order_of(),
            [f"[10:0{n}:00] round {n} energy 0.{n}" for n in range(1, 6)],
            r"lines like `[10:05:00] round 5 energy 0.5` were seen;"
            r" --pattern 'round (?P<step>\d+)' reads them",
        ),
    ],
)
def test_what_reads_the_lines_that_were_seen_is_named(
    order: Order, lines: list[str], said: str
) -> None:
    (text,) = advise_unread(order, lines)
    assert said in text


@pytest.mark.parametrize(
    ("shape", "pattern"),
    [
        ("round {n} energy {x}", r"round (?P<step>\d+)"),
        (
            "2031-02-03 04:05:{n:02d} round={n} nll_loss={x}",
            r"round=(?P<step>\d+).*?loss=(?P<loss>\S+)",
        ),
        ("{n} | cost: {x} |", r"^ *(?P<step>\d+).*?cost: (?P<loss>\S+)"),
        ("game {n} of a match, took {n}s", r"game (?P<step>\d+)"),
        ("took {n}s", None),
        ("score 0.{n}", None),
        ("the same", None),
    ],
)
def test_a_number_that_grows_is_suggested_with_a_pattern_that_reads_it(
    shape: str, pattern: str | None
) -> None:
    lines = ["starting 8 workers", *(shape.format(n=n, x=n / 8) for n in range(10, 20)), "bye"]
    found = suggest(lines)
    assert (found is None) == (pattern is None)
    if found is not None and pattern is not None:
        assert pattern == found[1]
        hits = [re.search(found[1], line) for line in lines[1:-1]]
        assert [hit["step"] for hit in hits if hit is not None] == [str(n) for n in range(10, 20)]


@pytest.mark.parametrize(
    ("order", "lines", "last", "said"),
    [
        (order_of(), ["{'loss': 2.5}", "{'loss': 2.4}"], 2, "show no step and were counted"),
        (order_of(), [f"step {n} loss 2" for n in (5, 6, 7, 1, 2)], 9, "went back (epochs"),
        (order_of(), [f"step {n}/20 loss 2" for n in (1, 2)], 20, "count to 20, and 30 steps"),
        (order_of(), ["step 28 loss 2", "step 29 loss 2"], 29, "or say --steps 29"),
        (order_of(command=("/bin/sh", "-c", "x")), [f"step {n} loss 2" for n in range(1, 31)], 30,
         "write exec before its command"),
        (order_of(), [f"step {n} loss 2" for n in range(1, 31)], 30, None),
    ],
)  # fmt: skip
def test_what_keeps_an_end_open_is_named(
    order: Order, lines: list[str], last: int, said: str | None
) -> None:
    found = advise_end(order, lines, last)
    assert len(found) == (said is not None)
    assert said is None or said in found[0]


@pytest.mark.parametrize(
    ("metric", "samples", "named"),
    [("val_loss", 0, True), ("val_loss", 3, False)],
)
def test_a_gate_without_evaluations_says_how_to_report_them(
    metric: str, samples: int, named: bool
) -> None:
    row = {"id": "val", "outcome": "inconclusive", "window": None, "samples": samples}
    gate = [Criterion.model_validate({"id": "val", "metric": metric, "pass_below": 3})]
    order = order_of().model_copy(update={"gate": gate})
    found = advice(order=order, rows=(row,), read=False, planned=True)
    assert ["val waits for an evaluation" in text for text in found] == [True] * named


@pytest.mark.parametrize(
    ("window", "samples", "named"),
    [("1..200", 20, True), ("1..200", 200, False), (None, 0, False)],
)
def test_a_criterion_with_samples_of_some_steps_is_named(
    window: str | None, samples: int, named: bool
) -> None:
    row = {"id": "finite", "outcome": "inconclusive", "window": window, "samples": samples}
    found = advice(rows=(row,), planned=True)
    assert ["--waive finite" in text for text in found] == [True] * named


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        (r"iter (?P<step>\d+) loss (?P<loss>.*)", "'2.5, acc 0.5', which is no number"),
        (r"iter (?P<step>\d+) loss (?P<loss>\S+)", None),
        (r"iter (?P<step>\d+)", None),
    ],
)
def test_a_pattern_whose_losses_are_no_numbers_is_named(pattern: str, text: str | None) -> None:
    found = advice(order=order_of(2, pattern), printed=("begins", "iter 1 loss 2.5, acc 0.5"))
    assert len(found) == (text is not None)
    assert text is None or text in found[0]
