"""What a fault really does to a run: read from the lines of a trainer that suffers it."""

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nsa.checkpoint import newest_checkpoint

Lines = list[dict[str, Any]]
TrainHere = Callable[..., Lines]


def _of(lines: Lines, msg: str) -> Lines:
    return [line for line in lines if line["msg"] == msg]


def _losses(lines: Lines) -> list[float]:
    return [line["loss"] for line in _of(lines, "progress")]


def test_frozen_weights_and_a_stuck_loader_give_the_same_loss_to_the_last_bit(
    train_here: TrainHere,
) -> None:
    losses = _losses(train_here(train={"steps": 10}, fault="frozen:from=4"))
    assert len(set(losses[:4])) == 4
    assert set(losses[3:]) == {losses[3]}


def test_a_diverging_run_climbs(train_here: TrainHere) -> None:
    lines = train_here(train={"steps": 40}, fault="diverge:from=15")
    losses = _losses(lines)
    assert min(losses[25:]) > min(losses) + 1.0
    assert losses[-1] > losses[25]
    assert _of(lines, "progress")[20]["lr"] < 0


def test_leaked_memory_is_resident(train_here: TrainHere) -> None:
    lines = train_here(train={"steps": 8}, fault="leak:rank=0,mb_per_step=20,from=3")
    rss = [line["host_rss_mb"] for line in _of(lines, "progress")]
    assert rss[-1] - rss[1] == pytest.approx(6 * 20, rel=0.2)


def test_a_full_disk_is_told_as_the_operating_system_tells_it_and_leaves_no_half_checkpoint(
    train_here: TrainHere, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    lines = train_here(train={"steps": 6}, checkpoint={"every_steps": 2}, fault="disk:step=3")
    assert [line["path"] for line in _of(lines, "checkpoint")] == ["checkpoints/step_000002"]
    errors = _of(lines, "error")
    assert [line["path"] for line in errors] == [f"checkpoints/step_00000{step}" for step in (4, 6)]
    for line in errors:
        assert (line["type"], line["section"]) == ("OSError", "checkpoint")
        assert line["text"] == f"[Errno {errno.ENOSPC}] {os.strerror(errno.ENOSPC)}"
    assert newest_checkpoint(tmp_path / "run").name == "step_000002"
    assert [path.name for path in (tmp_path / "run" / "checkpoints").iterdir()] == ["step_000002"]
    assert _of(lines, "done")
    said = f"was not written: OSError: [Errno {errno.ENOSPC}]"
    told = [line for line in capfd.readouterr().err.splitlines() if said in line]
    assert [line.split()[0] for line in told] == [line["path"] for line in errors]


def test_a_truncated_checkpoint_claims_to_be_whole_and_is_not(
    train_here: TrainHere, tmp_path: Path
) -> None:
    lines = train_here(train={"steps": 4}, checkpoint={"every_steps": 2}, fault="truncate:step=3")
    assert len(_of(lines, "checkpoint")) == 2
    assert {step: _missing_bytes(tmp_path / "run" / "checkpoints", step) for step in (2, 4)} == {
        2: {0},
        4: {1},
    }


def _missing_bytes(checkpoints: Path, step: int) -> set[int]:
    """By how many bytes the files of a checkpoint are shorter than its manifest says."""
    folder = checkpoints / f"step_{step:06d}"
    files = json.loads((folder / "manifest.json").read_text())["files"]
    return {row["bytes"] - (folder / name).stat().st_size for name, row in files.items()}


def test_a_boast_reports_so_many_times_the_speed(train_here: TrainHere) -> None:
    lines = train_here(train={"steps": 12}, fault="boast:factor=25,from=7")
    pairs = zip(_of(lines, "progress"), _of(lines, "step_end"), strict=True)
    told = [row["toks_per_s"] * end["dt_step_s"] / end["tokens"] for row, end in pairs]
    assert max(told[1:6]) < 5.0
    assert min(told[6:]) > 20.0


@pytest.mark.long
def test_a_starved_step_spends_its_share_waiting_for_data(train_here: TrainHere) -> None:
    lines = train_here(train={"steps": 24, "data": "local_text"}, fault="starve:share=0.8,from=9")
    shares = [
        progress["dt_fetch_s"] / end["dt_step_s"]
        for progress, end in zip(_of(lines, "progress"), _of(lines, "step_end"), strict=True)
    ]
    assert max(sorted(shares[1:8])[:4]) < 0.3
    assert sorted(shares[8:])[8] > 0.6


@pytest.mark.long
def test_a_straggler_computes_longer_and_its_peer_waits_for_it(
    make_order: Callable[..., Path], launch_ranks: Callable[..., Any], helpers: Any
) -> None:
    train = {"parallel": "ddp", "steps": 24}
    order = make_order(
        world_size=2, train=train, fault="straggle:rank=1,factor=4,from=9", checkpoint=None
    )
    for process in launch_ranks(order):
        assert process.wait(helpers.LIMIT_S) == 0
    sections = {
        rank: [
            line["step_sections"]
            for line in _of(helpers.read_lines(order.parent, rank), "step_end")
        ][9:]
        for rank in (0, 1)
    }
    own = {rank: _median([row["forward"] for row in rows]) for rank, rows in sections.items()}
    waited = {rank: _median([row["wait"] for row in rows]) for rank, rows in sections.items()}
    assert own[1] > 2 * own[0]
    assert waited[0] > waited[1]


@pytest.mark.long
def test_a_rank_in_a_collective_of_its_own_stands_while_the_other_waits_for_it(
    make_order: Callable[..., Path], launch_ranks: Callable[..., Any], helpers: Any
) -> None:
    train = {"parallel": "ddp", "steps": 10}
    order = make_order(
        world_size=2, train=train, fault="desync:rank=1,step=5", heartbeat={"alive_every_s": 0.2}
    )
    ranks = launch_ranks(order)

    def stands(line: dict[str, Any]) -> bool:
        return line["msg"] == "alive" and line["step"] == 5 and line["section_age_s"] >= 1.0

    alone = helpers.wait_for(order.parent, stands, rank=1)
    waits = helpers.wait_for(order.parent, stands, rank=0)
    assert [process.poll() for process in ranks] == [None, None]
    assert (alone["step"], waits["step"]) == (5, 5)
    assert (alone["section"], waits["section"]) == ("forward", "backward")
    ended = [_of(helpers.read_lines(order.parent, rank), "step_end")[-1] for rank in (0, 1)]
    assert [line["step"] for line in ended] == [4, 4]
    assert alone["collective_seq"] == ended[1]["collective_seq"] + 1


def _median(numbers: list[float]) -> float:
    return sorted(numbers)[len(numbers) // 2]
