"""D10: numbers that are none."""

from typing import Any

import pytest

from gonogo.contract.finding import Finding, Severity
from gonogo.contract.heartbeat import Identity
from gonogo.contract.outcome import Detector
from gonogo.watch import armed
from tests.watch.streams import EPOCH, World, order_of, watch


def run_of(dtype: str | None = "fp32", **fields: object) -> World:
    identity = Identity(dtype=dtype, tokens_per_step=2048)
    return World(order_of(identity=identity, steps=400), **fields).boot()  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("name", ["loss", "grad_norm"])
@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity"])
def test_one_bad_number_halts_on_its_line(dtype: str, name: str, value: str) -> None:
    world = run_of(dtype).steps(14)
    numbers: dict[str, Any] = {name: value}
    world.steps(1, **numbers)
    written = next(line for line in world.ranks[0].lines if value.encode() in line.raw)
    (halt,) = watch(world).halts
    assert (halt.detector, halt.rank, halt.step) == ("non_finite", None, 15)
    assert name in halt.text
    assert halt.at - EPOCH - (written.mono - 5000.0) <= 0.25


def test_finite_numbers_are_silent_however_large() -> None:
    assert watch(run_of().steps(5, loss=1e30, grad_norm=1e30)).halts == []


def test_an_episode_is_told_once_and_a_new_one_again() -> None:
    world = run_of().steps(3).steps(3, loss="NaN").steps(3).steps(2, loss="NaN")
    found = watch(world, stop_at_halt=False)
    assert [halt.step for halt in found.halts] == [4, 10]


@pytest.mark.parametrize("told", ["loss", "grad_norm"])
def test_one_finite_number_ends_an_episode(told: str) -> None:
    numbers = {"loss": None, "grad_norm": None, told: 1.0}
    world = run_of().steps(3).steps(3, loss="NaN").steps(3, **numbers).steps(2, loss="NaN")
    assert [halt.step for halt in watch(world, stop_at_halt=False).halts] == [4, 10]


def test_outside_fp16_a_step_that_was_not_applied_is_no_excuse() -> None:
    (halt,) = watch(run_of("bf16").steps(3).steps(1, loss="NaN", skipped=True).steps(3)).halts
    assert halt.step == 4


@pytest.mark.parametrize(
    ("numbers", "found"),
    [({}, [103]), ({"loss": None, "grad_norm": None}, [103]), ({"skipped": False}, [])],
    ids=["finite", "none told", "applied"],
)
def test_bf16_updates_that_are_all_left_out_halt_once(
    numbers: dict[str, Any], found: list[int]
) -> None:
    """A rule of the trainer's own, against spikes, that lets no step pass any more."""
    world = run_of("bf16").steps(3, skipped=False).steps(130, **{"skipped": True, **numbers})
    halts = watch(world, interval_s=1.0, stop_at_halt=False).halts
    assert [halt.step for halt in halts] == found
    assert all("100 steps running were skipped" in halt.text for halt in halts)


def test_bf16_may_leave_out_most_updates_and_begins_anew_after_a_restart() -> None:
    world = run_of("bf16")
    for _ in range(2):
        world.steps(99, skipped=True).steps(1)
    assert watch(world, interval_s=1.0).halts == []
    world.steps(60, skipped=True)
    for rank in world.ranks:
        rank.boot, rank.seq, rank.step, rank.section = f"again{rank.rank}", 0, 200, "boot"
    world.boot().steps(1)
    for rank in world.ranks:
        rank.step = 200
    assert watch(world.steps(60, skipped=True), interval_s=1.0).halts == []


def test_a_step_that_is_told_twice_was_left_out_once() -> None:
    world = run_of("bf16")
    for _ in range(60):
        world.open_step()
        world.compute(step_s=0.5)
        for rank in world.ranks:
            for _ in range(2):
                rank.say("progress", loss=5.0, grad_norm=1.0, skipped=True)
            rank.say("step_end", tokens=2048)
            rank.in_step = False
    assert watch(world, interval_s=1.0).halts == []


def test_one_rank_alone_may_tell_what_was_left_out() -> None:
    world = run_of("bf16")
    for step in range(1, 102):
        world.open_step()
        world.compute(step_s=0.5)
        for rank in world.ranks:
            told = {"skipped": True} if rank.rank else {}
            rank.say("progress", loss=5.0, grad_norm=1.0, **told)
            rank.say("step_end", tokens=2048)
            rank.in_step = False
        assert rank.step == step
    (halt,) = watch(world, interval_s=1.0).halts
    assert halt.step == 100


def test_fp16_may_skip_its_first_steps_while_the_scale_is_sought_but_not_for_ever() -> None:
    assert watch(run_of("fp16").steps(6, skipped=True).steps(9)).halts == []
    assert watch(run_of("fp16").steps(20, skipped=True)).halts != []


