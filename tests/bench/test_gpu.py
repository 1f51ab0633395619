"""What `python -m bench.gpu` decides, and its stages really run, tiny, where there is no GPU."""

import dataclasses
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

from bench import gpu
from bench.on_gpu.figures import break_even, pairs
from bench.on_gpu.plan import (
    GRACE_S,
    LEAST_S,
    STAGES,
    TOTAL_S,
    Stage,
    allowance_s,
    exit_code,
)
from bench.on_gpu.report import report
from bench.on_gpu.rows import Context, begun, read_rows

ROOT = Path(__file__).parents[2]
CPU = torch.device("cpu")
needs_triton = pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed")


def test_the_command_ends_within_nine_minutes_and_drops_the_least_valuable_first() -> None:
    spent_s, limits = 0.0, {}
    for stage in STAGES:  # every stage takes all that it may
        limits[stage.name] = allowance_s(stage, spent_s)
        spent_s += limits[stage.name] + (GRACE_S if limits[stage.name] else 0.0)
    assert spent_s <= TOTAL_S + GRACE_S < 540
    assert limits["machine"] == 35
    assert limits["correctness"] == 90
    assert limits["attention"] == 120
    assert limits["other_dtypes"] == 0.0


@pytest.mark.parametrize(
    ("spent_s", "expected"),
    [(0.0, 60.0), (500.0, 25.0), (519.0, 6.0), (519.5, 0.0)],
)
def test_a_stage_gets_what_is_left_or_is_not_begun(spent_s: float, expected: float) -> None:
    assert allowance_s(Stage(name="x", limit_s=60), spent_s) == expected
    assert expected == 0.0 or expected >= LEAST_S


def _row(name: str, right: object) -> dict[str, object]:
    return {"row": "correctness", "name": name, "right": right}


@pytest.mark.parametrize(
    ("rows", "code"),
    [
        ([_row("a", True), _row("b", True)], 0),
        ([_row("a", True), _row("b", True), {"row": "attention", "error": "no"}], 0),
        ([_row("a", True)], 1),
        ([], 1),
        ([_row("a", True), _row("b", False)], 1),
        ([_row("a", True), _row("b", None)], 1),
        ([_row("a", False), _row("a", True), _row("b", True)], 1),
        ([_row("a", True), _row("b", True), _row("c", False)], 1),
    ],
    ids=[
        "held", "speed does not matter", "one was not made", "nothing", "wrong", "no word",
        "wrong and right", "wrong though not planned",
    ],
)  # fmt: skip
def test_the_exit_code_is_about_correctness_alone(rows: list[dict[str, object]], code: int) -> None:
    assert exit_code(rows, ["a", "b"]) == code


def test_break_even_is_where_the_ratio_last_rises_through_one() -> None:
    assert break_even({2048: 0.5, 8192: 2.0})["at"] == 4096
    assert break_even({2048: 0.5, 4096: 1.2, 8192: 0.9, 16384: 1.6})["at"] == pytest.approx(
        8192 * 2 ** (0.10536 / 0.57536), rel=1e-3
    )
    assert break_even({1024: 1.0, 2048: 3.0}) == {
        "at": None, "words": "faster from 1024 on, the shortest measured"
    }  # fmt: skip
    assert (
        break_even({1024: 2.0, 2048: 0.9})["words"] == "not faster up to 2048, the longest measured"
    )
    assert break_even({})["words"] == "not measured"


