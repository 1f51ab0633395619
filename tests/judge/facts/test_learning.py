"""Steps that changed nothing raise a doubt, and steps of training raise none."""

from __future__ import annotations

import math
from random import Random
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gonogo.contract.doubt import Doubt
from gonogo.contract.heartbeat import Heartbeat
from gonogo.judge.facts.learning import find_nothing_learned, find_unclear_learning
from gonogo.judge.facts.steps import build_rank_steps
from gonogo.judge.gate.rules import build_rules
from tests.data.make_runs import healthy_ranks, order_of
from tests.judge.facts.beats import ORDER, beat, of_rank, seen, steps_that, told
from tests.judge.runs import judged, record_of, with_gate

NAN, INF = math.nan, math.inf
EXACT = 2.3025850929940455
MOVING = [2.0 + n / 7 for n in range(40)]
CYCLE = [2.0 + n / 7 for n in range(1, 6)]
HALVED = [2.0 ** (16 - n) for n in range(12)]
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
        # a loss that stands still
        ([rows(loss=STILL)], [LOSS]),
        ([rows(loss=STILL, grad_norm=1.0)], [LOSS]),
        ([rows(loss=STILL), rows(loss=STILL)], [LOSS]),
        ([rows(loss=STILL[1:])], []),
        ([rows(loss=[*STILL, EXACT + 1e-9])], []),
        ([rows(loss=STILL, grad_norm=[1.0] * 19 + [1.1])], []),
        ([rows(loss=STILL), rows(loss=[*STILL[1:], EXACT / 2])], []),
        ([rows(loss=[0.0] * 40)], []),
        ([rows(loss=[2.302585] * 40)], []),  # rounded
        ([rows(loss=[2.3125] * 40)], []),  # half precision
        # losses that come back: the data is not shuffled, the weights stay
        ([rows(loss=CYCLE * 5)], [LOSS]),
        ([rows(loss=CYCLE * 5, grad_norm=CYCLE * 5)], [LOSS]),
        ([rows(loss=CYCLE * 4 + CYCLE[:3])], []),
        ([rows(loss=CYCLE * 5, grad_norm=[1.0, 1.1] * 12 + [1.0])], []),
        ([rows(loss=[EXACT + 1e-9, *CYCLE * 5])], []),
        # a learning rate of 0
        ([rows(loss=MOVING, lr=[0.0] * 20)], [RATE]),
        ([rows(loss=MOVING, lr=[0.0] * 19)], []),
        ([rows(loss=MOVING, lr=[0.0] * 10 + [NAN, INF] * 5)], [RATE]),
        ([rows(loss=MOVING, lr=[0.0] * 19 + [1e-9])], [RATE]),
        ([rows(loss=MOVING, lr=[0.0] * 10 + [1e-9] * 10)], []),
        ([rows(loss=MOVING, lr=[0.0] * 20), rows(loss=MOVING, lr=[1e-3] * 20)], []),
        # a learning rate below 0
        ([rows(loss=MOVING, lr=[1e-3] * 15 + [-1e-4] * 5)], ["negative_rate"]),
        ([rows(loss=MOVING, lr=[1e-3] * 18 + [-1e-4, 1e-3])], ["negative_rate"]),
        ([rows(loss=MOVING, lr=[1e-3] * 19 + [-1e-4])], []),  # that of the next step
        ([rows(loss=MOVING, lr=[1e-3] * 19 + [-1e-19])], []),
        # no gradient
        ([rows(loss=MOVING, grad_norm=[0.0] * 20)], [GRADIENT]),
        ([rows(loss=MOVING, grad_norm=[0.0] * 19 + [1e-9])], []),
        ([rows(loss=MOVING, grad_norm=[0.0] * 20), rows(loss=MOVING, grad_norm=1.0)], []),
        # updates that were skipped
        ([rows(loss=[5.0] * 12, skipped=True)], [UPDATE]),
        ([rows(loss=[5.0] * 12, grad_norm=INF)], [UPDATE]),
        ([rows(loss=[NAN] * 12)], [UPDATE]),
        ([rows(loss=MOVING[:20], skipped=[False] * 9 + [True] * 11)], [UPDATE]),
        ([rows(loss=MOVING[:20], skipped=[False] * 10 + [True] * 10)], []),
        ([rows(loss=MOVING[:12], loss_scale=HALVED)], [UPDATE]),
        ([rows(loss=MOVING[:12], loss_scale=[1.0] * 12)], []),
        ([rows(loss=MOVING[:12], loss_scale=[HALVED[0], *HALVED[:11]])], []),
        ([], []),
    ],
)
def test_what_changed_nothing(ranks: list[Rows], doubts: list[str]) -> None:
    assert names(found(*ranks)) == doubts


def test_what_is_printed_may_be_rounded_to_0() -> None:
    for says in (rows(loss=MOVING, lr=0.0), rows(loss=MOVING, grad_norm=0.0)):
        assert told({0: steps_that(*says)}, LONG) == []