def test_two_skipped_fp16_steps_are_silent_and_three_running_halt() -> None:
    world = run_of("fp16").steps(3).steps(2, skipped=True).steps(4).steps(2, loss="Infinity")
    assert watch(world.steps(1)).halts == []
    (halt,) = watch(run_of("fp16").steps(3).steps(3, skipped=True)).halts
    assert halt.step == 6


def started_anew(world: World, step: int, name: str = "again") -> World:
    """Every rank starts anew in place, and goes on after a step."""
    for rank in world.ranks:
        rank.boot, rank.seq, rank.section = f"{name}{rank.rank}", 0, "boot"
    world.boot()
    for rank in world.ranks:
        rank.step = step
    return world


def test_fp16_may_seek_its_scale_anew_after_a_restart() -> None:
    """A checkpoint that does not hold the scale."""
    world = started_anew(run_of("fp16").steps(120), 120).steps(6, skipped=True).steps(20)
    assert watch(world, interval_s=1.0).halts == []


@pytest.mark.parametrize("step", [0, 30, 110, 120])
def test_fp16_that_only_overflows_after_a_restart_is_halted_wherever_that_went_back_to(
    step: int,
) -> None:
    world = started_anew(run_of("fp16").steps(120), step).steps(17, skipped=True)
    (halt,) = watch(world, interval_s=1.0).halts
    assert halt.step == step + 16


def test_after_such_a_search_three_fp16_steps_running_halt() -> None:
    world = started_anew(run_of("fp16").steps(120), 30).steps(2, skipped=True).steps(5)
    (halt,) = watch(world.steps(3, skipped=True), interval_s=1.0).halts
    assert halt.step == 40


def sought(scales: list[float]) -> list[Finding]:
    """The halts of an fp16 run that skips a step for each loss scale."""
    world = run_of("fp16").steps(3, loss_scale=scales[0])
    for scale in scales:
        world.steps(1, skipped=True, loss_scale=scale)
    return watch(world).halts


def test_fp16_steps_that_each_lower_the_scale_may_be_skipped_longer() -> None:
    assert sought([2.0**16, 2.0**15, 2.0**14, 2.0**13]) == []
    assert sought([2.0**power for power in range(32, 13, -1)]) == []  # where some begin
    assert sought([2.0**16, 2.0**16, 2.0**15, 2.0**15, 2.0**14]) == []  # with hysteresis
    (halt,) = sought([2.0**power for power in range(16, -20, -1)])
    assert halt.value == 18  # the scale has come below 1
    (halt,) = sought([2.0**power for power in range(100, 20, -1)])
    assert halt.value == 40


def test_the_scale_has_to_be_told_each_time_and_never_rise() -> None:
    """Else it is three steps running."""
    world = run_of("fp16").steps(3, loss_scale=2.0**16)
    for scale in (2.0**16, None, 2.0**14):
        world.steps(1, skipped=True, **({} if scale is None else {"loss_scale": scale}))
    assert len(watch(world).halts) == 1
    (halt,) = sought([2.0**16, 2.0**16, 2.0**15, 2.0**15, 2.0**15])
    assert halt.value == 5, "thrice the same is no hysteresis of two"


def test_fp16_may_skip_sixteen_of_its_first_steps() -> None:
    assert watch(run_of("fp16").steps(15, skipped=True).steps(3)).halts == []
    (halt,) = watch(run_of("fp16").steps(16, skipped=True)).halts
    assert (halt.step, halt.value) == (16, 16.0)


def test_what_the_search_skipped_is_not_held_against_the_steps_that_follow() -> None:
    world = run_of("fp16")
    for power in range(32, 13, -1):
        world.steps(1, skipped=True, loss_scale=2.0**power)
    world.steps(1, loss_scale=2.0**13).steps(110)
    assert watch(world).halts == []
    for _ in range(10):
        world.steps(8).steps(1, skipped=True)
    assert len(watch(world).halts) == 1


@pytest.mark.parametrize(
    ("first", "count", "again", "halts"),
    [
        (16, 9, 0, 0),
        (16, 10, 0, 0),  # it was halted by the first step that was applied
        (30, 30, 0, 0),
        (16, 10, 9, 0),
        (16, 10, 10, 1),  # of two within a hundred steps the longer one alone is excused
        (8, 10, 0, 1),  # it came below 1
    ],
)
def test_what_a_search_in_mid_run_skipped_is_excused_once_it_has_ended(
    first: int, count: int, again: int, halts: int
) -> None:
    world = run_of("fp16").steps(120, loss_scale=2.0**first)
    for power in range(first, first - count, -1):
        world.steps(1, skipped=True, loss_scale=2.0**power)
    world.steps(20, loss_scale=2.0 ** (first - count))
    for power in range(16, 16 - again, -1):
        world.steps(1, skipped=True, loss_scale=2.0**power)
    world.steps(20, loss_scale=2.0**6)
    assert len(watch(world).halts) == halts


