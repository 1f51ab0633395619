"""D13: collapsed gates halt when most layers have them; what is switched off is unknown."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gonogo.contract.finding import Severity, Source
from gonogo.watch.detectors.gate_collapse import GateCollapse
from tests.watch.steps import Fed, Ran, feed
from tests.watch.streams import EPOCH, order_of

WARN, HALT = Severity.WARN, Severity.HALT
OFF = {"NSA_DISABLE_AUX_STATS": "1"}


def at(share: float | None, *steps: int, upto: int = 900, **fields: float) -> Fed:
    """A run whose gates have collapsed in a share of the layers, as told at some steps."""
    ran = Ran(ranks=2)
    for number in range(1, upto + 1):
        ran.step(**({"gate_collapse_frac": share, **fields} if number in steps else {}))
    return feed(GateCollapse, ran)


def test_most_layers_on_three_steps_fifty_apart_halt() -> None:
    fed = at(0.6, 510, 560, 610)
    assert fed.severities == [(WARN, 610), (HALT, 610)]
    halt = fed.halts[0]
    assert (halt.value, halt.threshold, halt.source) == (0.6, 0.5, Source.DEFAULT)
    assert halt.since == EPOCH + 509.0
    assert halt.key == "run_1/1/gate_collapse/halt/step510"


@pytest.mark.parametrize(
    "steps",
    [(510, 560), (510, 559, 608), (510, 520, 530, 540, 558), (500, 550, 600), (400, 450, 500, 560)],
    ids=["two", "49 apart", "many close", "up to 500", "two after 500"],
)
def test_too_few_looks_far_enough_apart_say_nothing(steps: tuple[int, ...]) -> None:
    assert at(1.0, *steps).findings == []


def test_steps_in_between_do_not_count_and_do_not_harm() -> None:
    fed = at(1.0, *range(501, 700))
    assert fed.severities == [(WARN, 601), (HALT, 601)]


@pytest.mark.parametrize(
    ("share", "found"), [(0.0, []), (0.08, [WARN]), (0.5, [WARN]), (0.51, [WARN, HALT])]
)
def test_one_layer_warns_and_more_than_half_halt(share: float, found: list[Severity]) -> None:
    fed = at(share, 510, 560, 610)
    assert [f.severity for f in fed.findings] == found
    assert [f.threshold for f in fed.of(WARN)] == [0.0] * (WARN in found)


@pytest.mark.parametrize(
    ("sound", "found_at"),
    [((514,), 615), ((515,), 616), ((516,), 601), ((530, 545), 646), ((530, 546, 562), 601)],
    ids=["after 13", "after 14", "after 15", "14 after another", "15 after another"],
)
def test_a_sound_look_begins_anew_but_after_fifteen_collapsed_ones(
    sound: tuple[int, ...], found_at: int
) -> None:
    ran = Ran()
    for number in range(1, 900):
        ran.step(gate_collapse_frac=0.0 if number in sound else 1.0)
    assert feed(GateCollapse, ran).severities == [(WARN, found_at), (HALT, found_at)]


def test_a_sound_look_now_and_then_does_not_hide_a_collapse() -> None:
    """Three quarters of the layers had collapsed on 89 of 90 looks for 3000 steps: a warning."""
    ran = Ran()
    for number in range(1, 1100):
        collapsed = 0.75 if number % 90 else 0.45
        ran.step(gate_collapse_frac=collapsed if number >= 800 else 0.0)
    assert feed(GateCollapse, ran).severities == [(WARN, 900), (HALT, 911)]


def test_looks_that_are_far_apart_allow_no_sound_one() -> None:
    ran = Ran()
    for number in range(1, 1200):
        share = 0.0 if number % 150 == 0 else 1.0
        ran.step(**({"gate_collapse_frac": share} if number % 50 == 0 else {}))
    assert feed(GateCollapse, ran).findings == []


def test_a_rise_from_one_layer_to_most_halts_after_it_has_warned() -> None:
    ran = Ran()
    for number in range(1, 900):
        ran.step(gate_collapse_frac=0.1 if number < 700 else 0.9)
    assert feed(GateCollapse, ran).severities == [(WARN, 601), (HALT, 800)]


@pytest.mark.parametrize(
    ("fields", "found"),
    [
        ({"gate_entropy": 0.17, "gate_max": 0.5}, [WARN, HALT]),
        ({"gate_entropy": 0.18, "gate_max": 0.9}, []),
        ({"gate_entropy": 0.6, "gate_max": 0.91}, [WARN]),
        ({"gate_max": 0.95}, [WARN]),
        ({"gate_entropy": 0.1}, [WARN, HALT]),
        ({"gate_entropy": 0.1, "gate_collapse_frac": 0.0}, []),
        ({"gate_entropy": 0.1, "gate_collapse_frac": float("nan")}, [WARN, HALT]),
    ],
)
def test_what_a_trainer_says_that_does_not_count_layers(
    fields: dict[str, float], found: list[Severity]
) -> None:
    ran = Ran().many(700, **fields)
    fed = feed(GateCollapse, ran)
    assert [f.severity for f in fed.findings] == found
    assert fed.missing is None


def test_the_only_layer_is_all_of_them() -> None:
    one = order_of({}).identity.model_copy(update={"layers": 1})
    fed = feed(GateCollapse, Ran(order=order_of({}, identity=one)).many(700, gate_max=0.95))
    assert len(fed.halts) == 1


def test_the_soundest_rank_is_believed() -> None:
    ran = Ran(ranks=2)
    for _ in range(700):
        ran.step(each=[{"gate_collapse_frac": 1.0}, {"gate_collapse_frac": 0.1}])
    assert [f.severity for f in feed(GateCollapse, ran).findings] == [WARN]


def test_switched_off_is_unknown_and_said() -> None:
    fed = feed(GateCollapse, Ran(order=order_of({}, env=OFF)).many(900, loss=1.0))
    assert fed.findings == []
    assert not fed.armed
    assert fed.missing is not None
    assert "NSA_DISABLE_AUX_STATS" in fed.missing


@pytest.mark.parametrize("value", ["0", "", "false"])
def test_not_told_is_said_too(value: str) -> None:
    order = order_of({}, env={"NSA_DISABLE_AUX_STATS": value})
    fed = feed(GateCollapse, Ran(order=order).many(5))
    assert fed.missing is not None
    assert "NSA_" not in fed.missing


def test_before_the_first_step_only_a_switch_is_told() -> None:
    assert feed(GateCollapse, Ran()).missing is None
    assert feed(GateCollapse, Ran(order=order_of({}, env=OFF))).missing is not None


@pytest.mark.parametrize("field", ["gate_collapse_frac", "gate_entropy"])
def test_a_number_that_is_none_is_not_told(field: str) -> None:
    fed = feed(GateCollapse, Ran().many(900, **{field: float("nan")}))
    assert fed.findings == []
    assert fed.missing is not None


def test_it_is_armed_by_statistics_after_step_500() -> None:
    assert not at(0.0, *range(1, 501), upto=500).armed
    assert at(0.0, *range(1, 502), upto=501).armed
    assert not at(None, upto=501).armed


def test_a_restart_at_an_earlier_step_begins_anew() -> None:
    ran = Ran().many(580, gate_collapse_frac=1.0).back_to(550).many(95, gate_collapse_frac=1.0)
    assert feed(GateCollapse, ran).findings == []
    silent = Ran().many(580, gate_collapse_frac=0.0).back_to(550).many(5)
    assert feed(GateCollapse, silent).missing is None


def test_plan_settings_count_and_are_named() -> None:
    watch = {
        "gate_collapse": {"after_step": 5, "apart_steps": 0, "distinct": 2, "layer_share": 0.9}
    }
    ran = Ran(order=order_of(watch)).many(9, gate_collapse_frac=0.95)
    fed = feed(GateCollapse, ran)
    assert fed.severities == [(WARN, 7), (HALT, 7)]
    assert fed.halts[0].source is Source.PLAN


def test_a_saved_state_goes_on_as_the_whole() -> None:
    ran = Ran().many(700, gate_collapse_frac=0.8)
    assert (
        feed(GateCollapse, ran, saved_every=13).findings == feed(GateCollapse, ran).findings != []
    )


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**9), st.floats(0.0, 0.9))
def test_gates_that_are_sound_again_and_again_never_halt(seed: int, sick: float) -> None:
    """However often a look finds them collapsed, one sound look in fifteen is enough."""
    dice, ran = random.Random(seed), Ran(ranks=1)
    for number in range(1, 1200):
        collapsed = dice.random() < sick and number % 15 != 0
        ran.step(gate_collapse_frac=1.0 if collapsed else 0.0)
    assert feed(GateCollapse, ran).halts == []


def test_a_step_that_is_ended_twice_begins_anew() -> None:
    ran = Ran()
    for number in range(1, 561):
        ran.step(**({"gate_collapse_frac": 1.0} if number in (510, 560) else {}))
    ran.back_to(559, boot="boot")
    for number in range(560, 611):
        ran.step(**({"gate_collapse_frac": 1.0} if number == 610 else {}))
    assert feed(GateCollapse, ran).findings == []


@pytest.mark.parametrize(
    ("layers", "told", "shares"),
    [
        (6, {"gate_entropy": 0.1}, [1.0, 1.0]),
        (4, {"gate_max": 0.95}, [0.25]),
        (None, {"gate_max": 0.95}, [0.01]),
    ],
)
def test_the_share_that_a_trainer_did_not_count(
    layers: int | None, told: dict[str, float], shares: list[float]
) -> None:
    order = order_of({})
    identity = order.identity.model_copy(update={"layers": layers})
    ran = Ran(order=order.model_copy(update={"identity": identity}))
    for number in range(1, 620):
        ran.step(**(told if number in (510, 560, 610) else {}))
    assert [f.value for f in feed(GateCollapse, ran).findings] == shares


@pytest.mark.parametrize("sound", [{"gate_entropy": 0.9}, {"gate_max": 0.4}], ids=str)
def test_one_sound_number_is_a_sound_look(sound: dict[str, float]) -> None:
    ran = Ran()
    for number in range(1, 650):
        collapsed = {"gate_collapse_frac": 1.0} if number in (510, 560, 610) else {}
        ran.step(**(sound if number == 590 else collapsed))
    assert feed(GateCollapse, ran).findings == []
