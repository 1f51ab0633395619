"""How a run is computed: fp16, fused AdamW, torch.compile, kept checkpoints, the profile."""

import json
import shutil
from importlib import import_module
from types import SimpleNamespace

import pytest
import torch

from nsa.artifacts import _label_on_gpu, _ranked_by, summarise
from nsa.attention import Kernels, use_kernels
from nsa.checkpoint import load_checkpoint
from nsa.errors import BadConfig, NonFinite
from tests.nsa.runs import ENGINE, build_trainer, losses, of, read_lines

needs_compiler = pytest.mark.skipif(
    shutil.which("g++") is None, reason="torch.compile on CPUs needs g++"
)


def test_fp16_skips_what_overflows_and_halves_its_scale_then_learns(train_here, tmp_path):
    environ = {"NSA_SCALER_INIT_SCALE": "16777216", "NSA_SCALER_GROWTH_INTERVAL": "4"}
    environ["NSA_SCALER_GROWTH_FACTOR"] = "1.5"
    train = {"dtype": "fp16", "steps": 14}
    lines = train_here("whole", environ=environ, train=train, checkpoint={"every_steps": 7})
    told, scale, good = of(lines, "progress"), 2.0**24, 0
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
    places = tmp_path / "whole" / "checkpoints"
    saved = load_checkpoint(places / "step_000014")
    assert saved.loss_scale["scale"] == told[-1]["loss_scale"]
    assert {tensor.dtype for tensor in saved.model.values()} == {torch.float32}
    resume = {"path": str(places / "step_000007"), "step": 7}
    rest = train_here("rest", environ=environ, train=train, resume_from=resume)
    assert losses(rest) == losses(lines)[7:]


def test_a_run_that_skips_every_step_is_not_good_for_ever(make_order, monkeypatch):
    monkeypatch.setattr("nsa.trainer._SCALED_LIMIT", 10)
    order = make_order(train={"dtype": "fp16", "steps": 70}, checkpoint={"every_steps": 4})
    environ = {"NSA_SCALER_INIT_SCALE": "1e38", "NSA_SCALER_BACKOFF_FACTOR": "0.9"}
    with pytest.raises(NonFinite, match="10 updates running"):
        build_trainer(order, environ).run()
    lines = read_lines(order.parent)
    told = of(lines, "progress")
    assert [line["skipped_steps"] for line in told] == list(range(1, 11))
    assert all(line["skipped"] for line in told)
    expected = [1e38 * 0.9 ** (n + 1) for n in range(10)]
    assert [line["loss_scale"] for line in told] == pytest.approx(expected, rel=1e-4)
    assert [int(line["path"][-6:]) for line in of(lines, "checkpoint")] == [4, 8]


def test_only_the_newest_checkpoints_are_kept_where_the_engine_says_so(train_here, tmp_path):
    train = {"engine": ENGINE | {"keep_checkpoints": 2}}
    lines = train_here(train=train, checkpoint={"every_steps": 1})
    assert len(of(lines, "checkpoint")) == 4
    left = sorted(place.name for place in (tmp_path / "run" / "checkpoints").iterdir())
    assert left == ["step_000003", "step_000004"]
    assert load_checkpoint(tmp_path / "run" / "checkpoints" / "step_000003").step == 3


def test_fused_adamw_takes_the_same_steps(train_here):
    plain = train_here("plain")
    fused = train_here("fused", train={"engine": ENGINE | {"fused_adamw": True}})
    assert losses(fused) == pytest.approx(losses(plain), rel=1e-5)


@pytest.mark.long
@needs_compiler
@pytest.mark.filterwarnings("ignore")  # PyTorch's compiler warns about itself
def test_compiled_it_takes_the_same_steps(train_here, tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))
    plain = train_here("plain", train={"steps": 3})
    from torch._dynamo import reset, utils

    reset()
    utils.counters.clear()
    compiled = train_here("compiled", train={"steps": 3, "engine": ENGINE | {"compile": True}})
    assert losses(compiled) == pytest.approx(losses(plain), rel=1e-4)
    assert not utils.counters["graph_break"]
    # For all layers, in training and in evaluation.
    assert 1 <= utils.counters["stats"]["unique_graphs"] <= 3


