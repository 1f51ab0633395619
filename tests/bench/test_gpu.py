"""What `python -m bench.gpu` decides, and its stages really run, tiny, where there is no GPU."""

import dataclasses
import math
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

if find_spec("triton") is None:
    pytest.skip("Triton is not installed", allow_module_level=True)

import bench.gpu.__main__ as gpu
from bench.gpu import cases, kernels
from bench.gpu.attention import break_even, shapes
from bench.gpu.correctness import comparisons
from bench.gpu.rows import Context, read_rows
from nsa.attention.gpu import band, gathered, launch, scores
from nsa.attention.gpu.shapes import Tile, Tiles, tiles_for

ROOT = Path(__file__).parents[2]
CPU = torch.device("cpu")


def _row(name: str, right: object) -> dict[str, object]:
    return {"row": "correctness", "name": name, "right": right}


@pytest.mark.parametrize(
    ("rows", "code"),
    [
        ([_row("a", True), _row("b", True), {"row": "attention", "error": "no"}], 0),
        ([_row("a", True)], 1),
        ([], 1),
        ([_row("a", True), _row("b", False)], 1),
        ([_row("a", True), _row("b", True), _row("c", False)], 1),
    ],
    ids=["held", "one was not made", "nothing", "wrong", "wrong though not planned"],
)
def test_the_exit_code_is_about_correctness_alone(rows: list[dict[str, object]], code: int) -> None:
    assert gpu.exit_code(rows, ["a", "b"]) == code


@pytest.mark.parametrize(
    ("ratios", "words"),
    [
        ({2048: 0.5, 8192: 2.0}, "faster from about 4096 on"),
        ({2048: 0.5, 4096: 1.2, 8192: 0.9, 16384: 1.6}, "faster from about 9301 on"),
        ({1024: 1.0, 2048: 3.0}, "faster at every measured length"),
        ({1024: 2.0, 2048: 0.9}, "not faster at the longest measured length"),
    ],
)
def test_break_even_is_where_the_ratio_last_rises_through_one(
    ratios: dict[int, float], words: str
) -> None:
    assert break_even(ratios) == words


def test_an_error_of_one_thing_is_a_row_and_the_next_is_measured(tmp_path: Path) -> None:
    file = tmp_path / "gpu.jsonl"
    here = Context(device=CPU, file=file, until=time.monotonic() + 9.0)

    def fails(error: Exception) -> Callable[[], dict[str, Any]]:
        def unit() -> dict[str, Any]:
            raise error

        return unit

    # Triton's errors are no RuntimeErrors.
    here.measure("x", fails(KeyError("out of resources")), right=False)
    here.measure("x", lambda: {"right": True}, right=False)
    here.measure("x", lambda: {}, 10.0)
    with pytest.raises(ValueError, match="illegal memory access"):
        here.measure("x", fails(ValueError("an illegal memory access was")), right=False)
    assert read_rows(file) == [
        {"row": "x", "right": False, "error": "KeyError: 'out of resources'"},
        {"row": "x", "right": True},
        {"row": "x", "error": "left out for want of time"},
        {"row": "x", "right": False, "error": "ValueError: an illegal memory access was"},
    ]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_a_gpu_nothing_is_claimed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert gpu.main(["--out", str(tmp_path)]) == 3
    assert "nothing was measured" in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Callable[[str], list[dict[str, Any]]]]:
    """Run a stage in this process, tiny; returns its rows."""
    threads = torch.get_num_threads()

    def run_here(name: str) -> list[dict[str, Any]]:
        file = tmp_path / f"{name}.jsonl"
        gpu.run_stage(name, Context(device=CPU, file=file, until=time.monotonic() + 60.0))
        return read_rows(file)

    yield run_here
    torch.set_num_threads(threads)


def test_the_machine_has_versions(stage: Any) -> None:
    (environment,) = stage("machine")
    assert environment["torch"] == torch.__version__


