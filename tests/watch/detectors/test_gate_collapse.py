"""D13: collapsed gates on steps far enough apart; without statistics nothing is known."""

from typing import Any

import pytest

from gonogo.contract.finding import Severity
from gonogo.contract.heartbeat import Identity
from gonogo.watch.detectors.loss import GateCollapse
from tests.watch.steps import Fed, Ran, feed
from tests.watch.streams import order_of

WARN, HALT = Severity.WARN, Severity.HALT
ALL = {"gate_collapse_frac": 1.0}


def looks(steps: tuple[int, ...], sound: tuple[int, ...] = (), **told: Any) -> Fed:
    """A run whose gates are reported at these steps: collapsed, or sound."""
    order = order_of({}, identity=Identity(layers=12))
    ran = Ran(order=order, ranks=2)
    for number in range(1, max(steps) + 1):
        numbers = told if number in steps else {"gate_collapse_frac": 0.0}
        ran.step(**(numbers if number in steps or number in sound else {}))
    return feed(GateCollapse, ran)


@pytest.mark.parametrize(
    ("steps", "sound", "found"),
    [
        ((510, 560, 610), (), [(WARN, 610), (HALT, 610)]),
        ((510, 530, 560, 590, 610), (), [(WARN, 610), (HALT, 610)]),
        ((510, 560, 609), (), []),
        ((400, 510, 560), (), []),
        ((510, 560, 610), (585,), []),
    ],
    ids=["apart", "between", "too near", "too early", "sound between"],
)
def test_three_steps_fifty_apart_are_needed(
    steps: tuple[int, ...], sound: tuple[int, ...], found: list[tuple[Severity, int]]
) -> None:
    assert looks(steps, sound, **ALL).severities == found


@pytest.mark.parametrize(
    ("told", "severities"),
    [
        ({"gate_collapse_frac": 0.6}, [WARN, HALT]),
        ({"gate_collapse_frac": 0.5}, [WARN]),
        ({"gate_collapse_frac": 0.0, "gate_entropy": 0.01}, []),
        ({"gate_entropy": 0.17}, [WARN, HALT]),
        ({"gate_entropy": 0.19}, []),
        ({"gate_max": 0.95}, [WARN]),
        ({"gate_entropy": 0.5, "gate_max": 0.95}, [WARN]),
        ({"gate_entropy": float("nan")}, []),
    ],
)
def test_the_share_of_layers_decides(told: dict[str, float], severities: list[Severity]) -> None:
    assert [row.severity for row in looks((510, 560, 610), **told).findings] == severities


def test_without_statistics_it_is_blind_and_says_so() -> None:
    ran = Ran(order=order_of({}, env={"NSA_DISABLE_AUX_STATS": "1"})).many(3)
    for fed in (feed(GateCollapse, ran), feed(GateCollapse, Ran().many(3))):
        assert fed.missing
        assert not fed.armed
        assert fed.detector.near(fed.own, fed.view, 0.0).blind
    fed = looks((510, 560), **ALL)
    near = fed.detector.near(fed.own, fed.view, 0.0)
    assert (fed.armed, fed.missing, near.value, near.limit) == (True, None, 2.0, 3.0)
