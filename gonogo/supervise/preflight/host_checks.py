"""The preflight checks of a host: each returns pass, warn or fail in a sentence.

One fail, and the run is not started. A check that could not be made warns. `check_orphans` ends
processes of runs whose keeper is gone. Not covered: shared memory that dead processes have left.

On a profile with devices, a device fails if it does not report its use, its memory's errors or why
its clock is held down. Devices in use, with uncorrectable errors, with rows that could not be
remapped, held down by the power brake, missing, or slow fail. Pending rows, heat and memory without
ECC warn.
"""

import logging
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from gonogo.contract.errors import Corrupt
from gonogo.contract.order import Order
from gonogo.contract.plan import hardware_profiles
from gonogo.contract.records import Check, CheckOutcome, Manifest, Preflight
from gonogo.device_slots import gpus_of
from gonogo.rundir import RunDir, load_sealed, save_json
from gonogo.supervise.devices.choice import SeenDevice, SeenDevices, query_devices
from gonogo.supervise.keeper.kill import end_processes, find_processes
from gonogo.supervise.preflight.code import load_branch, load_git_sha
from gonogo.supervise.process_records import is_kept_elsewhere, is_kept_here
from gonogo.supervise.processes import TOKEN_NAME, iter_pids, load_environ, pid_namespace

BUSY_DEVICE_MB = 512
BRAKES = frozenset({"hw_slowdown", "hw_power_brake_slowdown"})
HEAT = frozenset({"hw_thermal_slowdown", "sw_thermal_slowdown"})
LEAST_OF_PROFILE = 0.5
"""Share of the profile's peak below which a GPU is another one than ordered, or sick."""
LEAST_OF_NODE = 0.9
"""Share of the host's median below which a GPU holds all others up."""
FAIL, WARN = CheckOutcome.FAIL, CheckOutcome.WARN

