"""D11: a loss that rises and stays is found; noise, spikes, plateaus and resumes are not."""

import math
import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gonogo.contract.finding import Finding, Severity, Source
from gonogo.contract.heartbeat import Identity
from gonogo.contract.order import ResumePoint
from gonogo.planning.source import bundled_plan
from gonogo.watch.detectors.divergence import Divergence, _tokens_of
from gonogo.watch.loss_trend import SIGMA_OF_MAD, Trend
from gonogo.watch.state import replace
from gonogo.watch.view import Run
from tests.watch.steps import Fed, Ran, feed
from tests.watch.streams import EPOCH, order_of

INFO, WARN, HALT = Severity.INFO, Severity.WARN, Severity.HALT
DEMO = bundled_plan("demo")["watch"]["divergence"]


def run(loss: Callable[[int], float | None], count: int, **watch: object) -> Fed:
    """A run whose loss is a function of the step."""
    ran = Ran(order=order_of({"divergence": watch} if watch else {}), ranks=1)
    for number in range(1, count + 1):
        ran.step(loss=loss(number))
    return feed(Divergence, ran)


def noisy(mean: Callable[[int], float], sigma: float, seed: int = 3) -> Callable[[int], float]:
    dice = random.Random(seed)
    return lambda number: mean(number) + dice.gauss(0, sigma)


def test_a_loss_that_rises_slowly_but_steadily_halts() -> None:
    fed = run(noisy(lambda n: 3.0 + max(0, n - 300) * 0.02, 0.05), 460)
    assert len(fed.halts) == 1
    halt = fed.halts[0]
    assert 380 <= (halt.step or 0) <= 420
    assert halt.threshold == pytest.approx(0.30)
    assert halt.value is not None
    assert halt.value > 0.30
    assert halt.source is Source.DEFAULT
    assert halt.rank is None
    assert halt.since is not None
    assert halt.at - halt.since == pytest.approx(49.0)
    assert halt.key.startswith("run_1/1/divergence/halt/rise/step")


def test_a_loss_that_jumps_and_stays_halts() -> None:
    fed = run(noisy(lambda n: 3.0 if n < 300 else 5.5, 0.05), 400)
    assert [f.severity for f in fed.findings if f.severity is HALT] == [HALT]


def test_fifty_steps_above_the_limit_halt_and_not_forty_nine() -> None:
    """After a jump the median of the last 25 is up from the 13th step on."""
    assert run(lambda n: 3.0 if n <= 300 else 13.0, 361).halts == []
    halts = run(lambda n: 3.0 if n <= 300 else 13.0, 500).halts
    assert [(f.step, f.since) for f in halts] == [(362, EPOCH + 312.0)]


@pytest.mark.parametrize(("height", "found"), [(0.29, False), (0.32, True)])
def test_a_rise_below_the_limit_is_none(height: float, found: bool) -> None:
    """A rise of less than three times the limit is told at once, and halts where it stays."""
    fed = run(lambda n: 2.24 if n <= 40 else 2.0 if n <= 300 else 2.0 + height, 2100)
    assert bool(fed.halts) is found
    assert [f.severity for f in rises(fed)] == [WARN, HALT] * found
    if found:
        told, halted = rises(fed)
        assert (told.step or 0) < 700
        assert (halted.step or 0) > 300 + 1600


@pytest.mark.parametrize(("height", "found"), [(0.9, False), (1.3, True)])
def test_of_a_large_loss_a_tenth_is_the_limit(height: float, found: bool) -> None:
    fed = run(lambda n: 11.2 if n <= 40 else 10.0 if n <= 300 else 10.0 + height, 900)
    assert bool(rises(fed)) is found
    assert [f.threshold for f in rises(fed)] == ([pytest.approx(1.0, abs=0.01)] if found else [])


def test_a_noisy_loss_has_a_wider_limit() -> None:
    quiet = run(noisy(lambda n: 5.0 if n <= 300 else 5.8, 0.02), 600)
    noise = run(noisy(lambda n: 5.0 if n <= 300 else 5.8, 0.4), 600)
    assert len(quiet.halts) == 1
    assert noise.halts == []
    beyond = run(noisy(lambda n: 5.0 if n <= 300 else 8.0, 0.4), 600)
    assert [f.source for f in beyond.halts] == [Source.ADAPTIVE]


def test_the_first_200_losses_count_for_nothing_but_the_best() -> None:
    early = run(lambda n: 3.0 if n <= 100 else 6.0, 200)
    assert early.halts == []
    assert not early.armed
    later = run(lambda n: 3.0 if n <= 100 else 6.0, 260)
    assert later.armed
    assert [f.step for f in later.halts] == [250]


def test_what_was_before_the_mean_was_smooth_is_no_best() -> None:
    """One lucky loss at the start (or after a resume) is not what later ones are held against."""
    assert run(lambda n: 0.5 if n == 1 else 3.0, 600).halts == []


@pytest.mark.parametrize(
    ("steps", "told"), [(20, [INFO]), (34, [INFO, WARN]), (40, [INFO, WARN]), (55, [INFO, WARN])]
)
def test_a_spike_that_recovers_ends_nothing_and_warns_only_if_it_lasts(
    steps: int, told: list[Severity]
) -> None:
    fed = run(noisy(lambda n: 7.0 if 300 < n <= 300 + steps else 3.0, 0.05), 700)
    assert [f.severity for f in fed.findings] == told


@pytest.mark.parametrize("tau", [20.0, 60.0, 120.0])
def test_a_spike_that_decays_ends_nothing(tau: float) -> None:
    loss = noisy(lambda n: 3.0 + (4.0 * math.exp((300 - n) / tau) if n > 300 else 0.0), 0.05)
    assert run(loss, 1500).halts == []


def test_a_rise_that_was_falling_and_then_stays_halts_later() -> None:
    loss = noisy(lambda n: 3.0 + (4.0 * math.exp((300 - n) / 60) + 1.0 if n > 300 else 0.0), 0.05)
    assert len(run(loss, 1500).halts) == 1


