"""DDP and FSDP train like one process, and resume from each other's checkpoints."""

import pytest

from nsa.checkpoint import load_checkpoint
from tests.nsa.parquet_folder import write_parquet_folder
from tests.nsa.runs import LIMIT_S, losses, of, read_lines

STEPS = 50
HALF = {"every_steps": STEPS // 2}


def _run(launch_ranks, order, **more):
    """Both ranks to the end; the lines of rank 0, whose losses rank 1 has too."""
    codes = [process.wait(LIMIT_S) for process in launch_ranks(order, **more)]
    assert codes == [0, 0], (order.parent / "rank0.log").read_text()
    one, two = (read_lines(order.parent, rank) for rank in (0, 1))
    assert losses(one) == losses(two)
    return one


def _saved(tmp_path, step):
    places = (tmp_path / name / "checkpoints" / f"step_{step:06d}" for name in ("alone", "pair"))
    return [load_checkpoint(place) for place in places]


@pytest.mark.long
@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_two_ranks_with_checkpointed_activations_equal_one_process_over_50_steps(
    parallel, make_order, launch_ranks, train_here, tmp_path
):
    alone = train_here("alone", train={"steps": STEPS}, checkpoint=HALF)
    train = {"steps": STEPS, "parallel": parallel, "model": {"gradient_checkpointing": True}}
    train |= {"batch": {"accumulate": 2}, "eval": {"every_steps": STEPS // 2, "batches": 2}}
    order = make_order("pair", train=train, world_size=2, checkpoint=HALF)
    pair = _run(launch_ranks, order)
    assert pair[0]["backend"] == parallel.upper()
    for key in ("params", "dim", "vocab", "groups"):
        assert pair[0][key] == alone[0][key]
    assert losses(pair) == pytest.approx(losses(alone), rel=1e-4)
    own, other = _saved(tmp_path, STEPS)
    assert own.optimizer["state"].keys() == other.optimizer["state"].keys()
    for name, tensor in own.model.items():
        assert (other.model[name] - tensor).norm() <= 1e-4 * tensor.norm(), name
    # One process resumes what two ranks saved half way.
    half = {"path": str(order.parent / "checkpoints" / "step_000025"), "step": 25}
    rest = train_here("rest", train={"steps": STEPS}, resume_from=half)
    assert losses(rest) == pytest.approx(losses(alone)[25:], rel=1e-4)
    steps = of(pair, "step_end")
    per_step = steps[-1]["collective_seq"] - steps[-2]["collective_seq"]
    # The step's own; one reduction a bucket or shard (two blocks and the rest), not one for each
    # of the two parts; each part gathers three shards forwards and two backwards; the norm.
    assert per_step == {"ddp": 1 + 1, "fsdp": 1 + 3 + 2 * (3 + 2) + 1}[parallel]


@pytest.mark.long
def test_what_one_process_saved_two_sharded_ranks_go_on_with(
    make_order, launch_ranks, train_here, tmp_path
):
    documents = [f"<{number}>" + "text " * (number % 37) for number in range(400)]
    write_parquet_folder(tmp_path / "corpus", documents, files=3, rows_per_group=20)
    train = {"steps": 20, "data": f"parquet:{tmp_path / 'corpus'}"}
    every = {"checkpoint": {"every_steps": 10}}
    alone = train_here("alone", train=train, **every)
    half = {"path": str(tmp_path / "alone" / "checkpoints" / "step_000010"), "step": 10}
    train["parallel"] = "fsdp"
    order = make_order("pair", train=train, world_size=2, resume_from=half, **every)
    pair = _run(launch_ranks, order)
    assert losses(pair) == pytest.approx(losses(alone)[10:], rel=1e-4)
    own, other = _saved(tmp_path, 20)
    assert sorted(own.marks) == sorted(other.marks)
    assert len(own.marks) == 4


@pytest.mark.long
def test_fp16_on_sharded_ranks_skips_the_same_steps_everywhere(make_order, launch_ranks):
    train = {"steps": 6, "parallel": "fsdp", "dtype": "fp16"}
    order = make_order("pair", train=train, world_size=2)
    environ = {"NSA_SCALER_INIT_SCALE": "4e6", "NSA_DDP_COMPRESS": "bf16"}
    boot, *lines = _run(launch_ranks, order, environ=environ)
    on_the_wire = {line["comm_mb"] for line in of(lines, "progress")}
    assert on_the_wire == {round(boot["params"] * 2 / 2**20, 6)}
    both = [
        [
            (line["skipped"], line["loss_scale"])
            for line in of(read_lines(order.parent, rank), "progress")
        ]
        for rank in (0, 1)
    ]
    assert both[0] == both[1]
    assert both[0][0] == (True, 2e6)
    assert both[0][-1][0] is False


def test_one_sharded_rank_trains_what_one_process_trains_and_can_be_poisoned(train_here):
    steps = {"eval": {"every_steps": 4, "batches": 1}}
    alone = train_here("alone", train=steps)
    sharded = train_here("sharded", train={**steps, "parallel": "fsdp"})
    assert losses(sharded) == pytest.approx(losses(alone), rel=1e-5)
    poisoned = train_here("poisoned", train={"parallel": "fsdp"}, fault="nan:step=3")
    assert losses(poisoned)[2:] == ["NaN"] * 2
