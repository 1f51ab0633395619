"""The next state is what `dataclasses.replace` would make of it."""

import dataclasses

import pytest

from gonogo.watch.detector import replace


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
