"""What only two real processes can show."""

import signal
import time
from pathlib import Path

import pytest

from tests.nsa.runs import LIMIT_S, losses, of, read_lines, told, wait_for

DDP = {"parallel": "ddp"}


def _is(msg, **fields):
    wanted = {"msg": msg, **fields}
    return lambda line: wanted.items() <= line.items()


def _both(order):
    return [read_lines(order.parent, rank) for rank in (0, 1)]


def _comm_mb(lines):
    return [line.get("comm_mb") for line in of(lines, "progress")]


def test_two_ranks_under_torchrun_wait_for_go_and_equal_one_rank_that_accumulates(
    make_order, start_torchrun, train_here
):
    alone = train_here("alone", train={"steps": 3, "batch": {"accumulate": 2}})
    order = make_order("pair", go=False, train={"steps": 3, **DDP}, world_size=2)
    agent = start_torchrun(order)
    boots = [wait_for(order.parent, _is("boot"), rank) for rank in (0, 1)]
    time.sleep(0.3)
    assert not of(read_lines(order.parent), "step_start")
    (order.parent / ".GO").touch()
    assert agent.wait(LIMIT_S) == 0
    own = {"rank", "pid", "boot", "ts", "iso", "mono"}
    one, two = ({k: v for k, v in boot.items() if k not in own} for boot in boots)
    assert one == two
    assert (one["backend"], one["world_size"], one["parallel"]) == ("DDP", 2, "ddp")
    norms = [line["grad_norm"] for line in of(alone, "progress")]
    for lines in _both(order):
        assert [line["seq"] for line in lines] == list(range(1, len(lines) + 1))
        steps = [line["msg"] for line in told(lines) if line["step"] > 0]
        assert steps == ["step_start", "progress", "step_end"] * 3 + ["done"]
        assert losses(lines) == pytest.approx(losses(alone), abs=1e-5)
        found = [line["grad_norm"] for line in of(lines, "progress")]
        assert found == pytest.approx(norms, rel=1e-3)
        assert {line["tokens"] for line in of(lines, "step_end")} == {256}
        assert _comm_mb(lines) == [round(lines[0]["params"] * 4 / 2**20, 6)] * 3
    assert _comm_mb(alone) == [None] * 3


@pytest.mark.long
def test_halt_takes_all_ranks_out_at_the_same_step_and_the_run_resumes_exactly(
    make_order, launch_ranks, train_here
):
    train = {"steps": 100_000, **DDP, "eval": {"every_steps": 5, "batches": 1}}
    order = make_order("halted", train=train, world_size=2)
    ranks = launch_ranks(order)
    wait_for(order.parent, _is("step_end", step=6))
    (order.parent / ".HALT").touch()
    assert [process.wait(LIMIT_S) for process in ranks] == [3, 3]
    both = _both(order)
    step = both[0][-1]["step"]
    assert both[1][-1]["step"] == step >= 6
    for lines in both:
        assert len(of(lines, "halt_seen")) == len(of(lines, "checkpoint")) == 1
        assert of(lines, "eval")[0]["val_loss"] == of(both[0], "eval")[0]["val_loss"]
    place = order.parent / of(both[0], "checkpoint")[0]["path"]
    resume, steps = {"path": str(place), "step": step}, {"steps": step + 2}
    straight = train_here("straight", train=steps)
    resumed = train_here("resumed", train=steps, resume_from=resume)
    assert losses(resumed) == pytest.approx(losses(straight)[step:], abs=1e-4)


@pytest.mark.long
def test_of_a_hang_in_backward_the_culprit_is_the_rank_that_entered_fewer_collectives(
    make_order, launch_ranks
):
    order = make_order(
        train={"steps": 10, **DDP},
        world_size=2,
        fault="hang:rank=1,step=3,section=backward",
        heartbeat={"alive_every_s": 0.3},
    )
    ranks, stands = launch_ranks(order), _is("alive", step=3, section="backward")
    alive = [wait_for(order.parent, stands, rank) for rank in (0, 1)]
    assert alive[1]["collective_seq"] < alive[0]["collective_seq"]
    assert alive[1]["section_age_s"] > 0
    for process in ranks:
        assert process.poll() is None
        process.send_signal(signal.SIGUSR1)
    for rank, frame in ((0, "backward"), (1, "strike")):
        line = wait_for(order.parent, _is("stackdump"), rank)
        assert frame in (order.parent / line["path"]).read_text()
        assert not of(read_lines(order.parent, rank), "error")


@pytest.mark.long
def test_a_rank_that_dies_is_told_by_its_peer_and_a_frozen_one_only_falls_silent(
    make_order, launch_ranks
):
    crash = make_order("crash", train=DDP, world_size=2, fault="crash:rank=1,step=2")
    freeze = make_order("freeze", train=DDP, world_size=2, fault="freeze:rank=0,step=2")
    survivor, dead = launch_ranks(crash)
    assert dead.wait(LIMIT_S) == -signal.SIGKILL
    assert survivor.wait(LIMIT_S) == 1
    assert read_lines(crash.parent, 1)[-1]["msg"] == "step_start"
    assert wait_for(crash.parent, _is("error"))["step"] == 2
    frozen, waiting = launch_ranks(freeze)
    wait_for(freeze.parent, _is("step_start", step=2), 0)
    deadline = time.monotonic() + LIMIT_S
    while Path(f"/proc/{frozen.pid}/stat").read_text().rpartition(") ")[2][0] != "T":
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert waiting.poll() is None


@pytest.mark.long
def test_compressed_gradients_are_half_the_megabytes_however_they_are_bucketed(
    make_order, launch_ranks
):
    model = {"dim": 128, "ffn_width": 512}
    train = {"steps": 3, "model": model, "batch": {"accumulate": 2}, **DDP}
    order = make_order(train=train, world_size=2)
    environ = {"NSA_DDP_COMPRESS": "bf16", "NSA_DDP_BUCKET_MB": "1"}
    ranks = launch_ranks(order, environ=environ)
    assert [process.wait(LIMIT_S) for process in ranks] == [0, 0]
    for lines in _both(order):
        # Only the averaging part of a step's two parts sends anything.
        assert _comm_mb(lines) == [round(lines[0]["params"] * 2 / 2**20, 6)] * 3
        entered = [line["collective_seq"] for line in of(lines, "step_end")]
        assert entered[-1] - entered[-2] - 1 == 2  # the other one averages the loss
