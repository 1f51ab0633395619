"""`python -m nsa.generate` on checkpoints that the trainer wrote."""

import json
import subprocess
import sys

import pytest

from nsa.generate import main
from tests.nsa.runs import ROOT, build_trainer, write_order


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory):
    """A run of four steps with checkpoints at steps 2 and 4."""
    order = write_order(tmp_path_factory.mktemp("trained"), checkpoint={"every_steps": 2})
    build_trainer(order).run()
    return order.parent


def _told(capsys, *arguments):
    assert main([*map(str, arguments), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_a_runs_folder_means_its_newest_checkpoint(run_dir, capsys):
    asked = (run_dir, "--prompt", "abc", "--bytes", "5", "--seed", "3")
    told = _told(capsys, *asked)
    assert (told["step"], told["prompt"]) == (4, "abc")
    assert 0 <= told["bytes"] <= 5
    assert _told(capsys, *asked)["text"] == told["text"]
    assert _told(capsys, run_dir / "checkpoints" / "step_000002", "--bytes", "5")["step"] == 2


def test_bytes_are_written_to_standard_output(run_dir, capfdbinary):
    asked = [str(run_dir), "--temperature", "0", "--prompt", "abc"]
    capfdbinary.readouterr()
    assert main([*asked, "--bytes", "7"]) == 0
    out = capfdbinary.readouterr().out
    assert 1 <= len(out) <= 8
    assert out.endswith(b"\n")


def test_who_reads_no_further_ends_it_without_a_word(run_dir):
    command = [sys.executable, "-m", "nsa.generate", str(run_dir), "--bytes", "60"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, cwd=ROOT, **pipes) as writer:
        writer.stdout.close()
        assert writer.stderr.read() == b""
    assert writer.returncode == 0


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--bytes", "0"], "--bytes must be 1 to 63"),
        (["--bytes", "64"], "--bytes must be 1 to 63"), (["--bytes", "9", "--top-p", "2"], "top_p"),
        (["--seed", "-1"], "--seed: expected a whole number"), (["--colour", "red"], "--colour"),
    ],
    ids=lambda value: " ".join(value)[:20] if isinstance(value, list) else "",
)  # fmt: skip
def test_what_cannot_be_served_is_one_line_and_code_4(run_dir, capsys, arguments, why):
    assert main([str(run_dir), *arguments]) == 4
    told = capsys.readouterr()
    assert told.out == ""
    assert why in told.err
    assert told.err.count("\n") == 1
