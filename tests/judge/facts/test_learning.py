"""Steps that changed nothing raise a doubt, and steps of training raise none."""

from __future__ import annotations

import math
from random import Random
from typing import Any

import pytest

from gonogo.contract.finding import Doubt, DoubtKind
from gonogo.contract.heartbeat import Heartbeat
from gonogo.judge.facts.contradictions import find_nothing_learned, find_unclear_learning
from gonogo.judge.gate.rules import build_rules
from gonogo.timeline.rank_steps import RankSteps
from tests.data.make_runs import healthy_ranks, order_of
from tests.judge.facts.beats import beat, of_rank, seen, steps_that, told
from tests.judge.runs import judged, record_of, with_gate

NAN, INF = math.nan, math.inf
EXACT = 2.3025850929940455
MOVING = [2.0 + n / 7 for n in range(40)]
LONG = order_of(sets={"phases.smoke.steps": 40})

Rows = list[dict[str, Any]]


def rows(**columns: Any) -> Rows:
    """One row a step: lists give each step its value, other values stand in every step."""
    longest = max(len(value) for value in columns.values() if isinstance(value, list))
    return [
        {
            name: value[n] if isinstance(value, list) else value
            for name, value in columns.items()
            if not isinstance(value, list) or n < len(value)
        }
        for n in range(longest)
    ]


def found(*ranks: Rows, **boot: Any) -> list[Doubt]:
    """The doubts about ranks that report these steps."""
    lines = {
        rank: of_rank(rank, steps_that(*says), **{"torch": "2.13", **boot})
        for rank, says in enumerate(ranks)
    }
    return told(lines, LONG)


def names(doubts: list[Doubt]) -> list[str | None]:
    return [row.name or row.kind.value for row in doubts]


STILL = [EXACT] * 20
UPDATE, LOSS, RATE = "the update", "the loss", "the learning rate"
GRADIENT, VALIDATION = "the gradient norm", "the validation loss"


@pytest.mark.parametrize(
    ("ranks", "doubts"),
    [
        ([rows(loss=STILL)], [LOSS]), ([rows(loss=STILL), rows(loss=STILL)], [LOSS]),
        ([rows(loss=STILL[1:])], []), ([rows(loss=STILL, grad_norm=[1.0] * 19 + [1.1])], []),
        ([rows(loss=[0.0] * 40)], []), ([rows(loss=[2.302585] * 40)], []),
        ([rows(loss=[2.3025851] * 40)], [LOSS]),
        ([rows(loss=[0.000123456] * 40)], []), ([rows(loss=[1.00048828125] * 40)], [LOSS]),
        ([rows(loss=MOVING, lr=[0.0] * 20)], [RATE]),
        ([rows(loss=MOVING, lr=[0.0] * 10 + [NAN, INF] * 5)], [RATE]),
        ([rows(loss=MOVING, lr=[0.0] * 10 + [1e-9] * 10)], []),
        ([rows(loss=MOVING, lr=[1e-3] * 5 + [-1e-4] * 15)], [RATE]),
        ([rows(loss=MOVING, grad_norm=[0.0] * 20)], [GRADIENT]),
        ([rows(loss=MOVING, grad_norm=[INF] * 20)], [GRADIENT]),
        ([rows(loss=[5.0] * 12, skipped=True)], [UPDATE]), ([rows(loss=[NAN] * 12)], [UPDATE]),
        ([rows(loss=MOVING[:20], skipped=[False] * 10 + [True] * 10)], []), ([], []),
    ],
)  # fmt: skip
def test_what_changed_nothing(ranks: list[Rows], doubts: list[str]) -> None:
    assert names(found(*ranks)) == doubts


NORMS = [1.0 + n / 9 for n in range(20)]


@pytest.mark.parametrize(
    ("name", "others", "backend", "count"),
    [
        ("grad_norm", [norm * 1.01 for norm in NORMS], "DDP", 20),
        ("grad_norm", [norm * 1.01 for norm in NORMS], "FSDP", None),
        ("grad_norm", [norm * 1.0005 for norm in NORMS], "DDP", None),
        ("grad_norm", [9.0] * 11 + NORMS[11:], "DDP", 11),
    ],
)
def test_ranks_that_average_their_gradients_take_the_same_steps(
    name: str, others: list[float], backend: str | None, count: int | None
) -> None:
    ranks = [rows(loss=MOVING[:20], **{name: row}) for row in (NORMS, others)]
    doubts = [row.found for row in found(*ranks, backend=backend)]
    assert doubts == ([] if count is None else [count])


@pytest.mark.parametrize(
    ("sent", "backend", "ranks", "named"),
    [
        ([0.0] * 3, "DDP", 2, [0, 1]),
        ([0.0], "FSDP", 2, [0, 1]),
        ([0.0, 0.0, 0.5], "DDP", 2, []),  # reported of micro-steps
        ([0.0] * 3, "single", 2, []),
        ([0.0] * 3, "DDP", 1, []),
    ],
)
def test_ranks_that_train_together_share_gradients(
    sent: list[float], backend: str, ranks: int, named: list[int]
) -> None:
    lines = steps_that(*rows(loss=[5.0, 4.0, 3.0], comm_mb=sent))
    steps = {rank: RankSteps(of_rank(rank, lines, backend=backend)) for rank in range(ranks)}
    rules = build_rules(order_of(sets={"workload.world_size": ranks}))
    doubts = find_nothing_learned(steps, rules)
    assert seen(doubts) == [("ranks_apart", rank) for rank in named]


