"""What would the watch say of a recorded run, had it gone a little differently? Perturbed, pure.

All ranks share one clock of the perturbation, so that who waits for whom stays as it was: time is
stretched by one factor, pauses of the whole run are put in, lines come twice and out of order, and
the watcher ticks on its own. Numbers that depend on time are told as the stretched run would.
The detectors have their defaults: a plan's own limits were chosen for its own speed.
"""

import random
from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from gonogo.contract.finding import Severity
from gonogo.contract.heartbeat import Heartbeat, StepSections
from gonogo.contract.order import Order
from gonogo.contract.tick import ProcessState
from gonogo.contract.watch import all_halt
from lab.noise import Noise
from lab.ranks import Stand, Wall
from lab.tally import Halt, Tally
from lab.watcher import Watcher

STRETCH_SIGMA = 0.3
TAIL_S = 5.0


@dataclass(slots=True)
class Tape:
    """One rank's recorded lines, by when they are written now."""

    rank: int
    lines: list[tuple[float, Heartbeat]]

    def stands(self, now: float) -> Stand | None:
        """Return nothing: a record does not tell where a thread stood."""
        return None


def simulate_recorded(
    order: Order,
    lines: Mapping[int, Sequence[Heartbeat]],
    *,
    name: str,
    seed: str,
    noise: Noise,
) -> Tally:
    """Watch one perturbed copy of a healthy recorded run.

    Args:
        order: what the run was told.
        lines: rank → its heartbeats as they were written, on monotonic clocks that ranks share.
        name: of the run, for the report.
        seed: the same seed gives the same tally.
        noise: whose pauses and mess are laid over the record.
    """
    dice = random.Random(f"{seed}/{name}")
    stretch = dice.lognormvariate(0.0, STRETCH_SIGMA)
    first, last = _span(lines)
    pauses = _pauses(noise, dice, first, last)
    tapes = [
        Tape(rank, [_perturbed(beat, first, stretch, pauses) for beat in beats])
        for rank, beats in sorted(lines.items())
    ]
    end = max((tape.lines[-1][0] for tape in tapes if tape.lines), default=first)
    ts = min((b.ts - b.mono for beats in lines.values() for b in beats), default=0.0)
    changed = {"watch": all_halt({}), "watch_from_profile": [], "patience": {}}
    order = order.model_copy(update=changed)
    watcher = Watcher(
        order, tapes, noise=noise, wall=Wall(steps=[(0.0, ts)]), dice=dice, now=first - 1.0
    )
    for tape in tapes:
        watcher.probe(end + dice.uniform(0.0, 2.0), tape.rank, ProcessState.DEAD, code=0)
    watcher.look_until(end + TAIL_S)
    return _tally(watcher, name, seed, (end - first) / 3600.0, order.world_size)


def _span(lines: Mapping[int, Sequence[Heartbeat]]) -> tuple[float, float]:
    times = [beat.mono for beats in lines.values() for beat in beats]
    return min(times, default=0.0), max(times, default=0.0)


def _pauses(
    noise: Noise, dice: random.Random, first: float, last: float
) -> tuple[list[float], list[float]]:
    """Return when the run pauses, and for how long it has paused up to each of them."""
    expected = noise.pause_rate * (last - first) / 3600.0
    count = int(expected) + (dice.random() < expected - int(expected))
    starts = sorted(dice.uniform(first, last) for _ in range(count))
    return starts, list(accumulate((dice.uniform(*noise.pause_s) for _ in starts), initial=0.0))


def _perturbed(
    beat: Heartbeat, first: float, stretch: float, pauses: tuple[list[float], list[float]]
) -> tuple[float, Heartbeat]:
    """Return when a line is written now, and what it says."""
    starts, paused_s = pauses
    mono = first + stretch * (beat.mono - first) + paused_s[bisect_right(starts, beat.mono)]
    fields: dict[str, Any] = {"mono": mono, "ts": beat.ts - beat.mono + mono}
    for name in ("dt", "dt_fetch_s", "dt_step_s", "section_age_s"):
        value = getattr(beat, name)
        if value is not None:
            fields[name] = stretch * value
    if beat.toks_per_s is not None:
        fields["toks_per_s"] = beat.toks_per_s / stretch
    if beat.step_sections is not None:
        told = beat.step_sections.model_dump()
        stretched = {name: stretch * seconds for name, seconds in told.items()}
        fields["step_sections"] = StepSections(**stretched)
    return mono, beat.model_copy(update=fields)


def _tally(watcher: Watcher, name: str, seed: str, hours: float, ranks: int) -> Tally:
    halts = [f for f in watcher.findings if f.severity is Severity.HALT][:1]
    return Tally(
        run_hours=hours,
        lines=watcher.lines,
        warnings=Counter(f.detector for f in watcher.findings if f.severity is Severity.WARN),
        halts=tuple(
            Halt(
                detector=halt.detector,
                seed=f"{seed}/{name}",
                step_s=0.0,
                ranks=ranks,
                hour=hours,
                text=halt.text,
            )
            for halt in halts
        ),
    )
