"""What only two real processes can show."""

import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

LaunchRanks = Callable[..., list["subprocess.Popen[bytes]"]]
MakeOrder = Callable[..., Path]
DDP = {"parallel": "ddp"}


def _of(lines: list[dict[str, Any]], msg: str) -> list[dict[str, Any]]:
    return [line for line in lines if line["msg"] == msg]


def _is(msg: str, **fields: Any) -> Callable[[dict[str, Any]], bool]:
    wanted = {"msg": msg, **fields}
    return lambda line: wanted.items() <= line.items()


def test_two_ranks_under_torchrun_wait_for_go_and_equal_one_rank_that_accumulates(
    make_order: MakeOrder, start_torchrun: Any, train_here: Any, helpers: Any
) -> None:
    batch = {"global_seqs": 4, "accumulate": 2}
    alone = train_here("alone", train={"steps": 3, "batch": batch})
    order = make_order("pair", go=False, train={"steps": 3, **DDP}, world_size=2)
    agent = start_torchrun(order)
    boots = [helpers.wait_for(order.parent, _is("boot"), rank) for rank in (0, 1)]
    time.sleep(0.3)
    assert not _of(helpers.read_lines(order.parent), "step_start")
    (order.parent / ".GO").touch()
    assert agent.wait(helpers.LIMIT_S) == 0
    own = {"rank", "pid", "boot", "ts", "iso", "mono"}
    one, two = ({k: v for k, v in boot.items() if k not in own} for boot in boots)
    assert one == two
    assert (one["backend"], one["world_size"], one["parallel"]) == ("DDP", 2, "ddp")
    for rank in (0, 1):
        lines = helpers.read_lines(order.parent, rank)
        assert [line["seq"] for line in lines] == list(range(1, len(lines) + 1))
        steps = [line["msg"] for line in helpers.told(lines) if line["step"] > 0]
        assert steps == ["step_start", "progress", "step_end"] * 3 + ["done"]
        losses = [line["loss"] for line in _of(lines, "progress")]
        assert losses == pytest.approx([p["loss"] for p in _of(alone, "progress")], abs=1e-5)
        norms = [line["grad_norm"] for line in _of(lines, "progress")]
        assert norms == pytest.approx([p["grad_norm"] for p in _of(alone, "progress")], rel=1e-3)
        assert {line["tokens"] for line in _of(lines, "step_end")} == {256}
        assert _comm_mb(lines) == [round(lines[0]["params"] * 4 / 2**20, 6)] * 3
    assert _comm_mb(alone) == [None] * 3


def test_halt_takes_all_ranks_out_at_the_same_step_and_the_run_resumes_exactly(
    make_order: MakeOrder, launch_ranks: LaunchRanks, helpers: Any, train_here: Any
) -> None:
    order = make_order(
        "halted",
        train={"steps": 100_000, **DDP, "eval": {"every_steps": 5, "batches": 1}},
        world_size=2,
    )
    ranks = launch_ranks(order)
    helpers.wait_for(order.parent, _is("step_end", step=6))
    (order.parent / ".HALT").touch()
    assert [process.wait(helpers.LIMIT_S) for process in ranks] == [3, 3]
    both = [helpers.read_lines(order.parent, rank) for rank in (0, 1)]
    last = [lines[-1] for lines in both]
    assert last[0]["step"] == last[1]["step"] >= 6
    for lines in both:
        assert len(_of(lines, "halt_seen")) == len(_of(lines, "checkpoint")) == 1
        assert _of(lines, "eval")[0]["val_loss"] == _of(both[0], "eval")[0]["val_loss"]
    step = last[0]["step"]
    place = order.parent / _of(both[0], "checkpoint")[0]["path"]
    train = {"steps": step + 2}
    straight = train_here("straight", train=train)
    resumed = train_here("resumed", train=train, resume_from={"path": str(place), "step": step})
    after = [line["loss"] for line in _of(straight, "progress")][step:]
    assert [line["loss"] for line in _of(resumed, "progress")] == pytest.approx(after, abs=1e-4)


@pytest.mark.long
def test_of_a_hang_in_backward_the_culprit_is_the_rank_that_entered_fewer_collectives(
    make_order: MakeOrder, launch_ranks: LaunchRanks, helpers: Any
) -> None:
    order = make_order(
        train={"steps": 10, **DDP},
        world_size=2,
        fault="hang:rank=1,step=3,section=backward",
        heartbeat={"alive_every_s": 0.3},
    )
    ranks = launch_ranks(order)
    alive = [
        helpers.wait_for(order.parent, _is("alive", step=3, section="backward"), rank)
        for rank in (0, 1)
    ]
    assert alive[1]["collective_seq"] < alive[0]["collective_seq"]
    assert alive[1]["section_age_s"] > 0
    for process in ranks:
        assert process.poll() is None
        process.send_signal(signal.SIGUSR1)
    for rank, frame in ((0, "backward"), (1, "strike")):
        line = helpers.wait_for(order.parent, _is("stackdump"), rank)
        assert frame in (order.parent / line["path"]).read_text()
        assert not _of(helpers.read_lines(order.parent, rank), "error")


