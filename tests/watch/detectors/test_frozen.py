"""D9: bit-equal numbers are found; numbers that stand still for other reasons are left alone."""

import math
import random
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gonogo.contract.finding import Severity, Source
from gonogo.watch.detectors.frozen import Frozen, is_exact
from tests.watch.steps import Ran, feed
from tests.watch.streams import EPOCH, order_of

SUSPECT, WARN, HALT = Severity.SUSPECT, Severity.WARN, Severity.HALT


def learning(ran: Ran, count: int, seed: int = 1) -> Ran:
    """Steps of a model that learns."""
    dice = random.Random(seed)
    for _ in range(count):
        ran.step(loss=5.0 - 0.001 * ran.number + dice.gauss(0, 0.1), grad_norm=dice.uniform(0.5, 2))
    return ran


def test_a_loss_that_stands_still_is_suspect_after_20_steps_and_halts_after_40() -> None:
    ran = learning(Ran(), 100)
    fed = feed(Frozen, ran.many(60, loss=4.25, grad_norm=0.875))
    assert fed.severities == [(SUSPECT, 120), (HALT, 140), (SUSPECT, 150)]
    halt = fed.halts[0]
    assert (halt.value, halt.threshold, halt.source) == (40.0, 40.0, Source.DEFAULT)
    assert halt.since == EPOCH + 100.0
    assert halt.rank is None
    assert halt.key == "run_1/1/frozen/halt/loss/step101"
    assert "4.25" in halt.text
    assert "step 101" in halt.text


@pytest.mark.parametrize(
    ("count", "found"), [(19, []), (20, [SUSPECT]), (39, [SUSPECT]), (40, [SUSPECT, HALT])]
)
def test_the_edges_of_both_limits(count: int, found: list[Severity]) -> None:
    ran = learning(Ran(), 10).many(count, loss=4.0)
    assert [f.severity for f in feed(Frozen, learning(ran, 5)).findings] == found


def test_a_loss_that_never_moved_halts_five_times_later() -> None:
    ran = Ran().many(199, loss=5.5451774)
    assert feed(Frozen, ran).severities == [(SUSPECT, 20)]
    assert feed(Frozen, ran.many(9, loss=5.5451774)).severities == [(SUSPECT, 20), (HALT, 200)]


def test_while_the_norm_moves_an_equal_loss_warns_and_halts_once_the_norm_stands_too() -> None:
    ran = with_norms(learning(Ran(order_of({}, entry="train.py")), 100), 500, 4.2512345678)
    assert feed(Frozen, ran).severities == [(SUSPECT, 120), (WARN, 140)]
    fed = feed(Frozen, ran.many(60, loss=4.2512345678, grad_norm=0.4567891))
    assert fed.severities == [(SUSPECT, 120), (WARN, 140), (HALT, 640), (SUSPECT, 650)]


@pytest.mark.parametrize(
    ("loss", "halts"), [(4.2512345678, [140]), (0.0412345678, []), (4.25, [140]), (0.05, [140])]
)
def test_our_own_trainer_tells_no_loss_twice_and_halts_though_the_norm_moves(
    loss: float, halts: list[int]
) -> None:
    """What is next to nothing may be all that single precision can tell of it."""
    ran = with_norms(learning(Ran(), 100), 100, loss)
    assert [finding.step for finding in feed(Frozen, ran).halts] == halts


@pytest.mark.parametrize("norm", [None, 0.0, 1.0], ids=["no norm", "zero norm", "clipped"])
def test_a_loss_of_exactly_zero_halts_nothing(norm: float | None) -> None:
    """A hinge that nothing offends, or rewards that are all equal."""
    ran = with_norms(with_norms(Ran(), 10, 1.25), 100, 0.0)
    assert feed(Frozen, ran.many(500, loss=0.0, grad_norm=norm)).halts == []


def test_a_norm_that_stands_on_while_the_loss_is_zero_halts() -> None:
    ran = learning(Ran(), 100).many(120, loss=0.0, grad_norm=0.8123456789)
    assert [f.step for f in feed(Frozen, ran).halts] == [200]


