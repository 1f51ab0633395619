"""Does a verdict of `gonogo run` name what would tell more?"""

from typing import Any

import pytest

from gonogo.cli.run_advice import (
    advise,
    advise_drift,
    advise_ranks,
    advise_steps,
    error_told,
    has_some_losses,
    undone_ranks,
    unseen_ranks,
    went_on_after,
)
from gonogo.contract.criterion import Criterion
from gonogo.contract.patterns import guessed_patterns
from gonogo.contract.watch import Watch
from gonogo.planning.resolve import build_command_order


def advice(
    *open_: str,
    steps: int | None = 30,
    ranks: int = 1,
    heard: tuple[int, ...] = (0,),
    waive: tuple[str, ...] = (),
    printed: tuple[str, ...] = (),
    guessed: bool = True,
    unseen: tuple[str, ...] = (),
    last: int | None = None,
    went_on: int | None = None,
    error: str | None = None,
    command: tuple[str, ...] = ("x",),
    **flags: bool,  # read, planned, undone
) -> list[str]:
    order = build_command_order(
        list(command), experiment="e", run="r", cwd="/", world_size=ranks, steps=steps,
        watch=Watch(), waive=waive, preflight=[],
    ).model_copy(
        update={"patterns": guessed_patterns(steps), "patterns_guessed": guessed}
    )  # fmt: skip
    rows: list[dict[str, Any]] = [{"id": name, "outcome": "inconclusive"} for name in open_]
    rows.append({"id": "preflight", "outcome": "pass"})
    given: dict[str, Any] = {
        "read": True,
        "planned": False,
        "printed": printed,
        "unseen": unseen,
        "last": last,
        "went_on": went_on,
        "error": error,
        **flags,
    }
    return advise(order, rows, heard, **given)


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (advice("completed", heard=()), ["give one (--pattern"]),
        (advice("completed", heard=(), guessed=False), ["fits --pattern: correct it"]),
        (advice("completed", "identity", ranks=2), ["--world-size"]),
        (advice("completed", steps=None), ["--steps N"]),
        (
            advice("completed", steps=None, command=("x", "--steps", "9")),
            ["--steps N before the --; behind it"],
        ),
        (
            advice("completed", last=29),
            ["step 29 was the last that was read from its lines, of 30"],
        ),
        (advice("completed", last=30), []),
        (
            advice("completed", last=29, printed=tuple(f"step {n} loss 2" for n in (5, 6, 1, 2))),
            ["a number in its lines went back"],
        ),
        (advice("completed", last=29, heard=()), ["give one (--pattern"]),
        (advice("completed", last=29, read=False), []),
        (advice("completed", last=29, steps=None), ["--steps N"]),
        (advice("completed", steps=None, read=False, counted=True), []),
        (advice("coverage", waive=("coverage",), last=29), []),
        (advice("identity", "coverage"), ["success: --accept conditional"]),
        (
            advice("identity", "coverage", planned=True),
            ["go without: --waive identity --waive coverage"],
        ),
        (advice("coverage", planned=True), ["go without: --waive coverage"]),
        (advice("identity", "coverage", waive=("coverage",)), ["cannot report identity: attach"]),
        (advice("identity", waive=("identity",)), []),
        (advice("completed", ranks=2, planned=True), []),
        (advice("identity", read=False), []),
        (
            advice("completed", unseen=("10", "2"), read=False),
            [
                "how rank 2, 10 ended",
            ],
        ),
        (advice("coverage", unseen=("0",), read=False), []),
        (advice("completed", undone=True, read=False), ["with gonogo.trainer.attach() as beat"]),
        (
            advice("completed", undone=True, read=False, error="OSError: no room"),
            ["left by an error after the last step, and the script went on: OSError: no room."],
        ),
        (advice("completed", read=False, error="OSError: no room"), []),
        (
            advice("coverage", went_on=8, read=False),
            ["after step 8, from a checkpoint of its own, and a run owes every step from the"],
        ),
        (
            advice("coverage", "completed", went_on=30, read=False),
            ["take that checkpoint away, or let --steps be more"],
        ),
        (advice("coverage", went_on=8, read=False, planned=True), ["waive: [coverage]"]),
        (advice("completed", went_on=8, read=False), []),
        (advice("completed", undone=True), []),
        (advice("coverage", undone=True, read=False), []),
        (advice(), []),
    ],
)
def test_what_lacks_is_named_with_the_option_that_gives_it(
    found: list[str], said: list[str]
) -> None:
    assert len(found) == len(said)
    for text, part in zip(found, said, strict=True):
        assert part in text


