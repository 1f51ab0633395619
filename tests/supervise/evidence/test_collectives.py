"""The rank that the others wait for is named, and an innocent rank never is.

The gloo dumps in tests/data/collectives are real, cut to their last calls. desync2, desync4: rank 1
enters one more all-reduce, in a second group of all ranks. hang2: rank 1 stands in front of its
backward pass. order2: rank 0 reduces where rank 1 broadcasts. The NCCL runs are simulated.
"""

import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gonogo.contract.observation import Dump, Entry, Standing, parse_dump
from gonogo.supervise.evidence.collectives import QUIET_S, analyse
from tests.supervise.evidence.nccl_runs import FAULTS, WORLD, Plan, simulate

DATA = Path(__file__).parents[2] / "data" / "collectives"
SEEDS = range(9, 17)
"""The runs of each fault."""


def entry(seq: int, group: str = "0", op: str = "all_reduce", **more: Any) -> Entry:
    """Return a pending call."""
    said = {"input_sizes": [[4]], "input_dtypes": ["Float"], "state": "scheduled", **more}
    backend = said.pop("backend", "nccl")
    names = {"process_group": [group, "undefined"], "profiling_name": f"{backend}:{op}"}
    return Entry(collective_seq_id=seq, **names, **said)


def ended(seq: int, group: str = "0", **more: Any) -> Entry:
    return entry(seq, group, retired=True, **{"state": "completed", **more})


def gloo(entries: list[Entry]) -> list[Entry]:
    return [row.model_copy(update={"profiling_name": f"gloo:{row.op}"}) for row in entries]


def dumps_of(groups: dict[str, list[int]], entries: dict[int, list[Entry]]) -> dict[int, Dump]:
    return {
        rank: Dump(
            rank=rank,
            groups={name: ranks for name, ranks in groups.items() if rank in ranks},
            entries=rows,
        )
        for rank, rows in entries.items()
    }


def analysed(dumps: dict[int, Dump], world: int | None = None) -> Standing:
    found = analyse(dumps, world or len(dumps))
    assert found is not None
    return found


def named(found: Standing | None) -> set[int]:
    if found is None:
        return set()
    only = set() if found.only is None else {found.only}
    return only | {*found.behind} | {*found.unfinished}


def recorded(name: str) -> dict[int, Dump]:
    files = sorted((DATA / name).glob("collectives_rank*.json"))
    dumps = [parse_dump(file.read_bytes()) for file in files]
    return {dump.rank: dump for dump in dumps if dump is not None}


@pytest.mark.parametrize(
    ("name", "only", "behind", "missing", "text"),
    [
        (
            "desync2",
            1,
            [],
            [0],
            "rank 1 alone entered collective 1 of group 1 (all_reduce 1 Float)",
        ),
        ("desync4", 1, [], [0, 2, 3], "rank 1 alone entered collective 1 of group 1 (all_reduce"),
        ("hang2", None, [1], [1], "rank 0 entered collective"),
        (
            "order2",
            None,
            [],
            [],
            "collective 4 of group 0 (default_pg): the calls disagree in op: ",
        ),
    ],
)
def test_recorded_dumps_of_gloo_name_who_strayed(
    name: str, only: int | None, behind: list[int], missing: list[int], text: str
) -> None:
    dumps = recorded(name)
    found = analysed(dumps)
    assert (found.only, found.behind, found.missing) == (only, behind, missing)
    assert found.text.startswith(text)
    assert found == analysed(dict(reversed(dumps.items())))


def test_without_the_answer_of_every_rank_gloo_names_nobody() -> None:
    dumps = recorded("desync4")
    del dumps[2]
    found = analysed(dumps, 4)
    assert (named(found), found.unanswered) == (set(), [2])
    assert "no answer from rank 2" in found.text


def test_of_two_that_stand_alone_the_one_in_the_least_used_group_strayed() -> None:
    rows = {0: gloo([ended(3), entry(4)]), 1: gloo([ended(3), entry(1, "1")])}
    assert analysed(dumps_of({}, rows)).only == 1


_ENTRIES = st.lists(
    st.builds(
        entry,
        st.integers(0, 6),
        group=st.sampled_from(["0", "1", "2"]),
        op=st.sampled_from(["all_reduce", "broadcast"]),
        retired=st.booleans(),
        time_created_ns=st.integers(0, 9),
        backend=st.just("gloo"),
    ),
    max_size=6,
)