@pytest.mark.parametrize("every", [50, 100])
@pytest.mark.parametrize("told", ["nothing", "held", "each"])
def test_a_loss_refreshed_rarely_is_safe_in_its_first_period(every: int, told: str) -> None:
    dice, ran = random.Random(5), Ran()
    for _ in range(6):
        loss, held = 5.5 - 0.001 * ran.number + dice.gauss(0, 0.01), dice.uniform(0.5, 2.0)
        for _ in range(every):
            norm = {"nothing": None, "held": held, "each": dice.uniform(0.5, 2.0)}[told]
            ran.step(loss=loss, grad_norm=norm)
    assert {f.severity for f in feed(Frozen, ran).findings} == {SUSPECT}
    stood = feed(
        Frozen, ran.many(310, loss=1.23456789, grad_norm=None if told != "held" else 0.6789012)
    )
    assert len(stood.halts) >= 1


@pytest.mark.parametrize("first", [1, 5, 33])
@pytest.mark.parametrize("told", ["nothing", "held"])
def test_a_run_that_is_resumed_in_the_midst_of_a_period_is_safe(first: int, told: str) -> None:
    """The first value is that of its first step, the next ones stay for 100 steps each."""
    dice, ran = random.Random(5), Ran(order_of({}, entry="train.py"))
    for steps in (first, *[100] * 7):
        norm = None if told == "nothing" else dice.uniform(0.5, 2.0)
        ran.many(steps, loss=3.5 + dice.gauss(0, 0.01), grad_norm=norm)
    assert feed(Frozen, ran).halts == []
    assert len(feed(Frozen, ran.many(310, loss=1.23456789)).halts) == 1


@pytest.mark.parametrize(("changes", "halts"), [(7, 8 + 199), (8, 9 + 39)])
def test_the_way_of_another_trainer_is_known_once_a_number_has_changed_eight_times(
    changes: int, halts: int
) -> None:
    ran = learning(Ran(order_of({}, entry="train.py")), changes).many(200, loss=3.3123456789)
    assert [finding.step for finding in feed(Frozen, ran).halts] == [halts]


def test_a_loss_that_rounding_holds_through_a_warm_up_is_safe() -> None:
    """DPO begins at ln 2 and stays there while the learning rate is small."""
    ran, dice = Ran(), random.Random(6)
    for _ in range(30):
        ran.step(loss=round(0.6931 + 0.0001 * dice.random(), 4))
    ran.many(150, loss=0.6931)
    for number in range(100):
        ran.step(loss=round(0.69 - 0.001 * number, 4))
    assert feed(Frozen, ran).halts == []
    assert len(feed(Frozen, ran.many(600, loss=0.5123)).halts) == 1


@pytest.mark.parametrize("clip", [1.0, 0.5, 5.0, 0.10000000149011612])
def test_a_norm_that_rises_into_a_limit_nobody_ordered_is_clipped(clip: float) -> None:
    dice, ran = random.Random(7), Ran()
    for number in range(300):
        norm = min(clip, clip * (0.3 + 0.7 * number / 30 + 1e-4 * dice.random()))
        ran.step(loss=2.0 + dice.random(), grad_norm=norm)
    assert feed(Frozen, ran).findings == []
    below = learning(Ran(), 20).step(loss=3.0, grad_norm=2 * clip)
    for _ in range(120):
        below.step(loss=2.0 + dice.random(), grad_norm=0.9123456 * clip)
    assert [f.severity for f in feed(Frozen, below).findings] == [SUSPECT, HALT]


def test_each_episode_has_a_finding_of_its_own() -> None:
    ran = learning(Ran(), 10).many(20, loss=4.0)
    ran = learning(ran, 10).many(40, loss=4.0)
    assert len({f.key for f in feed(Frozen, ran).of(SUSPECT)}) == 2


def test_a_change_of_the_last_digit_is_a_change() -> None:
    ran = Ran()
    for number in range(200):
        ran.step(loss=4.0 + (number % 2) * 1e-9)
    assert feed(Frozen, ran).findings == []


