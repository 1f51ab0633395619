"""One clock of the whole run, from lines that nobody stamped."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gonogo.contract.heartbeat import Heartbeat
from gonogo.timeline.offsets import fit_clocks

EPOCH = 1_760_000_000.0


def lines(
    rank: int,
    *,
    boot: str = "a",
    at: float = 100.0,
    offset: float = 0.0,
    steps: int = 20,
    first_step: int = 1,
    wall_s: float = 0.0,
    jump_at: int | None = None,
    jump_s: float = 0.0,
) -> list[Heartbeat]:
    """Lines of a rank that boots at `at` (the run's clock) and ends a step a second."""
    found = []
    for number in range(steps + 1):
        now = at + number
        jumped_s = jump_s if jump_at is not None and number >= jump_at else 0.0
        found.append(
            Heartbeat(
                ts=EPOCH + now + wall_s + jumped_s,
                mono=now + offset,
                pid=1,
                rank=rank,
                boot=boot,
                seq=number + 1,
                step=first_step + number - 1 if number else 0,
                msg="step_end" if number else "boot",
            )
        )
    return found


def test_ranks_of_one_host_share_their_clock() -> None:
    assert fit_clocks(lines(0) + lines(1, at=103.0)) == {(0, "a"): 0.0, (1, "a"): 0.0}


@pytest.mark.parametrize("jump_s", [3600.0, -3600.0])
@pytest.mark.parametrize("jump_at", [1, 10, 20])
def test_a_wall_clock_that_steps_in_mid_run_moves_nothing(jump_s: float, jump_at: int) -> None:
    beats = lines(0, jump_at=jump_at, jump_s=jump_s) + lines(1, jump_at=jump_at, jump_s=jump_s)
    assert set(fit_clocks(beats).values()) == {0.0}


def test_another_host_is_laid_over_by_the_steps_that_they_ended_together() -> None:
    apart = fit_clocks(lines(0) + lines(1, offset=5000.0))
    assert apart == {(0, "a"): 0.0, (1, "a"): pytest.approx(-5000.0)}


def test_steps_tell_even_when_the_other_host_has_a_wrong_wall_clock() -> None:
    apart = fit_clocks(lines(0) + lines(1, offset=5000.0, wall_s=-7200.0))
    assert apart[(1, "a")] == pytest.approx(-5000.0)


def test_without_steps_in_common_the_wall_clock_tells() -> None:
    apart = fit_clocks(lines(0) + lines(1, offset=5000.0, steps=0))
    assert apart[(1, "a")] == pytest.approx(-5000.0)


def test_a_restart_on_the_same_host_goes_on_with_its_clock() -> None:
    first = lines(0, jump_at=5, jump_s=3600.0) + lines(1, jump_at=5, jump_s=3600.0)
    again = lines(0, boot="b", at=200.0, first_step=11, wall_s=3600.0)
    again += lines(1, boot="b", at=200.0, first_step=11, wall_s=3600.0)
    assert set(fit_clocks(first + again).values()) == {0.0}


@pytest.mark.parametrize("wall_s", [3600.0, -3600.0, 12.0])
@pytest.mark.parametrize("offset", [0.0, 5000.0])
def test_a_restart_without_steps_goes_on_with_its_own_hosts_clock(
    wall_s: float, offset: float
) -> None:
    """Its wall clock is not its peers', and it hangs before it has a step in common with them."""
    first = lines(0) + lines(1, offset=offset, wall_s=wall_s)
    again = lines(0, boot="b", at=200.0, steps=1)
    again += lines(1, boot="b", at=200.0, steps=0, offset=offset, wall_s=wall_s)
    apart = fit_clocks(first + again)
    assert apart[(0, "b")] == 0.0
    assert apart[(1, "b")] == pytest.approx(-offset)


def test_a_restart_repeats_steps_without_being_laid_over_the_first_time() -> None:
    first = lines(0) + lines(1, offset=5000.0)
    again = lines(0, boot="b", at=200.0, first_step=1)
    again += lines(1, boot="b", at=200.0, first_step=1, offset=5000.0)
    apart = fit_clocks(first + again)
    assert apart[(0, "b")] == 0.0
    assert apart[(1, "b")] == pytest.approx(-5000.0)


def test_nothing_is_fitted_to_no_lines() -> None:
    assert fit_clocks([]) == {}


@given(
    offsets=st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=4),
    jump_at=st.integers(0, 20),
    jump_s=st.floats(-86_400, 86_400),
)
def test_step_ends_meet_whatever_the_clocks(
    offsets: list[float], jump_at: int, jump_s: float
) -> None:
    ranks = [
        lines(rank, offset=offset, jump_at=jump_at, jump_s=jump_s)
        for rank, offset in enumerate(offsets)
    ]
    fitted = fit_clocks([beat for beats in ranks for beat in beats])
    for step in range(1, 21):
        ends = [beats[step].mono + fitted[(beats[0].rank, "a")] for beats in ranks]
        assert max(ends) - min(ends) <= 5.001


@pytest.mark.parametrize("offset", [5000.0, 60.0, -60.0])
def test_a_restart_on_another_host_is_placed_by_the_wall_clock(offset: float) -> None:
    again = lines(0, boot="b", at=130.0, first_step=21, offset=offset)
    assert fit_clocks(lines(0) + again)[(0, "b")] == pytest.approx(-offset)


@pytest.mark.parametrize("set_s", [0.0, 3600.0, -3600.0])
@pytest.mark.parametrize("names", ["abc", "cba"])
def test_a_second_restart_is_placed_by_the_process_before_it(names: str, set_s: float) -> None:
    """Each process counts from its own start, and the wall clock is set while the second runs."""
    first, second, third = names
    beats = lines(0, boot=first, at=100.0, offset=-100.0, steps=50)
    beats += lines(0, boot=second, at=160.0, offset=-160.0, jump_at=18, jump_s=set_s)
    beats += lines(0, boot=third, at=200.0, offset=-200.0, wall_s=set_s)
    assert fit_clocks(beats) == {
        (0, first): 0.0,
        (0, second): pytest.approx(60.0),
        (0, third): pytest.approx(100.0),
    }


@pytest.mark.parametrize("apart_s", [0.0, 3.0, -3.0])
def test_ranks_that_count_from_starts_seconds_apart_are_laid_over_by_their_steps(
    apart_s: float,
) -> None:
    placed = fit_clocks(lines(0) + lines(1, offset=apart_s))
    assert placed == {(0, "a"): 0.0, (1, "a"): pytest.approx(-apart_s)}
