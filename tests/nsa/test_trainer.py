"""One rank from its boot line to `done`: what it writes, resumes from, obeys and refuses."""

import json
import math
from itertools import pairwise

import pytest
import torch
import yaml

import nsa.run_signals
import nsa.trainer
from nsa.assignment import Cadence, launch_from_file
from nsa.checkpoint import load_checkpoint
from nsa.config import build_config
from nsa.errors import BadConfig, DataFailure, Halted, NonFinite
from nsa.optimizer import learning_rate
from nsa.settings import load_settings
from nsa.stacks import StackDumps
from nsa.trainer import Trainer
from tests.nsa.runs import ENGINE, build_trainer, losses, of, read_lines, told, write_order


def _saved_steps(lines):
    return [int(line["path"].rpartition("_")[2]) for line in of(lines, "checkpoint")]


def _resume(tmp_path, step, name="whole", claimed=None):
    place = tmp_path / name / "checkpoints" / f"step_{step:06d}"
    return {"path": str(place), "step": step if claimed is None else claimed}


def _by_hand(tmp_path, mapping, **launch):
    """A trainer of a configuration file, and its folder."""
    file, out, settings = tmp_path / "tiny.yaml", tmp_path / "out", load_settings({})
    file.write_text(yaml.safe_dump(mapping))
    made = launch_from_file(file, run_dir=out, settings=settings, **launch)
    return Trainer(made, settings, StackDumps(out, 0)), out


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """The folder of a run of three steps as attempt 3 of an experiment's run."""
    order = write_order(tmp_path_factory.mktemp("plain"), train={"steps": 3}, attempt=3)
    build_trainer(order, {"GONOGO_RUN": "run_x"}).run()
    return order.parent


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The folder around a run `whole` of four steps with checkpoints at 2 and 4."""
    base = tmp_path_factory.mktemp("base")
    build_trainer(write_order(base, "whole", checkpoint={"every_steps": 2})).run()
    return base


def test_every_step_writes_its_three_lines_in_order(plain):
    lines = read_lines(plain)
    steps = [(line["step"], line["msg"]) for line in told(lines) if line["step"] > 0]
    expected = [(k, msg) for k in (1, 2, 3) for msg in ("step_start", "progress", "step_end")]
    assert steps == [*expected, (3, "done")]
    assert [line["seq"] for line in lines] == list(range(1, len(lines) + 1))
    assert lines[0]["msg"] == "boot"
    (ready,) = of(lines, "loader_ready")
    assert ready["dt"] >= 0
    assert ready["seq"] < of(lines, "step_start")[0]["seq"]


def test_a_step_accounts_for_its_time_and_tokens(plain):
    lines = read_lines(plain)
    for progress, end in zip(of(lines, "progress"), of(lines, "step_end"), strict=True):
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


def test_the_boot_line_holds_what_was_counted_on_the_model(plain):
    boot = read_lines(plain)[0]
    assert boot["params"] == 20_408 + 2 * 256 * 32
    expected = {"dim": 32, "layers": 2, "heads": 4, "groups": 2, "seq_len": 64, "vocab": 256}
    expected |= {"dtype": "fp32", "tokens_per_step": 256, "world_size": 1, "nsa_env": {}}
    expected |= {"dataset": "synthetic", "parallel": "single", "backend": "single"}
    expected |= {"torch": str(torch.__version__), "device": "cpu", "driver": None}
    expected |= {"run": "run_x", "attempt": 3}
    assert {key: boot[key] for key in expected} == expected
    assert len(boot["config_digest"]) == 64
    model = json.loads((plain / "model.json").read_text())
    assert len(model) == 18
    assert model == {key: boot[key] for key in model}
    assert not (plain / "checkpoints").exists()


def test_the_same_seed_gives_the_same_losses_and_another_does_not(plain, train_here):
    assert losses(train_here("two", train={"steps": 3})) == losses(read_lines(plain))
    assert losses(train_here("three", train={"seed": 7, "steps": 3})) != losses(read_lines(plain))


def test_accumulation_gives_the_losses_of_the_big_batch(plain, train_here):
    parts = train_here(train={"steps": 3, "batch": {"accumulate": 4}})
    assert losses(parts) == pytest.approx(losses(read_lines(plain)), abs=1e-5)
    assert of(parts, "step_end")[0]["tokens"] == 256


def test_it_learns(train_here):
    evaluation = {"every_steps": 30, "batches": 1}
    lines = train_here(train={"steps": 30, "data": "local_text", "eval": evaluation})
    found = losses(lines)
    assert found[0] == pytest.approx(math.log(256), abs=0.5)
    assert sum(found[-5:]) / 5 < found[0] - 0.6
    (evaluated,) = of(lines, "eval")
    assert evaluated["section"] == "eval"
    assert evaluated["val_loss"] < found[0] - 0.6
    entered = next(line for line in lines if line["section"] == "eval")
    assert 0 < evaluated["dt"] <= evaluated["mono"] - entered["mono"]


def test_a_resumed_run_repeats_the_uninterrupted_one_exactly(whole, train_here):
    lines = read_lines(whole / "whole")
    rest = train_here("rest", resume_from=_resume(whole, 2))
    assert losses(rest) == losses(lines)[2:]
    assert [line["step"] for line in of(rest, "progress")] == [3, 4]
    assert rest[0]["step"] == 2
    assert _saved_steps(lines) == [2, 4]


def test_an_order_that_claims_step_0_takes_the_weights_alone_and_starts_at_step_1(
    whole, train_here, tmp_path
):
    fresh = train_here(
        "fresh",
        train={"steps": 2, "batch": {"global_seqs": 2}},
        resume_from=_resume(whole, 4, claimed=0),
        checkpoint={"every_steps": 1},
    )
    assert fresh[0]["step"] == 0
    assert [line["step"] for line in of(fresh, "progress")] == [1, 2]
    assert losses(fresh)[0] < losses(read_lines(whole / "whole"))[0] - 0.02
    first = load_checkpoint(tmp_path / "fresh" / "checkpoints" / "step_000001")
    assert first.next_sequence == 2
    assert {state["step"].item() for state in first.optimizer["state"].values()} == {1.0}


@pytest.mark.parametrize(
    ("train", "text"),
    [
        ({"batch": {"global_seqs": 2}}, "global_seqs"),
        ({"steps": 2}, "only 2 ordered"),
        ({"packing": {"documents_apart": True}}, "packing was None"),
        ({"attention": {"n_sel": 4, "w": 17}}, r"attention.n_sel was 3, and is 4 now"),
        ({"optim": {"lr": 0.5}, "dtype": "bf16", "model": {"gradient_checkpointing": True}}, None),
        ({"attention": {"backend": "reference"}}, None),
    ],
)
def test_a_checkpoint_that_does_not_fit_is_refused(whole, train_here, train, text):
    if text is None:  # a fit: nothing is left to train
        assert of(train_here(train=train, resume_from=_resume(whole, 4)), "done")
        return
    with pytest.raises(BadConfig, match=text):
        train_here(train=train, resume_from=_resume(whole, 4))


def test_what_is_configured_now_wins_over_what_the_checkpoint_was_trained_with(whole, make_order):
    optim = {"weight_decay": 0.5, "beta2": 0.8}
    train = {"optim": optim, "engine": ENGINE | {"fused_adamw": True}}
    trainer = build_trainer(make_order("rest", train=train, resume_from=_resume(whole, 2)))
    trainer.run()
    matrices, vectors = trainer.setup.optimizer.param_groups
    assert (matrices["weight_decay"], vectors["weight_decay"]) == (0.5, 0.0)
    assert (matrices["betas"], matrices["fused"]) == ((0.9, 0.8), True)
    assert {state["step"].item() for state in trainer.setup.optimizer.state.values()} == {4.0}


def test_halt_leaves_after_the_step_with_a_checkpoint(make_order):
    order = make_order(train={"steps": 50})
    (order.parent / ".HALT").touch()
    with pytest.raises(Halted) as stop:
        build_trainer(order).run()
    assert stop.value.code == 3
    lines = read_lines(order.parent)
    assert [line["step"] for line in of(lines, "step_end")] == [1]
    assert [line["step"] for line in of(lines, "halt_seen")] == [1]
    assert not of(lines, "done")
    assert load_checkpoint(order.parent / of(lines, "checkpoint")[0]["path"]).step == 1


def test_halt_stops_a_run_without_an_order_too_unless_it_was_meant_for_an_earlier_one(
    tiny, tmp_path, monkeypatch
):
    trainer, out = _by_hand(tmp_path, tiny)
    (out / ".HALT").touch()
    real = nsa.trainer.learning_rate

    def rate(step, optim):
        if step == 3:
            (out / ".HALT").touch()
        return real(step, optim)

    monkeypatch.setattr(nsa.trainer, "learning_rate", rate)
    with pytest.raises(Halted):
        trainer.run()
    lines = read_lines(out)
    assert [line["step"] for line in of(lines, "step_end")] == [1, 2, 3]
    assert load_checkpoint(out / of(lines, "checkpoint")[0]["path"]).step == 3


def test_a_directory_with_checkpoints_of_another_run_is_refused(make_order):
    order = make_order(checkpoint={"every_steps": 2})
    build_trainer(order).run()
    left = order.parent / "checkpoints" / "step_000004"
    (left.parent / ".step_000006.draft").mkdir()
    before = (left / "manifest.json").read_bytes()
    with pytest.raises(BadConfig, match=r"step_000002 is of another run"):
        build_trainer(order).run()
    assert (left / "manifest.json").read_bytes() == before
    # A resume from the newest is the same run; leftovers of a kill are deleted.
    mapping = json.loads(order.read_text())
    mapping["resume_from"] = {"path": "checkpoints/step_000004", "step": 4}
    mapping["steps"] = mapping["train"]["steps"] = 6
    order.write_text(json.dumps(mapping))
    build_trainer(order).run()
    places = sorted(place.name for place in left.parent.iterdir())
    assert places == ["step_000002", "step_000004", "step_000006"]


@pytest.mark.parametrize(
    ("halted", "stop", "code", "last"),
    [(True, Halted, 3, "halt_seen"), (False, BadConfig, 4, "error")],
    ids=["halted", "no word in time"],
)
def test_before_go_it_ends_without_a_step(make_order, monkeypatch, halted, stop, code, last):
    monkeypatch.setattr(nsa.run_signals, "_LIMIT_S", 0.1)
    order = make_order(go=False)
    if halted:
        (order.parent / ".HALT").touch()
    with pytest.raises(stop, match="before the first step" if halted else r"no \.GO") as ended:
        build_trainer(order).run()
    assert ended.value.code == code
    assert [line["msg"] for line in told(read_lines(order.parent))] == ["boot", last]


def test_a_poisoned_run_goes_on_until_halted_and_is_never_saved(make_order):
    order = make_order(fault="nan:step=3", train={"steps": 5}, checkpoint={"every_steps": 1})
    build_trainer(order).run()
    lines = read_lines(order.parent)
    assert all(math.isfinite(loss) for loss in losses(lines)[:2])
    assert losses(lines)[2:] == ["NaN"] * 3
    assert _saved_steps(lines) == [1, 2]
    saved = load_checkpoint(order.parent / "checkpoints" / "step_000002")
    assert all(tensor.isfinite().all() for tensor in saved.model.values())


@pytest.mark.parametrize(
    ("dtype", "steps", "skipped"),
    [("fp32", 3, [1]), ("bf16", 40, list(range(1, 21)))],
    ids=["at once", "after twenty updates that moved nothing"],
)
def test_without_a_supervisor_a_run_that_is_not_finite_ends_itself(
    tiny, tmp_path, dtype, steps, skipped
):
    tiny["optim"] |= {"lr": 1e30, "warmup_steps": 0, "clip": 1e30}
    trainer, out = _by_hand(tmp_path, {**tiny, "dtype": dtype, "steps": steps})
    with pytest.raises(NonFinite) as stop:
        trainer.run()
    assert stop.value.code == 6
    lines = read_lines(out)
    assert of(lines, "error")[0]["type"] == "NonFinite"
    steps_told = of(lines, "progress")
    assert [line["skipped_steps"] for line in steps_told if "skipped_steps" in line] == skipped
    assert len(steps_told) < 30
    assert not any(line.get("skipped") for line in steps_told if isinstance(line["loss"], str))


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_without_a_supervisor_a_loss_that_is_not_finite_ends_the_run_at_that_step(
    tiny, tmp_path, dtype
):
    trainer, out = _by_hand(tmp_path, {**tiny, "dtype": dtype}, checkpoint=Cadence(every_steps=1))
    real = trainer._train_step

    def step():
        if trainer.step == 2:
            trainer.setup.model.poison()
        real()

    trainer._train_step = step
    with pytest.raises(NonFinite, match="at step 3"):
        trainer.run()
    assert losses(read_lines(out))[2:] == ["NaN"]
    assert _saved_steps(read_lines(out)) == [1, 2]


def test_the_toy_reports_what_it_is(plain, train_here):
    honest = read_lines(plain)[0]
    toy = train_here("toy", fault="wrong-config", train={"steps": 1})[0]
    assert (toy["dim"], toy["layers"], toy["seq_len"]) == (128, 1, 128)
    for key in ("config_digest", "params", "dim", "layers", "tokens_per_step"):
        assert toy[key] != honest[key]


def test_data_that_is_not_there_is_told_before_it_ends(make_order):
    order = make_order(train={"data": "parquet:/no/such/folder"})
    with pytest.raises(DataFailure) as stop:
        build_trainer(order).run()
    assert stop.value.code == 5
    lines = read_lines(order.parent)
    assert [line["msg"] for line in told(lines)[-2:]] == ["loader_error", "error"]
    assert not of(lines, "step_start")


def test_toggles_switch_their_files_and_fields_off(train_here, tmp_path):
    names = ("NSA_TB_DISABLE", "NSA_DISABLE_CSV_LOGS", "NSA_DISABLE_AUX_STATS")
    lines = train_here("off", environ=dict.fromkeys(names, "1"))
    left = {file.name for file in (tmp_path / "off").iterdir()}
    assert not left & {"training.csv", "gate_health.csv", "k_stats.csv", "tb"}
    assert not any(name.startswith("mem_") for name in left)
    assert not any("gate_entropy" in line for line in of(lines, "progress"))
    assert lines[0]["nsa_env"] == dict.fromkeys(names, "1")


def test_an_attention_backend_that_is_not_here_is_bad_configuration(train_here):
    with pytest.raises(BadConfig, match="triton"):
        train_here(train={"attention": {"backend": "triton"}})


@pytest.mark.parametrize(
    ("attention", "environ", "share"),
    [
        ({"kind": "dense"}, {}, 1.0), ({"kind": "dense"}, {"NSA_SDPA_NO_FLASH": "1"}, 0.0),
        ({"backend": "reference"}, {}, None),
    ],
)  # fmt: skip
def test_the_share_of_flash_kernels_is_told_where_one_could_serve(
    train_here, tmp_path, attention, environ, share
):
    train = {"attention": attention, "dtype": "bf16", "steps": 1}
    try:
        lines = train_here(train=train, environ=environ)
    finally:
        torch.backends.cuda.enable_flash_sdp(True)
    assert [line.get("flash_share") for line in of(lines, "progress")] == [share]
    if attention.get("kind") == "dense":
        path = "sdpa:math" if environ else "sdpa:flash"
        assert f"dense,{path},," in (tmp_path / "run" / "fallback_counters.csv").read_text()


def test_the_learning_rate_warms_up_decays_and_stays(tiny):
    optim = build_config(tiny).optim
    rates = [learning_rate(step, optim) for step in range(1, 60)]
    assert rates[:2] == [0.005, 0.01]
    assert all(later <= earlier for earlier, later in pairwise(rates[1:]))
    assert rates[39] == rates[58] == pytest.approx(0.001)
    assert rates[20] == pytest.approx(0.001 + 0.009 * 0.5, abs=1e-9)
