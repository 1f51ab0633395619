"""Checkpoints are written beside training, one at a time, and are of the step that they name."""

import threading
import time
from types import SimpleNamespace

import pytest
import torch

import nsa.checkpoint_writer
import nsa.trainer
from nsa.checkpoint import load_checkpoint
from nsa.checkpoint_writer import Stage
from tests.nsa.runs import ENGINE, build_trainer, losses, of, read_lines


class Held:
    """`save_checkpoint` that waits until it is let go."""

    def __init__(self, monkeypatch):
        self.let_go, self.entered = threading.Event(), threading.Event()
        self.real = nsa.checkpoint_writer.save_checkpoint
        monkeypatch.setattr(nsa.checkpoint_writer, "save_checkpoint", self)

    def __call__(self, *arguments):
        self.entered.set()
        assert self.let_go.wait(60)
        return self.real(*arguments)


def _paths(lines):
    return [line["path"] for line in of(lines, "checkpoint")]


@pytest.mark.parametrize(
    ("cadence", "saved"),
    [
        ({"every_steps": None, "every_s": 1e-6}, [1, 2, 3, 4]),
        ({"every_steps": 3, "every_s": 3600}, [3, 4]),
        ({"every_steps": 3, "every_s": 1e-6}, [1, 2, 3, 4]),
        ({"every_steps": None, "every_s": None}, []),
    ],
    ids=["time", "steps first", "time first", "never"],
)
def test_a_checkpoint_is_written_when_steps_or_the_clock_say_so_whichever_comes_first(
    train_here, cadence, saved
):
    expected = [f"checkpoints/step_{step:06d}" for step in saved]
    assert _paths(train_here(checkpoint=cadence)) == expected


def test_an_hour_is_counted_from_the_last_checkpoint(make_order, monkeypatch):
    """Forty minutes a step: after 80 minutes one is due, and after 80 more the next."""
    order = make_order(train={"steps": 6}, checkpoint={"every_steps": 5000, "every_s": 3600})
    trainer = build_trainer(order)
    clock = time.monotonic()
    own = SimpleNamespace(**{**vars(time), "monotonic": lambda: clock})
    monkeypatch.setattr(nsa.checkpoint_writer, "time", own)
    monkeypatch.setattr(nsa.trainer, "time", own)
    real = trainer._between_steps

    def between():
        nonlocal clock
        real()
        clock += 2400

    trainer._between_steps = between
    trainer.run()
    assert _paths(read_lines(order.parent)) == [f"checkpoints/step_00000{n}" for n in (3, 5, 6)]


def test_training_goes_on_while_a_checkpoint_is_written_and_it_is_of_its_own_step(
    make_order, monkeypatch
):
    held = Held(monkeypatch)
    order = make_order(train={"steps": 7}, checkpoint={"every_steps": 3})
    trainer = build_trainer(order)
    weights, real = {}, trainer._between_steps

    def between():
        weights[trainer.step] = trainer.setup.model.head.weight.detach().clone()
        if trainer.step == 5:  # two steps after the copy, and nothing is on the disk
            assert held.entered.wait(60)
            assert not list((order.parent / "checkpoints").glob("step_*"))
            held.let_go.set()
        real()

    trainer._between_steps = between
    trainer.run()
    lines = read_lines(order.parent)
    saved = {line["path"]: line for line in of(lines, "checkpoint")}
    assert list(saved) == [f"checkpoints/step_{step:06d}" for step in (3, 6, 7)]
    for step in (3, 6, 7):
        snapshot = load_checkpoint(order.parent / "checkpoints" / f"step_{step:06d}")
        assert torch.equal(snapshot.model["head.weight"], weights[step])
        assert {state["step"].item() for state in snapshot.optimizer["state"].values()} == {step}
    assert not torch.equal(weights[3], weights[5])
    first = saved["checkpoints/step_000003"]
    assert first["step"] >= 5
    assert 0 < first["held_s"] < first["dt"]
    assert {line["section"] for line in saved.values()} == {"checkpoint"}
    said = [line["msg"] for line in lines]
    assert said[-1] == "done"  # which waits for the last one


def test_a_copy_is_not_changed_by_what_is_trained_on_and_uses_its_room_again():
    weight = torch.arange(4.0)
    state = {"a": {"b": [weight]}, "n": 3}
    stage = Stage()
    first = stage.copy(state)
    weight += 1
    assert first["a"]["b"][0].tolist() == [0, 1, 2, 3]
    again = stage.copy(state)
    assert again["a"]["b"][0].data_ptr() == first["a"]["b"][0].data_ptr()
    assert (again["a"]["b"][0].tolist(), again["n"]) == ([1, 2, 3, 4], 3)


@pytest.mark.parametrize("fused", [False, True], ids=["plain", "fused"])
def test_a_sharded_run_saves_a_whole_state_and_anybody_resumes_from_it(train_here, tmp_path, fused):
    train = {"engine": ENGINE | {"fused_adamw": fused}}
    sharded = train_here(
        "sharded", train={**train, "parallel": "fsdp"}, checkpoint={"every_steps": 2}
    )
    place = str(tmp_path / "sharded" / "checkpoints" / "step_000002")
    for parallel in ("single", "fsdp"):
        rest = train_here(
            parallel, train={**train, "parallel": parallel}, resume_from={"path": place, "step": 2}
        )
        assert losses(rest) == pytest.approx(losses(sharded)[2:], rel=1e-5)


def test_a_write_that_fails_unforeseen_is_told_and_nobody_waits_for_ever(make_order, monkeypatch):
    def fail(*_arguments):
        raise ValueError("torn")

    monkeypatch.setattr(nsa.checkpoint_writer, "save_checkpoint", fail)
    order = make_order(checkpoint={"every_steps": 2})
    running = threading.Thread(target=build_trainer(order).run, daemon=True)
    running.start()
    running.join(60)
    lines = read_lines(order.parent)
    assert [line["text"] for line in of(lines, "error")] == ["torn"] * 2
    assert lines[-1]["msg"] == "done"


def test_a_rank_that_fails_while_a_checkpoint_is_written_leaves_it_whole(make_order, monkeypatch):
    held = Held(monkeypatch)
    order = make_order(train={"steps": 9}, checkpoint={"every_steps": 2})
    trainer = build_trainer(order)
    real = trainer._train_step

    def let_go():
        while not of(read_lines(order.parent), "error"):
            time.sleep(0.01)
        held.let_go.set()

    def step():
        if trainer.step == 3:
            threading.Thread(target=let_go, daemon=True).start()
            raise RuntimeError("an illegal access")
        real()

    trainer._train_step = step
    with pytest.raises(RuntimeError, match="illegal access"):
        trainer.run()
    assert load_checkpoint(order.parent / "checkpoints" / "step_000002").step == 2
    said = [line["msg"] for line in read_lines(order.parent)]
    assert said.index("error") < said.index("checkpoint")
