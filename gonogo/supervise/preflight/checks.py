"""What does each preflight check look at? One function a check; reads the host, changes little.

`check_shm` removes segments that a dead process of ours left behind, `check_orphans` ends
processes of runs whose keeper is gone: both are proven to be nobody's first. A container that
shares the host's memory and not its processes (`--ipc=host`) can prove nothing, and removes none.
"""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

from gonogo.contract.errors import Corrupt
from gonogo.contract.hardware import hardware_profiles
from gonogo.contract.order import Order
from gonogo.contract.records import CheckOutcome, Manifest
from gonogo.rundir import load_sealed
from gonogo.supervise.devices.look import Look
from gonogo.supervise.keeper.environ_scan import is_elsewhere
from gonogo.supervise.keeper.kill import end_marked
from gonogo.supervise.keeper.living import is_kept_elsewhere, is_kept_here
from gonogo.supervise.keeper.marked import find_marked
from gonogo.supervise.preflight.fitness import Fitness, judge_devices
from gonogo.supervise.preflight.smi import complaints
from gonogo.supervise.processes import TOKEN_NAME, iter_pids, load_environ, pid_namespace

GB = 10**9
LEAST_DISK_BYTES = GB // 4
WARN_DISK_BYTES = 5 * GB
LEAST_SHM_BYTES = 64 * 2**20
_BYTES_PER_PARAMETER = 12
"""A checkpoint: fp32 parameters and the two moments of Adam."""
_SMI_LIMIT_S = 15.0
_HOSTS_PIDS = "pid:[4026531836]"
"""The kernel's first namespace of processes, in which all others are seen, too."""
_CONTAINERS_SHM = "shm"
"""What containerd, Docker and Podman call the memory that they make for one container or pod."""
_TORCH_SEGMENT = re.compile(r"torch_(\d+)_\w+")
_TOKEN = re.compile(rb"(?:^|\0)" + TOKEN_NAME.encode() + rb"=(run_[0-9A-Z]{26})\0")

Result = tuple[CheckOutcome, str]


def check_devices(
    order: Order, devices: Sequence[str] | None, look: Look | None, smi: bytes | None = None
) -> Result:
    """Enough devices; those of GPUs can be read, nobody else is on them, and they are sound.

    Args:
        order: the run's order.
        devices: slots chosen for it; None when there are not enough.
        look: what they say; None where the run has none.
        smi: what nvidia-smi says of them; None where it says nothing.
    """
    if devices is None:
        text = f"profile {order.profile} with {order.ranks_per_node} ranks needs more free devices"
        return CheckOutcome.FAIL, text
    found = judge_fitness(order, devices, look, smi)
    if found is not None:
        return found.outcome, found.text
    cpus = len(os.sched_getaffinity(0))
    if order.ranks_per_node > cpus:
        return CheckOutcome.WARN, f"{order.ranks_per_node} ranks share {cpus} CPUs"
    return CheckOutcome.PASS, ", ".join(devices)


def judge_fitness(
    order: Order, devices: Sequence[str], look: Look | None, smi: bytes | None = None
) -> Fitness | None:
    """Return what the devices say of themselves comes to; None where the run has none.

    Args:
        order: the run's order.
        devices: slots chosen for it.
        look: what they say.
        smi: what nvidia-smi says of them; None where it says nothing.
    """
    profile = hardware_profiles().get(order.profile)
    owed = order.ranks_per_node if profile is not None and profile.has_devices else 0
    if look is None and not owed:
        return None
    seen = look or Look()
    whole = {row.uuid: row.whole or row.uuid for row in seen.devices}
    against: list[tuple[str, str]] = []
    if smi is not None and owed and not seen.scripted:
        told = list(complaints(smi, sorted(set(whole.values()))))
        against = [(uuid, text) for uuid, gpu in whole.items() for of, text in told if of == gpu]
    return judge_devices(seen, devices, owed, against)


def checkpoint_bytes(order: Order) -> int:
    """Return about how large a checkpoint of the ordered model is; 0 where nobody knows."""
    return (order.identity.params or 0) * _BYTES_PER_PARAMETER


def check_disk(order: Order, folder: Path) -> Result:
    """Room for a checkpoint (fail) and for two of them or 5 GB (warn)."""
    found = shutil.disk_usage(folder)
    if not found.total:
        return CheckOutcome.WARN, f"the file system of {folder} tells of no room, free or not"
    free = found.free
    checkpoint = checkpoint_bytes(order)
    least = max(checkpoint, LEAST_DISK_BYTES)
    text = f"{free / GB:.1f} GB free in {folder}"
    if free < least:
        return CheckOutcome.FAIL, f"{text}; a checkpoint may need {least / GB:.1f} GB"
    if free < max(2 * checkpoint, WARN_DISK_BYTES):
        return CheckOutcome.WARN, text
    return CheckOutcome.PASS, text