@pytest.mark.parametrize("every", [10, 19])
def test_a_loss_that_is_refreshed_only_now_and_then_is_no_frozen_one(every: int) -> None:
    ran = Ran()
    for number in range(600):
        ran.step(loss=5.0 - 0.01 * (number // every))
    assert feed(Frozen, ran).findings == []


def test_the_longest_run_that_ended_widens_the_limits() -> None:
    ran = learning(Ran(), 10).many(15, loss=4.0)
    ran = learning(ran, 10).many(44, loss=3.0)
    fed = feed(Frozen, ran)
    assert fed.severities == [(SUSPECT, 35 + 30)]
    assert fed.findings[0].source is Source.DEFAULT
    fed = feed(Frozen, ran.many(1, loss=3.0))
    assert fed.severities == [(SUSPECT, 65), (HALT, 80)]
    assert fed.halts[0].threshold == 45.0
    assert fed.halts[0].source is Source.ADAPTIVE


def test_a_gradient_norm_that_stands_still_is_suspect_after_50_steps_and_halts_after_100() -> None:
    ran = learning(Ran(), 20)
    for number in range(120):
        ran.step(loss=4.0 + 0.01 * number, grad_norm=0.75)
    fed = feed(Frozen, ran)
    assert fed.severities == [(SUSPECT, 70), (HALT, 120)]
    assert fed.halts[0].key == "run_1/1/frozen/halt/grad_norm/step21"
    assert "gradient norm" in fed.halts[0].text


def test_a_norm_that_was_never_another_says_nothing() -> None:
    ran = Ran()
    for number in range(300):
        ran.step(loss=4.0 - 0.001 * number, grad_norm=1.0)
    assert feed(Frozen, ran).findings == []


@pytest.mark.parametrize(("clip", "found"), [(1.0, 0), (2.0, 2)])
def test_a_norm_at_the_clipping_limit_says_nothing(clip: float, found: int) -> None:
    ran = learning(Ran(order=order_of({}, train={"optim": {"clip": clip}})), 20)
    for number in range(120):
        ran.step(loss=4.0 + 0.01 * number, grad_norm=1.0)
    assert len(feed(Frozen, ran).findings) == found


def half(value: float) -> float:
    """Return a value as a half-precision number holds it."""
    mantissa, exponent = math.frexp(value)
    return math.ldexp(round(mantissa * 2**11), exponent - 11)


def coarse(ran: Ran, count: int, of: Callable[[float], float], **told: float) -> Ran:
    """Steps whose loss is told coarsely."""
    dice = random.Random(4)
    for _ in range(count):
        ran.step(loss=of(3.0 + dice.gauss(0, 0.1)), **told)
    return ran


def with_norms(ran: Ran, count: int, loss: float) -> Ran:
    """Steps of one loss whose gradient norm moves."""
    for _ in range(count):
        ran.step(loss=loss, grad_norm=random.Random(ran.number).random())
    return ran


def test_a_loss_in_half_precision_halts_only_where_the_norm_stands_as_well() -> None:
    assert feed(Frozen, coarse(Ran(), 20, half).many(100, loss=3.5)).halts == []
    assert feed(Frozen, with_norms(coarse(Ran(), 20, half), 100, 3.5)).halts == []
    moved = with_norms(coarse(Ran(), 20, half), 10, 3.5)
    both = feed(Frozen, moved.many(100, loss=3.5, grad_norm=0.7))
    assert [f.step for f in both.halts] == [30 + 40, 30 + 100]
    clipped = with_norms(coarse(Ran(), 20, half), 10, 3.5)
    assert feed(Frozen, clipped.many(100, loss=3.5, grad_norm=1.0)).halts == []
    single = coarse(Ran(), 20, half).step(loss=3.1234567).many(100, loss=3.5)
    assert [f.step for f in feed(Frozen, single).halts] == [61]


def test_a_rounded_loss_halts_unless_the_norm_moves() -> None:
    def rounded(value: float) -> float:
        return round(value, 6)

    alone = feed(Frozen, coarse(Ran(), 20, rounded).many(300, loss=3.3))
    assert [f.step for f in alone.halts] == [20 + 200]
    moving = with_norms(coarse(Ran(), 20, rounded), 300, 3.3)
    assert [f.severity for f in feed(Frozen, moving).findings] == [SUSPECT]
    still = with_norms(coarse(Ran(), 20, rounded), 10, 3.3).many(40, loss=3.3, grad_norm=0.123456)
    assert [f.step for f in feed(Frozen, still).halts] == [30 + 40]


@pytest.mark.parametrize(("loss", "found"), [(0.05, 1), (0.049, 0), (-0.05, 1)])
def test_a_small_loss_of_few_decimals_is_coarse(loss: float, found: int) -> None:
    ran = coarse(Ran(), 20, lambda value: round(value, 4)).many(200, loss=loss)
    assert len(feed(Frozen, ran).halts) == found
    clipped = coarse(Ran(), 20, lambda value: round(value, 4), grad_norm=1.0)
    assert len(feed(Frozen, clipped.many(200, loss=loss, grad_norm=1.0)).halts) == found


@pytest.mark.parametrize(
    ("digits", "found"), [(1, 0), (3, 0), (6, 0), (7, 1), (17, 1)]
)  # as `1e-05`, `1.05e-05`, …
def test_a_small_loss_of_few_digits_is_rounded_though_its_decimals_are_many(
    digits: int, found: int
) -> None:
    """A fit that converges: its last hundred losses differ by less than what is printed of them."""
    ran = Ran(order_of({}, entry="their.trainer"))
    for number in range(200):
        ran.step(loss=float(f"{(1.0 + 1.0 / (1 + number)) * 1.2345678901e-05:.{digits - 1}e}"))
    last = float(f"{1.23456789012345e-05:.{digits - 1}e}")
    assert len(feed(Frozen, ran.many(1000, loss=last)).halts) == found
    assert is_exact(last) is bool(found)


def test_numbers_that_never_moved_halt_however_coarse_they_are() -> None:
    assert feed(Frozen, Ran().many(199, loss=2.5, grad_norm=1.0)).halts == []
    assert len(feed(Frozen, Ran().many(200, loss=2.5, grad_norm=1.0)).halts) == 1
    assert feed(Frozen, Ran().many(400, loss=2.5)).halts == []


def test_a_coarse_norm_halts_only_where_the_loss_stands_as_well() -> None:
    ran = Ran()
    for number in range(300):
        ran.step(loss=4.0 - 0.001 * number, grad_norm=0.05 if number > 20 else 0.06)
    assert [f.severity for f in feed(Frozen, ran).findings] == [SUSPECT]


def test_what_was_learnt_of_the_numbers_outlasts_a_restart() -> None:
    ran = learning(Ran(), 10).many(30, loss=4.0)
    ran = learning(ran, 3).back_to(20)
    assert feed(Frozen, learning(ran, 3).many(89, loss=3.5)).halts == []
    assert [f.threshold for f in feed(Frozen, ran.many(1, loss=3.5)).halts] == [90.0]


@pytest.mark.parametrize(("before", "every"), [(120, 300), (190, 550), (30, 60)])
def test_what_a_restart_cut_short_widens_no_limit(before: int, every: int) -> None:
    """A loss that froze a while before a restart was not found before the next one."""
    ran = Ran(order=order_of({}, entry="train.py"), ranks=1)
    for number in range(300):
        ran.step(loss=round(4.0 - 0.0012345678 * number, 4 if every > 100 else 12))
    loss = 3.1234 if every > 100 else 3.12345678
    ran.many(before, loss=loss).back_to(ran.number - 10).many(every, loss=loss)
    assert len(feed(Frozen, ran).halts) == 1


@pytest.mark.parametrize(("before", "found"), [((0.6, 0.9), 2), ((0.9, 0.6), 0), ((0.95, 0.6), 2)])
def test_a_norm_that_comes_back_to_its_ceiling_is_cut_off_there(
    before: tuple[float, float], found: int
) -> None:
    ran = Ran().step(loss=3.1234567, grad_norm=0.12345678)
    for norm in before:
        ran.step(loss=3.0, grad_norm=norm)
    if before[-1] == 0.9:
        ran.step(loss=3.0, grad_norm=0.5)
        ran.step(loss=3.0, grad_norm=1.5)
    for number in range(120):
        ran.step(loss=4.0 + 0.01 * number, grad_norm=0.9)
    assert len(feed(Frozen, ran).findings) == found


def test_a_norm_that_moved_before_a_restart_says_nothing_after_it() -> None:
    ran = learning(Ran(), 100).back_to(50).many(60, loss=3.1234567)
    assert len(feed(Frozen, ran).halts) == 1


def test_skipped_steps_neither_count_nor_end_a_run_of_equal_values() -> None:
    ran = learning(Ran(), 5)
    for number in range(39):
        ran.step(loss=4.0)
        ran.step(loss=4.0 if number % 2 else 3.0, skipped=True)
    assert feed(Frozen, ran).severities == [(SUSPECT, 5 + 2 * 20 - 1)]


def test_what_is_not_told_is_no_change() -> None:
    ran = learning(Ran(), 5)
    for _ in range(40):
        ran.step(loss=4.0).step().step(loss=float("nan"))
    assert [f.severity for f in feed(Frozen, ran).findings] == [SUSPECT, HALT]


def test_an_infinite_loss_is_not_this_detectors_business() -> None:
    assert feed(Frozen, Ran().many(100, loss=float("inf"))).findings == []


def test_a_restart_at_an_earlier_step_begins_anew() -> None:
    ran = learning(Ran(), 30).many(19, loss=4.0).back_to(10).many(19, loss=4.0)
    assert feed(Frozen, ran).findings == []


def test_plan_settings_count_and_are_named() -> None:
    order = order_of({"frozen": {"loss_steps": 5, "halt_x": 3}})
    fed = feed(Frozen, learning(Ran(order=order), 5).many(20, loss=4.0))
    assert fed.severities == [(SUSPECT, 10), (HALT, 20)]
    assert fed.halts[0].source is Source.PLAN


def test_it_is_armed_by_the_first_number_and_says_when_none_was_told() -> None:
    none = feed(Frozen, Ran().many(3))
    assert not none.armed
    assert none.missing is not None
    assert "loss" in none.missing
    for told in ({"loss": 1.0}, {"grad_norm": 1.0}):
        fed = feed(Frozen, Ran().step(**told))
        assert fed.armed
        assert fed.missing is None
    assert feed(Frozen, Ran()).missing is None


def test_a_saved_state_goes_on_as_the_whole() -> None:
    ran = learning(Ran(), 30).many(60, loss=4.0, grad_norm=1.5)
    assert feed(Frozen, ran, saved_every=7).findings == feed(Frozen, ran).findings


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**9), st.integers(2, 4), st.floats(0.01, 1.0))
def test_rounded_losses_of_a_run_that_settles_down_never_halt(
    seed: int, digits: int, noise: float
) -> None:
    """The loss falls and its noise with it, so that rounding makes it stand still more and more."""
    dice, ran = random.Random(seed), Ran(ranks=1)
    for number in range(900):
        spread = noise * 0.997**number + 3 * 10.0**-digits
        ran.step(loss=round(2.0 + dice.gauss(0, spread), digits), grad_norm=round(dice.random(), 2))
    assert feed(Frozen, ran).halts == []


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**9), st.integers(1, 300))
def test_whatever_came_before_a_frozen_loss_is_found(seed: int, before: int) -> None:
    ran = learning(Ran(ranks=1), before, seed).many(40, loss=3.3)
    assert [f.severity for f in feed(Frozen, ran).findings] == [SUSPECT, HALT]


