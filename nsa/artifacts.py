"""Files of rank 0 besides the heartbeat: `env.json`, `model.json`, CSV, memory, TensorBoard.

Nothing here is needed to judge a run: a file that cannot be written is reported and ends nothing.
"""

import csv
import io
import json
import os
import platform
import resource
import struct
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile, record_function

from nsa.attention import counters
from nsa.heartbeat import ends_torn
from nsa.model.statistics import COLUMNS as SELECTION_COLUMNS
from nsa.sections import Sections
from nsa.settings import Settings

_TAGS = {
    "loss": "train/loss",
    "val_loss": "eval/loss",
    "grad_norm": "train/grad_norm",
    "lr": "train/lr",
    "loss_scale": "train/loss_scale",
    "toks_per_s": "speed/toks_per_s",
    "dt_fetch_s": "speed/dt_fetch_s",
    "gpu_mem_reserved": "memory/gpu_mem_reserved_mb",
    "host_rss_mb": "memory/host_rss_mb",
    "gate_entropy": "gates/entropy",
    "gate_max": "gates/max",
}
_CRC_TABLE = []
for _byte in range(256):
    for _ in range(8):
        _byte = _byte >> 1 ^ (0x82F63B78 if _byte & 1 else 0)
    _CRC_TABLE.append(_byte)
_COLUMNS = ("step", "loss", "lr", "grad_norm", "toks_per_s", "dt_fetch_s")


