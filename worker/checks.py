"""What does each preflight check look at? One function a check; reads the host, changes little.

`check_shm` removes segments that a dead process of ours left behind, `check_orphans` ends
processes of runs whose keeper is gone: both are proven to be nobody's first.
"""

import os
import re
import shutil
import signal
import subprocess
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from gonogo.contract.errors import Corrupt
from gonogo.contract.order import Order
from gonogo.contract.records import CheckOutcome, Manifest
from gonogo.contract.rundir import load_record
from worker.inventory import living_keeper
from worker.processes import TOKEN_NAME, find_marked, iter_pids, load_environ, send_signal

GB = 10**9
LEAST_DISK_BYTES = GB // 4
WARN_DISK_BYTES = 5 * GB
LEAST_SHM_BYTES = 64 * 2**20
BUSY_DEVICE_MB = 512
_BYTES_PER_PARAMETER = 12
"""A checkpoint: fp32 parameters and the two moments of Adam."""
_SMI_LIMIT_S = 15.0
_END_LIMIT_S = 3.0
_TORCH_SEGMENT = re.compile(r"torch_(\d+)_\w+")
_TOKEN = re.compile(rb"(?:^|\0)" + TOKEN_NAME.encode() + rb"=(run_[0-9A-Z]{26})\0")

Result = tuple[CheckOutcome, str]


def check_devices(order: Order, devices: Sequence[str] | None, smi: bytes | None) -> Result:
    """Enough devices, and on GPUs nothing else on them."""
    if devices is None:
        text = f"profile {order.profile} with {order.world_size} ranks needs more free devices"
        return CheckOutcome.FAIL, text
    busy = [text for text in _busy_devices(smi, devices)] if smi is not None else []
    if busy:
        return CheckOutcome.FAIL, "; ".join(busy)
    gpus = [device for device in devices if device.startswith("cuda:")]
    if gpus and smi is None:
        return CheckOutcome.WARN, f"{', '.join(gpus)}; nvidia-smi does not answer"
    cpus = len(os.sched_getaffinity(0))
    if not gpus and order.world_size > cpus:
        return CheckOutcome.WARN, f"{order.world_size} ranks share {cpus} CPUs"
    return CheckOutcome.PASS, ", ".join(devices)


def check_disk(order: Order, folder: Path) -> Result:
    """Room for a checkpoint (fail) and for two of them or 5 GB (warn)."""
    free = shutil.disk_usage(folder).free
    checkpoint = (order.identity.params or 0) * _BYTES_PER_PARAMETER
    least = max(checkpoint, LEAST_DISK_BYTES)
    text = f"{free / GB:.1f} GB free in {folder}"
    if free < least:
        return CheckOutcome.FAIL, f"{text}; a checkpoint may need {least / GB:.1f} GB"
    if free < max(2 * checkpoint, WARN_DISK_BYTES):
        return CheckOutcome.WARN, text
    return CheckOutcome.PASS, text


def check_shm(folder: Path = Path("/dev/shm")) -> Result:
    """Shared memory: what dead processes left is removed, and enough must be free."""
    if not folder.is_dir():
        return CheckOutcome.WARN, f"there is no {folder}"
    kept: list[str] = []
    removed = 0
    for path in stale_segments(folder):
        try:
            path.unlink()
            removed += 1
        except OSError as error:
            kept.append(f"{path.name} ({error.strerror})")
    free = shutil.disk_usage(folder).free
    text = f"{free / 2**20:.0f} MB free in {folder}"
    if kept:
        return CheckOutcome.FAIL, f"stale segments cannot be removed: {', '.join(kept[:5])}"
    if free < LEAST_SHM_BYTES:
        return CheckOutcome.FAIL, f"{text}; ranks need {LEAST_SHM_BYTES / 2**20:.0f} MB"
    if removed:
        return CheckOutcome.WARN, f"{removed} stale segments of dead processes removed; {text}"
    return CheckOutcome.PASS, text


def stale_segments(folder: Path) -> Iterator[Path]:
    """Yield torch's shared memory whose process is dead and which nothing maps."""
    for path in folder.glob("torch_*"):
        match = _TORCH_SEGMENT.fullmatch(path.name)
        if match and not Path(f"/proc/{match.group(1)}").exists() and not _is_mapped(path):
            yield path


