"""D21: lies about speed are found; honest reports of every kind are not."""

import json
import random
import statistics
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gonogo.contract.canonical import wire_line
from gonogo.contract.finding import Severity, Source
from gonogo.contract.heartbeat import Identity
from gonogo.contract.watch import Watch
from gonogo.watch.detectors.implausible_speed import (
    ImplausibleSpeed,
    Speeds,
    limit_tok_s,
)
from gonogo.watch.registry import versions
from gonogo.watch.step import Step
from gonogo.watch.stream import RankStream
from gonogo.watch.view import Run
from tests.watch.steps import Ran, feed
from tests.watch.streams import EPOCH, T0, Said, World, order_of, watch, without_sections

WARN, HALT = Severity.WARN, Severity.HALT
TOKENS = 2048
NAME = ImplausibleSpeed.name


def test_a_report_above_what_the_step_ends_allow_halts() -> None:
    ran = Ran().many(60, toks_per_s=TOKENS / 1.0).many(40, toks_per_s=25 * TOKENS)
    fed = feed(ImplausibleSpeed, ran)
    assert fed.severities == [(HALT, 70)]
    halt = fed.halts[0]
    assert halt.value == 13 * TOKENS
    assert halt.threshold == pytest.approx(1.1 * TOKENS / 0.98)
    assert halt.source is Source.DEFAULT
    assert halt.since == EPOCH + 50.0
    assert halt.key == "run_1/1/implausible_speed/halt/above/step70"


def test_a_lie_from_the_start_is_found_after_twenty_timed_steps() -> None:
    assert feed(ImplausibleSpeed, Ran().many(20, toks_per_s=9999.0)).findings == []
    assert feed(ImplausibleSpeed, Ran().many(30, toks_per_s=9999.0)).severities == [(HALT, 21)]


@pytest.mark.parametrize(
    ("factor", "found"),
    [(0.88, [WARN]), (0.91, []), (1.0, []), (1.0 / 0.98, []), (1.12, []), (1.13, [HALT])],
)
def test_the_edges_of_a_tenth(factor: float, found: list[Severity]) -> None:
    fed = feed(ImplausibleSpeed, Ran().many(60, toks_per_s=factor * TOKENS))
    assert [f.severity for f in fed.findings] == found