@pytest.mark.parametrize(
    ("value", "found"),
    [(2.31, [SUSPECT]), (2.315642, [SUSPECT]), (2.3156423, [SUSPECT, HALT])],
)
def test_a_number_read_from_what_is_printed_may_be_rounded(
    value: float, found: list[Severity]
) -> None:
    order = order_of({}).model_copy(update={"patterns": ["step (?P<step>.)"], "command": ["x"]})
    ran = Ran(order=order, labelled=False)
    for number in range(9):
        ran.step(loss=3.5 - 0.01 * number)
    ran.many(60, loss=value)
    assert [row.severity for row in feed(Frozen, ran).findings] == found


def test_a_step_that_is_ended_twice_begins_anew() -> None:
    ran = learning(Ran(), 10).many(39, loss=4.0).back_to(48, boot="boot").many(30, loss=4.0)
    assert feed(Frozen, ran).halts == []


def test_a_number_that_is_not_told_is_not_looked_at_again() -> None:
    """Though the other one has come to stand still, which would have told of it."""
    norm = with_norms(learning(Ran(order_of({}, entry="train.py")), 100), 50, 4.2512345678)
    norm.many(150, grad_norm=0.4567891)
    assert [f.key.split("/")[-2] for f in feed(Frozen, norm).halts] == ["grad_norm"]
    loss = Ran()
    for number in range(150):
        loss.step(loss=4.0 - 0.001 * number, grad_norm=0.05 if number > 20 else 0.06)
    loss.many(400, loss=2.5)
    assert [f.key.split("/")[-2] for f in feed(Frozen, loss).halts] == ["loss"]