@pytest.mark.long
def test_a_rank_that_dies_is_told_by_its_peer_and_a_frozen_one_only_falls_silent(
    make_order: MakeOrder, launch_ranks: LaunchRanks, helpers: Any
) -> None:
    crash = make_order("crash", train=DDP, world_size=2, fault="crash:rank=1,step=2")
    freeze = make_order("freeze", train=DDP, world_size=2, fault="freeze:rank=0,step=2")
    survivor, dead = launch_ranks(crash)
    assert dead.wait(helpers.LIMIT_S) == -signal.SIGKILL
    assert survivor.wait(helpers.LIMIT_S) == 1
    assert helpers.read_lines(crash.parent, 1)[-1]["msg"] == "step_start"
    assert helpers.wait_for(crash.parent, _is("error"))["step"] == 2
    frozen, waiting = launch_ranks(freeze)
    helpers.wait_for(freeze.parent, _is("step_start", step=2), 0)
    deadline = time.monotonic() + helpers.LIMIT_S
    while _state(frozen.pid) != "T":
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert waiting.poll() is None


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0]


@pytest.mark.parametrize(
    ("environ", "tolerance"),
    [({"NSA_DDP_STATIC_GRAPH": "1"}, 1e-5), ({"NSA_DDP_COMPRESS": "bf16"}, 2e-2)],
    ids=["static-graph", "bf16-gradients"],
)
@pytest.mark.long
def test_two_ranks_that_accumulate_equal_one_big_batch_and_the_fast_one_waits(
    make_order: MakeOrder,
    launch_ranks: LaunchRanks,
    helpers: Any,
    train_here: Any,
    environ: dict[str, str],
    tolerance: float,
) -> None:
    alone = train_here("alone", train={"steps": 4})
    model = {**helpers.TINY["model"], "gradient_checkpointing": True}
    batch = {"global_seqs": 4, "accumulate": 2}
    train = {"steps": 4, "batch": batch, "model": model, **DDP}
    slow = "slow:rank=1,factor=10,from=2"
    order = make_order("pair", train=train, world_size=2, fault=slow)
    ranks = launch_ranks(order, environ=environ)
    assert [process.wait(helpers.LIMIT_S) for process in ranks] == [0, 0]
    expected = [line["loss"] for line in _of(alone, "progress")]
    both = [helpers.read_lines(order.parent, rank) for rank in (0, 1)]
    losses = [[line["loss"] for line in _of(lines, "progress")] for lines in both]
    assert losses[0] == losses[1] == pytest.approx(expected, abs=tolerance)
    assert losses[0][1:] != expected[1:]
    assert both[0][0]["nsa_env"] == environ
    waits, own = ([_spent(lines, names) for lines in both] for names in (["wait"], ["optimizer"]))
    assert waits[0] > own[1] / 2 > own[0]


@pytest.mark.long
def test_compressed_gradients_are_half_the_megabytes_however_they_are_bucketed(
    make_order: MakeOrder, launch_ranks: LaunchRanks, helpers: Any
) -> None:
    model = {**helpers.TINY["model"], "dim": 128, "ffn_width": 512}
    train = {"steps": 3, "model": model, "batch": {"global_seqs": 4, "accumulate": 2}, **DDP}
    order = make_order(train=train, world_size=2)
    environ = {"NSA_DDP_COMPRESS": "bf16", "NSA_DDP_BUCKET_MB": "1"}
    ranks = launch_ranks(order, environ=environ)
    assert [process.wait(helpers.LIMIT_S) for process in ranks] == [0, 0]
    for rank in (0, 1):
        lines = helpers.read_lines(order.parent, rank)
        # Only the averaging part of a step's two parts sends anything.
        assert _comm_mb(lines) == [round(lines[0]["params"] * 2 / 2**20, 6)] * 3
        entered = [line["collective_seq"] for line in _of(lines, "step_end")]
        buckets = entered[-1] - entered[-2] - 1  # the other one averages the loss
        assert buckets == 2


def _comm_mb(lines: list[dict[str, Any]]) -> list[float | None]:
    return [line.get("comm_mb") for line in _of(lines, "progress")]


def _spent(lines: list[dict[str, Any]], names: list[str]) -> float:
    """Seconds of the named sections from step 2 on."""
    ends = [line for line in _of(lines, "step_end") if line["step"] >= 2]
    return sum(line["step_sections"][name] for line in ends for name in names)
