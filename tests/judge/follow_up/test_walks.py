"""A phase from its first run to its end, over runs of every kind and accidents between them."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from gonogo.contract.decision import Verdict
from gonogo.contract.order import RunReason
from gonogo.contract.outcome import Detector, OutcomeClass
from gonogo.contract.plan import Plan
from gonogo.judge.follow_up.decide import Action, ActionKind, Attempt, decide
from tests.judge.follow_up.test_decide import CONFIRM, attempt, ours

PLANS = {
    "plain": ours(),
    "confirming": ours(confirm=CONFIRM),
    "answering": ours(
        confirm=CONFIRM,
        remedies={"non_finite_loss": {"env": {"A": "1"}}, "slow_loader": {"env": {"B": "1"}}},
        max_remedies=2,
    ),
    "one remedy": ours(
        remedies={"slow_loader": {"train": {"loader": {"cache_gb": 1}}}}, max_remedies=1
    ),
}
ACCIDENTS = ("preempted", "keeper_lost", "halted")
LONGEST = 60
_PASSING = (Verdict.GO, Verdict.CONDITIONAL_GO)


def ends(rng: random.Random) -> Iterator[Attempt]:
    """How the runs of a phase end, one after another, whatever is ordered."""
    while True:
        yield rng.choice(
            (
                attempt(),
                attempt(),
                attempt(verdict="CONDITIONAL_GO", failed=("speed",)),
                attempt(verdict="NO_GO"),
                attempt(verdict="NO_GO", diagnosis="slow_loader"),
                attempt(verdict="INCONCLUSIVE"),
                attempt("nonzero_exit", "NO_GO", detector=Detector.PROCESS_DEATH, step=7),
                attempt(
                    "non_finite",
                    "NO_GO",
                    detector=Detector.NON_FINITE,
                    step=rng.choice((3, 400, 990)),
                    diagnosis="non_finite_loss",
                ),
                attempt("stalled", "NO_GO", detector=Detector.STALL, step=40),
            )
        )


def walk(plan: Plan, seed: int, *, accidents: float) -> tuple[list[Any], Action, list[Attempt]]:
    """Do what `decide` says until the phase is over.

    Returns:
        what every run with an end of its own was ordered with, the last action, and all runs.
    """
    rng, of_ends = random.Random(seed), ends(random.Random(seed))
    ordered: tuple[RunReason, Any] = (RunReason.FIRST, None)
    runs: list[Attempt] = []
    made: list[Any] = []
    while True:
        reason, change = ordered
        if rng.random() < accidents:
            verdict, code = Verdict.INCONCLUSIVE, rng.choice(ACCIDENTS)
            further = {"durable_step": len(runs) + 1, "started_at": 60.0 * len(runs)}
            end = attempt(code, verdict, run=f"accident_{len(runs)}", **further)
        else:
            end = replace(next(of_ends), run=f"run_{len(made)}")
            made.append((end.outcome.code, end.verdict, change))
        run = replace(end, reason=reason, change=change)
        runs.append(run)
        action = decide(plan, "smoke", runs, now=60.0 * len(runs))
        if action.kind is ActionKind.START_RUN:
            ordered = (action.reason or RunReason.RERUN, action.change)
        elif run.outcome.klass is OutcomeClass.OPERATOR:
            resumed = RunReason.RESUME if reason is RunReason.FIRST else reason
            ordered = (resumed, change)  # as the service does, by a person's word
        elif run.outcome.klass is OutcomeClass.INFRA:  # after its retries, a person resumes it
            ordered = (RunReason.RESUME if reason is RunReason.FIRST else reason, change)
        else:
            return made, action, runs
        assert len(runs) < LONGEST, (seed, made[-3:], action)


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_a_phase_comes_to_its_end_and_to_no_verdict_that_its_runs_do_not_bear(plan: Plan) -> None:
    for seed in range(200):
        made, action, runs = walk(plan, seed, accidents=0.0)
        bound = 1 + 3 * (3 + len(CONFIRM["variants"])) + plan.max_remedies
        assert len(made) <= bound, (seed, made)
        failed = [row for row in runs if row.verdict is Verdict.NO_GO]
        about = next(row for row in runs if row.run == action.about)
        if action.verdict is Verdict.GO:
            assert (about.verdict, failed) == (Verdict.GO, []), seed
        if action.verdict in _PASSING:
            assert about.verdict in _PASSING, seed
        if action.verdict is Verdict.NO_GO:
            assert failed, seed


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
@pytest.mark.parametrize("often", [0.1, 0.5])
def test_accidents_between_runs_change_nothing_of_what_a_phase_comes_to(
    plan: Plan, often: float
) -> None:
    for seed in range(80):
        calm, upset = (walk(plan, seed, accidents=share) for share in (0.0, often))
        assert calm[:2] == upset[:2], seed
