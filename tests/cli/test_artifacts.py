"""`gonogo artifacts` lists what a run left, and brings one file."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from tests.cli.conftest import Gonogo
from tests.service.conftest import Plane
from tests.service.fake_worker import beats


@pytest.fixture
def run(plane: Plane, tmp_path: Path) -> str:
    """A run that ended, whose directory lies here."""
    plane.submit(name="mine")
    host = socket.gethostname()
    worker = plane.worker(devices=("cpu:0", "cpu:1"), home=tmp_path / "runs", host=host)
    order = plane.next_order(worker)
    worker.start(order)
    lines = {rank: beats(order, rank) for rank in range(order.world_size)}
    worker.ship(order, lines)
    worker.end(order, lines)
    return str(order.run)


def test_files_are_listed_and_one_is_brought(
    run: str, plane: Plane, tmp_path: Path, gonogo: Gonogo
) -> None:
    del plane
    found = gonogo("artifacts", run, "--json").json()
    path = found["items"][0]["path"]
    assert found["reachable"] is True
    listed = gonogo("artifacts", run)
    assert path in listed.out
    assert (
        gonogo("artifacts", run, "order.json").out
        == (tmp_path / "runs" / run / "order.json").read_text()
    )


def test_a_file_that_is_not_there_is_not_found(run: str, gonogo: Gonogo) -> None:
    assert gonogo("artifacts", run, "no?such file").code == 3
    assert gonogo("artifacts", run, "../key").code in (2, 3)
    assert gonogo("artifacts", run, "a", "--json").code == 2


def test_a_run_that_has_left_nothing_says_so(plane: Plane, gonogo: Gonogo) -> None:
    experiment = plane.submit(name="none")
    said = gonogo("artifacts", experiment)
    assert (said.code, said.out) == (0, "no file of this run can be had here\n")
