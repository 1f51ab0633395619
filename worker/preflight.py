"""Is this host fit for this run? Checked before the keeper starts; recorded in `preflight/`.

Each check says pass, warn or fail in a sentence; one fail and the run is not started. A check that
could not be made warns: it never passes for lack of evidence. On a profile with devices, a device
that cannot be read fails.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

from gonogo.contract.order import Order
from gonogo.contract.records import PREFLIGHT_CHECKS, CheckOutcome, Preflight
from gonogo.rundir import RunDir, save_json
from gonogo.supervise.devices.look import Look, look_at_devices
from gonogo.supervise.preflight import checks
from gonogo.supervise.preflight.preflight import check_code, make_checks
from worker.probe import Probe, ProbeStore


def run_preflight(
    order: Order,
    run_dir: RunDir,
    *,
    devices: Sequence[str] | None,
    store: ProbeStore,
    script: Path | None = None,
) -> Preflight:
    """Make every check, write `preflight/` and return the record.

    Args:
        order: the run's order.
        run_dir: its directory.
        devices: devices chosen for it; None when there are not enough.
        store: where the host's probe comes from.
        script: file of scripted devices (GONOGO_DEVICES_SCRIPT).
    """
    folder = run_dir.preflight.parent
    folder.mkdir(parents=True, exist_ok=True)
    smi = checks.load_nvidia_smi()
    if smi is not None:
        (folder / "nvidia_smi.xml").write_bytes(smi)
    probe = store.result()
    look = None if devices is None else look_at_devices(order, devices, script)
    rows: dict[str, Callable[[], tuple[CheckOutcome, str]]] = {
        "devices": lambda: checks.check_devices(order, devices, look),
        "disk": lambda: checks.check_disk(order, run_dir.path),
        "shm": lambda: checks.check_shm(),
        "orphans": lambda: checks.check_orphans(order.run, run_dir.path.parent),
        "code": lambda: check_code(Path(order.cwd or store.root), folder, order.files),
        "environment": lambda: _check_environment(probe, folder),
        "peak": lambda: _check_peak(probe),
        "resume": lambda: checks.check_resume(order),
    }
    made = make_checks({check_id: rows[check_id] for check_id in PREFLIGHT_CHECKS})
    record = Preflight(
        passed=all(check.outcome is not CheckOutcome.FAIL for check in made),
        checks=made,
        peak_flops=probe.peak_flops,
        peak_of=_peak_of(probe),
        devices=_described(devices, probe, look),
    )
    save_json(run_dir.preflight, record.wire())
    return record


def _check_environment(probe: Probe, folder: Path) -> tuple[CheckOutcome, str]:
    (folder / "collect_env.txt").write_text(probe.collect_env or "")
    if probe.error is not None:
        return CheckOutcome.FAIL, probe.error
    if not probe.collect_env:
        return CheckOutcome.WARN, f"torch {probe.torch}; collect_env said nothing"
    return CheckOutcome.PASS, f"torch {probe.torch}"


def _check_peak(probe: Probe) -> tuple[CheckOutcome, str]:
    if probe.peak_flops is None:
        return CheckOutcome.WARN, "no matrix product was measured"
    return CheckOutcome.PASS, f"{probe.peak_flops / 1e12:.3f} TFLOP/s measured"


def _peak_of(probe: Probe) -> str | None:
    """Return the kind of device that was measured; a host of several kinds has none."""
    kinds = {str(row.get("device", "")).partition(":")[0] for row in probe.devices}
    return kinds.pop() or None if len(kinds) == 1 else None


def _described(
    devices: Sequence[str] | None, probe: Probe, look: Look | None
) -> list[dict[str, object]]:
    """Return the devices, each with what the probe and the driver (or its script) say of it."""
    by_name = {str(row.get("device")): row for row in probe.devices}
    rows: list[dict[str, object]] = []
    for device in devices or ():
        said = by_name.get(device) or by_name.get(device.partition(":")[0]) or {}
        rows.append({**said, "device": device})
    if look is None or not look.devices:
        return rows
    slots = {row["device"]: row for row in rows}
    return [
        {
            **slots.get(f"cuda:{seen.index}", {"device": f"cuda:{seen.index}"}),
            "rank": seen.rank,
            "uuid": seen.uuid,
            "name": seen.name,
            "mem_total_mb": seen.mem_total_mb,
            "driver": look.driver,
            "scripted": look.scripted,
        }
        for seen in look.devices
    ]
