"""What a fault really does to a run: read from the lines of a trainer that suffers it."""

import errno
import json
import os
from statistics import median

import pytest

from nsa.checkpoint import newest_checkpoint
from tests.nsa.runs import LIMIT_S, losses, of, read_lines


def test_frozen_weights_and_a_stuck_loader_give_the_same_loss_to_the_last_bit(train_here):
    found = losses(train_here(train={"steps": 7}, fault="frozen:from=4"))
    assert len(set(found[:4])) == 4
    assert set(found[3:]) == {found[3]}


def test_a_diverging_run_climbs(train_here):
    lines = train_here(train={"steps": 22}, fault="diverge:from=8")
    found = losses(lines)
    assert found[-1] > min(found) + 0.5
    assert found[-1] > found[14]
    assert of(lines, "progress")[12]["lr"] < 0


def test_leaked_memory_is_resident(train_here):
    lines = train_here(train={"steps": 6}, fault="leak:rank=0,mb_per_step=20,from=3")
    rss = [line["host_rss_mb"] for line in of(lines, "progress")]
    assert rss[-1] - rss[1] == pytest.approx(4 * 20, rel=0.25)


def test_a_full_disk_is_told_as_the_operating_system_tells_it_and_leaves_no_half_checkpoint(
    train_here, tmp_path, capfd
):
    lines = train_here(train={"steps": 6}, checkpoint={"every_steps": 2}, fault="disk:step=3")
    assert [line["path"] for line in of(lines, "checkpoint")] == ["checkpoints/step_000002"]
    errors = of(lines, "error")
    assert [line["path"] for line in errors] == [f"checkpoints/step_00000{step}" for step in (4, 6)]
    for line in errors:
        assert (line["type"], line["section"]) == ("OSError", "checkpoint")
        assert line["text"] == f"[Errno {errno.ENOSPC}] {os.strerror(errno.ENOSPC)}"
    assert newest_checkpoint(tmp_path / "run").name == "step_000002"
    assert [path.name for path in (tmp_path / "run" / "checkpoints").iterdir()] == ["step_000002"]
    assert of(lines, "done")
    said = f"was not written: OSError: [Errno {errno.ENOSPC}]"
    told = [line for line in capfd.readouterr().err.splitlines() if said in line]
    assert [line.split()[0] for line in told] == [line["path"] for line in errors]


def test_a_truncated_checkpoint_claims_to_be_whole_and_is_not(train_here, tmp_path):
    lines = train_here(checkpoint={"every_steps": 2}, fault="truncate:step=3")
    assert len(of(lines, "checkpoint")) == 2
    for step, missing in ((2, 0), (4, 1)):
        folder = tmp_path / "run" / "checkpoints" / f"step_{step:06d}"
        files = json.loads((folder / "manifest.json").read_text())["files"]
        short = {row["bytes"] - (folder / name).stat().st_size for name, row in files.items()}
        assert short == {missing}


def test_a_boast_reports_so_many_times_the_speed(train_here):
    lines = train_here(train={"steps": 8}, fault="boast:factor=25,from=5")
    pairs = zip(of(lines, "progress"), of(lines, "step_end"), strict=True)
    told = [row["toks_per_s"] * end["dt_step_s"] / end["tokens"] for row, end in pairs]
    assert max(told[1:4]) < 5.0
    assert min(told[4:]) > 20.0


@pytest.mark.long
def test_a_starved_step_spends_its_share_waiting_for_data(train_here):
    lines = train_here(train={"steps": 24, "data": "local_text"}, fault="starve:share=0.8,from=9")
    pairs = zip(of(lines, "progress"), of(lines, "step_end"), strict=True)
    shares = [progress["dt_fetch_s"] / end["dt_step_s"] for progress, end in pairs]
    assert max(sorted(shares[1:8])[:4]) < 0.3
    assert sorted(shares[8:])[8] > 0.6


@pytest.mark.long
def test_a_straggler_computes_longer_and_its_peer_waits_for_it(make_order, launch_ranks):
    train = {"parallel": "ddp", "steps": 24}
    order = make_order(world_size=2, train=train, fault="straggle:rank=1,factor=4,from=9")
    for process in launch_ranks(order):
        assert process.wait(LIMIT_S) == 0
    ends = [of(read_lines(order.parent, rank), "step_end")[9:] for rank in (0, 1)]
    own, waited = (
        [median(line["step_sections"][name] for line in rows) for rows in ends]
        for name in ("forward", "wait")
    )
    assert own[1] > 2 * own[0]
    assert waited[0] > waited[1]