@given(st.lists(st.sampled_from(CYCLE[:2]), min_size=20, max_size=28))
@example([CYCLE[0], *CYCLE[:2], CYCLE[0]] * 6)
@example(([CYCLE[0]] * 2 + [CYCLE[1]]) * 8)
def test_losses_come_back_after_the_fewest_that_all_do(losses: list[float]) -> None:
    """`AABAABAA…` comes back after 3, whatever begins of it stand elsewhere in it."""
    count = len(losses)
    period = next(n for n in range(1, count + 1) if losses[n:] == losses[: count - n])
    assert names(found(rows(loss=losses))) == [LOSS] * (count - period + 1 >= 20)


@pytest.mark.parametrize(("limit", "count"), [(2, 1), (20, 1), (41, 0)])
def test_as_many_steps_have_one_loss_as_the_plan_lets_pass(limit: int, count: int) -> None:
    order = order_of(sets={"phases.smoke.steps": 40, "watch.frozen.loss_steps": limit})
    assert len(told({0: steps_that(*rows(loss=[EXACT] * 40))}, order)) == count


@pytest.mark.parametrize(
    ("says", "steps", "dtype", "count"),
    [
        ({"loss": 5.0, "skipped": True}, 8, "fp16", 0),
        ({"loss": 5.0, "grad_norm": INF}, 1, None, 0),
        ({"loss": 5.0, "skipped": True}, 9, "fp16", 1),
        ({"loss": 5.0, "skipped": True}, 1, "fp32", 1),
        ({"loss": NAN, "skipped": True}, 1, "fp16", 1),
    ],
)
def test_the_first_updates_of_a_scaled_loss_may_be_skipped(
    says: dict[str, Any], steps: int, dtype: str | None, count: int
) -> None:
    rules = build_rules(ORDER)
    identity = rules.identity.model_copy(update={"dtype": dtype})
    rules = rules.model_copy(update={"identity": identity})
    ranks = {0: build_rank_steps(steps_that(*[says] * steps))}
    assert names([*find_nothing_learned(ranks, rules)]) == [UPDATE] * count


@pytest.mark.parametrize(
    ("first_step", "step", "count"), [(20, 20, 0), (11, 20, 0), (19, 19, 1), (1, 20, 1)]
)
def test_a_resumed_attempt_may_report_the_rate_of_the_next_step_alone(
    first_step: int, step: int, count: int
) -> None:
    rules = build_rules(order_of(sets={"phases.smoke.steps": 20}))
    rules = rules.model_copy(update={"first_step": first_step})
    line = of_rank(0, steps_that({"step": step, "loss": 1.5, "lr": -1e-4}), torch="2.13")
    assert len([*find_nothing_learned({0: build_rank_steps(line)}, rules)]) == count


NORMS = [1.0 + n / 9 for n in range(20)]


@pytest.mark.parametrize(
    ("name", "others", "backend", "count"),
    [
        ("grad_norm", [norm * 1.01 for norm in NORMS], "DDP", 20),
        ("grad_norm", [norm * 1.01 for norm in NORMS], "FSDP", None),  # each may report its shard's
        ("grad_norm", [norm * 1.01 for norm in NORMS], None, None),
        ("grad_norm", [norm * 1.0005 for norm in NORMS], "DDP", None),
        ("grad_norm", [9.0] * 11 + NORMS[11:], "DDP", 11),
        ("grad_norm", [9.0] * 10 + NORMS[10:], "DDP", None),
        ("lr", [1e-9] * 20, "DDP", 20),
        ("lr", [1e-9] * 20, "FSDP", 20),
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
    steps = {rank: build_rank_steps(of_rank(rank, lines, backend=backend)) for rank in range(ranks)}
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
        (dict.fromkeys((10, 20, 30), EXACT), None),
        (dict.fromkeys((10, 11, 12, 29), EXACT), None),
        ({**dict.fromkeys(FOUR, EXACT), 30: EXACT + 1e-9}, None),
        (dict.fromkeys(FOUR, 2.302585), None),  # rounded
        (dict.fromkeys(FOUR, 2.3125), None),  # half precision
        (dict.fromkeys(FOUR, 31 / 360), None),  # a share of a few examples
        (dict.fromkeys(FOUR, 100 * 4 / 30), None),  # in percent
        (dict.fromkeys(FOUR, 0.13333334028720856), None),  # in single precision
        (dict.fromkeys(FOUR, 1 / 10_007), "nothing_learned"),
        (dict.fromkeys(FOUR, NAN), None),
        ({5: MOVING[4], 10: MOVING[9]}, "not_evaluated"),
        ({5: MOVING[4]}, None),
        ({5: MOVING[4], 10: MOVING[9], 15: MOVING[13]}, None),
        ({10: 0.0, 20: 0.0}, "not_evaluated"),
        ({10: 0.0}, None),
        ({10: 0.0, 20: 1e-9}, None),
        ({}, None),
    ],
)
def test_evaluations_show_that_weights_moved(losses: dict[int, float], kind: str | None) -> None:
    doubts = told({0: evaluated(losses)}, LONG)
    assert [row.kind.value for row in doubts] == [kind] * (kind is not None)


