"""How a run is computed: fp16, fused AdamW, torch.compile, kept checkpoints, the profile."""

import csv
import json
import shutil
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from nsa.attention import Kernels, counters, use_kernels
from nsa.checkpoint import load_checkpoint
from nsa.errors import BadConfig, NonFinite
from nsa.profiling import _label_on_gpu, _ranked_by, summarise

TrainHere = Callable[..., list[dict[str, Any]]]
ENGINE = {"fused_adamw": False, "compile": False, "keep_checkpoints": 0, "profile_steps": 0}


def _of(lines: list[dict[str, Any]], msg: str) -> list[dict[str, Any]]:
    return [line for line in lines if line["msg"] == msg]


def _losses(lines: list[dict[str, Any]]) -> list[Any]:
    return [line["loss"] for line in _of(lines, "progress")]


def test_fp16_skips_what_overflows_and_halves_its_scale_then_learns(
    make_order: Callable[..., Path], helpers: Any
) -> None:
    environ = {"NSA_SCALER_INIT_SCALE": "16777216", "NSA_SCALER_GROWTH_INTERVAL": "4"}
    environ["NSA_SCALER_GROWTH_FACTOR"] = "1.5"
    order = make_order(train={"dtype": "fp16", "steps": 14}, checkpoint={"every_steps": 14})
    helpers.build_trainer(order, environ).run()
    told = _of(helpers.read_lines(order.parent), "progress")
    scale, good = 2.0**24, 0
    for line in told:
        good = 0 if line["skipped"] else good + 1
        scale = scale / 2 if line["skipped"] else scale
        if good == 4:
            scale, good = 1.5 * scale, 0
        assert line["loss_scale"] == scale
    skipped = [line["skipped"] for line in told]
    assert skipped[0] is True
    assert skipped.count(False) >= 6
    assert told[-1]["loss"] < told[0]["loss"] - 0.1
    saved = load_checkpoint(order.parent / "checkpoints" / "step_000014")
    assert saved.loss_scale["scale"] == told[-1]["loss_scale"]
    assert {tensor.dtype for tensor in saved.model.values()} == {torch.float32}


def test_fp16_goes_on_with_the_scale_it_had(train_here: TrainHere, tmp_path: Path) -> None:
    train = {"dtype": "fp16", "steps": 6}
    whole = train_here("whole", train=train, checkpoint={"every_steps": 3})
    place = str(tmp_path / "whole" / "checkpoints" / "step_000003")
    rest = train_here("rest", train=train, resume_from={"path": place, "step": 3})
    assert _losses(rest) == _losses(whole)[3:]


def test_a_run_that_skips_every_step_is_not_good_for_ever(
    make_order: Callable[..., Path], helpers: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nsa.trainer._SCALED_LIMIT", 10)
    order = make_order(train={"dtype": "fp16", "steps": 70}, checkpoint={"every_steps": 4})
    environ = {"NSA_SCALER_INIT_SCALE": "1e38", "NSA_SCALER_BACKOFF_FACTOR": "0.9"}
    with pytest.raises(NonFinite, match="10 updates running"):
        helpers.build_trainer(order, environ).run()
    lines = helpers.read_lines(order.parent)
    assert [line["skipped_steps"] for line in _of(lines, "progress")] == list(range(1, 11))
    assert all(line["skipped"] for line in _of(lines, "progress"))
    scales = [line["loss_scale"] for line in _of(lines, "progress")]
    assert scales == pytest.approx([1e38 * 0.9 ** (n + 1) for n in range(10)], rel=1e-4)
    assert [int(line["path"][-6:]) for line in _of(lines, "checkpoint")] == [4, 8]


def test_only_the_newest_checkpoints_are_kept_where_the_engine_says_so(
    train_here: TrainHere, tmp_path: Path
) -> None:
    train = {"engine": {**ENGINE, "keep_checkpoints": 2}, "steps": 5}
    lines = train_here(train=train, checkpoint={"every_steps": 1})
    assert len(_of(lines, "checkpoint")) == 5
    left = sorted(place.name for place in (tmp_path / "run" / "checkpoints").iterdir())
    assert left == ["step_000004", "step_000005"]
    assert load_checkpoint(tmp_path / "run" / "checkpoints" / "step_000004").step == 4


def test_fused_adamw_takes_the_same_steps(train_here: TrainHere) -> None:
    plain = train_here("plain", train={"steps": 6})
    fused = train_here("fused", train={"steps": 6, "engine": {**ENGINE, "fused_adamw": True}})
    assert _losses(fused) == pytest.approx(_losses(plain), rel=1e-5)


@pytest.mark.long
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile on CPUs needs g++")
@pytest.mark.filterwarnings("ignore")  # PyTorch's compiler warns about itself
def test_compiled_it_takes_the_same_steps(
    train_here: TrainHere, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))
    plain = train_here("plain", train={"steps": 3})
    from torch._dynamo import reset, utils

    reset()
    utils.counters.clear()
    compiled = train_here("compiled", train={"steps": 3, "engine": {**ENGINE, "compile": True}})
    assert _losses(compiled) == pytest.approx(_losses(plain), rel=1e-4)
    assert not utils.counters["graph_break"]
    # For all layers, in training and in evaluation.
    assert 1 <= utils.counters["stats"]["unique_graphs"] <= 3