def test_without_a_compiler_compile_is_bad_configuration(train_here, monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(BadConfig, match="compiler"):
        train_here(train={"engine": ENGINE | {"compile": True}})


@pytest.mark.parametrize("steps", [5, pytest.param(4, marks=pytest.mark.long)])
def test_the_profile_names_the_hot_spots_of_the_steps_it_was_asked_for(train_here, tmp_path, steps):
    """A run that ends before its profile does writes what it has."""
    asked = 2 if steps == 5 else 9
    lines = train_here(train={"engine": ENGINE | {"profile_steps": asked}, "steps": steps})
    told = json.loads((tmp_path / "run" / "profile.json").read_text())
    assert told["steps"] == [3, 4]
    assert set(told["sections"]) == {"data", "forward", "backward", "optimizer", "log"}
    assert {"aten::mm", "aten::addmm", "aten::bmm"} & {spot["name"] for spot in told["hot_spots"]}
    shares = [spot["share"] for spot in told["hot_spots"]]
    assert shares == sorted(shares, reverse=True)
    assert 0.3 < sum(shares) <= 1.001
    profiled = [line for line in of(lines, "step_end") if line["step"] in (3, 4)]
    backward_s = sum(line["step_sections"]["backward"] for line in profiled)
    assert told["sections"]["backward"] == pytest.approx(backward_s, rel=0.5, abs=0.02)
    assert "aten::" in (tmp_path / "run" / "profile.txt").read_text()


def test_on_a_gpu_both_files_rank_by_its_time_and_sections_are_nvtx_ranges(monkeypatch):
    def row(key, cpu, device):
        times = {"self_cpu_time_total": cpu, "self_device_time_total": device}
        return SimpleNamespace(key=key, count=1, cpu_time_total=cpu, **times)

    rows = [row("launch", 9e6, 0.0), row("gemm", 1e6, 3e6), row("copy", 1e6, 1e6)]
    assert _ranked_by(rows[:1]) == "self_cpu_time_total"
    assert _ranked_by(rows) == "self_device_time_total"
    found = summarise([row("section:forward", 2e6, 0.0), *rows])
    assert found["sections"] == {"forward": 2.0}
    spots = [(spot["name"], spot["share"]) for spot in found["hot_spots"]]
    assert spots == [("gemm", 0.75), ("copy", 0.25), ("launch", 0.0)]
    ranges = []
    monkeypatch.setattr(torch.cuda.nvtx, "range_push", ranges.append)
    monkeypatch.setattr(torch.cuda.nvtx, "range_pop", lambda: ranges.append("end"))
    with _label_on_gpu("forward"):
        ranges.append("within")
    assert ranges == ["section:forward", "within", "end"]


@pytest.mark.parametrize("name", ["NSA_SDPA_NO_FLASH", "NSA_SDPA_FLASH_ONLY", "NSA_USE_FA2"])
def test_a_toggle_of_kernels_shows_in_the_counters_or_is_refused(train_here, tmp_path, name):
    cuda, environ = torch.backends.cuda, {name: "1"}
    try:
        train_here(train={"steps": 1}, environ=environ)
        text = (tmp_path / "run" / "fallback_counters.csv").read_text()
        assert f"attention,torch,{name} chooses its kernels" in text
        with pytest.raises(BadConfig, match=f"{name} chooses its kernels: take auto or torch"):
            train_here("refused", train={"attention": {"backend": "reference"}}, environ=environ)
    finally:
        use_kernels(Kernels())
        cuda.enable_flash_sdp(True)
        cuda.enable_math_sdp(True)
        cuda.enable_mem_efficient_sdp(True)


def test_evaluation_token_by_token_gives_what_the_batched_one_gives(train_here, monkeypatch):
    train = {"steps": 1, "eval": {"every_steps": 1, "batches": 1}}
    batched = train_here("batched", train=train)
    decoding = import_module("nsa.attention.decode")
    asked = set()
    for name in ("ranges_v1", "ranges_v2"):
        merge = getattr(decoding, name)

        def merge_and_tell(*arguments, name=name, merge=merge):
            asked.add(name)
            return merge(*arguments)

        monkeypatch.setattr(decoding, name, merge_and_tell)
    for version in "01":
        asked.clear()
        environ = {"NSA_PREFILL_BATCHED": "0", "NSA_SEL_RANGES_V2": version}
        sequential = train_here(f"sequential{version}", train=train, environ=environ)
        assert losses(sequential) == losses(batched)
        assert asked == {"ranges_v2" if version == "1" else "ranges_v1"}
        expected = of(batched, "eval")[0]["val_loss"]
        assert of(sequential, "eval")[0]["val_loss"] == pytest.approx(expected, rel=1e-5)
