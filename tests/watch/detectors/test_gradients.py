"""D12: norms of zero, spikes and steps that are always clipped."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gonogo.contract.finding import Severity
from gonogo.watch.detectors.loss import Gradients
from tests.watch.steps import Fed, Ran, feed
from tests.watch.streams import order_of

WARN, HALT = Severity.WARN, Severity.HALT


def run(norms: list[float | None], *, loss: float | None = 3.0, clip: float | None = None) -> Fed:
    train = {} if clip is None else {"optim": {"clip": clip}}
    made = Ran(order=order_of({}, train=train), ranks=2)
    for norm in norms:
        made.step(grad_norm=norm, loss=loss)
    return feed(Gradients, made)


@pytest.mark.parametrize(
    ("norms", "loss", "found"),
    [
        ([1.0, 0.0, 0.0, 0.0, 0.0], 3.0, [(HALT, 4)]),
        ([1.0, 0.0, 0.0, 1.0, 0.0, 0.0], 3.0, []),
        ([1.0, 0.0, None, 0.0, 0.0], 3.0, [(HALT, 5)]),
        ([0.0] * 9, 3.0, []),
        ([1.0, 0.0, 0.0, 0.0], 0.0, []),
        ([1.0, -1.0, float("nan"), None], 3.0, []),
    ],
    ids=["zeros", "two zeros", "null between", "never computed", "equal rewards", "no number"],
)
def test_norms_of_zero(
    norms: list[float | None], loss: float, found: list[tuple[Severity, int]]
) -> None:
    assert run(norms, loss=loss).severities == found


@given(st.lists(st.sampled_from([0.0, 0.5, 1.0, None]), max_size=30))
def test_it_halts_exactly_where_three_zeros_follow_a_norm(norms: list[float | None]) -> None:
    told = [norm for norm in norms if norm is not None]
    first = next((at for at, norm in enumerate(told) if norm), len(told))
    text = "".join("0" if norm == 0.0 else "x" for norm in told[first:])
    assert bool(run(norms).halts) is ("000" in text)
