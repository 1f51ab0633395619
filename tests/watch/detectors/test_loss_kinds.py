"""D11 on losses that are no language model's: what swings, jumps and changes its sign is well."""

import math
import random
from collections.abc import Callable, Iterable, Iterator

import pytest

from gonogo.contract.finding import Severity
from gonogo.contract.heartbeat import Identity
from gonogo.contract.order import ResumePoint
from gonogo.watch.detectors.divergence import Divergence
from lab.losses import LOSSES
from tests.watch.steps import Fed, Ran, feed
from tests.watch.streams import IDENTITY, order_of

Told = dict[str, float]
STEPS = 2600


def lines_of(kind: str, seed: int) -> Iterator[Told]:
    numbers = LOSSES[kind](random.Random(seed))
    return (numbers(step) for step in range(STEPS))


def run(
    lines: Iterable[Told], *, vocab: int | None = 256, resumed: bool = False, **watch: float
) -> Fed:
    identity = Identity.model_validate({**IDENTITY.model_dump(), "vocab": vocab})
    settings = {"divergence": watch} if watch else {}
    order = order_of(settings, identity=identity, steps=10 * STEPS)
    if resumed:
        order = order.model_copy(update={"resume_from": ResumePoint(path="step_1000", step=1000)})
    ran = Ran(order=order, ranks=1)
    for told in lines:
        ran.step(**told)
    return feed(Divergence, ran)


@pytest.mark.parametrize("vocab", [256, None])
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kind", LOSSES)
def test_a_healthy_loss_of_another_kind_halts_nothing(
    kind: str, seed: int, vocab: int | None
) -> None:
    assert run(lines_of(kind, seed), vocab=vocab).halts == []


def sick(lines: Iterator[Told], onset: int, ill: Callable[[int, Told], Told]) -> Iterator[Told]:
    for step, told in enumerate(lines):
        yield ill(step - onset, told) if step >= onset else told


def climbs(since: int, told: Told) -> Told:
    return {**told, "loss": told["loss"] + 0.02 * since}


def blows_up(since: int, told: Told) -> Told:
    by = math.exp(min(since, 400) / 40.0)
    return {**told, "loss": abs(told["loss"]) * by + by, "grad_norm": told["grad_norm"] * by}


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kind", ["sgdr", "sgdr_untold"])
def test_a_language_models_loss_that_climbs_between_restarts_halts(kind: str, seed: int) -> None:
    fed = run(sick(lines_of(kind, seed), 1300, climbs))
    assert fed.halts
    assert 1300 < (fed.halts[0].step or 0) < 2100


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kind", ["gan", "ppo", "grpo"])
def test_a_loss_of_any_kind_that_blows_up_halts(kind: str, seed: int) -> None:
    fed = run(sick(lines_of(kind, seed), 2000, blows_up))
    assert len(fed.halts) == 1
    assert 2000 < (fed.halts[0].step or 0) < 2400


def test_a_loss_of_another_kind_that_rises_is_told_of() -> None:
    fed = run(sick(lines_of("grpo", 0), 2000, climbs))
    assert fed.halts == []
    (warned,) = [row for row in fed.of(Severity.WARN) if "/rise/" in row.key][-1:]
    assert "not of the kind that only falls" in warned.text
    assert warned.act is None


def restarts(longer: float) -> Iterator[Told]:
    """Losses of warm restarts, each so many times as long as the one before; no rate is told."""
    dice, length = random.Random(3), 1300.0
    for step in range(600):
        yield {"loss": 2.0 + 3.4 * math.exp(-step / 150.0) + dice.gauss(0.0, 0.03)}
    for _ in range(4):
        for step in range(round(length)):
            heat = 0.5 + 0.5 * math.cos(math.pi * step / length)
            yield {"loss": 2.0 + 0.8 * heat + dice.gauss(0.0, 0.03)}
        length *= longer


def test_a_restart_that_takes_twice_as_long_as_the_one_before_is_none() -> None:
    assert run(restarts(2.0), vocab=241).halts == []


def test_a_loss_that_stays_up_for_longer_than_restarts_have_halts() -> None:
    lines = [*restarts(1.0)][: 600 + 2 * 1300]
    onset = len(lines)
    lines += [{"loss": row["loss"] + 0.8} for row in lines[-200:]] * 20
    (halt,) = run(iter(lines), vocab=241).halts
    assert onset + 1200 <= (halt.step or 0) <= onset + 3 * 1300


def quiet(step: int, *, noise: float = 0.02, grad_norm: float = 1.0) -> Told:
    return {"loss": 3.0 + noise * math.sin(7.0 * step), "grad_norm": grad_norm, "lr": 1e-3}


