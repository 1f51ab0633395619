"""Steps that changed nothing are told of, and those that did are not."""

from __future__ import annotations

import math
from random import Random
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gonogo.contract.heartbeat import Heartbeat
from gonogo.judge.facts.contradictions import find_contradictions
from gonogo.judge.facts.facts import build_facts
from gonogo.judge.facts.learning import (
    find_doubtful_losses,
    find_doubtful_rates,
    find_nothing_learnt,
    find_untold_sharing,
)
from gonogo.judge.facts.record import RunRecord
from gonogo.judge.facts.steps import build_rank_steps
from gonogo.judge.gate.rules import build_rules
from tests.data.make_runs import healthy_ranks, order_of
from tests.judge.facts.beats import ORDER, beat, of_rank, steps_that, told
from tests.judge.runs import facts_of, judged, record_of, with_gate

LEFT_OUT = "rank 0 says of each of its 12 steps that its update was left out"


@pytest.mark.parametrize(
    ("says", "named"),
    [
        ([{"loss": 5.0, "skipped": True}] * 12, True),
        ([{"loss": 5.0, "grad_norm": float("inf")}] * 12, True),
        ([{"loss": float("nan")}] * 12, True),
        ([{"loss": 5.0, "skipped": True}, {"loss": 5.0, "grad_norm": float("nan")}] * 6, True),
        ([{"loss": 5.0, "skipped": True}] * 11 + [{"loss": 5.0, "grad_norm": 1.0}], False),
        ([{"loss": 5.0, "grad_norm": float("inf")}] * 11 + [{"loss": 5.0}], False),
        ([{"loss": 5.0, "skipped": False}] * 12, False),
        ([{}] * 12, False),
        ([], False),
    ],
)
def test_who_took_steps_says_of_one_that_it_was_applied(
    says: list[dict[str, Any]], named: bool
) -> None:
    found = told({0: steps_that(*says)})
    assert [row.startswith(LEFT_OUT) for row in found] == [True] * named


@pytest.mark.parametrize(
    ("says", "steps", "dtype", "named"),
    [
        ({"loss": 5.0, "skipped": True}, 8, "fp16", False),
        ({"loss": 5.0, "grad_norm": float("inf")}, 1, None, False),
        ({"loss": 5.0, "skipped": True}, 9, "fp16", True),
        ({"loss": 5.0, "skipped": True}, 9, None, True),
        ({"loss": 5.0, "skipped": True}, 1, "fp32", True),
        ({"loss": 5.0, "grad_norm": float("nan")}, 2, "bf16", True),
        ({"loss": float("nan"), "skipped": True}, 1, "fp16", True),
    ],
)
def test_the_first_updates_of_a_scaled_loss_are_left_out_for_a_while(
    says: dict[str, Any], steps: int, dtype: str | None, named: bool
) -> None:
    rules = build_rules(ORDER)
    rules = rules.model_copy(
        update={"identity": rules.identity.model_copy(update={"dtype": dtype})}
    )
    told_of = {0: build_rank_steps(steps_that(*[says] * steps))}
    found = find_contradictions(RunRecord(order=ORDER, ranks=told_of), rules)
    assert any(row.startswith("rank 0 says of each of its") for row in found) is named


@pytest.mark.parametrize("says", [{"skipped": True}, {"grad_norm": float("inf")}])
def test_a_run_that_left_every_update_out_is_inconclusive(says: dict[str, Any]) -> None:
    order = with_gate(order_of(sets={"train.dtype": "fp16"}))
    ranks = healthy_ranks(order)
    assert judged(record_of(order, ranks)).verdict == "GO"
    for row in ranks:
        row.lines = [{**line, **says} if line["msg"] == "progress" else line for line in row.lines]
    assert judged(record_of(order, ranks)).verdict == "INCONCLUSIVE"


def test_who_left_every_update_out_has_not_learnt_for_what_another_rank_tells() -> None:
    ranks = {
        0: steps_that(*[{"loss": 5.0, "grad_norm": float("inf")}] * 12),
        1: [
            row.model_copy(update={"pid": 2, "rank": 1})
            for row in steps_that(*[{"loss": 5.0}] * 12)
        ],
    }
    assert [row.startswith(LEFT_OUT) for row in told(ranks)] == [True]


@pytest.mark.parametrize("count", [1])
def test_a_release_that_let_steps_without_an_update_pass_is_replayed_as_it_judged(
    count: int,
) -> None:
    steps = build_rank_steps(steps_that(*[{"loss": 5.0, "skipped": True}] * 12))
    rules = build_rules(ORDER)
    found = find_contradictions(RunRecord(order=ORDER, ranks={0: steps}), rules)
    assert sum(row.startswith(LEFT_OUT) for row in found) == count


NAN = math.nan
EXACT = 2.3025850929940455


def alike(loss: float, steps: int, **says: Any) -> list[dict[str, Any]]:
    return [{"loss": loss, **says}] * steps


@pytest.mark.parametrize(
    ("says", "named"),
    [
        (alike(EXACT, 20), True),
        (alike(EXACT, 199), True),
        (alike(EXACT, 20, grad_norm=1.0), True),
        (alike(EXACT, 20, grad_norm=0.0), True),
        (alike(EXACT, 19), False),
        (alike(EXACT, 19) + alike(EXACT + 1e-9, 1), False),
        (alike(EXACT, 19, grad_norm=1.0) + alike(EXACT, 1, grad_norm=1.1), False),
        (alike(0.0, 40), False),  # a hinge, or equal rewards
        (alike(2.302585, 40), False),  # rounded
        (alike(2.3125, 40), False),  # half precision
        (alike(0.00048828125, 40), False),
        ([], False),
    ],
)
def test_steps_of_training_do_not_leave_the_loss_as_it_was(
    says: list[dict[str, Any]], named: bool
) -> None:
    found = told({0: steps_that(*says)}, order_of(sets={"phases.smoke.steps": 200}))
    assert [row.startswith("the loss is 2.30258509 at each of") for row in found] == [True] * named


@pytest.mark.parametrize(
    ("loss", "norm", "steps", "named"),
    [
        (2.3125, EXACT / 2, 20, True),
        (2.302585, EXACT / 2, 20, True),
        (2.3125, EXACT / 2, 19, False),
        (2.3125, 1.0, 40, False),
        (2.3125, 1.1484375, 40, False),  # half precision, too
        (2.3125, 0.30000001192092896, 40, False),  # where it is cut off, in single precision
        (2.3125, 0.0, 40, False),
        (0.0, EXACT / 2, 40, False),
    ],
)
def test_where_a_loss_may_be_rounded_the_gradient_norm_tells_that_no_weight_moved(
    loss: float, norm: float, steps: int, named: bool
) -> None:
    """Weights of half precision do not take an update that is too small for it."""
    order = order_of(sets={"phases.smoke.steps": 40})
    says = alike(loss, steps, grad_norm=norm)
    found = told({0: steps_that(*says)}, order)
    text = f"the loss is {loss:.9g} at each of {steps} steps: they changed nothing"
    assert [row.startswith(text) for row in found] == [True] * named
    moved = says[:-1] + alike(loss, 1, grad_norm=norm + 1e-7)
    assert told({0: steps_that(*moved)}, order) == []
    seldom = alike(loss, 21) + says[:19]
    assert told({0: steps_that(*seldom)}, order) == []


