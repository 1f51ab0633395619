"""The lines that a script's calls write under gonogo."""

from __future__ import annotations

import json
import math
import os
import signal
import threading
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import gonogo.trainer
from gonogo.contract.heartbeat import Msg
from gonogo.contract.records import Manifest
from gonogo.judge.directory import judge_directory
from gonogo.rundir import RunDir, load_all_lines
from gonogo.trainer import run_dir
from gonogo.trainer.encoding import MOST_NAMES
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


@pytest.mark.parametrize("name", ["seq", "section", "path", "run", "dt"])
def test_a_name_that_is_the_lines_own_is_refused_and_the_step_stays_open(
    run: Path, name: str
) -> None:
    with gonogo.trainer.attach(run) as beat:
        with pytest.raises(TypeError, match=name):
            beat.step(loss=1.0, **{name: 3})
        beat.step(loss=1.0)
    assert steps_of(lines_of(run), "step_end") == [1]


# Sections


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


def test_a_section_that_lasts_is_told_by_the_thread(run: Path) -> None:
    with gonogo.trainer.attach(run) as beat, beat.section("backward"):
        wait_until(
            lambda: any(line.section == "backward" for line in said(lines_of(run), "section")),
            what="a line of the section",
        )
    told = next(line for line in said(lines_of(run), "section") if line.section == "backward")
    assert (told.section_age_s or 0.0) >= 1.0


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


# Forks


def test_a_forked_child_writes_nothing_and_does_not_hold_the_file(run: Path) -> None:
    with gonogo.trainer.attach(run) as beat:
        beat.step(loss=1.0)
        before = len(said(lines_of(run), "step_end"))
        pid = os.fork()
        if pid == 0:
            try:  # as a DataLoader's worker, or a script that forks and continues
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


def test_without_go_it_ends_with_4(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(run_dir, "GO_LIMIT_S", 0.2)
    run = write_order(tmp_path / "run", go=False)
    with pytest.raises(SystemExit) as ended:
        gonogo.trainer.attach(run)
    assert ended.value.code == 4
    assert "no .GO" in capsys.readouterr().err
    assert not said(lines_of(run), "step_start")


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


def halting(run: Path, at_step: int, agree: Callable[[bool], bool] | None = None) -> Any:
    """Train until asked to halt; `.HALT` appears after a step."""
    with gonogo.trainer.attach(run, agree=agree) as beat:
        for step in range(1, 5):
            beat.step(loss=1.0)
            if step == at_step:
                RunDir(run).halt.touch()
            if beat.should_halt():
                assert beat.should_halt()
                saved(beat)
                break


def test_a_halt_is_seen_after_the_step_and_ends_the_process_with_3(run: Path) -> None:
    with pytest.raises(SystemExit) as ended:
        halting(run, 2)
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


def test_an_error_says_in_which_section_it_was_raised(run: Path) -> None:
    with pytest.raises(Broken), gonogo.trainer.attach(run) as beat, beat.section("checkpoint"):
        raise Broken("the disk is full")
    assert said(lines_of(run), "error")[0].section == "checkpoint"


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
