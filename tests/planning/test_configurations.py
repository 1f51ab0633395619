"""An installed gonogo plans and judges by the configurations that a checkout has."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

from gonogo.judge.directory import judge_directory
from gonogo.planning.source import bundled_plan
from tests.data.make_runs import exit_of, healthy_ranks, order_of, save_run
from tests.e2e.lab import clean_environ

ROOT = Path(__file__).parents[2]
SHIPPED, OWN = ROOT / "gonogo" / "planning" / "configs", ROOT / "nsa" / "configs"

JUDGE = """
import json, sys
from pathlib import Path
from gonogo.contract.errors import NotFound
from gonogo.judge.directory import judge_directory
from gonogo.planning.source import checkout_root
from gonogo.planning.source import bundled_plan
try:
    checkout_root()
except NotFound:
    print(json.dumps(judge_directory(Path(sys.argv[1]), bundled_plan("demo"), "smoke")))
"""


def test_every_configuration_ships_as_it_is() -> None:
    """After a change of nsa/configs: make made."""
    shipped = {path.name: path.read_bytes() for path in SHIPPED.iterdir()}
    assert shipped == {path.name: path.read_bytes() for path in OWN.glob("*.yaml")}


def test_installed_alone_it_judges_by_a_plan_as_in_a_checkout(tmp_path: Path) -> None:
    ranks = healthy_ranks(order_of())
    save_run(tmp_path / "run", order_of(), ranks, exit_of(ranks))
    (tmp_path / "run" / "order.json").unlink()
    shutil.copytree(ROOT / "gonogo", tmp_path / "site" / "gonogo")
    alone = subprocess.run(
        [sys.executable, "-c", JUDGE, str(tmp_path / "run")],
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
        env={**clean_environ(tmp_path), "PYTHONPATH": str(tmp_path / "site")},
    )
    said = json.loads(alone.stdout)
    here = judge_directory(tmp_path / "run", bundled_plan("demo"), "smoke")
    assert said["rules"]["identity"]["config_digest"] is not None
    names = ("verdict", "criteria", "rule_digest", "facts_digest", "not_observed")
    assert {name: said[name] for name in names} == {name: here[name] for name in names}