@given(st.lists(_ENTRIES, min_size=1, max_size=4))
def test_any_dumps_give_an_answer_that_holds_together(ranks: list[list[Entry]]) -> None:
    dumps = dumps_of({}, dict(enumerate(ranks)))
    found = analyse(dumps, len(ranks))
    assert found == analyse(dict(reversed(dumps.items())), len(ranks))
    if found is None:
        assert not any(ranks)
        return
    assert not set(found.entered) & set(found.missing)
    if found.only is not None and found.disagree is None:
        assert found.entered == [found.only]
        assert found.missing
        assert all(any(row.stands for row in entries) for entries in ranks)


@st.composite
def _hangs(draw: st.DrawFn) -> tuple[dict[int, Dump], list[int]]:
    """Ranks that have ended as many collectives, and entered more, except those that are late."""
    world = draw(st.integers(2, 8))
    late = draw(st.sets(st.integers(0, world - 1), min_size=1, max_size=world - 1))
    told = [ended(seq) for seq in range(1, draw(st.integers(1, 5)) + 1)]
    more = [entry(len(told) + 1 + number) for number in range(draw(st.integers(1, 3)))]
    rows = {rank: gloo(told if rank in late else told + more) for rank in range(world)}
    return dumps_of({"0": list(range(world))}, rows), sorted(late)


@given(_hangs(), st.data())
def test_who_has_not_come_is_behind_unless_it_waits_itself(
    hang: tuple[dict[int, Dump], list[int]], data: st.DataObject
) -> None:
    dumps, late = hang
    assert analysed(dumps).behind == late
    rank, other = data.draw(st.sampled_from(late)), data.draw(st.sampled_from(sorted(dumps)))
    told = dumps[rank].entries
    spoilt = {
        "in a message": [*told, entry(1, "9", is_p2p=True)],
        "elsewhere": [*told, entry(1, "9", op="broadcast")],
        "another shape": [*told, entry(len(told) + 1, input_sizes=[[5]])],
    }
    how = data.draw(st.sampled_from(sorted(spoilt)))
    changed = {**dumps, rank: dumps[rank].model_copy(update={"entries": gloo(spoilt[how])})}
    found = analyse(changed, len(dumps))
    assert found is None or rank not in found.behind, how
    missing = analyse({row: dump for row, dump in dumps.items() if row != other}, len(dumps))
    assert missing is None or missing.behind == []


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
        kept=chance.choice([8, 16, 64, 256]),
        mute=tuple(chance.sample(innocent, chance.randint(1, 3))) if mute else (),
    )


@pytest.mark.parametrize(
    ("fault", "least"),
    [
        ("healthy", 0), ("kernel", 0), ("device", 8), ("sleep", 8), ("gil", 0), ("died", 0),
        ("skip", 4), ("extra", 2), ("shape", 2), ("dtype", 5), ("op", 5),
    ],
    ids=FAULTS,
)  # fmt: skip
def test_whom_records_of_nccl_name_is_guilty(fault: str, least: int) -> None:
    """`least`: in so many of the runs a rank is named, at the least."""
    told, guilty_of = 0, {"healthy": set[int]()}
    for seed in SEEDS:
        plan = _plan(fault, seed)
        found = analyse(simulate(plan), WORLD)
        accused = named(found)
        assert accused <= guilty_of.get(fault, {*plan.guilty}), (plan, found)
        told += bool(accused)
    for seed in range(2):  # innocent ranks do not answer
        plan = _plan(fault, 1000 + seed, mute=True)
        found = analyse(simulate(plan), WORLD)
        assert named(found) <= guilty_of.get(fault, {*plan.guilty}), (plan, found)
    assert told >= least, told