def evaluated(losses: dict[int, float], steps: list[float] = MOVING) -> list[Heartbeat]:
    """One process's steps, of which some are evaluated."""
    lines = steps_that(*rows(loss=steps))
    evals = enumerate(losses.items(), len(lines) + 1)
    lines += [beat(n, n, "eval", step=at, val_loss=loss) for n, (at, loss) in evals]
    return of_rank(0, lines, torch="2.13")


FOUR = (10, 17, 24, 30)


@pytest.mark.parametrize(
    ("losses", "kind"),
    [
        (dict.fromkeys(FOUR, EXACT), "nothing_learned"),
        (dict.fromkeys((10, 11, 12, 29), EXACT), None),
        ({**dict.fromkeys(FOUR, EXACT), 30: EXACT + 1e-9}, None),
        (dict.fromkeys(FOUR, 2.302585), None),
        (dict.fromkeys(FOUR, NAN), None),
        (dict.fromkeys(FOUR, 0.0), "nothing_learned"),
        ({**dict.fromkeys(FOUR, 0.0), 30: 1e-9}, None),
    ],
)
def test_evaluations_show_that_weights_moved(losses: dict[int, float], kind: str | None) -> None:
    doubts = told({0: evaluated(losses)}, LONG)
    assert [row.kind.value for row in doubts] == [kind] * (kind is not None)


@pytest.mark.parametrize(
    "says",
    [
        {"skipped": True}, {"grad_norm": INF}, {"lr": 0.0}, {"loss": EXACT, "grad_norm": 1.0},
        {"comm_mb": 0.0},
    ],
)  # fmt: skip
def test_a_run_that_learned_nothing_is_inconclusive(says: dict[str, Any]) -> None:
    order = with_gate(order_of(sets={"phases.smoke.steps": 24}))
    ranks = healthy_ranks(order)
    assert judged(record_of(order, ranks)).verdict == "GO"
    for line in (line for row in ranks for line in row.lines if line["msg"] == "progress"):
        line.update(says)
    assert judged(record_of(order, ranks)).verdict == "INCONCLUSIVE"


@pytest.mark.parametrize(
    ("fall", "steps", "count"), [(0.0, 200, 1), (-0.5, 200, 1), (0.0, 199, 0), (0.5, 200, 0)]
)
def test_a_loss_that_never_fell_is_unclear(fall: float, steps: int, count: int) -> None:
    draw = Random(7)
    losses = [5.0 - fall * n / steps + draw.gauss(0.0, 0.1) for n in range(steps)]
    ranks = {0: RankSteps(steps_that(*rows(loss=losses)))}
    assert seen(find_unclear_learning(ranks)) == [("learning_unclear", None)] * count


@pytest.mark.parametrize(
    ("losses", "count"),
    [
        *(([loss * (n % 2) for n in range(200)], 1) for loss in (1e200, -1e308, 5e-324, 0.5)),
        ([1.0] * 200, 1),
        ([1.0] * 33 + [2.0] * 7 + [1.0] * 160, 0),  # by 2.9 standard errors of its first fifth
    ],
)
def test_a_loss_of_any_size_may_be_unclear(losses: list[float], count: int) -> None:
    ranks = {0: RankSteps(steps_that(*rows(loss=losses)))}
    assert len([*find_unclear_learning(ranks)]) == count


@pytest.mark.parametrize(
    ("says", "steps", "count"),
    [({"loss": 5.0, "skipped": True}, 8, 0), ({"loss": 5.0, "skipped": True}, 9, 1)],
)
def test_the_first_updates_of_a_scaled_loss_may_be_skipped(
    says: dict[str, Any], steps: int, count: int
) -> None:
    rules = build_rules(order_of(sets={"train.dtype": "fp16"}))
    ranks = {0: RankSteps(steps_that(*[says] * steps))}
    assert names([*find_nothing_learned(ranks, rules)]) == [UPDATE] * count


@pytest.mark.parametrize("name", ["lr", "grad_norm"])
def test_zeros_are_counted_over_so_many_steps(name: str) -> None:
    says = rows(loss=MOVING, **{name: [0.0] * 21 + [1.0] * 9})
    (doubt,) = found(says)
    assert (doubt.expected, doubt.found) == (21, 0.0)


def test_norms_that_are_not_numbers_are_not_compared() -> None:
    mine = [1.0 + n / 9 for n in range(30)]
    other = [9.0] * 11 + mine[11:20] + [NAN] * 10
    ranks = [rows(loss=MOVING[:30], grad_norm=row) for row in (mine, other)]
    assert [row.found for row in found(*ranks, backend="DDP")] == [11]
    still = [rows(loss=MOVING[:30], grad_norm=[0.0] * 30)] * 2
    assert [row for row in found(*still, backend="DDP") if row.kind is DoubtKind.RANKS_APART] == []
