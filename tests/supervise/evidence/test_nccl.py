"""With NCCL the rank that the others wait for is named, and an innocent rank never is.

The runs are simulated (`nccl_runs`). Four public records of 16 ranks (nvidia-resiliency-ext, two
devices that fail and two processes that hold the lock of Python) gave the right ranks, too; they
are not copied here.
"""

import random
from dataclasses import replace
from typing import Any

import pytest

from gonogo.contract.collectives import Dump, Entry, Standing
from gonogo.supervise.evidence.collectives import analyse
from gonogo.supervise.evidence.nccl_collectives import QUIET_S
from tests.supervise.evidence.nccl_runs import FAULTS, WORLD, Plan, simulate

SEEDS = 18
"""Runs of each fault, 198 in all."""


def _named(found: Standing | None) -> set[int]:
    if found is None:
        return set()
    only = set() if found.only is None else {found.only}
    return only | {*found.behind} | {*found.unfinished}


def _plan(fault: str, seed: int, *, mute: bool = False) -> Plan:
    chance = random.Random(f"{fault} {seed}")
    several = fault in ("sleep", "gil", "device", "died", "kernel") and chance.random() < 0.4
    guilty = tuple(sorted(chance.sample(range(WORLD), 2 if several else 1)))
    innocent = [rank for rank in range(WORLD) if rank not in guilty]
    return Plan(
        seed=seed,
        fault=fault,
        tensor=chance.choice([2, 4]),
        stages=chance.choice([2, 4]),
        guilty=guilty,
        lanes=chance.choice([1, 2]),
        timing=chance.random() < 0.3,
        only_active=chance.random() < 0.3,
        kept=chance.choice([8, 16, 64, 256]),
        mute=tuple(chance.sample(innocent, chance.randint(1, 3))) if mute else (),
    )


@pytest.mark.parametrize(
    ("fault", "least"),
    [
        ("healthy", 0),
        ("kernel", 0),
        ("device", 7),
        ("sleep", 15),
        ("gil", 15),
        ("died", 15),
        ("skip", 1),
        ("extra", 1),
        ("shape", 6),
        ("dtype", 6),
        ("op", 6),
    ],
    ids=FAULTS,
)
def test_whom_a_record_names_is_guilty(fault: str, least: int) -> None:
    """`least`: in so many of the runs a rank is named, or listed as silent, at the least."""
    told = 0
    for seed in range(SEEDS):
        plan = _plan(fault, seed)
        found = analyse(simulate(plan), WORLD)
        named = _named(found) | ({*found.silent} if found else set())
        guilty = set() if fault == "healthy" else {*plan.guilty}
        assert named <= guilty, (plan, found)
        told += bool(named)
    assert told >= least


@pytest.mark.parametrize("fault", FAULTS)
def test_where_innocent_ranks_do_not_answer_they_are_not_named(fault: str) -> None:
    for seed in range(4):
        plan = _plan(fault, 1000 + seed, mute=True)
        found = analyse(simulate(plan), WORLD)
        assert _named(found) <= (set() if fault == "healthy" else {*plan.guilty}), (plan, found)


def test_a_kernel_that_never_ends_is_named_where_starts_are_recorded() -> None:
    plans = [Plan(seed=seed, fault="kernel", timing=True, tensor=4, stages=2) for seed in range(8)]
    named = [_named(analyse(simulate(plan), WORLD)) for plan in plans]
    assert all(row <= {5} for row in named)
    assert {5} in named
    unknown = [_named(analyse(simulate(replace(plan, timing=False)), WORLD)) for plan in plans]
    assert not any(unknown)


def _entry(seq: int, group: str = "0", op: str = "all_reduce", **more: Any) -> Entry:
    said = {"input_sizes": [[4]], "input_dtypes": ["Float"], "state": "scheduled", **more}
    return Entry(
        collective_seq_id=seq,
        process_group=[group, "undefined"],
        profiling_name=f"nccl:{op}",
        **said,
    )


def _ended(seq: int, group: str = "0", **more: Any) -> Entry:
    return _entry(seq, group, retired=True, **{"state": "completed", **more})


def _dumps(groups: dict[str, list[int]], entries: dict[int, list[Entry]]) -> dict[int, Dump]:
    return {
        rank: Dump(
            rank=rank,
            kept=256,
            groups={name: ranks for name, ranks in groups.items() if rank in ranks},
            entries=rows,
        )
        for rank, rows in entries.items()
    }


def _found(dumps: dict[int, Dump], world: int | None = None) -> Standing:
    found = analyse(dumps, world or len(dumps))
    assert found is not None
    return found


def test_a_chain_of_waiting_ranks_is_followed_to_its_root() -> None:
    """Rank 0 waits for 2 in the pipeline, rank 2 for 3 in its tensor group; 3 has not come."""
    groups = {"tensor0": [0, 1], "tensor1": [2, 3], "data0": [0, 2], "data1": [1, 3]}
    found = _found(
        _dumps(
            groups,
            {
                0: [_ended(1, "tensor0"), _ended(1, "data0"), _entry(2, "data0")],
                1: [_ended(1, "tensor0"), _ended(1, "data1"), _entry(2, "data1")],
                2: [_ended(1, "tensor1"), _ended(1, "data0"), _entry(2, "tensor1")],
                3: [_ended(1, "tensor1"), _ended(1, "data1")],
            },
        )
    )
    assert (found.behind, found.only, found.unfinished) == ([3], None, [])
    assert "rank 3 did not" in found.text


