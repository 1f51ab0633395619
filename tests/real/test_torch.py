"""Real failures of real torch ranks: each diagnosed from what it left behind, its line quoted."""

from __future__ import annotations

from typing import Any

import pytest

from gonogo.judge.directory import judge_directory
from gonogo.watch.registry import detector_names
from tests.supervise.runs import WATCH, NewRun

ENTRY = "tests.real.torch_ranks"


def judged(
    new_run: NewRun, kind: str, env: dict[str, str], watch: Any = WATCH, **train: Any
) -> dict[str, Any]:
    """Run the ranks to their end under keeper and watcher; return the decision on them."""
    run = new_run(
        "--allow",
        ENTRY,
        entry=ENTRY,
        steps=12,
        train={"kind": kind, **train},
        env=env,
        watch=watch,
        identity={"world_size": 2},
        detectors=detector_names(),
    )
    run.wait_for_exit()
    assert run.living() == []
    run.assert_replays()
    return judge_directory(run.path)


FAILURES = [
    pytest.param("peer", {}, {}, "killed", 1, "step 6 begins", id="a peer is killed"),
    pytest.param(
        "collective",
        {"TORCH_DISTRIBUTED_DEBUG": "DETAIL"},
        {},
        "collective_desync",
        None,
        "Detected mismatch between collectives",
        id="ranks enter different collectives",
    ),
    pytest.param("memory", {}, {}, "out_of_memory", 0, "can't allocate memory", id="out of memory"),
    pytest.param(
        "shape",
        {},
        {},
        "collective_desync",
        0,
        "Is there a distributed collective mismatch",
        id="ranks bring different shapes",
    ),
    pytest.param(
        "late",
        {},
        {"timeout_s": 1},
        "lost_peer",
        0,
        "Timed out waiting 1000ms",
        id="a rank comes too late",
    ),
    pytest.param(
        "index",
        {},
        {},
        "data_sharding",
        1,
        "index 2 is out of bounds",
        id="a batch is sliced twice",
    ),
]


@pytest.mark.long
@pytest.mark.parametrize(("kind", "env", "train", "diagnosis", "rank", "line"), FAILURES)
def test_a_real_failure_has_its_name_its_rank_and_its_line(
    new_run: NewRun,
    kind: str,
    env: dict[str, str],
    train: dict[str, Any],
    diagnosis: str,
    rank: int | None,
    line: str,
) -> None:
    decision = judged(new_run, kind, env, **train)
    assert (decision["verdict"], decision["diagnosis"]) == ("NO_GO", diagnosis), decision["cause"]
    cause = decision["cause"]
    assert rank is None or cause["rank"] == rank
    assert cause["log"] == f"rank{cause['rank']}.log"
    assert line in cause["line"]
    assert (cause["unknown"], cause["look"]) == (False, [])


@pytest.mark.long
def test_a_rank_that_names_no_section_and_never_comes_to_the_others_is_the_culprit(
    new_run: NewRun,
) -> None:
    """The lines do not distinguish the ranks: torch's flight recorders do."""
    watch = {**WATCH, "section_deadline": {"out_of_section": {"halt_s": 16.0}}}
    decision = judged(new_run, "apart", {}, watch=watch, mute=True)
    halt = next(row for row in decision["findings"] if row["severity"] == "halt")
    assert (halt["detector"], halt["rank"], halt["section"]) == ("section_deadline", 1, None)
    assert "rank 0 entered collective" in halt["text"]
    assert "; rank 1 did not" in halt["text"]
    assert decision["cause"]["rank"] == 1


@pytest.mark.long
def test_a_disk_that_is_full_is_nobody_s_fault_and_its_refusal_is_quoted(new_run: NewRun) -> None:
    decision = judged(new_run, "disk", {})
    assert (decision["verdict"], decision["diagnosis"]) == ("NO_GO", "disk_full")
    assert decision["cause"]["rank"] is None
    assert "[Errno 28] No space left on device" in decision["cause"]["text"]


@pytest.mark.long
def test_an_unknown_failure_says_so_and_where_to_look_first(new_run: NewRun) -> None:
    decision = judged(new_run, "unknown", {})
    cause = decision["cause"]
    assert (decision["verdict"], decision["diagnosis"]) == ("NO_GO", None)
    assert (cause["unknown"], cause["rank"]) == (True, 1)
    assert cause["line"].endswith("ValueError: the moon is in the seventh house")
    places = cause["look"]
    assert places[0] == "rank1.log"
    assert places[-1] == "torchrun.log"


@pytest.mark.long
def test_ranks_that_nothing_befalls_complete(new_run: NewRun) -> None:
    decision = judged(new_run, "none", {})
    assert (decision["diagnosis"], decision["findings"]) == (None, [])
    told = {row["id"]: row["outcome"] for row in decision["criteria"]}
    assert (told["completed"], told["no_halt_finding"]) == ("pass", "pass")
