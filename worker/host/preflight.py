"""Checks whether this host is fit for a run, before the keeper starts; recorded in `preflight/`.

Each check passes, warns or fails with a sentence. One failure, and the run is not started. A check
that could not be made warns. On a profile with devices, a device that cannot be read fails.
"""

import json
import logging
import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from gonogo.contract.canonical import digest
from gonogo.contract.order import Order
from gonogo.contract.plan import hardware_profiles
from gonogo.contract.records import PREFLIGHT_CHECKS, SANITY, CheckOutcome, Preflight
from gonogo.contract.workload import is_ours
from gonogo.device_slots import gpus_of
from gonogo.rundir import RunDir, save_json
from gonogo.supervise.devices.choice import SeenDevices, may_use_gpus, query_devices
from gonogo.supervise.preflight import host_checks as checks
from gonogo.supervise.preflight.code import load_branch, load_git_sha
from gonogo.supervise.preflight.host_checks import check_code, judge_peaks, make_checks
from gonogo.supervise.processes import boot_id

PROBE_LIMIT_S = 90.0
_ANSWER = re.compile(r"^\{", re.MULTILINE)
"""A program's answer begins here; NCCL may print lines around it."""
_PASSED_ON = ("PATH", "HOME", "LANG", "LD_LIBRARY_PATH", "CUDA_HOME", "VIRTUAL_ENV", "TMPDIR")

_log = logging.getLogger(__name__)


class Probe(BaseModel):
    """What nsa.probe printed; `error` if it failed."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    peak_flops: float | None = None
    devices: list[dict[str, Any]] = []
    torch: str | None = None
    cpus: int | None = None
    """How many cores it could use."""
    collect_env: str | None = None
    error: str | None = None

    @property
    def measured(self) -> frozenset[str]:
        """UUIDs of the GPUs that were measured."""
        return frozenset(str(row["uuid"]) for row in self.devices if row.get("uuid"))

    @property
    def of_cpu(self) -> list[dict[str, Any]]:
        """What was measured of the CPU."""
        return [row for row in self.devices if row.get("device") == "cpu"]

    def knows(self, gpus: Sequence[str]) -> bool:
        """Say whether these GPUs were measured; without any, whether the CPU was."""
        if gpus:
            return self.measured.issuperset(gpus)
        return bool(self.of_cpu) or not self.devices


class _Kept(BaseModel):
    boot_id: str
    git_sha: str | None
    probe: Probe


@dataclass(slots=True)
class ProbeStore:
    """The probe of this boot and commit; no GPU is measured while another run uses it."""

    home: Path
    root: Path
    environ: Mapping[str, str] = field(repr=False)
    host: str | None = None
    """Name of the host, where several share the home."""
    _process: subprocess.Popen[bytes] | None = None
    _measuring: tuple[str, ...] = ()

    def start(self, slots: Sequence[str] = ()) -> None:
        """Begin to measure the GPUs among free slots that are not known; without one, the CPU."""
        kept, gpus = self._kept(), gpus_of(slots)
        if self._process is not None or (kept is not None and kept.knows(gpus)):
            return
        known = frozenset[str]() if kept is None else kept.measured
        gpus = tuple(uuid for uuid in gpus if uuid not in known)
        try:
            self._process = self.run("nsa.probe", gpus)
            self._measuring = gpus
        except OSError as error:
            _log.warning("no probe: %s", error, extra={"action": "probe_failed"})

    def run(
        self, module: str, gpus: Sequence[str], *options: str, env: Mapping[str, str] | None = None
    ) -> "subprocess.Popen[bytes]":
        """Start a program of the workload on GPUs of its own, or on none."""
        clean = {name: self.environ[name] for name in _PASSED_ON if name in self.environ}
        return subprocess.Popen(
            [sys.executable, "-m", module, *options],
            cwd=self.root,
            env={**clean, **(env or {}), "CUDA_VISIBLE_DEVICES": ",".join(gpus)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def result(self, slots: Sequence[str] = ()) -> Probe:
        """Return the probe, waiting for it; slots that nobody measured are measured now."""
        if self._process is not None:  # one that is under way may be of other devices
            self._finish()
        kept = self._kept()
        if kept is not None and kept.knows(gpus_of(slots)):
            return kept
        self.start(slots)
        return self._finish()

    def _finish(self) -> Probe:
        process, self._process = self._process, None
        if process is None:
            return Probe(error="nsa.probe cannot be started")
        found, error = read_answer(process, "nsa.probe", PROBE_LIMIT_S)
        return Probe(error=error) if found is None else self._keep(found)

    def stop(self) -> None:
        """End a measurement that is still under way."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def _keep(self, found: dict[str, Any]) -> Probe:
        try:
            said_now = Probe.model_validate(found)
        except ValidationError:
            return Probe(error="nsa.probe printed something that is not a probe")
        probe = _added(self._kept(), said_now, self._measuring)
        kept = {"v": 1, "boot_id": boot_id(), "git_sha": load_git_sha(self.root)}
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            save_json(self._path, {**kept, "probe": probe.model_dump(mode="json")})
        except OSError as error:
            _log.warning("no probe.json: %s", error, extra={"action": "probe_unsaved"})
        return probe

    @property
    def _path(self) -> Path:
        folder = self.home if self.host is None else self.home / "hosts" / self.host
        return folder / "probe.json"

    def _kept(self) -> Probe | None:
        """Return the kept probe, when it is of this boot and commit, and of as many cores."""
        try:
            kept = _Kept.model_validate_json(self._path.read_bytes())
        except (OSError, ValidationError, json.JSONDecodeError):
            return None
        now = (boot_id(), load_git_sha(self.root), len(os.sched_getaffinity(0)))
        return kept.probe if (kept.boot_id, kept.git_sha, kept.probe.cpus) == now else None


