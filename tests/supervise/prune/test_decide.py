"""The choice of run directories to prune, by facts alone."""

from __future__ import annotations

from typing import Any

import pytest

from gonogo.supervise.prune import DAY_S, NOBODY_SAYS, Course, Policy, RunFacts, What, decide

NOW = 100 * DAY_S
OLD = NOW - 40 * DAY_S
OVER = Course(finished={"e": True, "f": True})


def run(name: str = "r", **more: Any) -> RunFacts:
    plain: dict[str, Any] = {
        "experiment": "e", "ended_at": OLD, "bytes": 100, "checkpoint_bytes": 60, "shipped": True,
    }  # fmt: skip
    return RunFacts(run=name, **plain | more)


def whys(*facts: RunFacts, policy: Policy | None = None, course: Course = OVER) -> dict[str, str]:
    return {row.run: row.why for row in decide(facts, policy or Policy(), course, NOW)}


def test_what_is_old_shipped_and_over_goes() -> None:
    (choice,) = decide([run()], Policy(), OVER, NOW)
    assert (choice.what, choice.bytes, choice.why) == (What.ALL, 100, "")
    (choice,) = decide([run()], Policy(checkpoints_only=True), OVER, NOW)
    assert (choice.what, choice.bytes) == (What.CHECKPOINTS, 60)


@pytest.mark.parametrize(
    ("facts", "course", "why"),
    [
        (run(living=True), OVER, "its keeper lives"),
        (run(ended_at=None), OVER, "no exit.json"),
        (run(ended_at=float("nan")), OVER, "ended within 30 days"),
        (run(ended_at=NOW - 29 * DAY_S), OVER, "ended within 30 days"),
        (run(ended_at=NOW + DAY_S), OVER, "ended within 30 days"),
        (run(shipped=False), OVER, "not shipped"),
        (run(), NOBODY_SAYS, "no service says"),
        (run(), Course(finished={"e": False}), "its experiment is not over"),
        (run(), Course(finished={"e": True}, begun_from={"e"}), "resumes from its experiment"),
        (run(known=False), NOBODY_SAYS, "it is not decided"),
        (run(pruned=What.ALL, bytes=0), OVER, "pruned before"),
        (run(pruned=What.ALL, living=True), OVER, "its keeper lives"),
    ],
    ids=lambda value: value.replace(" ", "-") if isinstance(value, str) else "",
)
@pytest.mark.parametrize("checkpoints_only", [False, True])
def test_what_may_be_needed_stays(
    facts: RunFacts, course: Course, why: str, *, checkpoints_only: bool
) -> None:
    policy = Policy(checkpoints_only=checkpoints_only)
    (choice,) = decide([facts], policy, course, NOW)
    assert choice.what is None
    if not (checkpoints_only and facts.pruned):
        assert why in choice.why


def test_no_age_and_no_number_frees_what_may_be_needed() -> None:
    policy = Policy(keep_days=0.0)
    assert whys(run(ended_at=NOW), policy=policy) == {"r": ""}
    assert whys(run(ended_at=NOW, shipped=False), policy=policy)["r"]
    assert whys(run(ended_at=NOW), policy=policy, course=NOBODY_SAYS)["r"]


def test_a_run_that_no_service_knows_goes_when_it_is_decided() -> None:
    assert whys(run(known=False, decided=True), course=NOBODY_SAYS) == {"r": ""}


def test_an_experiment_is_as_old_as_its_last_run() -> None:
    young = run("new", ended_at=NOW - DAY_S)
    assert all("within 30 days" in why for why in whys(run("old"), young).values())
    assert whys(run("old"), run("new", ended_at=NOW - DAY_S, experiment="f"))["old"] == ""


def test_what_was_cut_short_is_finished() -> None:
    (choice,) = decide([run(pruned=What.ALL, ended_at=None, bytes=7)], Policy(), NOBODY_SAYS, NOW)
    assert (choice.what, choice.bytes) == (What.ALL, 7)


def test_whose_checkpoints_went_may_go_as_a_whole_later() -> None:
    facts = run(pruned=What.CHECKPOINTS, checkpoint_bytes=0)
    assert whys(facts) == {"r": ""}
    assert whys(facts, policy=Policy(checkpoints_only=True)) == {"r": "it has no checkpoints"}
