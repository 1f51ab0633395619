"""Detectors and metrics that another package brings: installed, named in orders, and judged."""

import json
import subprocess
import sys
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from gonogo.contract.criterion import Criterion
from gonogo.contract.errors import Rejected
from gonogo.judge.directory import judge_directory
from gonogo.ledger.recorded import record_of
from gonogo.ledger.replay import Surroundings, replay_decision
from gonogo.planning.resolve import resolve_plan
from gonogo.planning.source import bundled_plan
from tests.data import make_runs
from tests.watch.streams import World, order_of, watch

PACKAGE = Path(__file__).parents[1] / "data" / "plugin"


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """The example package with its metadata, as `pip install` leaves it in site-packages."""
    site = tmp_path / "site"
    site.mkdir()
    (site / "gonogo_example.py").write_text((PACKAGE / "gonogo_example.py").read_text())
    info = site / "gonogo_example-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: gonogo-example\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text((PACKAGE / "entry_points.txt").read_text())
    return site


def in_python(site: Path, code: str, *arguments: str) -> str:
    """Run code in a process that has the package installed."""
    root = Path(__file__).parents[2]
    environ = {"PYTHONPATH": f"{site}:{root}", "PATH": "/usr/bin:/bin"}
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        check=False,
        capture_output=True,
        text=True,
        env=environ,
        cwd=root,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_detector_of_another_package_watches_with_its_own_settings(
    installed: Path, tmp_path: Path
) -> None:
    world = World(
        order_of({"plugins": {"low_loss": {"below": 5.45}}}, detectors=["low_loss"])
    ).boot()
    folder = watch(world.steps(10)).save(tmp_path / "run")
    found = in_python(
        installed,
        "import json, sys; from gonogo.watch.offline_fold import refold; from pathlib import Path;"
        "print(json.dumps([f.wire() for f in refold(Path(sys.argv[1])).findings]))",
        str(folder),
    )
    (finding,) = json.loads(found)
    assert (finding["detector"], finding["severity"], finding["step"]) == ("low_loss", "warn", 6)


def test_a_name_that_is_taken_is_refused(installed: Path) -> None:
    points = installed / "gonogo_example-1.0.dist-info" / "entry_points.txt"
    points.write_text("[gonogo.detectors]\nstall = gonogo_example:TakesAName\n")
    found = in_python(
        installed,
        "from gonogo.contract.errors import Rejected\n"
        "from gonogo.watch.registry import plugins\n"
        "try:\n    plugins()\nexcept Rejected as error:\n    print(error)",
    )
    assert "TakesAName brings 'stall', a name that is taken" in found


LOSS_FALL: dict[str, Any] = {
    "id": "falls",
    "metric": "loss_fall",
    "aggregate": "mean",
    "pass_above": 0.2,
    "min_samples": 10,
}


JUDGE = """
import json, sys
from pathlib import Path
from gonogo.judge.directory import judge_directory
print(json.dumps(judge_directory(Path(sys.argv[1]))))
"""

REPLAY = """
import json, sys
from pathlib import Path
from gonogo.ledger.recorded import record_of
from gonogo.ledger.replay import Surroundings, replay_decision
found = replay_decision(
    record_of(json.loads(Path(sys.argv[1]).read_text())), Surroundings(run_dir=Path(sys.argv[2]))
)
print(json.dumps([found.equal, found.path, found.text]))
"""


@pytest.fixture
def ended(tmp_path: Path) -> Path:
    """A healthy run whose gate asks for the package's metric."""
    order = make_runs.order_of()
    order = order.model_copy(update={"gate": [*order.gate, Criterion.model_validate(LOSS_FALL)]})
    ranks = make_runs.healthy_ranks(order)
    make_runs.save_run(tmp_path / "ended", order, ranks, make_runs.exit_of(ranks))
    return tmp_path / "ended"


def criterion(decision: dict[str, Any]) -> dict[str, Any]:
    """What the package's criterion came to."""
    return next(row for row in decision["criteria"] if row["id"] == "falls")


def test_a_package_s_metric_decides_and_replays_where_it_is_installed(
    installed: Path, ended: Path, tmp_path: Path
) -> None:
    said = in_python(installed, JUDGE, str(ended))
    row = criterion(json.loads(said))
    assert (row["outcome"], row["samples"]) == ("pass", make_runs.STEPS - 1)
    assert row["observed"] == pytest.approx(0.3, abs=0.05)
    (tmp_path / "decision.json").write_text(said)
    replayed = in_python(installed, REPLAY, str(tmp_path / "decision.json"), str(ended))
    assert json.loads(replayed)[0] is True, replayed


def test_where_it_is_missing_replay_names_it_and_nothing_passes(
    installed: Path, ended: Path
) -> None:
    decided = record_of(json.loads(in_python(installed, JUDGE, str(ended))))
    for facts_only in (True, False):
        found = replay_decision(decided, Surroundings(run_dir=ended), facts_only=facts_only)
        assert not found.equal
        assert found.path is not None
        assert found.path.startswith("rules.gate.")
        assert "'loss_fall' is of a package that is not installed here" in found.text
    anew = judge_directory(ended)
    assert criterion(anew)["outcome"] == "inconclusive"
    assert anew["verdict"] == "INCONCLUSIVE"


