"""Each preflight check of a broken host."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gonogo.contract.heartbeat import Identity
from gonogo.contract.order import ResumePoint
from gonogo.contract.records import CheckOutcome, Preflight
from gonogo.contract.wire import Kind, new_id
from gonogo.rundir import RunDir, load_record, save_json
from gonogo.supervise.devices.choice import SeenDevice, SeenDevices
from gonogo.supervise.keeper.kill import find_processes
from gonogo.supervise.preflight import host_checks as checks
from gonogo.supervise.processes import boot_id, load_stat
from tests.supervise.orders import make_order
from tests.supervise.runs import wait_until
from worker.host.preflight import Probe, ProbeStore, run_preflight

PASS, WARN, FAIL = CheckOutcome.PASS, CheckOutcome.WARN, CheckOutcome.FAIL


def seen(**fields: Any) -> SeenDevices:
    """One idle device, changed."""
    row = {"rank": 0, "uuid": "GPU-0", "index": 0, "name": "H200", "mem_used_mb": 3.0}
    fit = {"processes": [], "throttle": ["gpu_idle"], "ecc_on": True, "ecc_uncorrected": 0}
    health = {"remap_pending": False, "remap_failed": False}
    return SeenDevices(
        driver="570", devices=[SeenDevice.model_validate({**row, **fit, **health, **fields})]
    )


@pytest.mark.parametrize(
    ("profile", "devices", "look", "expected"),
    [
        ("h200", None, None, FAIL),
        ("h200", ("GPU-0",), seen(), PASS),
        ("h200", ("GPU-0",), None, FAIL),
        ("h200", ("GPU-0",), SeenDevices(), FAIL),
        ("h200", ("GPU-0",), SeenDevices(error="no driver"), FAIL),
        ("h200", ("GPU-0",), seen(mem_used_mb=None), FAIL),
        ("h200", ("GPU-0",), seen(processes=None), FAIL),
        ("h200", ("GPU-0",), seen(processes=[4711]), FAIL),
        ("h200", ("GPU-0",), seen(mem_used_mb=900.0), FAIL),
        ("h200", ("GPU-0",), seen(remap_pending=True), WARN),
        ("h200", ("GPU-0",), seen(remap_failed=True), FAIL),
        ("h200", ("GPU-0",), seen(ecc_uncorrected=1), FAIL),
        ("h200", ("GPU-0",), seen(ecc_on=False, ecc_uncorrected=None), WARN),
        ("h200", ("GPU-0",), seen(throttle=["hw_power_brake_slowdown"]), FAIL),
        ("h200", ("GPU-0",), seen(throttle=["sw_thermal_slowdown"]), WARN),
        ("h200", ("GPU-1",), seen(), FAIL),  # another GPU answers
        ("h200", ("GPU-0",), seen(util=None, temp_c=None, xids=None), PASS),
        ("cpu", None, None, FAIL),
        ("cpu", ("cpu:0",), None, PASS),
        ("cpu", ("GPU-0",), seen(), PASS),
        ("cpu", ("GPU-0",), SeenDevices(error="no driver"), WARN),
        ("cpu", ("GPU-0",), seen(processes=[4711]), FAIL),
    ],
)
def test_devices_must_be_there_readable_and_nobodys(
    profile: str, devices: tuple[str, ...] | None, look: SeenDevices | None, expected: CheckOutcome
) -> None:
    assert checks.check_devices(make_order(profile=profile), devices, look)[0] is expected


@pytest.mark.parametrize(
    ("free", "params", "expected"),
    [
        (100 * checks.GB, 125_000_000, PASS), (4 * checks.GB, 125_000_000, WARN),
        (1 * checks.GB, 125_000_000, FAIL), (50_000_000, None, FAIL),
    ],
)  # fmt: skip
def test_the_disk_must_hold_a_checkpoint(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    free: int,
    params: int | None,
    expected: CheckOutcome,
) -> None:
    usage = shutil.disk_usage(tmp_path)._replace(free=free)
    monkeypatch.setattr(checks.shutil, "disk_usage", lambda _: usage)
    order = make_order(identity=Identity(params=params))
    assert checks.check_disk(order, tmp_path)[0] is expected


def test_shared_memory_that_is_full_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(tmp_path)._replace(free=1)
    monkeypatch.setattr(checks.shutil, "disk_usage", lambda _: usage)
    assert checks.check_shm(tmp_path)[0] is FAIL


@pytest.fixture
def marked() -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """A process that carries the token of a run."""
    token = new_id(Kind.RUN)
    code = "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(60)"
    process = subprocess.Popen([sys.executable, "-c", code], env={"GONOGO_RUN": token})
    yield token, process
    process.kill()
    process.wait()


def test_processes_of_this_very_run_fail(
    tmp_path: Path, marked: tuple[str, subprocess.Popen[bytes]]
) -> None:
    assert checks.check_orphans(marked[0], tmp_path)[0] is FAIL
    assert marked[1].poll() is None


@pytest.mark.parametrize("record", [None, '{"boot_'], ids=["none", "torn"])
def test_processes_of_a_run_without_a_keeper_are_ended(
    tmp_path: Path, marked: tuple[str, subprocess.Popen[bytes]], record: str | None
) -> None:
    (tmp_path / marked[0]).mkdir()
    if record is not None:
        (tmp_path / marked[0] / "keeper.json").write_text(record)
    outcome, text = checks.check_orphans(new_id(Kind.RUN), tmp_path)
    assert outcome is WARN
    assert marked[0] in text
    assert marked[1].wait(60) == -signal.SIGKILL


@pytest.mark.parametrize(
    "whose", ["another-home", "a-living-keeper", "a-node-of-several", "another-host"]
)
def test_other_runs_are_left_alone(
    tmp_path: Path, marked: tuple[str, subprocess.Popen[bytes]], whose: str
) -> None:
    if whose in ("a-living-keeper", "a-node-of-several"):
        stat = load_stat(os.getpid())
        assert stat is not None
        keeper = {"pid": os.getpid(), "start_ticks": stat.start_ticks, "boot_id": boot_id()}
        name = "keeper_node1.json" if whose == "a-node-of-several" else "keeper.json"
        save_json(tmp_path / marked[0] / name, keeper)
    if whose in ("a-node-of-several", "another-host"):
        elsewhere = {"pid": os.getpid(), "start_ticks": 1, "boot_id": "another"}
        save_json(tmp_path / marked[0] / "keeper.json", elsewhere)
    assert checks.check_orphans(new_id(Kind.RUN), tmp_path)[0] is PASS
    assert marked[1].poll() is None


@pytest.mark.parametrize("ours", [True, False])
def test_another_homes_run_of_the_same_id_is_left_alone(tmp_path: Path, ours: bool) -> None:
    """A home that was restored beside the one that lives has runs of the same ids."""
    token = new_id(Kind.RUN)
    run_dir = tmp_path / "runs" / token
    run_dir.mkdir(parents=True)
    named = run_dir if ours else tmp_path / "other" / token
    environ = {"GONOGO_RUN": token, "GONOGO_RUN_DIR": str(named)}
    with subprocess.Popen(["/bin/sleep", "60"], env=environ) as process:
        wait_until(lambda: find_processes(token) == {process.pid}, "the process")
        outcome, _ = checks.check_orphans(new_id(Kind.RUN), run_dir.parent)
        alive = process.poll() is None
        process.kill()
    assert (outcome, alive) == ((WARN, False) if ours else (PASS, True))


@pytest.mark.parametrize("broken", ["", "missing", "short", "no-manifest", "torn-manifest"])
def test_a_checkpoint_to_go_on_from_must_be_whole(tmp_path: Path, broken: str) -> None:
    (tmp_path / "model.pt").write_bytes(b"12345")
    files = {"model.pt": {"bytes": 5, "sha256": "0" * 64}}
    save_json(tmp_path / "manifest.json", {"v": 1, "step": 20, "files": files})
    match broken:
        case "missing":
            (tmp_path / "model.pt").unlink()
        case "short":
            (tmp_path / "model.pt").write_bytes(b"123")
        case "no-manifest":
            (tmp_path / "manifest.json").unlink()
        case "torn-manifest":
            (tmp_path / "manifest.json").write_text('{"v": 1,')
    order = make_order(resume_from=ResumePoint(path=str(tmp_path), step=20))
    assert checks.check_resume(order)[0] is (FAIL if broken else PASS)


@pytest.mark.parametrize(
    ("step", "verified", "outcome"),
    [(20, True, PASS), (0, True, PASS), (20, False, FAIL), (0, False, FAIL), (19, True, FAIL)],
    ids=["it", "its weights", "changed since", "its weights, changed since", "another step"],
)
def test_a_checkpoint_to_go_on_from_is_the_one_that_was_verified(
    tmp_path: Path, step: int, verified: bool, outcome: CheckOutcome
) -> None:
    save_json(tmp_path / "manifest.json", {"v": 1, "step": 20, "files": {}})
    raw = (tmp_path / "manifest.json").read_bytes()
    sha256 = hashlib.sha256(raw).hexdigest() if verified else "0" * 64
    point = ResumePoint(path=str(tmp_path), step=step, manifest_sha256=sha256)
    assert checks.check_resume(make_order(resume_from=point))[0] is outcome


def store_with(home: Path, monkeypatch: pytest.MonkeyPatch, probe: Probe) -> ProbeStore:
    store = ProbeStore(home, home, {})
    monkeypatch.setattr(ProbeStore, "result", lambda self, _: probe)
    return store


def test_preflight_writes_its_record_and_one_fail_is_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order = make_order()
    run_dir = RunDir(tmp_path / "runs" / order.run)
    run_dir.path.mkdir(parents=True)
    row = {"device": "cpu", "peak_flops": 1e12}
    good = Probe(peak_flops=1e12, devices=[row], torch="2", collect_env="env")
    record = run_preflight(
        order, run_dir, devices=("cpu:0",), store=store_with(tmp_path, monkeypatch, good)
    )
    assert record.passed
    assert load_record(run_dir.preflight, Preflight) == record
    assert (run_dir.preflight.parent / "collect_env.txt").read_text() == "env"
    assert record.devices == [{"device": "cpu:0", "peak_flops": 1e12}]
    assert record.peak_of == "cpu"
    bad = Probe(error="no torch here")
    record = run_preflight(
        order, run_dir, devices=("cpu:0",), store=store_with(tmp_path, monkeypatch, bad)
    )
    assert not record.passed
    assert [check.id for check in record.checks if check.outcome is FAIL] == ["environment"]


def test_preflight_keeps_what_a_validation_asks_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R60: the commit, its branch, the environment, nvidia-smi's own words, a sanity check."""
    root = tmp_path / "root"
    (root / "nsa").mkdir(parents=True)
    (root / "nsa" / "__init__.py").touch()
    (root / "nsa" / "sanity.py").write_text('print(\'{"passed": true, "text": "loss 5.5"}\')\n')
    for words in (
        ["init", "-q", "-b", "trial"],
        ["add", "."],
        ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-q", "-m", "a"],
    ):
        subprocess.run(["git", *words], cwd=root, check=True)
    head = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=root, check=True, capture_output=True, text=True
    ).stdout.strip()
    program = tmp_path / "bin" / "nvidia-smi"
    program.parent.mkdir()
    program.write_text('#!/bin/sh\n[ "$*" = "-q -x" ] && printf "<nvidia_smi_log/>"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    probe = Probe(peak_flops=1e12, torch="2", collect_env="PyTorch version: 2")
    monkeypatch.setattr(ProbeStore, "result", lambda self, _: probe)
    order = make_order()
    run_dir = RunDir(tmp_path / "runs" / order.run)
    run_dir.path.mkdir(parents=True)
    store = ProbeStore(tmp_path, root, {})
    record = run_preflight(order, run_dir, devices=("cpu:0",), store=store)
    folder = run_dir.preflight.parent
    assert (folder / "git_sha.txt").read_text().strip() == head
    assert record.branch == "trial"
    assert (folder / "collect_env.txt").read_text() == "PyTorch version: 2"
    assert (folder / "nvidia_smi.xml").read_bytes() == b"<nvidia_smi_log/>"
    told = {check.id: (check.outcome, check.text) for check in record.checks}
    assert told["sanity"][0] is PASS
    assert "loss 5.5" in told["sanity"][1]
    assert head in told["code"][1]


def test_a_gpu_profile_runs_on_scripted_devices_only_where_the_plan_allows_faults(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "script.json"
    devices = [{"uuid": f"GPU-{n}", "index": n, "name": "H200"} for n in range(2)]
    samples = [{"uuid": "GPU-0", "at_s": 0, "mem_used_mb": 60_000}]
    script.write_text(json.dumps({"devices": devices, "samples": samples}))
    store = store_with(tmp_path, monkeypatch, Probe(peak_flops=1e12, torch="2", collect_env="env"))
    for allowed in (True, False):
        order = make_order(profile="h200", world_size=2, allow_faults=allowed)
        run_dir = RunDir(tmp_path / "runs" / order.run)
        run_dir.path.mkdir(parents=True)
        record = run_preflight(
            order, run_dir, devices=("GPU-98", "GPU-99"), store=store, script=script
        )
        assert record.checks[0].outcome is FAIL  # there are no such devices
        record = run_preflight(
            order, run_dir, devices=("GPU-0", "GPU-1"), store=store, script=script
        )
        if allowed:
            assert record.passed
            rows = [(row["rank"], row["uuid"], row["name"]) for row in record.devices]
            assert rows == [(0, "GPU-0", "H200"), (1, "GPU-1", "H200")]
            assert {row["driver"] for row in record.devices} == {"scripted"}


def test_the_cpu_of_a_host_with_gpus_is_measured_for_a_run_that_computes_on_it(
    tmp_path: Path,
) -> None:
    """It reports nothing about its GPUs' results, and they need not be measured again."""
    (tmp_path / "nsa").mkdir()
    (tmp_path / "nsa" / "__init__.py").touch()
    (tmp_path / "nsa" / "probe.py").write_text(
        "import json, os\n"
        "gpus = os.environ['CUDA_VISIBLE_DEVICES']\n"
        "row = {'device': 'cuda:0', 'peak_flops': 7e14} if gpus else\\\n"
        "    {'device': 'cpu', 'peak_flops': 1e11}\n"
        "open('asked', 'a').write(row['device'] + ' ')\n"
        "print(json.dumps({'peak_flops': row['peak_flops'], 'devices': [row], 'torch': '2',\n"
        "    'cpus': len(os.sched_getaffinity(0))}))\n"
    )
    store = ProbeStore(tmp_path, tmp_path, {})
    assert store.result(["GPU-0"]).peak_flops == 7e14  # a worker's first look
    for _ in range(2):
        order = make_order(profile="cpu")
        run_dir = RunDir(tmp_path / "runs" / order.run)
        run_dir.path.mkdir(parents=True, exist_ok=True)
        record = run_preflight(order, run_dir, devices=("GPU-0",), store=store)
        told = {check.id: check.text for check in record.checks}
        assert told["peak"] == "0.100 TFLOP/s measured"
        assert (record.peak_flops, record.peak_of) == (1e11, "cpu")
    assert store.result(["GPU-0"]).measured == {"GPU-0"}
    probe = json.loads((tmp_path / "probe.json").read_text())
    probe["probe"]["cpus"] += 1  # as of a job that may use more
    save_json(tmp_path / "probe.json", probe)
    assert store.result(["GPU-0"]).of_cpu == []
    assert (tmp_path / "asked").read_text().split() == ["cuda:0", "cpu", "cuda:0"]


@pytest.mark.parametrize(
    ("device", "rows", "told"),
    [
        ("GPU-0", [{"device": "cuda:0", "uuid": "GPU-0", "peak_flops": 7e14}], (7e14, "cuda", "7")),
        ("cpu:0", [{"device": "cpu", "peak_flops": 1e11}], (1e11, "cpu", "0.100 TFLOP/s")),
    ],
)
def test_the_peak_of_a_run_is_of_what_it_computes_on(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    device: str,
    rows: list[dict[str, Any]],
    told: tuple[float | None, str | None, str],
) -> None:
    """The CPU's would be a hundredth of what a slice of a GPU computes."""
    probe = Probe(peak_flops=rows[0]["peak_flops"], devices=rows, torch="2", collect_env="env")
    store = store_with(tmp_path, monkeypatch, probe)
    monkeypatch.setattr("worker.host.preflight.query_devices", lambda *_: seen(uuid=device))
    order = make_order(profile="cpu", command=["python", "train.py"])
    run_dir = RunDir(tmp_path / "runs" / order.run)
    run_dir.path.mkdir(parents=True)
    record = run_preflight(order, run_dir, devices=(device,), store=store)
    peak = next(check for check in record.checks if check.id == "peak")
    assert (record.peak_flops, record.peak_of) == told[:2]
    assert peak.outcome is PASS
    assert peak.text.startswith(told[2])
