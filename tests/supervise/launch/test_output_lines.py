"""The heartbeats that come from a program's output."""

from __future__ import annotations

import itertools
import os
import re
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gonogo.contract.heartbeat import Heartbeat, parse_heartbeat
from gonogo.contract.patterns import guessed_patterns
from gonogo.rundir import RunDir, load_all_lines
from gonogo.supervise.launch.output_lines import OutputLines
from gonogo.trainer.heartbeat_writer import ATTACHED, OBSERVABLE, LineFile

STEP = r"step (?P<step>\d+) loss (?P<loss>\S+)"


class Program:
    """A program that writes a log, and its reader."""

    def __init__(self, folder: Path, *patterns: str, pid: int = 2**30, **order: Any) -> None:
        self.folder, self.log = folder, folder / "rank0.log"
        self.log.touch()
        said = {"run": "run_1", "attempt": 1, "heartbeat": {"alive_every_s": 0.0001}, **order}
        self.order = {**said, "patterns": list(patterns)}
        self.reader = OutputLines(folder, self.order, self.log, pid)

    def write(self, text: str | bytes) -> Program:
        with self.log.open("ab") as stream:
            stream.write(text if isinstance(text, bytes) else text.encode())
        self.reader.read()
        return self

    def told(self, rank: int = 0) -> list[Heartbeat]:
        return [parse_heartbeat(raw) for raw in load_all_lines(RunDir(self.folder).heartbeat(rank))]

    def steps(self, rank: int = 0) -> list[tuple[int, Any]]:
        return [(line.step, line.loss) for line in self.told(rank) if line.msg == "progress"]


def guessing(folder: Path, steps: int, **order: Any) -> Program:
    """A program whose lines are read by the bundled formats."""
    patterns = guessed_patterns(steps)
    return Program(folder, *patterns, steps=steps, patterns_guessed=True, **order)


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
        2**30,
    )


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


def test_a_stopped_program_is_silent_until_it_continues(tmp_path: Path) -> None:
    """Else nobody would notice: its reader lives."""
    with subprocess.Popen(["sleep", "60"]) as sleeper:
        try:
            program = Program(tmp_path, STEP, pid=sleeper.pid).write("step 1 loss 1\n")
            seen = {}
            for number in (signal.SIGSTOP, signal.SIGCONT):
                sleeper.send_signal(number)
                options = os.WUNTRACED if number == signal.SIGSTOP else os.WCONTINUED
                os.waitpid(sleeper.pid, options)
                before = len(program.told())
                time.sleep(0.001)
                seen[number] = [row.msg for row in program.write("").told()[before:]]
        finally:
            sleeper.kill()
    assert seen == {signal.SIGSTOP: [], signal.SIGCONT: ["alive"]}


@pytest.mark.parametrize(("code", "asked"), [(1, False), (-9, False), (0, True), (3, True)])
def test_who_fails_or_was_asked_to_leave_is_not_done(
    code: int, asked: bool, tmp_path: Path
) -> None:
    program = Program(tmp_path, STEP).write("step 1 loss 1\n")
    program.reader.close(code, asked=asked)
    assert "done" not in [line.msg for line in program.told()]


def test_a_program_that_speaks_for_itself_later_is_left_alone_from_then_on(tmp_path: Path) -> None:
    program = Program(tmp_path, STEP).write("step 0 loss 5\nstep 1 loss 4\n")
    before = len(program.told())
    (tmp_path / ATTACHED).touch()
    program.write("step 2 loss 3\n")
    LineFile(RunDir(tmp_path).heartbeat(0)).close()  # not held any more
    program.reader.close(0, asked=False)
    assert len(program.told()) == before


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
    ]
}
"""What prints a table or a record of several lines; the first table of PPO has no loss."""


@pytest.mark.parametrize("name", RECORDS)
def test_the_patterns_of_the_docs_read_tables_and_tell_a_loss_of_every_step(
    name: str, tmp_path: Path
) -> None:
    """A program that prints the loss of some steps only is inconclusive, and no waiver helps."""
    page = (Path(__file__).parents[3] / "docs/how-to/run.md").read_text()
    of = re.search(rf"{name}\b[^`]* `--pattern '([^']+)' --pattern '([^']+)'`", page)
    assert of is not None
    program = Program(tmp_path, *of.groups(), steps=30)
    for line in "\n".join(RECORDS[name]).splitlines():
        program.write(line + "\n")
    program.reader.close(0, asked=False)
    assert dict(program.steps()) == {10: 1.5, 20: 2.5, 30: 3.5}
    assert program.told()[-1].msg == "done"


