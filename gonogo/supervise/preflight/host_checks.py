"""The preflight checks of a host: each returns pass, warn or fail in a sentence.

One fail, and the run is not started. A check that could not be made warns. `check_orphans` ends
processes of runs whose keeper is gone. Not covered: shared memory that dead processes have left.
"""

import logging
import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from gonogo.contract.errors import Corrupt
from gonogo.contract.order import Order
from gonogo.contract.plan import hardware_profiles
from gonogo.contract.records import Check, CheckOutcome, Manifest, Preflight
from gonogo.rundir import RunDir, load_sealed, save_json
from gonogo.supervise.devices.query import SeenDevices, query_devices
from gonogo.supervise.keeper.kill import end_processes, find_processes
from gonogo.supervise.preflight.code import load_branch, load_git_sha
from gonogo.supervise.preflight.device_checks import Fitness, Result, judge_devices
from gonogo.supervise.process_records import is_kept_elsewhere, is_kept_here
from gonogo.supervise.processes import TOKEN_NAME, iter_pids, load_environ, pid_namespace

WITHOUT_SERVICE = ("devices", "disk", "shm", "orphans", "code", "resume", "store")
"""Checks of a run that no service orders."""
GB, MB = 10**9, 1e6
LEAST_DISK_BYTES = GB // 4
WARN_DISK_BYTES = 5 * GB
LEAST_SHM_BYTES = 64 * 2**20
TRIED_BYTES = 8 * 2**20
SLOW_CHECKPOINT_S = 120.0
_BYTES_PER_PARAMETER = 12
"""A checkpoint: fp32 parameters and the two moments of Adam."""
_SMI_LIMIT_S = 15.0
_TOKEN = re.compile(rb"(?:^|\0)" + TOKEN_NAME.encode() + rb"=(run_[0-9A-Z]{26})\0")

_log = logging.getLogger(__name__)


def check_host(
    order: Order, run_dir: RunDir, *, devices: Sequence[str] | None, cwd: Path, node: int = 0
) -> Preflight:
    """Make the checks of `WITHOUT_SERVICE`, write `preflight/` and return the record.

    Args:
        devices: devices chosen for it; None if there are too few.
        cwd: folder of the program.
        node: of the run; later nodes write `preflight/node{K}/`.
    """
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
            "store": lambda: check_store(order, run_dir),
        }
    )
    passed = all(check.outcome is not CheckOutcome.FAIL for check in made)
    record = Preflight(passed=passed, checks=made)
    save_json(place, record.wire())
    return record


def make_checks(rows: Mapping[str, Callable[[], tuple[CheckOutcome, str]]]) -> list[Check]:
    """Make the checks (id → function) in their order; one that cannot be made warns."""
    return [_make(check_id, check) for check_id, check in rows.items()]


def _make(check_id: str, check: Callable[[], tuple[CheckOutcome, str]]) -> Check:
    try:
        outcome, text = check()
    except OSError as error:
        outcome, text = CheckOutcome.WARN, f"could not be checked: {error}"
    if outcome is not CheckOutcome.PASS:
        _log.warning("%s: %s: %s", check_id, outcome, text, extra={"action": "preflight_check"})
    return Check(id=check_id, outcome=outcome, text=text)


def check_devices(order: Order, devices: Sequence[str] | None, seen: SeenDevices | None) -> Result:
    """There are enough devices, they are sound, and nobody else uses them.

    Args:
        devices: slots chosen for it; None if there are too few.
        seen: what they report; None if the run has none.
    """
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


def checkpoint_bytes(order: Order) -> int:
    """Return the approximate size of a checkpoint; 0 if unknown."""
    return (order.identity.params or 0) * _BYTES_PER_PARAMETER


def check_disk(order: Order, folder: Path) -> Result:
    """There is room for a checkpoint (else fail), for two and 5 GB (else warn)."""
    found = shutil.disk_usage(folder)
    if not found.total:
        return CheckOutcome.WARN, f"the file system of {folder} counts no room"
    free = found.free
    checkpoint = checkpoint_bytes(order)
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
        for pid, token, environ in living_runs()
        if _is_orphaned(runs / token, environ) and not _is_in_a_container(pid)
    }
    left = [token for token in sorted(orphans) if end_processes(token)]
    if left:
        return CheckOutcome.FAIL, f"processes of {', '.join(left)} outlive their keeper and SIGKILL"
    if orphans:
        return CheckOutcome.WARN, f"processes of {', '.join(sorted(orphans))} had to be ended"
    return CheckOutcome.PASS, "none"


def living_runs() -> Iterator[tuple[int, str, bytes]]:
    """Yield pid, run id and environment of each living process of a run."""
    for pid in iter_pids():
        environ = load_environ(pid)
        if match := _TOKEN.search(environ):
            yield pid, match.group(1).decode(), environ


def check_code(root: Path, folder: Path, files: Sequence[str] = ()) -> tuple[CheckOutcome, str]:
    """The commit of the program's folder is known; it is written to `git_sha.txt`.

    Args:
        root: folder of the program.
        folder: where it is written.
        files: those whose digests are the code's identity.
    """
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


def check_store(order: Order, run_dir: RunDir) -> Result:
    """How long a checkpoint will take to write.

    Raises:
        OSError: the store refuses a write.
    """
    return judge_store(measure_store(run_dir.path), checkpoint_bytes(order))


def measure_store(folder: Path) -> float:
    """Return the bytes a second that are written to a folder, synced.

    Raises:
        OSError: a write is refused.
    """
    path = folder / f".store-{os.urandom(6).hex()}"
    block = os.urandom(2**20)
    began = time.perf_counter()
    try:
        with path.open("wb") as stream:
            for _ in range(TRIED_BYTES // len(block)):
                stream.write(block)
            stream.flush()
            os.fsync(stream.fileno())
        seconds = time.perf_counter() - began
    finally:
        path.unlink(missing_ok=True)
    return TRIED_BYTES / max(seconds, 1e-6)


def judge_store(bytes_per_s: float, checkpoint_bytes: int) -> tuple[CheckOutcome, str]:
    """Return how long a checkpoint takes.

    Args:
        bytes_per_s: what was measured.
        checkpoint_bytes: of one checkpoint; 0: unknown.
    """
    text = f"takes {bytes_per_s / MB:.0f} MB/s"
    if not checkpoint_bytes:
        return CheckOutcome.PASS, text
    seconds = checkpoint_bytes / bytes_per_s
    text = f"{text}; a checkpoint of {checkpoint_bytes / MB:.0f} MB takes about {seconds:.1f} s"
    return (CheckOutcome.WARN if seconds > SLOW_CHECKPOINT_S else CheckOutcome.PASS), text


def load_nvidia_smi() -> bytes | None:
    """Return `nvidia-smi -q -x`, empty if it does not answer; None without the program."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return None
    try:
        done = subprocess.run(
            [program, "-q", "-x"], capture_output=True, timeout=_SMI_LIMIT_S, check=False
        )
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