def test_steps_that_are_skipped_by_twos_are_no_search() -> None:
    world, power = run_of("fp16").steps(120, loss_scale=2.0**60), 60
    for _ in range(7):
        for _ in range(2):
            world.steps(1, skipped=True, loss_scale=2.0**power)
            power -= 1
        world.steps(1, loss_scale=2.0**power)
    assert len(watch(world).halts) == 1


def test_a_scale_of_one_may_fall_longer_and_one_below_may_not() -> None:
    def to(last: float) -> list[float]:
        return [last * 2.0**power for power in range(16, -1, -1)]

    assert sought(to(1.0)) == []
    (halt,) = sought(to(0.5))
    assert halt.value == 17


def test_fp16_steps_that_do_not_lower_the_scale_are_three_at_most() -> None:
    assert sought([2.0**16, 2.0**16]) == []
    assert len(sought([2.0**16, 2.0**16, 2.0**16])) == 1
    assert len(sought([2.0**16, 2.0**15, 2.0**16])) == 1


@pytest.mark.parametrize(
    ("dtype", "scale", "skipped", "halts"),
    [
        (None, None, True, 0),
        (None, 65536.0, True, 0),
        ("fp32", 65536.0, True, 0),
        ("fp32", None, True, 0),
        ("fp32", None, False, 1),
        ("bf16", 65536.0, True, 1),
        (None, 65536.0, False, 1),
        (None, 65536.0, None, 0),
        ("fp32", 65536.0, None, 0),
        ("bf16", 65536.0, None, 1),
        (None, None, None, 1),
    ],
)
def test_in_mixed_precision_an_overflow_is_excused_where_it_was_skipped(
    dtype: str | None, scale: float | None, skipped: bool | None, halts: int
) -> None:
    world = run_of(dtype)
    for bad in (True, False, False, True, False):
        told: dict[str, Any] = {"loss_scale": scale}
        told["skipped"] = skipped if bad else (None if skipped is None else False)
        if bad:
            told["grad_norm"] = "Infinity"
        world.steps(1, **{name: value for name, value in told.items() if value is not None})
    assert min(1, len(watch(world).halts)) == halts


@pytest.mark.parametrize("skipped", [{"skipped": True}, {}])
def test_mixed_precision_that_only_overflows_is_halted(skipped: dict[str, Any]) -> None:
    told = {"grad_norm": "NaN", "loss_scale": 1.0, **skipped}
    assert watch(run_of(None).steps(5, loss_scale=1.0).steps(4, **told)).halts != []


def test_a_loss_that_is_not_finite_is_excused_by_no_scale() -> None:
    world = run_of(None).steps(5, loss_scale=1.0).steps(1, loss="NaN", loss_scale=0.5)
    (halt,) = watch(world).halts
    assert halt.step == 6


def printed(dtype: str | None, *numbers: tuple[float | str, float | str]) -> list[Finding]:
    """What is found of a program that is only read, and prints loss and norm every tenth step."""
    order = order_of(identity=Identity(dtype=dtype), steps=400, world_size=1)
    order = order.model_copy(update={"patterns": ["x"], "command": ["x"]})
    world = World(order)
    (rank,) = world.ranks
    for loss, norm in numbers:
        rank.mono += 5.0
        rank.step += 10
        rank.section, rank.section_seq = None, 0
        rank.say("progress", loss=loss, grad_norm=norm)
    return watch(world).halts


@pytest.mark.parametrize(
    ("dtype", "lines", "halts"),
    [
        (None, [(5.5, "Infinity"), (5.4, 2.0), (5.3, "NaN"), (5.2, 1.5)], 0),
        (None, [(5.5, 2.0), (5.4, "NaN"), (5.3, "NaN"), (5.2, "NaN")], 1),
        (None, [(5.5, 2.0), ("NaN", 1.0)], 1),
        (None, [(5.5, 2.0), ("NaN", "NaN")], 1),
        ("bf16", [(5.5, 2.0), (5.4, "Infinity")], 1),
    ],
    ids=["overflows", "nothing but overflows", "the loss", "both", "bf16"],
)
def test_a_norm_that_a_program_prints_may_be_of_a_step_that_fp16_skipped(
    dtype: str | None, lines: list[tuple[float | str, float | str]], halts: int
) -> None:
    assert len(printed(dtype, *lines)) == halts


