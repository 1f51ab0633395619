"""Torch's own records are read, as JSON and as a pickle; nothing in a pickle is called."""

import json
import pickle
from pathlib import Path
from typing import Any

import pytest

from gonogo.contract.observation import Dump
from gonogo.supervise.evidence.collectives import analyse
from gonogo.supervise.evidence.flight_records import read_record
from tests.supervise.evidence.nccl_runs import WORLD, Plan, simulate


def _torch(dump: Dump) -> dict[str, Any]:
    """Return a dump as torch has it: tuples, ranks as text, None for no time."""
    return {
        "version": "2.10",
        "pg_config": {
            name: {"name": name, "desc": "undefined", "ranks": str(ranks)}
            for name, ranks in dump.groups.items()
        },
        "pg_status": {"0": {"last_enqueued_collective": 3, "last_completed_collective": 2}},
        "entries": [
            {
                "record_id": number,
                "pg_id": 0,
                **entry.model_dump(),
                "process_group": tuple(entry.process_group),
                "time_discovered_started_ns": None,
                "frames": [{"name": "step", "filename": "train.py", "line": 3}],
            }
            for number, entry in enumerate(dump.entries)
        ],
    }


@pytest.mark.parametrize("protocol", [0, 2, 5])
def test_a_pickle_and_its_json_say_the_same(protocol: int) -> None:
    dump = simulate(Plan(seed=1, fault="sleep", kept=4))[3]
    found = read_record(pickle.dumps(_torch(dump), protocol), 3, 7.0)
    assert found is not None
    assert (found.rank, found.ts, found.groups) == (3, 7.0, dump.groups)
    assert found.entries == dump.entries
    again = read_record(json.dumps(_torch(dump)).encode(), 3, 7.0)
    assert again == found


def test_torch_s_pickles_name_who_sleeps() -> None:
    dumps = simulate(Plan(seed=2, fault="sleep", guilty=(9,)))
    read = {rank: read_record(pickle.dumps(_torch(dump), 2), rank) for rank, dump in dumps.items()}
    found = analyse({rank: dump for rank, dump in read.items() if dump is not None}, WORLD)
    assert found is not None
    assert found.behind == [9]


class _Calls:
    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self._path,)


@pytest.mark.parametrize("protocol", range(6))
def test_a_pickle_that_calls_something_is_refused(tmp_path: Path, protocol: int) -> None:
    raw = pickle.dumps({"entries": [_Calls(tmp_path / "called")], "pg_config": {}}, protocol)
    assert read_record(raw, 0) is None
    assert not (tmp_path / "called").exists()


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{",
        b"{}",
        b"\x80\x02}q\x00",
        b"\x80\x02cos\nsystem\n.",
        b"\x80\x02N.",
        b"\x80\x04\x8c\xff.",
        pickle.dumps({"entries": 3, "pg_config": {}}),
        pickle.dumps({"entries": [3], "pg_config": {}}),
        pickle.dumps({"entries": [], "pg_config": {"0": {"ranks": "__import__('os')"}}}),
        pickle.dumps({"entries": [], "pg_config": {"0": {"ranks": "[" * 5000}}}),
    ],
)
def test_what_is_no_record_is_none(raw: bytes) -> None:
    assert read_record(raw, 0) is None