@pytest.mark.parametrize("share", [1, 2], ids=["of all ranks", "of one rank"])
def test_a_report_may_rise_with_the_tokens_of_a_step(share: int) -> None:
    ran = Ran().many(200, toks_per_s=TOKENS, tokens=TOKENS // share)
    ran.many(100, toks_per_s=2 * TOKENS, tokens=2 * TOKENS // share)
    assert feed(ImplausibleSpeed, ran).findings == []
    lies = feed(ImplausibleSpeed, ran.many(40, toks_per_s=3 * TOKENS, tokens=2 * TOKENS // share))
    assert [f.severity for f in lies.findings] == [HALT]
    same = Ran().many(200, toks_per_s=TOKENS, tokens=TOKENS)
    same.many(100, toks_per_s=2 * TOKENS, tokens=TOKENS)
    assert [f.severity for f in feed(ImplausibleSpeed, same).findings] == [HALT]


@pytest.mark.parametrize("most_x", [2.0, 4.0, 8.0])
def test_a_report_of_a_ramp_that_begins_at_once_is_no_lie(most_x: float) -> None:
    ran = Ran()
    for number in range(200):
        more_x = 1.0 + (most_x - 1.0) * min(1.0, number / 84)
        ran.step(dt_s=more_x, toks_per_s=TOKENS, tokens=round(more_x * TOKENS))
    assert feed(ImplausibleSpeed, ran).findings == []


def test_a_report_of_sequences_of_any_length_is_no_lie() -> None:
    for seed in range(40):
        dice, ran = random.Random(seed), Ran()
        for _ in range(120):
            more_x = dice.lognormvariate(0.0, 0.6)
            ran.step(dt_s=more_x, toks_per_s=TOKENS, tokens=round(more_x * TOKENS))
        assert feed(ImplausibleSpeed, ran).halts == []


def test_a_report_below_warns_once() -> None:
    ran = Ran()
    for number in range(300):
        ran.step(toks_per_s=TOKENS * (0.5 if number // 60 % 2 else 1.0))
    fed = feed(ImplausibleSpeed, ran)
    assert [f.severity for f in fed.findings] == [WARN]
    assert fed.findings[0].threshold == pytest.approx(0.9 * TOKENS)
    assert fed.findings[0].key.startswith("run_1/1/implausible_speed/warn/below/")


def test_a_report_below_the_fastest_single_step_must_last() -> None:
    """An average may still weigh a lucky first step; sixty steps later it cannot."""
    ran = Ran()
    for number in range(1, 400):
        ran.step(dt_s=0.5 if number in (5, 7) else 1.0, toks_per_s=1.3 * TOKENS)
    assert feed(ImplausibleSpeed, ran).severities == [(HALT, 20 + 60)]


def test_an_average_that_counts_pauses_is_not_too_low() -> None:
    ran = Ran()
    for number in range(1, 200):
        ran.step(dt_s=41.0 if number % 20 == 0 else 1.0, toks_per_s=TOKENS / 3.0)
    assert feed(ImplausibleSpeed, ran).findings == []
    assert len(feed(ImplausibleSpeed, Ran().many(60, toks_per_s=TOKENS / 3.0)).findings) == 1


@pytest.mark.parametrize("stopwatch_s", [None, 0.5])
@pytest.mark.parametrize(("factor", "found"), [(1.0, []), (1.2, [HALT])])
def test_what_lies_between_two_steps_may_be_left_out_of_a_report(
    stopwatch_s: float | None, factor: float, found: list[Severity]
) -> None:
    """A trainer that plays its episodes, or fetches its batch, before it says `step_start`."""
    told = {"between_s": 1.5, "stopwatch_s": stopwatch_s, "toks_per_s": factor * TOKENS / 0.5}
    fed = feed(ImplausibleSpeed, Ran(dt_s=2.0).many(60, **told))
    assert [f.severity for f in fed.findings] == found


@pytest.mark.parametrize("stopwatch_s", [None, 1.0, float("nan")])
def test_a_step_does_not_begin_where_its_lines_are_written(stopwatch_s: float | None) -> None:
    """All of them at the end: nothing before that was between two steps."""
    ran = Ran().many(60, between_s=1.0, stopwatch_s=stopwatch_s, toks_per_s=25 * TOKENS)
    assert [f.severity for f in feed(ImplausibleSpeed, ran).findings] == [HALT]


@pytest.mark.parametrize(("factor", "found"), [(1.0, []), (25.0, ["implausible_speed"])])
def test_the_lines_say_what_lies_between_two_steps(factor: float, found: list[str]) -> None:
    world = World(order_of({}, steps=100, detectors=versions())).boot()
    for _ in range(40):
        world.steps(1, step_s=1.0, toks_per_s=factor * TOKENS / 1.0).pause(None, 0.5)
    assert [f.detector for f in watch(world).halts] == found


def test_what_was_believed_again_is_a_new_episode() -> None:
    ran = Ran().many(40, toks_per_s=9999.0).many(40, toks_per_s=TOKENS).many(40, toks_per_s=9999.0)
    assert [f.severity for f in feed(ImplausibleSpeed, ran).findings] == [HALT, HALT]


def honest(kind: str, seed: int, steps: int = 400, ranks: int = 1) -> Ran:
    """A run whose trainer reports honestly, in one of the ways in which trainers do."""
    dice, ran, smooth, times, best = random.Random(seed), Ran(ranks=ranks), 0.0, [], 0.0
    sigma, usual_s = dice.choice([0.05, 0.25, 0.5]), dice.choice([0.05, 1.0, 25.0])
    fetch = dice.choice([0.0, 0.1, 0.5])
    for number in range(1, steps):
        level = 1.6 if 200 < number < 300 else 1.0
        own_s = level * usual_s * dice.lognormvariate(0, sigma)
        own_s += dice.uniform(0.5, 5.0) if dice.random() < 1 / 100 else 0.0
        fetch_s = fetch * own_s
        step_s = own_s + fetch_s + dice.uniform(0.0, 0.01)
        times.append(step_s)
        smooth += (0.05 if number > 1 else 1.0) * (TOKENS / step_s - smooth)
        best = max(best, statistics.fmean([TOKENS / s for s in times[-20:]]) if number > 20 else 0)
        told = {
            "every step": TOKENS / step_s,
            "without data": TOKENS / own_s,
            "smoothed": smooth,
            "since the start": TOKENS * number / sum(times),
            "last 50": TOKENS * len(times[-50:]) / sum(times[-50:]),
            "best of windows": best,
        }[kind]
        ran.step(dt_s=step_s if number > 1 else None, toks_per_s=told, dt_fetch_s=fetch_s)
    return ran


@pytest.mark.long
@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(
        ["every step", "without data", "smoothed", "since the start", "last 50", "best of windows"]
    ),
    st.integers(0, 10**9),
)
def test_no_honest_report_halts(kind: str, seed: int) -> None:
    assert feed(ImplausibleSpeed, honest(kind, seed)).halts == []


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10**9), st.floats(2.5, 100.0), st.sampled_from([0.05, 0.25]))
def test_every_gross_lie_is_found(seed: int, factor: float, sigma: float) -> None:
    dice, ran = random.Random(seed), Ran(ranks=1)
    for number in range(1, 200):
        step_s = dice.lognormvariate(0, sigma)
        lie = factor if number > 100 else 1.0
        ran.step(dt_s=step_s if number > 1 else None, toks_per_s=lie * TOKENS / step_s)
    assert len(feed(ImplausibleSpeed, ran).halts) == 1


def test_data_time_is_taken_out_as_fetch_or_as_section() -> None:
    for told in ({"dt_fetch_s": 0.5}, {"sections": {"data": 0.5}}):
        ran = Ran().many(60, toks_per_s=2 * TOKENS, **told)
        assert feed(ImplausibleSpeed, ran).findings == []
    assert feed(ImplausibleSpeed, Ran().many(60, toks_per_s=2 * TOKENS)).halts != []
    negative = Ran().many(60, toks_per_s=0.5 * TOKENS * 1.2, dt_s=2.0, dt_fetch_s=-9.0)
    assert len(feed(ImplausibleSpeed, negative).halts) == 1


def test_some_of_a_step_always_counts() -> None:
    ran = Ran().many(60, toks_per_s=25 * TOKENS, dt_fetch_s=1.0)
    assert len(feed(ImplausibleSpeed, ran).halts) == 1


def test_the_ordered_tokens_count_and_not_what_a_line_says() -> None:
    ran = Ran().many(60, toks_per_s=25 * TOKENS, tokens=25 * TOKENS)
    assert len(feed(ImplausibleSpeed, ran).halts) == 1
    unknown = order_of({}, identity=Identity())
    ran = Ran(order=unknown).many(60, toks_per_s=25 * TOKENS, tokens=25 * TOKENS)
    assert feed(ImplausibleSpeed, ran).findings == []
    fed = feed(ImplausibleSpeed, Ran(order=unknown).many(60, toks_per_s=1.0))
    assert fed.findings == []
    assert not fed.armed
    assert fed.missing is not None
    assert "no step could be timed" in fed.missing


def test_a_step_that_nobody_timed_counts_for_nothing() -> None:
    ran = Ran()
    for _ in range(60):
        ran.step(dt_s=None, toks_per_s=9999.0).step(dt_s=0.0, toks_per_s=9999.0)
    assert feed(ImplausibleSpeed, ran).findings == []


def test_a_trainer_that_reports_no_speed_is_not_checked_and_that_is_said() -> None:
    fed = feed(ImplausibleSpeed, Ran().many(60, loss=1.0))
    assert fed.findings == []
    assert fed.armed
    assert fed.missing is not None
    assert "reports no tokens/s" in fed.missing
    assert feed(ImplausibleSpeed, Ran()).missing is None


def test_of_a_run_of_one_step_it_says_that_no_step_could_be_timed() -> None:
    fed = feed(ImplausibleSpeed, gpu(NEEDED).step(toks_per_s=TOKENS))
    assert fed.missing == "Speed was not wholly checked: no step could be timed."


def test_tokens_of_the_first_step_alone_are_held_against_nothing_and_that_is_said() -> None:
    fed = feed(ImplausibleSpeed, gpu(NEEDED).step(toks_per_s=TOKENS).many(5, loss=1.0))
    assert fed.missing is not None
    assert "of no step that could be timed" in fed.missing


def gpu(peak_flops: float | None, params: int | None = 100_000_000, **fields: object) -> Ran:
    known = {"params": params, "vocab": 256, "dim": 1024, "tokens_per_step": TOKENS, **fields}
    order = order_of({}, identity=Identity(**known)).model_copy(update={"profile": "rented"})
    return Ran(order=order, peak_flops=peak_flops)


NEEDED = 6 * (100_000_000 - 256 * 1024) * TOKENS
"""Operations a second of a step of one second."""


@pytest.mark.parametrize(("peak", "found"), [(1.001, 0), (0.999, 1)])
def test_more_than_the_devices_can_multiply_halts(peak: float, found: int) -> None:
    fed = feed(ImplausibleSpeed, gpu(peak * NEEDED).many(60, toks_per_s=TOKENS))
    assert len(fed.halts) == found
    assert fed.missing is None
    for halt in fed.halts:
        assert (halt.step, halt.value) == (21, TOKENS)
        assert halt.threshold == pytest.approx(peak * TOKENS)
        assert halt.key == "run_1/1/implausible_speed/halt/peak/step21"


@pytest.mark.parametrize(("peak", "found"), [(0.26, 0), (0.24, 1)])
def test_a_cpu_is_allowed_four_times_its_measured_peak(peak: float, found: int) -> None:
    order = gpu(None).order.model_copy(update={"profile": "cpu"})
    ran = Ran(order=order, peak_flops=peak * NEEDED).many(60, toks_per_s=TOKENS)
    assert len(feed(ImplausibleSpeed, ran).halts) == found


@pytest.mark.parametrize(
    ("profile", "of", "found"),
    [
        ("a100-pcie-gen4", "cpu", 0),
        ("a100-pcie-gen4", "cuda", 0),
        ("a100-pcie-gen4", None, 0),
        ("rented", "cuda", 1),
        ("rented", None, 1),
        ("rented", "cpu", 0),
        ("cpu", "cuda", 1),
        ("cpu", "cpu", 0),
        ("cpu", None, 0),
    ],
)
def test_a_peak_counts_for_the_kind_of_device_that_it_was_measured_on(
    profile: str, of: str | None, found: int
) -> None:
    """What a busy host reached at preflight never lowers what the table says a GPU can do."""
    order = gpu(None).order.model_copy(update={"profile": profile})
    ran = Ran(order=order, peak_flops=0.5 * NEEDED, peak_of=of).many(60, toks_per_s=TOKENS)
    fed = feed(ImplausibleSpeed, ran)
    assert (len(fed.halts), fed.missing) == (found, None)


def other(command: bool, **setting: float) -> dict[str, object]:
    """What an order says of a program that is not ours."""
    program = {"command": ["python", "train.py"]} if command else {"entry": "train.py"}
    return {**program, "watch": Watch.model_validate({"implausible_speed": setting})}


@pytest.mark.parametrize("command", [False, True])
@pytest.mark.parametrize("x", [1.5, 30.0])
def test_a_model_of_which_each_token_meets_a_part_goes_on(x: float, command: bool) -> None:
    """Experts, tables that are looked up, a frozen trunk: only its author can count the work."""
    order = gpu(None).order.model_copy(update=other(command))
    fed = feed(ImplausibleSpeed, Ran(order=order, peak_flops=NEEDED / x, peak_of="cuda").many(60))
    assert [f.severity for f in fed.findings] == [WARN]
    assert "every parameter" in fed.findings[0].text
    assert "mfu" not in (fed.missing or "")


@pytest.mark.parametrize(("peak", "found"), [(1.001, []), (0.999, [HALT])])
def test_a_plan_that_sets_the_share_vouches_for_its_model(
    peak: float, found: list[Severity]
) -> None:
    order = gpu(None).order.model_copy(update=other(True, mfu=1.0))
    ran = Ran(order=order, peak_flops=peak * NEEDED, peak_of="cuda").many(60)
    assert [f.severity for f in feed(ImplausibleSpeed, ran).findings] == found


@pytest.mark.parametrize(
    ("told", "ours", "found"),
    [
        (["cpu", "cpu"], False, 1),
        (["cpu", "cpu"], True, 1),
        ([None, None], True, 1),
        ([None, None], False, 0),
        (["NVIDIA H100 80GB HBM3 MIG 1g.10gb"] * 2, False, 0),
        (["xla", "cpu"], False, 0),
        (["cpu", "xla"], False, 0),
    ],
)
def test_a_cpus_peak_says_nothing_of_ranks_that_compute_elsewhere(
    told: list[str | None], ours: bool, found: int
) -> None:
    """A slice of a GPU is measured by nobody, nor is an accelerator that no driver here knows."""
    vouched = other(True, mfu=1.0)
    identity = Identity(params=10**9, tokens_per_step=TOKENS)
    order = order_of(
        {}, identity=identity, steps=60, detectors=versions(), allow_drift=["device"]
    ).model_copy(
        update={"watch": vouched["watch"], **({} if ours else {"command": vouched["command"]})}
    )
    world = World(order)
    peak = {"flops": 6 * 10**9 * TOKENS / 8, "of": "cpu"}
    world.probes.append((T0, {"observations": {"preflight_peak": peak}}))
    world.boot()
    for rank, device in zip(world.ranks, told, strict=True):
        if device is not None:
            rank.say("boot", device=device)
    halts = watch(world.steps(40, step_s=1.0)).halts
    assert [f.detector for f in halts if f.detector == "implausible_speed"] == (
        ["implausible_speed"] * found
    )


@pytest.mark.parametrize(("ranks", "params", "found"), [(1, 1.01, 1), (2, 1.01, 0), (2, 2.02, 1)])
def test_the_peak_of_the_table_is_that_of_every_rank(ranks: int, params: float, found: int) -> None:
    known = {"params": round(params * 312e12 / 6 / TOKENS), "vocab": None}
    changes = {"profile": "a100-pcie-gen4", "world_size": ranks}
    order = gpu(None, **known).order.model_copy(update=changes)
    ran = Ran(order=order, ranks=ranks).many(60, toks_per_s=TOKENS)
    assert len(feed(ImplausibleSpeed, ran).halts) == found


@pytest.mark.parametrize("peak", [None, 0.0, -1.0, float("nan"), float("inf"), "fast"])
def test_without_a_peak_nothing_is_too_fast_and_that_is_said(peak: float | None) -> None:
    fed = feed(ImplausibleSpeed, gpu(peak).many(60, toks_per_s=TOKENS))
    assert fed.findings == []
    assert fed.missing is not None
    assert "peak" in fed.missing


@pytest.mark.parametrize("known", [{"params": None}, {"params": 0}, {"params": 1000}])
def test_without_parameters_nothing_is_too_fast(known: dict[str, int | None]) -> None:
    assert feed(ImplausibleSpeed, gpu(1.0, **known).many(60, toks_per_s=TOKENS)).findings == []


def test_without_an_embedding_all_parameters_are_multiplied() -> None:
    run = Run(order=gpu(None, params=1000, vocab=None).order)
    assert limit_tok_s(run, 0.5, 6000.0) == pytest.approx(0.5)


def test_a_few_fast_steps_are_not_too_fast() -> None:
    ran = gpu(0.9 * NEEDED)
    for number in range(200):
        ran.step(dt_s=0.5 if number % 20 < 9 else 2.0)
    assert feed(ImplausibleSpeed, ran).findings == []


def test_too_fast_again_is_another_finding() -> None:
    ran = gpu(0.7 * NEEDED).many(40).many(40, dt_s=3.0).many(40)
    assert [f.severity for f in feed(ImplausibleSpeed, ran).findings] == [HALT, HALT]


def test_a_rank_whose_clock_is_squeezed_is_found() -> None:
    ran = Ran(ranks=2).many(2000, dt_s=0.01, receipt_s=1.0)
    fed = feed(ImplausibleSpeed, ran)
    assert [(f.severity, f.rank) for f in fed.findings] == [(HALT, 0)]
    halt = fed.halts[0]
    assert (halt.step, halt.threshold) == (1 + 3 * 120, 2.0)
    assert halt.value == pytest.approx(100.0)
    assert halt.since == EPOCH + 1 + 120.0
    assert halt.key == "run_1/1/implausible_speed/halt/clock/step361"


@pytest.mark.parametrize(("spans", "found"), [(14, []), (15, [(HALT, 61)]), (40, [(HALT, 61)])])
def test_one_whose_wall_clock_is_squeezed_too_is_found_after_fifteen_spans(
    spans: int, found: list[tuple[Severity, int]]
) -> None:
    ran = few()
    ran.wall = False
    fed = feed(ImplausibleSpeed, ran.many(1 + 4 * spans, dt_s=0.25, receipt_s=1.0), saved_every=7)
    assert fed.severities == found
    lags = "lines came later and later, or the clocks of a rank are slowed"
    assert (lags in (fed.missing or "")) is not bool(found)


@pytest.mark.parametrize(("right", "found"), [(8, []), (12, [(HALT, 33)])])
def test_a_wall_clock_has_to_go_on_in_three_spans_for_its_own_to_be_slow(
    right: int, found: list[tuple[Severity, int]]
) -> None:
    ran = few()
    for number in range(50):
        ran.wall = 20 < number <= 20 + right
        ran.step(dt_s=0.25, receipt_s=1.0)
    assert feed(ImplausibleSpeed, ran).severities == found


@pytest.mark.parametrize("later_x", [1.5, 2.5, 4.0])
def test_lines_that_come_later_and_later_for_a_quarter_of_an_hour_halt_nothing(
    later_x: float,
) -> None:
    """A file system that others use brings them as a slow clock would tell them, and then all."""
    world = beside_each_other(1.0)
    began, lasts_s = T0 + 100.0, 900.0
    for rank in world.ranks:
        rank.lines = [
            replace(said, mono=min(began + (said.mono - began) * later_x, began + lasts_s))
            if began < said.mono < began + lasts_s
            else said
            for said in rank.lines
        ]
    assert watch(world, interval_s=1.0).halts == []


@pytest.mark.parametrize(("receipt_s", "found"), [(1.9, 0), (2.1, 1)])
def test_the_edge_of_a_slow_clock(receipt_s: float, found: int) -> None:
    ran = Ran().many(600, dt_s=1.0, receipt_s=receipt_s)
    assert len(feed(ImplausibleSpeed, ran).halts) == found


def test_two_slow_spans_are_too_few() -> None:
    ran = Ran()
    for number in range(2000):
        ran.step(dt_s=0.1 if number % 600 < 240 else 1.0, receipt_s=1.0)
    assert feed(ImplausibleSpeed, ran).halts == []


@pytest.mark.parametrize("delay_s", [60.0, 300.0])
def test_lines_that_come_late_do_not_slow_a_clock(delay_s: float) -> None:
    ran = Ran()
    for number in range(1, 2000):
        ran.step(dt_s=1.0, receipt_s=1.0 + (delay_s if number % 400 == 0 else 0.0))
    assert feed(ImplausibleSpeed, ran).halts == []


def beside_each_other(slower_x: float, clock_x: float = 1.0) -> World:
    """Two ranks that do not wait for each other; the clock of the first goes so much slower."""
    order = order_of({}, steps=10_000, detectors=versions())
    world = World(order, alive_every_s=5.0).boot()
    for rank, step_s in zip(world.ranks, (1.0, slower_x), strict=True):
        for _ in range(int(900.0 / step_s)):
            rank.step += 1
            rank.say("step_start")
            rank.enter("forward")
            rank.spend(step_s)
            rank.enter(None)
            rank.say("progress", loss=5.5 - 0.001 * rank.step)
            rank.say("step_end", tokens=2048)
    first = world.ranks[0]
    first.lines = [
        Said(said.mono, wire_line({**line, "mono": T0 + (line["mono"] - T0) / clock_x}))
        for said in first.lines
        for line in [json.loads(said.raw)]
    ]
    return world


@pytest.mark.parametrize(("tokens", "found"), [(4096, set()), (2048, {"implausible_speed"})])
def test_tokens_told_after_the_line_that_ended_the_step_count(tokens: int, found: set[str]) -> None:
    """A rank that names no sections ends a step by its progress; `step_end` tells the tokens."""
    world = World(order_of({}, steps=10_000, detectors=versions()), alive_every_s=5.0).boot()
    for step in range(1, 181):
        tok_s, carried = (4096.0, tokens) if step > 90 else (2048.0, 2048)
        for rank in world.ranks:
            rank.step += 1
            rank.spend(1.0)
            rank.say("progress", loss=5.5 - 0.001 * step, toks_per_s=tok_s)
            rank.say("step_end", tokens=carried)
    for rank in world.ranks:
        rank.lines = [without_sections(said) for said in rank.lines]
    assert watch(world, interval_s=1.0).named(HALT) == found


@pytest.mark.parametrize("every", [2, 10])
@pytest.mark.parametrize(("lie", "slower", "found"), [(25.0, 1.0, NAME), (1.0, 3.0, "slow")])
def test_tokens_of_the_whole_run_that_are_rarely_told_hide_neither_lies_nor_slowness(
    every: int, lie: float, slower: float, found: str
) -> None:
    """What a line told is of its own step, and not told anew for those up to the next."""
    order = order_of({"slow": {"floor_tok_s": 1900.0}}, steps=10_000, detectors=versions())
    world = World(order, alive_every_s=5.0).boot()
    for step in range(1, 401):
        late = step > 300
        for rank in world.ranks:
            rank.step += 1
            rank.spend(slower if late else 1.0)
            rank.say("progress", loss=5.5 - 0.001 * step, toks_per_s=2048 * lie if late else 2048.0)
            rank.say("step_end", **({} if step % every else {"tokens": 2048 * step}))
    assert watch(world, interval_s=1.0).named(HALT) == {found}


@pytest.mark.parametrize("slower_x", [1.5, 2.5, 5.0])
def test_who_is_far_ahead_of_a_rank_that_it_does_not_wait_for_has_no_slow_clock(
    slower_x: float,
) -> None:
    assert watch(beside_each_other(slower_x), interval_s=1.0).halts == []


@pytest.mark.parametrize("slower_x", [1.0, 1.5, 2.5])
def test_nor_does_that_hide_one(slower_x: float) -> None:
    halts = watch(beside_each_other(slower_x, clock_x=3.0), interval_s=1.0).halts
    assert [(row.detector, row.rank) for row in halts][:1] == [("implausible_speed", 0)]
    assert halts[0].value == pytest.approx(3.0, rel=0.1)


def test_who_is_done_before_a_rank_that_it_does_not_wait_for_has_no_slow_clock() -> None:
    world = beside_each_other(5.0)
    first = world.ranks[0]
    first.lines = [said for said in first.lines if said.mono < T0 + 200.0]
    first.mono = first.lines[-1].mono
    first.step = world.order.steps or 0
    first.say("done")
    halts = watch(world, interval_s=1.0).halts
    assert "implausible_speed" not in {row.detector for row in halts}


def test_a_watcher_that_comes_late_or_never_watched_tells_nothing_of_clocks() -> None:
    ran = Ran()
    for number in range(2000):
        ran.step(dt_s=0.01, receipt_s=1.0, late_s=5.0 if number % 100 == 0 else 0.0)
    assert feed(ImplausibleSpeed, ran).findings == []
    unwatched = Ran(watched=False).many(2000, dt_s=0.01, receipt_s=1.0)
    assert feed(ImplausibleSpeed, unwatched).findings == []


def test_a_clock_that_runs_fast_or_begins_anew_halts_nothing() -> None:
    assert feed(ImplausibleSpeed, Ran().many(900, dt_s=10.0, receipt_s=1.0)).findings == []
    ran = Ran().many(200, dt_s=1.0)
    ran.mono = 5.0
    ran.back_to(200, boot="other")
    assert feed(ImplausibleSpeed, ran.many(500, dt_s=1.0)).findings == []
    ran.mono = 1.0
    assert feed(ImplausibleSpeed, ran.many(500, dt_s=1.0)).findings == []


def test_a_restart_at_an_earlier_step_begins_anew() -> None:
    ran = Ran().many(15, toks_per_s=9999.0).back_to(5).many(15, toks_per_s=9999.0)
    assert feed(ImplausibleSpeed, ran).findings == []


def test_plan_settings_count_and_are_named() -> None:
    order = order_of({"implausible_speed": {"over_steps": 1, "differ_ratio": 0.5}})
    fed = feed(ImplausibleSpeed, Ran(order=order).many(5, toks_per_s=1.6 * TOKENS))
    assert fed.severities == [(HALT, 2)]
    assert fed.halts[0].source is Source.PLAN


def test_a_saved_state_goes_on_as_the_whole() -> None:
    ran = gpu(0.5 * NEEDED).many(60, toks_per_s=TOKENS).many(400, toks_per_s=9e9, receipt_s=3.0)
    whole = feed(ImplausibleSpeed, ran).findings
    assert len(whole) == 3
    assert feed(ImplausibleSpeed, ran, saved_every=7).findings == whole


def known(best_step_s: float | None) -> Ran:
    """A run of work of which a best step is known."""
    ran = gpu(None)
    return Ran(order=ran.order.model_copy(update={"best_step_s": best_step_s}))


@pytest.mark.parametrize(("best_s", "found"), [(1.99, 0), (2.01, 1), (None, 0)])
def test_steps_of_less_than_half_the_best_that_is_known_warn_once(
    best_s: float | None, found: int
) -> None:
    fed = feed(ImplausibleSpeed, known(best_s).many(90, toks_per_s=TOKENS))
    assert fed.halts == []
    assert len(fed.findings) == found
    for warning in fed.findings:
        assert (warning.severity, warning.step, warning.value) == (Severity.WARN, 21, 1.0)
        assert warning.threshold == pytest.approx(best_s and best_s / 2)
        assert "is all of it done?" in warning.text


def test_a_few_fast_steps_beat_no_best() -> None:
    fed = feed(ImplausibleSpeed, known(2.1).many(9, toks_per_s=TOKENS, dt_s=1.0).many(30, dt_s=2.0))
    assert fed.findings == []


def test_steps_that_are_read_from_what_is_printed_are_not_timed_by_it() -> None:
    order = gpu(None).order.model_copy(update={"patterns": ["x"], "command": ["x"]})
    ran = Ran(order=order, peak_flops=0.5 * NEEDED, labelled=False)
    fed = feed(ImplausibleSpeed, ran.many(60, toks_per_s=100 * TOKENS))
    assert fed.findings == []
    assert fed.missing is not None
    assert "timed by when their lines were read" in fed.missing


def few(ranks: int = 1, watched: bool = True, **settings: float) -> Ran:
    """A run of which four steps, and spans of four seconds, are looked at."""
    known = {"over_steps": 4, "clock_s": 4.0, **settings}
    return Ran(order=order_of({"implausible_speed": known}), ranks=ranks, watched=watched)


@pytest.mark.parametrize(
    ("told", "found"),
    [
        (1.1 * (TOKENS / 0.98), []),
        (1.1001 * (TOKENS / 0.98), [(HALT, 5)]),
        (0.9 * TOKENS, []),
        (0.8999 * TOKENS, [(WARN, 5)]),
    ],
)
def test_a_report_has_to_pass_its_limits(told: float, found: list[tuple[Severity, int]]) -> None:
    ran = few().many(40, toks_per_s=told)
    assert feed(ImplausibleSpeed, ran).severities == found


@pytest.mark.parametrize(
    ("stopwatch_s", "kind_s"),
    [(None, 0.1), (0.0, 0.03), (0.4, 0.38), (0.9, 0.88)],
    ids=["no stopwatch", "one that stood", "less than half a step", "nearly all of it"],
)
def test_a_stopwatch_says_how_much_of_a_step_may_lie_before_it(
    stopwatch_s: float | None, kind_s: float
) -> None:
    """Of a second, 0.95 s lie before the step's start: 0.03 s are left, and a tenth of the rest."""
    for told, found in ((0.99, []), (1.01, [(HALT, 5)])):
        speed = told * 1.1 * (TOKENS / kind_s)
        ran = few().many(40, toks_per_s=speed, between_s=0.95, stopwatch_s=stopwatch_s)
        assert feed(ImplausibleSpeed, ran).severities == found


@pytest.mark.parametrize("told", [1.5 * TOKENS, 1.1 * (TOKENS / 0.48)])
def test_a_report_that_one_step_allows_is_found_after_three_windows(told: float) -> None:
    ran = few(over_steps=8).step(toks_per_s=told).step(dt_s=0.5, toks_per_s=told)
    assert feed(ImplausibleSpeed, ran.many(60, toks_per_s=told)).severities == [(HALT, 33)]


@pytest.mark.parametrize(("dt_s", "found"), [(0.25, [(HALT, 13)]), (0.5, []), (1.0, [])])
def test_a_clock_has_to_be_slow_in_three_spans(
    dt_s: float, found: list[tuple[Severity, int]]
) -> None:
    ran = few().many(20, dt_s=dt_s, receipt_s=1.0)
    assert feed(ImplausibleSpeed, ran).severities == found


@pytest.mark.parametrize("what", ["nobody watched", "late", "another boot", "set back"])
def test_what_says_nothing_of_a_clock_begins_the_spans_anew(what: str) -> None:
    ran = few(watched=what != "nobody watched")
    for number in range(40):
        if number % 10 == 9:
            ran.boot = f"boot{number}" if what == "another boot" else ran.boot
            ran.mono -= 100.0 if what == "set back" else 0.0
        late_s = 1.0 if what == "late" and number % 10 == 9 else 0.0
        ran.step(dt_s=0.25, receipt_s=1.0, late_s=late_s)
    assert feed(ImplausibleSpeed, ran).findings == []


@pytest.mark.parametrize("slower_x", [1.2, 2.0])
@pytest.mark.parametrize("kind", ["mean", "best"])
def test_a_mean_that_a_checkpoint_keeps_may_know_of_faster_steps_before_a_restart(
    kind: str, slower_x: float
) -> None:
    ran, spent_s = Ran().many(300, toks_per_s=TOKENS).back_to(250), 250.0
    for number in range(251, 600):
        spent_s += slower_x
        mean = TOKENS * number / spent_s
        dt_s = slower_x if number > 251 else None
        ran.step(dt_s=dt_s, toks_per_s=mean if kind == "mean" else TOKENS)
    assert feed(ImplausibleSpeed, ran, saved_every=50).findings == []


def test_after_a_restart_a_report_above_all_that_was_is_a_lie() -> None:
    ran = Ran().many(300, toks_per_s=TOKENS).back_to(250)
    ran.step(dt_s=None, toks_per_s=1.2 * TOKENS).many(60, dt_s=2.0, toks_per_s=1.2 * TOKENS)
    assert feed(ImplausibleSpeed, ran).severities == [(HALT, 271)]


@pytest.mark.parametrize(
    ("factor", "resumed", "found"),
    [
        (1.3, None, [(HALT, 21)]),
        (1.3, 1000, []),
        (2.1, 1000, []),
        (2.4, 1000, [(HALT, 1021)]),
        (25.0, 1000, [(HALT, 1021)]),
    ],
)
def test_a_resumed_run_may_tell_a_mean_of_faster_steps_before(
    factor: float, resumed: int | None, found: list[tuple[Severity, int]]
) -> None:
    ran = Ran(order=order_of({}, resume_step=resumed)).back_to(resumed or 0)
    ran.step(dt_s=None, toks_per_s=factor * TOKENS).many(150, toks_per_s=factor * TOKENS)
    assert feed(ImplausibleSpeed, ran).severities == found


@pytest.mark.parametrize(("another", "found"), [(False, []), (True, [(HALT, 21)])])
def test_what_another_training_was_like_is_no_measure(
    another: bool, found: list[tuple[Severity, int]]
) -> None:
    ran = Ran().many(60, toks_per_s=TOKENS).back_to(0)
    ran.step(dt_s=None, toks_per_s=TOKENS).many(60, dt_s=2.0, toks_per_s=TOKENS)
    view, own, findings = ran.view(), Speeds(), []
    detector = ImplausibleSpeed(view.run)
    for place, step in enumerate(ran.steps):
        view.streams[1].another = another and place >= 60
        own, more = detector.observe_step(own, step, view)
        findings += more
    assert [(row.severity, row.step) for row in findings] == found


@pytest.mark.parametrize(("factor", "found"), [(1.0, []), (25.0, [(HALT, 21)])])
def test_a_report_of_any_rank_counts_where_the_first_makes_none(
    factor: float, found: list[tuple[Severity, int]]
) -> None:
    """Some trainers log on their last rank."""
    fed = feed(ImplausibleSpeed, Ran().many(60, each=[{}, {"toks_per_s": factor * TOKENS}]))
    assert fed.severities == found
    assert "reports no tokens/s" not in (fed.missing or "")
    both = Ran().many(60, each=[{"toks_per_s": TOKENS}, {"toks_per_s": TOKENS / 2}])
    assert feed(ImplausibleSpeed, both).findings == []


@pytest.mark.parametrize(("lie", "found"), [(1.0, []), (25.0, [HALT])])
def test_another_rank_that_tells_more_often_hides_no_report_of_the_first(
    lie: float, found: list[Severity]
) -> None:
    ran, honest = Ran(), {"toks_per_s": TOKENS}
    for number in range(1, 400):
        own = {"toks_per_s": lie * TOKENS} if number % 10 == 0 else {}
        ran.step(each=[own, honest])
    fed = feed(ImplausibleSpeed, ran, saved_every=7)
    assert [severity for severity, _ in fed.severities] == found


@pytest.mark.parametrize(("lie", "found"), [(1.0, []), (25.0, [HALT])])
def test_a_rank_that_has_not_told_for_long_is_not_waited_for(
    lie: float, found: list[Severity]
) -> None:
    ran = Ran().step(each=[{"toks_per_s": TOKENS}, {}])
    fed = feed(ImplausibleSpeed, ran.many(1100, each=[{}, {"toks_per_s": lie * TOKENS}]))
    assert [severity for severity, _ in fed.severities] == found


@pytest.mark.parametrize(("told_at", "halt"), [(1, 1005), (2, 1006)])
def test_a_rank_is_waited_for_through_a_thousand_silent_steps(told_at: int, halt: int) -> None:
    ran, told = few(ranks=2), {"toks_per_s": TOKENS}
    ran.many(told_at, each=[told, {}]).many(1100, each=[{}, {"toks_per_s": 25 * TOKENS}])
    assert feed(ImplausibleSpeed, ran).severities == [(HALT, halt)]


def observed(ran: Ran, **streams: Callable[[Step], Any]) -> list[tuple[Severity, int | None]]:
    """What is found where the first rank's stream is another at each step."""
    view, own, findings = ran.view(), Speeds(), []
    detector = ImplausibleSpeed(view.run)
    for step in ran.steps:
        told = {name: value(step) for name, value in streams.items()}
        view.streams[0] = RankStream(rank=0, boot=step.ranks[0].boot, **told)
        own, more = detector.observe_step(own, step, view)
        findings += more
    return [(row.severity, row.step) for row in findings]


@pytest.mark.parametrize(
    ("done", "silent_s", "until", "found"),
    [
        (False, 0.0, 0, [(HALT, 13)]),
        (False, 30.0, 40, [(HALT, 13)]),
        (False, 30.25, 40, []),
        (True, 0.0, 40, []),
        (False, 30.25, 10, [(HALT, 22)]),
        (True, 0.0, 10, [(HALT, 22)]),
    ],
)
def test_who_has_fallen_silent_or_is_done_tells_nothing_of_its_clock(
    done: bool, silent_s: float, until: int, found: list[tuple[Severity, int]]
) -> None:
    found_now = observed(
        few(ranks=1).many(40, dt_s=0.25, receipt_s=1.0),
        done=lambda step: done and step.step <= until,
        heard_mono=lambda step: step.tick.mono - (silent_s if step.step <= until else 0.0),
    )
    assert found_now == found


@pytest.mark.parametrize(("first", "found"), [(0, [(HALT, 71)]), (50, [])])
def test_a_restart_in_place_that_goes_on_from_a_step_is_no_run_of_another(
    first: int, found: list[tuple[Severity, int]]
) -> None:
    """Its first process began at step 0, so that its own steps are all that a mean may know."""
    ran = Ran(ranks=1).back_to(first).many(60 - first, toks_per_s=TOKENS).back_to(50)
    ran.step(dt_s=None, toks_per_s=1.3 * TOKENS).many(60, toks_per_s=1.3 * TOKENS)
    began = {place: first if place < 60 - first else 50 for place in range(len(ran.steps))}
    places = {id(step): place for place, step in enumerate(ran.steps)}
    assert observed(ran, from_step=lambda step: began[places[id(step)]]) == found


@pytest.mark.parametrize(
    ("factor", "from_step", "found"), [(1.3, 0, [HALT]), (1.3, 1000, []), (25.0, 1000, [HALT])]
)
def test_a_trainer_that_resumes_by_itself_may_tell_a_mean_of_faster_steps_before(
    factor: float, from_step: int, found: list[Severity]
) -> None:
    """No order names the checkpoint; its first process says at which step it begins."""
    ran = Ran().back_to(from_step)
    ran.step(dt_s=None, toks_per_s=factor * TOKENS).many(150, toks_per_s=factor * TOKENS)
    view, own, findings = ran.view(), Speeds(), []
    for stream in view.streams.values():
        stream.from_step = from_step
    detector = ImplausibleSpeed(view.run)
    for step in ran.steps:
        own, more = detector.observe_step(own, step, view)
        findings += more
    assert [row.severity for row in findings] == found


@pytest.mark.parametrize(("lie", "found"), [(1.0, []), (25.0, [HALT])])
def test_a_trainer_that_tells_the_tokens_of_the_whole_run_may_not_report_what_it_likes(
    lie: float, found: list[Severity]
) -> None:
    ran = Ran()
    for number in range(1, 900):
        factor = 1.0 if number < 600 else lie
        ran.step(tokens=number * TOKENS, toks_per_s=factor * TOKENS)
    fed = feed(ImplausibleSpeed, ran, saved_every=50)
    assert [severity for severity, _ in fed.severities] == found


@pytest.mark.parametrize(("lie", "found"), [(1.0, []), (25.0, [HALT])])
def test_nor_where_it_starts_again_within_its_first_lines(
    lie: float, found: list[Severity]
) -> None:
    ran = Ran()
    for number in range(1, 11):
        ran.step(tokens=number * TOKENS, toks_per_s=TOKENS)
    ran.back_to(0)
    for number in range(1, 900):
        factor = 1.0 if number < 600 else lie
        ran.step(tokens=number * TOKENS, toks_per_s=factor * TOKENS)
    fed = feed(ImplausibleSpeed, ran, saved_every=50)
    assert [severity for severity, _ in fed.severities] == found


@pytest.mark.parametrize(("lie", "halts"), [(1.0, 0), (8.0, 1)])
def test_nor_where_it_tells_those_of_one_of_many_ranks(lie: float, halts: int) -> None:
    """Until they come to more than was ordered they look like steps of more and more tokens."""
    ran = Ran()
    for number in range(1, 900):
        factor = 1.0 if number < 600 else lie
        ran.step(tokens=number * TOKENS // 64, toks_per_s=factor * TOKENS)
    assert len(feed(ImplausibleSpeed, ran, saved_every=50).halts) == halts


def test_where_no_step_was_every_ranks_it_says_so() -> None:
    ran = Ran().many(60, toks_per_s=TOKENS)
    ran.steps = [replace(step, ranks={0: step.ranks[0]}, whole=False) for step in ran.steps]
    fed = feed(ImplausibleSpeed, ran)
    assert fed.findings == []
    assert fed.missing is not None
    assert "no step was ended by all ranks" in fed.missing


def test_a_step_that_is_ended_twice_begins_anew() -> None:
    ran = few().many(4, toks_per_s=9999.0).back_to(3, boot="boot").many(4, toks_per_s=9999.0)
    assert [step for _, step in feed(ImplausibleSpeed, ran).severities] == [7]


def test_a_model_of_embeddings_alone_has_no_limit() -> None:
    run = Run(order=gpu(None, params=256 * 1024).order)
    assert limit_tok_s(run, 1.0, 1e12) is None


def test_a_clock_that_stands_still_is_slow() -> None:
    fed = feed(ImplausibleSpeed, few().many(20, dt_s=0.0, receipt_s=1.0))
    assert [(f.step, f.value) for f in fed.halts] == [(13, pytest.approx(4e9))]


def test_a_report_that_is_believed_again_may_be_told_again() -> None:
    ran = few().many(5, toks_per_s=9999.0).many(10, toks_per_s=TOKENS).many(10, toks_per_s=9999.0)
    assert len(feed(ImplausibleSpeed, ran).halts) == 2


def test_a_quarter_of_fast_steps_makes_a_report_possible() -> None:
    ran = few(over_steps=8).step(toks_per_s=1.5 * TOKENS).many(2, dt_s=0.5, toks_per_s=1.5 * TOKENS)
    assert feed(ImplausibleSpeed, ran.many(60, toks_per_s=1.5 * TOKENS)).findings == []


@pytest.mark.parametrize(("of", "slow"), [(20, 4), (5, 1)])
def test_a_fifth_of_slow_steps_makes_no_report_too_low(of: int, slow: int) -> None:
    """The mean with all pauses, 4267, is the slowest."""
    ran = few(over_steps=of).step(toks_per_s=2000.0).many(slow, dt_s=2.0, toks_per_s=2000.0)
    fed = feed(ImplausibleSpeed, ran.many(of - slow, dt_s=0.1, toks_per_s=2000.0))
    assert fed.severities == [(WARN, of + 1)]


@pytest.mark.parametrize(("peak", "found"), [(12_288_000.0, 0), (12_287_000.0, 1), (1.0, 1)])
def test_a_speed_has_to_pass_what_the_devices_can_multiply(peak: float, found: int) -> None:
    fed = feed(ImplausibleSpeed, gpu(peak, params=1000, vocab=None).many(25))
    assert len(fed.halts) == found


@pytest.mark.parametrize(
    ("told", "limit"),
    [({"params": 256 * 1024 + 1}, 100.0), ({"params": 1, "dim": None}, 100.0)],
    ids=["one that is multiplied", "nobody says how wide"],
)
def test_the_limit_of_a_model_counts_what_is_multiplied(
    told: dict[str, int | None], limit: float
) -> None:
    assert limit_tok_s(Run(order=gpu(None, **told).order), 1.0, 600.0) == limit


@pytest.mark.parametrize(("best_step_s", "found"), [(2.0, []), (2.25, [(WARN, 20)])])
def test_a_best_step_has_to_be_passed(
    best_step_s: float, found: list[tuple[Severity, int]]
) -> None:
    assert feed(ImplausibleSpeed, known(best_step_s).many(25, dt_s=1.0)).severities == found


def test_a_sound_span_begins_the_slow_ones_anew() -> None:
    ran = few().step()
    for _ in range(5):
        ran.many(8, dt_s=0.25, receipt_s=1.0).many(4, dt_s=1.0, receipt_s=1.0)
    assert feed(ImplausibleSpeed, ran).findings == []


@pytest.mark.parametrize(
    ("ordered", "command", "found"),
    [(None, True, [WARN]), (None, False, [HALT]), (TOKENS, True, [HALT])],
)
def test_a_program_that_counts_its_tokens_in_two_ways_is_no_liar(
    ordered: int | None, command: bool, found: list[Severity]
) -> None:
    """It tells the tokens of one rank (or of a part of the step) and the speed of all of them."""
    order = order_of({}, identity=Identity(tokens_per_step=ordered))
    order = order.model_copy(update=other(True) if command else {})
    ran = Ran(order=order).many(300, tokens=TOKENS, toks_per_s=2 * TOKENS)
    fed = feed(ImplausibleSpeed, ran, saved_every=50)
    assert [f.severity for f in fed.findings] == found


def test_a_report_that_becomes_impossible_halts_whoever_tells_it() -> None:
    order = order_of({}, identity=Identity(tokens_per_step=None)).model_copy(update=other(True))
    ran = Ran(order=order).many(60, tokens=TOKENS, toks_per_s=TOKENS)
    assert feed(ImplausibleSpeed, ran).findings == []
    lies = feed(ImplausibleSpeed, ran.many(60, tokens=TOKENS, toks_per_s=3 * TOKENS))
    assert [f.severity for f in lies.findings] == [HALT]