@pytest.mark.parametrize(
    ("steps", "counts", "code", "planned", "said"),
    [
        (400, (320,), 0, False, "320 steps were counted: say --steps 320 if that is a whole run"),
        (100, (320, 320), 0, False, "320 steps were counted: say --steps 320 if"),
        (None, (320,), 0, False, "say --steps 320 before the --; behind it that is the program's"),
        (400, (320,), 0, True, "320 steps were counted: correct the steps of the plan to 320 if"),
        (400, (1,), 0, False, "1 step was counted: say --steps 1 if"),
        (320, (320,), 0, False, None),
        (400, (320, 319), 0, False, None),  # its ranks do not agree
        (400, (320,), 1, False, None),
        (400, (), 0, False, None),
    ],
)
def test_who_made_another_number_of_steps_is_told_which_to_order(
    steps: int | None, counts: tuple[int, ...], code: int, planned: bool, said: str | None
) -> None:
    command = ["x", "--steps", "9"] if steps is None else ["x"]
    order = build_command_order(
        command, experiment="e", run="r", cwd="/", world_size=1, steps=steps,
        watch=Watch(), waive=(), preflight=[],
    )  # fmt: skip
    told = {str(n): {"last_step": row, "done_step": row} for n, row in enumerate(counts)}
    found = advise_steps(order, told, {"agent": {"code": code}, "ranks": {}}, planned=planned)
    assert len(found) == (said is not None)
    assert all((said or "") in text for text in found)


@pytest.mark.parametrize(
    ("metric", "samples", "is_named"),
    [("val_loss", 0, True), ("val_loss", 3, False), ("loss", 0, False)],
)
def test_a_gate_on_evaluations_of_which_none_was_told_says_how(
    metric: str, samples: int, is_named: bool
) -> None:
    row = {"id": "val", "outcome": "inconclusive", "window": None, "samples": samples}
    gate = [Criterion.model_validate({"id": "val", "metric": metric, "pass_below": 3})]
    order = build_command_order(
        ["x"], experiment="e", run="r", cwd="/", world_size=1, steps=20,
        watch=Watch(), waive=(), preflight=[],
    ).model_copy(update={"gate": gate})  # fmt: skip
    told = " ".join(advise(order, [row], (0,), read=False, planned=True))
    assert ("val waits for an evaluation" in told) is is_named
    assert "beat.eval" not in " ".join(advise(order, [row], (0,), read=True, planned=True))


@pytest.mark.parametrize(
    ("done", "ended", "gaps", "lives", "after"),
    [
        (30, (10, 10), 0, 1, 20),  # a checkpoint of step 20, of the script's last run
        (30, (0, 0), 0, 1, 30),  # nothing was left to do
        (30, (30, 30), 0, 1, None),  # from the first step on
        (30, (10, 10), 1, 1, None),  # lines were lost: nobody knows
        (30, (10, 10), 0, 2, None),  # started anew in this run
        (30, (10, 20), 0, 1, None),  # its ranks do not agree
        (None, (10, 10), 0, 1, None),
    ],
)
def test_a_script_that_went_on_from_a_checkpoint_of_its_own_is_told_where(
    done: int | None, ended: tuple[int, int], gaps: int, lives: int, after: int | None
) -> None:
    ranks = {str(rank): {"done_step": done, "gaps": gaps} for rank in range(2)}
    boots = {str(rank): [{"ended_steps": row}] * lives for rank, row in enumerate(ended)}
    assert went_on_after(ranks, boots) == after


def test_ranks_that_never_said_that_they_were_done_are_told_with_their_error() -> None:
    told: dict[str, Any] = {
        "0": {"last_step": 20, "done_step": 20},
        "1": {"last_step": 20, "done_step": None},
        "2": {"last_step": 19, "done_step": None},
    }
    assert undone_ranks(told, 20) == ["1"]
    assert undone_ranks(told, None) == []
    assert error_told(None) is None
    line = {"msg": "error", "type": "ValueError", "text": "it\nfailed"}
    assert error_told(line) == "ValueError: it"
    assert len(error_told({**line, "text": "x" * 999}) or "") == 200