@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile on CPUs needs g++")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("environ", "apart", "whole"),
    [({}, False, True), ({"NSA_USE_FA2": "1"}, False, False), ({}, True, False)],
    ids=["alone", "a toggle", "documents apart"],
)
def test_a_layer_is_compiled_whole_where_its_attention_is_one_operator(
    environ: dict[str, str],
    apart: bool,
    whole: bool,
    make_order: Callable[..., Path],
    helpers: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("nsa.attention.kernels._asked", Kernels())  # the toggle is put back
    engine, packing = {**ENGINE, "compile": True}, {"documents_apart": apart}
    order = make_order(train={"steps": 1, "engine": engine, "packing": packing})
    trainer = helpers.build_trainer(order, environ)
    trainer._boot()
    for block in trainer.rig.model.layers():
        assert ("forward" in vars(block), "forward" in vars(block.ffn)) == (whole, not whole)
    trainer.at_end.close()
    trainer.stacks.close()
    trainer.heart.close()


def test_without_a_compiler_compile_is_bad_configuration(
    train_here: TrainHere, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(BadConfig, match="compiler"):
        train_here(train={"engine": {**ENGINE, "compile": True}})


def test_the_profile_names_the_hot_spots_of_the_steps_it_was_asked_for(
    train_here: TrainHere, tmp_path: Path
) -> None:
    train = {"engine": {**ENGINE, "profile_steps": 2}, "steps": 6}
    profiled = train_here("run", train=train)
    told = json.loads((tmp_path / "run" / "profile.json").read_text())
    assert told["steps"] == [3, 4]
    assert set(told["sections"]) == {"data", "forward", "backward", "optimizer", "log"}
    names = [spot["name"] for spot in told["hot_spots"]]
    assert "aten::mm" in names or "aten::addmm" in names or "aten::bmm" in names
    shares = [spot["share"] for spot in told["hot_spots"]]
    assert shares == sorted(shares, reverse=True)
    assert 0.3 < sum(shares) <= 1.001
    backward_s = sum(
        line["step_sections"]["backward"]
        for line in _of(profiled, "step_end")
        if line["step"] in (3, 4)
    )
    assert told["sections"]["backward"] == pytest.approx(backward_s, rel=0.5, abs=0.02)
    assert "aten::" in (tmp_path / "run" / "profile.txt").read_text()


@pytest.mark.long
def test_a_run_that_ends_before_its_profile_does_still_writes_what_it_has(
    train_here: TrainHere, tmp_path: Path
) -> None:
    train_here("run", train={"engine": {**ENGINE, "profile_steps": 9}, "steps": 4})
    told = json.loads((tmp_path / "run" / "profile.json").read_text())
    assert told["steps"] == [3, 4]
    assert told["hot_spots"]


def test_on_a_gpu_hot_spots_are_ranked_by_what_the_gpu_did() -> None:
    def row(key: str, cpu: float, device: float) -> SimpleNamespace:
        times = {"self_cpu_time_total": cpu, "self_device_time_total": device}
        return SimpleNamespace(key=key, count=1, cpu_time_total=cpu, **times)

    rows = [row("launch", 9e6, 0.0), row("gemm", 1e6, 3e6), row("copy", 1e6, 1e6)]
    spots = summarise([row("section:forward", 2e6, 0.0), *rows])
    assert spots["sections"] == {"forward": 2.0}
    assert [(spot["name"], spot["share"]) for spot in spots["hot_spots"]] == [
        ("gemm", 0.75),
        ("copy", 0.25),
        ("launch", 0.0),
    ]


def test_a_run_counts_which_attention_path_served_it(train_here: TrainHere, tmp_path: Path) -> None:
    train_here(train={"steps": 3})
    with (tmp_path / "run" / "fallback_counters.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == list(counters.Served._fields)
    last = counters.Served._fields[-1]
    served = {(row["operation"], row["path"]): int(row[last]) for row in rows}
    assert served["attention", "torch"] == 3 * 2


@pytest.mark.parametrize("name", ["NSA_SDPA_NO_FLASH", "NSA_SDPA_FLASH_ONLY", "NSA_USE_FA2"])
def test_a_toggle_of_kernels_shows_in_the_counters_or_is_refused(
    make_order: Callable[..., Path], tiny: dict[str, Any], helpers: Any, name: str
) -> None:
    cuda = torch.backends.cuda
    told = []
    try:
        for environ in ({}, {name: "1"}):
            order = make_order(f"run{len(told)}", train={"steps": 1})
            helpers.build_trainer(order, environ).run()
            told.append((order.parent / "fallback_counters.csv").read_text())
        assert told[0] != told[1]
        assert f"attention,torch,{name} chooses its kernels" in told[1]
        other = {**tiny["attention"], "backend": "reference"}
        order = make_order("refused", train={"attention": other})
        with pytest.raises(BadConfig, match=f"{name} chooses its kernels: take auto or torch"):
            helpers.build_trainer(order, {name: "1"}).run()
    finally:
        use_kernels(Kernels())
        cuda.enable_flash_sdp(True)
        cuda.enable_math_sdp(True)
        cuda.enable_mem_efficient_sdp(True)


def test_selection_is_looked_at_in_every_layer_now_and_then(
    train_here: TrainHere, tmp_path: Path, tiny: dict[str, Any]
) -> None:
    attention = {**tiny["attention"], "n_sel": 4}
    train_here(train={"steps": 12, "attention": attention})
    with (tmp_path / "run" / "k_stats.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["step"], row["layer"]) for row in rows] == [
        ("1", "0"),
        ("1", "1"),
        ("11", "0"),
        ("11", "1"),
    ]
    for row in rows:
        assert 2 <= float(row["distance_blocks"]) <= 6
        assert 0 < float(row["distinct_share"]) <= 1
        assert 0 <= float(row["kept_share"]) <= 1


@pytest.mark.parametrize("version", ["0", "1"])
def test_evaluation_token_by_token_gives_what_the_batched_one_gives(
    make_order: Callable[..., Path],
    helpers: Any,
    train_here: TrainHere,
    version: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    train = {"steps": 2, "eval": {"every_steps": 2, "batches": 1}}
    batched = train_here("batched", train=train)
    asked = set()
    decoding = import_module("nsa.attention.decode")

    def note(name: str) -> None:
        merge = getattr(decoding, name)

        def merge_and_tell(*arguments: Any) -> Any:
            asked.add(name)
            return merge(*arguments)

        monkeypatch.setattr(decoding, name, merge_and_tell)

    note("ranges_v1")
    note("ranges_v2")
    order = make_order("sequential", train=train)
    environ = {"NSA_PREFILL_BATCHED": "0", "NSA_SEL_RANGES_V2": version}
    helpers.build_trainer(order, environ).run()
    sequential = helpers.read_lines(order.parent)
    assert _losses(sequential) == _losses(batched)
    assert asked == {"ranges_v2" if version == "1" else "ranges_v1"}
    expected = _of(batched, "eval")[0]["val_loss"]
    assert _of(sequential, "eval")[0]["val_loss"] == pytest.approx(expected, rel=1e-5)


def test_on_a_gpu_both_files_rank_by_its_time_and_sections_are_nvtx_ranges(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = SimpleNamespace(key="gemm", count=1, cpu_time_total=9.0, self_cpu_time_total=9.0)
    idle, busy = (SimpleNamespace(**vars(row), self_device_time_total=x) for x in (0.0, 3.0))
    assert _ranked_by([idle]) == "self_cpu_time_total"
    assert _ranked_by([idle, busy]) == "self_device_time_total"
    ranges: list[str] = []
    monkeypatch.setattr(torch.cuda.nvtx, "range_push", ranges.append)
    monkeypatch.setattr(torch.cuda.nvtx, "range_pop", lambda: ranges.append("end"))
    with _label_on_gpu("forward"):
        ranges.append("within")
    assert ranges == ["section:forward", "within", "end"]