def test_a_loss_of_0_is_possible_where_the_training_loss_is_small_or_no_cross_entropy() -> None:
    zeros = {10: 0.0, 20: 0.0}
    assert told({0: evaluated(zeros, [0.04 + n / 1000 for n in range(40)])}, LONG) == []
    identity = LONG.identity.model_copy(update={"vocab": None})
    other = LONG.model_copy(update={"identity": identity})
    assert told({0: evaluated(zeros)}, other) == []


def test_an_evaluation_that_moves_on_one_rank_moves() -> None:
    still = dict.fromkeys(FOUR, EXACT)
    other = of_rank(1, evaluated({**still, 30: EXACT / 2}))
    assert told({0: evaluated(still), 1: other}, LONG) == []
    again = beat(999, 999.0, "eval", pid=7, step=30, val_loss=EXACT / 2)
    assert told({0: [*evaluated(still), again]}, LONG) == [], "one step, two evaluations"
    own = of_rank(1, evaluated(dict.fromkeys(still, EXACT / 2)))
    assert len(told({0: evaluated(still), 1: own}, LONG)) == 1


@pytest.mark.parametrize(("tokens", "count"), [((0, 0), 1), ((0, 1), 0), ((None, None), 0)])
def test_steps_carry_tokens(tokens: tuple[int | None, ...], count: int) -> None:
    ends = [
        beat(50 + n, 50.0 + n, "step_end", step=n, tokens=row) for n, row in enumerate(tokens, 1)
    ]
    lines = of_rank(0, [*steps_that(*rows(loss=[5.0, 4.0])), *ends], torch="2.13")
    assert names(told({0: lines})) == ["tokens"] * count


def in_a_row(*trainings: Rows) -> list[Heartbeat]:
    """Trainings one after the other, each a process that begins where the run began."""
    lines: list[Heartbeat] = []
    for number, says in enumerate(trainings):
        begun, own = 1000.0 * number, {"boot": f"b{number}", "pid": number + 1}
        lines += [
            row.model_copy(update={**own, "mono": begun + row.mono}) for row in steps_that(*says)
        ]
        lines += [
            beat(500 + n, begun + 500 + n, "step_end", step=n, **own)
            for n in range(1, len(says) + 1)
        ]
    return lines


def test_each_of_several_trainings_in_a_row_learned() -> None:
    order = order_of(sets={"phases.smoke.steps": 24})
    learned, still = rows(loss=MOVING[:24]), rows(loss=[EXACT] * 24)
    lines = in_a_row(still, learned)
    assert names(told({0: lines}, order)) == [LOSS]
    begun_anew = [row for row in lines if row.boot == "b1" or row.step < 24]
    assert told({0: begun_anew}, order) == [], "a training that another one replaced"
    assert told({0: in_a_row(learned, learned)}, order) == []


@pytest.mark.parametrize(
    ("fall", "steps", "count"),
    [(0.0, 200, 1), (-0.5, 200, 1), (0.0, 199, 0), (0.5, 200, 0), (0.05, 3000, 0)],
)
def test_a_loss_that_never_fell_is_unclear(fall: float, steps: int, count: int) -> None:
    draw = Random(7)
    losses = [5.0 - fall * n / steps + draw.gauss(0.0, 0.1) for n in range(steps)]
    ranks = {0: build_rank_steps(steps_that(*rows(loss=losses)))}
    assert seen(find_unclear_learning(ranks)) == [("learning_unclear", None)] * count


@pytest.mark.parametrize("loss", [1e200, -1e308, 5e-324, 0.5])
def test_a_loss_of_any_size_may_be_unclear(loss: float) -> None:
    ranks = {0: build_rank_steps(steps_that(*rows(loss=[loss * (n % 2) for n in range(200)])))}
    assert len([*find_unclear_learning(ranks)]) == 1


@pytest.mark.parametrize(
    "says",
    [
        {"skipped": True},
        {"grad_norm": INF},
        {"lr": 0.0},
        {"loss": EXACT, "grad_norm": 1.0},
        {"comm_mb": 0.0},
    ],
)
def test_a_run_that_learned_nothing_is_inconclusive(says: dict[str, Any]) -> None:
    order = with_gate(order_of(sets={"phases.smoke.steps": 24}))
    ranks = healthy_ranks(order)
    assert judged(record_of(order, ranks)).verdict == "GO"
    for line in (line for row in ranks for line in row.lines if line["msg"] == "progress"):
        line.update(says)
    assert judged(record_of(order, ranks)).verdict == "INCONCLUSIVE"