def read_answer(
    process: "subprocess.Popen[bytes]", program: str, limit_s: float
) -> tuple[dict[str, Any] | None, str]:
    """Wait for a program's JSON answer, or kill it; return it, or why there is none."""
    try:
        out, err = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return None, f"{program} did not answer within {limit_s:g} s"
    if process.returncode != 0:
        said = (err or out).decode("utf-8", "replace").strip().splitlines()
        return None, f"{program} ended with {process.returncode}: {said[-1] if said else 'no word'}"
    text = out.decode("utf-8", "replace")
    begins = _ANSWER.search(text)
    try:
        found, _ = json.JSONDecoder().raw_decode(text, begins.start() if begins else 0)
    except ValueError:
        found = None
    return (found, "") if isinstance(found, dict) else (None, f"{program} printed something else")


def _added(before: Probe | None, now: Probe, gpus: Sequence[str]) -> Probe:
    """Return a probe with what was measured before, and the UUIDs of what was measured now."""
    rows = [dict(row) for row in now.devices]
    for row, uuid in zip(rows, gpus, strict=False):
        if str(row.get("device")).startswith("cuda"):
            row["uuid"] = uuid
    known = {row.get("uuid") for row in rows}
    old = [] if before is None else [row for row in before.devices if row.get("uuid") not in known]
    rows = [*(row for row in old if row.get("uuid")), *rows]
    peaks = [row["peak_flops"] for row in rows if row.get("peak_flops") is not None]
    return now.model_copy(
        update={"devices": rows, "peak_flops": sum(peaks) if peaks else now.peak_flops}
    )