def check_shm(folder: Path = Path("/dev/shm"), *, own: bool | None = None) -> Result:
    """Shared memory: what dead processes left is removed, and enough must be free.

    What another user's left is that user's to remove: anybody may leave some, and takes no host.

    Args:
        folder: where it lies.
        own: whether all who use it are seen from here; None: as the kernel tells.
    """
    if not folder.is_dir():
        return CheckOutcome.WARN, f"there is no {folder}"
    seen = sees_users(folder) if own is None else own
    removed, others, kept = _remove_stale(folder) if seen else (0, 0, [])
    free = shutil.disk_usage(folder).free
    text = f"{free / 2**20:.0f} MB free in {folder}"
    if kept:
        return CheckOutcome.FAIL, f"stale segments cannot be removed: {', '.join(kept[:5])}"
    if free < LEAST_SHM_BYTES:
        return CheckOutcome.FAIL, f"{text}; ranks need {LEAST_SHM_BYTES / 2**20:.0f} MB"
    if others:
        text += f"; {others} stale segments are another user's"
    if removed:
        text = f"{removed} stale segments of dead processes removed; {text}"
    if removed or others:
        return CheckOutcome.WARN, text
    return CheckOutcome.PASS, text


def _remove_stale(folder: Path) -> tuple[int, int, list[str]]:
    """Remove what dead processes left; return how much, how much is others', and what stays."""
    removed = others = 0
    kept: list[str] = []
    for path in stale_segments(folder):
        try:
            path.unlink()
            removed += 1
        except FileNotFoundError:
            continue
        except OSError as error:
            if _is_ours(path):
                kept.append(f"{path.name} ({error.strerror})")
            else:
                others += 1
    return removed, others, kept


def _is_ours(path: Path) -> bool:
    """Say whether a file is there and this user's."""
    try:
        return path.lstat().st_uid == os.geteuid()
    except OSError:
        return False


def sees_users(folder: Path, proc: Path = Path("/proc")) -> bool:
    """Say whether every process that may use a folder of shared memory is seen from here.

    So it is on the host itself, and in a container that has memory of its own.

    Args:
        folder: of shared memory.
        proc: where the kernel tells.
    """
    try:
        if os.readlink(proc / "self" / "ns" / "pid") == _HOSTS_PIDS:
            return True
        rows = (proc / "self" / "mountinfo").read_text(errors="replace").splitlines()
    except OSError:
        return False
    halves = (row.partition(" - ") for row in rows)
    sources = [after.split()[1] for row, _, after in halves if row.split()[4] == str(folder)]
    return sources[-1:] == [_CONTAINERS_SHM]


def stale_segments(folder: Path) -> Iterator[Path]:
    """Yield torch's shared memory whose process is dead and which nothing maps."""
    for path in folder.glob("torch_*"):
        match = _TORCH_SEGMENT.fullmatch(path.name)
        if match and not Path(f"/proc/{match.group(1)}").exists() and not _is_mapped(path):
            yield path


def check_orphans(run: str, runs: Path) -> Result:
    """No process of this run yet, and none of a run of this home whose keeper is gone."""
    if find_marked(run):
        return CheckOutcome.FAIL, "processes of this very run are alive already"
    orphans = {
        token
        for pid, token, environ in living_runs()
        if _is_orphaned(runs / token, environ) and not _is_in_a_container(pid)
    }
    left = [token for token in sorted(orphans) if end_marked(token, runs / token)]
    if left:
        return CheckOutcome.FAIL, f"processes of {', '.join(left)} outlive their keeper and SIGKILL"
    if orphans:
        return CheckOutcome.WARN, f"processes of {', '.join(sorted(orphans))} had to be ended"
    return CheckOutcome.PASS, "none"


def living_runs() -> Iterator[tuple[int, str, bytes]]:
    """Yield each living process that carries a run's id: its pid, the id, its environment."""
    for pid in iter_pids():
        environ = load_environ(pid)
        if match := _TOKEN.search(environ):
            yield pid, match.group(1).decode(), environ


def check_resume(order: Order) -> Result:
    """The checkpoint to go on from is here, the one that was verified, and whole by its sizes.

    A phase that is to begin with another's weights does not begin without them.
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
    """As `check_resume`, of a run that nobody hands weights to: the program may have its own."""
    if order.resume_from is None and order.init_from is not None:
        return CheckOutcome.WARN, f"without a service nobody hands it {order.init_from}'s weights"
    return check_resume(order)


def load_nvidia_smi() -> bytes | None:
    """Return `nvidia-smi -q -x`, empty where it does not answer; None without such a program."""
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
    """Say whether a process is of a run of this home that has no keeper on this host any more."""
    ours = run_dir.is_dir() and not is_elsewhere(environ, os.fsencode(run_dir))
    return ours and not is_kept_here(run_dir) and not is_kept_elsewhere(run_dir)


def _is_in_a_container(pid: int) -> bool:
    """Say whether a process has pids of its own: so has its keeper, and nobody here knows those."""
    return pid_namespace(pid) not in ("", pid_namespace())


def _is_mapped(path: Path) -> bool:
    """Say whether any process that we may look into maps a file."""
    needle = f" {path}\n".encode()
    for pid in iter_pids():
        try:
            with open(f"/proc/{pid}/maps", "rb") as stream:
                if needle in stream.read():
                    return True
        except OSError:
            continue
    return False