def test_a_norm_that_was_told_once_beside_a_loss_does_not_move() -> None:
    ran = learning(Ran(), 100).step(loss=4.2512345678, grad_norm=0.75)
    assert feed(Frozen, ran.many(39, loss=4.2512345678)).severities == [(SUSPECT, 120), (HALT, 140)]


def test_a_norm_that_stands_since_the_same_step_and_is_told_less_often_does_not_move() -> None:
    ran = learning(Ran(order_of({}, entry="train.py")), 100)
    for _ in range(20):
        ran.step(loss=4.2512345678, grad_norm=0.75).step(loss=4.2512345678)
    assert feed(Frozen, ran).severities == [(SUSPECT, 120), (HALT, 140)]


def test_each_stand_of_a_norm_halts_once() -> None:
    ran = learning(Ran(), 20)
    for number in range(160):
        ran.step(loss=4.0 + 0.01 * number, grad_norm=0.8123456)
    assert feed(Frozen, ran).severities == [(SUSPECT, 70), (HALT, 120)]


def test_a_norm_of_few_digits_halts_beside_a_loss_that_never_moved() -> None:
    ran = Ran().many(1, loss=2.5, grad_norm=1.0003).many(1, loss=2.5, grad_norm=2.0)
    ran.many(100, loss=2.5, grad_norm=0.9003)
    assert [f.key.split("/")[-2] for f in feed(Frozen, ran).halts] == ["loss", "grad_norm"]