@pytest.mark.parametrize(
    ("others", "norms", "named"),
    [
        (tuple(n / 7 for n in range(40)), None, True),
        (tuple(n / 7 for n in range(40)), (0.0,) * 40, True),
        (tuple(n / 7 for n in range(40)), tuple(float(n) for n in range(40)), False),
        ((EXACT / 2,) * 39 + (EXACT,), None, False),  # it is told anew now and then
        (tuple(n / 7 for n in range(19)) + (19 / 7,) * 21, None, True),
        (tuple(n / 7 for n in range(18)) + (18 / 7,) * 22, None, False),
    ],
)
def test_a_rank_whose_loss_stays_has_not_trained_with_one_whose_loss_moves(
    others: tuple[float, ...], norms: tuple[float, ...] | None, named: bool
) -> None:
    stays = [{"grad_norm": norm} for norm in norms] if norms else [{}] * 40
    lines = {
        0: of_rank(0, steps_that(*({"loss": loss} for loss in others))),
        1: of_rank(1, steps_that(*({**row, "loss": EXACT} for row in stays))),
    }
    text = (
        "rank 1: the loss is 2.30258509 at each of 40 steps: those of another rank moved, and it"
        " did not train with it"
    )
    assert told(lines, order_of(sets={"phases.smoke.steps": 40})) == [text] * named


@pytest.mark.parametrize("value", [0.0, -1.0, 2.3125, 2.302585])
def test_a_rank_that_tells_no_loss_of_its_own_may_say_what_stands_for_none(value: float) -> None:
    moving = [{"loss": n / 7} for n in range(40)]
    lines = {
        rank: of_rank(rank, steps_that(*row)) for rank, row in enumerate((moving, alike(value, 40)))
    }
    assert told(lines, order_of(sets={"phases.smoke.steps": 40})) == []


def test_one_loss_of_all_ranks_is_told_once() -> None:
    lines = {rank: of_rank(rank, steps_that(*alike(EXACT, 40))) for rank in range(2)}
    assert told(lines, order_of(sets={"phases.smoke.steps": 40})) == [
        "the loss is 2.30258509 at each of 40 steps: they changed nothing, or told again what one"
        " of them had"
    ]


@pytest.mark.parametrize(
    ("second", "norms", "named"),
    [
        (alike(EXACT / 2, 40), (), True),
        (alike(EXACT / 2, 40), (1.0, 1.1), True),
        (alike(0.0, 40), (), False),
        (alike(2.3125, 40), (), False),  # half precision: it may move
        (alike(EXACT / 2, 39) + alike(EXACT, 1), (), False),
        (alike(EXACT / 2, 39, grad_norm=1.0) + alike(EXACT / 2, 1, grad_norm=1.1), (), False),
    ],
)
def test_ranks_that_each_tell_one_loss_of_their_own_have_not_moved_it(
    second: list[dict[str, Any]], norms: tuple[float, ...], named: bool
) -> None:
    says = [alike(EXACT, 40), second]
    for rank, norm in enumerate(norms):
        says[rank] = [{**row, "grad_norm": norm} for row in says[rank]]
    lines = {
        rank: [row.model_copy(update={"pid": rank, "rank": rank}) for row in steps_that(*rows)]
        for rank, rows in enumerate(says)
    }
    text = (
        "of 2 ranks the loss is each its own, 1.15129255, 2.30258509 at each of 40 steps: they"
        " changed nothing, or told again what one of them had"
    )
    assert told(lines, order_of(sets={"phases.smoke.steps": 40})) == [text] * named


@pytest.mark.parametrize(("limit", "count"), [(2, 1), (20, 1), (41, 0)])
def test_as_many_steps_have_one_loss_as_the_plan_lets_pass(limit: int, count: int) -> None:
    order = order_of(sets={"phases.smoke.steps": 40, "watch.frozen.loss_steps": limit})
    assert len(told({0: steps_that(*alike(EXACT, 40))}, order)) == count


@pytest.mark.parametrize("count", [1])
def test_a_release_that_let_one_loss_pass_is_replayed_as_it_judged(count: int) -> None:
    order = order_of(sets={"phases.smoke.steps": 40})
    steps = build_rank_steps(steps_that(*alike(EXACT, 40)))
    rules = build_rules(order)
    assert len(find_contradictions(RunRecord(order=order, ranks={0: steps}), rules)) == count


@pytest.mark.parametrize("norm", [None, 1.0])
def test_a_run_whose_loss_never_moves_is_inconclusive(norm: float | None) -> None:
    order = with_gate(order_of(sets={"phases.smoke.steps": 24}))
    ranks = healthy_ranks(order)
    assert judged(record_of(order, ranks)).verdict == "GO"
    says = {"loss": EXACT, "grad_norm": norm}
    for row in ranks:
        row.lines = [{**line, **says} if line["msg"] == "progress" else line for line in row.lines]
    assert judged(record_of(order, ranks)).verdict == "INCONCLUSIVE"


LONGER = tuple(2.0 + n / 7 for n in range(40))
MOVES = LONGER[:20]
LARGEST = "they changed nothing (of several rates tell the largest)"
STILL = f"the learning rate is 0 or not finite at each of 20 steps: {LARGEST}"
MOST = "the learning rate is 0, next to it or not finite at {} of 20 steps: " + LARGEST


@pytest.mark.parametrize(
    ("rates", "others", "said"),
    [
        ([0.0] * 20, [0.0] * 20, STILL),
        ([0.0] * 20, [None] * 20, STILL),
        ([0.0] * 10 + [NAN, math.inf] * 5, [NAN] * 20, STILL),
        ([0.0] * 19 + [None], [None] * 20, None),  # too few
        ([0.0] * 19 + [1e-9], [0.0] * 20, MOST.format(19)),  # a schedule that ends at once
        ([0.0] * 20, [NAN] * 9 + [0.0] * 2 + [1e-9] * 9, MOST.format(11)),
        ([0.0] * 10 + [1e-9] * 10, [0.0] * 20, None),  # it rises from 0, or ends there
        ([0.1**n for n in range(20)], [None] * 20, MOST.format(13)),  # of each batch, not epoch
        ([0.1 ** (n / 2) for n in range(20)], [None] * 20, None),
        ([1e-3] + [1.1e-9] * 19, [None] * 20, None),
        ([1e-3] + [1e-9] * 19, [None] * 20, MOST.format(19)),
        ([None] * 20, [None] * 20, None),
    ],
)
def test_steps_are_taken_at_a_rate(
    rates: list[float | None], others: list[float | None], said: str | None
) -> None:
    lines = {
        rank: of_rank(
            rank,
            steps_that(*({"loss": m, "lr": lr} for m, lr in zip(MOVES, row, strict=True))),
            torch="2.13",
        )
        for rank, row in enumerate((rates, others))
    }
    order = order_of(sets={"phases.smoke.steps": 20})
    assert told(lines, order) == [said] * (said is not None)