LIMIT_S = 120.0
_REMEMBERED = 32
_OF_THE_MODEL = ("model", "attention", "dtype", "engine", "packing")

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class ModelCheck:
    """One check: `start` begins it, `result` waits for it."""

    store: ProbeStore
    order: Order
    run_dir: RunDir
    devices: Sequence[str]
    _process: "subprocess.Popen[bytes] | None" = None
    _known: str | None = None
    _error: str = "nsa.sanity was not started"
    _key: str = field(init=False)

    def __post_init__(self) -> None:
        train = self.order.train
        said: dict[str, Any] = {
            "boot": boot_id(),
            "code": load_git_sha(self.store.root),
            "train": {name: train[name] for name in _OF_THE_MODEL if name in train},
            "env": dict(self.order.env),
            "devices": list(gpus_of(self.devices)),
        }
        self._key = digest(said)

    def start(self) -> None:
        """Begin the check, unless it is known to pass."""
        self._known = self._remembered().get(self._key)
        if self._known is not None:
            return
        order = ("--order", str(self.run_dir.order))
        try:
            self._process = self.store.run(
                "nsa.sanity", gpus_of(self.devices), *order, env=self.order.env
            )
        except OSError as error:
            self._error = f"nsa.sanity cannot be started: {error}"

    def result(self) -> tuple[CheckOutcome, str]:
        """Return the result; a check that could not be made fails on GPUs and warns elsewhere."""
        if self._known is not None:
            return CheckOutcome.PASS, f"{self._known} (known)"
        said = self._finish()
        if said is None:
            return (CheckOutcome.FAIL if gpus_of(self.devices) else CheckOutcome.WARN), self._error
        if said.get("passed") is not True:
            return CheckOutcome.FAIL, f"the ordered model's miniature: {said.get('text')}"
        text = f"forward and backward of the miniature, {said.get('text')}"
        self._remember(text)
        return CheckOutcome.PASS, text

    def _finish(self) -> dict[str, Any] | None:
        process, self._process = self._process, None
        if process is None:
            return None
        found, self._error = read_answer(process, "nsa.sanity", LIMIT_S)
        return found

    def _remembered(self) -> dict[str, str]:
        try:
            found = json.loads((self.store.home / "sanity.json").read_bytes())
        except (OSError, ValueError):
            return {}
        passed = found.get("passed") if isinstance(found, dict) else None
        return passed if isinstance(passed, dict) else {}

    def _remember(self, text: str) -> None:
        rows = [*self._remembered().items(), (self._key, text)][-_REMEMBERED:]
        try:
            save_json(self.store.home / "sanity.json", {"v": 1, "passed": dict(rows)})
        except OSError as error:
            _log.warning("no sanity.json: %s", error, extra={"action": "sanity_unsaved"})


def run_preflight(
    order: Order,
    run_dir: RunDir,
    *,
    devices: Sequence[str] | None,
    store: ProbeStore,
    script: Path | None = None,
    node: int = 0,
) -> Preflight:
    """Make every check, write the record of a node, and return it; devices None: too few."""
    place = run_dir.preflight_of(node)
    folder = place.parent
    folder.mkdir(parents=True, exist_ok=True)
    look = None if devices is None else query_devices(order, devices, script)
    smi = checks.load_nvidia_smi()
    if smi:
        (folder / "nvidia_smi.xml").write_bytes(smi)
    fitness = None if devices is None else checks.judge_fitness(order, devices, look)
    unfit = {} if fitness is None else dict(fitness.unfit)
    ours = is_ours(order.entry, order.command)
    seen = not unfit and look is not None and not look.scripted
    free = gpus_of(devices or ()) if seen and may_use_gpus(order) else ()
    sanity = ModelCheck(store, order, run_dir, free) if ours else None
    if sanity is not None and not unfit:
        sanity.start()
    probe = store.result(free)
    peak, slow = _judge_peak(order, free, probe)
    unfit |= slow
    rows: dict[str, Callable[[], tuple[CheckOutcome, str]]] = {
        "devices": lambda: checks.check_devices(order, devices, look),
        "disk": lambda: checks.check_disk(order, run_dir.path),
        "shm": checks.check_shm,
        "orphans": lambda: checks.check_orphans(order.run, run_dir.path.parent),
        "code": lambda: check_code(Path(order.cwd or store.root), folder, order.files),
        "environment": lambda: _check_environment(probe, folder),
        "peak": lambda: peak,
        "resume": lambda: checks.check_resume(order),
    }
    own = {} if sanity is None else {SANITY: sanity.result}
    made = make_checks({check_id: rows[check_id] for check_id in PREFLIGHT_CHECKS} | own)
    record = Preflight(
        passed=all(check.outcome is not CheckOutcome.FAIL for check in made),
        checks=made,
        peak_flops=_peak_flops(free, probe),
        peak_of=_peak_of(free, probe),
        branch=load_branch(Path(order.cwd or store.root)),
        devices=_described(devices, probe, look),
        unfit=unfit,
        host=_host(store.environ),
    )
    save_json(place, record.wire())
    return record


