"""The next state is what `dataclasses.replace` would make of it."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gonogo.watch.series import AGREE, SCALES, Look, Series, slope_of
from gonogo.watch.state import replace


@dataclasses.dataclass(frozen=True, kw_only=True)
class Own:
    steps: int = 0
    window: tuple[float, ...] = ()


def test_other_values_of_some_fields_make_the_next_state() -> None:
    own = Own(steps=3)
    made = replace(own, window=(1.5,))
    assert made == dataclasses.replace(own, window=(1.5,)) == Own(steps=3, window=(1.5,))
    assert type(made) is Own
    assert own == Own(steps=3)
    with pytest.raises(dataclasses.FrozenInstanceError):
        made.steps = 4  # type: ignore[misc]  # that is the point


def test_a_field_that_there_is_not_is_refused() -> None:
    with pytest.raises(TypeError, match="step"):
        replace(Own(), step=1)


def _with_sample(own: Series, step: int, value: float, look: Look) -> Series:
    """The plain way: every scale asked at every sample."""
    if own.scales[0] and step <= own.scales[0][-1][0]:
        return own
    number = own.taken + 1 - look.after
    if number <= 0:
        return dataclasses.replace(own, taken=own.taken + 1)
    high = max(own.high, value)
    fell = max(own.fell, high - value)
    scales, slopes, agreed = list(own.scales), list(own.slopes), list(own.agreed)
    every, looks = max(1, look.least // 8), own.looks
    for at, stride in enumerate(SCALES):
        if number % stride:
            continue
        scales[at] = (*scales[at][1 - look.most :], (float(step), value))
        if len(scales[at]) >= look.least and (number // stride) % every == 0:
            looks += 1
            slopes[at] = slope_of(scales[at], look.rise_ratio, fell)
            agreed[at] = min(AGREE, agreed[at] + 1) if slopes[at] else 0
    return Series(
        boot=own.boot,
        taken=own.taken + 1,
        scales=tuple(scales),
        slopes=tuple(slopes),
        agreed=tuple(agreed),
        looks=looks,
        high=high,
        fell=fell,
    )


@given(
    st.lists(st.floats(0.0, 100.0), min_size=1, max_size=200),
    st.floats(0.0, 3.0),
    st.integers(0, 5),
    st.integers(8, 20),
    st.integers(0, 20),
)
def test_a_series_is_what_asking_every_scale_makes_of_it(
    noise: list[float], rise: float, after: int, least: int, more: int
) -> None:
    look = Look(after=after, least=least, most=least + more, rise_ratio=0.05)
    fast = plain = Series(boot="b")
    for number, value in enumerate(noise):
        step = number // 2 if number == 7 else number
        fast = fast.with_sample(step, 100.0 + rise * number + value, look)
        plain = _with_sample(plain, step, 100.0 + rise * number + value, look)
    first = (*fast.scales[0], *fast.newest)[-look.most :]
    assert replace(fast, scales=(first, *fast.scales[1:]), newest=()) == plain
    assert (fast.slope, fast.last, fast.steady) == (plain.slope, plain.last, plain.steady)