def test_five_of_eight_spikes_warn_and_four_do_not() -> None:
    def spiky(*at: int) -> Fed:
        return run(noisy(lambda n: 4.0 if n in at else 3.0, 0.02), 400)

    assert spiky(300, 301, 303, 305).findings == []
    assert spiky(300, 301, 303, 305, 308).findings == []
    warned = spiky(300, 301, 303, 305, 307)
    assert warned.severities == [(INFO, 307)]
    assert warned.findings[0].key == "run_1/1/divergence/info/spikes/step307"
    assert warned.findings[0].value == pytest.approx(4.0, abs=0.1)
    again = spiky(300, 301, 303, 305, 307, 350, 351, 352, 353, 354)
    assert again.severities == [(INFO, 307), (INFO, 354)]


@pytest.mark.parametrize(("last", "severity"), [(1303, WARN), (1304, INFO)])
def test_the_third_burst_of_spikes_in_a_thousand_steps_warns_and_no_later_one(
    last: int, severity: Severity
) -> None:
    begins = (300, 500, last - 4, last + 190)
    at = {first + n for first in begins for n in range(5)}
    fed = run(noisy(lambda n: 4.0 if n in at else 3.0, 0.02), 1600)
    assert [s for s, _ in fed.severities] == [
        INFO,
        INFO,
        severity,
        INFO if severity is WARN else WARN,
    ]


def test_spikes_that_last_warn_once_a_run() -> None:
    fed = run(noisy(lambda n: 7.0 if 40 < n % 400 <= 80 and n > 400 else 3.0, 0.05), 1700)
    assert fed.severities[:3] == [(INFO, 445), (WARN, 476), (INFO, 845)]
    assert [f for f in fed.of(WARN) if "losses lie" in f.text] == fed.of(WARN)[:1]


@pytest.mark.parametrize("last", [3.0, 7.0], ids=["a usual loss", "a spike"])
def test_spikes_that_last_are_held_against_their_median_whatever_the_last_loss_is(
    last: float,
) -> None:
    """In a window of 32 they last once they have for eight steps."""
    ran = losses((16, 3.0), (3, 7.0), (6, 7.0), (1, last), window_steps=32, spike_count=3)
    (warned,) = [f for f in feed(Divergence, ran).of(WARN) if "losses lie" in f.text]
    assert (warned.step, warned.value, warned.threshold) == (26, last, 3.5)
    assert "above their median of 3; " in warned.text


@pytest.mark.parametrize(("second", "severity"), [(1.5, INFO), (1.75, WARN)])
def test_a_rise_warns_again_only_if_it_is_thrice_as_high(second: float, severity: Severity) -> None:
    def loss(n: int) -> float:
        return -1.0 + (0.5 if 300 < n <= 500 else second if 800 < n <= 1000 else 0.0)

    fed = run(loss, 1200, alpha=1.0)
    assert [f.severity for f in rises(fed)] == [WARN, severity]


def test_a_warm_restart_makes_no_spikes() -> None:
    ran = Ran(ranks=1)
    for number in range(1, 900):
        since = number % 300
        ran.step(loss=2.0 + (1.5 - since / 200), lr=1e-3 * (1.0 - since / 301))
    assert feed(Divergence, ran).findings == []


@pytest.mark.parametrize(
    ("height", "sigma", "found"),
    [(0.45, 0.01, False), (0.55, 0.01, True), (0.9, 0.15, False), (2.5, 0.15, True)],
    ids=["least", "over the least", "8 sigma", "over 8 sigma"],
)
def test_a_spike_is_half_and_eight_sigma(height: float, sigma: float, found: bool) -> None:
    fed = run(noisy(lambda n: 3.0 + (height if 300 <= n < 306 else 0.0), sigma), 400)
    assert bool(fed.of(INFO)) is found


def test_spikes_wait_for_half_a_window() -> None:
    assert run(lambda n: 3.0 if n < 50 else 9.0, 63).findings == []


def test_what_is_not_told_or_not_finite_counts_for_nothing() -> None:
    clean = run(lambda n: 5.0 + 0.02 * n, 300)
    holes = Ran(order=order_of({}), ranks=1)
    for number in range(1, 301):
        holes.step(loss=5.0 + 0.02 * number).step().step(loss=math.nan).step(loss=math.inf)
    assert len(feed(Divergence, holes).halts) == len(clean.halts) == 1


def falling(step: int) -> float:
    return 2.0 + 3.5 * math.exp(-step / 150)


@pytest.mark.parametrize("back", [0, 20, 100, 380, 900])
def test_a_restart_that_learns_again_from_an_earlier_step_is_silent(back: int) -> None:
    ran = Ran(ranks=1)
    for _ in range(1000):
        ran.step(loss=falling(ran.number))
    ran.back_to(back)
    for _ in range(1200):
        ran.step(loss=falling(ran.number) + 0.5 * math.exp((back - ran.number) / 60))
    assert feed(Divergence, ran).halts == []
    assert feed(Divergence, ran, saved_every=50).halts == []


@pytest.mark.parametrize("back", [100, 380, 900])
def test_a_restart_is_held_against_the_best_by_its_step(back: int) -> None:
    ran = Ran(ranks=1)
    for _ in range(1000):
        ran.step(loss=falling(ran.number))
    fed = feed(Divergence, ran.back_to(back).many(700, loss=9.0))
    assert [f.step for f in fed.halts] == [back + 250]
    assert feed(Divergence, ran.back_to(back)).missing is None


def restarted(
    loss: Callable[[int, int, int], float], every: int, *, back: int = 20, count: int = 3000
) -> Ran:
    """A run that is restarted in place every so many steps once it has made 600.

    Args:
        loss: of a step, by its number, steps since the last restart, and restarts so far.
        every: steps between restarts.
        back: steps that each repeats.
        count: steps in all.
    """
    ran, since, boots = Ran(ranks=1), 0, 0
    for made in range(count):
        if since >= every and made > 600:
            ran.back_to(ran.number - back)
            since, boots = 0, boots + 1
        ran.step(loss=loss(ran.number + 1, since, boots))
        since += 1
    return ran


