import json
import math
import os
import signal
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

import nsa.run_signals
import nsa.trainer
from nsa.checkpoint import load_checkpoint
from nsa.errors import BadConfig, DataFailure, Halted, NonFinite
from nsa.launch import Cadence, launch_from_file
from nsa.optimizer import learning_rate
from nsa.settings import load_settings
from nsa.stacks import StackDumps
from nsa.trainer import Trainer

Lines = list[dict[str, Any]]
TrainHere = Callable[..., Lines]


def _of(lines: Lines, msg: str) -> Lines:
    return [line for line in lines if line["msg"] == msg]


def _saved_steps(lines: Lines) -> list[int]:
    return [int(line["path"].rpartition("_")[2]) for line in _of(lines, "checkpoint")]


def _losses(lines: Lines) -> list[Any]:
    return [line["loss"] for line in _of(lines, "progress")]


@pytest.fixture(scope="module")
def plain(helpers: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run of three steps as attempt 3 of an experiment's run."""
    order: Path = helpers.write_order(
        tmp_path_factory.mktemp("plain"), train={"steps": 3}, attempt=3
    )
    helpers.build_trainer(order, {"GONOGO_RUN": "run_x"}).run()
    return order.parent


def test_every_step_writes_its_three_lines_in_order(plain: Path, helpers: Any) -> None:
    lines = helpers.read_lines(plain)
    steps = [(line["step"], line["msg"]) for line in helpers.told(lines) if line["step"] > 0]
    expected = [(k, msg) for k in (1, 2, 3) for msg in ("step_start", "progress", "step_end")]
    assert steps == [*expected, (3, "done")]
    assert [line["seq"] for line in lines] == list(range(1, len(lines) + 1))
    assert lines[0]["msg"] == "boot"
    (ready,) = _of(lines, "loader_ready")
    assert ready["dt"] >= 0
    assert ready["seq"] < _of(lines, "step_start")[0]["seq"]


def test_a_step_accounts_for_its_time_and_tokens(plain: Path, helpers: Any) -> None:
    lines = helpers.read_lines(plain)
    for progress, end in zip(_of(lines, "progress"), _of(lines, "step_end"), strict=True):
        assert end["tokens"] == 4 * 64
        parts = end["step_sections"]
        assert set(parts) == {"data", "forward", "backward", "optimizer", "wait"}
        assert all(seconds >= 0 for seconds in parts.values())
        assert 0 < sum(parts.values()) <= end["dt_step_s"] + 1e-5
        assert end["section"] is None
        assert progress["toks_per_s"] >= end["tokens"] / end["dt_step_s"]
        assert progress["grad_norm"] > 0
        assert progress["host_rss_mb"] > 10
        assert 0 < progress["dt_fetch_s"] < parts["data"]


def test_the_boot_line_holds_what_was_counted_on_the_model(
    plain: Path, helpers: Any, tiny: dict[str, Any]
) -> None:
    boot = helpers.read_lines(plain)[0]
    assert boot["params"] == 20_408 + _head_and_embedding(tiny)
    expected = {"dim": 32, "layers": 2, "heads": 4, "groups": 2, "seq_len": 64, "vocab": 256}
    expected |= {"dtype": "fp32", "tokens_per_step": 256, "world_size": 1, "nsa_env": {}}
    expected |= {"dataset": "synthetic", "parallel": "single", "backend": "single"}
    expected |= {"torch": str(torch.__version__), "device": "cpu", "driver": None}
    expected |= {"run": "run_x", "attempt": 3}
    assert {key: boot[key] for key in expected} == expected
    assert len(boot["config_digest"]) == 64
    assert "git_sha" in boot
    model = json.loads((plain / "model.json").read_text())
    assert len(model) == 18
    assert model == {key: boot[key] for key in model}
    assert not (plain / "checkpoints").exists()


def _head_and_embedding(tiny: dict[str, Any]) -> int:
    return 2 * tiny["model"]["vocab"] * tiny["model"]["dim"]


def test_the_same_seed_gives_the_same_losses_and_another_does_not(train_here: TrainHere) -> None:
    first = _losses(train_here("one"))
    assert _losses(train_here("two")) == first
    assert _losses(train_here("three", train={"seed": 7})) != first


def test_accumulation_gives_the_losses_of_the_big_batch(train_here: TrainHere) -> None:
    whole = _losses(train_here("whole", train={"steps": 6}))
    parts = train_here("parts", train={"steps": 6, "batch": {"global_seqs": 4, "accumulate": 4}})
    assert _losses(parts) == pytest.approx(whole, abs=1e-5)
    assert _of(parts, "step_end")[0]["tokens"] == 256


def test_it_learns(train_here: TrainHere) -> None:
    lines = train_here(
        train={"steps": 30, "data": "local_text", "eval": {"every_steps": 30, "batches": 2}}
    )
    losses = _losses(lines)
    assert losses[0] == pytest.approx(math.log(256), abs=0.5)
    assert sum(losses[-5:]) / 5 < losses[0] - 0.6
    (evaluated,) = _of(lines, "eval")
    assert evaluated["section"] == "eval"
    assert evaluated["val_loss"] < losses[0] - 0.6
    entered = next(line for line in lines if line["section"] == "eval")
    assert 0 < evaluated["dt"] <= evaluated["mono"] - entered["mono"]


def test_a_resumed_run_repeats_the_uninterrupted_one_exactly(
    train_here: TrainHere, tmp_path: Path
) -> None:
    whole = train_here("whole", train={"steps": 6}, checkpoint={"every_steps": 3})
    resume = {"path": str(tmp_path / "whole" / "checkpoints" / "step_000003"), "step": 3}
    rest = train_here("rest", train={"steps": 6}, resume_from=resume)
    assert _losses(rest) == _losses(whole)[3:]
    assert [line["step"] for line in _of(rest, "progress")] == [4, 5, 6]
    assert rest[0]["step"] == 3
    assert [line["path"] for line in _of(whole, "checkpoint")] == [
        "checkpoints/step_000003",
        "checkpoints/step_000006",
    ]


def test_an_order_that_claims_step_0_takes_the_weights_alone_and_starts_at_step_1(
    train_here: TrainHere, tmp_path: Path
) -> None:
    taught = train_here("taught", train={"steps": 6}, checkpoint={"every_steps": 6})
    place = tmp_path / "taught" / "checkpoints" / "step_000006"
    fresh = train_here(
        "fresh",
        train={"steps": 2, "batch": {"global_seqs": 2, "accumulate": 1}},
        resume_from={"path": str(place), "step": 0},
        checkpoint={"every_steps": 1},
    )
    assert fresh[0]["step"] == 0
    assert [line["step"] for line in _of(fresh, "progress")] == [1, 2]
    assert _losses(fresh)[0] < _losses(taught)[0] - 0.05
    first = load_checkpoint(tmp_path / "fresh" / "checkpoints" / "step_000001")
    assert first.next_sequence == 2
    assert {state["step"].item() for state in first.optimizer["state"].values()} == {1.0}


@pytest.mark.parametrize(
    ("train", "text"),
    [
        ({"batch": {"global_seqs": 2, "accumulate": 1}}, "global_seqs"),
        ({"steps": 2}, "only 2 ordered"),
        ({"seed": 1}, "seed was 1337, and is 1 now"),
        ({"data": "local_text"}, "data was 'synthetic', and is 'local_text' now"),
        ({"packing": {"documents_apart": True}}, "packing was None"),
        ({"optim": {"lr": 0.5}, "dtype": "bf16"}, None),
        ({"model": {"gradient_checkpointing": True}}, None),
        ({"model": {"rope_theta": 5e5}}, r"model.rope_theta was 10000.0, and is 500000.0 now"),
        ({"attention": {"backend": "reference"}}, None),
        ({"attention": {"n_sel": 4, "w": 17}}, r"attention.n_sel was 3, and is 4 now"),
    ],
)
def test_a_checkpoint_that_does_not_fit_is_refused(
    train_here: TrainHere,
    tmp_path: Path,
    tiny: dict[str, Any],
    train: dict[str, Any],
    text: str | None,
) -> None:
    train_here("whole", checkpoint={"every_steps": 4})
    resume = {"path": str(tmp_path / "whole" / "checkpoints" / "step_000004"), "step": 4}
    sections = ("model", "attention", "optim")
    train = {key: {**tiny[key], **own} if key in sections else own for key, own in train.items()}
    if text is None:  # a fit: nothing is left to train
        assert _of(train_here("rest", train=train, resume_from=resume), "done")
        return
    with pytest.raises(BadConfig, match=text):
        train_here("rest", train=train, resume_from=resume)


def test_what_is_configured_now_wins_over_what_the_checkpoint_was_trained_with(
    make_order: Callable[..., Path], helpers: Any, train_here: TrainHere, tmp_path: Path
) -> None:
    train_here("whole", train={"steps": 2}, checkpoint={"every_steps": 2})
    resume = {"path": str(tmp_path / "whole" / "checkpoints" / "step_000002"), "step": 2}
    optim = {**helpers.TINY["optim"], "weight_decay": 0.5, "beta2": 0.8}
    engine = {"fused_adamw": True, "compile": False, "keep_checkpoints": 0, "profile_steps": 0}
    order = make_order("rest", train={"optim": optim, "engine": engine}, resume_from=resume)
    trainer = helpers.build_trainer(order)
    trainer.run()
    matrices, vectors = trainer.rig.optimizer.param_groups
    assert (matrices["weight_decay"], vectors["weight_decay"]) == (0.5, 0.0)
    assert (matrices["betas"], matrices["fused"]) == ((0.9, 0.8), True)
    assert {state["step"].item() for state in trainer.rig.optimizer.state.values()} == {4.0}


def test_a_checkpoint_that_cannot_be_written_is_told_and_ends_nothing(
    make_order: Callable[..., Path], helpers: Any
) -> None:
    order = make_order(checkpoint={"every_steps": 2})
    (order.parent / "checkpoints").write_text("a file where the folder should be")
    helpers.build_trainer(order).run()
    lines = helpers.read_lines(order.parent)
    assert [line["path"][-1] for line in _of(lines, "error")] == ["2", "4"]
    assert {line["type"] for line in _of(lines, "error")} == {"NotADirectoryError"}
    assert {line["section"] for line in _of(lines, "error")} == {"checkpoint"}
    assert _of(lines, "done")


def test_halt_leaves_after_the_step_with_a_checkpoint(
    make_order: Callable[..., Path], helpers: Any
) -> None:
    order = make_order(train={"steps": 50})
    (order.parent / ".HALT").touch()
    with pytest.raises(Halted) as stop:
        helpers.build_trainer(order).run()
    assert stop.value.code == 3
    lines = helpers.read_lines(order.parent)
    assert [line["step"] for line in _of(lines, "step_end")] == [1]
    assert [line["step"] for line in _of(lines, "halt_seen")] == [1]
    assert not _of(lines, "done")
    place = order.parent / _of(lines, "checkpoint")[0]["path"]
    assert load_checkpoint(place).step == 1


def test_halt_stops_a_run_without_an_order_too_unless_it_was_meant_for_an_earlier_one(
    tiny: dict[str, Any], tmp_path: Path, helpers: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, out, settings = tmp_path / "tiny.yaml", tmp_path / "out", load_settings({})
    file.write_text(yaml.safe_dump(tiny))
    launch = launch_from_file(file, run_dir=out, settings=settings)
    (out / ".HALT").touch()
    real = nsa.trainer.learning_rate

    def rate(step: int, optim: Any) -> float:
        if step == 3:
            (out / ".HALT").touch()
        return real(step, optim)

    monkeypatch.setattr(nsa.trainer, "learning_rate", rate)
    with pytest.raises(Halted):
        Trainer(launch, settings, StackDumps(out, 0)).run()
    lines = helpers.read_lines(out)
    assert [line["step"] for line in _of(lines, "step_end")] == [1, 2, 3]
    assert load_checkpoint(out / _of(lines, "checkpoint")[0]["path"]).step == 3


def test_a_directory_with_checkpoints_of_another_run_is_refused(
    make_order: Callable[..., Path], helpers: Any
) -> None:
    order = make_order(checkpoint={"every_steps": 2})
    helpers.build_trainer(order).run()
    (left,) = (order.parent / "checkpoints").glob("step_000004")
    (left.parent / ".step_000006.draft").mkdir()
    before = (left / "manifest.json").read_bytes()
    with pytest.raises(BadConfig, match=r"step_000002 is of another run"):
        helpers.build_trainer(order).run()
    assert (left / "manifest.json").read_bytes() == before
    # A resume from the newest is the same run; leftovers of a kill are deleted.
    mapping = json.loads(order.read_text())
    mapping["resume_from"] = {"path": "checkpoints/step_000004", "step": 4}
    mapping["steps"] = mapping["train"]["steps"] = 6
    order.write_text(json.dumps(mapping))
    helpers.build_trainer(order).run()
    places = sorted(place.name for place in left.parent.iterdir())
    assert places == ["step_000002", "step_000004", "step_000006"]


def test_halt_before_go_ends_without_a_step(make_order: Callable[..., Path], helpers: Any) -> None:
    order = make_order(go=False)
    (order.parent / ".HALT").touch()
    with pytest.raises(Halted):
        helpers.build_trainer(order).run()
    assert [line["msg"] for line in helpers.told(helpers.read_lines(order.parent))] == [
        "boot",
        "halt_seen",
    ]


def test_without_go_it_leaves_when_the_limit_is_over(
    make_order: Callable[..., Path], helpers: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nsa.run_signals, "_LIMIT_S", 0.1)
    order = make_order(go=False)
    with pytest.raises(BadConfig, match=r"no \.GO") as stop:
        helpers.build_trainer(order).run()
    assert stop.value.code == 4
    assert [line["msg"] for line in helpers.told(helpers.read_lines(order.parent))] == [
        "boot",
        "error",
    ]


def test_a_poisoned_run_goes_on_until_halted_and_is_never_saved(
    make_order: Callable[..., Path], helpers: Any
) -> None:
    order = make_order(fault="nan:step=3", train={"steps": 5}, checkpoint={"every_steps": 1})
    helpers.build_trainer(order).run()
    lines = helpers.read_lines(order.parent)
    losses = _losses(lines)
    assert all(math.isfinite(loss) for loss in losses[:2])
    assert losses[2:] == ["NaN"] * 3
    assert _saved_steps(lines) == [1, 2]
    saved = load_checkpoint(order.parent / "checkpoints" / "step_000002")
    assert all(tensor.isfinite().all() for tensor in saved.model.values())


@pytest.mark.parametrize(
    ("dtype", "steps", "skipped"),
    [("fp32", 3, [1]), ("bf16", 40, list(range(1, 21)))],
    ids=["at once", "after twenty updates that moved nothing"],
)
def test_without_a_supervisor_a_run_that_is_not_finite_ends_itself(
    tiny: dict[str, Any], tmp_path: Path, helpers: Any, dtype: str, steps: int, skipped: list[int]
) -> None:
    file = tmp_path / "huge.yaml"
    tiny["optim"] |= {"lr": 1e30, "warmup_steps": 0, "clip": 1e30}
    file.write_text(yaml.safe_dump({**tiny, "dtype": dtype, "steps": steps}))
    settings = load_settings({})
    launch = launch_from_file(file, run_dir=tmp_path / "out", settings=settings)
    with pytest.raises(NonFinite) as stop:
        Trainer(launch, settings, StackDumps(launch.run_dir, 0)).run()
    assert stop.value.code == 6
    lines = helpers.read_lines(tmp_path / "out")
    assert _of(lines, "error")[0]["type"] == "NonFinite"
    told = _of(lines, "progress")
    assert [line["skipped_steps"] for line in told if "skipped_steps" in line] == skipped
    assert len(told) < 30
    assert not any(line.get("skipped") for line in told if line["loss"] in ("NaN", "Infinity"))


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_without_a_supervisor_a_loss_that_is_not_finite_ends_the_run_at_that_step(
    tiny: dict[str, Any], tmp_path: Path, helpers: Any, dtype: str
) -> None:
    file = tmp_path / "tiny.yaml"
    file.write_text(yaml.safe_dump({**tiny, "dtype": dtype, "steps": 5}))
    settings = load_settings({})
    launch = launch_from_file(file, run_dir=tmp_path / "out", settings=settings)
    launch = replace(launch, fault="nan:step=3", checkpoint=Cadence(every_steps=1))
    with pytest.raises(NonFinite, match="at step 3"):
        Trainer(launch, settings, StackDumps(launch.run_dir, 0)).run()
    lines = helpers.read_lines(tmp_path / "out")
    assert _losses(lines)[2:] == ["NaN"]
    assert _saved_steps(lines) == [1, 2]


def test_the_toy_reports_what_it_is(train_here: TrainHere, tmp_path: Path) -> None:
    honest = train_here("honest")[0]
    toy = train_here("toy", fault="wrong-config")[0]
    assert (toy["dim"], toy["layers"], toy["seq_len"]) == (128, 1, 128)
    for key in ("config_digest", "params", "dim", "layers", "tokens_per_step"):
        assert toy[key] != honest[key]


def test_a_slow_run_is_slower_by_its_factor(train_here: TrainHere) -> None:
    lines = train_here(train={"steps": 6}, fault="slow:factor=8,from=4")
    took = [line["dt_step_s"] for line in _of(lines, "step_end")]
    fastest_slow = min(took[3:])
    work_s = [
        sum(line["step_sections"][name] for name in ("forward", "backward"))
        for line in _of(lines, "step_end")
    ]
    assert fastest_slow >= 8 * min(work_s[3:])
    speed = [line["toks_per_s"] for line in _of(lines, "progress")]
    assert max(speed[3:]) < max(speed[:3])


def test_data_that_is_not_there_is_told_before_it_ends(
    make_order: Callable[..., Path], helpers: Any
) -> None:
    order = make_order(train={"data": "parquet:/no/such/folder"})
    with pytest.raises(DataFailure) as stop:
        helpers.build_trainer(order).run()
    assert stop.value.code == 5
    lines = helpers.read_lines(order.parent)
    assert [line["msg"] for line in helpers.told(lines)[-2:]] == ["loader_error", "error"]
    assert not _of(lines, "step_start")


def test_toggles_switch_their_files_and_fields_off(
    make_order: Callable[..., Path], helpers: Any
) -> None:
    names = ("NSA_TB_DISABLE", "NSA_DISABLE_CSV_LOGS", "NSA_DISABLE_AUX_STATS")
    off = make_order("off")
    helpers.build_trainer(off, dict.fromkeys(names, "1")).run()
    on = make_order("on")
    helpers.build_trainer(on, {"NSA_MEM_DUMP_EVERY": "2"}).run()
    assert not (off.parent / "training.csv").exists()
    assert not (off.parent / "gate_health.csv").exists()
    header, *rows = (on.parent / "training.csv").read_text().splitlines()
    assert header == "step,loss,lr,grad_norm,toks_per_s,dt_fetch_s"
    losses = [line["loss"] for line in _of(helpers.read_lines(on.parent), "progress")]
    assert [float(row.split(",")[1]) for row in rows] == losses
    assert len((on.parent / "gate_health.csv").read_text().splitlines()) == 1 + 4 * 2
    assert not [file for file in off.parent.iterdir() if file.name.startswith("mem_")]
    assert (on.parent / "mem_pre_step2.json").exists()
    assert (on.parent / "mem_post_step4.txt").exists()
    for folder, there in ((off.parent, False), (on.parent, True)):
        for line in _of(helpers.read_lines(folder), "progress"):
            assert ("gate_entropy" in line) is there
    assert helpers.read_lines(off.parent)[0]["nsa_env"] == dict.fromkeys(names, "1")
    assert not (off.parent / "tb").exists()


def test_sigusr1_writes_the_stacks_and_training_goes_on(
    make_order: Callable[..., Path], helpers: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    order = make_order()
    real = nsa.trainer.learning_rate

    def signalled(step: int, optim: Any) -> float:
        if step == 2:
            os.kill(os.getpid(), signal.SIGUSR1)
        return real(step, optim)

    monkeypatch.setattr(nsa.trainer, "learning_rate", signalled)
    helpers.build_trainer(order).run()
    (dump,) = order.parent.glob("stackdump_rank0_*.txt")
    assert "signalled" in dump.read_text()
    assert "_train_step" in dump.read_text()
    assert _of(helpers.read_lines(order.parent), "done")
    assert not (order.parent / ".stackdump_rank0.txt").exists()


def test_an_attention_backend_that_is_not_here_is_bad_configuration(
    make_order: Callable[..., Path], tiny: dict[str, Any], helpers: Any
) -> None:
    order = make_order(train={"attention": {**tiny["attention"], "backend": "triton"}})
    with pytest.raises(BadConfig, match="triton"):
        helpers.build_trainer(order).run()


def test_bf16_trains_on_fp32_weights(train_here: TrainHere, tmp_path: Path) -> None:
    lines = train_here(train={"dtype": "bf16", "steps": 6}, checkpoint={"every_steps": 6})
    assert all(math.isfinite(loss) for loss in _losses(lines))
    assert lines[0]["dtype"] == "bf16"
    saved = load_checkpoint(tmp_path / "run" / "checkpoints" / "step_000006")
    assert {tensor.dtype for tensor in saved.model.values()} == {torch.float32}


@pytest.mark.parametrize(
    ("environ", "share", "path"),
    [({}, 1.0, "sdpa:flash"), ({"NSA_SDPA_NO_FLASH": "1"}, 0.0, "sdpa:math")],
    ids=["flash", "no-flash"],
)
def test_dense_attention_tells_whether_flash_kernels_served_it(
    make_order: Callable[..., Path],
    tiny: dict[str, Any],
    helpers: Any,
    environ: dict[str, str],
    share: float,
    path: str,
) -> None:
    dense = {"attention": {**tiny["attention"], "kind": "dense"}, "dtype": "bf16"}
    order = make_order(train={**dense, "eval": {"every_steps": 2, "batches": 1}})
    try:
        helpers.build_trainer(order, environ).run()
    finally:
        torch.backends.cuda.enable_flash_sdp(True)
    told = _of(helpers.read_lines(order.parent), "progress")
    assert [line["flash_share"] for line in told] == [share] * 4
    assert f"dense,{path},," in (order.parent / "fallback_counters.csv").read_text()


@pytest.mark.parametrize(("backend", "share"), [("torch", 0.0), ("reference", None)])
def test_sparse_attention_tells_of_flash_only_where_a_dense_kernel_was_to_be_chosen(
    train_here: TrainHere, tiny: dict[str, Any], backend: str, share: float | None
) -> None:
    lines = train_here(train={"attention": {**tiny["attention"], "backend": backend}, "steps": 1})
    assert [line.get("flash_share") for line in _of(lines, "progress")] == [share]


def test_the_learning_rate_warms_up_decays_and_stays(tiny: dict[str, Any]) -> None:
    from nsa.config import build_config

    optim = build_config(tiny).optim
    rates = [learning_rate(step, optim) for step in range(1, 60)]
    assert rates[:2] == [0.005, 0.01]
    assert all(later <= earlier for earlier, later in pairwise(rates[1:]))
    assert rates[39] == pytest.approx(0.001)
    assert rates[58] == pytest.approx(0.001)
    assert rates[20] == pytest.approx(0.001 + 0.009 * 0.5, abs=1e-9)
