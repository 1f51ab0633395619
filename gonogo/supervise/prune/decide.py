"""Which run directories go, which stay, and why? Decided from facts about them, nothing read.

The unit of age is the experiment: a decision is derived again from the directory of its run and of
those that its history names. What is not known for certain to be over stays.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from math import inf, isfinite

DAY_S = 86_400.0


class What(StrEnum):
    """How much of a directory goes."""

    ALL = "all"
    CHECKPOINTS = "checkpoints"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
    """What stands in one run directory, and around it."""

    run: str
    experiment: str
    """Of a run that no service knows: the run itself."""
    ended_at: float | None = None
    """By exit.json, Unix seconds; None where there is none that can be read."""
    bytes: int = 0
    """All that would go."""
    checkpoint_bytes: int = 0
    living: bool = False
    shipped: bool = False
    """Whether nothing of it waits to be shipped."""
    known: bool = True
    """Whether a service knows of it (`gonogo run` needs none)."""
    decided: bool = False
    """Whether a decision about it lies in this home; asked only where no service knows it."""
    left: bool = False
    """Whether processes of it outlived SIGKILL."""
    quarantined: bool = False
    """Whether a quarantine of a device names it."""
    begins_from: str | None = None
    """The run whose checkpoint its order begins with."""
    pruned: What | None = None
    """What was taken out of it before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """What a person wants to keep."""

    keep_days: float = 30.0
    """Experiments that ended within so many days stay whole."""
    keep: int = 0
    """So many experiments stay whole, the newest by their end."""
    checkpoints_only: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """What the service says of experiments; a home that has none says nothing."""

    finished: Mapping[str, bool]
    """Experiment → whether nothing will be done for it any more; missing: nobody knows."""
    begun_from: Collection[str] = ()
    """Experiments whose checkpoints one that is not finished goes on from."""


NOBODY_SAYS = Course(finished={})


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What becomes of one run directory."""

    run: str
    experiment: str
    what: What | None
    """None: it stays."""
    bytes: int = 0
    why: str = ""
    """Why it stays."""


def old_enough(facts: Sequence[RunFacts], policy: Policy, now: float) -> list[RunFacts]:
    """Return the runs that nothing in the home keeps, before anybody asks how their course is.

    Args:
        facts: of every run directory of the home.
        policy: what is to be kept.
        now: Unix seconds.
    """
    kept = _kept(facts, policy, now)
    return [row for row in facts if not _held_here(row, policy, kept)]


def decide(facts: Sequence[RunFacts], policy: Policy, course: Course, now: float) -> list[Choice]:
    """Return what becomes of every run directory, in the order of the facts.

    Args:
        facts: of every run directory of the home.
        policy: what is to be kept.
        course: what the service says of the experiments of `old_enough`.
        now: Unix seconds.
    """
    kept = _kept(facts, policy, now)
    whys = {row.run: _held_here(row, policy, kept) or _held_by_course(row, course) for row in facts}
    while True:  # who stays keeps what its order begins with
        needed = {row.begins_from for row in facts if whys[row.run] and not _is_gone(row)}
        more = [row for row in facts if not whys[row.run] and row.run in needed]
        if not more:
            return [_choice(row, policy, whys[row.run]) for row in facts]
        whys |= {row.run: "another run begins with its checkpoint" for row in more}


def _choice(row: RunFacts, policy: Policy, why: str) -> Choice:
    stays = Choice(run=row.run, experiment=row.experiment, what=None, why=why)
    if why:
        return stays
    size = row.checkpoint_bytes if policy.checkpoints_only else row.bytes
    if policy.checkpoints_only and not size:
        return replace(stays, why="it has no checkpoints")
    what = What.CHECKPOINTS if policy.checkpoints_only else What.ALL
    return replace(stays, what=what, bytes=size)


def _is_gone(row: RunFacts) -> bool:
    return row.pruned is What.ALL


def _kept(facts: Sequence[RunFacts], policy: Policy, now: float) -> dict[str, str]:
    """Return the experiments that the policy keeps whole, and why; the newest by their end here."""
    ends: dict[str, float] = {}
    for row in facts:
        if not _is_gone(row):
            known = row.ended_at is not None and isfinite(row.ended_at)
            ended = row.ended_at if known and row.ended_at is not None else inf
            ends[row.experiment] = max(ended, ends.get(row.experiment, ended))
    recent = f"its experiment ended within {policy.keep_days:g} days"
    found = {name: recent for name, at in ends.items() if not now - at >= policy.keep_days * DAY_S}
    newest = sorted(ends, key=lambda name: ends[name], reverse=True)[: policy.keep]
    return found | dict.fromkeys(newest, f"its experiment is among the newest {policy.keep}")


def _held_here(row: RunFacts, policy: Policy, kept: Mapping[str, str]) -> str:
    """Say why a run stays, as far as its own home can tell; empty: nothing there keeps it."""
    if row.living:
        return "its keeper lives"
    if _is_gone(row):  # cut short, perhaps: what is left of it goes
        return "" if row.bytes and not policy.checkpoints_only else "it was pruned before"
    if row.ended_at is None:
        return "it has no exit.json that can be read"
    if row.left:
        return "processes of it outlived SIGKILL (exit.json: left)"
    if row.quarantined:
        return "a quarantine names it"
    if not row.shipped:
        return "it is not shipped"
    return kept.get(row.experiment, "")


def _held_by_course(row: RunFacts, course: Course) -> str:
    """Say why a run stays, by what is known of its experiment; empty: nothing keeps it."""
    if _is_gone(row):
        return ""
    if not row.known:
        return "" if row.decided else "it is not decided"
    finished = course.finished.get(row.experiment)
    if finished is None:
        return "no service says that its experiment is over"
    if not finished:
        return "its experiment is not over"
    if row.experiment in course.begun_from:
        return "an experiment that is not over goes on from its experiment"
    return ""
