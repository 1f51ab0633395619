"""Are gates, selection and hot spots read as the trainer wrote them, torn or odd files included?"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from service.report.health import (
    MAX_LAYERS,
    MAX_SERVED,
    LayerColumn,
    Served,
    lines_of,
    read_layers,
    read_served,
)
from service.report.phases import gate_parts, profile_parts, unseen_of
from service.report.profile import MAX_LINE_CHARS, MAX_TEXT_LINES, Profile, read_profile
from tests.service.report.views import order_of, run_report

GATES = [
    "step,layer,entropy,max_share",
    "1,0,0.9,0.4",
    "1,1,0.8,0.5",
    "2,0,0.7,0.6",
    "2,1,0.1,0.95",
]
KEPT = ["step,layer,distance_blocks,distinct_share,kept_share", "1,0,6.2,0.8,0.5"]


def test_every_layer_has_its_first_last_least_and_most() -> None:
    found = read_layers([GATES, KEPT])
    assert [row.layer for row in found] == [0, 1]
    assert found[1].columns["entropy"] == LayerColumn(
        first=0.8, last=0.1, low=0.1, high=0.8, steps=2
    )
    assert found[0].columns["kept_share"].last == 0.5
    assert "kept_share" not in found[1].columns


def test_of_a_file_without_lines_nothing_is_held_in_memory(tmp_path: Path) -> None:
    """Whoever trains makes a hole of any size, and the service reads the file for a report."""
    path = tmp_path / "gate_health.csv"
    path.write_text("\n".join(GATES) + "\n")
    with path.open("rb") as stream:
        assert [line.rstrip() for line in lines_of(stream)] == GATES
    with path.open("r+b") as stream:
        stream.truncate(2**26)
    with path.open("rb") as stream, open(os.dup(stream.fileno()), "rb") as same:
        assert [line.rstrip() for line in lines_of(stream)] == GATES
        assert os.lseek(same.fileno(), 0, os.SEEK_CUR) < 2**20, "nor read"


def test_no_more_layers_and_ways_are_told_than_a_reader_has_use_for() -> None:
    """A file of a few MB named 400,000 layers: its table took the service's memory for itself."""
    many = [f"1,{layer},0.5" for layer in range(2 * MAX_LAYERS)]
    last = f"2,{MAX_LAYERS - 1},0.25"
    found = read_layers([["step,layer,entropy", *many, last]])
    assert [row.layer for row in found] == list(range(MAX_LAYERS))
    assert found[-1].columns["entropy"].last == 0.25
    ways = (f"attention,path {number},,1" for number in range(2 * MAX_SERVED))
    served = read_served(["operation,path,reason,calls", *ways])
    assert len(served) == MAX_SERVED


def test_rows_that_are_none_are_left_out_and_the_later_row_of_a_step_counts() -> None:
    odd = [*GATES, "step,layer,entropy,max_share", "2,0,0.65,0.6", "3,0,nan,", "x,0,1,1", "4,0"]
    assert read_layers([odd])[0].columns["entropy"] == LayerColumn(
        first=0.9, last=0.65, low=0.65, high=0.9, steps=2
    )
    assert read_layers([[], ["nothing here"], iter(())]) == ()


def test_a_line_that_no_reader_takes_ends_the_file_and_not_the_report() -> None:
    assert (
        read_layers([[*GATES[:2], '3,0,"' + "x" * 200_000 + '",1']])[0].columns["entropy"].steps
        == 1
    )


def test_which_path_served_is_sorted_by_how_often() -> None:
    lines = [
        "operation,path,reason,calls",
        "window,torch,,6",
        'prefix,pieces,"no, CUDA",9',
        "a,b,c,d",
    ]
    assert read_served(lines) == (
        Served(operation="prefix", path="pieces", reason="no, CUDA", calls=9),
        Served(operation="window", path="torch", reason="", calls=6),
    )


def test_the_report_tells_gates_layer_by_layer() -> None:
    run = run_report(layers=read_layers([GATES, KEPT]), served=read_served([]))
    text = "\n".join(gate_parts(run))
    assert "| 0 | 0.7 (0.7) | 0.6 (0.6) | 6.2 | 80.0 % | 50.0 % |" in text
    assert "| 1 | 0.1 (0.1) | 0.95 (0.95) | – | – | – |" in text
    assert gate_parts(run_report()) == []


def test_hot_spots_are_a_table() -> None:
    document = {
        "steps": [3, 4], "sections": {"forward": 1.5},
        "hot_spots": [{"name": "aten::mm", "calls": 4, "self_cpu_s": 0.25, "share": 0.4}],
    }  # fmt: skip
    run = run_report(profile=read_profile(json.dumps(document).encode(), b"text"))
    text = "\n".join(profile_parts(run))
    assert "Steps 3 to 4" in text
    assert "| `aten::mm` | 4 | 0.25 s | 0 s | 40.0 % |" in text
    assert "Sections: forward 1.5 s." in text
    assert not any("hot spots" in row for row in unseen_of(run))


@pytest.mark.parametrize("table", [None, b"", b"{", b"[]", b'{"hot_spots": 1}'])
def test_without_a_table_its_text_is_shown(table: bytes | None) -> None:
    found = read_profile(table, b"one\ntwo")
    assert found == Profile(text="one\ntwo")
    assert "```\none\ntwo\n```" in profile_parts(run_report(profile=found))
    assert read_profile(table, None) is None
    assert read_profile(table, b"  \n") is None


def test_a_long_text_is_cut_and_says_so() -> None:
    found = read_profile(None, b"x\n" * 1_000)
    assert found is not None
    assert found.text.splitlines()[MAX_TEXT_LINES:] == ["…"]
    wide = read_profile(None, b"x" * 2**20 + b"\nlast")
    assert wide == Profile(text="x" * MAX_LINE_CHARS + "\nlast")


def test_of_many_sections_some_are_shown() -> None:
    document = {"sections": {f"s{number}": 1.5 for number in range(100_000)}}
    run = run_report(profile=read_profile(json.dumps(document).encode(), None))
    text = "\n".join(profile_parts(run))
    assert "s0 1.5 s" in text
    assert len(text) < 1000


def test_what_is_not_there_says_why() -> None:
    run = run_report()
    assert unseen_of(run) == [
        "selection by layer: no k_stats.csv here (its files lie on gpu-7)",
        "hot spots: no profile.json or profile.txt here (its files lie on gpu-7)",
    ]
    other = order_of().model_copy(update={"entry": "train.py"})
    assert not any("selection" in row for row in unseen_of(run_report(other)))
    quiet = order_of().model_copy(update={"train": {"engine": {"profile_steps": 0}}})
    assert (
        "hot spots: no profile was asked for (train.engine.profile_steps is 0)"
        in unseen_of(run_report(quiet))[1]
    )
