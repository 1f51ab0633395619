"""What a script's calls write under gonogo: every line parsed by the contract."""

from __future__ import annotations

import errno
import itertools
import json
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any, SupportsInt

import numpy
import pytest
import torch

import gonogo.trainer
from gonogo.contract.heartbeat import Heartbeat, Identity, Msg
from gonogo.contract.records import Manifest
from gonogo.judge import directory
from gonogo.judge.directory import judge_directory
from gonogo.rundir import RunDir, load_all_lines
from gonogo.trainer import line_file, permission, saving, supervised
from gonogo.trainer.own_names import KNOWN, MOST_NAMES
from tests.servers import wait_until
from tests.trainer.runs import TALKATIVE, lines_of, run_of, said, steps_of, write_order


@pytest.fixture(autouse=True)
def rank_0(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process is a rank that the environment says nothing of."""
    for name in ("GONOGO_RUN_DIR", "GONOGO_RUN", "RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return write_order(tmp_path / "run")


class Model:
    """What is asked of a torch module."""

    class _Parameter:
        requires_grad = True

        class device:
            type = "cpu"

        def numel(self) -> int:
            return 7

    def parameters(self) -> list[Any]:
        return [self._Parameter(), self._Parameter()]


def train(beat: gonogo.trainer.Beat, steps: int = 4) -> None:
    for number in range(1, steps + 1):
        beat.step(loss=1.0 / number, tokens=100)


# Lines


@pytest.mark.parametrize("taken", [True, False])
def test_of_a_process_whose_rank_another_one_has_the_verdict_says_that_nobody_saw_it(
    run: Path, monkeypatch: pytest.MonkeyPatch, taken: bool
) -> None:
    """All but one that `mpirun` starts without a RANK are such: they are GO, be their loss NaN."""
    monkeypatch.setattr(line_file, "_LOCK_WAIT_S", 0.01)
    other = line_file.LineFile(run / "heartbeat_rank0.jsonl")
    if not taken:
        other.close()
    with gonogo.trainer.attach(run) as beat:
        train(beat)
    other.close()
    assert bool(lines_of(run)) is not taken
    told = [row for row in judge_directory(run)["not_observed"] if row.startswith("ranks: a f")]
    assert len(told) == taken
    assert directory.SILENCED == line_file.SILENCED


def test_every_ordered_step_is_whole_and_none_is_opened_after_the_last(run: Path) -> None:
    with gonogo.trainer.attach(run) as beat:
        assert beat.steps == 4
        train(beat)
    lines = lines_of(run)
    for msg in (Msg.STEP_START, Msg.PROGRESS, Msg.STEP_END):
        assert steps_of(lines, msg) == [1, 2, 3, 4]
    assert [line.seq for line in lines] == list(range(1, len(lines) + 1))
    assert (lines[0].msg, lines[-1].msg, lines[-1].step) == ("boot", "done", 4)
    assert len({line.boot for line in lines}) == 1
    assert all(earlier.mono <= later.mono for earlier, later in pairwise(lines))


def test_a_host_without_a_thread_ends_no_program_that_attaches(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pod's limit, `ulimit -u`: the program ended with our traceback, and was NO_GO."""
    start = threading.Thread.start

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    def speaks() -> bool:
        return any(thread.name == "gonogo" for thread in threading.enumerate())

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with gonogo.trainer.attach(run) as beat:
        beat.step(loss=1.0)
        assert not speaks()
        monkeypatch.setattr(threading.Thread, "start", start)
        train(beat, 3)
        assert speaks()
    assert steps_of(lines_of(run), Msg.STEP_END) == [1, 2, 3, 4]
    assert not speaks()


def test_the_judge_sees_the_steps_and_their_losses(run: Path) -> None:
    with gonogo.trainer.attach(run) as beat:
        for number in range(1, 5):
            with beat.section("forward"):
                beat.step(loss=1.0 / number, tokens=100)
    facts = judge_directory(run)["facts"]
    rank = facts["ranks"]["0"]
    assert (rank["last_step"], rank["done_step"], rank["gaps"], rank["tokens"]) == (4, 4, 0, [100])
    assert rank["missing"]["count"] == rank["without_loss"]["count"] == 0


def test_a_step_is_open_as_soon_as_the_one_before_has_ended(run: Path) -> None:
    with gonogo.trainer.attach(run) as beat:
        assert lines_of(run)[-1].msg == "step_start"
        beat.step(loss=1.0)
        last = lines_of(run)[-1]
        assert (last.msg, last.step) == ("step_start", 2)


def test_where_nobody_says_how_many_steps_there_are_done_tells_the_last_that_ended(
    tmp_path: Path,
) -> None:
    with gonogo.trainer.attach(tmp_path) as beat:
        assert beat.steps is None
        train(beat, 2)
    lines = lines_of(tmp_path)
    assert steps_of(lines, "step_start") == [1, 2, 3]
    assert [line.step for line in lines if line.msg in ("step_end", "done")] == [1, 2, 2]


def test_numbers_that_are_not_finite_are_named(run: Path) -> None:
    with gonogo.trainer.attach(run) as beat:
        beat.step(loss=math.nan, grad_norm=math.inf, lr=-math.inf, own={"x": [math.nan]})
        assert not beat.finite
    raw = json.loads(load_all_lines(RunDir(run).heartbeat(0))[2])
    assert (raw["loss"], raw["grad_norm"], raw["lr"]) == ("NaN", "Infinity", "-Infinity")
    assert raw["own"] == {"x": ["NaN"]}
    (progress,) = said(lines_of(run), "progress")
    assert progress.loss is not None
    assert math.isnan(progress.loss)


def test_numbers_of_the_scripts_own_stand_apart_and_are_bounded(run: Path) -> None:
    with gonogo.trainer.attach(run) as beat:
        beat.step(1.0, lr=0.5, acc=0.25, name="x", flag=True)
        beat.eval(2.0, accuracy=math.nan)
        beat.step(1.0, **{f"m{n}": n for n in range(MOST_NAMES)})
        with pytest.raises(TypeError, match="path"):
            beat.eval(2.0, path=3)
    lines = lines_of(run)
    first, second = said(lines, "progress")
    assert (first.user, first.lr) == ({"acc": 0.25}, 0.5)
    (told,) = said(lines, "eval")
    assert (told.val_loss, str(told.user)) == (2.0, "{'accuracy': nan}")
    assert second.user is not None
    assert list(second.user) == [f"m{n}" for n in range(MOST_NAMES - 2)]


def test_a_field_with_a_meaning_is_never_the_scripts_own() -> None:
    assert set(supervised.LINE_NAMES | KNOWN) >= set(Heartbeat.model_fields) - set(
        Identity.model_fields
    )


def test_a_skipped_step_says_nothing_about_the_weights(run: Path) -> None:
    with gonogo.trainer.attach(run) as beat:
        beat.step(loss=1.0, grad_norm=math.inf, skipped=True)
        assert beat.finite


def test_a_loss_is_told_to_its_last_digit(run: Path) -> None:
    with gonogo.trainer.attach(run) as beat:
        beat.step(loss=2.0 / 3.0)
    assert said(lines_of(run), "progress")[0].loss == 2.0 / 3.0


def test_speed_and_time_are_measured_over_the_open_step(run: Path) -> None:
    with gonogo.trainer.attach(run) as beat:
        time.sleep(0.05)
        beat.step(loss=1.0, tokens=100)
    lines = lines_of(run)
    start, end = said(lines, "step_start")[0], said(lines, "step_end")[0]
    progress = said(lines, "progress")[0]
    assert end.dt_step_s == pytest.approx(end.mono - start.mono, abs=0.01)
    assert progress.toks_per_s == pytest.approx(100 / (end.dt_step_s or 1), rel=0.01)
    assert progress.host_rss_mb is not None
    assert 1 < progress.host_rss_mb < 100_000


@pytest.mark.parametrize("name", ["seq", "section", "path", "run", "dt"])
def test_a_name_that_is_the_lines_own_is_refused_and_the_step_stays_open(
    run: Path, name: str
) -> None:
    with gonogo.trainer.attach(run) as beat:
        with pytest.raises(TypeError, match=name):
            beat.step(loss=1.0, **{name: 3})
        beat.step(loss=1.0)
    assert steps_of(lines_of(run), "step_end") == [1]


def test_what_is_no_number_is_refused_before_anything_is_written(run: Path) -> None:
    with gonogo.trainer.attach(run) as beat:
        before = len(lines_of(run))
        with pytest.raises(TypeError):
            beat.step(loss=object())  # type: ignore[arg-type]
        assert len(lines_of(run)) == before


# Sections


def test_parts_of_a_step_are_told_with_it(run: Path) -> None:
    with gonogo.trainer.attach(run) as beat:
        for batch in beat.batches(["a", "b"]):
            with beat.section("forward"):
                assert batch
            with beat.section("optimizer"):
                pass
            beat.step(loss=1.0)
    ends = said(lines_of(run), "step_end")
    assert len(ends) == 2
    for end in ends:
        assert end.step_sections is not None
        parts = end.step_sections
        assert min(parts.data, parts.forward, parts.optimizer) > 0.0
        assert parts.backward == parts.wait == 0.0
        total = parts.data + parts.forward + parts.optimizer
        assert total <= (end.dt_step_s or 0.0) + 1e-5
    assert said(lines_of(run), "progress")[0].dt_fetch_s == pytest.approx(
        ends[0].step_sections.data if ends[0].step_sections else None, abs=1e-5
    )


def test_a_script_that_names_nothing_tells_no_parts(run: Path) -> None:
    with gonogo.trainer.attach(run) as beat:
        beat.step(loss=1.0)
        beat.should_halt()
    assert all(end.step_sections is None for end in said(lines_of(run), "step_end"))


def test_an_evaluation_is_told_at_its_edges_belongs_to_the_step_before_and_is_no_steps_time(
    run: Path,
) -> None:
    with gonogo.trainer.attach(run) as beat:
        beat.step(loss=1.0)
        with beat.section("eval"):
            time.sleep(1.5)
            beat.eval(2.5)
        beat.step(loss=1.0)
        beat.eval(2.0)
    lines = lines_of(run)
    first = next(number for number, line in enumerate(lines) if line.section == "eval")
    told = [(line.msg, line.step, line.section) for line in lines[first : first + 3]]
    assert told == [("section", 2, "eval"), ("eval", 1, "eval"), ("step_start", 2, None)]
    named, unnamed = said(lines, "eval")
    assert (named.val_loss, unnamed.val_loss, unnamed.dt) == (2.5, 2.0, None)
    assert named.dt is not None
    assert named.dt >= 1.5
    assert (said(lines, "step_end")[1].dt_step_s or 9.0) < 1.5
    starts, ends = said(lines, "step_start"), said(lines, "step_end")
    assert ends[1].mono - max(row.mono for row in starts if row.step == 2) < 1.5


def test_a_checkpoint_that_nobody_named_is_no_steps_time_either(run: Path) -> None:
    with gonogo.trainer.attach(run) as beat:
        beat.step(loss=1.0)
        time.sleep(1.5)
        beat.checkpoint(run / "mine.pt")
        beat.step(loss=1.0)
    lines = lines_of(run)
    (told,) = said(lines, "checkpoint")
    assert (told.step, told.path, told.dt) == (1, "mine.pt", None)
    assert (said(lines, "step_end")[1].dt_step_s or 9.0) < 1.5


def test_a_section_that_lasts_is_told_by_the_thread(run: Path) -> None:
    with gonogo.trainer.attach(run) as beat, beat.section("backward"):
        wait_until(
            lambda: any(line.section == "backward" for line in said(lines_of(run), "section")),
            what="a line of the section",
        )
    told = next(line for line in said(lines_of(run), "section") if line.section == "backward")
    assert (told.section_age_s or 0.0) >= 1.0


def test_sections_within_each_other_lead_back(run: Path) -> None:
    with gonogo.trainer.attach(run) as beat:
        with beat.section("forward"):
            with beat.section("eval"):
                pass
            line = lines_of(run)[-1]
            assert (line.msg, line.section) == ("section", "forward")
        beat.step(loss=1.0)
        assert lines_of(run)[-1].section is None


@pytest.mark.parametrize("pause", ["eval", "checkpoint"])
def test_parts_of_a_step_within_a_pause_are_the_pause(run: Path, pause: Any) -> None:
    with gonogo.trainer.attach(run) as beat:
        beat.step(loss=1.0)
        with beat.section(pause):
            told = len(lines_of(run))
            with beat.section("forward"):
                beat.eval(2.0)
            for _ in beat.batches([1, 2]):
                pass
            (line,) = lines_of(run)[told:]
            assert (line.msg, line.section) == ("eval", pause)
    assert all(end.step_sections is None for end in said(lines_of(run), "step_end"))


def test_a_loader_that_fails_says_why(run: Path) -> None:
    def broken() -> Any:
        yield 1
        raise ConnectionError("no more shards")

    def script() -> None:
        with gonogo.trainer.attach(run) as beat:
            for _ in beat.batches(broken()):
                beat.step(loss=1.0)

    with pytest.raises(ConnectionError):
        script()
    (told,) = said(lines_of(run), "loader_error")
    assert (told.type, told.text, told.section) == ("ConnectionError", "no more shards", "data")
    assert said(lines_of(run), "error")[0].section == "data"


# The thread


def test_the_thread_speaks_in_silence_and_only_then(tmp_path: Path) -> None:
    run = write_order(tmp_path / "run", heartbeat=TALKATIVE)
    with gonogo.trainer.attach(run) as beat:
        for _ in range(4):
            time.sleep(0.05)
            beat.step(loss=1.0)
        wait_until(lambda: len(said(lines_of(run), "alive")) >= 3, what="signs of life")
    lines = lines_of(run)
    for earlier, later in pairwise(lines):
        if later.msg == "alive":
            assert later.mono - earlier.mono >= 0.2
            assert (later.section_age_s or 0.0) >= 0.2


def test_the_thread_speaks_while_the_script_waits_for_go(tmp_path: Path) -> None:
    run = write_order(tmp_path / "run", go=False, heartbeat=TALKATIVE)

    def let_go() -> None:
        wait_until(lambda: said(lines_of(run), "alive"), what="a sign of life before .GO")
        assert not said(lines_of(run), "step_start")
        RunDir(run).go.touch()

    thread = threading.Thread(target=let_go)
    thread.start()
    with gonogo.trainer.attach(run) as beat:
        train(beat)
    thread.join()
    assert said(lines_of(run), "alive")[0].section == "boot"
    assert steps_of(lines_of(run), "step_end") == [1, 2, 3, 4]


def test_lines_are_numbered_without_gaps_when_threads_speak_at_once(run: Path) -> None:
    with gonogo.trainer.attach(run) as beat:

        def evaluate() -> None:
            for _ in range(100):
                beat.eval(1.0)

        threads = [threading.Thread(target=evaluate) for _ in range(4)]
        for thread in threads:
            thread.start()
        train(beat)
        for thread in threads:
            thread.join()
    lines = lines_of(run)
    assert [line.seq for line in lines] == list(range(1, len(lines) + 1))
    assert len(said(lines, "eval")) == 400


def test_a_disk_that_is_full_for_a_while_costs_no_line_and_ends_nothing(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, full = os.write, threading.Event()

    def write(fd: int, data: bytes) -> int:
        if full.is_set():
            raise OSError(28, "No space left on device")
        return real(fd, data)

    monkeypatch.setattr(os, "write", write)
    with gonogo.trainer.attach(run) as beat:
        beat.step(loss=1.0)
        full.set()
        beat.step(loss=1.0)
        beat.step(loss=1.0)
        full.clear()
        beat.step(loss=1.0)
    lines = lines_of(run)
    assert steps_of(lines, "step_end") == [1, 2, 3, 4]
    assert [line.seq for line in lines] == list(range(1, len(lines) + 1))
    last = json.loads(load_all_lines(RunDir(run).heartbeat(0))[-1])
    assert last["write_failures"] >= 2


# Forks


def test_a_forked_child_writes_nothing_and_does_not_hold_the_file(run: Path) -> None:
    with gonogo.trainer.attach(run) as beat:
        beat.step(loss=1.0)
        before = len(said(lines_of(run), "step_end"))
        pid = os.fork()
        if pid == 0:
            try:  # as a DataLoader's worker, or a script that forks and goes on
                beat.step(loss=9.0)
                beat.eval(9.0)
                with beat.section("eval"):
                    time.sleep(0.5)
                beat.__exit__(None, None, None)
            finally:
                os._exit(0 if not beat.should_halt() else 1)
        assert os.waitpid(pid, 0)[1] == 0
        assert len(said(lines_of(run), "step_end")) == before
        train(beat, 3)
    lines = lines_of(run)
    assert {line.pid for line in lines} == {os.getpid()}
    assert [line.seq for line in lines] == list(range(1, len(lines) + 1))
    assert all(line.loss != 9.0 for line in lines)


def test_a_child_that_outlives_the_trainer_does_not_keep_the_next_one_silent(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(line_file, "_LOCK_WAIT_S", 120.0)
    beat = gonogo.trainer.attach(run)
    pid = os.fork()
    if pid == 0:
        signal.pause()
    try:
        beat.__exit__(None, None, None)
        began = time.monotonic()
        with gonogo.trainer.attach(run) as again:
            train(again)
        assert time.monotonic() - began < 60.0, "it waited for the child's hold on the file"
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    assert len({line.boot for line in lines_of(run)}) == 2


# Boot


def test_the_boot_line_says_what_runs_and_for_whom(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = write_order(tmp_path / "run", attempt=3)
    monkeypatch.setenv("GONOGO_RUN", "run_of_the_environment")
    monkeypatch.setenv("NSA_FLAG", "1")
    identity = {"dim": 64, "dataset": "mine"}
    with gonogo.trainer.attach(run, model=Model(), config={"lr": 1e-5}, identity=identity):
        pass
    boot = lines_of(run)[0]
    assert (boot.run, boot.attempt) == ("run_of_the_environment", 3)
    assert (boot.step, boot.section) == (0, "boot")
    assert (boot.params, boot.dim, boot.dataset, boot.world_size) == (14, 64, "mine", 1)
    assert (boot.device, boot.driver, boot.backend) == ("cpu", None, "single")
    assert boot.nsa_env == {"NSA_FLAG": "1"}
    assert boot.config_digest is not None
    assert json.loads(load_all_lines(RunDir(run).heartbeat(0))[0])["trainable"] == 14


def test_without_the_environments_word_the_order_says_for_which_run_it_is(run: Path) -> None:
    with gonogo.trainer.attach(run):
        pass
    assert (lines_of(run)[0].run, lines_of(run)[0].attempt) == (run_of(run), 1)


def test_where_the_order_checks_parameters_boot_waits_for_the_model(tmp_path: Path) -> None:
    run = write_order(tmp_path / "run", identity={"params": 14})
    with gonogo.trainer.attach(run) as beat:
        with beat.section("data"):
            pass
        assert not said(lines_of(run), "boot")
        beat.model(Model(), dim=64)
        train(beat)
    (boot,) = said(lines_of(run), "boot")
    assert (boot.params, boot.dim) == (14, 64)
    assert steps_of(lines_of(run), "step_start") == [1, 2, 3, 4]


def test_so_it_does_where_the_order_checks_the_device(tmp_path: Path) -> None:
    """A phase before had told it with its model; told too early it was waited for in vain."""
    run = write_order(tmp_path / "run", identity={"device": "cpu"})
    with gonogo.trainer.attach(run) as beat:
        assert not said(lines_of(run), "boot")
        beat.model(Model(), device="cpu")
        train(beat)
    assert [boot.device for boot in said(lines_of(run), "boot")] == ["cpu"]
    other = write_order(tmp_path / "other", identity={"device": "cpu"})
    with gonogo.trainer.attach(other, identity={"device": "cpu"}) as beat:
        assert [boot.device for boot in said(lines_of(other), "boot")] == ["cpu"]
        train(beat)


@pytest.mark.parametrize("checked", [{}, {"torch": torch.__version__}])
def test_torch_that_is_imported_for_the_model_is_told_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, checked: dict[str, str]
) -> None:
    """It was told by none who attaches before the import: another release of it went unseen."""
    run = write_order(tmp_path / "run", identity=checked)
    with monkeypatch.context() as before:
        before.delitem(sys.modules, "torch")
        beat = gonogo.trainer.attach(run)
    with beat:
        beat.model(Model())
        train(beat)
    told = [boot.torch for boot in said(lines_of(run), "boot")]
    assert told == ([torch.__version__] if checked else [None, torch.__version__])


def test_a_model_that_is_told_later_is_counted_all_the_same(run: Path) -> None:
    with gonogo.trainer.attach(run) as beat:
        beat.model(Model())
        train(beat)
    assert [boot.params for boot in said(lines_of(run), "boot")] == [None, 14]
    assert judge_directory(run)["facts"]["identity"]["0"]["params"] == 14


def test_a_resumed_run_goes_on_with_the_step_after(tmp_path: Path) -> None:
    resume = {"path": str(tmp_path / "checkpoints/step_000002"), "step": 2}
    run = write_order(tmp_path / "run", resume_from=resume)
    with gonogo.trainer.attach(run) as beat:
        assert beat.resume_from == tmp_path / "checkpoints/step_000002"
        assert [*range(beat.resume_step, beat.steps or 0)] == [2, 3]
        train(beat, 2)
    lines = lines_of(run)
    assert lines[0].step == 2
    assert steps_of(lines, "step_end") == [3, 4]


@pytest.mark.parametrize("model", [None, Model()])
def test_a_script_that_loads_a_checkpoint_of_its_own_says_where_it_goes_on(
    run: Path, model: Model | None
) -> None:
    with gonogo.trainer.attach(run, model=model) as beat:
        beat.resumed(2)
        assert not beat.should_save()
        train(beat, steps=2)
        beat.resumed(1)  # too late: steps have ended
    lines = lines_of(run)
    assert steps_of(lines, Msg.PROGRESS) == steps_of(lines, Msg.STEP_END) == [3, 4]
    assert steps_of(lines, Msg.STEP_START) == [1, 3, 4]
    assert [line.step for line in lines if line.msg in (Msg.BOOT, Msg.DONE)] == [0, 2, 4]


@pytest.mark.parametrize("step", [2, 2.0, torch.tensor(2), numpy.int64(2)], ids=repr)
def test_the_step_of_a_checkpoint_is_taken_as_it_was_saved(run: Path, step: SupportsInt) -> None:
    with gonogo.trainer.attach(run) as beat:
        beat.resumed(step)
        train(beat, steps=2)
    text = (run / "heartbeat_rank0.jsonl").read_text("utf-8")
    rows = [json.loads(line) for line in text.splitlines()]
    assert [str(row["step"]) for row in rows if row["msg"] == Msg.STEP_END] == ["3", "4"]


def test_a_checkpoint_without_a_step_is_no_place_to_go_on_from(run: Path) -> None:
    with gonogo.trainer.attach(run) as beat:
        with pytest.raises(TypeError):
            beat.resumed(None)  # type: ignore[arg-type]
        train(beat, steps=4)
    assert steps_of(lines_of(run), Msg.STEP_END) == [1, 2, 3, 4]


@pytest.mark.parametrize(("step", "opened"), [(0, [1]), (4, [1])])
def test_where_nothing_is_left_or_lost_no_step_begins_anew(
    run: Path, step: int, opened: list[int]
) -> None:
    with gonogo.trainer.attach(run) as beat:
        beat.resumed(step)
    lines = lines_of(run)
    assert steps_of(lines, Msg.STEP_START) == opened
    assert lines[-1].msg == Msg.DONE
    assert lines[-1].step == step


def test_without_go_it_ends_with_4(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(permission, "GO_LIMIT_S", 0.2)
    run = write_order(tmp_path / "run", go=False)
    with pytest.raises(SystemExit) as ended:
        gonogo.trainer.attach(run)
    assert ended.value.code == 4
    assert "no .GO" in capsys.readouterr().err
    assert not said(lines_of(run), "step_start")


def test_while_a_job_is_suspended_nobody_could_let_it_begin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its watcher is, too: it wakes no sooner, and gives `.GO` a moment later."""
    run = write_order(tmp_path / "run", go=False)
    went, looks = time.monotonic, itertools.count()
    suspended_s = 0.0

    def sleep(_: float) -> None:
        nonlocal suspended_s
        look = next(looks)
        suspended_s += 10800.0 if look == 3 else 0.0
        if look == 5:
            RunDir(run).go.touch()

    clock = SimpleNamespace(monotonic=lambda: went() + suspended_s, sleep=sleep)
    monkeypatch.setattr(permission, "time", clock)
    with gonogo.trainer.attach(run) as beat:
        beat.step(loss=1.0)
    assert said(lines_of(run), "step_end")


def test_its_last_words_say_what_it_did_not_tell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(permission, "GO_LIMIT_S", 0.2)
    run = write_order(tmp_path / "run", go=False, identity={"dataset": "synthetic"})
    with pytest.raises(SystemExit):
        gonogo.trainer.attach(run)
    first, last = capsys.readouterr().err.splitlines()
    assert first.endswith("it will not be let begin")
    assert "no .GO" in last
    assert "dataset, which this script does not tell" in last


def test_the_limit_begins_when_every_rank_has_spoken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A peer that imports for minutes costs nobody the run."""
    monkeypatch.setattr(permission, "GO_LIMIT_S", 0.05)
    run = write_order(tmp_path / "run", go=False, world_size=2)
    peer = RunDir(run).heartbeat(1)
    late = threading.Timer(0.6, peer.touch)
    late.start()
    with pytest.raises(SystemExit) as ended:
        gonogo.trainer.attach(run)
    assert peer.exists(), "it gave up before its peer had come"
    late.join()
    assert ended.value.code == 4


def test_what_the_order_checks_and_the_script_does_not_tell_is_said_in_its_log(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = write_order(tmp_path / "run", identity={"dim": 64, "seq_len": 8, "world_size": 1})
    with gonogo.trainer.attach(run, identity={"dim": 64}):
        pass
    assert "the order checks seq_len, which" in capsys.readouterr().err


def test_a_halt_before_go_ends_it_with_3(tmp_path: Path) -> None:
    run = write_order(tmp_path / "run", go=False)
    RunDir(run).halt.touch()
    with pytest.raises(SystemExit) as ended:
        gonogo.trainer.attach(run)
    assert ended.value.code == 3
    assert [line.msg for line in lines_of(run)] == ["boot", "halt_seen"]


def test_without_an_order_nobody_gives_go_and_none_is_waited_for(tmp_path: Path) -> None:
    with gonogo.trainer.attach(tmp_path) as beat:
        beat.step(loss=1.0)
    boot = lines_of(tmp_path)[0]
    assert (boot.run, boot.attempt) == (None, None)


@pytest.mark.parametrize("text", ["", "{", "[1]", "\xff"], ids=["empty", "torn", "list", "bytes"])
def test_an_order_that_cannot_be_read_is_said_at_once(tmp_path: Path, text: str) -> None:
    (tmp_path / "order.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(ValueError, match=r"order\.json"):
        gonogo.trainer.attach(tmp_path)
    assert not RunDir(tmp_path).heartbeat(0).exists()


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE])
def test_an_order_that_a_disk_refuses_for_a_moment_is_waited_for(
    run: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """The program ended there, before it had begun, with an error of its own."""
    read, refusals = Path.read_bytes, iter(range(3))

    def refuse(path: Path) -> bytes:
        if path.name == "order.json" and next(refusals, None) is not None:
            raise OSError(number, os.strerror(number), str(path))
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", refuse)
    with gonogo.trainer.attach(run) as beat:
        assert beat.steps == 4
    assert lines_of(run)[-1].msg == "done"


@pytest.mark.parametrize(
    "changes",
    [{"steps": "x"}, {"heartbeat": None}, {"heartbeat": {"alive_every_s": -1}}, {"identity": None}],
    ids=["steps", "no heartbeat", "negative", "no identity"],
)
def test_what_an_order_does_not_say_is_unknown(run: Path, changes: dict[str, Any]) -> None:
    order = json.loads((run / "order.json").read_text()) | changes
    (run / "order.json").write_text(json.dumps(order))
    with gonogo.trainer.attach(run) as beat:
        beat.step(loss=1.0)
        assert beat.steps == (None if "steps" in changes else 4)
    assert steps_of(lines_of(run), "step_end") == [1]


def test_nothing_is_said_twice_by_one_process(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with gonogo.trainer.attach(run) as beat:
        with gonogo.trainer.attach(run) as other:
            other.step(loss=9.0)
        train(beat)
    assert "attached" in capsys.readouterr().err
    assert steps_of(lines_of(run), "step_end") == [1, 2, 3, 4]
    assert len(said(lines_of(run), "done")) == 1


# Checkpoints


def saved(beat: gonogo.trainer.Beat, text: str = "weights") -> Path:
    folder = beat.checkpoint_path()
    assert folder is not None
    with beat.section("checkpoint"):
        (folder / "shards").mkdir(parents=True)
        (folder / "model.pt").write_text(text)
        (folder / "shards" / "0.pt").write_text(text)
        beat.checkpoint(folder)
    return folder


def test_a_checkpoint_in_the_run_directory_gets_a_manifest_that_holds(run: Path) -> None:
    with gonogo.trainer.attach(run) as beat:
        train(beat, 2)
        folder = saved(beat)
    manifest = Manifest.model_validate_json((folder / "manifest.json").read_bytes())
    assert (folder.name, manifest.step) == ("step_000002", 2)
    assert {name: file.bytes for name, file in manifest.files.items()} == {
        "model.pt": 7,
        "shards/0.pt": 7,
    }
    (told,) = said(lines_of(run), "checkpoint")
    assert (told.path, told.step, told.section) == ("checkpoints/step_000002", 2, "checkpoint")
    assert told.dt is not None


def test_what_it_takes_to_seal_one_is_part_of_saving_it(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To read 150 GB takes minutes: told as no section, or as logging, that is a hang."""
    took_s = 0.0

    def seal(*_: object) -> None:
        nonlocal took_s
        began = time.monotonic()
        wait_until(
            lambda: any(line.section == "checkpoint" for line in lines_of(run)),
            what="a line that tells that it is being saved",
            limit_s=60.0,
        )
        took_s = time.monotonic() - began

    monkeypatch.setattr(saving, "save_manifest", seal)
    with gonogo.trainer.attach(run) as beat:
        beat.step(loss=1.0)
        beat.enter("log")
        folder = beat.checkpoint_path()
        assert folder is not None
        folder.mkdir(parents=True)
        beat.checkpoint(folder)
        beat.step(loss=1.0)
    lines = lines_of(run)
    (told,) = said(lines, "checkpoint")
    assert (told.section, told.dt) == ("log", None)
    one, two = said(lines, "step_end")
    assert two.dt_step_s is not None
    assert two.dt_step_s + took_s <= two.mono - one.mono + 0.01, "no part of the step"


def test_one_that_is_sealed_beside_the_steps_moves_no_rank(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sealing, trained = threading.Event(), threading.Event()

    def seal(*_: object) -> None:
        sealing.set()
        assert trained.wait(60.0)

    monkeypatch.setattr(saving, "save_manifest", seal)
    with gonogo.trainer.attach(run) as beat:
        beat.step(loss=1.0)
        folder = beat.checkpoint_path()
        assert folder is not None
        folder.mkdir(parents=True)
        thread = threading.Thread(target=beat.checkpoint, args=(folder,))
        with beat.section("forward"):
            thread.start()
            assert sealing.wait(60.0)
            train(beat, 3)
            trained.set()
            thread.join()
            train(beat, 2)
    lines = lines_of(run)
    assert {line.section for line in lines} == {"boot", None, "forward"}
    assert len(said(lines, "checkpoint")) == 1


def test_only_rank_0_writes_the_manifest(run: Path) -> None:
    with gonogo.trainer.attach(run, rank=1, world_size=2) as beat:
        beat.step(loss=1.0)
        folder = saved(beat)
    assert not (folder / "manifest.json").exists()
    assert said(lines_of(run, 1), "checkpoint")


def test_a_manifest_that_the_disk_refuses_is_an_error_and_ends_nothing(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(saving, "save_manifest", refuse)
    with gonogo.trainer.attach(run) as beat:
        beat.step(loss=1.0)
        saved(beat)
        train(beat, 3)
    lines = lines_of(run)
    (told,) = said(lines, "error")
    assert (told.type, told.section) == ("OSError", "checkpoint")
    assert told.text == "[Errno 28] No space left on device"
    assert not said(lines, "checkpoint")
    assert lines[-1].msg == "done"


@pytest.mark.parametrize(
    ("cadence", "due"),
    [
        ({"every_steps": None, "every_s": None}, []),
        ({"every_steps": 3, "every_s": None}, [3, 4]),
        ({"every_steps": None, "every_s": 0.001}, [1, 2, 3, 4]),
        ({"every_steps": None, "every_s": 3600}, [4]),
    ],
    ids=["none", "by steps, and the last", "by time", "the last alone"],
)
def test_a_checkpoint_is_due_as_the_order_says(
    tmp_path: Path, cadence: dict[str, Any], due: list[int]
) -> None:
    run = write_order(tmp_path / "run", checkpoint=cadence)
    found = []
    with gonogo.trainer.attach(run) as beat:
        assert not beat.should_save()
        for step in range(1, 5):
            time.sleep(0.002)
            beat.step(loss=1.0)
            if beat.should_save():
                found.append(step)
                beat.checkpoint(saved(beat))
    assert found == due


# Halts


def touch_halt(run: Path) -> None:
    RunDir(run).halt.touch()


def link_halt_to_nowhere(run: Path) -> None:
    RunDir(run).halt.symlink_to(run / "none")


def halting(
    run: Path,
    at_step: int,
    agree: Callable[[bool], bool] | None = None,
    ask: Callable[[Path], None] = touch_halt,
) -> Any:
    """Train until told to halt; `.HALT` appears after a step."""
    with gonogo.trainer.attach(run, agree=agree) as beat:
        for step in range(1, 5):
            beat.step(loss=1.0)
            if step == at_step:
                ask(run)
            if beat.should_halt():
                assert beat.should_halt()
                saved(beat)
                break


@pytest.mark.parametrize("ask", [touch_halt, link_halt_to_nowhere])
def test_a_halt_is_seen_after_the_step_and_ends_the_process_with_3(
    run: Path, ask: Callable[[Path], None]
) -> None:
    with pytest.raises(SystemExit) as ended:
        halting(run, 2, ask=ask)
    assert ended.value.code == 3
    lines = lines_of(run)
    assert steps_of(lines, "step_end") == [1, 2]
    assert [line.msg for line in lines if line.msg in ("halt_seen", "checkpoint", "done")] == [
        "halt_seen",
        "checkpoint",
    ]
    assert steps_of(lines, "checkpoint") == [2]
    assert steps_of(lines, "halt_seen") == [3], "the step that it stands in: it had begun"


def test_a_halt_after_the_last_step_comes_too_late(run: Path) -> None:
    halting(run, 4)
    assert lines_of(run)[-1].msg == "done"


def test_ranks_halt_as_they_agree(run: Path) -> None:
    asked: list[bool] = []

    def agree(flag: bool) -> bool:
        asked.append(flag)
        return len(asked) >= 2

    with pytest.raises(SystemExit):
        halting(run, 9, agree)
    assert steps_of(lines_of(run), "step_end") == [1, 2]
    assert asked == [False] * 4, "two steps, whether the weights are good, and to leave together"
    assert steps_of(lines_of(run), "halt_seen") == [3]


def test_only_rank_0_looks_where_ranks_agree(run: Path) -> None:
    RunDir(run).halt.touch()
    asked: list[bool] = []

    def agree(flag: bool) -> bool:
        asked.append(flag)
        return flag

    with gonogo.trainer.attach(run, rank=1, world_size=2, agree=agree) as beat:
        beat.step(loss=1.0)
        assert not beat.should_halt()
    assert asked == [False]


def test_all_ranks_know_when_one_of_them_has_bad_weights(run: Path) -> None:
    RunDir(run).halt.touch()
    beat = gonogo.trainer.attach(run, agree=lambda flag: True)
    beat.step(loss=1.0)
    assert beat.finite
    assert beat.should_halt()
    assert not beat.finite
    with pytest.raises(SystemExit):
        beat.__exit__(None, None, None)


def test_while_ranks_agree_it_is_said_where_they_wait(run: Path) -> None:
    seen = []

    def agree(flag: bool) -> bool:
        wait_until(lambda: lines_of(run)[-1].section == "log", what="a line that says log")
        seen.append(lines_of(run)[-1])
        return flag

    with gonogo.trainer.attach(run, agree=agree) as beat:
        beat.step(loss=1.0)
        beat.should_halt()
        assert lines_of(run)[-1].section == "log"
        beat.step(loss=1.0)
    assert (seen[0].section, seen[0].collective_seq) == ("log", 1)
    end = said(lines_of(run), "step_end")[1]
    assert end.collective_seq == 1
    assert end.step_sections is None, "waiting alone is no part of a step that was named"


# Ends


class Broken(Exception):
    """The script's own."""


def one_step_then(run: Path, error: BaseException) -> None:
    """A script that trains one step and then raises."""
    with gonogo.trainer.attach(run) as beat:
        beat.step(loss=1.0)
        raise error


@pytest.mark.parametrize(
    ("error", "kind", "text"),
    [
        (Broken("it broke"), "Broken", "it broke"),
        (KeyboardInterrupt(), "KeyboardInterrupt", "KeyboardInterrupt"),
        (SystemExit(7), "SystemExit", "7"),
        (SystemExit("bad luck"), "SystemExit", "bad luck"),
        (Broken("x" * 10_000), "Broken", "x" * 2000),
    ],
    ids=["exception", "interrupt", "exit code", "exit text", "long"],
)
def test_what_ends_a_script_is_said(run: Path, error: BaseException, kind: str, text: str) -> None:
    with pytest.raises(type(error)):
        one_step_then(run, error)
    last = lines_of(run)[-1]
    assert (last.msg, last.type, last.text) == ("error", kind, text)
    assert not said(lines_of(run), "done")


@pytest.mark.parametrize("code", [0, None])
def test_a_script_that_leaves_with_0_is_done_as_far_as_it_came(run: Path, code: int | None) -> None:
    with pytest.raises(SystemExit):
        one_step_then(run, SystemExit(code))
    last = lines_of(run)[-1]
    assert (last.msg, last.step) == ("done", 1)


def test_an_error_says_in_which_section_it_was_raised(run: Path) -> None:
    with pytest.raises(Broken), gonogo.trainer.attach(run) as beat, beat.section("checkpoint"):
        raise Broken("the disk is full")
    assert said(lines_of(run), "error")[0].section == "checkpoint"


def test_an_error_that_was_handled_leaves_no_trace(run: Path) -> None:
    with gonogo.trainer.attach(run) as beat:
        with pytest.raises(Broken):
            with beat.section("eval"):
                raise Broken("once")
        train(beat)
    lines = lines_of(run)
    assert lines[-1].msg == "done"
    assert lines[-1].section is None
    assert not said(lines, "error")


def test_after_the_end_nothing_is_said(run: Path) -> None:
    with gonogo.trainer.attach(run) as beat:
        train(beat)
    count = len(lines_of(run))
    beat.step(loss=1.0)
    beat.eval(1.0)
    beat.checkpoint("x")
    beat.model(Model())
    beat.__exit__(None, None, None)
    with beat.section("eval"):
        time.sleep(0.3)
    assert len(lines_of(run)) == count
    assert not [thread for thread in threading.enumerate() if thread.name == "gonogo"]


# A hang


@pytest.mark.parametrize(
    ("section", "limit_s"), [(None, 300.0), ("data", 300.0), ("eval", 1800.0)], ids=str
)
def test_a_hang_is_found_in_the_step_that_hangs(
    tmp_path: Path, section: str | None, limit_s: float
) -> None:
    run = write_order(tmp_path / "run", heartbeat=TALKATIVE)
    with gonogo.trainer.attach(run) as beat:
        train(beat, 2)
        beat.enter(section)  # type: ignore[arg-type]
        wait_until(
            lambda: lines_of(run)[-1].section == section and lines_of(run)[-1].msg != "step_start",
            what="a line that says where it stands",
        )
        hung = write_order(run.parent / "hung", run=run_of(run))
        RunDir(hung).heartbeat(0).write_bytes(RunDir(run).heartbeat(0).read_bytes())
    decision = judge_directory(hung, now=time.time() + limit_s + 60)
    halts = [row for row in decision["findings"] if row["severity"] == "halt"]
    assert halts
    assert {(row["rank"], row["step"], row["section"]) for row in halts} == {(0, 3, section)}


def test_what_a_trainer_forks_that_ignores_the_schedulers_term_is_ended_by_it(run: Path) -> None:
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        with gonogo.trainer.attach(run) as beat:
            os.kill(os.getpid(), signal.SIGTERM)  # of this process: passed by
            reading, writing = os.pipe()
            child = os.fork()
            if child == 0:
                os.write(writing, b"!")  # Python drops what came before it was there
                time.sleep(30)
                os._exit(0)
            os.read(reading, 1)
            os.kill(child, signal.SIGTERM)
            _, status = os.waitpid(child, 0)
            train(beat)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert os.waitstatus_to_exitcode(status) == -signal.SIGTERM
    assert lines_of(run)[-1].msg == "done"
