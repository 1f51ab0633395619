"""Is the longer check made when it is due, once, and its word believed?"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gonogo.contract.outcome import Actor, OutcomeCode
from gonogo.contract.records import CheckOutcome
from gonogo.rundir import save_json
from gonogo.supervise import device_records
from gonogo.supervise.device_records import HOLDS_S, disprove, load_proof, prove
from gonogo.supervise.devices.after_run import suspects
from tests.supervise.orders import completed, make_order, make_run_dir
from worker.host.gpu_check import GpuCheck
from worker.host.probe import ProbeStore

PASS, WARN, FAIL = CheckOutcome.PASS, CheckOutcome.WARN, CheckOutcome.FAIL
GPUS = ("GPU-0", "GPU-1")


@pytest.fixture
def store(tmp_path: Path) -> ProbeStore:
    """A checkout whose probe says what `says` holds, and counts how often it was asked."""
    root = tmp_path / "root"
    (root / "nsa").mkdir(parents=True)
    (root / "nsa" / "__init__.py").touch()
    (root / "nsa" / "probe.py").write_text(
        "import os, pathlib, sys\n"
        "assert sys.argv[1:] == ['--node'], sys.argv\n"
        f"with open({str(tmp_path / 'asked')!r}, 'a') as stream:\n"
        "    stream.write(os.environ['CUDA_VISIBLE_DEVICES'] + ';')\n"
        f"print(pathlib.Path({str(tmp_path / 'says')!r}).read_text())\n"
    )
    return ProbeStore(tmp_path, root, {})


def says(store: ProbeStore, **last: Any) -> None:
    row = {"name": "H200", "flops": 700e12, "checksums": ["a", "a"]}
    document = {"v": 1, "node": {"devices": [row, {**row, **last}], "all_reduce_gb_s": 400.0}}
    (store.home / "says").write_text(json.dumps(document))


def asked(store: ProbeStore) -> str:
    path = store.home / "asked"
    return path.read_text() if path.exists() else ""


def test_a_check_is_due_after_a_failed_run_a_boot_and_a_day(
    store: ProbeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    says(store)
    now = [1000.0]

    def check(*devices: str) -> CheckOutcome:
        return GpuCheck(store, "h200", devices, wall=lambda: now[0]).result()[0]

    assert check(*GPUS) is PASS
    assert check(*GPUS) is check("GPU-1") is PASS
    assert asked(store) == "GPU-0,GPU-1;"
    disprove(store.home, "GPU-1", "its run failed")
    assert check(*GPUS) is PASS
    assert asked(store) == 2 * "GPU-0,GPU-1;"
    now[0] += HOLDS_S
    assert check(*GPUS) is PASS
    assert asked(store) == 3 * "GPU-0,GPU-1;"
    monkeypatch.setattr(device_records, "boot_id", lambda: "another")
    assert load_proof(store.home, GPUS, now[0]) is None


def test_devices_not_measured_together_are_measured(store: ProbeStore) -> None:
    prove(store.home, ["GPU-0"], "pass", "alone", now=1.0)
    prove(store.home, ["GPU-1"], "pass", "alone", now=1.0)
    assert load_proof(store.home, ["GPU-0"], 1.0) == ("pass", "alone")
    assert load_proof(store.home, GPUS, 1.0) is None


@pytest.mark.parametrize("said", ["torn", "[]", "{}", '{"node": {}}', '{"node": {"devices": []}}'])
def test_only_its_word_passes(store: ProbeStore, said: str) -> None:
    (store.home / "says").write_text(said)
    assert GpuCheck(store, "h200", GPUS).result()[0] is FAIL


def test_a_warning_is_repeated_while_it_is_known(store: ProbeStore) -> None:
    says(store, flops=620e12)
    first, known = (GpuCheck(store, "h200", GPUS).result() for _ in range(2))
    assert (first[0], known) == (WARN, (WARN, f"{first[1]} (known)"))
    assert asked(store) == "GPU-0,GPU-1;"


def test_nccl_gets_the_orders_settings(store: ProbeStore) -> None:
    """A host whose GPUs reach each other with `NCCL_P2P_DISABLE=1` alone hangs without it."""
    says(store)
    probe = store.root / "nsa" / "probe.py"
    probe.write_text(
        "import os\n"
        "assert os.environ['NCCL_P2P_DISABLE'] == '1'\n"
        "assert not {'NCCL_DEBUG', 'NCCL_NET_PLUGIN', 'TOKEN'} & set(os.environ)\n"
        "print('node0:17:17 [0] NCCL INFO NET: {none}')\n" + probe.read_text() + "print('bye')\n"
    )
    order = {"NCCL_P2P_DISABLE": "1", "NCCL_DEBUG": "INFO", "NCCL_NET_PLUGIN": "x", "TOKEN": "y"}
    outcome, text = GpuCheck(store, "h200", GPUS, order).result()
    assert (outcome, text[:9]) == (PASS, "1400.000 "), text


def test_slices_are_not_checked(store: ProbeStore) -> None:
    assert GpuCheck(store, "h200", ("MIG-1", "GPU-0")).devices == ("GPU-0",)


def test_a_run_that_uses_no_gpu_has_none_checked(store: ProbeStore) -> None:
    """A laptop's old or small GPU stops no demo, and what a CPU computed proves no GPU."""
    assert GpuCheck(store, "cpu", ("GPU-0",)).devices == ()


@pytest.mark.parametrize(
    ("reason", "actor", "due"),
    [
        (OutcomeCode.COMPLETED, Actor.TRAINER, False),
        (OutcomeCode.CANCELLED, Actor.OPERATOR, False),
        (OutcomeCode.PREEMPTED, Actor.INFRA, False),
        (OutcomeCode.NONZERO_EXIT, Actor.TRAINER, True),
        (OutcomeCode.STALLED, Actor.WATCHDOG, True),
        (OutcomeCode.HARDWARE, Actor.WATCHDOG, True),
        (OutcomeCode.KEEPER_LOST, Actor.INFRA, True),
    ],
)
def test_a_run_that_failed_makes_the_check_due(
    tmp_path: Path, reason: OutcomeCode, actor: Actor, due: bool
) -> None:
    run_dir = make_run_dir(tmp_path, make_order())
    assert set(suspects(run_dir, GPUS)) == set(GPUS), "it left no exit.json"
    ended = completed().model_copy(update={"reason": reason, "ended_by": actor})
    save_json(run_dir.exit, ended.wire())
    assert set(suspects(run_dir, GPUS)) == (set(GPUS) if due else set())


def test_a_device_with_an_xid_is_checked_again(tmp_path: Path) -> None:
    run_dir = make_run_dir(tmp_path, make_order())
    save_json(run_dir.exit, completed().wire())
    lines = [
        {"ts": 1.0, "mono": 1.0, "uuid": "GPU-0", "xids": []},
        {"ts": 1.0, "mono": 1.0, "uuid": "GPU-1", "xids": [13]},
        {"ts": 1.0, "mono": 1.0, "uuid": "GPU-9", "xids": [79]},
    ]
    run_dir.devices.write_text("".join(json.dumps(line) + "\n" for line in lines) + "torn")
    assert set(suspects(run_dir, GPUS)) == {"GPU-1"}