def climbing(number: int, since: int = 0, boots: int = 0) -> float:
    return falling(number) + max(0, number - 800) * 0.00835


@pytest.mark.parametrize(("every", "halts"), [(45, 0), (60, 1), (150, 1), (200, 1), (220, 1)])
@pytest.mark.parametrize("sigma", [0.02, 0.2])
def test_a_loss_that_climbs_from_restart_to_restart_halts(
    every: int, halts: int, sigma: float
) -> None:
    """Each was judged by its own first 200 losses alone: 2.3 came to 19, and nobody was told."""
    dice = random.Random(every)
    ran = restarted(lambda *at: climbing(*at) + dice.gauss(0, sigma), every, count=3000)
    fed, saved = feed(Divergence, ran), feed(Divergence, ran, saved_every=37)
    assert bool(fed.halts) is bool(halts)
    assert saved.findings == fed.findings
    if halts:
        assert climbing(fed.halts[0].step or 0) < 9.0


def test_a_loss_that_jumps_far_and_stays_between_restarts_halts() -> None:
    ran = restarted(lambda n, *_: falling(n) if n < 800 else 9.0, 150, count=1200)
    assert len(feed(Divergence, ran).halts) == 1


@pytest.mark.parametrize("every", [60, 90, 150, 220])
@pytest.mark.parametrize(
    "extra",
    [
        lambda n, since, boots: 0.0,
        lambda n, since, boots: 2.0 * math.exp(-since / 80) if boots else 0.0,
        lambda n, since, boots: since / 30 * math.exp(1 - since / 90) if boots else 0.0,
        lambda n, since, boots: 0.4 * (boots % 3 - 1),
        lambda n, since, boots: 1.5 * math.exp((900 - n) / 700) if n > 900 else 0.0,
        lambda n, since, boots: 2.0 if n > 900 else 0.0,
    ],
    ids=["falls", "decays", "climbs and decays", "other data each time", "a curriculum", "stays"],
)
def test_a_healthy_run_that_is_restarted_again_and_again_is_silent(
    every: int, extra: Callable[[int, int, int], float]
) -> None:
    """A rise that only stays is waited for as after one restart: other data may have made it."""
    dice = random.Random(every)
    ran = restarted(
        lambda *at: falling(at[0]) + extra(*at) + dice.gauss(0, 0.05), every, back=30, count=1800
    )
    assert feed(Divergence, ran).halts == []


@pytest.mark.parametrize(("before", "halts"), [(2.9e-4, 1), (1e-4, 0)])
def test_a_rate_that_warms_up_after_a_restart_to_what_it_was_is_no_warm_restart(
    before: float, halts: int
) -> None:
    """Who does not load the schedule begins it anew; beyond what it was it takes the loss along."""
    ran = Ran(ranks=1)
    for number in range(1, 701):
        ran.step(loss=falling(number), lr=3e-4 if number < 600 else before)
    ran.many(40, loss=4.0, lr=before).back_to(730)
    for number in range(1, 290):
        ran.step(loss=4.0, lr=3e-4 * min(1.0, number / 30))
    assert len(feed(Divergence, ran).halts) == halts


@pytest.mark.parametrize(
    ("first", "last", "climbs"),
    [
        (4.0, 4.0, False),
        (4.0, 3.5, False),
        (4.0, 4.15, False),
        (4.0, 4.4, True),
        (5.2, 5.2, True),
    ],
    ids=["stays", "falls", "creeps", "climbs", "is large"],
)
def test_what_a_restart_finds_up_has_to_climb_or_to_be_large(
    first: float, last: float, climbs: bool
) -> None:
    """A rise to 4.0 of a best of 2.0; the limit is 0.3."""
    detector = Divergence(Run(order=order_of({})))
    window = tuple(first + (last - first) * place / 79 for place in range(80))
    own = Trend(first=(5.0,) * 3, steps=80, smooth=last, best=2.0, window=window)
    rise = detector._rise(own, 2.0, 0.3, mild=False, stays=False)
    assert detector._climbs(own, rise, 0.3) is climbs
    assert detector._climbs(replace(own, window=(4.0, 4.4), smooth=4.0), rise, 0.3) is False


@pytest.mark.parametrize(("first", "halts"), [(2.0, 0), (6.0, 1)])
def test_the_first_five_losses_tell_what_a_restart_finds(first: float, halts: int) -> None:
    """One from before the rise finds the loss down, and is judged by its own first 200 alone."""
    ran = Ran(ranks=1).many(3, loss=5.5).many(400, loss=2.0).many(40, loss=6.0)
    ran.back_to(400).many(3, loss=first).many(197, loss=6.0)
    assert len(feed(Divergence, ran).halts) == halts


@pytest.mark.parametrize(("before", "halts"), [(3, 0), (40, 1)])
def test_a_restart_goes_on_with_a_rise_only_where_the_loss_was_up(before: int, halts: int) -> None:
    ran = Ran(ranks=1).many(3, loss=5.5).many(400, loss=2.0).many(before, loss=6.0)
    ran.back_to(400).many(200, loss=6.0)
    assert len(feed(Divergence, ran).halts) == halts


@pytest.mark.parametrize(
    ("later", "another", "halts"),
    [
        (lambda n: 9.0 + 3.0 * math.exp(-n / 60), True, 0),
        (lambda n: 9.0 + 3.0 * math.exp(-n / 60), False, 1),
        (lambda n: 9.0 + 3.0 * math.exp(-n / 60) + max(0, n - 400) * 0.03, True, 1),
    ],
    ids=["another stage", "the same training", "another stage that diverges"],
)
def test_another_training_is_held_against_nothing_of_the_one_before(
    later: Callable[[int], float], another: bool, halts: int
) -> None:
    """The first began near ln(256) = 5.55, and fell."""
    ran = Ran(ranks=1)
    for _ in range(400):
        ran.step(loss=falling(ran.number))
    ran.back_to(0)
    for _ in range(700):
        ran.step(loss=later(ran.number))
    fed = feed(Divergence, ran, another=another)
    assert len(fed.halts) == halts
    assert fed.missing is None