def test_a_rate_that_was_printed_may_be_rounded_to_0() -> None:
    lines = steps_that(*({"loss": loss, "lr": 0.0} for loss in MOVES))
    order = order_of(sets={"phases.smoke.steps": 20})
    assert told({0: lines}, order) == []
    assert told({0: of_rank(0, lines, torch="2.13")}, order) == [STILL]


@pytest.mark.parametrize(
    ("rates", "steps"),
    [
        ([1e-3] * 15 + [-1e-4] * 5, 5),
        ([-1e-3] * 20, 20),
        ([1e-3, NAN, -1e-4, -math.inf] * 5, 10),
        ([1e-3] * 19 + [-1e-19], 0),  # a sum that ends at 0
        ([1e-3 * (1 - n / 19) for n in range(1, 21)], 0),  # each that of the step after it
        ([1e-3 * (1 - n / 18) for n in range(1, 21)], 2),
        ([1e-3] * 18 + [-1e-4, 1e-3], 1),
        ([-1e-4] + [None] * 19, 1),
        ([1e-3] * 20, 0),
        ([None] * 20, 0),
    ],
)
def test_a_rate_does_not_go_on_below_0(rates: list[float | None], steps: int) -> None:
    lines = steps_that(*({"loss": m, "lr": lr} for m, lr in zip(MOVES, rates, strict=True)))
    order = order_of(sets={"phases.smoke.steps": 20})
    text = f"the learning rate is negative at {steps} steps: they raised what they were to lower"
    assert told({0: of_rank(0, lines, torch="2.13")}, order) == [text] * bool(steps)
    assert told({0: lines}, order) == [], "what is printed may be its logarithm"


@pytest.mark.parametrize(
    ("first_step", "step", "said"), [(20, 20, 0), (11, 20, 0), (19, 19, 1), (1, 20, 1)]
)
def test_a_resumed_attempt_may_tell_the_rate_of_the_next_step_alone(
    first_step: int, step: int, said: int
) -> None:
    """A healthy run whose schedule ended with it, preempted before its end, was INCONCLUSIVE.

    It is the only rate of one that has one step to make, or that tells each tenth.
    """
    rules = build_rules(order_of(sets={"phases.smoke.steps": 20}))
    line = of_rank(0, steps_that({"step": step, "loss": 1.5, "lr": -1e-4}), torch="2.13")
    ranks = {0: build_rank_steps(line)}
    asked = rules.model_copy(update={"first_step": first_step})
    assert len(list(find_nothing_learnt(ranks, asked))) == said


MOST_LEFT_OUT = "rank 0 says of {} of its {} steps that its update was left out"


@pytest.mark.parametrize(
    ("left_out", "steps", "named"), [(11, 20, True), (10, 20, False), (18, 19, False)]
)
@pytest.mark.parametrize("says", [{"skipped": True}, {"grad_norm": float("inf")}])
def test_who_left_most_updates_out_took_few_steps(
    says: dict[str, Any], left_out: int, steps: int, named: bool
) -> None:
    """D10 counts them in fp16; who skips whatever is too large may do so for the whole run."""
    rows = [{"loss": loss} for loss in MOVES[:steps]]
    rows[1 : left_out + 1] = [{**row, **says} for row in rows[1 : left_out + 1]]
    found = told({0: steps_that(*rows)})
    assert [row.startswith(MOST_LEFT_OUT.format(left_out, steps)) for row in found] == [
        True
    ] * named


NO_GRADIENT = (
    "the gradient norm is 0 at each of 20 steps: they changed nothing (one that was not computed is"
    " left out)"
)


@pytest.mark.parametrize(
    ("norms", "others", "named"),
    [
        ([0.0] * 20, [0.0] * 20, True),
        ([0.0] * 20, [None] * 20, True),
        ([0.0] * 19 + [None], [None] * 20, False),
        ([0.0] * 19 + [1e-9], [0.0] * 20, False),
        ([0.0] * 20, [0.0] * 19 + [1e-9], False),  # it holds another part of the model
        ([None] * 20, [None] * 20, False),
    ],
)
@pytest.mark.parametrize("loss", [0.0, None])
def test_steps_are_taken_along_a_gradient(
    norms: list[float | None], others: list[float | None], named: bool, loss: float | None
) -> None:
    """Rewards that are equal, or labels that are all left out, have none, and a loss of 0."""
    lines = {
        rank: of_rank(
            rank,
            steps_that(
                *(
                    {"loss": m if loss is None else loss, "grad_norm": norm}
                    for m, norm in zip(MOVES, row, strict=True)
                )
            ),
            torch="2.13",
        )
        for rank, row in enumerate((norms, others))
    }
    order = order_of(sets={"phases.smoke.steps": 20})
    assert told(lines, order) == [NO_GRADIENT] * named


def test_norms_of_0_on_every_rank_are_equal() -> None:
    rows = [{"loss": loss, "grad_norm": 0.0} for loss in MOVES]
    lines = {
        rank: of_rank(rank, steps_that(*rows), backend="DDP", torch="2.13") for rank in range(2)
    }
    (found,) = told(lines, order_of(sets={"phases.smoke.steps": 20}))
    assert found.startswith(NO_GRADIENT)


def test_a_gradient_norm_that_was_printed_may_be_rounded_to_0() -> None:
    lines = steps_that(*({"loss": loss, "grad_norm": 0.0} for loss in MOVES))
    order = order_of(sets={"phases.smoke.steps": 20})
    assert told({0: lines}, order) == []
    assert told({0: of_rank(0, lines, torch="2.13")}, order) == [NO_GRADIENT]


NOT_AVERAGED = "the gradient norm of ranks 0 and 1 differs at {} of 20 steps ({})"
TWO_COURSES = "the learning rate of ranks 0 and 1 differs at {} of 20 steps ({})"
NORMS = [1.0 + n / 9 for n in range(20)]


