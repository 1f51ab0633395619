"""The most relevant evidence first."""

import random

import pytest

from gonogo.contract.finding import Finding, Severity
from gonogo.contract.outcome import Detector
from gonogo.evidence_round import (
    by_relevance,
    describe_round,
    is_described,
    stack_rank,
    where_it_stood,
)
from tests.judge.runs import finding

ROUND = [
    "collectives.txt",
    "stacks_rank1.txt",
    "stacks_rank0.txt",
    "stacks_rank2.txt",
    "log_rank1.txt",
    "log_rank0.txt",
    "log_rank2.txt",
    "torchrun_log.txt",
    "torchrun_log_node1.txt",
    "heartbeats_rank1.jsonl",
    "heartbeats_rank0.jsonl",
    "proc_rank1.txt",
    "proc_rank0.txt",
    "nvidia_smi.xml",
    "collectives_rank1.json",
    "collectives_rank0.json",
    "something_new.txt",
]


def test_the_collectives_come_first_and_the_culprit_before_its_peers() -> None:
    paths = [f"evidence/02_stall/{name}" for name in ROUND]
    for seed in range(5):
        shuffled = random.Random(seed).sample(paths, len(paths))
        assert by_relevance(shuffled, culprit=1) == paths


def test_collectives_and_stacks_are_what_is_told() -> None:
    told = ["e/collectives.txt", "e/stacks_rank12.txt"]
    others = ["e/log_rank1.txt", "e/collectives_rank1.json", "e/stacks.txt", "e/proc_rank0.txt"]
    assert [path for path in [*told, *others] if is_described(path)] == told
    assert [stack_rank(path) for path in [*told, *others]] == [None, 12, None, None, None, None]


def test_a_round_is_told_in_words() -> None:
    stack = "MainThread (thread 1)\n    wait (a.py:1)\n    main (b.py:2)\n"
    texts = {
        "e/stacks_rank0.txt": stack,
        "e/stacks_rank1.txt": stack.replace("wait", "sleep"),
        "e/stacks_rank2.txt": stack,
        "e/log_rank0.txt": "a log\n",
        "e/collectives.txt": "rank 1 alone entered it\n",
    }
    assert describe_round(texts, 1).splitlines() == [
        "rank 1 alone entered it",
        "rank 1:",
        "    sleep (a.py:1)",
        "    main (b.py:2)",
        "ranks 0, 2:",
        "    wait (a.py:1)",
        "    main (b.py:2)",
    ]
    assert describe_round(texts, 1, whole=False).splitlines() == [
        "rank 1 alone entered it",
        "rank 1: sleep (a.py:1) < main (b.py:2)",
        "ranks 0, 2: wait (a.py:1) < main (b.py:2)",
    ]


def test_a_hang_whose_own_round_holds_no_stack_is_told_by_the_one_before() -> None:
    def hung(number: int, step: int, severity: Severity, *names: str) -> Finding:
        paths = [f"evidence/{number:02d}_stall/{name}" for name in names]
        return finding(Detector.STALL, severity, step=step, evidence=paths)

    stacks = ("stacks_rank0.txt", "stacks_rank1.txt")
    first = hung(2, 9, Severity.WARN, *stacks)
    halt = hung(3, 9, Severity.HALT, "log_rank1.txt")
    assert where_it_stood([first, halt], 1) == "evidence/02_stall/stacks_rank1.txt"
    assert where_it_stood([first, hung(3, 9, Severity.HALT, *stacks)], 0) == (
        "evidence/03_stall/stacks_rank0.txt"
    )
    earlier = hung(1, 4, Severity.WARN, *stacks)
    assert where_it_stood([earlier, halt], 1) == "evidence/03_stall/log_rank1.txt"


@pytest.mark.parametrize(
    ("names", "rank", "told"),
    [
        (["log_rank1.txt", "collectives.txt", "stacks_rank1.txt"], 1, "stacks_rank1.txt"),
        (["log_rank1.txt", "collectives.txt", "stacks_rank0.txt"], 1, "collectives.txt"),
        (["log_rank1.txt", "collectives.txt", "stacks_rank1.txt"], None, "collectives.txt"),
        (["log_rank1.txt", "stacks_rank1.txt", "stacks_rank0.txt"], None, "stacks_rank0.txt"),
        ([], 1, None),
    ],
    ids=["its stack", "a peer's alone", "nobody's", "nobody's, no collectives", "nothing"],
)
def test_a_hang_is_told_by_the_culprits_stack_else_by_what_comes_first(
    names: list[str], rank: int | None, told: str | None
) -> None:
    halt = finding(Detector.STALL, step=9, evidence=[f"evidence/01_stall/{name}" for name in names])
    found = where_it_stood([halt], rank)
    assert found == (None if told is None else f"evidence/01_stall/{told}")