@pytest.mark.parametrize(
    "wrong", ["nothing", "output", "NaN", "gradient", "last key", "choice", "inputs"]
)
def test_a_comparison_finds_what_is_wrong_in_one_place(
    wrong: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One row of many, one key, one query of each block, or an input that is written to."""
    case = cases.Case(S=500, H=6, G=2, D=8, l=8, d=4, l_sel=16, n_sel=5, w=20)
    attend = cases.attend

    def spoil(x: torch.Tensor) -> torch.Tensor:
        x = x.clone()
        x[0, 499 if wrong == "last key" else 400] = math.nan if wrong == "NaN" else 0.0
        return x

    def attend_wrongly(backend: str, tensors: Any, *given: Any) -> Any:
        if backend == "torch" and wrong in ("gradient", "last key"):
            tensors[5 if wrong == "last key" else 0].register_hook(spoil)
        out, ids = attend(backend, tensors, *given)
        if backend == "torch" and wrong == "choice":
            ids[:, 320::16, :, 1] = ids[:, 320::16, :, 1] % 15 + 1
        if backend == "torch" and wrong == "inputs":
            with torch.no_grad():
                tensors[1].flatten()[-1] = 0.0
        return (spoil(out) if backend == "torch" and wrong in ("output", "NaN") else out), ids

    monkeypatch.setattr(cases, "attend", attend_wrongly)
    found = cases.compare(case, torch.bfloat16, torch.device("cpu"), ours="torch")
    assert found["right"] is (wrong == "nothing"), found


def test_the_comparisons_that_are_planned_are_made_and_hold_for_the_torch_backend(
    stage: Any,
) -> None:
    rows = stage("correctness")
    assert [row["name"] for row in rows] == list(comparisons(CPU))
    assert gpu.exit_code(rows, comparisons(CPU)) == 0


def test_a_wrong_backend_is_found_and_fails_the_command(
    stage: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = cases.attend

    def slightly_wrong(backend: str, *given: Any) -> Any:
        out, ids = right(backend, *given)
        return (out * 1.02 if backend == "torch" else out), ids

    monkeypatch.setattr(cases, "attend", slightly_wrong)
    rows = stage("correctness")
    assert gpu.exit_code(rows, comparisons(CPU)) == 1
    assert not any(row["right"] for row in rows if row.get("against"))


def test_on_a_gpu_the_models_own_shapes_and_long_sequences_are_planned() -> None:
    planned = list(comparisons(torch.device("cuda")))
    assert planned[0] == "reference B=2 S=2500 H=12 G=2"
    for S in (8192, 32768, 65536):
        assert f"torch B=1 S={S} H=12 G=2" in planned
    timed = [(case.B, case.S, backward) for case, backward in shapes(tiny=False)]
    assert timed[0] == (1, 2048, True)
    assert {S for B, S, _ in timed if B == 1} == {2048 * 2**n for n in range(6)}
    assert all(B * S == 65536 for B, S, _ in timed if B > 1)


def test_attention_and_its_break_even_come_of_real_timings(stage: Any) -> None:
    rows = stage("attention")
    assert {(row["kernel"], row["direction"]) for row in rows} == {
        (kernel, direction)
        for kernel in ("torch", "math")
        for direction in ("forward", "forward + backward")
    }
    assert all(row["eager"]["ms"] > 0 for row in rows)
    report = gpu.report([*rows, _row("a", True)], ["a", "b"])
    assert "## Attention, forward, batch 1, eager, ms\n\n| S | torch | math |" in report
    assert "- Attention, forward, batch 1, eager, ms: torch against math: " in report
    assert "- not made: b" in report


def test_the_trainers_own_steps_are_what_is_measured(stage: Any) -> None:
    rows = stage("trainer_steps")
    assert [(row["kind"], row["sequences"]) for row in rows] == [("nsa", 2), ("dense", 2)]
    for row in rows:
        assert row["tok_s"] == pytest.approx(2 * 64 / row["step_ms"] * 1e3, rel=0.01)
        assert {"forward", "backward", "optimizer"} <= set(row["sections_ms"])
        assert row["loss"][-1] < row["loss"][0]


def test_the_kernel_table_is_of_a_real_profile(stage: Any) -> None:
    shares = [row["share"] for row in stage("kernels")]
    assert sum(shares) == pytest.approx(1.0, abs=0.02)


def test_every_kernel_s_tiles_are_swept_and_printed_as_rows_of_the_table() -> None:
    table = tiles_for(kernels.DTYPE, 64)
    assert set(kernels.KERNELS) == {field.name for field in dataclasses.fields(Tiles)}
    for kernel in kernels.KERNELS.values():
        assert any(hasattr(module, kernel) for module in (band, gathered, scores))
    seen: dict[tuple[Any, str], list[Tile]] = {}
    for case, column, tile in kernels.sweeps(table):
        seen.setdefault((case, column), []).append(tile)
    assert {column for _, column in seen} == set(kernels.KERNELS)
    for (_, column), tiles in seen.items():
        assert tiles[0] == getattr(table, column)
        row = kernels.as_row(column, tiles[-1])
        assert eval(row.split("=", 1)[1].rstrip(",")) == tiles[-1]
    other = tiles_for(torch.bfloat16, 128)
    with kernels.using(other):
        assert launch.tiles_for(torch.bfloat16, 64) is other
    assert launch.tiles_for(torch.bfloat16, 64) is table


@pytest.mark.long
def test_the_whole_command_runs_its_stages_in_turn(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "bench.gpu", "--device", "cpu", "--out", str(tmp_path)]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=500, check=False
    )
    assert done.returncode == 0, done.stderr
    rows = read_rows(tmp_path / "gpu.jsonl")
    ended = [(row["stage"], row["code"]) for row in rows if row["row"] == "stage"]
    assert ended == [(name, 0) for name in gpu.STAGES]
    assert (tmp_path / "gpu.md").read_text() in done.stdout