@pytest.mark.parametrize(("restarts", "halts"), [(True, 1), (False, 0)])
def test_a_rise_that_a_restart_ended_is_no_swing(restarts: bool, halts: int) -> None:
    """One that came back by itself shows a loss that swings, and what it does later only warns."""
    identity = Identity(tokens_per_step=2048)  # of no language model
    ran = Ran(order=order_of({}, identity=identity), ranks=1)
    for number in range(1060):
        ran.step(loss=falling(ran.number) + 0.05 * max(0, number - 1000))
    if restarts:
        ran.back_to(900)
    for number in range(1000):
        ran.step(loss=falling(ran.number) + 0.02 * max(0, number - 400))
    assert len(feed(Divergence, ran).halts) == halts


def test_a_loss_that_jumps_in_its_first_steps_and_stays_halts() -> None:
    assert [f.step for f in run(lambda n: 5.5 if n < 5 else 50.0, 300).halts] == [250]
    of_vocab = run(noisy(lambda n: 5.5 if n < 5 else 6.3, 0.05), 300)  # ln(256) = 5.55
    assert len(of_vocab.halts) == 1
    assert run(lambda n: 4.0 if n < 5 else 11.9, 600).halts == []
    assert len(run(lambda n: 4.0 if n < 5 else 13.3, 600).halts) == 1


@pytest.mark.parametrize("first", [0.01, 0.9])
def test_a_small_loss_may_grow_in_its_first_steps(first: float) -> None:
    """Of a value function before the first reward, or a queue of negatives that fills."""
    assert run(lambda n: first + 8.0 * (1.0 - math.exp(-n / 5)), 900).halts == []


@pytest.mark.parametrize("period", [60, 200, 311])
def test_a_loss_that_swings_far_above_its_best_halts(period: int) -> None:
    def swings(n: int) -> float:
        return 2.6 if n <= 400 else 8.0 + 2.0 * math.sin(2 * math.pi * n / period)

    fed = run(noisy(swings, 0.05), 1400)
    assert len(fed.halts) == 1
    assert (fed.halts[0].step or 0) <= 400 + 2 * 400 + 50


def test_a_loss_that_swings_for_a_while_and_comes_back_does_not() -> None:
    def swings(n: int) -> float:
        return 8.0 + 2.0 * math.sin(n / 10) if 400 < n < 750 else 2.6

    assert run(noisy(swings, 0.05), 1400).halts == []


@pytest.mark.parametrize("tau", [200.0, 300.0, 400.0])
def test_a_large_spike_may_take_a_thousand_steps_to_decay(tau: float) -> None:
    loss = noisy(lambda n: 2.0 + (5.0 * math.exp((400 - n) / tau) if n > 400 else 0.0), 0.05)
    assert run(loss, 2500).halts == []


def test_plan_settings_count_and_are_named() -> None:
    fed = run(
        lambda n: 3.0 if n <= 20 else 6.0 + 0.1 * n,
        40, alpha=0.3, above=1.5, over_steps=5, after_step=15,
    )  # fmt: skip
    assert [f.source for f in fed.halts] == [Source.PLAN]
    assert 25 < (fed.halts[0].step or 0) < 30


CLIMBING = (
    "5.61 4.57 4.1 4.12 4.12 3.93 4.2 4.79 4.24 4.47 4.2 3.35 3.43 3.48 3.56 3.08 3.44 3.1 3.47"
    " 2.92 3.02 3.01 3.7 4.37 5.3 5.71 6.11 8.35 8.9 8.83 9.08 9.94 9.29 9.54 8.89 9.08 9.8 9.77"
    " 10.7 11.6"
)
"""The demo model, its gradient climbed from step 20 on."""
LEARNING = (
    "5.61 4.57 4.1 4.12 4.12 3.93 4.2 4.79 4.24 4.47 4.2 3.35 3.43 3.48 3.56 3.08 3.44 3.1 3.47"
    " 2.92 2.93 2.58 2.62 2.82 3.15 3.3 3.08 2.87 2.87 2.9 2.79 2.36 2.6 2.63 2.81 3.29 3.21 3.69"
    " 2.84 2.4"
)
"""The same, left alone."""


@pytest.mark.parametrize(("losses", "found"), [(CLIMBING, 1), (LEARNING, 0)], ids=["up", "down"])
def test_the_demo_plan_tells_a_climbing_model_from_a_learning_one(losses: str, found: int) -> None:
    values = [float(text) for text in losses.split()]
    fed = run(lambda n: values[n - 1], len(values), **DEMO)
    assert len(fed.halts) == found
    assert all((finding.step or 0) <= 32 for finding in fed.halts)


def test_it_is_armed_late_and_says_when_no_loss_was_told() -> None:
    none = feed(Divergence, Ran().many(300))
    assert not none.armed
    assert none.missing is not None
    few = feed(Divergence, Ran().many(200, loss=1.0))
    assert not few.armed
    assert few.missing is not None
    assert "200 steps" in few.missing
    fed = feed(Divergence, Ran().many(201, loss=1.0))
    assert fed.armed
    assert fed.missing is None
    assert feed(Divergence, Ran()).missing is None


def test_a_saved_state_goes_on_as_the_whole() -> None:
    ran = Ran(ranks=1)
    for number in range(1, 420):
        ran.step(loss=3.0 + max(0, number - 250) * 0.03)
    whole = feed(Divergence, ran).findings
    assert [row.severity for row in whole] == [INFO, WARN, HALT]
    assert feed(Divergence, ran, saved_every=9).findings == whole


@settings(max_examples=40, deadline=None)
@given(
    st.integers(0, 10**9), st.floats(0.01, 1.5), st.floats(20.0, 2000.0), st.sampled_from([0, 0.8])
)
def test_noise_of_any_size_about_a_falling_loss_never_halts(
    seed: int, sigma: float, tau: float, correlated: float
) -> None:
    dice, wander, ran = random.Random(seed), 0.0, Ran(ranks=1)
    for number in range(1, 900):
        wander = correlated * wander + dice.gauss(0, sigma) * math.sqrt(1 - correlated**2)
        ran.step(loss=2.5 + 3.0 * math.exp(-number / tau) + wander)
    assert feed(Divergence, ran).halts == []


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**9), st.floats(0.02, 0.2), st.integers(250, 400), st.floats(0.0, 0.1))
def test_every_steady_rise_is_found(seed: int, slope: float, begin: int, sigma: float) -> None:
    loss = noisy(lambda n: 3.0 + slope * max(0, n - begin), sigma, seed)
    assert len(run(loss, begin + 160).halts) == 1