def check_orphans(run: str, runs: Path) -> Result:
    """No process of this run yet, and none of a run of this home whose keeper is gone."""
    if next(find_marked(run), None) is not None:
        return CheckOutcome.FAIL, "processes of this very run are alive already"
    orphans = {token for token in living_tokens() if _is_orphaned(runs / token)}
    left = [token for token in sorted(orphans) if not end_marked(token)]
    if left:
        return CheckOutcome.FAIL, f"processes of {', '.join(left)} outlive their keeper and SIGKILL"
    if orphans:
        return CheckOutcome.WARN, f"processes of {', '.join(sorted(orphans))} had to be ended"
    return CheckOutcome.PASS, "none"


def living_tokens() -> set[str]:
    """Return the run ids that living processes carry."""
    found = (_TOKEN.search(load_environ(pid)) for pid in iter_pids())
    return {match.group(1).decode() for match in found if match}


def end_marked(token: str) -> bool:
    """SIGKILL every process of a run until none is left; False when some outlive it."""
    deadline = time.monotonic() + _END_LIMIT_S
    while time.monotonic() < deadline:
        if not [send_signal(pid, signal.SIGKILL) for pid in find_marked(token)]:
            return True
        time.sleep(0.01)
    return False


def check_resume(order: Order) -> Result:
    """The checkpoint to go on from is here and whole by its manifest's sizes."""
    if order.resume_from is None:
        return CheckOutcome.PASS, "starts from scratch"
    folder = Path(order.resume_from.path)
    try:
        manifest = load_record(folder / "manifest.json", Manifest)
    except Corrupt as error:
        return CheckOutcome.FAIL, f"{folder}: {error}"
    if manifest is None:
        return CheckOutcome.FAIL, f"there is no checkpoint in {folder}"
    for name, entry in manifest.files.items():
        path = folder / name
        if not path.is_file() or path.stat().st_size != entry.bytes:
            return CheckOutcome.FAIL, f"{path} is not the file of the manifest"
    return CheckOutcome.PASS, f"step {manifest.step} in {folder}"


def load_nvidia_smi() -> bytes | None:
    """Return `nvidia-smi -q -x`; None where there is no such program or it does not answer."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return None
    try:
        done = subprocess.run(
            [program, "-q", "-x"], capture_output=True, timeout=_SMI_LIMIT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuUse:
    """What nvidia-smi says of one device."""

    used_mb: float
    pids: list[int]


def parse_gpu_use(smi: bytes) -> list[GpuUse]:
    """Return the use of each GPU, in nvidia-smi's order.

    Raises:
        Corrupt: not nvidia-smi's XML.
    """
    try:
        root = ElementTree.fromstring(smi)
    except ElementTree.ParseError as error:
        raise Corrupt(f"nvidia-smi: {error}") from error
    return [
        GpuUse(
            used_mb=_first_number(gpu.findtext("fb_memory_usage/used")),
            pids=[
                int(_first_number(process.findtext("pid")))
                for process in gpu.iter("process_info")
                if (process.findtext("type") or "").startswith("C")
            ],
        )
        for gpu in root.findall("gpu")
    ]


def _busy_devices(smi: bytes, devices: Sequence[str]) -> Iterator[str]:
    try:
        gpus = parse_gpu_use(smi)
    except Corrupt as error:
        if any(device.startswith("cuda:") for device in devices):
            yield str(error)
        return
    for device in devices:
        kind, _, index = device.partition(":")
        if kind != "cuda":
            continue
        if int(index) >= len(gpus):
            yield f"{device} is not there"
        elif gpus[int(index)].pids:
            yield f"{device} is used by processes {gpus[int(index)].pids}"
        elif gpus[int(index)].used_mb > BUSY_DEVICE_MB:
            yield f"{device} has {gpus[int(index)].used_mb:.0f} MB in use"


def _first_number(text: str | None) -> float:
    match = re.search(r"\d+(\.\d+)?", text or "")
    return float(match.group()) if match else 0.0


def _is_orphaned(run_dir: Path) -> bool:
    """Say whether a run of this home has no keeper any more."""
    return run_dir.is_dir() and living_keeper(run_dir) is None


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
