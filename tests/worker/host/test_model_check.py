"""Is the workload's own check made once for each model, commit and boot, and its word believed?"""

from __future__ import annotations

from pathlib import Path

import pytest

from gonogo.contract.records import CheckOutcome
from gonogo.contract.workload import is_ours
from gonogo.rundir import save_json
from tests.supervise.orders import make_order, make_run_dir
from worker.host.preflight import ModelCheck, ProbeStore

PASS, WARN, FAIL = CheckOutcome.PASS, CheckOutcome.WARN, CheckOutcome.FAIL


@pytest.fixture
def store(tmp_path: Path) -> ProbeStore:
    """A checkout whose workload says what `says` holds, and counts how often it was asked."""
    root = tmp_path / "root"
    (root / "nsa").mkdir(parents=True)
    (root / "nsa" / "__init__.py").touch()
    (root / "nsa" / "sanity.py").write_text(
        "import os, pathlib\n"
        f"with open({str(tmp_path / 'asked')!r}, 'a') as stream: stream.write('x')\n"
        f"print(pathlib.Path({str(tmp_path / 'says')!r}).read_text())\n"
    )
    return ProbeStore(tmp_path, root, {})


def checked(
    store: ProbeStore, said: str, devices: tuple[str, ...] = (), **order: object
) -> tuple[CheckOutcome, str]:
    (store.home / "says").write_text(said)
    made = make_order(**order)
    check = ModelCheck(store, made, make_run_dir(store.home / "runs", made), devices)
    check.start()
    return check.result()


def test_a_pass_is_remembered_until_something_changes(store: ProbeStore) -> None:
    asked = store.home / "asked"
    assert checked(store, '{"passed": true, "text": "loss 5"}')[0] is PASS
    assert checked(store, "", phase="extended")[0] is PASS
    assert asked.read_text() == "x"
    assert checked(store, '{"passed": true}', env={"NSA_SEL": "1"})[0] is PASS
    assert asked.read_text() == "xx"
    save_json(store.home / "sanity.json", {"passed": "torn"})
    assert checked(store, '{"passed": true}')[0] is PASS
    assert asked.read_text() == "xxx"


@pytest.mark.parametrize(
    ("said", "on_cpu", "on_gpus"),
    [
        ('{"passed": false, "text": "nan"}', FAIL, FAIL), ('{"passed": "yes"}', FAIL, FAIL),
        ("torn", WARN, FAIL), ("[]", WARN, FAIL),
    ],
)  # fmt: skip
def test_only_its_word_passes(
    store: ProbeStore, said: str, on_cpu: CheckOutcome, on_gpus: CheckOutcome
) -> None:
    assert checked(store, said)[0] is on_cpu
    assert checked(store, said, ("GPU-0",), profile="h200")[0] is on_gpus
    assert not (store.home / "sanity.json").exists()


def test_a_foreign_workload_is_not_checked() -> None:
    assert is_ours(make_order().entry, None)
    assert not is_ours(None, ["python", "x.py"])
    assert not is_ours("mine.train", None)
