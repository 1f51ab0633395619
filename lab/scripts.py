"""What does a script call of our library, and when? Drawn once a run; times are seconds.

Scripts name a loader, a whole step or nothing. They save and evaluate on one rank or on all: within
a step, after it, or after they have asked whether to halt.
"""

import random
from dataclasses import dataclass
from enum import StrEnum


class Who(StrEnum):
    """Which ranks save or evaluate, and what the others do meanwhile."""

    ALL = "all"
    UNEVEN = "uneven"
    """All, of shares of other sizes: who is done waits for the others, and names nothing."""
    FIRST = "first"
    """Rank 0 alone: the others continue until they need it."""
    FIRST_AWAITED = "first_awaited"
    """Rank 0 alone: the others wait for it in a barrier that nobody names."""
    LAST_AWAITED = "last_awaited"


class When(StrEnum):
    """Where in the loop a script saves and evaluates."""

    IN_STEP = "in_step"
    AFTER_STEP = "after_step"
    AFTER_ASKING = "after_asking"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pause:
    """Evaluations, or checkpoints."""

    every: int = 0
    """After so many steps (0: never)."""
    seconds: float = 1.0
    """The longest that one lasts."""
    who: Who = Who.ALL


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """What one run's script calls."""

    names_data: bool = False
    names_computing: bool = False
    flows: bool = False
    """Whether it goes from section to section and is never in none, as the adapters do."""
    logs_every: int = 0
    """Steps after which it names that it logs, of which rank 0 does more (0: never)."""
    straight: bool = False
    """Whether one that evaluates or saves goes there from logging, without a word in between."""
    asks: bool = True
    """Whether it asks after each step if it shall halt: the only collective that is counted."""
    tells_tokens: bool = True
    when: When = When.AFTER_ASKING
    evaluates: Pause = Pause()
    saves: Pause = Pause()


UNNAMED_STALL_S = 20.0
"""Longest stall of a loader that no section names: D4 takes it for computing."""


PAUSED_SHARE = 0.5
"""Times the training that evaluations may take, and checkpoints: longer ones come more rarely."""


def draw_script(dice: random.Random, step_s: float) -> Script:
    """Return what the script of a healthy run of such steps calls."""

    def pause(every: tuple[int, ...], longest_s: tuple[float, ...], who: tuple[Who, ...]) -> Pause:
        steps, seconds = dice.choice(every), dice.choice(longest_s)
        if steps:
            steps = max(steps, round(seconds / (PAUSED_SHARE * step_s)))
        return Pause(every=steps, seconds=seconds, who=dice.choice(who))

    kind = dice.choice(("plain", "plain", "loader", "named", "flows"))
    flows = kind == "flows"
    evals = (Who.ALL,) if flows else tuple(Who)
    saves = (Who.ALL, Who.FIRST_AWAITED) if flows else tuple(Who)
    return Script(
        names_data=kind != "plain",
        names_computing=kind in ("named", "flows"),
        flows=flows,
        logs_every=dice.choice((0, 1, 10, 50)),
        straight=dice.random() < 0.3,
        asks=flows or dice.random() < 0.8,
        tells_tokens=dice.random() < 0.8,
        when=When.AFTER_ASKING if flows else dice.choice(tuple(When)),
        evaluates=pause((0, 10, 50, 200), (1.0, 20.0, 200.0, 1200.0), evals),
        saves=pause((0, 20, 50, 200), (1.0, 20.0, 90.0, 400.0), saves),
    )
