"""What does an order leave out that every order of a release names? Orders by hand may.

Without some detectors hardly anything would halt a run, and a preflight check that is not owed was
not made: such an order is CONDITIONAL_GO at best. That any other detector does not watch is listed.
"""

from collections.abc import Iterable

from gonogo.contract.outcome import Detector as Name
from gonogo.contract.rules import Rules
from gonogo.contract.watch import Action, Watch
from gonogo.watch.registry import BASIC

OWED = (
    Name.PROCESS_DEATH,
    Name.NO_FIRST_HEARTBEAT,
    Name.ALIVE_LOST,
    Name.STALL,
    Name.SECTION_DEADLINE,
    Name.NON_FINITE,
    Name.IDENTITY,
)
"""Detectors without which hardly anything would halt a run."""
OTHERS = tuple(name for name in tuple(Name)[:26] if name not in OWED)
"""All others of D1 to D26."""
CHECKS = ("devices", "disk", "shm", "orphans", "code", "resume")
"""Preflight checks that every order owes, with a service or without."""
CHECKS_OF_RANKS = ("environment", "peak")
"""Those that it owes besides where ranks are started one by one."""


def missed(rules: Rules) -> list[str]:
    """Return what an order leaves out and no run should go without, one sentence each.

    A detector that only warns halts nothing, as one that does not watch.
    """
    gone = [f"{name} does not watch" for name in OWED if name not in _watching(rules)]
    return [*gone, *_only_warn(rules, OWED), *_unchecked(rules)]


def less(rules: Rules) -> list[str]:
    """Return the other detectors that do not watch, or only warn, one sentence each."""
    gone = [f"{name} does not watch" for name in OTHERS if name not in _watching(rules)]
    return [*gone, *_only_warn(rules, OTHERS)]


def _only_warn(rules: Rules, names: Iterable[str]) -> list[str]:
    """Return which of these detectors warn by the plan where they halt by default."""
    halting = (name for name in names if Watch().action_of(name) is Action.HALT)
    said = {name: rules.watch.get(f"{name}.action") for name in halting}
    return [f"{name} only warns" for name, row in said.items() if row and row.value == Action.WARN]


def _watching(rules: Rules) -> frozenset[str]:
    """Return who watches; if an order names none, the basic ones."""
    return frozenset(rules.detectors or BASIC)


def _unchecked(rules: Rules) -> list[str]:
    """Return the preflight checks that an order leaves out; one that names none says nothing."""
    if not rules.preflight:
        return []
    owed = CHECKS if rules.programs is not None else (*CHECKS, *CHECKS_OF_RANKS)
    absent = [name for name in owed if name not in rules.preflight]
    return [f"the preflight does not check {', '.join(absent)}"] if absent else []
