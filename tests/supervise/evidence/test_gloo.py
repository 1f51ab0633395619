"""The dumps in tests/data/collectives are real: gloo ranks on one machine, cut to their last calls.

desync2, desync4: rank 1 enters one more all-reduce, in a second group of all ranks. hang2: rank 1
stands in front of its backward pass. order2: rank 0 reduces where rank 1 broadcasts.
"""

import itertools
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gonogo.contract.collectives import Dump, Entry, Standing, parse_dump
from gonogo.supervise.evidence.collectives import analyse

DATA = Path(__file__).parents[2] / "data" / "collectives"


def _recorded(name: str) -> dict[int, Dump]:
    files = sorted((DATA / name).glob("collectives_rank*.json"))
    dumps = [parse_dump(file.read_bytes()) for file in files]
    return {dump.rank: dump for dump in dumps if dump is not None}


def _found(dumps: dict[int, Dump], world_size: int | None = None) -> Standing:
    found = analyse(dumps, len(dumps) if world_size is None else world_size)
    assert found is not None
    return found


def _entry(seq: int, *, group: str = "0", op: str = "all_reduce", **more: Any) -> Entry:
    said = {"input_sizes": [[4]], "input_dtypes": ["Float"], "retired": False, **more}
    return Entry(
        collective_seq_id=seq, process_group=[group, ""], profiling_name=f"gloo:{op}", **said
    )


def _dumps(*ranks: list[Entry]) -> dict[int, Dump]:
    return {rank: Dump(rank=rank, entries=entries) for rank, entries in enumerate(ranks)}


@pytest.mark.parametrize(("name", "others"), [("desync2", [0]), ("desync4", [0, 2, 3])])
def test_a_rank_in_a_collective_of_its_own_is_named(name: str, others: list[int]) -> None:
    found = _found(_recorded(name))
    assert (found.only, found.group, found.seq, found.op) == (1, "1", 1, "all_reduce")
    assert (found.entered, found.missing, found.disagree) == ([1], others, None)
    assert found.behind == []
    assert found.text.startswith(
        "rank 1 alone entered collective 1 of group 1 (all_reduce 1 Float)"
    )


def test_a_rank_that_has_not_come_yet_leaves_nobody_alone() -> None:
    found = _found(_recorded("hang2"))
    assert (found.only, found.entered, found.missing) == (None, [0], [1])
    assert (found.behind, found.op) == ([1], "all_reduce")
    assert "rank 1 did not" in found.text


def test_ranks_that_call_different_things_are_told_apart() -> None:
    found = _found(_recorded("order2"))
    assert (found.disagree, found.only, found.seq) == ("op", None, 4)
    assert "rank 0: all_reduce 4 Float, rank 1: broadcast 4 Float" in found.text


@pytest.mark.parametrize(
    ("more", "what"),
    [({"input_sizes": [[6]]}, "shape"), ({"input_dtypes": ["Half"]}, "dtype")],
)
def test_shapes_and_dtypes_that_disagree_are_named(more: dict[str, Any], what: str) -> None:
    found = _found(_dumps([_entry(7)], [_entry(7, **more)]))
    assert (found.disagree, found.seq, found.entered) == (what, 7, [0, 1])


@pytest.mark.parametrize(
    ("op", "what"), [("gather", None), ("all_to_all", None), ("all_gather", "shape")]
)
def test_shapes_may_differ_only_where_the_operation_allows_it(op: str, what: str | None) -> None:
    dumps = _dumps([_entry(1, op=op)], [_entry(1, op=op, input_sizes=[[9]])])
    assert _found(dumps).disagree == what


def test_without_the_answer_of_every_rank_nobody_is_alone() -> None:
    dumps = _recorded("desync4")
    del dumps[2]
    found = _found(dumps, 4)
    assert (found.only, found.unanswered) == (None, [2])
    assert "no answer from rank 2" in found.text


def test_a_rank_outside_of_a_group_is_not_missing_from_it() -> None:
    dumps = {
        rank: Dump(rank=rank, groups={"5": [0, 1]}, entries=[_entry(1, group="5")][: rank < 1])
        for rank in (0, 1, 2)
    }
    dumps[2] = Dump(rank=2, groups={"0": [0, 1, 2]}, entries=[_entry(1)])
    dumps[1] = Dump(rank=1, groups={"5": [0, 1]}, entries=[_entry(1)])
    found = _found(dumps)
    assert (found.only, found.group, found.missing) == (0, "5", [1])


def test_of_two_that_stand_alone_the_one_in_the_group_that_was_used_the_least_strayed() -> None:
    found = _found(_dumps([_entry(5)], [_entry(1, group="1")]))
    assert (found.only, found.group) == (1, "1")
    young, old = _entry(5, time_created_ns=9), _entry(5, group="1", time_created_ns=1)
    assert _found(_dumps([young], [old])).only == 1
    assert _found(_dumps([old], [young])).only == 0


