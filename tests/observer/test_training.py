"""Which steps of which optimizers count: calls as torch makes them, without torch."""

from __future__ import annotations

from typing import Any

import pytest

from gonogo.observer.own_numbers import Sum
from gonogo.observer.training import Training


class Tensor:
    """A number that is a loss or a parameter."""

    def __init__(self, number: float = 0.0, size: int = 1) -> None:
        self.number, self.size = number, size

    def numel(self) -> int:
        return self.size

    def detach(self) -> Tensor:
        return self

    def __float__(self) -> float:
        return self.number

    class device:
        type = "cpu"


class Optimizer:
    """An optimizer of a model of that many parameters."""

    def __init__(self, observed: Training, size: int = 10) -> None:
        self.param_groups: list[dict[str, Any]] = [{"params": [Tensor(size=size)], "lr": 0.1}]
        self.state: dict[Any, Any] = {}
        observed.made(self)


class Rank:
    """Keeps what is reported."""

    is_ours, section = True, None

    def __init__(self) -> None:
        self.losses: list[Any] = []
        self.booted: list[int] = []

    def enter(self, section: str | None) -> None:
        pass

    def boot(self, optimizer: Any, after: int) -> None:
        self.booted.append(optimizer.param_groups[0]["params"][0].size)

    def note_step(self, numbers: dict[str, Any]) -> None:
        self.losses.append(numbers["loss"])


@pytest.fixture
def observed() -> Training:
    training = Training()
    training.rank = Rank()  # type: ignore[assignment]
    return training


def step(observed: Training, optimizer: Optimizer, loss: float = 1.0, times: int = 1) -> None:
    for _ in range(times):
        observed.began_backward(Tensor(loss))
        observed.ended_backward()
        observed.begins_step(optimizer)
        observed.stepped(optimizer)


def losses(observed: Training) -> list[Any]:
    rank: Any = observed.rank
    assert len(rank.booted) == 1
    assert all(row.settle(wait=True) for row in rank.losses)
    return [row.total for row in rank.losses]


def test_a_later_optimizer_follows_at_once_if_the_primary_one_is_gone(observed: Training) -> None:
    for _ in range(3):
        step(observed, Optimizer(observed), times=2)
    assert losses(observed) == [1.0] * 6


def test_a_later_optimizer_follows_after_ten_steps_which_count(observed: Training) -> None:
    first, second = Optimizer(observed), Optimizer(observed, size=5)
    step(observed, first, times=5)
    for n in range(11):
        step(observed, second, loss=float(n))
    assert losses(observed) == [1.0] * 5 + [float(n) for n in range(11)]


@pytest.mark.parametrize("critics", [1, 2])
def test_alternating_optimizers_make_one_step_together(observed: Training, critics: int) -> None:
    critic, actor = Optimizer(observed, size=4), Optimizer(observed)
    for _ in range(30):
        step(observed, critic, times=critics)
        step(observed, actor)
    assert losses(observed) == [1.0 + critics] * 30


def test_two_optimizers_of_one_backward_pass_make_one_step(observed: Training) -> None:
    encoder, decoder = Optimizer(observed), Optimizer(observed, size=9)
    for _ in range(30):
        observed.began_backward(Tensor(1.0))
        observed.ended_backward()
        for optimizer in (encoder, decoder):
            observed.begins_step(optimizer)
            observed.stepped(optimizer)
    assert losses(observed) == [1.0] * 30


def test_no_rank_is_opened_before_an_optimizer_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[Any] = []
    monkeypatch.setattr("gonogo.observer.training.open_rank", lambda: opened.append(1))
    training = Training()
    training.fetches(grad=True)
    training.began_backward(Tensor(1.0))
    training.ended_backward()
    assert opened == []
    made = Optimizer(training)
    training.fetches(grad=True)
    assert opened == [1]
    assert made.state == {}


class Later:
    """A number that a device still copies."""

    def __init__(self, number: float) -> None:
        self.number = number

    def value(self, *, wait: bool = False) -> float | None:
        return self.number if wait else None


def test_losses_of_two_optimizers_are_added_when_a_device_has_copied_them(
    observed: Training, monkeypatch: pytest.MonkeyPatch
) -> None:
    later = lambda tensor: Sum(0.0, Later(tensor.number))  # noqa: E731
    monkeypatch.setattr("gonogo.observer.training.read", later)
    critic, actor = Optimizer(observed, size=4), Optimizer(observed)
    for _ in range(3):
        step(observed, critic, loss=2.0)
        step(observed, actor)
    assert losses(observed) == [3.0] * 3
