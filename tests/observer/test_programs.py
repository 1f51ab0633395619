"""What the observer reports of unchanged programs: steps, losses, identity, sections, ends."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from gonogo.trainer.heartbeat_writer import ATTACHED, OBSERVED, READ
from tests.observer.observed import PROGRAMS, SITE, Observed, Parent
from tests.trainer.runs import ROOT, environment, lines_of, said, steps_of, write_order

STEPS = list(range(1, 7))
LONG = pytest.mark.long


WHOLE = ["plain", "accumulates", pytest.param("compiled", marks=LONG)]


@pytest.mark.parametrize("name", WHOLE)
def test_each_step_of_an_unchanged_loop_is_seen_with_its_loss(
    tmp_path: Path, parent: Parent, name: str
) -> None:
    found = Observed(tmp_path, name, parent)
    assert found.code == 0, found.output
    lines = found.lines()
    assert steps_of(lines, "progress") == steps_of(lines, "step_end") == STEPS
    assert found.losses() == pytest.approx(found.told)
    (boot,), (done,) = said(lines, "boot"), said(lines, "done")
    assert (boot.params, boot.dtype, boot.device) == (2_177, "float32", "cpu")
    assert boot.git_sha is not None
    assert (boot.world_size, done.step) == (1, 6)
    assert {row.lr for row in said(lines, "progress")} == {1e-2}


def test_of_two_optimizers_the_larger_one_steps(tmp_path: Path, parent: Parent) -> None:
    found = Observed(tmp_path, "two_optimizers", parent)
    assert steps_of(found.lines(), "step_end") == STEPS
    assert found.losses() == pytest.approx(found.told)


def test_an_optimizer_that_follows_the_primary_one_is_counted_from_its_first_step(
    tmp_path: Path, parent: Parent
) -> None:
    found = Observed(tmp_path, "folds", parent)
    assert steps_of(found.lines(), "step_end") == list(range(1, 37))
    assert found.losses() == pytest.approx(found.told)
    assert len(said(found.lines(), "boot")) == 1


def test_a_skipped_update_is_a_step_that_was_skipped(tmp_path: Path, parent: Parent) -> None:
    found = Observed(tmp_path, "scaler", parent)
    rows = said(found.lines(), "progress")
    assert [row.skipped for row in rows] == [False, True, False, False, False, False]
    assert found.losses() == pytest.approx(found.told), "and not as the scaler scales it"


def test_a_resumed_program_has_its_own_step_numbers(tmp_path: Path, parent: Parent) -> None:
    lines = Observed(tmp_path, "resumes", parent).lines()
    assert [row.step for row in said(lines, "boot")] == [40]
    assert steps_of(lines, "step_end") == list(range(41, 47))


def test_evaluations_and_checkpoints_are_sections_and_no_time_of_steps(
    tmp_path: Path, parent: Parent
) -> None:
    found = Observed(tmp_path, "evaluates_and_saves", parent)
    lines = found.lines()
    pauses = [row.section for row in said(lines, "section") if row.section is not None]
    assert pauses == ["eval", "checkpoint"] * 3
    assert found.losses() == pytest.approx(found.told)
    spent = [row.step_sections for row in said(lines, "step_end")]
    assert all(row is not None and row.forward > 0 and row.backward > 0 for row in spent)


def test_an_error_of_the_program_is_reported(tmp_path: Path, parent: Parent) -> None:
    found = Observed(tmp_path, "fails", parent)
    assert found.code == 1
    last = found.lines()[-1]
    assert (last.msg, last.type, last.text) == ("error", "RuntimeError", "out of ideas")
    assert said(found.lines(), "done") == []


@LONG
def test_an_error_of_the_observer_ends_the_observation_and_not_the_program(
    tmp_path: Path, parent: Parent
) -> None:
    found = Observed(tmp_path, "hook_fails", parent)
    assert (found.code, len(found.told)) == (0, 6)
    assert "the program is not observed any more" in found.output
    lines = found.lines()
    assert (lines[-1].msg, steps_of(lines, "step_end")) == ("unobserved", [1, 2])
    assert not (found.run / ATTACHED).exists(), "what it prints is read from here on"


def test_a_program_that_attaches_itself_takes_over(tmp_path: Path, parent: Parent) -> None:
    found = Observed(tmp_path, "attaches", parent)
    assert found.code == 0, found.output
    lines = lines_of(found.run)
    (boot,) = said(lines, "boot")
    own = [row for row in lines if row.boot == boot.boot]
    assert steps_of(own, "step_end") == STEPS
    assert {row.tokens for row in said(own, "step_end")} == {1}
    assert all(row.msg in ("section", "alive") for row in lines if row.boot != boot.boot)
    there = [(found.run / name).exists() for name in (ATTACHED, OBSERVED, READ)]
    assert there == [True, False, False]


@LONG
@pytest.mark.parametrize("name", ["ddp", "fsdp"])
def test_each_rank_of_torchrun_is_seen(tmp_path: Path, name: str) -> None:
    found = Observed(tmp_path, name, 2)
    assert found.code == 0, found.output
    for rank in (0, 1):
        lines = found.lines(rank)
        assert steps_of(lines, "step_end") == STEPS
        (boot,) = said(lines, "boot")
        assert (boot.params, boot.world_size, boot.rank) == (2_177, 2, rank)


@LONG
def test_ranks_that_no_launcher_names_are_seen(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    run = write_order(tmp_path / "two", steps=46, world_size=2)
    environ = environment(run, PYTHONPATH=f"{SITE}:{ROOT}", PORT=str(port))
    command = [sys.executable, str(PROGRAMS), "spawns"]
    subprocess.run(command, env=environ, check=True, timeout=240, capture_output=True)
    assert [steps_of(lines_of(run, rank), "step_end") for rank in (0, 1)] == [STEPS, STEPS]


def test_accelerate_is_seen(tmp_path: Path, parent: Parent) -> None:
    lines = Observed(tmp_path, "accelerate", parent).lines()
    assert steps_of(lines, "step_end") == STEPS
    assert all(row.grad_norm for row in said(lines, "progress"))


def seen_transformers(folder: Path, parent: Parent) -> None:
    """The six steps of the Trainer of transformers are seen as it prints them."""
    first = Observed(folder, "transformers", parent)
    assert steps_of(first.lines(), "step_end") == STEPS, first.output
    printed = [float(text) for text in re.findall(r"'loss': '?([\d.]+)", first.output)]
    assert first.losses() == pytest.approx(printed, abs=1e-3)
    assert {"eval", "checkpoint"} <= {str(row.section) for row in said(first.lines(), "section")}


def test_transformers_trainer_is_seen(tmp_path: Path, parent: Parent) -> None:
    seen_transformers(tmp_path, parent)


@LONG
def test_transformers_trainer_is_seen_and_resumed(tmp_path: Path, parent: Parent) -> None:
    seen_transformers(tmp_path, parent)
    resumed_in = tmp_path / "again"
    resumed_in.mkdir()
    (tmp_path / "saves").rename(resumed_in / "saves")
    again = Observed(resumed_in, "transformers", parent).lines()
    assert steps_of(again, "step_end") == [4, 5, 6]


def test_lightning_is_seen(tmp_path: Path, parent: Parent) -> None:
    found = Observed(tmp_path, "lightning", parent)
    assert found.code == 0, found.output
    assert steps_of(found.lines(), "step_end") == STEPS
