"""Experiments, runs and decisions are named by id or the beginning of one; experiments by name."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from gonogo.cli.logs import find_run_dir
from gonogo.contract.errors import Rejected
from gonogo.contract.wire import Kind, new_id, short_id
from gonogo.rundir import NO_SERVICE, SHIPPED_NAME
from tests.cli.conftest import Gonogo
from tests.service.conftest import Plane

ROOT = Path(__file__).parents[2]
RUNS = Path(__file__).parents[1] / "data" / "runs"
OWN = "run_01M8PYDD1XJPP7DDFBPRPRF37Z"
OTHER = "run_01M8PYF4XN1CPHJRD9Z59TQQAF"


def shared(*ids: str) -> str:
    """The longest common beginning, at least three characters beyond the kind."""
    count = next((n for n, group in enumerate(zip(*ids, strict=False)) if len(set(group)) > 1), 0)
    assert count > len("exp_01K")
    return ids[0][:count]


def test_an_experiment_has_many_names(plane: Plane, gonogo: Gonogo) -> None:
    first, second = plane.submit(name="first"), plane.submit(name="second run")
    unique = second[: len(shared(first, second)) + 1]
    names = (second, "second run", unique, unique.removeprefix("exp_"), unique.lower(), "last")
    for text in names:
        assert gonogo("show", text, "--json").json()["id"] == second
    for text in ("fist", "exp_ZZZ", "fir", "%", ""):
        said = gonogo("show", text)
        assert said.code == 3, text
        assert "there is no experiment" in said.err
    assert gonogo("cancel", "first", "--reason", "no").code == 0
    assert plane.wait_state(first, "finished")["outcome"]["code"] == "cancelled"


def test_the_commands_of_prometheus_alerts_work(plane: Plane, gonogo: Gonogo) -> None:
    """They know nothing of a run but its id."""
    experiment = plane.submit()
    run = plane.next_order(plane.worker()).run
    rules = (ROOT / "docker" / "prometheus" / "rules.yml").read_text()
    commands = set(re.findall(r"`gonogo (\w+) \{\{ \$labels\.run \}\}", rules))
    assert commands == {"show", "takeover"}
    assert gonogo("show", run, "--json").json()["id"] == experiment
    taken = gonogo("takeover", run, "--reason", "its host is gone", "--json")
    assert (taken.code, taken.json()["id"]) == (0, experiment)
    assert gonogo("show", new_id(Kind.RUN)).code == 3


def test_an_ambiguous_text_lists_the_candidates(plane: Plane, gonogo: Gonogo) -> None:
    first, second = plane.submit(name="twin"), plane.submit(name="twin")
    for text in ("twin", shared(first, second)):
        said = gonogo("show", text)
        assert (said.code, said.out) == (2, "")
        head, *rows = said.err.splitlines()
        assert "may mean 2 things" in head
        assert [row.split()[0] for row in rows] == [second, first]
        assert all("twin, queued" in row for row in rows)


def test_a_run_is_named_by_its_beginning_or_its_experiment(plane: Plane, gonogo: Gonogo) -> None:
    experiment = plane.submit(name="first")
    order = plane.next_order(plane.worker())
    for text in (order.run, order.run[:-2], "first", experiment, "last"):
        assert gonogo("logs", text, "--json").json()["run"] == order.run
    assert gonogo("logs", "run_ZZ").code == 3


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home with two runs of `gonogo run`, and one of a worker."""
    for name in (OWN, OTHER, "run_01M9PYF4XN1CPHJRD9Z59TQQAF"):
        folder = tmp_path / "runs" / name
        shutil.copytree(RUNS / "healthy", folder)
        if name in (OWN, OTHER):
            (folder / SHIPPED_NAME).write_text(f"gonogo run: {NO_SERVICE} of it\n")
        (folder / "rank0.log").write_text(f"words of {name}\n")
    return tmp_path


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (OWN, OWN),
        ("run_01M8PYD", OWN),
        ("01m8pyd", OWN),
        (short_id(OWN), OWN),
        ("01M9", None),  # a worker's: the service knows it
        ("run_", None),
        ("../runs", None),
        ("nightly", None),
    ],
)
def test_an_id_or_its_beginning_is_a_run_directory(
    home: Path, text: str, found: str | None
) -> None:
    place = find_run_dir(text, home)
    assert (None if place is None else place.name) == found


def test_a_beginning_of_several_runs_is_refused_with_their_ids(home: Path) -> None:
    with pytest.raises(Rejected, match="may mean 2 runs") as refused:
        find_run_dir("01M8PY", home)
    assert [row.path for row in refused.value.problems] == [OWN, OTHER]


def test_logs_and_judge_take_the_id_and_need_no_service(home: Path, gonogo: Gonogo) -> None:
    assert gonogo("logs", OWN, "--rank", "0").out == f"words of {OWN}\n"
    assert gonogo("judge", OWN[:12]).code == gonogo("judge", str(RUNS / "healthy")).code
