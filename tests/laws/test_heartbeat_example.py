"""Does the example trainer of docs/reference/heartbeats.md keep the protocol?"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gonogo.contract.canonical import digest
from gonogo.contract.heartbeat import Heartbeat, Msg, parse_heartbeat
from gonogo.contract.order import Order
from gonogo.contract.wire import Kind, new_id
from gonogo.rundir import RunDir, load_all_lines, save_json
from tests.laws.recipe import run_recipe
from tests.servers import wait_until

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "docs/examples/trainer.py"
STEPS = 5
RUN = new_id(Kind.RUN)
"""The token by which a keeper finds the processes of its run: two sessions of tests share none."""
TRAIN = {"points": 20_000, "name": "line"}


def write_order(folder: Path) -> None:
    """An order of two ranks that checks nothing but the digest of the configuration."""
    order = Order(
        experiment="exp_1",
        run=RUN,
        token=1,
        plan="example",
        plan_digest="0" * 64,
        phase="smoke",
        steps=STEPS,
        world_size=2,
        profile="cpu",
        entry="docs.examples.trainer",
        train=TRAIN,
        identity={"config_digest": digest(TRAIN), "world_size": 2},
        heartbeat={"alive_every_s": 0.2},
    )
    save_json(folder / "order.json", order.document())


def start_rank(folder: Path, rank: int) -> subprocess.Popen[bytes]:
    command = [sys.executable, str(EXAMPLE), "--order", str(folder / "order.json")]
    environment = {**os.environ, "RANK": str(rank), "WORLD_SIZE": "2", "GONOGO_RUN": RUN}
    return subprocess.Popen(command, env=environment)


def lines_of(folder: Path, rank: int) -> list[Heartbeat]:
    return [parse_heartbeat(raw) for raw in load_all_lines(RunDir(folder).heartbeat(rank))]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run directory of two ranks that waited for `.GO` a while and then ran to the end."""
    folder = tmp_path_factory.mktemp("run")
    write_order(folder)
    ranks = [start_rank(folder, rank) for rank in (0, 1)]
    waiting = lambda: any(line.msg == Msg.ALIVE for line in lines_of(folder, 0))  # noqa: E731 - one use
    wait_until(waiting, what="an alive line while waiting for .GO")
    assert not any(line.step for line in lines_of(folder, 0))
    RunDir(folder).go.touch()
    assert [rank.wait(timeout=120) for rank in ranks] == [0, 0]
    return folder


@pytest.mark.parametrize("rank", [0, 1])
def test_every_step_of_every_rank_is_complete(finished: Path, rank: int) -> None:
    lines = lines_of(finished, rank)
    for msg in (Msg.STEP_START, Msg.PROGRESS, Msg.STEP_END):
        assert [line.step for line in lines if line.msg == msg] == list(range(1, STEPS + 1))
    assert (lines[0].msg, lines[-1].msg) == (Msg.BOOT, Msg.DONE)
    assert [line.seq for line in lines] == list(range(1, len(lines) + 1))
    assert {(line.rank, line.boot) for line in lines} == {(rank, lines[0].boot)}
    boot = lines[0]
    assert (boot.run, boot.attempt, boot.config_digest) == (RUN, 1, digest(TRAIN))
    losses = [line.loss for line in lines if line.loss is not None]
    assert losses[-1] < losses[0] / 2


def test_a_halt_ends_it_with_code_3_after_the_step(tmp_path: Path) -> None:
    write_order(tmp_path)
    RunDir(tmp_path).go.touch()
    RunDir(tmp_path).halt.touch()
    assert start_rank(tmp_path, 0).wait(timeout=120) == 3
    lines = lines_of(tmp_path, 0)
    assert lines[-1].msg == Msg.HALT_SEEN
    assert [line.step for line in lines if line.msg == Msg.STEP_END] == [1]
    assert lines[-1].ts <= time.time()


def test_the_recipe_of_the_page_works_word_by_word(tmp_path: Path) -> None:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("GONOGO_", "NSA_"))}
    run = run_recipe(ROOT, {**kept, "PATH": path, "PYTHONPATH": str(ROOT)}, tmp_path)
    assert (run.path / ".torchrun").is_dir(), "torch is installed here: torchrun starts the rank"


def test_the_page_names_every_message_of_the_protocol() -> None:
    page = (ROOT / "docs/reference/heartbeats.md").read_text()
    assert [msg for msg in Msg if f"`{msg}`" not in page] == []