@pytest.mark.parametrize("S", [1, 40, 200])
def test_counted_pairs_are_those_of_the_equations(S: int) -> None:
    l, d, l_sel, n_sel, w = 8, 4, 16, 4, 20  # noqa: E741
    wanted = dict.fromkeys(("compressed", "own", "gathered", "window", "dense"), 0)
    for t in range(S):
        c = t // l_sel
        wanted["compressed"] += sum(i * d + l - 1 <= t for i in range(S))
        wanted["window"] += sum(t - w < s <= t for s in range(S))
        wanted["dense"] += t + 1
        if t < n_sel * l_sel:
            wanted["own"] += t + 1
        else:
            wanted["own"] += sum(s // l_sel in (c, c - 1) for s in range(t + 1))
            wanted["gathered"] += (n_sel - 2) * l_sel
    assert pairs(S, l=l, d=d, l_sel=l_sel, n_sel=n_sel, w=w) == wanted


BREAKS_DOWN_AT_B = """
import json, os, sys, time
limits = {"a": 300, "b": 0.5, "c": 300}
file, run, how = sys.argv[1:]
lines = open(file).read().splitlines() if os.path.exists(file) else []
begun = {json.loads(line).get("what") for line in lines}
for what in "abc":
    if what not in begun:
        with open(file, "a") as stream:
            row = {"run": run, "row": "begin", "what": what, "limit_s": limits[what]}
            stream.write(json.dumps(row) + "\\n")
        if what == "b":
            os.abort() if how == "dies" else time.sleep(300)
        with open(file, "a") as stream:
            row = {"run": run, "row": "correctness", "name": what, "right": True}
            stream.write(json.dumps(row) + "\\n")
"""


@pytest.mark.parametrize(("how", "code"), [("dies", -6), ("hangs", -9)])
def test_a_stage_that_a_kernel_takes_down_or_holds_goes_on_with_what_comes_next(
    how: str,
    code: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = tmp_path / "gpu.jsonl"
    command = [sys.executable, "-c", BREAKS_DOWN_AT_B, str(file), "r", how]
    monkeypatch.setattr(gpu, "_command", lambda *_: command)
    monkeypatch.setattr(gpu, "_KILL_S", 60.0)
    planned = "bench.on_gpu.correctness.comparisons"
    monkeypatch.setattr(planned, lambda _device: dict.fromkeys("abc"))
    arguments = ["--device", "cpu", "--out", str(tmp_path), "--run", "r", "--only", "correctness"]
    assert gpu.main(arguments) == 1  # b was not compared
    rows = read_rows(file, "r")
    assert [row["name"] for row in rows if row["row"] == "correctness"] == ["a", "c"]
    assert [(row["code"], row["broke_at"]) for row in rows if row["row"] == "stage"] == [
        (code, "b"), (0, None)
    ]  # fmt: skip
    assert (
        "Stage correctness broke down at: b. It continues without that." in capsys.readouterr().out
    )
    told = file.with_suffix(".md").read_text()
    assert "2 of 3 comparisons held, 0 did not, 1 were not made." in told
    assert f"- stage correctness ended with {code} at: b" in told


def test_an_error_of_one_thing_is_a_row_and_the_next_is_measured(tmp_path: Path) -> None:
    file = tmp_path / "gpu.jsonl"

    def context(**options: Any) -> Context:
        return Context(device=CPU, file=file, run="r", left_s=lambda: 9.0, **options)

    def fails(error: Exception) -> Callable[[], dict[str, Any]]:
        def unit() -> dict[str, Any]:
            raise error

        return unit

    here = context()
    # Triton's errors are no RuntimeErrors.
    here.measure("x", "one", fails(KeyError("out of resources")), right=False)
    here.measure("x", "two", lambda: {"right": True}, right=False)
    here.measure("x", "three", lambda: {}, needed_s=10.0)
    unit = fails(ValueError("an illegal memory access was"))
    with pytest.raises(ValueError, match="illegal memory access"):
        here.measure("x", "four", unit, limit_s=5.0, right=False)
    context(begun=frozenset(begun(read_rows(file, "r")))).measure("x", "four", lambda: {})
    told = [{k: v for k, v in row.items() if k != "run"} for row in read_rows(file, "r")]
    assert told == [
        {"row": "begin", "what": "one", "limit_s": 45.0},
        {"row": "x", "right": False, "error": "KeyError: 'out of resources'"},
        {"row": "begin", "what": "two", "limit_s": 45.0},
        {"row": "x", "right": True},
        {"row": "left_out", "what": "three", "needed_s": 10.0, "left_s": 9.0},
        {"row": "begin", "what": "four", "limit_s": 5.0},
        {"row": "x", "right": False, "error": "ValueError: an illegal memory access was"},
    ]


def test_the_report_tells_what_was_measured_what_failed_and_what_was_left_out() -> None:
    def timed(kernel: str, S: int, ms: float, **more: Any) -> dict[str, Any]:
        return {
            "row": "attention", "kernel": kernel, "direction": "forward", "B": 1, "S": S,
            "eager": {"ms": ms}, "graph": None, **more,
        }  # fmt: skip

    rows = [
        {"row": "environment", "device": "a GPU", "torch": "2.13", "gpus": [{"driver": "570"}]},
        {"row": "ceiling", "of": "copy", "gb_s": 4000},
        {"row": "compiled", "failed": [{"kernel": "band_dq", "error": "PTXASError: no"}]},
        _row("a", True), {**_row("b", False), "out": 0.5, "gradients": 0.25},
        {**_row("c", False), "error": "OutOfResources: shared memory"},
        timed("triton", 2048, 2.0), timed("flash", 2048, 1.0), timed("cudnn", 2048, 4.0),
        timed("torch", 2048, 8.0),
        timed("triton", 8192, 3.0), timed("flash", 8192, 12.0),
        {"row": "attention", "kernel": "cudnn", "direction": "forward", "B": 1, "S": 8192,
         "error": "RuntimeError: no kernel"},
        *({"row": "tile", "kernel": "dkdv", "B": 1, "S": 64, "own": own, "tile": tile, "us": us}
          for own, tile, us in ((True, "the table's", 2.0), (False, "dkdv=Tile()", 1.0),
                                (False, "a slow one", 3.0))),
        {"row": "tile", "kernel": "dkdv", "B": 1, "S": 64, "own": False, "tile": "other",
         "error": "does not fit"},
        {"row": "trainer", "kind": "nsa", "sequences": 2, "compiled": False, "graphs": True,
         "tok_s": 9.0, "step_ms": 8.0, "reserved_mb": 7.0},
        {"row": "left_out", "what": "trainer dense"},
        {"row": "stage", "stage": "tile_sweep", "left_out": True},
    ]  # fmt: skip
    told = report(rows, ["a", "b", "c", "d"]).splitlines()
    for line in (
        "device a GPU, torch 2.13",
        "driver 570",
        "copy: 4000 GB/s",
        "1 of 4 comparisons held, 2 did not, 1 were not made.",
        "- WRONG b: out 0.5, gradients 0.25",
        "- WRONG c: OutOfResources: shared memory",
        "- not made: d",
        "- does not compile: band_dq: PTXASError: no",
        "- attention cudnn forward 1 8192: RuntimeError: no kernel",
        "| S | triton | torch | cudnn | flash | dense / NSA |",
        "| 2048 | 2.0 | 8.0 | 4.0 | 1.0 | 0.50 |",
        "| 8192 | 3.0 | – | – | 12.0 | 4.00 |",
        "- triton against flash, forward, batch 1, eager: faster from about 3251 on",
        "| attention | sequences | compiled | graphs | tokens/s | step ms | reserved MB |",
        "| nsa | 2 | no | yes | 9.0 | 8.0 | 7.0 |",
        "dkdv at 1 x 64: the table's 2.0 µs; 1 of 2 others were faster.",
        "- 2.000 x: `dkdv=Tile()`",
        "- trainer dense",
        "- stage tile_sweep",
    ):
        assert line in told, line
    assert report([], []).endswith("Nothing was compared.")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_a_gpu_nothing_is_claimed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert gpu.main(["--out", str(tmp_path)]) == 3
    assert "nothing was measured" in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Callable[..., list[dict[str, Any]]]]:
    """Run a stage in this process, tiny; returns its rows."""
    import importlib

    threads = torch.get_num_threads()
    torch.set_num_threads(1)

    def run_here(name: str, left_s: float = 60.0) -> list[dict[str, Any]]:
        file = tmp_path / "gpu.jsonl"
        context = Context(device=CPU, file=file, run=name, left_s=lambda: left_s)
        importlib.import_module(f"bench.on_gpu.{name}").run(context)
        return [row for row in read_rows(file, name) if row["row"] != "begin"]

    yield run_here
    torch.set_num_threads(threads)


@needs_triton
def test_the_machine_says_versions_sources_and_ceilings(stage: Any) -> None:
    environment, copy, product = stage("machine")
    assert environment["torch"] == torch.__version__
    assert environment["git"] is None or len(environment["git"]) == 40
    assert len(environment["sources"]) == 64
    assert copy["gb_s"] > 0
    assert product["tflop_s"] >= 0
    assert {copy["row"], product["row"]} == {"ceiling"}


@needs_triton
def test_the_comparisons_that_are_planned_are_made_and_hold_for_the_torch_backend(
    stage: Any,
) -> None:
    from bench.on_gpu.correctness import comparisons

    rows = stage("correctness")
    assert [row["name"] for row in rows] == list(comparisons(CPU))
    assert exit_code(rows, comparisons(CPU)) == 0
    assert {row.get("against") for row in rows} == {"reference", None}


@needs_triton
def test_a_wrong_backend_is_found_and_fails_the_command(
    stage: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from bench.on_gpu.correctness import comparisons
    from nsa.attention.gpu import trial

    right = trial.attend

    def slightly_wrong(backend: str, *given: Any) -> Any:
        out, ids = right(backend, *given)
        return (out * 1.02 if backend == "torch" else out), ids

    monkeypatch.setattr(trial, "attend", slightly_wrong)
    rows = stage("correctness")
    assert exit_code(rows, comparisons(CPU)) == 1
    assert not any(row["right"] for row in rows if row.get("against"))


@needs_triton
def test_on_a_gpu_the_models_own_shapes_and_long_sequences_are_planned() -> None:
    from bench.on_gpu.attention import shapes
    from bench.on_gpu.correctness import comparisons

    planned = list(comparisons(torch.device("cuda")))
    assert planned[0] == "reference B=2 S=2500 H=12 G=2"
    for S in (8192, 32768, 65536):
        assert f"torch B=1 S={S} H=12 G=2" in planned
    assert "itself B=2 S=2500 H=12 G=2" in planned
    timed = [(case.B, case.S, backward) for case, backward in shapes(tiny=False)]
    assert timed[0] == (1, 2048, True)
    assert {S for B, S, _ in timed if B == 1} == {2048 * 2**n for n in range(6)}
    assert all(B * S == 65536 for B, S, _ in timed if B > 1)
    assert len(timed) == len(set(timed)) == 22


@needs_triton
def test_attention_rows_and_break_even_come_of_real_timings(stage: Any) -> None:
    rows = stage("attention")
    timed = [row for row in rows if row["row"] == "attention"]
    assert {(row["kernel"], row["direction"]) for row in timed} == {
        (kernel, direction)
        for kernel in ("torch", "math")
        for direction in ("forward", "forward + backward")
    }
    assert all(row["eager"]["ms"] > 0 for row in timed)
    (both,) = [row for row in rows if row["row"] == "break_even" and row["direction"] != "forward"]
    assert set(both["ratios"]) == {"64", "128"}


@needs_triton
def test_the_trainers_own_steps_are_what_is_measured(stage: Any) -> None:
    rows = stage("trainer_steps")
    assert [(row["kind"], row["sequences"]) for row in rows] == [("nsa", 2), ("dense", 2)]
    for row in rows:
        assert row["tok_s"] == pytest.approx(2 * 64 / row["step_ms"] * 1e3, rel=0.01)
        assert {"forward", "backward", "optimizer"} <= set(row["sections_ms"])
        assert row["loss"][-1] < row["loss"][0]
    assert rows[0]["params"] > rows[1]["params"]


@needs_triton
def test_the_kernel_table_is_of_a_real_profile(stage: Any) -> None:
    (row,) = stage("kernel_table")
    shares = [kernel["share"] for kernel in row["table"]]
    assert sum(shares) == pytest.approx(1.0, abs=0.02)
    assert shares == sorted(shares, reverse=True)


@needs_triton
def test_every_kernel_s_tiles_are_swept_and_printed_as_rows_of_the_table() -> None:
    from bench.on_gpu.tile_sweep import DTYPE, KERNELS, as_row, sweeps, using
    from nsa.attention.gpu import band, gathered, launch, scores
    from nsa.attention.gpu.tiles import Tile, Tiles, tiles_for

    table = tiles_for(DTYPE, 64)
    assert set(KERNELS) == {field.name for field in dataclasses.fields(Tiles)}
    for kernel in KERNELS.values():
        assert any(hasattr(module, kernel) for module in (band, gathered, scores))
    seen: dict[tuple[Any, str], list[Tile]] = {}
    for case, column, tile in sweeps(table):
        seen.setdefault((case, column), []).append(tile)
    assert {column for _, column in seen} == set(KERNELS)
    for (_, column), tiles in seen.items():
        assert tiles[0] == getattr(table, column)
        assert len(set(tiles)) == len(tiles) >= 11
        assert {tile.keys for tile in tiles} == {64} or "gathered" not in column
        told = as_row(column, tiles[-1])
        assert eval(told.split("=", 1)[1].rstrip(",")) == tiles[-1]
    other = tiles_for(torch.bfloat16, 128)
    with using(other):
        assert launch.tiles_for(torch.bfloat16, 64) is other
    assert launch.tiles_for(torch.bfloat16, 64) is table


@pytest.mark.long
@needs_triton
def test_the_whole_command_runs_its_stages_in_turn(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "bench.gpu", "--device", "cpu", "--out", str(tmp_path)]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=500, check=False
    )
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in (tmp_path / "gpu.jsonl").read_text().splitlines()]
    ended = [(row["stage"], row["code"]) for row in rows if row["row"] == "stage"]
    assert ended == [(stage.name, 0) for stage in STAGES if stage.without_gpu]
    assert (rows[-1]["row"], rows[-1]["code"]) == ("end", 0)
    told = (tmp_path / "gpu.md").read_text()
    for heading in ("Correctness", "Attention, forward", "Kernels", "Steps of the trainer"):
        assert f"\n## {heading}" in told
    assert "What failed" not in told
    assert told.strip() in done.stdout
