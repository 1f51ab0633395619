"""How long will the rest take? Arithmetic on what was measured, never hope (R18).

50 000 steps of 4096 tokens at 38 tokens/s are 62 days, whatever a report promises.
"""

from collections.abc import Iterable, Mapping

from gonogo.contract.api import Forecast
from gonogo.contract.canonical import rounded
from gonogo.contract.facts import Facts, PaceFacts


def seconds_at_speed(*, steps: int, tokens_per_step: int, tok_s: float) -> float:
    """Return the seconds that `steps` take at a global speed of `tok_s` tokens per second.

    Raises:
        ValueError: a speed that is not positive.
    """
    if not tok_s > 0:
        raise ValueError(f"a speed of {tok_s} tokens/s never arrives")
    return steps * tokens_per_step / tok_s


def build_forecast(
    facts: Iterable[Facts],
    *,
    steps_left: int,
    claimed_seconds: float | None = None,
) -> Forecast:
    """Return how long the steps that are left take at the pace of the latest measured run.

    The slowest rank counts. `seconds_p50` takes the median pace over blocks of eight steps, pauses
    for checkpoints and evaluations included; `seconds_p90` the 90th percentile of the blocks.

    Args:
        facts: facts of the experiment's runs, oldest first; the last with a pace counts.
        steps_left: steps of everything that is still to come.
        claimed_seconds: what somebody promised, shown beside it.
    """
    found = Forecast(claimed_seconds=claimed_seconds)
    for row in facts:
        found = _from_pace(row.pace, steps_left, claimed_seconds) or found
    return found


def _from_pace(
    pace: Mapping[str, PaceFacts], steps_left: int, claimed_seconds: float | None
) -> Forecast | None:
    ranks = [row for row in pace.values() if row.steps]
    medians = [value for row in ranks if (value := row.block_p50_s or row.median_step_s)]
    slow = [value for row in ranks if (value := row.block_p90_s or row.p95_step_s)]
    if not ranks or len(medians) < len(ranks) or len(slow) < len(ranks):
        return None
    step_s = max(medians)
    late_s = max(step_s, *slow)
    measured = max(row.steps for row in ranks)
    return Forecast(
        seconds_p50=rounded(step_s * steps_left),
        seconds_p90=rounded(late_s * steps_left),
        basis=f"{steps_left} steps at {step_s:.3g} s each, as measured over {measured} steps",
        claimed_seconds=claimed_seconds,
    )


def build_live_forecast(
    *, step_s: float, steps_left: int, measured_steps: int, claimed_seconds: float | None = None
) -> Forecast:
    """Return the forecast of a run that goes on, from its median step so far.

    Args:
        step_s: the run's median step, seconds.
        steps_left: steps of everything that is still to come.
        measured_steps: how many steps the median rests on.
        claimed_seconds: what somebody promised.
    """
    return Forecast(
        seconds_p50=rounded(step_s * steps_left),
        seconds_p90=None,
        basis=f"{steps_left} steps at {step_s:.3g} s each, as measured over {measured_steps} steps",
        claimed_seconds=claimed_seconds,
    )