EXACT = {"alpha": 1.0, "after_step": 5, "over_steps": 3, "above": 1.0, "noise_x": 1e-9}
"""The loss itself counts, and a rise of one."""


def told(fed: Fed) -> list[tuple[int | None, str]]:
    """Step of each rise that was found, and the best that it was held against."""
    return [(f.step, f.text.partition("its best was ")[2].partition(".")[0]) for f in rises(fed)]


def rises(fed: Fed) -> list[Finding]:
    """Return what halts or, of a loss that does not only fall, warns of a rise."""
    return [finding for finding in fed.findings if "/rise/" in finding.key]


def losses(
    *parts: tuple[int, float], vocab: int | None = None, lr: float | None = None, **watch: object
) -> Ran:
    """A run with so many steps of each loss."""
    order = order_of({"divergence": {**EXACT, **watch}}, identity=Identity(vocab=vocab))
    ran = Ran(order=order, ranks=1)
    for count, loss in parts:
        ran.many(count, loss=loss, lr=lr)
    return ran


@pytest.mark.parametrize(
    ("vocab", "first", "best"),
    [
        (None, 1.0, 3.0),
        (None, 0.75, (2 * 0.75 + 7000.0) / 9),
        (None, 2.0, 6.0),
        (1, 1.0, 1.0),
        (1, 1.25, 3.75),
        (256, 5.0, 5.0),
        (256, 7.0, 21.0),
    ],
    ids=[
        "three times one",
        "below one nothing is known",
        "three times two",
        "of a language model",
        "not quite of one",
        "near the logarithm",
        "not near it",
    ],
)
def test_the_best_is_at_most_what_the_first_losses_allow(
    vocab: int | None, first: float, best: float
) -> None:
    """The mean of the first nine is no better than that."""
    ran = losses((2, first), (7, 1000.0), (60, 3000.0), vocab=vocab, alpha=0.1, after_step=9)
    (halt, *_) = feed(Divergence, ran).halts
    assert f"its best was {best:.4g}. " in halt.text


def test_three_losses_are_the_first() -> None:
    ran = losses((2, 2.0), (60, 1000.0), alpha=0.1, after_step=9)
    assert "its best was 6. " in feed(Divergence, ran).halts[0].text


def test_the_last_five_losses_have_to_be_above_the_limit() -> None:
    assert told(feed(Divergence, losses((10, 1.0), (3, 2.0), (8, 4.0)))) == [(18, "1")]


def test_three_of_the_last_five_losses_that_fell_begin_it_anew() -> None:
    low_high = ((10, 1.0), (53, 10.0), (3, 1.0))
    fed = feed(Divergence, losses(*low_high, (20, 10.0), alpha=0.02, over_steps=50))
    assert fed.halts == []


def test_the_recent_losses_are_twenty_five() -> None:
    fed = feed(Divergence, losses((30, 1.0), (100, 4.5), over_steps=60))
    assert [(f.step, f.since) for f in fed.halts] == [(102, EPOCH + 42.0)]


def test_a_loss_that_comes_back_to_the_limit_may_rise_again() -> None:
    fed = feed(Divergence, losses((10, 1.0), (10, 4.5), (1, 2.0), (10, 4.5)))
    assert [(f.step, f.since) for f in fed.halts] == [(15, EPOCH + 12.0), (24, EPOCH + 21.0)]


@pytest.mark.parametrize(("lost", "best"), [(1, "1"), (16, "1"), (17, "1")])
def test_a_restart_forgets_the_best_of_what_it_repeats(lost: int, best: str) -> None:
    ran = losses((lost, 1.0), (1, 0.5), after_step=0, above=2.0)
    ran.back_to(lost).many(9, loss=9.0)
    assert told(feed(Divergence, ran))[0][1] == best


def test_a_best_is_kept_at_each_of_the_first_sixteen_steps_and_every_second_after() -> None:
    ran = losses(*((1, 32.0 - number) for number in range(1, 20)), after_step=0, above=2.0)
    ran.back_to(17).many(9, loss=99.0)
    assert told(feed(Divergence, ran))[0][1] == "16"


def test_the_first_loss_after_a_restart_has_no_noise() -> None:
    ran = losses((2, 1.0), after_step=0, over_steps=1, noise_x=3.0)
    ran.back_to(1).many(1, loss=2.25)
    assert told(feed(Divergence, ran)) == [(2, "1")]


@pytest.mark.parametrize(("before", "warned"), [(7, 0), (8, 1)])
def test_a_spike_needs_half_a_window_before_it(before: int, warned: int) -> None:
    ran = losses((before, 1.0), (1, 9.0), window_steps=16, spike_count=1, spike_of=1)
    assert len(feed(Divergence, ran).of(INFO)) == warned


@pytest.mark.parametrize(("noise_x", "found"), [(3.0, 0), (1e-9, 1)])
def test_a_loss_within_its_noise_has_not_risen(noise_x: float, found: int) -> None:
    ran = losses(*(((1, 1.0), (1, 3.0)) * 6), (30, 4.0), noise_x=noise_x)
    assert len(rises(feed(Divergence, ran))) == found


def test_the_median_of_the_recent_losses_has_to_be_above_the_limit() -> None:
    """With twelve of 25 above it, and one on it, it is on it."""
    fed = feed(Divergence, losses((30, 1.0), (1, 2.0), (80, 4.5), over_steps=50))
    assert [(f.step, f.since) for f in fed.halts] == [(31 + 13 + 49, EPOCH + 43.0)]