def test_a_message_that_nobody_sent_leads_to_its_sender() -> None:
    groups = {"pipe": [0, 1], "tensor": [1, 2]}
    message = _entry(0, "pipe", op="recv 0<-1", is_p2p=True)
    dumps = _dumps(
        groups,
        {0: [message], 1: [_ended(1, "tensor"), _entry(2, "tensor")], 2: [_ended(1, "tensor")]},
    )
    assert _found(dumps).behind == [2]
    dumps[1] = dumps[1].model_copy(update={"entries": [*dumps[1].entries[:1], message]})
    assert _found(dumps).behind == []  # rank 1 waits for a message, too


def test_a_device_that_ended_less_than_its_peers_is_named_though_it_enqueued_as_much() -> None:
    behind = [_ended(1), *(_entry(seq) for seq in range(2, 9))]
    ahead = [*(_ended(seq) for seq in range(1, 5)), *(_entry(seq) for seq in range(5, 9))]
    found = _found(_dumps({"0": [0, 1]}, {0: ahead, 1: behind}))
    assert (found.unfinished, found.behind, found.seq) == ([1], [], 2)
    assert found.text.startswith("rank 1 did not end collective 2 of group 0")
    one = _dumps({"0": [0, 1]}, {0: [_ended(1), _ended(2), _entry(3)], 1: behind})
    assert _found(one).unfinished == []  # of two ranks, a single collective proves nothing


@pytest.mark.parametrize(
    ("more", "what"),
    [
        ({"input_sizes": [[5]]}, "shape"),
        ({"input_dtypes": ["Half"]}, "dtype"),
        ({"op": "barrier"}, "op"),
    ],
)
def test_who_alone_calls_otherwise_is_named(more: dict[str, Any], what: str) -> None:
    odd = _entry(3, **more)
    rows = {rank: [odd if rank == 2 else _entry(3)] for rank in range(4)}
    found = _found(_dumps({"0": [0, 1, 2, 3]}, rows))
    assert (found.disagree, found.only) == (what, 2)
    assert "rank 2: " in found.text
    two = {rank: [odd if rank > 1 else _entry(3)] for rank in range(4)}
    assert _found(_dumps({"0": [0, 1, 2, 3]}, two)).only is None


def test_one_rank_against_three_that_wait_for_it_is_named_and_one_against_one_is_not() -> None:
    def crossed(few: list[int]) -> Standing:
        groups = {"few": few, "all": [0, 1, 2, 3, 4]}
        rows = {}
        for rank in range(5):
            own = [_ended(1, name) for name in groups if rank in groups[name]]
            waits = "few" if rank in few and rank != 0 else "all"
            rows[rank] = [*own, _entry(2, waits)]
        return _found(_dumps(groups, rows))

    assert crossed([0, 1, 2, 3]).only == 0
    assert _named(crossed([0, 1])) == set()


@pytest.mark.parametrize(("age_s", "named"), [(1.0, set()), (QUIET_S + 1, {1})])
def test_a_run_that_still_works_accuses_nobody(age_s: float, named: set[int]) -> None:
    now = 1_800_000_000.0
    at = int((now - age_s) * 1e9)
    rows = {0: [_ended(1, time_created_ns=at), _entry(2, time_created_ns=at)], 1: [_ended(1)]}
    dumps = _dumps({"0": [0, 1]}, rows)
    dumps = {rank: dump.model_copy(update={"ts": now}) for rank, dump in dumps.items()}
    found = _found(dumps)
    assert _named(found) == named
    assert ("still works" in found.text) is not bool(named)


def test_where_older_calls_were_cut_off_nobody_is_named() -> None:
    """Rank 1 enqueued less than rank 0, and each dump holds its newest calls alone."""
    rows = {
        0: [_entry(seq) for seq in range(50, 60)],
        1: [_entry(seq) for seq in range(40, 50)],
    }
    whole = _dumps({"0": [0, 1]}, rows)
    assert _named(_found(whole)) == {1}
    cut = {rank: dump.model_copy(update={"kept": 10}) for rank, dump in whole.items()}
    assert _named(_found(cut)) == set()


def test_the_silent_rank_is_listed_only_where_every_chain_ends_there() -> None:
    groups = {"a": [0, 1, 2], "b": [2, 3, 4]}
    waits = [_ended(1, "a"), _entry(2, "a")]
    rows = {0: waits, 1: waits, 3: [_ended(1, "b"), _entry(2, "b")], 4: [_ended(1, "b")]}
    rows[4] = rows[3]
    found = _found(_dumps(groups, rows), world=5)
    assert (found.silent, found.unanswered, found.behind) == ([2], [2], [])
    assert found.text.endswith("no answer from rank 2, and all others wait")
    rows[4] = [_ended(1, "b")]  # rank 4 has not come either
    found = _found(_dumps(groups, rows), world=5)
    assert (found.silent, found.behind) == ([], [4])
    rows[4] = []  # nobody knows whether rank 4 waits
    assert _found(_dumps(groups, rows), world=5).silent == []
