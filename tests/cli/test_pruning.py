"""`gonogo prune` as a person meets it: with a service, without one, and what replays afterwards."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gonogo.contract.errors import NotFound
from gonogo.rundir import save_json
from gonogo.signing import save_signing_key
from service.db.schema import RunRow
from service.evidence.artifacts import load_artifact
from tests.cli.conftest import Gonogo
from tests.cli.test_json_output import fits
from tests.cli.typed import typed
from tests.ledger.chains import KEY, chain, save_chain, save_runs
from tests.service.conftest import Plane
from tests.supervise.orders import completed, make_order, make_run_dir


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Runs that no service knows, decided, with a signed chain."""
    save_signing_key(tmp_path, KEY)
    save_chain(tmp_path / "decisions", chain())
    save_runs(tmp_path / "runs")
    for path in (tmp_path / "runs").iterdir():
        (path / ".shipped").write_text("no service knows of it\n")
    return tmp_path


def test_what_was_pruned_does_not_replay_and_its_records_stay_whole(home: Path) -> None:
    decision = next(row for row in chain() if row.decision.run and (row.document["facts"]["ranks"]))
    assert typed(home, "replay", decision.id).returncode == 0
    dry = typed(home, "prune", "--keep-days", "0", "--dry-run", "--json")
    would = json.loads(dry.stdout)
    assert would["dry_run"]
    assert decision.decision.run in {row["run"] for row in would["pruned"]}
    assert typed(home, "replay", decision.id).returncode == 0, "nothing went"
    done = typed(home, "prune", "--keep-days", "0", "--json")
    assert done.returncode == 0, done.stderr
    assert {**json.loads(done.stdout), "dry_run": True} == would
    assert would["bytes"] == sum(row["bytes"] for row in would["pruned"]) > 0
    gone = typed(home, "replay", decision.id)
    assert gone.returncode == 3
    assert "it was pruned" in gone.stderr
    assert "--facts-only" in gone.stderr
    assert typed(home, "replay", decision.id, "--facts-only").returncode == 0
    assert typed(home, "verify").returncode == 0
    judged = typed(home, "judge", str(home / "runs" / str(decision.decision.run)))
    assert judged.returncode == 3
    assert "it was pruned" in judged.stderr
    compared = typed(home, "compare", *map(str, (home / "runs").iterdir()))
    assert (compared.returncode, "it was pruned" in compared.stderr) == (3, True)
    assert json.loads(typed(home, "prune", "--keep-days", "0", "--json").stdout)["pruned"] == []


def test_only_what_the_service_calls_over_goes(
    plane: Plane, gonogo: Gonogo, tmp_path: Path
) -> None:
    over, going, unknown = plane.submit(), plane.submit(), make_order().experiment
    assert gonogo("cancel", over).code == 0
    plane.wait_state(over, "finished")
    runs = {}
    for experiment in (over, going, unknown):
        order = make_order(experiment=experiment)
        runs[order.run] = experiment
        run_dir = make_run_dir(tmp_path / "runs", order)
        save_json(run_dir.exit, completed().wire())
        save_json(run_dir.path / ".shipped", {"v": 1, "fenced": False})
    silent = gonogo("prune", "--json", GONOGO_URL="http://127.0.0.1:1")
    assert silent.json()["pruned"] == []
    assert "experiments are kept: " in silent.err
    assert "would go: run_" in gonogo("prune", "--dry-run").out
    told = gonogo("prune", "--json").json()
    fits("prune", told)
    assert [runs[row["run"]] for row in told["pruned"]] == [over]
    whys = {runs[row["run"]]: row["why"] for row in told["kept"]}
    assert whys == {
        going: "its experiment is not over",
        unknown: "no service says that its experiment is over",
    }
    left = {run: (tmp_path / "runs" / run / "order.json").exists() for run in runs}
    assert left == {run: experiment != over for run, experiment in runs.items()}
    (gone,) = (run for run, experiment in runs.items() if experiment == over)
    row = RunRow(id=gone, host="host-1", dir=str(tmp_path / "runs" / gone))
    with pytest.raises(NotFound, match="it was pruned"):  # and not: it lies on another host
        plane.context.store.read(lambda session: load_artifact(session, row, "rank0.log"))


def test_what_stands_behind_an_experiment_that_an_open_one_goes_on_from_stays(
    plane: Plane, gonogo: Gonogo, tmp_path: Path
) -> None:
    """Its weights are begun with there, though the one in between never ran the phase."""
    taken: list[str] = []
    for _ in range(3):
        more = {"origin": f"{taken[-1]}:sanity"} if taken else {}
        taken.append(plane.submit(**more))
        if len(taken) < 3:
            assert gonogo("cancel", taken[-1]).code == 0
            plane.wait_state(taken[-1], "finished")
    order = make_order(experiment=taken[0])
    run_dir = make_run_dir(tmp_path / "runs", order)
    save_json(run_dir.exit, completed().wire())
    save_json(run_dir.path / ".shipped", {"v": 1, "fenced": False})
    told = gonogo("prune", "--json").json()
    assert told["pruned"] == []
    (kept,) = told["kept"]
    assert kept["why"] == "an unfinished experiment resumes from its experiment"
    assert gonogo("cancel", taken[-1]).code == 0
    plane.wait_state(taken[-1], "finished")
    assert [row["run"] for row in gonogo("prune", "--json").json()["pruned"]] == [order.run]