def test_a_rise_that_keeps_nineteen_twentieths_of_its_height_holds() -> None:
    assert told(feed(Divergence, losses((10, 1.0), (3, 21.0), (9, 20.0)))) == [(15, "1")]
    higher = losses((10, 1.0), (3, 30.0), (3, 21.0), (9, 20.0))
    assert told(feed(Divergence, higher)) == [(20, "1")], "what was before that does not count"


@pytest.mark.parametrize("before", [(), ((2, 10.0), (1, 1.0))], ids=["at once", "once more"])
def test_a_loss_that_swings_above_the_limit_halts_after_two_blocks(
    before: tuple[tuple[int, float], ...],
) -> None:
    ran = losses((10, 1.0), *before, *(((4, 10.0), (4, 5.0)) * 9), over_steps=8)
    first = 11 + sum(count for count, _ in before)
    (halt, *_) = feed(Divergence, ran).halts
    assert (halt.step, halt.since) == (first + 63, EPOCH + first - 1)


def test_the_best_counts_once_the_mean_is_of_enough() -> None:
    ran = losses((2, 1.0), (40, 50.0), alpha=0.5, over_steps=30)
    assert told(feed(Divergence, ran))[0][1] == "1"


@pytest.mark.parametrize("dip", [1.0, 0.5], ids=["all alike", "one lower"])
@pytest.mark.parametrize(("loss", "spikes"), [(1.5, 0), (1.75, 1)])
def test_a_spike_lies_above_its_least(loss: float, spikes: int, dip: float) -> None:
    ran = losses(
        (8, 1.0), (1, dip), (7, 1.0), (1, loss), window_steps=16, spike_count=1, spike_of=1
    )
    assert len(feed(Divergence, ran).of(INFO)) == spikes


@pytest.mark.parametrize(("more", "spikes"), [(0.0, 0), (0.25, 1)])
def test_a_spike_lies_above_its_sigmas(more: float, spikes: int) -> None:
    loss = 1.0 + 8.0 * (SIGMA_OF_MAD * 1.0) + more
    ran = losses(
        *(((1, 0.0), (1, 2.0)) * 8),
        (1, loss),
        spike_least=5.0,
        window_steps=16,
        spike_count=1,
        spike_of=1,
    )
    assert len(feed(Divergence, ran).of(INFO)) == spikes


@pytest.mark.parametrize("before", [(), ((2, 10.0), (1, 1.0))], ids=["at once", "once more"])
@pytest.mark.parametrize(("last", "found"), [(8.0, 1), (7.75, 0)])
def test_a_block_that_keeps_nineteen_twentieths_of_the_one_before_is_no_lower(
    before: tuple[tuple[int, float], ...], last: float, found: int
) -> None:
    """Heights of 320 and 304 in all."""
    higher, lower = ((4, 13.0), (4, 9.0)) * 4, ((4, 13.0), (4, 8.0)) * 3
    ran = losses((10, 1.0), *before, *higher, *lower, (4, 13.0), (3, 8.0), (1, last), over_steps=8)
    assert len(feed(Divergence, ran).halts) == found


NOISY = ((1, 1.0), (1, 3.0)) * 6
AT_THE_NOISE = 1.0 + 1.0 * (SIGMA_OF_MAD * 1.0)


def test_a_loss_that_stays_at_the_limit_of_its_noise_has_not_risen() -> None:
    assert rises(feed(Divergence, losses(*NOISY, (40, AT_THE_NOISE), noise_x=1.0))) == []


def test_a_loss_at_the_limit_of_its_noise_begins_the_rise_anew() -> None:
    ran = losses(*NOISY, (1, 9.0), (1, AT_THE_NOISE), (8, 9.0), noise_x=1.0)
    assert told(feed(Divergence, ran)) == [(17, "1")]


def test_noise_is_that_of_the_first_half_of_the_window() -> None:
    parts = ((3, 1.0), (3, 3.0), (5, 1.0), (40, 2.25))
    assert rises(feed(Divergence, losses(*parts, noise_x=1.0, after_step=11))) == []


def test_thirteen_of_the_recent_twenty_five_have_to_be_above_the_limit() -> None:
    """Of one more, the median would lie half-way, and below the limit."""
    fed = feed(Divergence, losses((30, 1.0), (73, 2.75), over_steps=60))
    assert [(f.step, f.since) for f in rises(fed)] == [(30 + 13 + 59, EPOCH + 42.0)]


@pytest.mark.parametrize(
    ("loss", "found"),
    [(2.75, [(WARN, 15), (HALT, 10 + 8 * 12)]), (4.0, [(WARN, 15)]), (4.25, [(HALT, 15)])],
    ids=["mild", "three times the limit", "more"],
)
def test_a_mild_rise_halts_after_eight_blocks(
    loss: float, found: list[tuple[Severity, int]]
) -> None:
    fed = feed(Divergence, losses((10, 1.0), (100 if loss == 2.75 else 80, loss)))
    assert [(f.severity, f.step) for f in rises(fed)] == found


@pytest.mark.parametrize(("steps", "halts"), [(4000, 0), (20000, 1)])
@pytest.mark.parametrize("first", [6.0, 2.0])
def test_a_mild_rise_that_is_won_back_slowly_does_not_stay(
    first: float, steps: int, halts: int
) -> None:
    """A harder mix of data: what is won back of its height in 1400 steps is 30 %, or 7 %."""

    def mixed(number: int) -> float:
        won = math.exp(-max(0, number - 400) / steps)
        return (first if number <= 40 else 1.0) + (0.6 * won if number > 400 else 0.0)

    assert len(run(noisy(mixed, 0.02), 2400).halts) == halts


def test_a_mild_rise_that_is_won_back_in_part_halts_where_the_rest_stays() -> None:
    fed = feed(Divergence, losses((10, 1.0), (40, 2.75), (150, 2.25)))
    assert [(f.severity, f.step) for f in rises(fed)] == [(WARN, 15), (HALT, 10 + 12 * 12)]


HIGH_FIRST = ((3, 20.0), (30, 1.0))