@pytest.mark.parametrize(
    ("says", "others", "backend", "said"),
    [
        ("grad_norm", [norm * 1.01 for norm in NORMS], "DDP", NOT_AVERAGED.format("each", "DDP")),
        ("grad_norm", [norm * 1.01 for norm in NORMS], "FSDP", None),  # each may tell its shard's
        ("grad_norm", [norm * 1.01 for norm in NORMS], None, None),
        ("grad_norm", [norm * 1.0005 for norm in NORMS], "DDP", None),
        ("grad_norm", [norm * 1.002 for norm in NORMS], "DDP", NOT_AVERAGED.format("each", "DDP")),
        ("grad_norm", [9.0] * 11 + NORMS[11:], "DDP", NOT_AVERAGED.format(11, "DDP")),
        ("grad_norm", [9.0] * 10 + NORMS[10:], "DDP", None),
        ("grad_norm", [9.0] * 19 + [None], "DDP", None),
        ("grad_norm", [math.inf] * 5 + [9.0] * 15, "DDP", None),
        ("grad_norm", [None] * 20, "DDP", None),
        ("lr", [1e-9] * 20, "DDP", TWO_COURSES.format("each", "DDP")),
        ("lr", [1e-9] * 20, "FSDP", TWO_COURSES.format("each", "FSDP")),
        ("lr", [1e-9] * 20, None, None),
        ("lr", [1.0] * 9 + NORMS[9:], "DDP", None),
    ],
)
def test_who_averages_gradients_takes_one_step_with_its_peers(
    says: str, others: list[float | None], backend: str | None, said: str | None
) -> None:
    lines = {
        rank: of_rank(
            rank,
            steps_that(*({"loss": m, says: x} for m, x in zip(MOVES, row, strict=True))),
            backend=backend,
            torch="2.13",
        )
        for rank, row in enumerate((NORMS, others))
    }
    found = told(lines, order_of(sets={"phases.smoke.steps": 20}))
    assert [text.startswith(said or "") for text in found] == [True] * (said is not None)


@pytest.mark.parametrize(
    ("says", "others", "what"),
    [
        ({"skipped": True}, {}, "tells no `skipped`"),
        ({"lr": 0.0}, {"lr": 0.0}, "of several rates tell the largest"),
        ({"grad_norm": 0.0}, {"grad_norm": 0.0}, "one that was not computed is left out"),
        ({"grad_norm": 1.0}, {"grad_norm": 2.0}, "of all parts of the model, or none"),
        ({"lr": 1.0}, {"lr": 2.0}, "tell the largest of all"),
    ],
)
def test_who_trains_in_another_way_reads_what_to_tell(
    says: dict[str, Any], others: dict[str, Any], what: str
) -> None:
    lines = {
        rank: of_rank(
            rank, steps_that(*({"loss": m, **row} for m in MOVES)), backend="DDP", torch="2.13"
        )
        for rank, row in enumerate((says, others))
    }
    (found,) = told(lines, order_of(sets={"phases.smoke.steps": 20}))
    assert what in found


@pytest.mark.parametrize(
    ("others", "backends", "rank"),
    [
        ([norm * 1.01 for norm in NORMS], (None, None), 0),
        ([norm * 1.01 for norm in NORMS], ("DDP", None), 1),
        ([norm * 1.01 for norm in NORMS], (None, "DDP"), 0),
        ([norm * 1.01 for norm in NORMS], ("DDP", "DDP"), None),
        ([norm * 1.01 for norm in NORMS], (None, "FSDP"), None),
        ([norm * 1.0005 for norm in NORMS], (None, None), None),
        ([9.0] * 10 + NORMS[10:], (None, None), None),
        ([9.0] * 19 + [None], (None, None), None),
    ],
)
def test_ranks_that_do_not_say_how_they_train_together_are_told_of(
    others: list[float | None], backends: tuple[str | None, str | None], rank: int | None
) -> None:
    ranks = {
        number: build_rank_steps(
            of_rank(
                number,
                steps_that(*({"loss": m, "grad_norm": x} for m, x in zip(MOVES, row, strict=True))),
                backend=backends[number],
                torch="2.13",
            )
        )
        for number, row in enumerate((NORMS, others))
    }
    found = list(find_untold_sharing(ranks, build_rules(ORDER)))
    assert [text.startswith(f"backend: rank {rank} does not") for text in found] == [True] * (
        rank is not None
    )


@pytest.mark.parametrize("listed", [True])
def test_a_release_that_did_not_ask_how_ranks_train_together_is_replayed_as_it_judged(
    listed: bool,
) -> None:
    order = order_of(sets={"phases.smoke.steps": 20})
    ranks = healthy_ranks(order)
    for row in (line for rank in ranks for line in rank.lines):
        row.pop("backend", None)
        row.update({"grad_norm": row["rank"] + row["grad_norm"]} if "grad_norm" in row else {})
    rules = build_rules(order)
    texts = build_facts(record_of(order, ranks), rules).not_observed
    assert any(text.startswith("backend: rank 0 ") for text in texts) is listed


def test_a_run_whose_ranks_each_trained_a_model_of_its_own_is_inconclusive() -> None:
    order = with_gate(order_of(sets={"phases.smoke.steps": 20}))
    ranks = healthy_ranks(order)
    assert judged(record_of(order, ranks)).verdict == "GO"
    for row in ranks[1].lines:
        row.update({"grad_norm": row["grad_norm"] * 1.1} if "grad_norm" in row else {})
    assert judged(record_of(order, ranks)).verdict == "INCONCLUSIVE"


def evaluated(losses: dict[int, float]) -> list[Heartbeat]:
    """One process's steps, of which some are evaluated."""
    lines = steps_that(*({"loss": loss} for loss in LONGER))
    last = len(lines)
    rows = enumerate(losses.items(), last + 1)
    return [*lines, *(beat(n, n, "eval", step=at, val_loss=loss) for n, (at, loss) in rows)]


TAKEN = "the validation loss of each of {} evaluations is the loss of the step before it"


@pytest.mark.parametrize(
    ("told_of", "count"),
    [
        ({5: LONGER[4], 10: LONGER[9]}, 2),
        ({n: LONGER[n - 1] for n in range(1, 41)}, 40),
        ({5: LONGER[4]}, 0),
        ({5: LONGER[4], 10: LONGER[9], 15: LONGER[13]}, 0),  # one that was found
        ({1: 2.0, 8: 3.0}, 0),  # rounded
        ({5: LONGER[5], 10: LONGER[10]}, 0),
    ],
)
def test_an_evaluation_finds_another_loss_than_the_step_before_it(
    told_of: dict[int, float], count: int
) -> None:
    lines = of_rank(0, evaluated(told_of), torch="2.13")
    order = order_of(sets={"phases.smoke.steps": 40})
    found = [text for text in told({0: lines}, order) if "evaluations is the loss" in text]
    assert [text.startswith(TAKEN.format(count)) for text in found] == [True] * bool(count)
    assert not any(
        "evaluations is the loss" in text for text in told({0: evaluated(told_of)}, order)
    )


@pytest.mark.parametrize(
    ("losses", "named"),
    [
        ({10: EXACT, 17: EXACT, 24: EXACT, 30: EXACT}, True),
        ({0: EXACT, 5: EXACT, 10: EXACT, 20: EXACT}, True),
        ({10: EXACT, 20: EXACT, 30: EXACT}, False),
        ({10: EXACT, 11: EXACT, 12: EXACT, 29: EXACT}, False),
        ({10: EXACT, 17: EXACT, 24: EXACT, 30: EXACT + 1e-9}, False),
        (dict.fromkeys((10, 20, 30, 40), 0.0), False),  # of nothing
        (dict.fromkeys((10, 20, 30, 40), 2.302585), False),  # rounded
        (dict.fromkeys((10, 20, 30, 40), 2.3125), False),  # half precision
        (dict.fromkeys((10, 20, 30, 40), float("nan")), False),  # D10 warns of it
        ({}, False),
    ],
)
def test_steps_of_training_move_what_evaluations_find(
    losses: dict[int, float], named: bool
) -> None:
    found = [
        text
        for text in told({0: evaluated(losses)}, order_of(sets={"phases.smoke.steps": 40}))
        if "nothing was evaluated" not in text
    ]
    text = (
        "the validation loss is 2.30258509 at each of 4 evaluations: the steps between changed"
        " nothing, or it is that of one of them"
    )
    assert found == [text] * named


