"""Runs that the engine starts on a real Slurm of two nodes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gonogo.contract.workload import SlurmCluster
from gonogo.rundir import save_json
from tests.slurm_lab import Lab, slurm_lab
from tests.supervise.nodes.cluster import ClusterRun, starting_cluster
from tests.supervise.runs import KEEPER, ROOT, TRAINER, wait_until
from worker.engine.engine import Handle
from worker.engine.slurm import Slurm

Submit = Callable[..., tuple[ClusterRun, Handle]]


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with slurm_lab() as found:
        yield found


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home on the file system that the nodes share; munge's user need not enter it."""
    (tmp_path / "home" / "runs").mkdir(parents=True)
    return tmp_path / "home"


@pytest.fixture
def engine(lab: Lab, home: Path, monkeypatch: pytest.MonkeyPatch) -> Slurm:
    monkeypatch.setenv("SLURM_CONF", lab.environ["SLURM_CONF"])
    environ = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(ROOT),
        "GONOGO_HOME": str(home),
        "GONOGO_WORKER_ALLOW": TRAINER,
        "OMP_NUM_THREADS": "1",
        **lab.environ,
    }
    return Slurm(home / "runs", SlurmCluster(partition="main"), environ, keeper=KEEPER)


@pytest.fixture
def submitted(engine: Slurm, lab: Lab, home: Path) -> Iterator[Submit]:
    """Factory `submitted(**order parts)` → the run and its handle."""
    handles: list[Handle] = []
    with starting_cluster(home / "runs") as new:

        def submit(**changes: object) -> tuple[ClusterRun, Handle]:
            run = new(begin=False, **changes)
            save_json(run.dir.order, run.order.document())
            handles.append(engine.submit(run.order, run.order.token))
            return run, handles[-1]

        yield submit
        for handle in handles:
            engine.stop(handle)
        wait_until(lambda: not lab.ask("squeue", "--noheader").strip(), "an empty queue", 60)