@pytest.mark.parametrize(
    ("loss", "lr", "step"),
    [
        (20.0, None, 33 + 2 * 3 * 4 * 3),
        (20.25, None, 33 + 5),
        (20.0, 1e-3, 33 + 5),
    ],
    ids=["where it began", "above", "the rate is told"],
)
def test_a_loss_that_may_be_reheated_has_to_stay_for_three_times_as_long(
    loss: float, lr: float | None, step: int
) -> None:
    fed = feed(Divergence, losses(*HIGH_FIRST, (80, loss), lr=lr))
    assert [f.step for f in rises(fed)] == [step]


def test_a_loss_that_may_be_reheated_has_to_climb_for_twice_as_long() -> None:
    climb = [(1, 1.0 + 1.5 * 1.15**number) for number in range(12)]
    fed = feed(Divergence, losses(*HIGH_FIRST, *climb))
    assert [(f.step, f.since) for f in rises(fed)] == [(41, EPOCH + 35.0)]


SWAYING = (*((1, 9.0), (1, 11.0), (1, 13.0), (1, 11.0)) * 4, (1, 9.0))


def swaying(*rise: tuple[int, float]) -> Ran:
    """A loss that sways by a fifth, and by a fortieth a step: a jitter of 2.6 % of its best."""
    up = [(1, 102.5 + 2.5 * number) for number in range(8)]
    down = [(1, 120.0 - 2.5 * number) for number in range(9)]
    return losses(*up, *down, *rise, after_step=17)


@pytest.mark.parametrize(
    "ran",
    [losses(*SWAYING, (40, 40.0)), swaying((40, 200.0))],
    ids=["from step to step", "slowly"],
)
def test_a_rise_of_an_unsteady_loss_that_never_fell_warns(ran: Ran) -> None:
    assert [f.severity for f in rises(feed(Divergence, ran))] == [WARN]


@pytest.mark.parametrize(
    ("parts", "why"),
    [
        (((10, 1.0), (8, 2.75)), "it halts beyond 3, or where it stays for long"),
        (((10, 1.0), (8, 4.0)), "it halts beyond 3, or where it stays for long"),
        (((10, -1.0), (8, 1.0)), "this loss is not of the kind that only falls"),
        (
            (*SWAYING, (8, 40.0)),
            "this loss is not of the kind that only falls",
        ),
    ],
    ids=["mild", "just mild", "negative", "unsteady"],
)
def test_a_rise_that_ends_nothing_says_why(parts: tuple[tuple[int, float], ...], why: str) -> None:
    (warn,) = rises(feed(Divergence, losses(*parts)))
    assert warn.severity is WARN
    assert warn.text.endswith(f" steps; {why}")


@pytest.mark.parametrize(("low", "found"), [(4, 0), (5, 1)])
def test_after_a_warm_restart_the_highest_of_the_first_losses_counts(low: int, found: int) -> None:
    """The first of them is that of the step on which the rate came back up."""
    ran = losses((3, 50.0), (9, 1.0), lr=1.0)
    ran.many(12, loss=1.0, lr=0.1).step(loss=1.0, lr=1.0).many(low - 1, loss=1.0, lr=0.1)
    assert len(rises(feed(Divergence, ran.many(9, loss=50.0, lr=0.1)))) == found


def test_a_mild_rise_that_wavers_above_the_limit_is_told_once() -> None:
    fed = feed(Divergence, losses((10, 1.0), (8, 3.75), (20, 2.5)))
    assert [(f.severity, f.step) for f in rises(fed)] == [(WARN, 15)]


@pytest.mark.parametrize(("resumed", "severity"), [(False, WARN), (True, HALT)])
def test_a_small_loss_that_never_fell_may_have_fallen_before_it_was_resumed(
    resumed: bool, severity: Severity
) -> None:
    ran = losses((10, 0.5), (8, 5.0))
    if resumed:
        point = ResumePoint(path="checkpoints/x", step=9)
        ran.order = ran.order.model_copy(update={"resume_from": point})
    assert [f.severity for f in rises(feed(Divergence, ran))] == [severity]


@pytest.mark.parametrize(("loss", "severity"), [(2.0, WARN), (2.25, HALT)])
def test_a_language_models_mild_rise_halts_above_where_it_began_and_the_limit(
    loss: float, severity: Severity
) -> None:
    ran = losses((3, 1.0), (10, 0.5), (8, loss), vocab=1)
    assert [f.severity for f in rises(feed(Divergence, ran))] == [severity]


@pytest.mark.parametrize(
    ("heights", "long"),
    [((10.0,) * 6 + (8.0, 9.5), True), ((10.0,) * 6 + (9.5, 8.0), False)],
    ids=["up again", "falls"],
)
def test_a_long_rise_keeps_nine_tenths_of_its_greatest_height_at_last(
    heights: tuple[float, ...], long: bool
) -> None:
    detector = Divergence(Run(order=order_of({})))
    trend = Trend(first=(1.0,), smooth=5.0, up=10**6, heights=heights)
    assert detector._rise(trend, 1.0, 0.5, mild=True, stays=True).long is long


@pytest.mark.parametrize(("loss", "severity"), [(10.0, WARN), (10.25, HALT)])
def test_a_loss_that_was_negative_halts_beyond_ten_times_all_that_was_before(
    loss: float, severity: Severity
) -> None:
    fed = feed(Divergence, losses((10, -1.0), (1, 0.5), (8, loss)))
    assert [f.severity for f in rises(fed)] == [severity]


def line(middle: float, by: float, count: int) -> tuple[float, ...]:
    """So many losses, each by so much more than the one before."""
    return tuple(middle + by * (2 * number - count + 1) / 2 for number in range(count))


def test_a_trend_has_eased_as_often_as_it_was_eased() -> None:
    assert [Trend().eases, Trend().easing().easing().eases] == [0, 2]


def eases(window: tuple[float, ...], best: float = 1.0, **state: Any) -> bool | None:
    """Whether a rise above a best, with a limit of one, is one of other data.

    Recent losses are four; it would be won back within 512 steps.
    """
    order = order_of({"divergence": {"over_steps": 8, "window_steps": 16}})
    return Divergence(Run(order=order))._eases(Trend(window=window, **state), best, 1.0)