@pytest.mark.parametrize(
    ("loss", "named"),
    [
        (1 / 3, False),
        (31 / 360, False),
        (100 * 4 / 30, False),  # percent
        (0.13333334028720856, False),  # 4 of 30 in single precision
        (0.13333332538604736, False),  # 26 of 30 were right, subtracted from 1 there
        (-2 / 3, False),
        (1 / 10_007, True),
        (700 / 3, True),  # no share
        (3.123456789e-8, True),
        (0.6931471805599453, True),
        (0.6931471824645996, True),
    ],
)
def test_the_share_of_a_few_examples_that_are_wrong_stays_where_weights_move(
    loss: float, named: bool
) -> None:
    """A classifier finds no more of a small set for a while, or begins with its largest class."""
    lines = evaluated(dict.fromkeys((10, 20, 30, 40), loss))
    found = told({0: lines}, order_of(sets={"phases.smoke.steps": 40}))
    assert [row.startswith("the validation loss is ") for row in found] == [True] * named


def test_an_evaluation_that_moves_on_one_rank_moves() -> None:
    order = order_of(sets={"phases.smoke.steps": 40})
    still = dict.fromkeys((10, 20, 30, 40), EXACT)
    other = of_rank(1, evaluated({**still, 40: EXACT / 2}))
    assert told({0: evaluated(still), 1: other}, order) == []
    again = beat(999, 999.0, "eval", step=40, val_loss=EXACT / 2)
    assert told({0: [*evaluated(still), again]}, order) == [], "one step, two evaluations"
    assert len(told({0: evaluated(still), 1: of_rank(1, evaluated({}))}, order)) == 1
    own = dict.fromkeys(still, EXACT / 2)
    assert len(told({0: evaluated(still), 1: of_rank(1, evaluated(own))}, order)) == 1


@pytest.mark.parametrize("count", [2])
def test_a_release_that_let_steps_without_a_rate_pass_is_replayed_as_it_judged(count: int) -> None:
    order = order_of(sets={"phases.smoke.steps": 40})
    lines = evaluated(dict.fromkeys((10, 20, 30, 40), EXACT))
    lines = [row.model_copy(update={"lr": 0.0} if row.msg == "progress" else {}) for row in lines]
    steps = build_rank_steps(of_rank(0, lines, torch="2.13"))
    rules = build_rules(order)
    assert len(find_contradictions(RunRecord(order=order, ranks={0: steps}), rules)) == count


def test_a_run_without_a_learning_rate_is_inconclusive() -> None:
    order = with_gate(order_of(sets={"phases.smoke.steps": 24}))
    ranks = healthy_ranks(order)
    for row in ranks:
        row.lines = [
            {**line, "lr": 0.0} if line["msg"] == "progress" else line for line in row.lines
        ]
    assert judged(record_of(order, ranks)).verdict == "INCONCLUSIVE"


def scaled(*scales: float | None) -> list[dict[str, Any]]:
    return [{"loss": loss, "loss_scale": scale} for loss, scale in zip(MOVES, scales, strict=False)]


HALVED = tuple(2.0 ** (16 - n) for n in range(12))


@pytest.mark.parametrize(
    ("scales", "named"),
    [
        (HALVED, True),
        ((*HALVED[:6], *(0.0,) * 6), True),  # it comes to an end there, and nothing else does
        ((*HALVED[:11], HALVED[10]), False),
        ((HALVED[0], *HALVED[:11]), False),
        ((*HALVED[:11], 2 * HALVED[10]), False),
        ((1.0,) * 12, False),
        ((0.25,) * 12, False),
        ((*HALVED[:5], None, *HALVED[6:]), False),
        ((*HALVED[:11], NAN), True),
    ],
)
def test_a_loss_scale_that_falls_leaves_the_update_out(
    scales: tuple[float | None, ...], named: bool
) -> None:
    found = told({0: steps_that(*scaled(*scales))})
    assert [row.startswith(LEFT_OUT) for row in found] == [True] * named


def test_the_first_loss_scales_of_half_precision_fall() -> None:
    rules = build_rules(order_of(sets={"train.dtype": "fp16"}))
    for count, named in ((8, 0), (9, 1)):
        steps = build_rank_steps(steps_that(*scaled(*HALVED[:count])))
        assert len(find_contradictions(RunRecord(order=ORDER, ranks={0: steps}), rules)) == named


def test_the_loss_scale_that_was_told_last_counts_in_any_order() -> None:
    lines = steps_that(*scaled(*HALVED))
    again = lines[4].model_copy(update={"seq": 99, "mono": 99.0, "loss_scale": 2.0**17})
    for told_of in ([*lines, again], [again, *lines]):
        assert told({0: told_of}) == []


CYCLE = tuple(2.0 + n / 7 for n in range(1, 6))


def cycled(steps: int, *norms: float) -> list[dict[str, Any]]:
    losses = [{"loss": CYCLE[n % len(CYCLE)]} for n in range(steps)]
    return [
        {**row, **({"grad_norm": norms[n % len(norms)]} if norms else {})}
        for n, row in enumerate(losses)
    ]


AGAIN = "the losses of {} steps are those of the first 5, again and again: they changed nothing"


@pytest.mark.parametrize(
    ("says", "named"),
    [
        (cycled(24), True),
        (cycled(39), True),
        (cycled(24, *CYCLE), True),
        (cycled(24, 1.0), True),
        (cycled(23), False),
        ([*cycled(23), {"loss": CYCLE[3] + 1e-9}], False),
        ([{"loss": CYCLE[0] + 1e-9}, *cycled(38)], False),
        (cycled(24, 1.0, 1.1), False),
        ([*cycled(39, *CYCLE), {"loss": CYCLE[4], "grad_norm": 1.0}], False),
        ([{"loss": round(row["loss"], 4)} for row in cycled(40)], False),
        ([*cycled(24), *alike(CYCLE[0], 16)], False),
    ],
)  # fmt: skip
def test_losses_that_come_back_one_after_the_other_were_changed_by_nothing(
    says: list[dict[str, Any]], named: bool
) -> None:
    found = told({0: steps_that(*says)}, order_of(sets={"phases.smoke.steps": 40}))
    expected = AGAIN.format(len(says))
    assert [row.startswith(expected) for row in found] == [True] * named