def test_a_norm_that_stands_at_its_largest_is_cut_off_only_where_that_is_round() -> None:
    for norm, found in ((2.1234567, 1), (2.1, 0), (2.0, 0)):
        ran = learning(Ran(), 20)
        for number in range(110):
            ran.step(loss=4.0 + 0.01 * number, grad_norm=norm)
        assert len(feed(Frozen, ran).halts) == found


@pytest.mark.parametrize(("norm", "found"), [(0.05, 1), (0.0499, 0)])
def test_a_small_norm_of_few_decimals_is_coarse(norm: float, found: int) -> None:
    ran = Ran().step(loss=2.5, grad_norm=1.0003).step(loss=2.5, grad_norm=0.7)
    halts = feed(Frozen, ran.many(110).many(110, grad_norm=norm)).halts
    assert len(halts) == found


@pytest.mark.parametrize(("norm", "named"), [(0.81, {"loss"}), (0.81234567, {"loss", "grad_norm"})])
def test_a_norm_read_from_what_is_printed_may_be_rounded(norm: float, named: set[str]) -> None:
    order = order_of({}).model_copy(update={"patterns": ["step (?P<step>.)"], "command": ["x"]})
    ran = Ran(order=order, labelled=False).step(loss=3.1234567, grad_norm=9.5)
    for number in range(8):
        ran.step(loss=3.5 - 0.01 * number, grad_norm=round(0.5 + 0.01 * number, 2))
    halts = feed(Frozen, ran.many(120, loss=2.3156423, grad_norm=norm)).halts
    assert {halt.key.split("/")[-2] for halt in halts} == named


@pytest.mark.parametrize(("bits", "found"), [(11, 0), (12, 1)])
def test_half_precision_holds_eleven_bits(bits: int, found: int) -> None:
    """Two of them are those of the three before the point."""
    ran = coarse(Ran(), 20, half).many(40, loss=3.0 + 2.0 ** (2 - bits))
    assert len(feed(Frozen, ran).halts) == found


@pytest.mark.parametrize(
    ("value", "exact"),
    [
        (2.3025850929940455, True),
        (2.302585, False),
        (2.3125, False),
        (0.00048828125, False),
        (0.0, False),
    ],
    ids=["whole", "rounded", "both", "half precision", "zero"],
)
def test_a_number_is_exact_that_was_neither_rounded_nor_of_half_precision(
    value: float, exact: bool
) -> None:
    assert is_exact(value) is exact


@pytest.mark.parametrize("every", [250, 500, 1000])
def test_a_user_may_refresh_the_loss_every_thousand_steps_and_tell_no_norm(every: int) -> None:
    """Its first value is all that is known of its way by then."""
    ran, dice = Ran(order_of({}, steps=5000, entry="train.py")), random.Random(1)
    for _ in range(4):
        ran.many(every, loss=dice.uniform(1.0, 2.0))
    assert feed(Frozen, ran).halts == []


@pytest.mark.parametrize(
    ("entry", "norm", "halts"),
    [("train.py", None, 1200), ("train.py", 1.0625, 200), ("nsa.train", None, 200)],
    ids=["no norm", "a norm that stands still, too", "ours"],
)
def test_a_loss_that_never_changes_halts(entry: str, norm: float | None, halts: int) -> None:
    ran = Ran(order_of({}, steps=5000, entry=entry))
    fed = feed(Frozen, ran.many(1300, loss=4.1034567890123, grad_norm=norm))
    assert [finding.step for finding in fed.halts] == [halts]