def test_a_detector_that_is_ordered_and_missing_lets_nothing_pass(
    installed: Path, tmp_path: Path
) -> None:
    order = make_runs.order_of()
    named = [*order.detectors, "low_loss"]
    order = order.model_copy(update={"detectors": named})
    ranks = make_runs.healthy_ranks(order)
    make_runs.save_run(tmp_path / "ended", order, ranks, make_runs.exit_of(ranks))
    decided = json.loads(in_python(installed, JUDGE, str(tmp_path / "ended")))
    assert decided["verdict"] == "GO"
    found = replay_decision(record_of(decided), Surroundings(run_dir=tmp_path / "ended"))
    assert not found.equal
    assert found.text.endswith("pip install gonogo-example==1.0")
    without = judge_directory(tmp_path / "ended")
    assert without["verdict"] == "INCONCLUSIVE"
    assert "low_loss: the order names it, and it is not installed here" in json.dumps(
        without["criteria"]
    )


def test_without_its_package_a_detector_s_settings_are_refused() -> None:
    plan = deepcopy(bundled_plan("demo"))
    plan["watch"]["plugins"] = {"low_loss": {"below": 1}}
    with pytest.raises(Rejected, match=r"watch\.plugins\.low_loss: no installed package brings"):
        resolve_plan(plan)


WAYS_TO_FAIL = ("begin", "line", "step", "tick", "panics")
FAULTY = """
from gonogo.contract.outcome import OutcomeCode
from gonogo.watch.detector import Detector


class PanicException(BaseException):
    pass  # as pyo3 has it: what a library in Rust ends with is no `Exception`


class Faulty(Detector):
    sentence = "Fails at one thing."
    steps = ticks = True
    lines = frozenset({"progress"})
    code = OutcomeCode.TOO_SLOW

    def fail(self, where):
        if self.name == where:
            raise RuntimeError(f"no such thing as {object()}")

    def begin(self):
        self.fail("begin")

    def observe_line(self, own, beat, view):
        self.fail("line")
        return own, []

    def observe_step(self, own, step, view):
        self.fail("step")
        if self.name == "panics":
            raise PanicException("index out of bounds")
        return own, []

    def observe_tick(self, own, tick, view):
        self.fail("tick")
        return own, []

    def armed(self, own, view):
        return True


for name in "begin line step tick panics".split():
    globals()[name] = type(name, (Faulty,), {"name": name})
"""


@pytest.fixture(scope="module")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A package whose detectors fail, each in its way, beside one that cannot be loaded."""
    site = tmp_path_factory.mktemp("faulty")
    (site / "faulty.py").write_text(FAULTY)
    info = site / "faulty-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: faulty\nVersion: 1.0\n")
    points = "".join(f"{name} = faulty:{name}\n" for name in WAYS_TO_FAIL)
    (info / "entry_points.txt").write_text(f"[gonogo.detectors]\n{points}gone = not_there:It\n")
    return site


def ended_under(folder: Path, *detectors: str) -> Path:
    """A healthy run whose order names these detectors besides ours."""
    order = make_runs.order_of()
    named = [*order.detectors, *detectors]
    order = order.model_copy(update={"detectors": named})
    ranks = make_runs.healthy_ranks(order)
    make_runs.save_run(folder, order, ranks, make_runs.exit_of(ranks))
    return folder


def test_a_detector_that_fails_watches_no_more_and_nothing_passes(
    faulty: Path, tmp_path: Path
) -> None:
    ended = ended_under(tmp_path / "ended", *WAYS_TO_FAIL)
    said = in_python(faulty, JUDGE, str(ended))
    found = json.loads(said)
    assert found["verdict"] == "INCONCLUSIVE"
    heads = {name: f"the detector {name!r} of another package failed: " for name in WAYS_TO_FAIL}
    told = {row["detector"]: row for row in found["findings"]}
    assert told.keys() == heads.keys()
    for name, head in heads.items():
        assert (told[name]["severity"], told[name]["text"][: len(head)]) == ("warn", head)
        assert any(text.startswith(f"{name}: {head}") for text in found["not_observed"])
    (tmp_path / "decision.json").write_text(said)
    replayed = in_python(faulty, REPLAY, str(tmp_path / "decision.json"), str(ended))
    assert json.loads(replayed)[0] is True, replayed


def test_no_order_is_made_where_a_package_cannot_be_loaded(faulty: Path) -> None:
    code = (
        "from gonogo.contract.errors import Rejected\n"
        "from gonogo.watch.registry import detector_names\n"
        "try:\n    detector_names()\nexcept Rejected as error:\n    print(error)"
    )
    found = in_python(faulty, code)
    assert "gonogo.detectors: not_there:It cannot be loaded: ModuleNotFoundError" in found