def test_a_validation_loss_that_is_not_finite_is_told_and_halts_nothing() -> None:
    world = run_of("bf16").steps(3)
    for _ in range(2):
        for rank in world.ranks:
            rank.say("eval", val_loss="NaN")
        world.steps(2)
    found = watch(world)
    assert found.halts == []
    assert found.named(Severity.WARN) >= {"non_finite"}


def test_ten_skipped_fp16_steps_of_a_hundred_halt() -> None:
    world = run_of("fp16")
    for _ in range(9):
        world.steps(9).steps(1, skipped=True)
    assert watch(world).halts == []
    world.steps(9).steps(1, skipped=True)
    (halt,) = watch(world).halts
    assert halt.step == 100


def test_skipped_fp16_steps_far_apart_are_silent() -> None:
    world = run_of("fp16")
    for _ in range(12):
        world.steps(11).steps(1, skipped=True)
    assert watch(world).halts == []


@pytest.mark.parametrize(("apart", "halts"), [(11, 0), (9, 1)])
def test_a_trainer_may_tell_skipped_steps_alone_where_the_order_names_no_dtype(
    apart: int, halts: int
) -> None:
    """An unnamed fp16 run that skips one step in two thousand skips a hundred in all."""
    world = run_of(None)
    for _ in range(20):
        world.steps(apart).steps(1, skipped=True)
    assert len(watch(world, interval_s=1.0).halts) == halts


@pytest.mark.parametrize("dtype", [None, "fp16"])
def test_a_rank_that_never_tells_what_was_skipped_ends_no_series(dtype: str | None) -> None:
    world = run_of(dtype)
    for _ in range(20):
        world.open_step()
        first, silent = world.ranks
        silent.say("progress", loss=4.0)
        first.spend(0.5)
        first.say("progress", loss=4.0, skipped=True)
        silent.spend(0.5)
    (halt,) = watch(world).halts
    assert halt.step == 16


@pytest.mark.parametrize("told", [{"val_loss": 3.0}, {}], ids=["finite", "not told"])
def test_a_validation_loss_that_is_finite_or_not_told_is_silent(told: dict[str, float]) -> None:
    world = run_of("bf16").steps(2)
    for rank in world.ranks:
        rank.say("eval", **told)
    found = watch(world.steps(2))
    assert found.findings == []
    assert armed(found.state)[Detector.NON_FINITE]


def test_it_is_armed_by_a_loss() -> None:
    assert not armed(watch(run_of()).state)[Detector.NON_FINITE]


@pytest.mark.parametrize("told", [{"loss": "NaN"}, {"grad_norm": "NaN"}], ids=str)
def test_a_line_may_tell_one_number_alone(told: dict[str, str]) -> None:
    world = run_of().steps(2)
    world.open_step()
    world.ranks[0].say("progress", **told)
    world.ranks[0].spend(1.0)
    (halt,) = watch(world).halts
    assert (halt.detector, halt.step) == ("non_finite", 3)


def test_a_peer_whose_number_of_the_same_step_is_finite_ends_no_episode() -> None:
    world = run_of().steps(2)
    for _ in range(2):
        world.open_step()
        for rank, loss in zip(world.ranks, ("NaN", 4.0), strict=True):
            rank.say("progress", loss=loss)
            rank.spend(0.5)
    found = watch(world, stop_at_halt=False)
    assert [halt.step for halt in found.halts] == [3]


@pytest.mark.parametrize(
    ("scales", "halts"),
    [
        ([2.0**16], 0),
        ([2.0**16, 2.0**15], 0),
        ([2.0**16, 2.0**16], 1),
        ([2.0**15, 2.0**16], 1),
        ([2.0**16, 2.0**15, 2.0**15], 0),
    ],
)
def test_two_scales_of_which_one_is_lower_fall(scales: list[float], halts: int) -> None:
    identity = Identity(dtype="fp16", tokens_per_step=2048)
    order = order_of({"non_finite": {"fp16_running": 2}}, identity=identity, world_size=1)
    world = World(order).boot().steps(1)
    for scale in scales:
        world.steps(1, skipped=True, loss_scale=scale)
    # the second of two equal ones halts, before a third could lower it
    assert len(watch(world).halts) == halts


@pytest.mark.parametrize(("skipped", "halts"), [(9, 0), (10, 1)])
def test_of_what_the_search_skipped_not_even_the_last_step_counts(skipped: int, halts: int) -> None:
    world = run_of("fp16").steps(5, skipped=True).steps(1)
    for _ in range(skipped):
        world.steps(1, skipped=True).steps(8)
    assert len(watch(world).halts) == halts


def test_the_text_counts_the_steps_that_were_looked_at() -> None:
    (halt,) = watch(run_of("fp16").steps(4).steps(3, skipped=True)).halts
    assert halt.text.startswith("3 fp16 steps running, 3 of 7, ")