@pytest.mark.parametrize("turns", ["ab", "aaba"])
def test_a_few_losses_in_turn_are_named_as_such(turns: str) -> None:
    says = [{"loss": CYCLE["ab".index(turns[n % len(turns)])]} for n in range(40)]
    (found,) = told({0: steps_that(*says)}, order_of(sets={"phases.smoke.steps": 40}))
    again = f"the losses of 40 steps are those of the first {len(turns)}, again and again:"
    assert found.startswith(again)


def test_losses_that_are_told_now_and_then_come_back_with_their_norms() -> None:
    order = order_of(sets={"phases.smoke.steps": 60})
    says = [{} if n % 2 else {"loss": CYCLE[n // 2 % 5], "grad_norm": 1.0} for n in range(60)]
    assert told({0: steps_that(*says)}, order) == [
        AGAIN.format(30) + ", or told again what one of them had"
    ]
    says[1] = {"grad_norm": 2.0}
    assert len(told({0: steps_that(*says)}, order)) == 1, "another batch has another norm"
    says[11] = {"grad_norm": 3.0}
    assert told({0: steps_that(*says)}, order) == []


def test_a_rank_whose_losses_return_in_turn_has_not_trained_with_one_whose_losses_move() -> None:
    order = order_of(sets={"phases.smoke.steps": 40})
    moving = [{"loss": 2.0 + n / 7} for n in range(40)]
    lines = {rank: of_rank(rank, steps_that(*row)) for rank, row in enumerate((cycled(40), moving))}
    found = told(lines, order)
    assert [row.startswith("rank 0: the losses of 40 steps are those of the") for row in found] == [
        True
    ]
    lines[1] = of_rank(1, steps_that(*alike(EXACT, 40)))
    assert len(told(lines, order)) == 1


@pytest.mark.parametrize(
    ("other", "named"),
    [
        ([{}] * 40, True),
        ([{"grad_norm": 1.0}] * 40, True),
        ([{"grad_norm": 1.0}, {"grad_norm": 1.1}] * 20, False),
        ([*alike(EXACT / 2, 3), *([{}] * 37)], True),
        ([{"loss": EXACT / 2}, {"loss": EXACT / 3}, *([{}] * 38)], False),
    ],
)
def test_a_rank_that_tells_little_excuses_another_where_that_moves(
    other: list[dict[str, Any]], named: bool
) -> None:
    order = order_of(sets={"phases.smoke.steps": 40})
    lines = {0: of_rank(0, steps_that(*alike(EXACT, 40))), 1: of_rank(1, steps_that(*other))}
    assert len(told(lines, order)) == named


@pytest.mark.parametrize(("exact", "named"), [(2, False), (3, True)])
def test_of_losses_that_come_back_most_are_not_rounded(exact: int, named: bool) -> None:
    order = order_of(sets={"phases.smoke.steps": 40})
    losses = [*CYCLE[:exact], *(round(loss, 3) for loss in CYCLE[exact:])] * 8
    assert len(told({0: steps_that(*({"loss": loss} for loss in losses))}, order)) == named
    half = [CYCLE[0], 0.5] * 20
    assert len(told({0: steps_that(*({"loss": loss} for loss in half))}, order)) == 1


@given(st.lists(st.sampled_from(CYCLE[:2]), min_size=20, max_size=28))
@example([CYCLE[0], *CYCLE[:2], CYCLE[0]] * 6)
@example(([CYCLE[0]] * 2 + [CYCLE[1]]) * 8)
def test_losses_come_back_after_the_fewest_that_all_do(losses: list[float]) -> None:
    """`AABAABAA…` comes back after 3, whatever begins of it stand elsewhere in it."""
    order = order_of(sets={"phases.smoke.steps": 40})
    count = len(losses)
    period = next(n for n in range(1, count + 1) if losses[n:] == losses[: count - n])
    expected = [f"the losses of {count} steps are those of the first {period}"]
    if period == 1:
        expected = [f"the loss is {losses[0]:.9g} at each of {count} steps"]
    found = told({0: steps_that(*({"loss": loss} for loss in losses))}, order)
    named = count - period + 1 >= 20
    assert [row[: len(expected[0])] for row in found] == (expected if named else [])


def on_two_sets(losses: dict[int, tuple[float, float]]) -> list[Heartbeat]:
    """One process's steps, of which some are evaluated on two sets."""
    lines = steps_that(*({"loss": loss} for loss in LONGER))
    rows = ((step, loss) for step, pair in losses.items() for loss in pair)
    last = len(lines) + 1
    return [
        *lines, *(beat(n, n, "eval", step=at, val_loss=x) for n, (at, x) in enumerate(rows, last))
    ]  # fmt: skip


PAIR = EXACT, 2 * EXACT


@pytest.mark.parametrize(
    ("pairs", "named"),
    [
        ({10: PAIR, 17: PAIR, 24: PAIR, 30: PAIR}, True),
        ({10: PAIR, 17: PAIR[::-1], 24: PAIR, 30: PAIR}, True),
        ({10: (EXACT, 0.5), 17: (EXACT, 0.5), 24: (EXACT, 0.5), 30: (EXACT, 0.5)}, True),
        ({10: PAIR, 17: PAIR, 24: PAIR, 30: (EXACT, 2 * EXACT + 1e-9)}, False),
        ({10: (0.25, 0.5), 17: (0.25, 0.5), 24: (0.25, 0.5), 30: (0.25, 0.5)}, False),
        ({10: PAIR, 17: PAIR, 24: PAIR, 29: PAIR}, False),
        ({10: PAIR, 30: PAIR, 31: PAIR}, False),
    ],
)
def test_steps_of_training_move_what_evaluations_find_on_each_of_several_sets(
    pairs: dict[int, tuple[float, float]], named: bool
) -> None:
    found = told({0: on_two_sets(pairs)}, order_of(sets={"phases.smoke.steps": 40}))
    assert [row.startswith("the validation loss is ") for row in found] == [True] * named


@pytest.mark.parametrize(
    ("last", "named"),
    [({35: EXACT}, True), ({35: EXACT + 1e-9}, False), ({}, False), ({20: EXACT}, False)],
)
def test_evaluations_on_two_sets_in_turn_find_something_else(
    last: dict[int, float], named: bool
) -> None:
    losses = {5: EXACT, 10: EXACT / 2, 15: EXACT, 25: EXACT / 2} | last
    if 20 in last:
        losses = dict(zip((5, 10, 15, 20, 24), losses.values(), strict=True))
    text = (
        "the validation losses of 5 evaluations are those of the first 2, again and again: the"
        " steps between changed nothing"
    )
    order = order_of(sets={"phases.smoke.steps": 40})
    assert told({0: evaluated(losses)}, order) == [text] * named


@pytest.mark.parametrize(
    ("other", "named"),
    [({10: EXACT}, True), ({10: EXACT, 20: EXACT / 2}, False), ({10: EXACT / 2}, True)],
)
def test_a_rank_that_evaluates_seldom_excuses_another_where_that_moves(
    other: dict[int, float], named: bool
) -> None:
    lines = {
        0: of_rank(0, evaluated(dict.fromkeys((10, 17, 24, 30), EXACT))),
        1: of_rank(1, evaluated(other)),
    }
    assert len(told(lines, order_of(sets={"phases.smoke.steps": 40}))) == named


def ended(lines: list[Heartbeat], *tokens: int | None) -> list[Heartbeat]:
    """The same steps with their ends, of which each says how many tokens it had."""
    ends = [
        beat(50 + n, 50.0 + n, "step_end", step=n, tokens=count)
        for n, count in enumerate(tokens, 1)
    ]
    return [*lines, *ends]


@pytest.mark.parametrize(
    ("tokens", "others", "named"),
    [
        ((0, 0), (0, 0), True),
        ((0,), (None,), True),
        ((0, 0), (0, 1), False),
        ((0, 1), (0, 0), False),
        ((None, None), (None, None), False),
    ],
)
def test_steps_carried_tokens(
    tokens: tuple[int | None, ...], others: tuple[int | None, ...], named: bool
) -> None:
    lines = {
        rank: of_rank(rank, ended(steps_that(*[{"loss": 5.0}] * 2), *row), torch="2.13")
        for rank, row in enumerate((tokens, others))
    }
    text = (
        f"tokens is 0 at each of {len(tokens)} steps: they learnt from none (a step whose data has"
        " no tokens leaves `tokens` out)"
    )
    assert told(lines) == [text] * named
    printed = {
        rank: [rows[0].model_copy(update={"torch": None}), *rows[1:]]
        for rank, rows in lines.items()
    }
    assert told(printed) == [], "an unchanged program may have rounded them"


def in_a_row(*trainings: list[dict[str, Any]]) -> list[Heartbeat]:
    """Trainings one after the other, each a process that begins where the run began."""
    found: list[Heartbeat] = []
    for number, says in enumerate(trainings):
        begun = 1000.0 * number
        lines = [
            row.model_copy(
                update={"boot": f"b{number}", "pid": number + 1, "mono": begun + row.mono}
            )
            for row in steps_that(*says)
        ]
        ends = [
            beat(500 + n, begun + 500 + n, "step_end", step=n, boot=f"b{number}", pid=number + 1)
            for n in range(1, len(says) + 1)
        ]
        found += [*lines, *ends]
    return found


@pytest.mark.parametrize(
    ("said", "text"),
    [
        ({"lr": 0.0}, "training 1 of 2: the learning rate is 0 or not finite"),
        ({"loss": EXACT}, "training 1 of 2: the loss is 2.30258509 at each of 24 steps"),
        ({"skipped": True}, "training 1 of 2: rank 0 says of each of its 24 steps"),
    ],
)
def test_of_trainings_in_a_row_each_has_learnt(said: dict[str, Any], text: str) -> None:
    order = order_of(sets={"phases.smoke.steps": 24})
    learnt = [{"loss": 2.0 + n / 7, "lr": 0.1} for n in range(24)]
    others = [
        row.model_copy(update={"torch": "2.13"}) if row.msg == "boot" else row
        for row in in_a_row([{**row, **said} for row in learnt], learnt)
    ]
    found = told({0: others}, order)
    assert [row.startswith(text) for row in found] == [True]
    begun_anew = [row for row in others if row.boot == "b1" or row.step < 24]
    assert told({0: begun_anew}, order) == [], "who was given up is told of elsewhere"
    assert told({0: in_a_row(learnt, learnt)}, order) == []


def test_ranks_that_learnt_excuse_others_of_their_training_alone() -> None:
    order = order_of(sets={"phases.smoke.steps": 24})

    def said(row: Heartbeat) -> dict[str, Any]:
        return {"torch": "2.13"} if row.msg == "boot" else {}

    still, learnt = ([{"loss": 2.0 + n / 7, "lr": lr} for n in range(24)] for lr in (0.0, 0.1))
    ranks = {
        rank: [
            row.model_copy(update={"rank": rank, "pid": row.pid + 7 * rank, **said(row)})
            for row in in_a_row(*rows)
        ]
        for rank, rows in enumerate(((still, learnt, learnt), (learnt, still, still)))
    }
    assert told(ranks, order) == []
    ranks[1] = [
        row.model_copy(update={"rank": 1, "pid": row.pid + 7, **said(row)})
        for row in in_a_row(still)
    ]
    assert [row[:18] for row in told(ranks, order)] == ["training 1 of 3: t"]


RULES = build_rules(ORDER)
ZEROS = "the validation loss is 0 at each of {} evaluations, and that of no step is below"


@pytest.mark.parametrize(
    ("told_of", "least", "count"),
    [
        ({10: 0.0, 20: 0.0}, 2.0, 2),
        ({10: 0.0, 20: 0.0, 30: -0.0}, 0.05, 3),
        ({10: 0.0}, 2.0, 0),  # one may be a slip of the last batch
        ({10: 0.0, 20: 1e-9}, 2.0, 0),
        ({10: 0.0, 20: 0.0}, 0.049, 0),  # it may be as small as it says
        ({10: 0.0, 20: 0.0}, float("nan"), 0),
        ({}, 2.0, 0),
    ],
)
def test_who_evaluates_a_language_model_finds_some_loss(
    told_of: dict[int, float], least: float, count: int
) -> None:
    lines = steps_that(*({"loss": least + 0.01 * abs(n - 20)} for n in range(1, 41)))
    rows = enumerate(told_of.items(), len(lines) + 1)
    lines += [beat(n, n, "eval", step=at, val_loss=loss) for n, (at, loss) in rows]
    order = order_of(sets={"phases.smoke.steps": 40})
    found = [text for text in told({0: lines}, order) if "validation loss is 0" in text]
    assert [text.startswith(ZEROS.format(count)) for text in found] == [True] * bool(count)
    rules = build_rules(order)
    ranks = {0: build_rank_steps(lines)}
    assert not list(find_doubtful_losses(ranks, rules))
    unknown = {"identity": rules.identity.model_copy(update={"vocab": None})}
    rules = rules.model_copy(update=unknown)
    listed = [text.startswith("val_loss: ") for text in find_doubtful_losses(ranks, rules)]
    assert listed == [True] * bool(count)


@pytest.mark.parametrize(
    ("says", "steps", "listed"),
    [
        ({"loss": 0.0}, 20, True),
        ({"loss": 0.0}, 19, False),
        ({"loss": 0.0, "grad_norm": 1.0}, 20, False),  # a policy's
        ({"loss": 1e-9}, 20, False),
        ({}, 20, False),
    ],
)
def test_losses_of_0_beside_no_gradient_norm_are_told_of(
    says: dict[str, Any], steps: int, listed: bool
) -> None:
    ranks = {0: build_rank_steps(steps_that(*[says] * steps))}
    found = [
        text.startswith("loss: it is 0 at each of") for text in find_doubtful_losses(ranks, RULES)
    ]
    assert found == [True] * listed


@pytest.mark.parametrize(
    ("fall", "steps", "listed"),
    [
        (0.0, 200, True),  # the optimizer of another model, on batches that change
        (-0.5, 200, True),
        (0.0, 199, False),
        (0.5, 200, False),
        (0.05, 3000, False),
    ],
)
def test_a_loss_that_never_fell_is_told_of(fall: float, steps: int, listed: bool) -> None:
    draw = Random(7)
    losses = [5.0 - fall * n / steps + draw.gauss(0.0, 0.1) for n in range(steps)]
    ranks = {0: build_rank_steps(steps_that(*({"loss": loss} for loss in losses)))}
    found = [
        text.startswith("loss: it is ") and "in the first 40 of 200 steps" in text
        for text in find_doubtful_losses(ranks, RULES)
    ]
    assert found == [True] * listed


@pytest.mark.parametrize("loss", [1e200, -1e308, 5e-324, 0.5])
def test_a_loss_of_any_size_that_never_fell_is_told_of(loss: float) -> None:
    ranks = {0: build_rank_steps(steps_that(*({"loss": loss * (n % 2)} for n in range(200))))}
    assert [text for text in find_doubtful_losses(ranks, RULES) if "in the first 40" in text]


def test_a_run_that_evaluated_nothing_is_inconclusive_and_is_not_go_by_it() -> None:
    order = with_gate(
        order_of(sets={"phases.smoke.steps": 40}),
        {"id": "val", "metric": "val_loss", "aggregate": "last", "pass_below": 4.0},
    )
    ranks = healthy_ranks(order)
    for line in (line for row in ranks for line in row.lines if line["msg"] == "eval"):
        line["val_loss"] = 0.0
    assert judged(record_of(order, ranks)).verdict == "INCONCLUSIVE"


@pytest.mark.parametrize(
    ("losses", "listed"),
    [
        ({10: EXACT, 30: EXACT}, True),
        ({0: EXACT, 10: EXACT, 20: EXACT}, True),
        ({10: EXACT, 29: EXACT}, False),
        ({10: EXACT, 30: EXACT + 1e-9}, False),
        ({10: 2.5, 30: 2.5}, False),
        ({10: EXACT}, False),
        ({1: EXACT, 10: EXACT, 20: EXACT, 30: EXACT}, False),  # a contradiction
        ({}, False),
    ],
)
def test_two_or_three_evaluations_that_found_one_exact_loss_are_told_of(
    losses: dict[int, float], listed: bool
) -> None:
    ranks = {0: build_rank_steps(evaluated(losses)), 1: build_rank_steps(evaluated({}))}
    found = list(find_doubtful_losses(ranks, RULES))
    assert [text.startswith("val_loss: it is 2.3025") for text in found] == [True] * listed
    moved = {**ranks, 1: build_rank_steps(evaluated({10: 3.1, 30: 3.2}))}
    assert not list(find_doubtful_losses(moved, RULES))


@pytest.mark.parametrize(
    ("sent", "backend", "world_size", "named"),
    [
        ([0.0] * 3, "DDP", 2, [0, 1]),
        ([0.0], "FSDP", 2, [0, 1]),
        ([0.0, 0.0, 0.5], "DDP", 2, []),  # told of micro-steps
        ([0.0] * 3, "single", 2, []),
        ([0.0] * 3, None, 2, []),
        ([0.0] * 3, "DDP", 1, []),
        ([], "DDP", 2, []),
    ],
)
def test_ranks_that_train_together_give_each_other_gradients(
    sent: list[float], backend: str | None, world_size: int, named: list[int]
) -> None:
    lines = steps_that(*({"loss": 5.0 - n, "comm_mb": mb} for n, mb in enumerate(sent)))
    ranks = {
        rank: build_rank_steps(of_rank(rank, lines, backend=backend)) for rank in range(world_size)
    }
    rules = build_rules(order_of(sets={"workload.world_size": world_size}))
    found = [row for row in find_nothing_learnt(ranks, rules) if "comm_mb is 0" in row]
    assert [row.split(" says")[0] for row in found] == [f"rank {rank}" for rank in named]


def test_a_gate_on_what_is_sent_is_not_passed_by_sending_nothing() -> None:
    gate = {"id": "sent", "metric": "comm_mb", "aggregate": "max", "pass_below": 100.0}
    order = with_gate(order_of(), gate)
    ranks = healthy_ranks(order)
    for mb, verdict in ((0.5, "GO"), (0.0, "INCONCLUSIVE")):
        for line in (line for row in ranks for line in row.lines if line["msg"] == "progress"):
            line["comm_mb"] = mb
        assert judged(record_of(order, ranks)).verdict == verdict


@pytest.mark.parametrize(
    ("losses", "found", "listed"),
    [
        ([-0.1, -0.2, 0.1], {2: 3.0}, ["loss: it is negative at 2 steps"]),
        ([2.0], {1: -0.5, 2: -0.6}, ["val_loss: it is negative at 2 evaluations"]),
        ([2.0, 0.0], {1: 0.5}, []),
        ([], {}, []),
    ],
)
def test_negative_losses_of_a_language_model_are_told_of(
    losses: list[float], found: dict[int, float], listed: list[str]
) -> None:
    lines = steps_that(*({"loss": loss} for loss in losses))
    evals = [
        beat(100 + step, 100.0, "eval", step=step, val_loss=loss) for step, loss in found.items()
    ]
    ranks = {0: build_rank_steps([*lines, *evals])}
    rules = build_rules(ORDER)
    told_of = [row.partition(" of a language")[0] for row in find_doubtful_losses(ranks, rules)]
    assert told_of == listed
    unknown = {"identity": rules.identity.model_copy(update={"vocab": None})}
    assert not list(find_doubtful_losses(ranks, rules.model_copy(update=unknown)))


@pytest.mark.parametrize(
    ("rates", "listed"),
    [
        ([1e-14] * 20, True),
        ([0.0] + [9e-11] * 19, True),
        ([1e-14] * 19, False),
        ([1e-14] * 19 + [1e-10], False),
        ([0.0] * 20, False),  # a contradiction
        ([], False),
    ],
)
def test_rates_that_are_never_as_large_as_weights_need_are_told_of(
    rates: list[float], *, listed: bool
) -> None:
    lines = steps_that(*({"loss": 5.0 - n, "lr": rate} for n, rate in enumerate(rates)))
    ranks = {0: build_rank_steps(of_rank(0, lines, torch="2"))}
    rules = build_rules(ORDER)
    found = [row.startswith("lr: it is ") for row in find_doubtful_rates(ranks, rules)]
    assert found == [True] * listed


def test_a_run_whose_rates_are_too_small_says_so() -> None:
    order = with_gate(order_of(sets={"phases.smoke.steps": 24}))
    ranks = healthy_ranks(order)
    for line in (line for row in ranks for line in row.lines if line["msg"] == "progress"):
        line["lr"] = 1e-14
    listed = [row for row in facts_of(record_of(order, ranks)).not_observed if row[:3] == "lr:"]
    assert len(listed) == 1