Result = tuple[CheckOutcome, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitness:
    """Whether the devices of a run are fit."""

    outcome: CheckOutcome
    text: str
    unfit: dict[str, str] = field(default_factory=dict)
    """Device → why no run should get it for now."""


def judge_devices(seen: SeenDevices, held: Sequence[str], needed: int) -> Fitness:
    """Return whether the devices of a run are fit.

    `needed` devices are required by the profile; if 0, what is unknown only warns.
    """
    unfit: dict[str, list[str]] = {}
    said: list[str] = [] if seen.error is None else [seen.error]
    warned: list[str] = []
    for row in seen.devices:
        for outcome, text in _judge(row, strict=needed > 0):
            if outcome is FAIL:
                unfit.setdefault(row.uuid, []).append(text)
            else:
                warned.append(f"device {row.index} {text}")
    known = {row.uuid for row in seen.devices}
    absent = [] if seen.error or seen.scripted else [u for u in gpus_of(held) if u not in known]
    for uuid in absent:
        unfit.setdefault(uuid, []).append("is not in the driver's list")
    if len(seen.devices) < needed and seen.error is None:
        said.append(f"{len(seen.devices)} devices can be read; {needed} ranks need one each")
    names = {row.uuid: f"device {row.index}" for row in seen.devices}
    failed = [f"{names.get(uuid, uuid)} {'; '.join(texts)}" for uuid, texts in unfit.items()]
    if failed or (said and needed):
        reasons = {uuid: "; ".join(texts) for uuid, texts in unfit.items()}
        return Fitness(outcome=FAIL, text="; ".join([*failed, *said]), unfit=reasons)
    if said or warned:
        return Fitness(outcome=WARN, text="; ".join([*said, *warned]))
    told = ", ".join(f"rank {row.rank}: {row.name} {row.uuid}" for row in seen.devices)
    return Fitness(outcome=CheckOutcome.PASS, text=told)


def _judge(row: SeenDevice, *, strict: bool) -> Iterator[tuple[CheckOutcome, str]]:
    """Yield what is wrong with one device; `strict`: what is unknown fails."""
    if row.processes:
        yield FAIL, f"is used by processes {row.processes}"
    elif row.mem_used_mb is not None and not row.mem_used_mb <= BUSY_DEVICE_MB:
        yield FAIL, f"has {row.mem_used_mb:.0f} MB in use"
    unknown = list(_unknown(row))
    if unknown:
        yield (FAIL if strict else WARN), f"does not say {', '.join(unknown)}"
    if row.ecc_uncorrected:
        yield FAIL, f"has {row.ecc_uncorrected} uncorrectable memory errors"
    if row.remap_failed:
        yield FAIL, "has a row that could not be remapped"
    elif row.remap_pending:
        yield WARN, "has a row to remap"
    held_down = set(row.throttle or ())
    if held_down & BRAKES:
        yield FAIL, f"is held down: {', '.join(sorted(held_down & BRAKES))}"
    elif held_down & HEAT:
        yield WARN, f"is held down by heat: {', '.join(sorted(held_down & HEAT))}"
    if row.ecc_on is False:
        yield WARN, "corrects no memory errors: ECC is off"


def _unknown(row: SeenDevice) -> Iterator[str]:
    """Yield what a device does not report but must."""
    if row.processes is None or row.mem_used_mb is None:
        yield "what is on it"
    if row.throttle is None:
        yield "why its clock is held down"
    if row.ecc_on is None or (row.ecc_on and row.ecc_uncorrected is None):
        yield "its memory's errors"
    if row.remap_pending is None:
        yield "whether rows wait to be remapped"


def judge_peaks(
    measured: Mapping[str, float | None], node: Mapping[str, float], profile_flops: float | None
) -> tuple[Result, dict[str, str]]:
    """Return whether every device of a run is fast enough, and which are not.

    Args:
        measured: device of the run → FLOP/s; None: not measured.
        node: GPU of the host → FLOP/s, of the same kind.
    """
    unfit: dict[str, str] = {}
    middle = median(node.values()) if node else None
    for device, flops in measured.items():
        if flops is None:
            unfit[device] = "its matrix product was not measured"
        elif profile_flops is not None and flops < LEAST_OF_PROFILE * profile_flops:
            unfit[device] = f"{_tera(flops)}: {flops / profile_flops:.0%} of the profile's"
        elif middle is not None and flops < LEAST_OF_NODE * middle:
            unfit[device] = f"{_tera(flops)}: {flops / middle:.0%} of this host's median"
    if unfit:
        text = "; ".join(f"{device} {why}" for device, why in unfit.items())
        return (CheckOutcome.FAIL, text), unfit
    total = sum(flops for flops in measured.values() if flops is not None)
    return (CheckOutcome.PASS, f"{_tera(total)} measured"), {}


def _tera(flops: float) -> str:
    return f"{flops / 1e12:.3f} TFLOP/s"


WITHOUT_SERVICE = ("devices", "disk", "shm", "orphans", "code", "resume")
"""Checks of a run that no service orders."""
GB = 10**9
LEAST_DISK_BYTES = GB // 4
WARN_DISK_BYTES = 5 * GB
LEAST_SHM_BYTES = 64 * 2**20
_BYTES_PER_PARAMETER = 12
"""A checkpoint: fp32 parameters and the two moments of Adam."""
_SMI_LIMIT_S = 15.0
_TOKEN = re.compile(rb"(?:^|\0)" + TOKEN_NAME.encode() + rb"=(run_[0-9A-Z]{26})\0")

_log = logging.getLogger(__name__)


def check_host(
    order: Order, run_dir: RunDir, *, devices: Sequence[str] | None, cwd: Path, node: int = 0
) -> Preflight:
    """Make the checks of `WITHOUT_SERVICE`, write `preflight/` and return the record."""
    place = run_dir.preflight_of(node)
    folder = place.parent
    folder.mkdir(parents=True, exist_ok=True)
    seen = None if devices is None else query_devices(order, devices, None)
    made = make_checks(
        {
            "devices": lambda: check_devices(order, devices, seen),
            "disk": lambda: check_disk(order, run_dir.path),
            "shm": check_shm,
            "orphans": lambda: check_orphans(order.run, run_dir.path.parent),
            "code": lambda: check_code(cwd, folder, order.files),
            "resume": lambda: check_start(order),
        }
    )
    passed = all(check.outcome is not CheckOutcome.FAIL for check in made)
    record = Preflight(passed=passed, checks=made)
    save_json(place, record.wire())
    return record


def make_checks(rows: Mapping[str, Callable[[], Result]]) -> list[Check]:
    """Make the checks (id → function) in their order; one that cannot be made warns."""
    made = []
    for check_id, check in rows.items():
        try:
            outcome, text = check()
        except OSError as error:
            outcome, text = CheckOutcome.WARN, f"could not be checked: {error}"
        if outcome is not CheckOutcome.PASS:
            _log.warning("%s: %s: %s", check_id, outcome, text, extra={"action": "preflight_check"})
        made.append(Check(id=check_id, outcome=outcome, text=text))
    return made


def check_devices(order: Order, devices: Sequence[str] | None, seen: SeenDevices | None) -> Result:
    """There are enough devices, they are sound, and nobody else uses them."""
    if devices is None:
        text = f"profile {order.profile} with {order.ranks_per_node} ranks needs more free devices"
        return CheckOutcome.FAIL, text
    found = judge_fitness(order, devices, seen)
    if found is not None:
        return found.outcome, found.text
    cpus = len(os.sched_getaffinity(0))
    if order.ranks_per_node > cpus:
        return CheckOutcome.WARN, f"{order.ranks_per_node} ranks share {cpus} CPUs"
    return CheckOutcome.PASS, ", ".join(devices)


def judge_fitness(order: Order, devices: Sequence[str], seen: SeenDevices | None) -> Fitness | None:
    """Return whether the devices of a run are fit; None if it has none."""
    profile = hardware_profiles().get(order.profile)
    owed = order.ranks_per_node if profile is not None and profile.has_devices else 0
    if seen is None and not owed:
        return None
    return judge_devices(seen or SeenDevices(), devices, owed)


def check_disk(order: Order, folder: Path) -> Result:
    """There is room for a checkpoint (else fail), for two and 5 GB (else warn)."""
    found = shutil.disk_usage(folder)
    if not found.total:
        return CheckOutcome.WARN, f"the file system of {folder} counts no room"
    free = found.free
    checkpoint = (order.identity.params or 0) * _BYTES_PER_PARAMETER
    least = max(checkpoint, LEAST_DISK_BYTES)
    text = f"{free / GB:.1f} GB free in {folder}"
    if free < least:
        return CheckOutcome.FAIL, f"{text}; a checkpoint may need {least / GB:.1f} GB"
    if free < max(2 * checkpoint, WARN_DISK_BYTES):
        return CheckOutcome.WARN, text
    return CheckOutcome.PASS, text


def check_shm(folder: Path = Path("/dev/shm")) -> Result:
    """Enough shared memory is free."""
    if not folder.is_dir():
        return CheckOutcome.WARN, f"there is no {folder}"
    free = shutil.disk_usage(folder).free
    text = f"{free / 2**20:.0f} MB free in {folder}"
    if free < LEAST_SHM_BYTES:
        return CheckOutcome.FAIL, f"{text}; ranks need {LEAST_SHM_BYTES / 2**20:.0f} MB"
    return CheckOutcome.PASS, text


def check_orphans(run: str, runs: Path) -> Result:
    """No process of this run lives, and none of a run of this home whose keeper is gone."""
    if find_processes(run):
        return CheckOutcome.FAIL, "processes of this very run are alive already"
    orphans = {
        token
        for pid in iter_pids()
        if (match := _TOKEN.search(environ := load_environ(pid)))
        if (token := match.group(1).decode())
        if _is_orphaned(runs / token, environ) and not _is_in_a_container(pid)
    }
    left = [token for token in sorted(orphans) if end_processes(token)]
    if left:
        return CheckOutcome.FAIL, f"processes of {', '.join(left)} outlive their keeper and SIGKILL"
    if orphans:
        return CheckOutcome.WARN, f"processes of {', '.join(sorted(orphans))} had to be ended"
    return CheckOutcome.PASS, "none"


def check_code(root: Path, folder: Path, files: Sequence[str] = ()) -> Result:
    """The commit of the program's folder is known; it is written to `git_sha.txt`."""
    absent = [name for name in files if not (root / name).is_file()]
    if absent:
        return CheckOutcome.WARN, f"workload.files: {', '.join(absent)}: no such file in {root}"
    sha = load_git_sha(root)
    (folder / "git_sha.txt").write_text(f"{sha or ''}\n")
    if sha is None:
        return CheckOutcome.WARN, f"no git commit can be read in {root}"
    state = "with uncommitted changes" if "+" in sha else "clean"
    branch = load_branch(root)
    return CheckOutcome.PASS, f"{sha}{f' on {branch}' if branch else ''}, {state}"


def check_resume(order: Order) -> Result:
    """The checkpoint to resume from is the one that was verified, and its files have their sizes.

    A phase that begins with another phase's weights needs them.
    """
    if order.resume_from is None:
        if order.init_from is not None:
            return CheckOutcome.FAIL, (
                f"{order.init_from} left no durable checkpoint whose weights it begins with, or its"
                " last one is not whole, is gone or was changed"
            )
        return CheckOutcome.PASS, "starts from scratch"
    point = order.resume_from
    folder = Path(point.path)
    try:
        found = load_sealed(folder / "manifest.json", Manifest)
    except Corrupt as error:
        return CheckOutcome.FAIL, f"{folder}: {error}"
    if found is None:
        return CheckOutcome.FAIL, f"there is no checkpoint in {folder}"
    manifest, sha256 = found
    if point.step not in (0, manifest.step):
        return CheckOutcome.FAIL, f"{folder} is of step {manifest.step}, not {point.step}"
    if point.manifest_sha256 not in (None, sha256):
        return CheckOutcome.FAIL, f"{folder} is not the checkpoint that its run's watcher verified"
    for name, entry in manifest.files.items():
        path = folder / name
        if not path.is_file() or path.stat().st_size != entry.bytes:
            return CheckOutcome.FAIL, f"{path} is not the file of the manifest"
    return CheckOutcome.PASS, f"step {manifest.step} in {folder}"


def check_start(order: Order) -> Result:
    """As `check_resume`, without a service: the program may have weights of its own."""
    if order.resume_from is None and order.init_from is not None:
        return CheckOutcome.WARN, f"without a service nobody hands it {order.init_from}'s weights"
    return check_resume(order)


def load_nvidia_smi() -> bytes:
    """Return `nvidia-smi -q -x`; empty if it does not answer."""
    command = ("nvidia-smi", "-q", "-x")
    try:
        done = subprocess.run(command, capture_output=True, timeout=_SMI_LIMIT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return b""
    return done.stdout


def _is_orphaned(run_dir: Path, environ: bytes) -> bool:
    """Whether a process belongs to a run of this home without a keeper."""
    folders = [row for row in environ.split(b"\0") if row.startswith(b"GONOGO_RUN_DIR=")]
    named = b"GONOGO_RUN_DIR=" + os.fsencode(run_dir)
    ours = run_dir.is_dir() and (named in folders or not folders)
    return ours and not is_kept_here(run_dir) and not is_kept_elsewhere(run_dir)


def _is_in_a_container(pid: int) -> bool:
    """Whether a process has a pid namespace of its own, and so has its keeper."""
    return pid_namespace(pid) not in ("", pid_namespace())