def test_a_chain_of_waiting_ranks_is_followed_to_its_root() -> None:
    """Rank 0 waits for 2 in the pipeline, rank 2 for 3 in its tensor group; 3 has not come."""
    groups = {"tensor0": [0, 1], "tensor1": [2, 3], "data0": [0, 2], "data1": [1, 3]}
    rows = {
        0: [ended(1, "tensor0"), ended(1, "data0"), entry(2, "data0")],
        1: [ended(1, "tensor0"), ended(1, "data1"), entry(2, "data1")],
        2: [ended(1, "tensor1"), ended(1, "data0"), entry(2, "tensor1")],
        3: [ended(1, "tensor1"), ended(1, "data1")],
    }
    for each in (rows, {rank: gloo(row) for rank, row in rows.items()}):
        found = analysed(dumps_of(groups, each))
        assert (found.behind, found.only, found.unfinished) == ([3], None, [])
        assert "rank 3 did not" in found.text


def test_who_waits_for_a_message_is_not_named() -> None:
    rows = {1: [ended(1), entry(2)], 2: [ended(1)]}
    assert analysed(dumps_of({"0": [1, 2]}, rows), 3).behind == [2]
    rows[2].append(entry(0, op="recv 1<-0", is_p2p=True))
    assert analysed(dumps_of({"0": [1, 2]}, rows), 3).behind == []


def test_a_device_that_ended_less_than_its_peers_is_named_though_it_enqueued_as_much() -> None:
    behind = [ended(1), *(entry(seq) for seq in range(2, 9))]
    ahead = [*(ended(seq) for seq in range(1, 5)), *(entry(seq) for seq in range(5, 9))]
    found = analysed(dumps_of({"0": [0, 1]}, {0: ahead, 1: behind}))
    assert (found.unfinished, found.behind, found.seq) == ([1], [], 2)
    assert found.text.startswith("rank 1 did not end collective 2 of group 0")
    one = dumps_of({"0": [0, 1]}, {0: [ended(1), ended(2), entry(3)], 1: behind})
    assert analysed(one).unfinished == []  # of two ranks, a single collective proves nothing


@pytest.mark.parametrize(
    ("more", "what"),
    [
        ({"input_sizes": [[5]]}, "shape"),
        ({"input_dtypes": ["Half"]}, "dtype"),
        ({"op": "barrier"}, "op"),
    ],
)
@pytest.mark.parametrize("backend", ["nccl", "gloo"])
def test_who_alone_calls_otherwise_is_named(more: dict[str, Any], what: str, backend: str) -> None:
    odd, even = entry(3, backend=backend, **more), entry(3, backend=backend)
    rows = {rank: [odd if rank == 2 else even] for rank in range(4)}
    found = analysed(dumps_of({"0": [0, 1, 2, 3]}, rows))
    assert (found.disagree, found.only, found.entered) == (what, 2, [0, 1, 2, 3])
    assert "rank 2: " in found.text
    two = {rank: [odd if rank > 1 else even] for rank in range(4)}
    assert analysed(dumps_of({"0": [0, 1, 2, 3]}, two)).only is None


@pytest.mark.parametrize(
    ("op", "what"),
    [("gather", None), ("all_to_all", None), ("scatter", None)]
    + [(op, "shape") for op in ("all_gather", "_allgather_base", "reduce_scatter", "all_reduce")],
)
def test_shapes_may_differ_only_where_the_operation_allows_it(op: str, what: str | None) -> None:
    rows = {0: [entry(1, op=op)], 1: [entry(1, op=op, input_sizes=[[9]])]}
    assert analysed(dumps_of({}, rows)).disagree == what


@pytest.mark.parametrize(("age_s", "accused"), [(1.0, set()), (QUIET_S + 1, {1})])
def test_a_run_that_still_works_accuses_nobody(age_s: float, accused: set[int]) -> None:
    now = 1_800_000_000.0
    at = int((now - age_s) * 1e9)
    rows = {0: [ended(1, time_created_ns=at), entry(2, time_created_ns=at)], 1: [ended(1)]}
    dumps = dumps_of({"0": [0, 1]}, rows)
    dumps = {rank: dump.model_copy(update={"ts": now}) for rank, dump in dumps.items()}
    found = analysed(dumps)
    assert named(found) == accused
    assert ("still works" in found.text) is not bool(accused)


def test_where_older_calls_may_be_cut_off_nobody_is_named() -> None:
    """Rank 1 enqueued less than rank 0, and no dump holds a call that has ended."""
    rows = {0: [entry(seq) for seq in range(50, 60)], 1: [entry(seq) for seq in range(40, 50)]}
    assert named(analysed(dumps_of({"0": [0, 1]}, rows))) == set()