@pytest.mark.parametrize(
    ("window", "samples", "is_named"),
    [("1..200", 20, True), ("1..200", 200, False), ("1..200", 0, False), (None, 0, False),
     ("none", 0, False)],
)  # fmt: skip
def test_a_criterion_that_saw_some_of_its_steps_alone_is_named(
    window: str | None, samples: int, is_named: bool
) -> None:
    row = {"id": "finite", "outcome": "inconclusive", "window": window, "samples": samples}
    order = build_command_order(
        ["x"], experiment="e", run="r", cwd="/", world_size=1, steps=200,
        watch=Watch(), waive=(), preflight=[],
    )  # fmt: skip
    said = advise(order, [row], {0}, read=True, planned=True)
    assert ["--waive finite" in text for text in said] == [True] * is_named
    assert advise(order, [row], {0}, read=False, planned=True) == []


@pytest.mark.parametrize(
    ("heard", "planned", "said"),
    [
        ({0, 1}, False, ["2 ranks were heard and 1 ordered: say --world-size 2"]),
        (
            {0, 1},
            True,
            ["2 ranks were heard and 1 ordered: correct workload.world_size in the plan"],
        ),
        ({0}, False, []),
        (set(), False, []),
    ],
)
def test_more_ranks_than_were_ordered_say_how_many_to_order(
    heard: set[int], planned: bool, said: list[str]
) -> None:
    order = build_command_order(
        ["x"], experiment="e", run="r", cwd="/", world_size=1, steps=200,
        watch=Watch(), waive=(), preflight=[],
    )  # fmt: skip
    assert advise_ranks(order, heard, planned=planned) == said


@pytest.mark.parametrize(
    ("outcome", "observed", "planned", "said"),
    [
        ("fail", {"device": {"0": "a", "1": "b"}}, False, "--allow-drift device ("),
        ("fail", {"driver": {}, "torch": {}}, True, "allow_drift: [torch, driver] ("),
        ("fail", {"params": {}}, False, None),
        ("fail", None, False, None),
        ("pass", {"device": {}}, False, None),
    ],
)
def test_what_may_differ_between_ranks_can_be_allowed(
    outcome: str, observed: dict[str, Any] | None, planned: bool, said: str | None
) -> None:
    row = {"id": "identity", "outcome": outcome, "observed": observed}
    found = advise_drift([row, {**row, "id": "completed"}], planned=planned)
    assert len(found) == (said is not None)
    assert all(str(said) in text for text in found)


ENDS = {"0": {"code": 0}, "1": {}, "2": {"signal": 9}, "x": {}}


@pytest.mark.parametrize(
    ("told", "unseen"),
    [
        ({"agent": {"code": 0}, "ranks": ENDS}, ["1"]),
        ({"agent": {"code": 1}, "ranks": ENDS}, []),
        ({"agent": None, "ranks": ENDS}, []),
        ({"agent": {"code": 0}, "ranks": {}}, []),
        (None, []),  # no exit.json, or one that cannot be read
    ],
)
def test_a_rank_is_unseen_whose_command_left_with_0_and_told_nothing_of_it(
    told: dict[str, Any] | None, unseen: list[str]
) -> None:
    assert unseen_ranks(told) == unseen


@pytest.mark.parametrize(
    ("rank", "said"),
    [
        ({"with_loss": 28, "without_loss": {"count": 2, "first": ["loss 4"]}}, True),
        ({"with_loss": 0, "without_loss": {"count": 30, "first": ["loss 1"]}}, False),
        ({"with_loss": 30, "without_loss": {"count": 0, "first": []}}, False),
        ({"without_loss": None}, False),
    ],
)
def test_losses_of_some_steps_are_told_from_none(rank: dict[str, Any], said: bool) -> None:
    order = build_command_order(
        ["x"], experiment="e", run="r", cwd="/", world_size=1, steps=30,
        watch=Watch(), waive=["coverage", "identity"], preflight=[],
    )  # fmt: skip
    row = {"id": "coverage", "outcome": "inconclusive"}
    some = has_some_losses({"0": rank})
    remedies = ((True, "have every step's line"), (False, "take loss out of --pattern"))
    for guessed, remedy in remedies:
        given = order.model_copy(update={"patterns": ["x"], "patterns_guessed": guessed})
        found = advise(given, [row], {0}, read=True, planned=True, some_losses=some)
        assert [remedy in text for text in found] == [True] * said