_ENTRIES = st.lists(
    st.builds(
        _entry,
        st.integers(0, 6),
        group=st.sampled_from(["0", "1", "2"]),
        op=st.sampled_from(["all_reduce", "broadcast"]),
        retired=st.booleans(),
        time_created_ns=st.integers(0, 9),
    ),
    max_size=6,
)


@given(st.lists(_ENTRIES, min_size=1, max_size=4))
def test_any_dumps_give_an_answer_that_holds_together(ranks: list[list[Entry]]) -> None:
    dumps = _dumps(*ranks)
    found = analyse(dumps, len(ranks))
    assert found == analyse(dict(reversed(dumps.items())), len(ranks))
    if found is None:
        assert not any(ranks)
        return
    assert not set(found.entered) & set(found.missing)
    if found.only is not None:
        assert found.entered == [found.only]
        assert found.missing
        assert all(any(entry.stands for entry in entries) for entries in ranks)


def _hung(world: int, late: set[int], ended: int, ahead: int) -> dict[int, Dump]:
    """Ranks that have ended as many collectives, and entered more, but for those that are late."""
    told = [_entry(seq, retired=True) for seq in range(1, ended + 1)]
    more = [_entry(ended + 1 + number) for number in range(ahead)]
    groups = {"0": list(range(world))}
    return {
        rank: Dump(rank=rank, groups=groups, entries=told if rank in late else told + more)
        for rank in range(world)
    }


@st.composite
def _hangs(draw: st.DrawFn) -> tuple[dict[int, Dump], list[int]]:
    world = draw(st.integers(2, 8))
    most = max(1, (world - 1) // 2)
    late = draw(st.sets(st.integers(0, world - 1), min_size=1, max_size=most))
    return _hung(world, late, draw(st.integers(1, 5)), draw(st.integers(1, 3))), sorted(late)


@given(_hangs())
def test_who_has_not_come_to_where_all_others_stand_is_behind(
    hang: tuple[dict[int, Dump], list[int]],
) -> None:
    dumps, late = hang
    assert _found(dumps).behind == late


@given(_hangs(), st.data())
def test_where_a_dump_is_missing_cut_or_says_otherwise_nobody_is_behind(
    hang: tuple[dict[int, Dump], list[int]], data: st.DataObject
) -> None:
    dumps, late = hang
    rank, other = data.draw(st.sampled_from(late)), data.draw(st.sampled_from(sorted(dumps)))
    waits = next(row for row in sorted(dumps) if row not in late)

    def with_entries(of: int, entries: list[Entry]) -> dict[int, Dump]:
        return {**dumps, of: dumps[of].model_copy(update={"entries": entries})}

    told, first = dumps[rank].entries, dumps[waits].entries[len(dumps[rank].entries)]
    spoilt = {
        "missing": {row: dump for row, dump in dumps.items() if row != other},
        "empty": with_entries(other, []),
        "cut": with_entries(rank, [*told[:-1], _entry(1, group="9", retired=True)]),
        "in a message": with_entries(rank, [*told, _entry(1, group="9", is_p2p=True)]),
        "elsewhere": with_entries(rank, [*told, _entry(1, group="9", op="broadcast")]),
        "ended": with_entries(waits, [*told, first.model_copy(update={"retired": True})]),
        "another shape": with_entries(rank, [*told, _entry(len(told) + 1, input_sizes=[[5]])]),
    }
    how = data.draw(st.sampled_from(sorted(spoilt)))
    found = analyse(spoilt[how], len(dumps))
    assert found is None or found.behind == [], how


def _grid(*calls: tuple[str, list[int], list[int]], world: int) -> dict[int, Dump]:
    """Ranks of several groups: name of a group, its ranks, those that have entered its second."""
    groups = {name: ranks for name, ranks, _ in calls}
    entries: dict[int, list[Entry]] = {rank: [] for rank in range(world)}
    for name, ranks, entered in calls:
        for rank in ranks:
            entries[rank].append(_entry(1, group=name, retired=True))
            entries[rank] += [_entry(2, group=name)] * (rank in entered)
    return {
        rank: Dump(rank=rank, groups={k: v for k, v in groups.items() if rank in v}, entries=rows)
        for rank, rows in entries.items()
    }


def test_who_waits_for_one_that_waits_is_not_behind() -> None:
    """Two groups of tensors, two of data: rank 3 came to neither of its two."""
    tensors: list[tuple[str, list[int], list[int]]] = [("t0", [0, 1], []), ("t1", [2, 3], [2])]
    data = ("d0", [0, 2], [0]), ("d1", [1, 3], [1])
    assert _found(_grid(*tensors, *data, world=4)).behind == [3]


@pytest.mark.parametrize("order", list(itertools.permutations(range(4)))[:6])
def test_the_order_in_which_dumps_came_changes_nothing(order: tuple[int, ...]) -> None:
    dumps = _recorded("desync4")
    assert analyse({rank: dumps[rank] for rank in order}, 4) == analyse(dumps, 4)
