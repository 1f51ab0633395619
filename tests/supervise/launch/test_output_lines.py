"""What a program's output tells: real files, lines in any pieces."""

from __future__ import annotations

import errno
import fcntl
import itertools
import math
import os
import random
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from gonogo.contract.heartbeat import Heartbeat, parse_heartbeat
from gonogo.contract.patterns import GUESSED, PATTERNS, fitting
from gonogo.rundir import RunDir, load_all_lines
from gonogo.supervise.launch import programs
from gonogo.supervise.launch.output_lines import OutputLines, check_patterns, may_tell_a_loss
from gonogo.trainer.line_file import ATTACHED, LineFile

STEP = r"step (?P<step>\d+) loss (?P<loss>\S+)"


class Program:
    """A program that writes a log, and its reader."""

    def __init__(self, folder: Path, *patterns: str, **order: Any) -> None:
        self.folder, self.log = folder, folder / "rank0.log"
        self.log.touch()
        said = {"run": "run_1", "attempt": 1, "heartbeat": {"alive_every_s": 0.0001}, **order}
        self.order = {**said, "patterns": list(patterns)}
        self.reader = OutputLines(folder, self.order, self.log, 42)

    def write(self, text: str | bytes) -> Program:
        with self.log.open("ab") as stream:
            stream.write(text if isinstance(text, bytes) else text.encode())
        self.reader.read()
        return self

    def told(self, rank: int = 0) -> list[Heartbeat]:
        return [parse_heartbeat(raw) for raw in load_all_lines(RunDir(self.folder).heartbeat(rank))]

    def steps(self, rank: int = 0) -> list[tuple[int, Any]]:
        return [(line.step, line.loss) for line in self.told(rank) if line.msg == "progress"]


class LaterClock:
    """The time of this machine, so much later."""

    later_s = 0.0

    def monotonic(self) -> float:
        return time.monotonic() + self.later_s

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)


def test_each_new_step_is_told_once(tmp_path: Path) -> None:
    program = Program(tmp_path, STEP)
    program.write(
        "hello\nstep 1 loss 2.5\nstep 1 loss 9\nother\nstep 3 loss 2,000.5\nstep 2 loss 1\n"
    )
    assert program.steps() == [(1, 2.5), (3, 2000.5)]
    boot = program.told()[0]
    assert (boot.msg, boot.run, boot.attempt, boot.section, boot.pid) == (
        "boot",
        "run_1",
        1,
        None,
        42,
    )


def test_a_number_may_begin_with_its_point(tmp_path: Path) -> None:
    program = Program(tmp_path, STEP)
    program.write("step 1 loss 1.002\nstep 2 loss .998.\nstep 3 loss +.5\nstep 4 loss -.25\n")
    assert program.steps() == [(1, 1.002), (2, 0.998), (3, 0.5), (4, -0.25)]


@pytest.mark.parametrize(
    ("printed", "loss"),
    [
        ("2,31", None),
        ("0,693", None),
        ("2,3145", None),
        ("12345,678", None),
        ("2,000", 2000.0),
        ("1_500.5", 1500.5),
        ("-1,234,567.5e2", -123456750.0),
        ("2.31,", 2.31),
    ],
)
@pytest.mark.parametrize("guessed", [False, True])
def test_a_number_with_a_comma_that_divides_no_thousands_tells_nothing(
    tmp_path: Path, printed: str, loss: float | None, *, guessed: bool
) -> None:
    patterns = [PATTERNS[name] for name in GUESSED] if guessed else [STEP]
    program = Program(tmp_path, *patterns, patterns_guessed=guessed)
    program.write(f"step 1 loss {printed}\nstep 2 loss 2.5\n")
    assert program.steps() == [(1, loss), (2, 2.5)]


@pytest.mark.parametrize("another", [False, True], ids=["removed", "another in its place"])
def test_a_log_that_was_moved_away_is_read_to_its_end(tmp_path: Path, another: bool) -> None:
    """Somebody's logrotate renamed rank0.log, or they removed it to make room: the program went on
    into the file that it had open, and a run that completed was told as one that ended early."""
    program = Program(tmp_path, STEP, steps=3)
    with program.log.open("a") as stream:
        stream.write("step 1 loss 2.5\n")
        stream.flush()
        program.reader.read()
        if another:
            program.log.rename(tmp_path / "rank0.log.1")
            program.log.touch()
        else:
            program.log.unlink()
        stream.write("step 2 loss 2.4\n")
        stream.flush()
        program.reader.read()
        assert program.steps() == [(1, 2.5), (2, 2.4)]
        stream.write("step 3 loss 2.3\n")
    program.reader.close(0, asked=False)
    assert program.steps()[-1] == (3, 2.3)
    assert program.told()[-1].msg == "done"


@pytest.mark.parametrize(("owner", "name"), [(Path, "exists"), (os, "open")])
def test_the_last_lines_are_read_when_the_disk_gives_them_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str
) -> None:
    """A program that ended while a network's disk stood still had completed, and was told of
    neither its last steps nor its end."""
    program, real = Program(tmp_path, STEP, steps=3), getattr(owner, name)
    program.write("step 1 loss 2.5\n")
    with program.log.open("a") as stream:
        stream.write("step 2 loss 2.4\nstep 3 loss 2.3\n")
    refusals = iter(range(3))

    def refuse(path: Any, *args: Any, **named: Any) -> Any:
        if path in (program.log, tmp_path / ATTACHED) and next(refusals, None) is not None:
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), str(path))
        return real(path, *args, **named)

    monkeypatch.setattr(owner, name, refuse)
    program.reader.close(0, asked=False)
    assert next(refusals, None) is None
    assert [step for step, _ in program.steps()] == [1, 2, 3]
    assert program.told()[-1].msg == "done"


@pytest.mark.parametrize("seed", range(20))
def test_lines_may_come_in_any_pieces(seed: int, tmp_path: Path) -> None:
    dice, program = random.Random(seed), Program(tmp_path, STEP)
    raw = b"".join(
        b"step %d loss %d.5" % (n, n) + dice.choice([b"\n", b"\r", b"\r\n"]) for n in range(1, 30)
    )
    at = 0
    while at < len(raw):
        end = at + dice.randrange(1, 40)
        program.write(raw[at:end])
        at = end
    program.reader.close(0, asked=False)
    assert program.steps() == [(n, n + 0.5) for n in range(1, 30)]
    lines = program.told()
    assert [line.seq for line in lines] == list(range(1, len(lines) + 1))
    assert (lines[-1].msg, lines[-1].step) == ("done", 29)


@pytest.mark.parametrize(
    ("pattern", "line", "word"),
    [
        (
            r"Episode (?P<step>\d+)",
            "Episode {n}\tLast reward: 9.00\tAverage reward: 12.1",
            "episode",
        ),
        (r"(?P<step>\d+) +games", "{n} games: 3 won", "games"),
        (r"^(?P<step>\d+)th", "{n}th generation, fitness 3.1", "generation"),
        (r"episode_num: (?P<step>\d+)", "episode_num: {n} reward: 3", "episode"),
        (r'"epoch": (?P<step>\d+)', '{{"epoch": {n}, "loss": 2.5}}', "epoch"),
        (r"Ep\. #(?P<step>\d+)", "Ep. #{n} | 3.5", "ep"),
        (r"Rollout number (?P<step>\d+)", "Rollout number {n} loss 1", "rollout"),
        (PATTERNS["nanogpt"], "iter {n}: loss 2.5000, time 12.10ms, mfu 3.1%", "iter"),
        (r"\[ *(?P<step>\d+)/", "Train Epoch: 1 [{n}/60000 (1%)]\tLoss: 2.3", None),
        (PATTERNS["tqdm"], "Epoch 1:  10%|#  | {n}/80 [00:01<00:10, loss=2.5]", None),
        (r"^(?P<step>\d+) ", "{n} 2.5", None),
        (PATTERNS["transformers"], "{{'loss': 2.5, 'epoch': {n}}}", None),
    ],
)
def test_what_a_line_calls_its_step_is_told(
    pattern: str, line: str, word: str | None, tmp_path: Path
) -> None:
    program = Program(tmp_path, pattern)
    for number in range(1, 5):
        program.write(line.format(n=number) + "\n")
    told = [line for line in program.told() if line.msg == "progress"]
    assert [row.step for row in told] == [1, 2, 3, 4]
    assert {row.step_word for row in told} == {word}


