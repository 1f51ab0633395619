"""Does the advice of a program that prints name the option that reads its lines?"""

from __future__ import annotations

import re

import pytest

from gonogo.cli.printed_advice import advise_end, advise_loss, advise_unread, suggest
from gonogo.contract.order import Order
from gonogo.contract.patterns import PATTERNS, guessed_patterns
from gonogo.contract.watch import Watch
from gonogo.planning.resolve import build_command_order

ERROR = "Traceback (most recent call last):"


def order_of(steps: int | None = 30, *patterns: str, command: tuple[str, ...] = ("x",)) -> Order:
    order = build_command_order(
        list(command), experiment="e", run="r", cwd="/", world_size=1, steps=steps,
        watch=Watch(), waive=(), preflight=[],
    )  # fmt: skip
    chosen = list(patterns) or guessed_patterns(steps)
    return order.model_copy(update={"patterns": chosen, "patterns_guessed": not patterns})


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
        ("at 04:05:{n:02d} all is well", None),
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
        (order_of(), [*(f"step {n} loss 2" for n in range(31)), ERROR], 30, "an error behind it"),
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
    ("pattern", "said"),
    [
        (
            r"iter (?P<step>\d+) loss (?P<loss>.*)",
            "'2.5, acc 0.5'; correct --pattern: (?P<loss>\\S+)",
        ),
        (r"iter (?P<step>\d+) loss (?P<loss>\S+)", None),
        (r"iter (?P<step>\d+)", None),
        (r"loss=(?P<loss>.*)", None),
        (PATTERNS["plain"], None),
    ],
    ids=["no number", "a number", "no loss asked for", "no line", "bundled"],
)
@pytest.mark.parametrize("last", ["0.5", "nan"])
def test_a_pattern_whose_losses_are_no_numbers_is_named(
    pattern: str, said: str | None, last: str
) -> None:
    order = order_of(2, pattern)
    lines = ["begins", "iter 1 loss 2.5, acc 0.5", f"iter 2 loss {last}, acc 0.6"]
    found = advise_loss(order, lines)
    assert len(found) == (said is not None)
    assert said is None or found[0].endswith(said)