@pytest.mark.parametrize(("grad_norm", "halts"), [(2.9, 0), (3.1, 1)])
def test_a_blow_up_has_gradients_three_times_the_usual(grad_norm: float, halts: int) -> None:
    lines = [quiet(step, noise=0.5) for step in range(400)]
    lines += [{"loss": 40.0, "grad_norm": grad_norm, "lr": 1e-3}] * 200
    assert len(run(iter(lines)).halts) == halts


@pytest.mark.parametrize(("height", "halts"), [(28.0, 0), (45.0, 1)])
def test_a_blow_up_is_ten_times_all_that_was_before(height: float, halts: int) -> None:
    lines = [quiet(step, noise=0.5) for step in range(400)]
    lines += [{"loss": height, "grad_norm": 4.0, "lr": 1e-3}] * 300
    assert len(run(iter(lines)).halts) == halts


@pytest.mark.parametrize("alpha", [0.02, 0.1, 0.3])
@pytest.mark.parametrize("height", [12.5, 100.0, 1e4])
def test_a_loss_that_blows_up_at_once_halts_however_it_is_smoothed(
    height: float, alpha: float
) -> None:
    """What its first step made of the smoothed loss was ten times too high for the rest."""
    lines = [
        {"loss": (-1.0) ** step, "grad_norm": 1.0}
        if step < 400
        else {"loss": height, "grad_norm": 100.0}
        for step in range(800)
    ]
    assert len(run(lines, alpha=alpha).halts) == 1


@pytest.mark.parametrize(
    ("takes", "halts"), [(40.0, 1), (120.0, 1), (500.0, 0)], ids=["fast", "within 300", "slowly"]
)
def test_a_loss_of_no_known_kind_blows_up_within_some_hundred_steps(
    takes: float, halts: int
) -> None:
    """It grows by e in so many steps, and its gradient norms with it; in 276 tenfold."""
    dice = random.Random(2)

    def told(step: int) -> Told:
        by = math.exp(max(0, step - 400) / takes)
        loss = by * dice.lognormvariate(0.0, 0.45)
        return {"loss": loss, "grad_norm": by * dice.lognormvariate(0.0, 0.2), "lr": 1e-4}

    fed = run((told(step) for step in range(int(400 + 4.5 * takes))), vocab=None)
    assert len(fed.halts) == halts
    assert halts or len([row for row in fed.of(Severity.WARN) if "/rise/" in row.key]) == 1


@pytest.mark.parametrize("seed", range(2))
def test_the_loss_of_a_value_grows_for_thousands_of_steps_and_warns(seed: int) -> None:
    dice = random.Random(seed)

    def told(step: int) -> Told:
        loss = (0.1 + 40.0 * (step / 4000.0) ** 2) * dice.lognormvariate(0.0, 0.45)
        norm = (0.5 + 2.0 * step / 4000.0) * dice.lognormvariate(0.0, 0.25)
        return {"loss": loss, "grad_norm": norm, "lr": 1e-4}

    fed = run((told(step) for step in range(4000)), vocab=None)
    assert fed.halts == []
    assert len([row for row in fed.of(Severity.WARN) if "/rise/" in row.key]) == 1


def test_one_negative_loss_says_that_it_is_another_kind() -> None:
    lines = [quiet(step) for step in range(400)] + [{"loss": 6.0, "lr": 1e-3}] * 200
    assert len(run(iter(lines)).halts) == 1
    lines[100] = {"loss": -0.1, "lr": 1e-3}
    assert run(iter(lines)).halts == []


def test_a_learning_rate_that_warms_up_excuses_no_divergence() -> None:
    lines = [{**quiet(step), "lr": 1e-6 * (step + 1)} for step in range(400)]
    lines += [{"loss": 6.0, "lr": 1e-6 * (401 + step)} for step in range(200)]
    assert len(run(iter(lines)).halts) == 1


def falling(step: int, **told: float) -> Told:
    """A loss that falls from 3 to 1 and stays there."""
    return {"loss": 1.0 + 2.0 * math.exp(-step / 60.0) + 0.01 * math.sin(7.0 * step), **told}


def then(kind: Callable[[int], float], *, steps: int = 1600, **told: float) -> Fed:
    """A loss that falls, and from step 800 on has so much more."""
    rows = (falling(step, **told) for step in range(steps))
    lines = (
        {**row, "loss": row["loss"] + kind(max(0, step - 800))} for step, row in enumerate(rows)
    )
    return run(lines, vocab=None)


def test_a_term_that_is_annealed_wins_back_a_part_of_the_fall_and_halts_nothing() -> None:
    assert then(lambda since: min(0.5, since / 1000.0), lr=1e-3).halts == []