MIXED = "".join(
    f"\r{n * 2}%|# | {n}/40 [00:01<00:09,  3.2it/s, loss=2.{n}]"
    + f"step {n - 1}: loss 2.{n}\r\n" * (n % 3 == 0)
    + f"\n{{'loss': 2.{n}, 'grad_norm': 1.5}}\n" * (n % 7 == 0)
    for n in range(41)
).encode()


@given(cuts=st.lists(st.integers(0, len(MIXED)), max_size=40), last=st.sampled_from([0, 9, 99]))
@settings(deadline=None, max_examples=40, suppress_health_check=list(HealthCheck))
def test_any_chunking_of_the_bytes_gives_the_same_steps(
    cuts: list[int], last: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    found = []
    text = MIXED[: len(MIXED) - last]
    for edges in ([], cuts):
        program = guessing(tmp_path_factory.mktemp("chunks"), 40)
        edges = sorted({0, *(min(cut, len(text)) for cut in edges), len(text)})
        for begin, end in itertools.pairwise(edges):
            program.write(text[begin:end])
        program.reader.close(0, asked=False)
        steps: dict[int, set[Any]] = {}
        for step, loss in program.steps():
            steps.setdefault(step, set()).add(loss)
        found.append((list(steps), steps, program.told()[-1].msg))
    assert found[0] == found[1]


def test_a_bar_that_stands_is_read_before_its_line_ends(tmp_path: Path) -> None:
    """A hang behind the last step was reported as one in the step before it."""
    program = guessing(tmp_path, 3)
    for n in range(4):
        program.write(f"\rTrain: {n * 33}%|# | {n}/3 [00:01<00:00,  3.2it/s]")
    assert [step for step, _ in program.steps()] == [1, 2, 3]
    program.write("\n").reader.close(0, asked=False)
    assert [step for step, _ in program.steps()] == [1, 2, 3]
    assert program.told()[-1].msg == "done"


def test_a_loss_on_its_own_line_is_written_with_its_step_also_at_the_next_look(
    tmp_path: Path,
) -> None:
    program = guessing(tmp_path, 30)
    for n in (1, 2):
        program.write(f"[batch={n}/30]:\n").write(f"\t Train loss/train/total: {n}.5\n")
    assert program.steps() == [(1, None), (1, 1.5), (2, None), (2, 2.5)]
    program.write("[batch=3/30]:\n\t Train loss/train/total: 3.5\n")
    assert program.steps()[4:] == [(3, 3.5)]


@pytest.mark.parametrize(
    ("command", "made", "ends"),
    [
        (["bash", "run.sh"], 3, []),
        (["bash", "run.sh"], 2, [2]),
        (["/usr/bin/env", "python"], 3, [3]),
    ],
)
def test_a_shell_that_left_with_0_does_not_prove_that_its_program_did(
    command: list[str], made: int, ends: list[int], tmp_path: Path
) -> None:
    program = guessing(tmp_path, 3, command=command)
    program.write("".join(f"step {n} loss 2.5\n" for n in range(1, made + 1)))
    program.reader.close(0, asked=False)
    assert [line.step for line in program.told() if line.msg == "done"] == ends


def test_an_observable_program_that_was_not_observed_is_read_at_its_end(tmp_path: Path) -> None:
    (tmp_path / OBSERVABLE).touch()
    program = Program(tmp_path, STEP, steps=2).write("step 1 loss 2.5\nstep 2 loss 2\n")
    program.reader.close(0, asked=False)
    assert program.steps() == [(1, 2.5), (2, 2.0)]
    assert program.told()[-1].msg == "done"


def test_numbers_and_colours(tmp_path: Path) -> None:
    pattern = (
        STEP
        + r" lr (?P<lr>\S+) norm (?P<grad_norm>\S+) tok (?P<tokens>\S+) tps (?P<toks_per_s>\S+)"
    )
    program = Program(tmp_path, pattern)
    program.write("\x1b[31mstep 1\x1b[0m loss 2.5 lr 1e-4 norm 0.5 tok 4,096 tps 1,234.5\n")
    (line,) = [row for row in program.told() if row.msg == "progress"]
    assert (line.lr, line.grad_norm, line.tokens, line.toks_per_s) == (1e-4, 0.5, 4096, 1234.5)