@pytest.mark.parametrize(
    ("window", "best", "state", "found"),
    [
        (line(6.0, -0.25, 15), 1.0, {}, True),
        (line(6.0, -0.25, 15), 1.0, {"eases": 5}, True),
        (line(6.0, -0.25, 15), 1.0, {"eases": 6}, False),
        (line(11.0, -0.25, 15), 1.0, {}, True),
        (line(11.0, -0.25, 15), 0.75, {}, False),
        (line(5.0, -1 / 128, 15), 1.0, {}, True),
        (line(5.0, -1 / 128, 15), 0.875, {}, False),
        (line(5.0, 0.25, 15), 1.0, {}, False),
    ],
    ids=[
        "falls", "for the sixth time", "for the seventh", "from ten times the limit",
        "from higher", "within 512 steps", "not quite", "climbs",
    ],
)  # fmt: skip
def test_a_rise_comes_down_that_would_be_won_back_six_times_at_most(
    window: tuple[float, ...], best: float, state: dict[str, Any], found: bool
) -> None:
    assert eases(window, best, over=13, **state) is found


@pytest.mark.parametrize("eased", [None, 2.0])
@pytest.mark.parametrize(("count", "found"), [(5, None), (6, False)])
def test_a_rise_that_may_come_down_is_asked_again_until_a_window_is_full(
    count: int, found: bool | None, eased: float | None
) -> None:
    """Ten losses are alike, so that no fall is sure."""
    window = (6.0,) * 10 + line(5.0, -0.25, count)
    assert eases(window, over=8 + count, eased=eased) is found


@pytest.mark.parametrize(("eased", "found"), [(2.0, True), (None, False)])
def test_what_came_down_is_asked_since_it_rose_again(eased: float | None, found: bool) -> None:
    window = line(5.0, 0.5, 8) + line(5.0, -0.25, 8)
    assert eases(window, over=6, up=16, eased=eased) is found


ALIKE = (2.0,) * 5


@pytest.mark.parametrize(
    ("before", "state", "found"),
    [
        ((2.0,) * 4, {}, True),
        ((2.0,) * 3, {}, False),
        ((2.0,) * 4, {"told": False}, False),
        ((2.0,) * 4, {"eased": 2.0}, False),
        (line(2.0, 0.25, 8), {}, False),
        (line(2.0, 1 / 64, 8), {}, False),
        (line(2.0, 1 / 128, 8), {}, True),
        ((*ALIKE, 3.0, 4.0, 5.0), {}, True),
    ],
    ids=[
        "stays", "too few", "none was mild", "came down before", "climbs",
        "climbs as high in 512 steps", "not quite", "may not climb",
    ],
)  # fmt: skip
def test_a_rise_that_was_mild_and_jumps_is_of_other_data_unless_it_climbed(
    before: tuple[float, ...], state: dict[str, Any], found: bool
) -> None:
    """It jumps to eight above its best."""
    assert eases(before + (9.0,) * 8, **{"over": 6, "told": True, **state}) is found


@pytest.mark.parametrize(
    ("eased", "after"),
    [(5.0, (5.0, 32, (320.0, 320.0), True)), (4.75, (None, 0, (), False))],
    ids=["not above the limit", "above it"],
)
def test_a_block_above_the_lowest_since_it_came_down_and_the_limit_begins_it_anew(
    eased: float, after: tuple[float | None, int, tuple[float, ...], bool]
) -> None:
    detector = Divergence(Run(order=order_of({"divergence": {"over_steps": 8}})))
    own = Trend(first=(1.0,), smooth=9.0, eased=eased, up=31, height=310.0, heights=(320.0,))
    (step,) = Ran(ranks=1).step().steps
    own, lasts = detector._lasted(own, 10.0, 4.0, 1.0, step)
    assert (own.eased, own.up, own.heights, lasts) == after
    assert own.height == 0.0


@pytest.mark.parametrize(("tokens", "found"), [(1024, 1024), (None, 4096)])
def test_the_tokens_of_a_step_whose_first_rank_tells_none_are_those_of_a_peer(
    tokens: int | None, found: int
) -> None:
    ran = Ran(ranks=2)
    view = ran.view()
    view.streams[1].tokens, view.streams[1].tokens_step = 4096, 7
    (step,) = ran.step(tokens=tokens).steps
    assert _tokens_of(step, view) == found


def ramped(loss: Callable[[int], float], to: int = 4096, back: int = 10**9) -> Fed:
    """A run that began as a language model, and whose batch grows at step 300, for good or not."""
    ran = Ran(order=order_of({}, identity=Identity(vocab=50_257)), ranks=1)
    for number in range(1, 700):
        tokens = to if 300 <= number < back else 1024
        ran.step(loss=loss(number), tokens=tokens, lr=1e-4)
    return feed(Divergence, ran)


def learns(number: int) -> float:
    return 2.5 + 8.3 * (1 + number / 50) ** -1.0


@pytest.mark.parametrize("back", [500, 10**9])
def test_a_sum_over_what_a_step_carries_grows_with_its_tokens(back: int) -> None:
    grown = noisy(lambda n: (4.0 if 300 <= n < back else 1.0) * learns(n), 0.03)
    assert rises(ramped(grown, back=back)) == []


def test_a_sum_that_grows_by_itself_diverges() -> None:
    fed = ramped(
        noisy(lambda n: (4.0 if n >= 300 else 1.0) * (learns(n) + max(0, n - 400) / 30), 0.03)
    )
    assert [f.severity for f in rises(fed)][-1:] == [HALT]


@pytest.mark.parametrize("within", [6, 20, 60])
def test_a_mean_that_climbs_when_the_batch_grows_diverges(within: int) -> None:
    """To twice what it was, as the tokens are, and stays there."""

    def climbs(number: int) -> float:
        return learns(min(number, 300)) * (1 + min(1, max(0, number - 300) / within))

    assert [f.severity for f in rises(ramped(noisy(climbs, 0.03), to=2048))][-1:] == [HALT]