def test_a_loss_that_goes_back_to_where_it_began_halts() -> None:
    assert then(lambda since: min(1.9, since / 100.0), lr=1e-3).halts


@pytest.mark.parametrize(("height", "halts"), [(0.2, 0), (1.4, 1)])
def test_a_loss_that_never_fell_halts_once_it_is_well_above_where_it_began(
    height: float, halts: int
) -> None:
    """A queue of negatives fills up, a learning rate is warmed up anew after pretraining."""
    lines = ({"loss": 2.5 * (1.0 + height * min(1.0, step / 800.0))} for step in range(1400))
    assert len(run(lines, vocab=None).halts) == halts


def test_a_quiet_loss_of_two_networks_that_rises_from_its_first_step_halts_nothing() -> None:
    lines = ({"loss": 0.7 + 4.0 * (1.0 - math.exp(-step / 800.0))} for step in range(1600))
    assert run(lines, vocab=None).halts == []


@pytest.mark.parametrize(("grad_norm", "halts"), [(1.0, 0), (4.0, 1)])
def test_a_noisy_loss_that_fell_halts_far_above_with_its_gradients(
    grad_norm: float, halts: int
) -> None:
    dice = random.Random(3)
    lines = [{**falling(s), "grad_norm": 1.0} for s in range(800)]
    lines += [{"loss": 5.0, "grad_norm": grad_norm} for _ in range(400)]
    fed = run({**row, "loss": row["loss"] + dice.gauss(0.0, 0.15), "lr": 1e-3} for row in lines)
    assert len(fed.halts) == halts


def test_learning_rates_that_take_turns_excuse_no_divergence() -> None:
    rates = [1e-3, 1e-4, 1e-5]
    lines = [{**quiet(step), "lr": rates[step % 3]} for step in range(600)]
    lines += [{"loss": 6.0, "lr": rates[step % 3]} for step in range(200)]
    assert len(run(iter(lines)).halts) == 1


def test_a_learning_rate_that_goes_up_and_down_in_triangles_takes_the_loss_with_it() -> None:
    def told(step: int) -> Told:
        height = abs((step / 1500.0) % 2.0 - 1.0)
        loss = 1.6 + 4.0 * (1.0 + step / 60.0) ** -0.5 + 0.8 * height
        return {"loss": loss, "lr": 1e-3 * (0.25 + 0.75 * height)}

    assert run(told(step) for step in range(3200)).halts == []


def of_a_language_model(step: int, rises: float = 0.0) -> Told:
    """A loss that falls from ln(256) to 2, with the noise of its batches."""
    noise = 0.03 * math.sin(7.0 * step) + 0.02 * math.sin(3.3 * step)
    return {"loss": 2.0 + 3.5 * math.exp(-step / 80.0) + noise + rises, "lr": 1e-3}


def swings(step: int, period: int, height: float = 0.3) -> float:
    return height * math.sin(2.0 * math.pi * max(0, step - 400) / period)


@pytest.mark.parametrize("vocab", [256, None])
@pytest.mark.parametrize("period", [500, 1000, 1500, 2500])
def test_a_language_models_loss_that_swings_by_a_third_halts_nothing(
    period: int, vocab: int | None
) -> None:
    """By the order of its data, for instance."""
    lines = (of_a_language_model(step, swings(step, period)) for step in range(4000))
    assert run(lines, vocab=vocab).halts == []


@pytest.mark.parametrize("period", [500, 1500])
def test_the_loss_of_a_resumed_language_model_may_swing_as_far(period: int) -> None:
    lines = (of_a_language_model(1000 + s, swings(400 + s, period)) for s in range(3000))
    assert run(lines, resumed=True).halts == []


def test_a_language_models_loss_that_has_swung_and_then_climbs_halts() -> None:
    lines = (
        of_a_language_model(s, swings(s, 500) if s < 1900 else 0.005 * (s - 1900))
        for s in range(2400)
    )
    (halt,) = run(lines).halts
    assert 0.9 <= (halt.value or 0.0) <= 1.6


def test_the_loss_of_a_resumed_language_model_that_climbs_halts() -> None:
    lines = (of_a_language_model(1000 + s, 0.005 * max(0, s - 900)) for s in range(1400))
    (halt,) = run(lines, resumed=True).halts
    assert 0.9 <= (halt.value or 0.0) <= 1.6


def test_a_mild_rise_that_stays_is_told_at_once_and_halts_in_the_end() -> None:
    lines = (of_a_language_model(s, 0.0 if s < 600 else 0.5) for s in range(2600))
    fed = run(lines)
    (halt,) = fed.halts
    assert 2200 <= (halt.step or 0) <= 2300
    (warned,) = [row for row in fed.of(Severity.WARN) if "/rise/" in row.key]
    assert (warned.step or 0) < 800
    assert "halts beyond 0.9" in warned.text