@pytest.mark.parametrize(("nodes", "shown"), [(1, 0), (2, 1)])
def test_what_is_told_is_shown_to_a_watcher_on_another_host_once_a_second(
    nodes: int, shown: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []
    monkeypatch.setattr(os, "fdatasync", synced.append)
    monkeypatch.setattr("gonogo.supervise.launch.output_lines.SHOW_EVERY_S", 600.0)
    program = Program(tmp_path, STEP, nodes=nodes)
    program.write("step 1 loss 2.0\n")
    program.write("step 2 loss 2.0\n")
    assert len(synced) == shown, "not with every look"
    program.reader._show_at = 0.0
    program.write("step 3 loss 2.0\n")
    assert len(synced) == 2 * shown


def test_what_is_printed_faster_than_it_is_read_is_told_as_it_is_read(tmp_path: Path) -> None:
    program = Program(tmp_path, STEP)
    with program.log.open("a") as log:
        log.writelines(f"step {step} loss 1\n" for step in range(1, 7))
    looks = 0
    while not program.reader.read(0.0):
        looks += 1
        assert [step for step, _ in program.steps()] == list(range(1, looks + 1))
    assert looks == 6
    (tmp_path / ATTACHED).touch()
    assert program.write("step 7 loss 1\n").steps()[-1] == (6, 1.0), "it speaks for itself"


def test_a_last_line_without_an_end_counts(tmp_path: Path) -> None:
    program = Program(tmp_path, STEP).write("step 1 loss 1\nstep 2 loss 2")
    program.reader.close(0, asked=False)
    assert program.steps() == [(1, 1.0), (2, 2.0)]


def test_a_hole_is_passed_over_and_a_pipe_not_waited_for(tmp_path: Path) -> None:
    """A hole of a terabyte held the wrapper for hours, and a pipe for ever."""
    program = Program(tmp_path, STEP, steps=3)
    program.write("step 1 loss 2.5\n")
    os.truncate(program.log, 2**40)
    program.write("\nstep 2 loss 2.4\n")
    os.truncate(program.log, 2**41)
    program.write("")
    assert [step for step, _ in program.steps()] == [1, 2]
    program.log.unlink()
    os.mkfifo(program.log)
    program.reader.read()


def test_steps_that_begin_at_zero_count_from_one(tmp_path: Path) -> None:
    program = Program(tmp_path, STEP).write("step 0 loss 1\nstep 1 loss 2\nstep 10 loss 3\n")
    assert program.steps() == [(1, 1.0), (2, 2.0), (11, 3.0)]


def test_without_a_step_group_each_match_is_a_step(tmp_path: Path) -> None:
    program = Program(tmp_path, r"loss=(?P<loss>\S+)").write("loss=3\nx\nloss=nan\nloss=inf\n")
    assert program.steps()[0] == (1, 3.0)
    assert [str(loss) for _, loss in program.steps()[1:]] == ["nan", "inf"]


@pytest.mark.parametrize(
    ("norm", "shown"),
    [("1.234567891234", [1, 2, 3]), ("1.25", [1, 2, 3, 4, 5, 6]), ("nan", [1, 2, 3, 4, 5, 6])],
    ids=["exact", "rounded", "not finite"],
)
def test_a_counted_line_that_is_shown_again_is_no_further_step(
    norm: str, shown: list[int], tmp_path: Path
) -> None:
    line = "{{'loss': 2.5, 'grad_norm': {}, 'learning_rate': {}, 'epoch': 0.5}}\n"
    program = Program(tmp_path, PATTERNS["transformers"]).write(line.format("0.5", "1e-4"))
    program.write(line.format(norm, "2e-4")).write(line.format(norm, "3e-4"))
    program.write(line.format(norm, "3e-4") * 3)
    assert [step for step, _ in program.steps()] == shown


def test_who_counts_lines_does_not_know_that_another_was_owed(tmp_path: Path) -> None:
    said = "".join(f"{{'loss': {10 - n}}}\n" for n in range(10))  # of every fifth step
    last = []
    for steps in (10, 50):
        folder = tmp_path / str(steps)
        folder.mkdir()
        program = Program(folder, PATTERNS["transformers"], steps=steps).write(said)
        program.reader.close(0, asked=False)
        last.append((program.told()[-1].msg == "done", program.told()[-1].step))
    assert last == [(True, 10), (False, 10)]


def test_numbers_and_colours(tmp_path: Path) -> None:
    pattern = (
        STEP
        + r" lr (?P<lr>\S+) norm (?P<grad_norm>\S+) tok (?P<tokens>\S+) tps (?P<toks_per_s>\S+)"
    )
    program = Program(tmp_path, pattern)
    program.write("\x1b[31mstep 1\x1b[0m loss 2.5 lr 1e-4 norm 0.5 tok 4,096 tps 1,234.5\n")
    (line,) = [row for row in program.told() if row.msg == "progress"]
    assert (line.lr, line.grad_norm, line.tokens, line.toks_per_s) == (1e-4, 0.5, 4096, 1234.5)


def test_a_number_that_is_none_is_not_told(tmp_path: Path) -> None:
    assert Program(tmp_path, STEP).write("step 1 loss ?\n").steps() == [(1, None)]


def test_ranks_have_files_of_their_own(tmp_path: Path) -> None:
    program = Program(tmp_path, r"\[(?P<rank>\d+)\] " + STEP)
    program.write(
        "[0] step 1 loss 1\n[1] step 1 loss 2\n[0] step 2 loss 3\n[99999] step 1 loss 1\n"
    )
    assert (program.steps(0), program.steps(1)) == ([(1, 1.0), (2, 3.0)], [(1, 2.0)])


def test_of_guessed_patterns_the_first_that_fits_is_kept(tmp_path: Path) -> None:
    program = Program(tmp_path, *(PATTERNS[name] for name in GUESSED), patterns_guessed=True)
    program.write(
        "iter 0: loss 4.2, time 1ms\nstep 250: train loss 4.1, val loss 4.3\niter 1: loss 4\n"
    )
    assert program.steps() == [(1, 4.2), (2, 4.0)]


def test_an_evaluation_that_comes_first_hides_no_steps(tmp_path: Path) -> None:
    program = Program(tmp_path, *(PATTERNS[name] for name in GUESSED), patterns_guessed=True)
    program.write("step 0: train loss 4.1, val loss 4.2\niter 0: loss 4.3, time 60.00ms\n")
    program.write("iter 1: loss 3.9, time 60.00ms\nstep 2: train loss 3.8, val loss 3.9\n")
    program.write("iter 2: loss 0.5, time 60.00ms\n")
    assert program.steps()[1:] == [(2, 3.9), (3, 0.5)]


@pytest.mark.parametrize(
    "line",
    [
        "epoch 001 | valid on 'valid' subset | loss 9.3 | nll_loss 8",
        "Epoch(val)  [1][  50/117]  loss: 9.3",
        "Epoch 1 [val] loss=9",
        "Epoch 1 Test set: Average loss: 9",
        "Validation epoch 1: loss 9",
        "Test: Epoch: [0][ 1/50] Time 0.5 Loss 9.1 (9.1)",
        "epoch 1 evaluation | loss 9",
        "{'epoch': 1, 'split': 'val', 'loss': 9}",
    ],
)
def test_an_evaluation_of_an_epoch_is_no_step(line: str) -> None:
    assert re.search(PATTERNS["epoch"], line) is None


@pytest.mark.parametrize(
    "line",
    [
        "step 45 | eval | loss 9.0",
        "step 45 [val] loss: 9.0",
        "step 45 val: loss 9.0, acc 0.5",
        "step 45 - Validation - Loss: 9.0 - PPL: 8",
        "step 45 eval mean loss: 9.0",
        "step 45, val: {'loss': 9.0}",
        "Eval results - step 45: loss 9.0",
        "Evaluation at step 45: loss 9.0",
        "Validation results at step 45: loss 9.0",
        "(eval) step 45 loss 9.0",
        "EVAL  step 45 loss 9.0",
        "Val | step 45 | loss 9.0",
        "*** Eval *** step 45 loss 9.0",
        "Eval @ step 45: loss 9.0",
        "validating step 45 loss 9.0",
        '{"split": "val", "step": 45, "loss": 9.0}',
        '{"step": 45, "loss": 9.0, "mode": "eval"}',
        "{'phase': 'val', 'epoch': 1, 'loss': 9.0}",
        "Validation Results - Epoch: 1  Avg accuracy: 0.9 Avg loss: 9.0",
        "Validation | Epoch 1 | Loss 9.0",
        "[valid][epoch 1] loss 9.0",
        "Evaluate epoch 1 loss 9.0",
        "Epoch 1 Testing loss: 9.0",
        "Epoch 1 holdout loss: 9.0",
        "step 45 holdout loss 9.0",
        "step 45 | held-out | loss 9.0",
        "[heldout] step 45 loss 9.0",
        "step 45: loss on the held out set\tloss 9.0",
        "100 steps, 12ms/step 3, loss 9.0",
        "loss 9.0, time/step: 0.31",
    ],
)
def test_no_guessed_pattern_takes_an_evaluation_or_a_duration_for_a_step(line: str) -> None:
    assert [name for name in GUESSED if re.search(PATTERNS[name], line)] == []


@pytest.mark.parametrize(
    "line",
    [
        "INFO:test:step {} loss 2.5",
        "2026-01-01 10:00:00,123 - test - INFO - step {} loss 2.5",
        "step {} | valid tokens: 4096 | loss 2.5",
        "step {} | eval in 95 steps | loss 2.5",
        "step {} (eval every 100) loss 2.5",
        "step {} eval=False loss 2.5",
        "step {} | val n/a | loss 2.5",
        "dev: cuda:0 | step {} | loss 2.5",
    ],
)
def test_a_step_whose_line_mentions_an_evaluation_that_is_none_is_read(
    line: str, tmp_path: Path
) -> None:
    program = Program(tmp_path, *(PATTERNS[name] for name in GUESSED), patterns_guessed=True)
    program.write(line.format(1) + "\n" + line.format(2) + "\n")
    assert program.steps() == [(1, 2.5), (2, 2.5)]


def test_an_evaluation_whose_loss_is_nan_says_nothing_of_the_training(tmp_path: Path) -> None:
    program = Program(tmp_path, *(PATTERNS[name] for name in GUESSED), patterns_guessed=True)
    for number in range(10, 60, 10):
        program.write(f"Eval results - step {number}: loss nan\nstep {number} loss {number}.5\n")
        program.write(f"step {number + 5} | eval | loss nan\nstep {number} holdout loss: nan\n")
    assert program.steps() == [(number, number + 0.5) for number in range(10, 60, 10)]


@pytest.mark.parametrize(
    "line",
    [
        "[test.py:35] Epoch 1 [train] loss: 3",
        "Epoch 1 Train Loss: 3 Val Loss: 9",
        "Epoch 1 Val Loss: 9 Train Loss: 3",
        "Epoch 1 | Val Acc 0.9 | Test Acc: 0.8 | Loss 3",
    ],
)
def test_a_line_of_an_epoch_that_tells_of_both_is_a_step(line: str) -> None:
    assert re.search(PATTERNS["epoch"], line)["loss"] == "3"  # type: ignore[index]


def test_lines_of_epochs_are_counted_until_a_line_tells_a_step(tmp_path: Path) -> None:
    program = Program(tmp_path, *(PATTERNS[name] for name in GUESSED), patterns_guessed=True)
    program.write("Epoch 1: loss 3\nEpoch 2: loss 2\n")
    assert program.steps() == [(1, 3.0), (2, 2.0)]
    program.write("step 1 loss 9\nstep 2 loss 8\nEpoch 3: loss 1\n{'loss': 1}\nstep 3 loss 7\n")
    assert program.steps()[2:] == [(1, 9.0), (2, 8.0), (3, 7.0)]
    assert [line.msg for line in program.told()].count("boot") == 2
    program.reader.close(0, asked=False)
    assert program.told()[-1].msg == "done", "it tells its steps now"


@pytest.mark.parametrize("line", ["Epoch 1 [640/60000] Loss: {}\n", "{{'loss': {}, 'epoch': 1}}\n"])
@pytest.mark.parametrize("beside", ["saved step 900 (loss 0.3)\n", "Eval at step 9: loss 0.3\n"])
def test_a_rare_line_that_names_a_step_hides_none_of_those_that_are_counted(
    line: str, beside: str, tmp_path: Path
) -> None:
    program = Program(tmp_path, *(PATTERNS[name] for name in GUESSED), patterns_guessed=True)
    for _ in range(3):
        program.write(beside + "".join(line.format(loss) for loss in (4, 3, 2)))
    assert program.steps() == list(enumerate([4, 3, 2] * 3, start=1))


def test_steps_that_are_told_as_often_as_epochs_are_counted_are_steps(tmp_path: Path) -> None:
    program = Program(tmp_path, *(PATTERNS[name] for name in GUESSED), patterns_guessed=True)
    program.write("Epoch 0: loss 9\nstep 1 loss 8\nEpoch 1: loss 7\nstep 2 loss 6\n")
    assert program.steps() == [(1, 9.0), (2, 7.0), (1, 8.0), (2, 6.0)]


def test_several_chosen_patterns_all_count(tmp_path: Path) -> None:
    program = Program(tmp_path, STEP, r"it (?P<step>\d+)").write("it 1\nstep 2 loss 2\nit 3\n")
    assert [step for step, _ in program.steps()] == [1, 2, 3]


@pytest.mark.parametrize("at_once", [True, False])
def test_the_lines_of_a_record_tell_one_step(at_once: bool, tmp_path: Path) -> None:
    patterns = (r"== step (?P<step>\d+)", r"loss: (?P<loss>\S+), seen: (?P<tokens>\S+)")
    assert check_patterns(patterns) is None
    program = Program(tmp_path, *patterns, steps=10)
    records = [f"== step {n} ==\n  loss: {n}.5, seen: 4,096\n" for n in range(1, 10)]
    if at_once:
        program.write("".join(records))
    else:
        for line in "".join(records).splitlines(keepends=True):
            program.write(line)
    program.reader.close(0, asked=False)
    assert program.steps() == [(n, n + 0.5) for n in range(1, 10)]
    assert {line.tokens for line in program.told() if line.msg == "progress"} == {4096}
    assert (program.told()[-1].msg, program.told()[-1].step) == ("done", 9), "it ended early"


@pytest.mark.parametrize(
    ("last", "wait_s", "ended"),
    [
        ("stopped early, before step 20 loss 1.9", 0.0, False),
        ("step 20 loss 1.9", 40.0, False),
        ("step 20 loss 1.9", 60.0, True),
        ("step 20/20 loss 1.9", 0.0, True),
        ("step 12 loss 1.9", 0.0, True),
    ],
)
def test_a_step_that_is_mentioned_at_the_end_and_was_never_made_is_no_end(
    last: str, wait_s: float, ended: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that stopped at step 10 and told what it would have come to had completed."""
    clock = LaterClock()
    monkeypatch.setattr("gonogo.supervise.launch.output_lines.time", clock)
    pattern = r"step (?P<step>\d+)(?:/20)? loss (?P<loss>\S+)"
    program = Program(tmp_path, pattern, steps=12 if "12" in last else 20)
    for number in range(1, 11):
        clock.later_s += 10.0
        program.write(f"step {number} loss {number}\n")
    clock.later_s += wait_s
    program.write(last + "\n")
    program.reader.close(0, asked=False)
    assert (program.told()[-1].msg == "done") is ended


@pytest.mark.parametrize("at_once", [True, False])
@pytest.mark.parametrize(
    "record", ["step {0}\nloss: 2\nstep {0}\nloss: {1}\n", "step {0}\nloss: 2\nloss: {1}\n"]
)
def test_a_loss_that_is_not_finite_is_told_wherever_a_record_has_it(
    record: str, at_once: bool, tmp_path: Path
) -> None:
    """Of two losses of a step the first was told: another rank's, or another line's, was not."""
    program = Program(tmp_path, r"step (?P<step>\d+)", r"loss: (?P<loss>\S+)", steps=4)
    text = "".join(record.format(n, "nan" if n == 3 else 5) for n in range(1, 5))
    for piece in [text] if at_once else text.splitlines(keepends=True):
        program.write(piece)
    program.reader.close(0, asked=False)
    lost = [step for step, loss in program.steps() if loss is not None and math.isnan(loss)]
    assert lost == [3]
    assert {loss for step, loss in program.steps() if step != 3} <= {2.0, None}
    assert program.told()[-1].msg == "done"


def test_what_a_record_tells_of_a_first_step_beyond_one_is_its_own(tmp_path: Path) -> None:
    program = Program(tmp_path, r"step (?P<step>\d+)", r"loss: (?P<loss>\S+)")
    for number in (10, 20, 30):
        program.write(f"step {number}\nloss: {number}\n")
    assert program.steps() == [(10, 10.0), (20, 20.0), (30, 30.0)]
    assert [line.msg for line in program.told()].count("boot") == 1


def test_a_step_waits_for_the_rest_of_its_record_and_not_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gonogo.supervise.launch.output_lines._RECORD_S", 0.2)
    program = Program(tmp_path, r"step (?P<step>\d+)", r"loss: (?P<loss>\S+)")
    program.write("step 1\nstep 2\n")
    assert program.steps() == [(1, None)]
    time.sleep(0.25)
    assert program.write("").steps() == [(1, None), (2, None)]
    program.write("loss: 2\n")
    assert program.steps() == [(1, None), (2, None), (2, 2.0)], "it is not of the next one"


def test_what_a_step_tells_long_after_its_number_is_told_of_it_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gonogo.supervise.launch.output_lines._RECORD_S", 0.0)
    patterns = (r"step (?P<step>\d+)", r"loss: (?P<loss>\S+)", r"lr: (?P<lr>\S+)")
    program = Program(tmp_path, *patterns)
    for line in ("step 1", "lr: 0.5", "loss: nan", "loss: 7", "step 2", "loss: 2", "lr: 0.25"):
        program.write(line + "\n")
    told = [(row.step, row.lr, row.loss) for row in program.told() if row.msg == "progress"]
    assert [(step, lr, str(loss)) for step, lr, loss in told] == [
        *((1, None, "None"), (1, 0.5, "None"), (1, 0.5, "nan")),
        *((2, None, "None"), (2, None, "2.0"), (2, 0.25, "2.0")),
    ]


def test_lines_without_a_step_are_counted_until_another_pattern_tells_one(tmp_path: Path) -> None:
    program = Program(tmp_path, PATTERNS["plain"], PATTERNS["transformers"])
    program.write("{'loss': 3}\n{'loss': 2}\n")
    assert program.steps() == [(1, 3.0), (2, 2.0)]
    program.write("step 1 loss 9\nstep 2 loss 8\n{'loss': 1}\nstep 3 loss 7\n")
    program.reader.close(0, asked=False)
    assert program.steps()[2:] == [(1, 9.0), (2, 8.0), (3, 7.0)]


def test_a_program_that_speaks_for_itself_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "heartbeat_rank0.jsonl").write_text("")
    program = Program(tmp_path, STEP).write("step 1 loss 1\n")
    program.reader.close(0, asked=False)
    assert (tmp_path / "heartbeat_rank0.jsonl").read_text() == ""


def test_the_file_is_held_while_it_is_written(tmp_path: Path) -> None:
    Program(tmp_path, STEP).write("step 1 loss 1\n")
    with (tmp_path / "heartbeat_rank0.jsonl").open() as other, pytest.raises(BlockingIOError):
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_silence_is_broken_once_it_has_spoken_and_not_before(tmp_path: Path) -> None:
    program = Program(tmp_path, STEP).write("nothing\n")
    assert not (tmp_path / "heartbeat_rank0.jsonl").exists()
    program.write("step 1 loss 1\n")
    time.sleep(0.01)
    program.write("nothing\n")
    assert program.told()[-1].msg == "alive"


@pytest.mark.parametrize(("code", "asked"), [(1, False), (-9, False), (0, True), (3, True)])
def test_who_fails_or_was_asked_to_leave_is_not_done(
    code: int, asked: bool, tmp_path: Path
) -> None:
    program = Program(tmp_path, STEP).write("step 1 loss 1\n")
    program.reader.close(code, asked=asked)
    assert "done" not in [line.msg for line in program.told()]


@pytest.mark.parametrize(
    ("lines", "steps", "done"),
    [
        ("step 1 loss 1\nstep 2 loss 1\n", 2, True),
        ("step 1 loss 1\nstep 2 loss 1\n", 3, True),  # 3 was owed: it ended early, and says so
        ("step 10 loss 1\nstep 20 loss 1\n", 29, False),
        ("step 10 loss 1\nstep 20 loss 1\n", 30, True),
        ("step 1 loss 1\n", 30, False),
        ("step 1 loss 1\n", None, True),
        # an epoch's last steps, nine of them here at most, need not have been printed
        ("step 10 loss 1\nstep 20 loss 1\n" * 2, 58, False),
        ("step 10 loss 1\nstep 20 loss 1\n" * 2, 59, True),
        ("step 10 loss 1\nstep 20 loss 1\n" * 3, 87, False),
        ("step 10 loss 1\nstep 20 loss 1\n" * 3, 88, True),
        ("step 1 loss 1\nstep 2 loss 1\n" * 2, 5, True),
    ],
)
def test_who_left_out_no_line_that_was_owed_may_have_gone_on(
    lines: str, steps: int | None, done: bool, tmp_path: Path
) -> None:
    program = Program(tmp_path, STEP, steps=steps).write(lines)
    program.reader.close(0, asked=False)
    assert ("done" in [line.msg for line in program.told()]) == done


@pytest.mark.parametrize(
    ("lasts", "steps", "done"),
    [
        ([14, 20], 24, False),
        ([20, 8], 24, False),
        ([10, 4, 10], 24, False),
        ([14, 24], 24, True),  # the second was the whole run
        ([8, 8, 8], 24, True),
        ([20, 4], 24, True),  # that ended within an epoch
        ([20, 8], 28, True),
        ([12, 13], 24, True),
        ([14, 20], 60, True),  # more was owed: it ended early, and says so
    ],
)
@pytest.mark.parametrize("first", [0, 1])
def test_loops_of_other_lengths_than_epochs_have_leave_the_end_open(
    lasts: list[int], steps: int, done: bool, first: int, tmp_path: Path
) -> None:
    loops = [range(first, first + last) for last in lasts]
    lines = "".join(f"step {step} loss 1\n" for loop in loops for step in loop)
    program = Program(tmp_path, STEP, steps=steps).write(lines)
    program.reader.close(0, asked=False)
    assert ("done" in [line.msg for line in program.told()]) == done


def test_a_number_beyond_all_steps_hides_none_that_follow(tmp_path: Path) -> None:
    program = Program(tmp_path, STEP).write("step 1 loss 1\nstep 1700000000000 loss 1\n")
    assert [step for step, _ in program.write("step 2 loss 1\n").steps()] == [1, 2]


def test_a_log_that_vanishes_is_no_harm(tmp_path: Path) -> None:
    program = Program(tmp_path, STEP)
    program.log.unlink()
    program.reader.read()
    program.reader.close(0, asked=False)


@pytest.mark.parametrize(
    ("pattern", "said"),
    [
        ("(", "unterminated"),
        (r"(?P<stop>\d+)", "found group 'stop'; expected one of grad_norm"),
        (r"\d+", "neither (?P<step>"),
        (r"(?P<lr>\d+)", "neither (?P<step>"),
    ],
)
def test_a_pattern_that_cannot_be_used_is_named(pattern: str, said: str) -> None:
    assert said in str(check_patterns([STEP, pattern]))


@pytest.mark.parametrize(
    ("name", "line", "told"),
    [
        (
            "nanogpt",
            "iter 90: loss 2.7683, time 3012.32ms, mfu 1.10%",
            {"step": "90", "loss": "2.7683"},
        ),
        (
            "torchtitan",
            "[rank0]:2026-01-01 - root - INFO - step: 10  loss:  4.5012  grad_norm:  1.25"
            "  memory:  1.3GiB(1.4%)  tps: 12,345  tflops: 1.1  mfu: 0.3%",
            {"step": "10", "loss": "4.5012", "grad_norm": "1.25", "toks_per_s": "12,345"},
        ),
        (
            "megatron",
            " [2026-01-01] iteration      100/    1000 | consumed samples: 800 | elapsed time per"
            " iteration (ms): 35.1 | learning rate: 1.000000E-04 | global batch size:     8 |"
            " lm loss: 6.511413E+00 | loss scale: 1.0 | grad norm: 2.345 | number of skipped",
            {"step": "100", "loss": "6.511413E+00", "grad_norm": "2.345", "lr": "1.000000E-04"},
        ),
        (
            "llm.c",
            "step   12/19560 | loss 9.123456 (+0.01z)| norm 5.1234 (+0.02z)| lr 1.07e-05 |"
            " 1234.56 ms | 40.2% bf16 MFU | 424,242 tok/s",
            {"step": "12", "loss": "9.123456", "grad_norm": "5.1234", "toks_per_s": "424,242"},
        ),
        (
            "modded-nanogpt",
            "step:125/5100 train_loss:4.3210 train_time:12345ms step_avg:98.76ms",
            {"step": "125", "loss": "4.3210"},
        ),
        (
            "transformers",
            "{'loss': 2.3112, 'grad_norm': 1.5, 'learning_rate': 4.9e-05, 'epoch': 0.1}",
            {"loss": "2.3112", "grad_norm": "1.5", "lr": "4.9e-05"},
        ),
        ("tqdm", " 30%|███ | 30/100 [00:03<00:07,  9.9it/s]", {"step": "30"}),
        ("plain", "Epoch 1, step 40, train loss: 1.25", {"step": "40", "loss": "1.25"}),
        ("plain", "[Iteration: 7] lr=0.1 loss=nan", {"step": "7", "loss": "nan"}),
        ("plain", "Step 1,000 loss 2.5", {"step": "1,000", "loss": "2.5"}),
        (
            "plain",
            "step     3 | loss: 10.955029 | lr 6.0000e-04 | norm: 1.2 | dt: 10.0ms | tok/sec: 12.5",
            {"step": "3", "loss": "10.955029"},
        ),
        ("plain", "step 1 best loss inf train loss 2.0", {"step": "1", "loss": "2.0"}),
        ("plain", '{"loss": 2.5, "lr": 0.001, "step": 7}', {"step": "7", "loss": "2.5"}),
        ("plain", "loss=2.5 step=7", {"step": "7", "loss": "2.5"}),
        ("plain", '{"step": "7", "loss": "2.5"}', {"step": "7", "loss": "2.5"}),
        ("plain", "step 7 | loss:     2.5000", {"step": "7", "loss": "2.5000"}),
        ("plain", "step 7 loss tensor(2.5, grad_fn=<X>)", {"step": "7", "loss": "2.5"}),
        ("plain", "{'step': 7, 'loss': np.float32(2.5)}", {"step": "7", "loss": "2.5"}),
        ("plain", "step 7 loss NAN", {"step": "7", "loss": "NAN"}),
        ("plain", "step 7 loss -INF", {"step": "7", "loss": "-INF"}),
        ("plain", "step 1_500 loss 2.5", {"step": "1_500", "loss": "2.5"}),
        ("plain", "train_step=7 total_loss=2.5 z_loss=9", {"step": "7", "loss": "2.5"}),
        ("plain", "12ms/step | step 7 | loss 2.5", {"step": "7", "loss": "2.5"}),
        ("plain", "step 7 | val ppl 9 | loss 2.5", {"step": "7", "loss": "2.5"}),
        ("plain", "exp=test step 7 | loss 2.5", {"step": "7", "loss": "2.5"}),
        (
            "plain",
            "Epoch 1 | iter 7 step 3 | loss train: 2.500, val: n/a | iter time: 100.12 ms",
            {"step": "7", "loss": "2.500"},
        ),
        (
            "plain",
            "mmengine - INFO - Iter(train) [    50/20000]  lr: 1e-2  loss: 2.5  decode.loss_ce: 1",
            {"step": "50", "loss": "2.5"},
        ),
        (
            "plain",
            "2026-01-01 | INFO | train_inner | epoch 001:    100 / 1000 loss=2.5, ppl=9, ups=1.1,"
            " num_updates=1100, lr=1e-05, gnorm=1.2",
            {"step": "1100", "loss": "2.5"},
        ),
        ("plain", "step 1 | val loss: nan | train loss: 2.0", {"step": "1", "loss": "2.0"}),
        ("plain", "Step 3: Eval Loss 9, loss 2.0", {"step": "3", "loss": "2.0"}),
        ("plain", "step 3, loss: -0.5", {"step": "3", "loss": "-0.5"}),
        ("tqdm", " 9%| | 8/80 [00:03<00:07,  9.9it/s, loss=nan]", {"step": "8", "loss": "nan"}),
        ("tqdm", "loss 0.75:  9%| | 8/80 [00:03<00:07]", {"step": "8", "loss": "0.75"}),
        ("tqdm", "Epoch 0: | 8/80 [00:03<00:07, train_loss=2.5]", {"step": "8", "loss": "2.5"}),
        ("tqdm", "Epoch 0, val loss 3: | 8/80 [00:03<00:07]", {"step": "8"}),
        ("tqdm", "val acc 0.5: 9%| | 8/80 [00:03<00:07]", {"step": "8"}),
        ("tqdm", "Epoch 1 (best val 0.42): 9%| | 8/80 [00:03<00:07]", {"step": "8"}),
        ("tqdm", "loss 0.75, val=.42: 9%| | 8/80 [00:03<00:07]", {"step": "8", "loss": "0.75"}),
        ("epoch", "Epoch 1 - val: 0.42 - loss: 2.0", {"loss": "2.0"}),
        ("tqdm", "train: 9%| | 8/80 [00:03<00:07, val=1]", {"step": "8"}),
        ("tqdm", "loss 2.31 val 2.50: 9%| | 8/80 [00:03<00:07]", {"step": "8", "loss": "2.31"}),
        ("tqdm", "Epoch 1 eval nan: 9%| | 8/80 [00:03<00:07]", {"step": "8"}),
        ("tqdm", "loss 2.31 val None: 9%| | 8/80 [00:03<00:07]", {"step": "8", "loss": "2.31"}),
        ("tqdm", "loss 2.31 val 2e-05: 9%| | 8/80 [00:03<00:07]", {"step": "8", "loss": "2.31"}),
        ("tqdm", "Training [test run]: 9%| | 8/80 [00:03<00:07]", {"step": "8"}),
        ("plain", "step 1 lowest loss inf loss 2.0", {"step": "1", "loss": "2.0"}),
        ("plain", "test.py step 1 | 5 min loss 2.0", {"step": "1", "loss": "2.0"}),
        ("epoch", "Epoch 1: previous loss inf, loss 2.0", {"loss": "2.0"}),
        ("epoch", "Train Epoch: 1 [640/60000 (1%)]\tLoss: 2.300039", {"loss": "2.300039"}),
        ("epoch", "Epoch: [0][ 10/99]\tTime 0.2 (0.2)\tLoss 6.9e+00 (7.0)", {"loss": "6.9e+00"}),
        ("epoch", "Epoch: [0]  [ 10/99]  eta: 0:12:34  loss: 6.9 (7.0)", {"loss": "6.9"}),
        ("epoch", "| epoch   1 |   200/ 2983 batches | loss  7.63 | ppl 2057", {"loss": "7.63"}),
        ("epoch", "Epoch 3/10: train_loss=0.5, val_loss=0.6", {"loss": "0.5"}),
        ("epoch", "[1,  2000] loss: 2.173", {"loss": "2.173"}),
        ("epoch", "loss: 2.303494  [   64/60000]", {"loss": "2.303494"}),
        ("epoch", "loss: 2.303494  [   64/ 6400]", {"loss": "2.303494"}),
        (
            "epoch",
            "40/40 - 2s - 50ms/step - accuracy: 0.5 - loss: 2.5 - val_loss: 9.0",
            {"loss": "2.5"},
        ),
        (
            "keras",
            " 9/40 ━━━━━━━━ 2s 12ms/step - accuracy: 0.5000 - loss: 2.5 - val_loss: 9.0",
            {"step": "9", "loss": "2.5"},
        ),
        (
            "keras",
            " 9/40 [=====>......] - ETA: 2s - loss: nan - accuracy: 0.5",
            {"step": "9", "loss": "nan"},
        ),
        ("keras", "9/Unknown 1s 12ms/step - loss: 2.5", {"step": "9", "loss": "2.5"}),
        (
            "timm",
            "Train: 0 [  50/1251 (  4%)]  Loss: 6.93 (6.94)  Time: 0.3s, 700/s  (0.3s, 700/s) "
            " LR: 1.000e-05  Data: 0.01 (0.1)",
            {"step": "50", "loss": "6.93", "lr": "1.000e-05"},
        ),
        (
            "yolo",
            "        0/2         0G     0.1234    0.05    0.02   30   640:  9%|█ | 9/99 [0:01<",
            {"step": "9", "loss": "0.1234"},
        ),
        (
            "yolo",
            "        1/3      1.23G      1.234    2.3    1.1    30    640: 9% ━── 9/100 9.9it/s",
            {"step": "9", "loss": "1.234"},
        ),
        (
            "dcgan",
            "[0/5][9/1583]\tLoss_D: 1.7410\tLoss_G: 4.9\tD(x): 0.5\tD(G(z)): 0.5 / 0.02",
            {"step": "9", "loss": "1.7410"},
        ),
        (
            "espnet",
            "INFO: 2epoch:train:51-100batch: iter_time=0.1, loss_ctc=9.1, acc=0.1, loss=7.5,"
            " backward_time=0.1, grad_norm=1.2, clip=100.0, optim0_lr0=1.25e-06, train_time=0.2",
            {"step": "100", "loss": "7.5", "grad_norm": "1.2", "lr": "1.25e-06"},
        ),
        (
            "opennmt",
            "INFO] Step 50/ 1000; acc: 4.5; ppl: 9000.1; xent:  9.1; lr: 0.001; sents: 100;",
            {"step": "50", "loss": "9.1", "lr": "0.001"},
        ),
        (
            "marian",
            "Ep. 1 : Up. 1,000 : Sen. 9,000 : Cost 9.25 : Time 1.0s : gNorm 1.2 : L.r.",
            {"step": "1,000", "loss": "9.25", "grad_norm": "1.2"},
        ),
        (
            "verl",
            "(TaskRunner pid=9) step:7 - actor/entropy:0.5 - actor/pg_loss:np.float64(-0.02) -"
            " actor/grad_norm:0.7 - critic/score/mean:0.3",
            {"step": "7", "loss": "-0.02", "grad_norm": "0.7"},
        ),
        (
            "clu",
            "I0101 00:00:00.1 140 logging_writer.py:48] [10] learning_rate=0.1, train_loss=2.5",
            {"step": "10", "loss": "2.5"},
        ),
        ("darknet", " 9: 2.5, 2.6 avg loss, 0.001 rate, 0.1 seconds", {"step": "9", "loss": "2.5"}),
        (
            "fastai",
            "9         2.512345    2.612345    nan    00:10     ",
            {"loss": "2.512345"},
        ),
        (
            "plain",
            "Training epoch 0, iteration 5/299 | lr: 1e-4 | reduced_train_loss: 2.5",
            {"step": "5", "loss": "2.5"},
        ),
        (
            "loss-at-step",
            "Training loss (for 1 batch) at step 200: 2.5",
            {"step": "200", "loss": "2.5"},
        ),
        ("loss-at-step", "Cost after iteration 9: 0.69", {"step": "9", "loss": "0.69"}),
        ("loss-at-step", "Loss at step 9 = 0.69", {"step": "9", "loss": "0.69"}),
        ("counter", "it 9 loss 2.5", {"step": "9", "loss": "2.5"}),
        ("counter", "[it  9] 3.5 it/s loss=2.5", {"step": "9", "loss": "2.5"}),
        ("counter", "steps: 9, loss: 2.5", {"step": "9", "loss": "2.5"}),
        ("counter", "Batch 9/40, Loss: 2.5", {"step": "9", "loss": "2.5"}),
        ("fraction", "[9/300] loss: 2.5", {"step": "9", "loss": "2.5"}),
        ("fraction", "training: 9/300 | train_loss 2.5", {"step": "9", "loss": "2.5"}),
        ("bar", "steps: 3%|▎ | 9/300 [00:01<00:29, avr_loss=2.5]", {"step": "9", "loss": "2.5"}),
        ("bar", "1|9|Loss: 2.5: 3%|▎ | 9/300 [00:01<00:29]", {"step": "9", "loss": "2.5"}),
    ],
)
def test_well_known_trainers(name: str, line: str, told: dict[str, str]) -> None:
    match = re.search(PATTERNS[name], line)
    assert match is not None
    found = {group: text for group, text in match.groupdict().items() if text is not None}
    assert found == told
    assert name not in GUESSED or may_tell_a_loss(line), (
        "else it is not looked at where nobody named a pattern"
    )


@pytest.mark.parametrize(
    ("line", "loss"),
    [
        ("step 1, kl loss nan, aux_loss: nan, loss: 3.1", 3.1),
        ("step 1 (min loss: inf) train loss: 2.5", 2.5),
        ("step 1 early-stop loss inf, loss 2.5", 2.5),
        ("step 1 best so far: loss inf; loss 2.1", 2.1),
        ("step 1 loss nan, kl loss 0.3", math.nan),
        ("step 1 loss nan", math.nan),
        ("step 1 after 5 min loss 2.0", 2.0),
        ("step 1 kl loss nan", math.nan),
        ("step 1 kl loss nan val/loss 3.0 val loss 3.1", math.nan),
        ("step 1 policy loss 0.5 val: loss 1.2", 0.5),
        ("step 1 policy loss 0.5 val_step 3 loss 1.2", 0.5),
        ("epoch 1 train loss 2.5 contrastive loss 0.1", 2.5),
        ("step 1 INFO loss 2.5", 2.5),
    ],
)
def test_of_several_losses_the_one_of_no_kind_is_told(
    line: str, loss: float, tmp_path: Path
) -> None:
    """A part that is no number before anything was drawn halted a healthy program."""
    program = Program(tmp_path, *(PATTERNS[name] for name in GUESSED), patterns_guessed=True)
    program.write(f"{line}\n")
    program.reader.close(1, asked=False)
    assert [row for _, row in program.steps()] == [pytest.approx(loss, nan_ok=True)]


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("plain", "step 3 | val loss: nan"),
        ("plain", "step 3 best loss inf"),
        ("plain", "[val] step 45 loss nan"),
        ("plain", "Validation Step [3/5], Loss: 2.5"),
        ("plain", "Step 3: dev loss 2.5"),
        ("epoch", "Epoch 1 [dev] loss nan"),
        ("tqdm", "Validation:  10%|█ | 1/10 [00:00<00:01, loss=2]"),
        ("tqdm", "Epoch 0 [val]:  10%|█ | 1/10 [00:00<00:01, loss=2]"),
        ("tqdm", "Val 3:  10%|█ | 1/10 [00:00<00:01, loss=2]"),
        ("tqdm", "Eval inference 1:  10%|█ | 1/10 [00:00<00:01, loss=2]"),
        ("tqdm", "Validation (training set):  10%|█ | 1/10 [00:00<00:01, loss=2]"),
        ("tqdm", "Sanity Checking DataLoader 0: 100%|██| 2/2 [00:00<00:00]"),
        ("tqdm", "Map (num_proc=4): 100%|██| 1000/1000 [00:00<00:00, 9 examples/s]"),
        ("tqdm", "Loading checkpoint shards: 100%|██| 2/2 [00:00<00:00]"),
        ("tqdm", "Tokenizing train dataset: 100%|██| 9/9 [00:00<00:00]"),
        ("epoch", "| end of epoch   1 | time:  1.23s | valid loss  5.5 |"),
        ("epoch", "Epoch 0, loss 3: | 8/80 [00:03<00:07]"),  # a bar shows each step again and again
        ("epoch", "Test set: Average loss: 0.0500, Accuracy: 9840/10000 (98%)"),
        ("keras", "313/313 ━━━━━━━━ 1s 2ms/step"),
        ("keras", "40/40 - 2s - 50ms/step - accuracy: 0.5 - loss: 2.5"),  # once an epoch
        ("timm", "Test: [   4/48]  Time: 0.1 (0.1)  Loss:  6.9 (6.9)  Acc@1:   1.0 (1.0)"),
        ("yolo", "      Class     Images  Instances      Box(P          R: 100%|██| 9/12 [00:01<"),
        ("espnet", "INFO: 1epoch results: [train] loss=9.1, time=2 seconds, [valid] loss=8.1"),
        ("marian", "[valid] Ep. 1 : Up. 100 : cross-entropy : 2.5 : new best"),
        ("verl", "step:0 - val-core/openai/gsm8k/reward/mean@1:0.5"),
        ("clu", "logging_writer.py:48] [10] eval_loss=2.5, eval/loss=2.5"),
        ("fastai", "epoch     train_loss  valid_loss  accuracy  time    "),
        ("fastai", "12 0.5 0.7 00:10"),
        ("loss-at-step", "Validation loss at step 10: 2.5"),
        ("loss-at-step", "Loss at epoch 9: 2.5"),  # whoever orders steps has not ended early
        ("loss-at-step", "validation loss at iteration 100 | lm loss value: 6.4"),
        ("counter", "Steps:   3%|▎ | 9/300 [00:01<00:29, loss=2.5]"),
        ("counter", "50.1 it 3 val loss: 2.5"),
        ("counter", "Epoch 3, batch 32, loss 2.5"),  # its size, perhaps; `epoch` counts them
        ("counter", "100 steps/s: 3, loss 2.5"),
        ("fraction", "Test: [0/48] Loss 2.5"),
        ("fraction", "Epoch [3/10], loss 2.5"),
        ("fraction", "2025/01/02 loss 2.5"),
        ("bar", "Validation:  10%|█ | 1/10 [00:00<00:01, loss=2]"),
        ("bar", " 30%|███ | 30/100 [00:03<00:07,  9.9it/s]"),
        ("bar", "  57.0/300 [00:01<00:02, 9.9it/s, loss=2.5]"),  # it would stand at 0
    ],
)
def test_a_loss_that_is_not_trained_on_is_none(name: str, line: str) -> None:
    assert re.search(PATTERNS[name], line) is None


@pytest.mark.parametrize(
    "text", ["nan", "NaN", "NAN", "-nan", "inf", "Inf", "INF", "-INF", "Infinity"]
)
@pytest.mark.parametrize(
    "line", ["step {} loss {}", "iter {}: loss {}, time 3ms", "step {}/99 | loss {} (+1z)| norm 1"]
)
def test_a_loss_that_is_not_finite_is_read_however_it_is_written(
    line: str, text: str, tmp_path: Path
) -> None:
    program = Program(tmp_path, *(PATTERNS[name] for name in GUESSED), patterns_guessed=True)
    for number, loss in enumerate(["2.5", "2.4", text, "2.3"], start=1):
        program.write(line.format(number, loss) + "\n")
    told = [loss for _, loss in program.steps()]
    assert [math.isfinite(float(loss)) for loss in told] == [True, True, False, True]


@pytest.mark.parametrize(
    "line",
    [
        "step {0:4d}/99 | loss {1:7.6f} ({1:+.2f}z)| norm {1:6.4f} ({1:+.2f}z)| lr 1e-4 | 12 ms",
        "loss: {1:>7f}  [{0:>5d}/{2:>5d}]",
    ],
    ids=["llm.c", "PyTorch's quickstart"],
)
def test_a_loss_that_is_not_finite_is_read_where_it_is_shorter_than_its_field(
    line: str, tmp_path: Path
) -> None:
    """As many trainers print them: `%7.6f` puts four blanks before a NaN."""
    program = Program(tmp_path, *(PATTERNS[name] for name in GUESSED), patterns_guessed=True)
    for number, loss in enumerate([2.5, 2.4, math.nan, math.inf], start=1):
        program.write(line.format(number, loss, 99) + "\n")
    told = [(step, float(loss)) for step, loss in program.steps()]
    assert [step for step, _ in told] == [1, 2, 3, 4]
    assert [math.isfinite(loss) for _, loss in told] == [True, True, False, False]


@pytest.mark.parametrize("line", ["step 2: loss info is saved", "step 2 loss nan_count=0 INFO"])
def test_a_word_that_begins_like_a_loss_that_is_not_finite_is_none(
    line: str, tmp_path: Path
) -> None:
    program = Program(tmp_path, *(PATTERNS[name] for name in GUESSED), patterns_guessed=True)
    program.write(f"step 1 loss 2.5\n{line}\nstep 2 loss 2.4\n")
    assert program.steps() == [(1, 2.5), (2, 2.4)]


def test_patterns_that_fit_several_lines_are_named_the_best_first() -> None:
    printed = ["step 3 loss 2", "Epoch 1 loss 2", *(f"{n}/80 [00:03<00:07]" for n in range(3))]
    assert fitting(printed) == ["tqdm"]
    assert fitting([*printed, *printed]) == ["tqdm", "plain", "epoch"]
    assert fitting(["working"] * 9) == []


def test_bundled_patterns_can_be_used() -> None:
    assert check_patterns(list(PATTERNS.values())) is None
    assert set(GUESSED) <= PATTERNS.keys()
    tell = ["step" in re.compile(PATTERNS[name]).groupindex for name in GUESSED]
    assert tell == sorted(tell, reverse=True), "lines are counted where none tells a step"


def bar(done: int, of: int, loss: float | None = None) -> str:
    return f"\r {done}/{of} [00:01<00:02, 9.9it/s{'' if loss is None else f', loss={loss}'}]"


def test_a_bar_that_shows_a_number_again_and_again_counts_what_is_done(tmp_path: Path) -> None:
    program = Program(tmp_path, PATTERNS["tqdm"])
    shown = [bar(0, 80), *(bar(0, 80, 9.0 - n) for n in range(6))]
    for done in range(7, 61, 7):
        shown += [bar(done, 80, done + again / 10) for again in range(7)]
    program.write("".join(shown) + "\n")
    program.reader.close(0, asked=False)
    assert program.steps() == [(done, float(done)) for done in range(7, 61, 7)]


def test_who_ends_after_an_evaluation_has_not_made_its_steps_twice(tmp_path: Path) -> None:
    program = Program(tmp_path, PATTERNS["tqdm"], steps=20)
    for called in ("Epoch 0", "Validation"):
        program.write("".join(f"\r{called}: |{bar(n, 10, 3.0)[1:]}" for n in range(11)) + "\n")
    program.reader.close(0, asked=False)
    assert [step for step, _ in program.steps()] == list(range(1, 11))


def test_a_bar_that_shows_the_last_evaluation_from_then_on_is_read_on(tmp_path: Path) -> None:
    """Else a run would be silent from its first evaluation on, and be ended for it."""
    program = Program(tmp_path, PATTERNS["tqdm"], steps=20)
    for done in range(21):
        shown = "" if done < 10 else " val 2.41"
        program.write(f"\rloss 2.50{shown}: |{bar(done, 20)[1:]}")
    program.reader.close(0, asked=False)
    assert [step for step, _ in program.steps()] == list(range(1, 21))


def all_of(length: int, first: int = 0, last: int | None = None) -> str:
    """A bar from one number to another."""
    return "".join(bar(n, length) for n in range(first, (length if last is None else last) + 1))


def test_what_is_printed_behind_a_bar_is_a_line_of_its_own(tmp_path: Path) -> None:
    """A bar's loss and the step of a message were one step, and the bar was read no more."""
    text = "".join(
        f"\rEpoch 1:  5%|# | {n}/40 [00:01<00:09,  3.2it/s, loss=2.{n}]"
        + (f"Saving checkpoint at step {n}\n" if n in (14, 16) else "")
        for n in range(1, 41)
    )
    guessed = [PATTERNS[name] for name in GUESSED]
    program = Program(tmp_path, *guessed, steps=40, patterns_guessed=True).write(text)
    program.reader.close(0, asked=False)
    assert [step for step, _ in program.steps()] == list(range(1, 41))
    assert program.told()[-1].msg == "done"


def test_a_line_behind_the_bar_of_an_evaluation_is_read(tmp_path: Path) -> None:
    text = "".join(
        f"step {n} loss 2.{n}\n" + ("\rValidating: 3/3 [00:01<00:00, loss=9]" if n == 4 else "")
        for n in range(1, 9)
    )
    guessed = [PATTERNS[name] for name in GUESSED]
    program = Program(tmp_path, *guessed, steps=8, patterns_guessed=True).write(text)
    program.reader.close(0, asked=False)
    assert [step for step, _ in program.steps()] == list(range(1, 9))


def test_a_bar_of_the_ordered_length_is_the_run_and_no_other_counts(tmp_path: Path) -> None:
    """As the Trainer of transformers shows them: its evaluations' bars have no name."""
    program = Program(tmp_path, PATTERNS["tqdm"], steps=40)
    program.write(all_of(7) + "\n")
    for first in (0, 10, 20):
        program.write(all_of(40, first, first + 10) + "\n" + all_of(4) + "\n")
    program.reader.close(0, asked=False)
    boot = [line.boot for line in program.told()][-1]
    told = [line for line in program.told() if line.boot == boot and line.msg == "progress"]
    assert [line.step for line in told] == list(range(1, 31))
    assert (program.told()[-1].msg, program.told()[-1].step) == ("done", 30), "it ended early"


@pytest.mark.parametrize(("length", "ends"), [(2, [60]), (6, [60]), (20, [])])
def test_a_short_loop_before_the_run_is_no_epoch_of_it(
    length: int, ends: list[int], tmp_path: Path
) -> None:
    """As of a warm-up, or of a checkpoint's shards."""
    program = Program(tmp_path, PATTERNS["tqdm"], steps=60)
    program.write(all_of(length) + "\n" + all_of(60) + "\n")
    program.reader.close(0, asked=False)
    assert [line.step for line in program.told() if line.msg == "done"] == ends


@pytest.mark.parametrize(
    "written",
    [
        "".join(all_of(20) + "\n" + all_of(5) + "\n" for _ in range(2)) + all_of(20, 0, 10),
        "".join(f"step {n}/20 loss 2\n" for n in range(1, 21))
        + "".join(f"  step {n}/40 loss 9\n" for n in range(1, 41)),
    ],
    ids=["bars", "lines"],
)
def test_who_counts_to_two_numbers_does_not_know_its_end(written: str, tmp_path: Path) -> None:
    named = [PATTERNS["tqdm"], PATTERNS["plain"]]
    program = Program(tmp_path, *named, steps=60).write(written + "\n")
    program.reader.close(0, asked=False)
    assert program.told()[-1].step >= 60
    assert "done" not in [line.msg for line in program.told()]


@pytest.mark.parametrize(
    ("counts", "length", "steps", "ends"),
    [
        ([5, 5], 10, 10, False),
        ([5, 5, 10], 10, 10, False),
        ([10, 10], 10, 10, True),
        ([10, 4], 10, 10, True),
        ([5, 5], 5, 10, True),
        ([10], 10, 10, True),
    ],
)
def test_a_count_of_the_whole_run_that_breaks_off_is_no_part_of_another(
    counts: list[int], length: int, steps: int, ends: bool, tmp_path: Path
) -> None:
    """Two halves are no whole, and what one process counts twice nobody knows."""
    program = Program(tmp_path, r"step (?P<step>\d+)/\d+ loss (?P<loss>\S+)", steps=steps)
    for last in counts:
        program.write("".join(f"step {n}/{length} loss {n}.5\n" for n in range(1, last + 1)))
    program.reader.close(0, asked=False)
    assert ("done" in [line.msg for line in program.told()]) is ends


def test_an_evaluation_that_says_of_how_many_it_counts_is_no_step(tmp_path: Path) -> None:
    program = Program(tmp_path, PATTERNS["plain"], steps=1000)
    for number in range(100, 1001, 100):
        program.write(f"Step {number:,}/1,000 loss {number}\n")
        program.write("".join(f"  step [{n}/4] loss nan\n" for n in range(1, 5)))
    assert program.steps() == [(number, float(number)) for number in range(100, 1001, 100)]


@pytest.mark.parametrize("stride", [1, 3, 20])
def test_a_bar_of_each_epoch_is_added_to_the_last(tmp_path: Path, stride: int) -> None:
    program = Program(tmp_path, PATTERNS["tqdm"], steps=180)
    for _ in range(3):
        shown = range(0, 61, stride)
        program.write("".join(bar(n, 60, 2.0) + bar(n, 60, 1.5) for n in shown) + "\n")
    program.reader.close(0, asked=False)
    told = [step for step, loss in program.steps()]
    assert told == list(range(stride, 181, stride))
    assert [line.msg for line in program.told()].count("boot") == 1
    assert program.told()[-1].msg == "done"


def test_lines_that_come_together_lie_apart_and_never_before_the_last(tmp_path: Path) -> None:
    program = Program(tmp_path, STEP, heartbeat={"alive_every_s": 60})
    time.sleep(0.2)
    program.write("".join(f"step {n} loss 1\n" for n in range(1, 21)))
    time.sleep(0.2)
    program.write("".join(f"step {n} loss 1\n" for n in range(21, 41)))
    told = program.told()
    at = [line.mono for line in told]
    assert at == sorted(at)
    assert [line.ts - told[0].ts for line in told] == pytest.approx(
        [mono - at[0] for mono in at], abs=0.02
    )
    apart = [after - before for before, after in itertools.pairwise(at[1:])]
    for block in (apart[:19], apart[20:]):
        assert min(block) == pytest.approx(max(block), abs=0.02)
        assert sum(block) > 0.15


def test_its_first_step_may_have_taken_since_the_program_began(tmp_path: Path) -> None:
    program = Program(tmp_path, STEP, heartbeat={"alive_every_s": 60})
    time.sleep(0.3)
    program.write("step 1 loss 1\n")
    time.sleep(0.1)
    boot, *steps = program.write("step 2 loss 1\nstep 3 loss 1\n").told()
    assert (boot.msg, [line.step for line in steps]) == ("boot", [1, 2, 3])
    assert steps[0].mono - boot.mono >= 0.3
    assert steps[1].mono - steps[0].mono < 0.3


def test_what_a_program_that_hangs_shows_again_is_no_further_step(tmp_path: Path) -> None:
    program = Program(tmp_path, STEP + r" (?P<toks_per_s>\S+) tok/s")
    for number in range(1, 6):
        program.write(f"step {number} loss {number}.5 100 tok/s\n")
    for look in range(99):  # a thread of it that goes on showing where it stands
        program.write(f"step 5 loss 5.5 {100 - look} tok/s\n")
    assert [step for step, _ in program.steps()] == [1, 2, 3, 4, 5]
    assert program.told()[-1].msg == "alive"


def ranks_of(numbers: list[int], ranks: int) -> str:
    """What ranks that do not say who they are print of each step: each a loss of its own."""
    return "".join(
        f"step {number} loss {look}.{rank:03}\n"
        for look, number in enumerate(numbers)
        for rank in range(ranks)
    )


@pytest.mark.parametrize("ranks", [1, 2, 4, 5, 8, 64, 200])
@pytest.mark.parametrize(
    ("numbers", "steps"),
    [
        (list(range(1, 11)), list(range(1, 11))),
        (list(range(10)), list(range(1, 11))),
        ([10, 20, 30], [10, 20, 30]),
        ([0, 1, 2, 0, 1, 2], [1, 2, 3, 4, 5, 6]),  # counted anew in each epoch
    ],
    ids=["from 1", "from 0", "each tenth", "epochs"],
)
def test_a_step_that_each_of_several_ranks_prints_is_one(
    ranks: int, numbers: list[int], steps: list[int], tmp_path: Path
) -> None:
    program = Program(tmp_path, STEP).write(ranks_of(numbers, ranks))
    last = program.told()[-1].boot
    told = [line.step for line in program.told() if line.msg == "progress" and line.boot == last]
    assert told == steps[-len(told) :]
    assert len(told) >= len(steps) - 1  # the first may have been told before


def test_a_loss_that_is_not_finite_is_told_whichever_rank_prints_it(tmp_path: Path) -> None:
    """Rank 0 prints first, and what the others printed of its step was dropped."""
    text = "".join(
        f"step {n} loss 2.{n}\nstep {n} loss {'nan' if n == 7 else 3}\n" for n in range(1, 9)
    )
    program = Program(tmp_path, STEP, steps=8).write(text)
    program.reader.close(0, asked=False)
    told = [(step, loss) for step, loss in program.steps() if not math.isfinite(loss)]
    assert [step for step, _ in told] == [7]
    assert [step for step, _ in program.steps()] == [1, 2, 3, 4, 5, 6, 7, 7, 8]
    assert program.told()[-1].msg == "done"


def test_a_loss_that_is_not_finite_of_a_rank_that_is_a_step_behind_is_told(tmp_path: Path) -> None:
    """Its number lies below the last each time, so none of its lines is a step."""
    program = Program(tmp_path, STEP)
    for number in range(2, 12):
        late = "nan" if 4 <= number < 8 else "2.5"
        program.write(f"step {number} loss 2.25\nstep {number - 1} loss {late}\n")
    program.write("step 5 is the best so far, loss 2.25\n")
    lost = [step for step, loss in program.steps() if loss is not None and math.isnan(loss)]
    assert lost == [4, 5, 6, 7]
    assert max(step for step, _ in program.steps()) == 11
    assert len({line.boot for line in program.told()}) == 1


@pytest.mark.parametrize(
    "before", ["", "step 1 loss 2\nstep 2 loss 2\n"], ids=["first", "far ahead"]
)
def test_a_loss_that_is_not_finite_of_a_number_that_waits_for_the_next_is_told(
    before: str, tmp_path: Path
) -> None:
    program = Program(tmp_path, STEP).write(before)
    program.write("step 100 loss nan\nstep 100 loss 2.5\nstep 101 loss 2\nstep 101 loss 2.25\n")
    lost = [step for step, loss in program.steps() if loss is not None and math.isnan(loss)]
    assert lost == [100]


def test_several_ranks_that_go_back_to_a_checkpoint_begin_another_boot(tmp_path: Path) -> None:
    program = Program(tmp_path, STEP).write(ranks_of([1, 2, 3, 4, 5, 6, 3, 4, 5], 8))
    boots = list(dict.fromkeys(line.boot for line in program.told()))
    lines = [line for line in program.told() if line.boot == boots[-1]]
    assert [line.step for line in lines if line.msg == "progress"] == [3, 4, 5]


def test_a_program_that_ends_early_is_not_whole_for_what_each_rank_prints(tmp_path: Path) -> None:
    program = Program(tmp_path, STEP, steps=50).write(ranks_of(list(range(1, 11)), 8))
    program.reader.close(0, asked=False)
    assert (program.told()[-1].msg, program.told()[-1].step) == ("done", 10)  # of 50


@pytest.mark.parametrize("number", [0, 1])
def test_a_number_that_never_goes_on_names_no_steps_and_its_losses_do(
    number: int, tmp_path: Path
) -> None:
    program = Program(tmp_path, STEP)
    program.write("".join(f"step {number} loss {look}.5\n" for look in range(40)))
    assert [step for step, _ in program.steps()] == list(range(1, 38))


@pytest.mark.parametrize("lines", [60, 59, 50])
def test_whose_number_never_goes_on_tells_no_end(lines: int, tmp_path: Path) -> None:
    """A healthy program of 60 such lines, as of 60 epochs of one batch, did not end early."""
    program = Program(tmp_path, STEP, steps=60)
    program.write("".join(f"step 1 loss {look}.5\n" for look in range(lines)))
    program.reader.close(0, asked=False)
    assert program.told()[-1].msg != "done"


def epochs_that_show(numbers: tuple[int, ...], of: str, epochs: int) -> str:
    """What a program prints that shows a few of the steps of each epoch."""
    return "".join(
        f"Epoch {epoch}, step {number}{of} loss {epoch}.{number}\n"
        for epoch in range(1, epochs + 1)
        for number in numbers
    )


@pytest.mark.parametrize(
    ("text", "ends"),
    [
        (epochs_that_show((1,), "/90", 60), False),
        (epochs_that_show((1,), "/90", 59), True),
        (epochs_that_show((1,), "", 60), False),
        (epochs_that_show((1, 51), "/90", 59), True),
        (epochs_that_show((1, 51), "/90", 60), False),
        (epochs_that_show((0, 50), "/90", 60), False),
        (epochs_that_show((0, 50), "", 60), False),
        (epochs_that_show((0, 45), "/90", 60), False),
        (epochs_that_show((30, 60, 90), "/90", 60), False),
        (epochs_that_show((30, 60, 90), "/90", 59) + "Epoch 60, step 30/90 loss 2\n", True),
    ],
    ids=[
        "one line each", "an epoch is owed", "of no length", "two lines, an epoch is owed",
        "two lines", "two from 0", "two of no length", "half of each", "all", "two lines are owed",
    ],
)  # fmt: skip
def test_who_shows_a_few_steps_of_each_epoch_has_ended_early_only_if_a_line_was_owed(
    text: str, ends: bool, tmp_path: Path
) -> None:
    """It was NO_GO after all of its epochs: of their steps those that are shown were counted."""
    program = Program(tmp_path, PATTERNS["plain"], steps=5400).write(text)
    program.reader.close(0, asked=False)
    done = program.told()[-1]
    assert (done.msg == "done") == (ends or done.step == 5400)


def every_of_run(every: int, epochs: int, length: int, line: str) -> str:
    """What a program prints each so many steps of the whole run, by their numbers in the epoch."""
    return "".join(
        line.format(epoch=at // length + 1, number=at % length, loss=f"{at / 1000 + 1:.4f}") + "\n"
        for at in range(0, epochs * length, every)
    )


NAMED = "Epoch {epoch}, step {number} loss {loss}"
NAMED_OF = "Epoch {epoch}, step {number}/{length} loss {loss}"
UNNAMED_OF = "step {number}/{length} loss {loss}"


@pytest.mark.parametrize(
    ("line", "every", "epochs", "length"),
    [
        (NAMED, 100, 3, 1875),
        (UNNAMED_OF, 100, 4, 1890),
        (NAMED, 50, 4, 90),
        (NAMED, 2, 5, 3),
        (NAMED_OF, 2, 5, 3),
        (UNNAMED_OF, 2, 5, 3),
        (NAMED, 10, 3, 8),
        (NAMED_OF, 10, 3, 8),
        (NAMED_OF, 10, 3, 5),
    ],
)
def test_who_shows_some_steps_of_the_whole_run_by_their_numbers_in_the_epoch_has_not_ended_early(
    line: str, every: int, epochs: int, length: int, tmp_path: Path
) -> None:
    """Every hundredth of the run is another of each epoch: that was a going back, and NO_GO."""
    text = every_of_run(every, epochs, length, line.replace("{length}", str(length)))
    program = Program(tmp_path, PATTERNS["plain"], steps=epochs * length).write(text)
    program.reader.close(0, asked=False)
    assert "done" not in [line.msg for line in program.told()]


def test_who_shows_a_single_number_owes_nothing(tmp_path: Path) -> None:
    """Lines of its epochs were counted until then, and it had ended early at step 0."""
    text = "".join(f"epoch {n} avg loss 2.{n}\n" for n in (1, 2, 3)) + "step: 10 loss: 2.5\n" * 2
    guessed = [PATTERNS[name] for name in GUESSED]
    program = Program(tmp_path, *guessed, steps=15, patterns_guessed=True).write(text)
    program.reader.close(0, asked=False)
    assert "done" not in [line.msg for line in program.told()]


def test_an_epoch_whose_first_lines_are_lost_is_added_where_its_lines_name_it(
    tmp_path: Path,
) -> None:
    """Its counter begins behind the first number ever: that was a going back, and NO_GO."""
    text = "".join(
        f"epoch {epoch} step {number} loss {epoch}.{number}\n"
        for epoch in (1, 2, 3)
        for number in range(1 if epoch == 1 else 3, 41)
    )
    program = Program(tmp_path, PATTERNS["plain"], steps=120).write(text)
    program.reader.close(0, asked=False)
    done = program.told()[-1]
    assert (done.msg, done.step) == ("done", 120)


@pytest.mark.parametrize(("made", "ends"), [(60, False), (59, True), (30, True)])
def test_a_loop_that_came_to_its_own_end_may_be_of_epochs(
    made: int, ends: bool, tmp_path: Path
) -> None:
    """Who orders 300 steps of a program that shows its 60 epochs was told that it ended early."""
    program = Program(tmp_path, PATTERNS["fraction"], steps=300)
    program.write("".join(f"[{number}/60] loss: {number}.5\n" for number in range(1, made + 1)))
    program.reader.close(0, asked=False)
    assert (program.told()[-1].msg == "done") == ends


def test_a_number_that_more_lines_tell_than_there_are_ranks_names_no_steps(tmp_path: Path) -> None:
    stages = "".join(
        f"step {stage} loss {stage}.{look:03}\n" for stage in (1, 2) for look in range(900)
    )
    told = [step for step, _ in Program(tmp_path, STEP).write(stages).steps()]
    assert told == [*range(1, 898), *range(2, 647)]  # the second stage is seen to go on


LINES_OF_EPOCHS = r"Epoch (?P<step>\d+) .* loss (?P<loss>\S+)"


def epochs_of(epochs: int, lines: int) -> str:
    """What a program prints that shows a loss many times in each of its epochs."""
    return "".join(
        f"Epoch {epoch} [{look}/{lines}] loss {epoch}.{look:04}\n"
        for epoch in range(1, epochs + 1)
        for look in range(lines)
    )


@pytest.mark.parametrize(("made", "verdict"), [(12, ("done", 12)), (5, ("progress", 946))])
def test_epochs_of_many_lines_move_with_each_and_end_by_their_number(
    made: int, verdict: tuple[str, int], tmp_path: Path
) -> None:
    program = Program(tmp_path, LINES_OF_EPOCHS, steps=12, heartbeat={"alive_every_s": 60})
    program.write(epochs_of(made, 300))
    boots: dict[str, list[int]] = {}
    for line in program.told():
        boots.setdefault(line.boot, []).append(line.step)
    first, later = boots.values()
    assert (first, later[:2]) == ([0, *range(1, 298)], [0, 2])
    assert later[1:] == list(range(2, 2 + (made - 1) * 300 - 255)), "it has gone back once at most"
    program.reader.close(0, asked=False)
    assert (program.told()[-1].msg, program.told()[-1].step) == verdict
    assert made < 12 or [line.msg for line in program.told()][-3:] == ["boot", "progress", "done"]


def test_an_epoch_that_lasts_moves_with_the_lines_that_its_ranks_do_not_print_any_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = Program(tmp_path, LINES_OF_EPOCHS, steps=12, heartbeat={"alive_every_s": 60})
    program.write(epochs_of(2, 8))
    assert program.steps()[-1] == (2, 2.0)
    monkeypatch.setattr("gonogo.supervise.launch.output_lines.TOGETHER_S", 0.0)
    program.write("Epoch 2 [8/8] loss 2.7\nEpoch 2 [8/8] loss 2.6\nEpoch 2 [8/8] loss 2.6\n")
    assert program.steps()[-2:] == [(3, 2.7), (4, 2.6)]


@pytest.mark.parametrize("line", ["epoch {} step 1 loss 0.5", "Epoch [{}/9], Step [1/1] loss 0.5"])
def test_the_first_step_of_a_later_epoch_is_a_further_one(line: str, tmp_path: Path) -> None:
    program = Program(tmp_path, r"(?i:step) \[?(?P<step>\d+).* loss (?P<loss>\S+)")
    program.write(
        "".join(line.replace("{}", str(epoch)) + "\n" for epoch in range(1, 10) for _ in "ab")
    )
    assert [step for step, _ in program.steps()] == list(range(1, 10))


@pytest.mark.parametrize(("first", "told"), [(1, [1, 2, 3]), (0, [1, 2, 3])])
@pytest.mark.parametrize("batches", [1, 32])
def test_epochs_that_lie_within_each_number_are_no_further_steps(
    batches: int, first: int, told: list[int], tmp_path: Path
) -> None:
    """As of PPO: it goes over what it has collected in each iteration several times."""
    program = Program(tmp_path, PATTERNS["plain"], steps=12)
    for number in range(first, first + 3):
        for epoch, batch in itertools.product(range(10), range(batches)):
            loss = f"{number}.{epoch}{batch:02}"
            program.write(f"iteration {number} epoch {epoch} batch {batch} loss {loss}\n")
    if batches == 1:
        last = program.told()[-1].boot
        rows = [row for row in program.told() if row.boot == last and row.msg == "progress"]
        assert [row.step for row in rows] == told[1:]
    program.reader.close(0, asked=False)
    ends = [row.step for row in program.told() if row.msg == "done"]
    assert ends in ([], [3]), "three of twelve"


def test_a_line_between_epochs_counts_no_step_of_the_whole_run_again(tmp_path: Path) -> None:
    program = Program(tmp_path, STEP)
    for number in range(1, 31):
        program.write(f"epoch {number // 10} step {number} loss {number}\n")
        if number % 10 == 0:
            program.write(f"epoch {number // 10 + 1} step {number} loss {number}.5 so far\n")
    assert [step for step, _ in program.steps()] == list(range(1, 31))


SAYS_STEPS = """
import sys, time, traceback
for epoch in range({epochs}):
    for number in range(1, 4):
        time.sleep(0.1)
        print("{line}".format(number=number), flush=True)
    if epoch < {epochs} - 1:
        try:
            raise ValueError("told, and gone on")
        except ValueError:
            traceback.print_exc()
            sys.stderr.flush()
{end}
"""


CALLS = "import subprocess\nfor row in ({}): subprocess.run(row.split())"


def read_shell(
    folder: Path, loop: str, *, by: Sequence[str] = ("bash", "-c"), steps: int = 9, **says: Any
) -> Program:
    """Read what a shell's program prints, look by look, to its end."""
    line = says.pop("line", "step {number} loss {number}.5")
    (folder / "train.py").write_text(
        SAYS_STEPS.format(**{"epochs": 1, "end": "", **says}, line=line)
    )
    python = f"{sys.executable} -S -u {folder}/train.py"
    log = folder / "rank0.log"
    with log.open("ab") as stream:
        shell = subprocess.Popen(
            [*by, loop.replace("PYTHON", python)], stdout=stream, stderr=stream
        )
    program = Program(
        folder,
        r"step (?P<step>\d+)(?:/\d+)? loss (?P<loss>\S+)",
        r"(?P<loss>\d+) lost",
        steps=steps,
    )
    program.reader = OutputLines(folder, program.order, log, shell.pid)
    while shell.poll() is None:
        program.reader.read()
        time.sleep(0.02)
    program.reader.close(0, asked=False)
    return program


def test_a_shell_that_starts_a_failed_program_again_adds_no_steps_up(tmp_path: Path) -> None:
    program = read_shell(
        tmp_path, "for i in 1 2 3; do PYTHON; done; true", end="raise RuntimeError()"
    )
    boots = list(dict.fromkeys(line.boot for line in program.told()))
    told = [
        [line.step for line in program.told() if line.boot == boot and line.msg == "progress"]
        for boot in boots
    ]
    assert told == [[1, 2, 3]] * 3


def test_a_shell_that_starts_one_program_after_the_other_adds_their_steps_up(
    tmp_path: Path,
) -> None:
    line = "step {number}/3 loss {number}.5"
    program = read_shell(tmp_path, "for i in 1 2 3; do PYTHON; done", line=line)
    assert [step for step, _ in program.steps()] == list(range(1, 10))
    assert program.told()[-1].msg == "done"


@pytest.mark.parametrize("line", ["step {number} loss {number}.5", "{number} lost"])
@pytest.mark.parametrize("end", ["", "sys.exit('boom')"])
def test_how_each_of_a_shells_programs_has_ended_is_not_known_without_their_length(
    line: str, end: str, tmp_path: Path
) -> None:
    """It may have failed, and what is added up be counted twice."""
    wait = "import time; time.sleep(1.2)\n" if "lost" in line else ""
    program = read_shell(tmp_path, "for i in 1 2 3; do PYTHON; done", end=wait + end, line=line)
    assert [step for step, _ in program.steps()] == list(range(1, 10))
    assert program.told()[-1].msg != "done"


@pytest.mark.parametrize(
    ("by", "loop"),
    [
        (["bash", "-c"], "PYTHON; PYTHON"),
        (["timeout", "60", "bash", "-c"], "PYTHON; PYTHON; true"),
        (["make", "-sf", "/dev/null", "--eval"], "all:\n\t-PYTHON\n\t-PYTHON"),
        ([sys.executable, "-S", "-c"], CALLS.format("'PYTHON', 'PYTHON'")),
    ],
    ids=["a shell that becomes its last program", "a shell behind another", "make", "a Python"],
)
def test_how_programs_have_ended_is_not_known_whoever_starts_them(
    by: list[str], loop: str, tmp_path: Path
) -> None:
    program = read_shell(tmp_path, loop, by=by, end="sys.exit('boom')", steps=6)
    assert [step for step, _ in program.steps()] == list(range(1, 7))
    assert program.told()[-1].msg != "done"


@pytest.mark.parametrize(
    ("by", "loop"),
    [
        (["bash", "-c"], "true; PYTHON"),
        (["timeout", "60", "bash", "-c"], "PYTHON; true"),
        (["make", "-sf", "/dev/null", "--eval"], "all:\n\tPYTHON"),
        ([sys.executable, "-S", "-c"], CALLS.format("'PYTHON',")),
    ],
    ids=["a shell that becomes it", "a shell behind another", "make", "a Python"],
)
def test_epochs_of_one_program_are_added_up_whoever_starts_it(
    by: list[str], loop: str, tmp_path: Path
) -> None:
    program = read_shell(tmp_path, loop, by=by, epochs=3)
    assert [step for step, _ in program.steps()] == list(range(1, 10))
    assert program.told()[-1].msg == "done"


def test_a_training_behind_one_that_came_to_its_own_end_is_no_restart_of_it(
    tmp_path: Path,
) -> None:
    """What it told of an error may have ended nothing: how it ended nobody knows."""
    line = "step {number}/3 loss {number}.5"
    loop = "for seed in 1 2 3; do PYTHON; done; true"
    program = read_shell(tmp_path, loop, end="raise RuntimeError()", line=line)
    assert [step for step, _ in program.steps()] == list(range(1, 10))
    assert len({line.boot for line in program.told()}) == 1
    assert program.told()[-1].msg != "done"


WAITS = """
import subprocess, sys, threading, time
for epoch in range(3):
    for number in 1, 2:
        print(f"step {number} loss {number}.5", flush=True)
        time.sleep(0.3)
    threading.Timer(0.3, print, ["step 3 loss 3.5"], {"flush": True}).start()
    subprocess.run([sys.executable, "-S", "-c", "import time; time.sleep(0.8)"])
"""


def test_epochs_between_which_a_program_waits_for_another_are_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It evaluates in a process of its own, or waits for its workers to end."""
    monkeypatch.setattr(programs, "_ASK_EVERY_S", 0.0)
    program = read_shell(tmp_path, WAITS, by=[sys.executable, "-S", "-u", "-c"])
    assert [step for step, _ in program.steps()] == list(range(1, 10))
    assert program.told()[-1].msg == "done"


def test_a_program_that_broke_off_in_its_own_count_is_not_added_to_the_next(
    tmp_path: Path,
) -> None:
    line, loop = "step {number}/4 loss {number}.5", "for i in 1 2 3; do PYTHON; done"
    program = read_shell(tmp_path, loop, end="sys.exit('boom')", line=line)
    assert program.told()[-1].msg != "done"


@pytest.mark.parametrize("beside", ["sleep 60 &", "(while :; do sleep 0.05; done) &"])
def test_epochs_of_one_program_below_a_shell_are_added_up(beside: str, tmp_path: Path) -> None:
    program = read_shell(tmp_path, f"{beside} PYTHON; kill $!", epochs=3)
    assert [step for step, _ in program.steps()] == list(range(1, 10))
    assert program.told()[-1].msg == "done"


def test_a_shell_that_starts_a_count_of_the_whole_run_again_adds_no_steps_up(
    tmp_path: Path,
) -> None:
    """It left with an error that it told in words of its own."""
    loop, line = "for i in 1 2 3; do PYTHON; done; true", "step {number}/9 loss {number}.5"
    program = read_shell(tmp_path, loop, end="sys.exit('boom')", line=line)
    assert [step for step, _ in program.steps()] == [1, 2, 3] * 3
    assert (program.told()[-1].msg, program.told()[-1].step) == ("done", 3), "it ended early"


@pytest.mark.parametrize(
    ("said", "steps"),
    [
        ("Killed 3 stale workers", [1, 2, 3, 4, 5, 6]),
        ("Aborted connections: 0", [1, 2, 3, 4, 5, 6]),
        ("run.sh: line 3:    42 Killed                  python train.py", [1, 2, 3, 1, 2, 3]),
        ("Segmentation fault (core dumped)", [1, 2, 3, 1, 2, 3]),
        ("Aborted", [1, 2, 3, 1, 2, 3]),
    ],
)
def test_a_program_is_killed_where_its_shell_says_so_and_not_by_a_word(
    said: str, steps: list[int], tmp_path: Path
) -> None:
    program = read_shell(tmp_path, f"for i in 1 2; do PYTHON; echo '{said}'; done")
    assert [step for step, _ in program.steps()] == steps


def test_a_program_that_tells_of_an_error_and_goes_on_has_not_failed(tmp_path: Path) -> None:
    program = read_shell(tmp_path, "PYTHON; true", epochs=3)
    assert [step for step, _ in program.steps()] == list(range(1, 10))
    assert program.told()[-1].msg == "done"


@pytest.mark.parametrize(
    "by_shell",
    ["PYTHON; true", "PYTHON | cat", "PYTHON || true", "PYTHON & wait", "PYTHON 2>&1 | grep step"],
)
@pytest.mark.parametrize(("end", "told"), [("sys.exit('boom')", "progress"), ("", "done")])
def test_a_program_that_fails_behind_its_last_step_has_not_ended_well_because_its_shell_did(
    end: str, told: str, by_shell: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(programs, "_ASK_EVERY_S", 0.1)
    program = read_shell(tmp_path, by_shell, steps=3, end=end)
    lines = [line.msg for line in program.told() if line.msg != "alive"]
    assert [step for step, _ in program.steps()] == [1, 2, 3]
    assert lines[-1] == told


@pytest.mark.parametrize(("said", "told"), [("Traceback (most recent call last):", 0), ("", 1)])
def test_where_nobody_saw_its_end_what_it_printed_last_tells(
    said: str, told: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(programs.Ends, "of", lambda ends, ref: None)
    program = read_shell(tmp_path, "PYTHON; true", steps=3, end=f"print({said!r})")
    assert [line.msg for line in program.told()].count("done") == told


def test_what_a_shell_starts_behind_the_program_may_fail(tmp_path: Path) -> None:
    after = f"{sys.executable} -S -c 'import time; time.sleep(0.5); 1 / 0' || true"
    program = read_shell(tmp_path, f"PYTHON; {after}", steps=3)
    assert program.told()[-1].msg == "done"


@pytest.mark.parametrize(
    ("printed", "knows"),
    [
        (range(1, 21), True),
        (range(21), True),  # the last is told behind the loop, too
        (range(1, 23), True),
        (range(1, 24), False),
        (range(1, 41), False),
        (range(7, 29, 7), True),
        (range(7, 36, 7), False),
        ([*range(10)] * 3, True),  # epochs: how many steps are between them nobody knows
    ],
)
def test_who_goes_on_far_beyond_the_last_ordered_step_has_not_done_what_was_ordered(
    printed: Sequence[int], knows: bool, tmp_path: Path
) -> None:
    program = Program(tmp_path, STEP, steps=20)
    for number in printed:
        program.write(f"step {number} loss {number}.5\n")
    program.reader.close(0, asked=False)
    assert (program.told()[-1].msg == "done") is knows


def test_who_counts_lines_does_not_know_what_a_failed_program_did_twice(tmp_path: Path) -> None:
    loop = "for i in 1 2 3; do PYTHON; done; true"
    program = read_shell(tmp_path, loop, end="raise RuntimeError()", line="{number} lost")
    assert [step for step, _ in program.steps()] == list(range(1, 10))
    assert program.told()[-1].msg != "done"


def test_who_prints_late_what_it_did_before_and_after_an_error_does_not_fail(
    tmp_path: Path,
) -> None:
    """Behind a pipe all comes at the end, when nobody can say any more who has printed it."""
    behind = 'all=$(cat); sleep 0.6; echo "$all"'
    program = read_shell(tmp_path, f"PYTHON 2>&1 | {{ {behind}; }}", epochs=3)
    assert program.steps(), "it was read"
    assert program.told()[-1].msg != "done", "nobody knows its end: it has not ended early"


def test_who_is_still_there_when_all_comes_at_the_end_is_known_by_what_it_did(
    tmp_path: Path,
) -> None:
    end = "import os; os.close(1); os.close(2); time.sleep(0.6); os._exit(0)"
    program = read_shell(tmp_path, "PYTHON 2>&1 | grep -v nothing", epochs=3, end=end)
    last = program.told()[-1]
    assert (last.msg, last.step) == ("done", 9)


def test_an_error_that_python_ignores_fails_no_program(tmp_path: Path) -> None:
    end = "print('Exception ignored in: <f>'); print('Traceback (most recent call last):')"
    line = "step {number}/3 loss {number}.5"
    program = read_shell(tmp_path, "for i in 1 2 3; do PYTHON; done", end=end, line=line)
    assert [step for step, _ in program.steps()] == list(range(1, 10))
    assert program.told()[-1].msg == "done"


def test_who_goes_back_begins_another_boot(tmp_path: Path) -> None:
    program = Program(tmp_path, STEP)
    for number in (1, 2, 3, 4, 2, 3, 4, 5):
        program.write(f"step {number} loss {number}\n")
    lines = [line for line in program.told() if line.msg in ("boot", "progress")]
    boots = list(dict.fromkeys(line.boot for line in lines))
    assert len(boots) == 2
    assert [line.step for line in lines if line.boot == boots[1]] == [0, 2, 3, 4, 5]
    assert next(line.seq for line in program.told() if line.boot == boots[1]) == 1


def test_a_program_that_speaks_for_itself_later_is_left_alone_from_then_on(tmp_path: Path) -> None:
    program = Program(tmp_path, STEP).write("step 0 loss 5\nstep 1 loss 4\n")
    before = len(program.told())
    (tmp_path / ATTACHED).touch()
    program.write("step 2 loss 3\n")
    LineFile(RunDir(tmp_path).heartbeat(0)).close()  # not held any more
    program.reader.close(0, asked=False)
    assert len(program.told()) == before


def test_a_loss_at_the_end_of_a_sentence_is_read(tmp_path: Path) -> None:
    program = Program(tmp_path, STEP).write("step 1 loss 2.5.\nstep 2 loss nan.\n")
    (_, first), (_, second) = program.steps()
    assert (first, second) == (2.5, "NaN") or (first == 2.5 and second != second)


ROWS = re.findall(
    r"^\| (\w+) \| `([^`]+)`", (Path(__file__).parents[3] / "docs/run.md").read_text(), re.MULTILINE
)
"""Who prints lines that a pattern of the user's reads, as docs/run.md says."""

PRINTED = {
    "Keras": [
        f"\x1b[1m {step}/40\x1b[0m \x1b[32m━━\x1b[0m\x1b[37m━━\x1b[0m \x1b[1m0s\x1b[0m 12ms/step"
        f" - accuracy: 0.5000 - loss: {step}.5"
        for step in (1, 2, 10)
    ],
    "timm": [
        f"Train: 0 [{step - 1:>4d}/1251 (  0%)]  Loss: {step}.5 (6.94)  Time: 0.951s,  269.15/s "
        " (0.951s,  269.15/s)  LR: 1.000e-06  Data: 0.641 (0.641)"
        for step in (1, 2, 10)
    ],
    "detectron2": [
        f"[11/22 10:00:00 d2.utils.events]:  eta: 0:05:10  iter: {step}  total_loss: {step}.5 "
        " loss_cls: 0.6  time: 0.2  data_time: 0.01  lr: 0.00025  max_mem: 2000M"
        for step in (1, 2, 10)
    ],
}


@pytest.mark.parametrize(("name", "pattern"), ROWS)
def test_the_patterns_of_the_docs_read_their_trainers(
    name: str, pattern: str, tmp_path: Path
) -> None:
    program = Program(tmp_path, pattern)
    for line in PRINTED[name]:
        program.write(line + "\n")
    assert program.steps() == [(1, 1.5), (2, 2.5), (10, 10.5)]


RECORDS = {
    "PPO": [
        "| time/              |          |\n|    iterations      | 1        |\n"
        "|    total_timesteps | 2048     |\n----------------------------------",
        *(
            f"| time/                   |              |\n|    iterations           | {n + 1}  |\n"
            f"|    total_timesteps      | {(n + 1) * 2048} |\n| train/                  |    |\n"
            f"|    entropy_loss         | -0.686       |\n|    loss                 | {n}.25   |\n"
            f"|    n_updates            | {n * 10}     |\n|    policy_gradient_loss | -0.01   |\n"
            f"|    value_loss           | {n}.5        |\n-----------------------------------------"
            for n in (1, 2, 3)
        ),
    ],
    "Composer": [
        f"[batch={n * 10}/30]:\n\t Train time/batch: {n * 10 - 1}\n\t Train loss/train/total: {n}.5"
        for n in (1, 2, 3)
    ],
    "OLMo": [
        f"2024-05-06 12:00:00.1\thost:0\tolmo.train:887\tINFO\t[step={n * 10}/30,epoch=0]\n"
        f"    train/CrossEntropyLoss={n}.5\n    train/Perplexity=65,123"
        for n in (1, 2, 3)
    ],
}
"""What prints a table or a record of several lines; the first table of PPO tells no loss."""


@pytest.mark.parametrize("name", RECORDS)
def test_the_patterns_of_the_docs_read_tables_and_tell_a_loss_of_every_step(
    name: str, tmp_path: Path
) -> None:
    """What tells a loss of some steps and not of others is inconclusive, and no waiver helps."""
    page = (Path(__file__).parents[3] / "docs/run.md").read_text()
    of = re.search(rf"{name}\b[^`]* `--pattern '([^']+)' --pattern '([^']+)'`", page)
    assert of is not None
    program = Program(tmp_path, *of.groups(), steps=30)
    for line in "\n".join(RECORDS[name]).splitlines():
        program.write(line + "\n")
    program.reader.close(0, asked=False)
    assert program.steps() == [(10, 1.5), (20, 2.5), (30, 3.5)]
    assert program.told()[-1].msg == "done"


def test_every_trainer_of_the_docs_has_its_lines() -> None:
    assert {name for name, _ in ROWS} == {"Keras", "timm", "detectron2"}