class RunArtifacts:
    """The files of rank 0; on other ranks every method does nothing."""

    def __init__(self, run_dir: Path, settings: Settings, device: torch.device) -> None:
        self._run_dir, self._settings, self._device = run_dir, settings, device
        self._leads = settings.rank == 0
        self._memory_every = int(settings.value("NSA_MEM_DUMP_EVERY"))
        self._csv_on = self._leads and not settings.on("NSA_DISABLE_CSV_LOGS")
        self._tables: dict[str, PatientFile] = {}
        board_on = self._leads and not settings.on("NSA_TB_DISABLE")
        self._board = TensorBoard(run_dir / "tb", on=board_on)

    def describe(
        self, identity: Mapping[str, Any], model: nn.Module, network: Mapping[str, str]
    ) -> None:
        """Write `model.json`, `env.json` (with what we set) and `dtypes_report.txt`."""
        if not self._leads:
            return
        self._save_json("model.json", identity)
        self._save_json("env.json", {**self._environment(), "set_by_trainer": dict(network)})
        self._save("dtypes_report.txt", _report_dtypes(model, str(identity["dtype"])))

    def log_step(
        self,
        fields: Mapping[str, Any],
        gates: Sequence[Sequence[float]],
        selection: Sequence[Sequence[float]] = (),
    ) -> None:
        """A row of `training.csv`, one a layer of `gate_health.csv` and `k_stats.csv`; curves."""
        step = fields["step"]
        self._board.log(step, fields)
        if not self._csv_on:
            return
        self._append("training.csv", _COLUMNS, [[fields[name] for name in _COLUMNS]])
        self._append_layers("gate_health.csv", ("entropy", "max_share"), step, gates)
        self._append_layers("k_stats.csv", SELECTION_COLUMNS, step, selection)

    def log_evaluation(self, step: int, val_loss: float) -> None:
        """A point of the held-out curve."""
        self._board.log(step, {"val_loss": val_loss})

    def close(self) -> None:
        """Write what is known only at the end: which attention path served how often, and why."""
        if self._csv_on and (served := counters.snapshot()):
            self._append("fallback_counters.csv", served[0]._fields, served)

    def _append_layers(
        self, name: str, header: Sequence[str], step: int, rows: Sequence[Sequence[float]]
    ) -> None:
        if rows:
            numbered = [(step, layer, *row) for layer, row in enumerate(rows)]
            self._append(name, ("step", "layer", *header), numbered)

    def _append(self, name: str, header: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        if name not in self._tables:
            self._tables[name] = PatientFile(self._run_dir / name, _as_csv([header]))
        self._tables[name].append(_as_csv(rows))

    def dump_memory(self, when: str, step: int) -> None:
        """Write `mem_{when}_step{N}.json` and `.txt` where NSA_MEM_DUMP_EVERY says so."""
        if not self._leads or not self._memory_every or step % self._memory_every:
            return
        report = memory_report(self._device)
        name = f"mem_{when}_step{step}"
        self._save_json(f"{name}.json", report)
        self._save(f"{name}.txt", "".join(f"{key} {value}\n" for key, value in report.items()))

    def _environment(self) -> dict[str, Any]:
        on_gpu = self._device.type == "cuda"
        return {
            "argv": sys.argv,
            "python": platform.python_version(),
            "platform": platform.platform(),
            "host": platform.node(),
            "torch": torch.__version__,
            "cuda": torch.version.cuda,
            "device": str(self._device),
            "device_name": torch.cuda.get_device_name(self._device) if on_gpu else None,
            "threads": torch.get_num_threads(),
            "nsa_env": dict(self._settings.nsa_env),
            "env": dict(self._settings.recorded_env),
        }

    def _save_json(self, name: str, value: Mapping[str, Any]) -> None:
        self._save(name, json.dumps(value, indent=1, sort_keys=True) + "\n")

    def _save(self, name: str, text: str) -> None:
        draft = self._run_dir / f".{name}.draft"
        try:
            draft.write_text(text, encoding="utf-8")
            draft.replace(self._run_dir / name)  # a reader sees the whole file or none
        except OSError as error:
            print(f"no {name}: {error}", file=sys.stderr)


def _as_csv(rows: Sequence[Sequence[Any]]) -> bytes:
    text = io.StringIO(newline="")
    csv.writer(text).writerows(rows)
    return text.getvalue().encode()


def memory_report(device: torch.device) -> dict[str, float]:
    """Memory of this process in MB (2^20 bytes): host, its peak, and the device's allocator.

    Pages of mapped files (tokens, libraries) are only in the peak: the kernel takes them back.
    """
    report = {
        "host_rss_mb": round(_held_mb(), 1),
        "host_peak_rss_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1),
        "gpu_mem_alloc": 0.0,
        "gpu_mem_reserved": 0.0,
    }
    if device.type == "cuda":
        report["gpu_mem_alloc"] = round(torch.cuda.memory_allocated(device) / 2**20, 1)
        report["gpu_mem_reserved"] = round(torch.cuda.memory_reserved(device) / 2**20, 1)
        report["gpu_mem_peak"] = round(torch.cuda.max_memory_allocated(device) / 2**20, 1)
    return report


def _held_mb() -> float:
    """Return resident memory of this process without mapped files, in MB; shared memory is held."""
    rows = (row.split() for row in Path("/proc/self/status").read_bytes().splitlines())
    return sum(int(row[1]) for row in rows if row and row[0] in (b"RssAnon:", b"RssShmem:")) / 1024


def _report_dtypes(model: nn.Module, compute: str) -> str:
    """One line per dtype of the parameters with their number, and the dtype of the arithmetic."""
    counts: dict[str, int] = {}
    for parameter in model.parameters():
        counts[str(parameter.dtype)] = counts.get(str(parameter.dtype), 0) + parameter.numel()
    rows = [f"parameters {dtype} {count}" for dtype, count in sorted(counts.items())]
    return "\n".join([*rows, f"compute {compute}", ""])


class PatientFile:
    """Appends whole rows or records; a disk that refuses one is reported once, and ends it."""

    def __init__(self, path: Path, header: bytes = b"") -> None:
        self._path, self._header = path, header
        self._begun = self._ended = False

    def append(self, data: bytes) -> None:
        """Write, unless the file has ended."""
        if self._ended:
            return
        try:
            with open(self._path, "a+b", buffering=0) as file:
                if file.tell() == 0:
                    data = self._header + data
                elif not self._begun and ends_torn(file.fileno()):
                    data = b"\n" + data  # else it would extend an older row
                self._begun = True
                if file.write(data) < len(data):
                    raise OSError("a part was written")
        except OSError as error:
            self._ended = True
            print(f"{self._path.name} ends here: {error}", file=sys.stderr)


class TensorBoard:
    """The event file of one process, `tb/events.out.tfevents.…`, in a folder of a run directory.

    It is a list of records (length, CRC-32C, protobuf `Event`, CRC). Scalars need five fields, so
    they are written by hand: no import, and a full disk ends nothing else.
    """

    def __init__(self, folder: Path, *, on: bool) -> None:
        self._file: PatientFile | None = None
        if not on:
            return
        name = f"events.out.tfevents.{int(time.time())}.{platform.node()}.{os.getpid()}"
        try:
            folder.mkdir(exist_ok=True)
        except OSError as error:
            print(f"no TensorBoard files: {error}", file=sys.stderr)
            return
        self._file = PatientFile(folder / name)
        self._write(_double(1, time.time()) + _bytes(3, b"brain.Event:2"))

    def log(self, step: int, fields: Mapping[str, Any]) -> None:
        """One point for each field that has a curve."""
        if self._file is None:
            return
        values = b"".join(
            _bytes(1, _bytes(1, tag.encode()) + _float(2, float(fields[name])))
            for name, tag in _TAGS.items()
            if name in fields
        )
        self._write(_double(1, time.time()) + _varint(2, step) + _bytes(5, values))

    def _write(self, event: bytes) -> None:
        length = struct.pack("<Q", len(event))
        if self._file is not None:
            self._file.append(length + _masked_crc(length) + event + _masked_crc(event))


def _masked_crc(data: bytes) -> bytes:
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ _CRC_TABLE[(crc ^ byte) & 0xFF]
    crc ^= 0xFFFFFFFF
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


# Fields of a protobuf message: a key (number and wire type), then the value.


def _varint(number: int, value: int) -> bytes:
    return _plain(number << 3) + _plain(value)


def _double(number: int, value: float) -> bytes:
    return _plain(number << 3 | 1) + struct.pack("<d", value)


def _float(number: int, value: float) -> bytes:
    return _plain(number << 3 | 5) + struct.pack("<f", value)


def _bytes(number: int, value: bytes) -> bytes:
    return _plain(number << 3 | 2) + _plain(len(value)) + value


def _plain(value: int) -> bytes:
    """A non-negative whole number, seven bits a byte."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*out, value))


_EVERY_S = 5.0
LOG_EVERY_S = 30.0
"""Under a supervisor: 15 MB in the 62 days of the longest run."""


def _write(line: str) -> None:
    """Write a line at once; one that cannot be written (a full disk) is left out."""
    with suppress(OSError):
        os.write(1, f"{line}\n".encode())


class Console:
    """Progress: at most one line every `every_s` seconds; the first step does not count."""

    def __init__(
        self,
        steps: int,
        done: int,
        *,
        every_s: float = _EVERY_S,
        write: Callable[[str], None] = _write,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._steps, self._done = steps, done
        self._every_s, self._write, self._now = every_s, write, now
        self._warm_at: float | None = None
        self._told_at = -every_s

    def log_step(self, step: int, fields: Mapping[str, Any]) -> None:
        """A step has ended; `fields` are those of its progress line."""
        now = self._now()
        first = self._warm_at is None
        if self._warm_at is None:
            self._warm_at = now
        if not first and step != self._steps and now - self._told_at < self._every_s:
            return
        self._told_at = now
        parts = [
            f"step {step}/{self._steps}",
            f"loss {fields['loss']:.4f}",
            f"grad {fields['grad_norm']:.3g}",
            f"lr {fields['lr']:.2e}",
            f"{fields['toks_per_s']:.0f} tok/s",
        ]
        timed = step - self._done - 1
        if timed > 0:
            step_s = (now - self._warm_at) / timed
            left_s = step_s * (self._steps - step)
            parts.append(f"{step_s:.2f} s/step")
            parts.append(f"{duration(left_s)} left" if left_s else "done")
        self._write("  ".join(parts))

    def log(self, text: str) -> None:
        """Something that is not a step: a checkpoint, a validation loss."""
        self._write(text)


def duration(seconds: float) -> str:
    """m:ss, h:mm:ss from an hour, and days in front from a day."""
    whole = round(seconds)
    days, rest = divmod(whole, 86_400)
    hours, rest = divmod(rest, 3600)
    minutes, left = divmod(rest, 60)
    if days:
        return f"{days} d {hours}:{minutes:02}:{left:02}"
    return f"{hours}:{minutes:02}:{left:02}" if hours else f"{minutes}:{left:02}"


_SKIPPED_STEPS = 2  # allocations and caches settle
_HOT_SPOTS = 30
_NAME_CHARS = 120
"""`autograd::engine::evaluate_function: …` takes 55 alone, after which torch breaks names off."""
_LABEL = "section:"


class StepProfiler:
    """The profile of one rank; where no steps are asked for, nothing happens."""

    def __init__(self, run_dir: Path, steps: int, device: torch.device, sections: Sections) -> None:
        self._run_dir, self._left, self._device = run_dir, steps, device
        self._sections = sections
        self._until_start = _SKIPPED_STEPS
        self._profile: Any = None
        self._steps: list[int] = []

    def before_step(self, step: int) -> None:
        """Start when it is time."""
        if not self._left:
            return
        if self._until_start:
            self._until_start -= 1
            return
        if self._profile is None:
            activities = [ProfilerActivity.CPU]
            if self._device.type == "cuda":
                activities.append(ProfilerActivity.CUDA)
            self._profile = profile(activities=activities, acc_events=True)
            self._profile.__enter__()
            self._sections.label = _label_on_gpu if self._device.type == "cuda" else _label
        self._steps.append(step)
        self._left -= 1

    def after_step(self) -> None:
        """Write the files after the last step to profile."""
        if not self._left:
            self.close()

    def close(self) -> None:
        """Write the files now: a run may end before it has as many steps as it was to profile."""
        if self._profile is None:
            return
        self._left = 0
        self._profile.__exit__(None, None, None)
        self._sections.label = None
        averages = self._profile.key_averages()
        self._profile = None
        report = {"steps": self._steps, **summarise(averages)}
        by_time = averages.table(
            sort_by=_ranked_by(averages), row_limit=_HOT_SPOTS, max_name_column_width=_NAME_CHARS
        )
        try:
            (self._run_dir / "profile.txt").write_text(by_time, encoding="utf-8")
            (self._run_dir / "profile.json").write_text(
                json.dumps(report, indent=1) + "\n", encoding="utf-8"
            )
        except OSError as error:
            print(f"no profile: {error}", file=sys.stderr)


def summarise(averages: Iterable[Any]) -> dict[str, Any]:
    """Seconds of every section, and the operators with the most time (GPU's, else CPU's)."""
    sections: dict[str, float] = {}
    spots = []
    for row in averages:
        if row.key.startswith(_LABEL):
            sections[row.key.removeprefix(_LABEL)] = round(row.cpu_time_total / 1e6, 6)
            continue
        spots.append((row.self_device_time_total, row.self_cpu_time_total, row))
    on_device = any(device for device, _, _ in spots)
    column = 0 if on_device else 1  # as `_ranked_by`
    total = sum(spot[column] for spot in spots) or 1.0
    spots.sort(key=lambda spot: spot[column], reverse=True)
    return {
        "sections": sections,
        "hot_spots": [
            {
                "name": row.key,
                "calls": row.count,
                "self_cpu_s": round(cpu / 1e6, 6),
                "self_device_s": round(device / 1e6, 6),
                "share": round((device if on_device else cpu) / total, 4),
            }
            for device, cpu, row in spots[:_HOT_SPOTS]
        ],
    }


def _ranked_by(averages: Iterable[Any]) -> str:
    """The column that says where the time went: the GPU's, where it has done anything."""
    on_device = any(row.self_device_time_total for row in averages)
    return "self_device_time_total" if on_device else "self_cpu_time_total"


def _label(section: str) -> AbstractContextManager[Any]:
    return record_function(f"{_LABEL}{section}")


@contextmanager
def _label_on_gpu(section: str) -> Iterator[None]:
    with torch.cuda.nvtx.range(f"{_LABEL}{section}"), _label(section):
        yield