@pytest.mark.parametrize("grad_norm", [4.0, 1.0, None], ids=["grown", "quiet", "not told"])
def test_a_very_noisy_loss_that_fell_and_triples_warns(grad_norm: float | None) -> None:
    """It may be a value's, of returns that grow."""
    dice = random.Random(5)

    def told(step: int) -> Told:
        up = step >= 800
        mean = 4.5 if up else 1.2 + 3.0 * math.exp(-step / 60.0)
        row = {"loss": max(0.01, mean + dice.gauss(0.0, 0.5)), "lr": 1e-3}
        return row if grad_norm is None else {**row, "grad_norm": grad_norm if up else 1.0}

    fed = run((told(step) for step in range(1700)), vocab=None)
    assert not fed.halts
    assert [row for row in fed.of(Severity.WARN) if "/rise/" in row.key]


@pytest.mark.parametrize("seed", range(4))
def test_the_loss_of_a_value_rises_with_the_returns_and_its_gradients_with_it(seed: int) -> None:
    """DQN, with the norms that `clip_grad_norm_` returns: a policy that got better was halted."""
    dice = random.Random(seed)
    top, at = dice.uniform(0.3, 3.0), dice.uniform(500.0, 900.0)

    def told(step: int) -> Told:
        base = 0.005 + 0.02 * math.exp(-step / 80) + top / (1 + math.exp((at - step) / 100))
        noise = [dice.lognormvariate(0.0, 0.5) for _ in range(2)]
        return {"loss": base * noise[0], "grad_norm": (0.05 + base) * noise[1], "lr": 1e-4}

    assert not run((told(step) for step in range(1500)), vocab=None).halts


def on_other_data(
    kind: Callable[[int], float], *, steps: int = 2400, sigma: float = 0.03, vocab: int | None = 256
) -> Fed:
    """A language model's loss that has so much more from step 800 on."""
    dice = random.Random(11)
    lines = (of_a_language_model(s, kind(s - 800) if s >= 800 else 0.0) for s in range(steps))
    noisy = ({**row, "loss": row["loss"] + dice.gauss(0.0, sigma)} for row in lines)
    return run(noisy, vocab=vocab)


@pytest.mark.parametrize("vocab", [256, None])
@pytest.mark.parametrize(
    ("height", "tau", "sigma"), [(1.7, 700.0, 0.03), (1.2, 1500.0, 0.03), (2.4, 700.0, 0.15)]
)
def test_other_data_that_are_learnt_slowly_warn_once_and_halt_nothing(
    height: float, tau: float, sigma: float, vocab: int | None
) -> None:
    fed = on_other_data(lambda s: 0.2 + height * math.exp(-s / tau), sigma=sigma, vocab=vocab)
    assert fed.halts == []
    (warned,) = [row for row in fed.of(Severity.WARN) if "/rise/" in row.key]
    assert (vocab is None) or warned.text.endswith("it comes down, and halts where that stops")


@pytest.mark.parametrize("apart", [450, 700, 800, 1000])
def test_a_curriculum_that_is_learnt_slowly_halts_nothing(apart: int) -> None:
    """Each phase is harder, and begins before the one before it was learnt."""

    def harder(since: int) -> float:
        phase = 1 + since // apart
        return 0.15 * phase + 0.4 * phase * math.exp(-(since % apart) / 400.0)

    assert on_other_data(harder, steps=800 + 4 * apart).halts == []


@pytest.mark.parametrize(
    ("kind", "first", "last"),
    [
        (lambda s: 2.0, 862, 862),
        (lambda s: 1.2 + 0.8 * math.exp(-s / 200.0), 1200, 1800),
        (lambda s: 3.2 * math.exp(-s / 700.0), 862, 880),
        (lambda s: 2.0 - 0.0003 * s, 862, 930),
        (lambda s: 2.0 * math.exp(-min(s, 500) / 700.0) + 0.02 * max(0, s - 500), 1320, 1420),
        (lambda s: 2.2 - 0.003 * (s % 250), 862, 2400),
        (lambda s: 0.5 if s < 520 else 2.0, 1382, 1420),
        (lambda s: 0.5 + 0.004 * s, 862, 1000),
    ],
    ids=[
        "stays",
        "stops falling",
        "too high",
        "too slowly",
        "climbs again",
        "again and again",
        "a jump from a mild one",
        "a climb from a mild one",
    ],
)
def test_a_rise_that_does_not_come_down_halts(
    kind: Callable[[int], float], first: int, last: int
) -> None:
    (halt,) = on_other_data(kind).halts
    assert first <= (halt.step or 0) <= last
