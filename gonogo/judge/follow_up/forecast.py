"""How long will the rest take? Arithmetic on what was measured, never hope (R18).

50 000 steps of 4096 tokens at 38 tokens/s are 62 days, whatever a report promises.

What is left is a list of phases (`Ahead`), each with steps and, unless it is under way, a start-up:
launch, imports, preflight, compilation. What was measured is a list of runs (`Measured`), each with
the time of its steps, pauses for checkpoints and evaluations included. The active run gives the
pace once it has taken `LEAST_STEPS`; until then the last run that ended gives it.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from gonogo.contract.api import Forecast
from gonogo.contract.canonical import rounded

BLOCK = 8
LEAST_STEPS = 5
"""A run of fewer steps has no pace: its first step, which compiles, is most of them."""
UNKNOWN = f"not known yet: no run has taken {LEAST_STEPS} steps"


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """How fast one run was."""

    step_s: float
    """Seconds of a step, pauses for checkpoints and evaluations included."""
    late_s: float
    """The same of its slow stretches: nine of ten blocks of eight steps are faster."""
    steps: int
    start_s: float | None = None
    """Seconds from its claim to the end of its first step; None where nobody saw it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ahead:
    """One phase that is not over."""

    steps: int
    begun_s: float | None = 0.0
    """Seconds since its run was claimed; None once its first step has ended: it has started."""


def seconds_at_speed(*, steps: int, tokens_per_step: int, tok_s: float) -> float:
    """Return the seconds that `steps` take at a global speed of `tok_s` tokens per second.

    Raises:
        ValueError: a speed that is not positive.
    """
    if not tok_s > 0:
        raise ValueError(f"a speed of {tok_s} tokens/s never arrives")
    return steps * tokens_per_step / tok_s


def measure(
    gaps_s: Sequence[float], mean_s: float, steps: int, start_s: float | None = None
) -> Measured | None:
    """Return how fast a run is, or was; None without a step to go by.

    Args:
        gaps_s: seconds between the ends of its last steps, newest last.
        mean_s: mean of all its `steps` gaps so far, the rare pauses included.
    """
    if not gaps_s:
        return None
    step_s = max(statistics.median(gaps_s), mean_s)
    blocks = [math.fsum(gaps_s[at : at + BLOCK]) / BLOCK for at in range(0, len(gaps_s), BLOCK)]
    whole = sorted(blocks[: len(gaps_s) // BLOCK])
    late_s = whole[math.ceil(0.9 * len(whole)) - 1] if whole else max(gaps_s)
    return Measured(step_s=step_s, late_s=max(step_s, late_s), steps=steps, start_s=start_s)


def build_forecast(
    ahead: Sequence[Ahead],
    runs: Sequence[Measured],
    living: Measured | None = None,
    *,
    claimed_seconds: float | None = None,
) -> Forecast:
    """Return how long everything that is left takes.

    `seconds_p50` is what half of such runs take at most, `seconds_p90` what nine in ten take.
    """
    known = [*runs, living] if living is not None else list(runs)
    pace = next((run for run in reversed(known) if run.steps + 1 >= LEAST_STEPS), None)
    if pace is None:
        basis = {"basis": UNKNOWN} if known else {}
        return Forecast(claimed_seconds=claimed_seconds, **basis)
    steps = sum(row.steps for row in ahead)
    starts = [row.start_s for row in known if row.start_s is not None]
    usual_s = _starts_s(ahead, statistics.median(starts) if starts else 0.0)
    late_s = _starts_s(ahead, max(starts, default=0.0))
    each, over = _counted(steps), _counted(pace.steps)
    text = f"{each} at {pace.step_s:.3g} s each, as measured over {over}"
    if usual_s:
        text += f", and {usual_s:.3g} s to start"
    return Forecast(
        seconds_p50=rounded(steps * pace.step_s + usual_s),
        seconds_p90=rounded(steps * pace.late_s + max(usual_s, late_s)),
        basis=text,
        claimed_seconds=claimed_seconds,
        step_s=rounded(pace.step_s),
    )


def _counted(steps: int) -> str:
    return f"{steps} step{'' if steps == 1 else 's'}"


def _starts_s(ahead: Sequence[Ahead], start_s: float) -> float:
    """Return the seconds of start-up that are left, of all phases."""
    return math.fsum(max(0.0, start_s - row.begun_s) for row in ahead if row.begun_s is not None)
