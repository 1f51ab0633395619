"""`gonogo watchdog` prints the limits that the orders of a plan or the order of a run hold."""

from __future__ import annotations

from pathlib import Path

from gonogo.rundir import RunDir, save_json
from tests.cli.conftest import Gonogo
from tests.cli.test_json_output import fits
from tests.watch.streams import order_of


def test_the_table_of_a_plan_names_the_source_of_each_number(gonogo: Gonogo) -> None:
    document = gonogo("watchdog", "demo", "--phase", "smoke", "--json").json()
    fits("watchdog", document)
    (table,) = document["tables"]
    assert table["phase"] == "smoke"
    compute = table["patience"]["compute"]
    assert compute == {
        "seconds": 5.0, "multiple": 8.0, "of": "median", "source": "plan",
        "suspect_s": 2.0, "suspect_multiple": 3.0,
    }  # fmt: skip


def test_the_table_of_a_run_is_that_of_its_order(gonogo: Gonogo, tmp_path: Path) -> None:
    save_json(RunDir(tmp_path).order, order_of({"stall": {"halt_s": 7}}).document())
    result = gonogo("watchdog", str(tmp_path))
    assert result.code == 0
    row = next(line for line in result.out.splitlines() if line.startswith("compute "))
    assert row.split()[:5] == ["compute", "7", "8", "×", "median"]