def _host(environ: Mapping[str, str]) -> str | None:
    """Return the host's name; None in a pod, whose own is another one in each run."""
    return None if "KUBERNETES_SERVICE_HOST" in environ else os.uname().nodename


def _check_environment(probe: Probe, folder: Path) -> tuple[CheckOutcome, str]:
    (folder / "collect_env.txt").write_text(probe.collect_env or "")
    if probe.error is not None:
        return CheckOutcome.FAIL, probe.error
    if not probe.collect_env:
        return CheckOutcome.WARN, f"torch {probe.torch}; collect_env said nothing"
    return CheckOutcome.PASS, f"torch {probe.torch}"


def _judge_peak(
    order: Order, gpus: Sequence[str], probe: Probe
) -> tuple[tuple[CheckOutcome, str], dict[str, str]]:
    """Say how fast the run's devices compute, and which are too slow for any run."""
    profile = hardware_profiles().get(order.profile)
    if gpus and profile is not None and profile.has_devices:
        rows = {str(row.get("uuid")): row for row in probe.devices}
        kinds = {_kind(rows[uuid]) for uuid in gpus if uuid in rows}
        node = {u: f for u, row in rows.items() if _kind(row) in kinds and (f := _flops(row))}
        measured = {uuid: _flops(rows.get(uuid, {})) for uuid in gpus}
        return judge_peaks(measured, node, profile.peak_flops)
    peak = _peak_flops(gpus, probe)
    if peak is None:
        return (CheckOutcome.WARN, "no matrix product was measured"), {}
    return (CheckOutcome.PASS, f"{peak / 1e12:.3f} TFLOP/s measured"), {}


def _kind(row: Mapping[str, object]) -> tuple[object, object]:
    """Return what cards that compute equally fast have in common."""
    return row.get("name"), row.get("sms")


def _flops(row: Mapping[str, object]) -> float | None:
    found = row.get("peak_flops")
    return float(found) if isinstance(found, int | float) and found > 0 else None


def _peak_flops(gpus: Sequence[str], probe: Probe) -> float | None:
    """Return what the run's GPUs compute together, None where one was not measured; without any,
    what the host's CPU does."""
    known = [flops for row in _rows(gpus, probe) if (flops := _flops(row)) is not None]
    if not gpus:
        return sum(known) if known else probe.peak_flops
    return sum(known) if len(known) == len(gpus) else None


def _rows(gpus: Sequence[str], probe: Probe) -> list[dict[str, Any]]:
    """Return what was measured of the run's GPUs; without any, of the host's CPU."""
    if not gpus:
        return probe.of_cpu or probe.devices
    return [row for row in probe.devices if row.get("uuid") in gpus]


def _peak_of(gpus: Sequence[str], probe: Probe) -> str | None:
    kinds = {str(row.get("device", "")).partition(":")[0] for row in _rows(gpus, probe)}
    return kinds.pop() or None if len(kinds) == 1 else None


def _described(
    devices: Sequence[str] | None, probe: Probe, look: SeenDevices | None
) -> list[dict[str, object]]:
    """Return the devices, each with what the probe and the driver (or its script) say of it."""
    measured = {str(row.get("uuid") or row.get("device")): row for row in probe.devices}
    rows: list[dict[str, object]] = []
    for device in devices or ():
        said = measured.get(device) or measured.get(device.partition(":")[0]) or {}
        rows.append({**said, "device": device})
    if look is None or not look.devices:
        return rows
    slots = {row["device"]: row for row in rows}
    return [
        {
            **slots.get(seen.uuid, {"device": seen.uuid}),
            "index": seen.index,
            "rank": seen.rank,
            "uuid": seen.uuid,
            "name": seen.name,
            "mem_total_mb": seen.mem_total_mb,
            "driver": look.driver,
            "scripted": look.scripted,
        }
        for seen in look.devices
    ]
