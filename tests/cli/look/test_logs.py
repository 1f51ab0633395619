"""`gonogo logs` prints a log, or says which one there is."""

from __future__ import annotations

import pytest

from tests.cli.conftest import Gonogo
from tests.service.conftest import Plane


@pytest.fixture
def run(plane: Plane) -> str:
    """A run of which rank 0 alone has printed, as of a program that no torchrun starts."""
    plane.submit(name="mine")
    worker = plane.worker(devices=("cpu:0", "cpu:1"))
    order = plane.next_order(worker)
    worker.start(order)
    log = {"name": "rank0.log", "start": 0, "end": 6, "text": "hello\n"}
    assert worker.telemetry(order, logs=[log]).is_success
    return str(order.run)


@pytest.mark.parametrize("rank", [(), ("--rank", "7")], ids=["of the launcher", "of no rank"])
def test_an_empty_log_names_the_one_that_is_there(
    run: str, gonogo: Gonogo, rank: tuple[str, ...]
) -> None:
    said = gonogo("logs", run, *rank)
    assert (said.code, said.out) == (0, "")
    assert said.err.endswith(f"; rank0.log is there: gonogo logs {run} --rank 0\n")
    assert "nothing of it has come" in said.err


def test_a_log_that_is_there_names_no_other(run: str, gonogo: Gonogo) -> None:
    said = gonogo("logs", run, "--rank", "0")
    assert (said.code, said.out, said.err) == (0, "hello\n", "")


def test_where_nothing_came_nothing_is_named(plane: Plane, gonogo: Gonogo) -> None:
    plane.submit(name="other")
    worker = plane.worker(devices=("cpu:0", "cpu:1"))
    order = plane.next_order(worker)
    worker.start(order)
    said = gonogo("logs", str(order.run))
    assert said.err == "torchrun.log: nothing of it has come\n"


def test_a_log_commands_no_terminal_and_goes_into_a_pipe_as_it_is(
    plane: Plane, gonogo: Gonogo, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A trainer's colours and bars are shown; what it could do to who reads is not."""
    hostile = "\x1b[31mloss\x1b[0m 5.5\r 50%\x1b]52;c;cm0gLXJm\x07\x1b[2J\x9b6n\x1b[1mend\n"
    plane.submit(name="mine")
    worker = plane.worker(devices=("cpu:0", "cpu:1"))
    order = plane.next_order(worker)
    worker.start(order)
    log = {"name": "rank0.log", "start": 0, "end": len(hostile.encode()), "text": hostile}
    assert worker.telemetry(order, logs=[log]).is_success
    piped = gonogo("logs", str(order.run), "--rank", "0").out
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    shown = gonogo("logs", str(order.run), "--rank", "0").out
    assert piped == hostile
    assert shown == "\x1b[31mloss\x1b[0m 5.5\r 50%]52;c;cm0gLXJm[2J6n\x1b[1mend\n"
